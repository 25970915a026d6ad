//! Kinds of affinities, and settings that change on the way, on every device.
use super::{CPU, config, rows};
use candle::{Device, Result, Tensor};
use chandlery::tsne::{Affinity, Change, Method, NewValues, Start, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox, Trainer};
use chandlery_ops::tsne::{Metric, Neighbours, knn_reference};
use chandlery_tests::{assert_close, assert_same_bits, devices};
use std::ops::ControlFlow;

const PLACE: Philox = Philox { seed: 91, stream: 0, offset: 0 };

fn near(n: usize, k: usize, device: &Device) -> Result<Neighbours> {
    let near = knn_reference(&rows(n, 6, 1)?, k, Metric::Euclidean)?;
    Ok(Neighbours { indices: near.indices.to_device(device)?, distances: near.distances.to_device(device)? })
}

#[test]
fn kinds_of_affinities_are_those_of_the_cpu_on_every_device() -> Result<()> {
    for affinity in [Affinity::Uniform, Affinity::FixedWidth(0.7), Affinity::FixedWidth(1e-30)] {
        let config = TsneConfig { affinity, ..config(Method::Exact, 2) };
        let want = TsneTrainer::from_neighbours(config.clone(), PLACE, &near(300, 15, &CPU)?)?;
        for device in devices()? {
            let got = TsneTrainer::from_neighbours(config.clone(), PLACE, &near(300, 15, &device)?)?;
            let (got, want) = (got.affinities(), want.affinities());
            assert_eq!(got.columns.to_vec1::<u32>()?, want.columns.to_vec1::<u32>()?, "{affinity:?}");
            // Both are computed in f64 and rounded to f32.
            assert_close(&format!("{affinity:?}"), &got.values.to_device(&CPU)?, &want.values, 1e-6, 1e-12)?;
        }
    }
    Ok(())
}

#[test]
fn changes_are_the_same_bits_by_schedule_callback_and_checkpoint_on_every_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let to = NewValues {
        exaggeration: Some(2.),
        learning_rate: Some(20.),
        momentum: Some(0.5),
        degrees_of_freedom: Some(0.7),
        perplexities: Some(vec![4.]),
    };
    for device in devices()? {
        for method in [Method::Exact, Method::BarnesHut, Method::Fft] {
            let near = near(300, 24, &device)?;
            let plain = TsneConfig { keep_neighbours: true, start: Start::Spectral, ..config(method, 2) };
            let changes = vec![Change { iteration: 60, to: to.clone() }];
            let scheduled = TsneConfig { changes, ..plain.clone() };
            let mut whole = TsneTrainer::from_neighbours(scheduled.clone(), PLACE, &near)?;
            while whole.step()?.is_some() {}
            let what = |by: &str| format!("{by}, {method:?}, {:?}", device.location());
            let same = |by: &str, run: &TsneTrainer| -> Result<()> {
                let host = |t: Tensor| t.to_device(&CPU);
                assert_same_bits(&what(by), &host(run.layout()?)?, &host(whole.layout()?)?)
            };
            let mut run = TsneTrainer::from_neighbours(plain, PLACE, &near)?;
            run.fit_with(|run, seen| {
                if seen.iteration == 60 {
                    run.change(to.clone())?;
                }
                Ok(ControlFlow::Continue(()))
            })?;
            same("callback", &run)?;
            for killed in [2, 3, 4] {
                let mut run = TsneTrainer::from_neighbours(scheduled.clone(), PLACE, &near)?;
                for _ in 0..killed {
                    run.step()?;
                }
                run.save(&path, &serde_json::Value::Null)?;
                let (mut again, _) = TsneTrainer::restored(&path, None, &device)?;
                while again.step()?.is_some() {}
                same("checkpoint", &again)?;
            }
        }
    }
    Ok(())
}
