//! Runs in which equal rows are one point, on the CPU and on a GPU.
use super::{CPU, config, rows};
use candle::{Device, Result, Tensor};
use chandlery::tsne::measure::{TrueDistances, knn_recall, trustworthiness};
use chandlery::tsne::{Affinity, Method, Metric, Start, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox, Trainer};
use chandlery_ops::core::normal;
use chandlery_tests::{assert_close, assert_same_bits, devices};
use serde_json::Value::Null;

const PLACE: Philox = Philox::new(94, 0);

fn unique(method: Method, n_dims: usize) -> TsneConfig {
    TsneConfig { unique: true, ..config(method, n_dims) }
}

/// A layout on the host.
fn layout_of(run: &TsneTrainer) -> Result<Tensor> {
    run.layout()?.to_device(&CPU)
}

/// Of rows of which a fifth comes again.
fn assert_together(layout: &Tensor) -> Result<()> {
    let (n, again) = (layout.dim(0)?, layout.dim(0)? / 5);
    let last = layout.narrow(0, n - again, again)?.contiguous()?;
    assert_same_bits("equal rows", &last, &layout.narrow(0, 0, again)?.contiguous()?)
}

#[test]
fn affinities_and_first_iterations_of_unique_rows_are_those_of_the_cpu() -> Result<()> {
    for (n, affinity) in [
        (250, Affinity::Perplexity),
        (250, Affinity::Uniform),
        (250, Affinity::FixedWidth(1.5)),
        (5000, Affinity::Perplexity),
    ] {
        let rows = rows(n, 6, 3)?;
        for (method, n_dims, room) in [
            (Method::Exact, 1, 1e-4),
            (Method::Exact, 2, 1e-4),
            (Method::BarnesHut, 3, 1e-4),
            (Method::Fft, 2, 0.03),
        ] {
            let of = TsneConfig {
                affinity,
                theta: 0.,
                early_iterations: 0,
                iterations: 2,
                ..unique(method, n_dims)
            };
            let first = (normal((n, n_dims), &CPU, Philox::new(94, 5))? * 0.01)?;
            let begun = |device: &Device| -> Result<TsneTrainer> {
                TsneTrainer::new(of.clone(), PLACE, &rows.to_device(device)?)?
                    .start_at(&first.to_device(device)?)
            };
            let mut on_cpu = begun(&CPU)?;
            assert_eq!(on_cpu.n_points(), n - n / 5);
            let want = on_cpu.affinities().clone();
            on_cpu.step()?;
            let of_cpu = layout_of(&on_cpu)?;
            let largest = of_cpu.abs()?.max_all()?.to_scalar::<f32>()?;
            for device in devices()? {
                let what = format!("{method:?} {n}×{n_dims}, {affinity:?}, {:?}", device.location());
                let mut run = begun(&device)?;
                let got = run.affinities();
                assert_eq!(got.offsets.to_vec1::<u32>()?, want.offsets.to_vec1::<u32>()?, "{what}");
                assert_eq!(got.columns.to_vec1::<u32>()?, want.columns.to_vec1::<u32>()?, "{what}");
                // Of all affinities, which add up to 1.
                let off =
                    (got.values.to_device(&CPU)? - &want.values)?.abs()?.sum_all()?.to_scalar::<f32>()?;
                assert!(off < 1e-5, "{what}: affinities are off by {off}");
                run.step()?;
                assert_close(&what, &layout_of(&run)?, &of_cpu, 0., room * largest)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_run_of_unique_rows_has_the_same_bits_again_and_the_divergence_of_the_cpu() -> Result<()> {
    for (n, methods) in [
        (250, vec![(Method::Exact, 2), (Method::BarnesHut, 2), (Method::BarnesHut, 3), (Method::Fft, 2)]),
        (5000, vec![(Method::Fft, 2)]),
    ] {
        let rows = rows(n, 6, 3)?;
        for (method, n_dims) in methods {
            let mut of_cpu = None;
            for device in devices()? {
                let there = rows.to_device(&device)?;
                let whole = || -> Result<TsneTrainer> {
                    let mut run = TsneTrainer::new(unique(method, n_dims), PLACE, &there)?;
                    run.fit()?;
                    Ok(run)
                };
                let (run, what) = (whole()?, format!("{method:?} {n}×{n_dims}, {:?}", device.location()));
                let layout = layout_of(&run)?;
                assert_same_bits(&what, &layout_of(&whole()?)?, &layout)?;
                assert_together(&layout)?;
                let kl = run.kl_estimate(&run.layout()?, usize::MAX)?.value;
                let told = run.kl()?;
                assert!((told - kl).abs() < 0.02 * kl, "{what}: {told} for {kl}");
                // Trees and grids of devices differ, by which few points come to other places.
                let room = if method == Method::Exact || n > 1000 { 0.02 } else { 0.05 };
                let want = *of_cpu.get_or_insert(kl);
                assert!((kl - want).abs() < room * want, "{what}: {kl} for {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_run_of_unique_rows_goes_on_from_the_checkpoint_of_any_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let rows = rows(250, 6, 3)?;
    for method in [Method::Exact, Method::BarnesHut, Method::Fft] {
        for from in devices()? {
            let mut whole = TsneTrainer::new(unique(method, 2), PLACE, &rows.to_device(&from)?)?;
            whole.fit()?;
            let kl = whole.kl()?;
            for to in devices()? {
                let mut run = TsneTrainer::new(unique(method, 2), PLACE, &rows.to_device(&from)?)?;
                run.step()?;
                run.step()?;
                run.save(&path, &Null)?;
                let (mut again, _) = TsneTrainer::load(&path, &rows.to_device(&to)?, &to)?;
                assert_eq!(again.n_points(), 200);
                assert_same_bits("as it was saved", &layout_of(&again)?, &layout_of(&run)?)?;
                again.fit()?;
                let what = format!("{method:?}, {:?} to {:?}", from.location(), to.location());
                if from.same_device(&to) {
                    assert_same_bits(&what, &layout_of(&again)?, &layout_of(&whole)?)?;
                }
                assert_together(&layout_of(&again)?)?;
                let got = again.kl()?;
                assert!((got - kl).abs() < 0.03 * kl, "{what}: {got} for {kl}");
            }
        }
    }
    Ok(())
}

#[test]
fn measures_of_unique_rows_are_those_of_the_cpu() -> Result<()> {
    let rows = rows(250, 6, 3)?;
    let run = TsneTrainer::new(unique(Method::Exact, 2), PLACE, &rows)?;
    let layout = (run.layout()? * 1e5)?;
    // So wide that f32 has no squares.
    let wide = (&layout * 1e17)?;
    let figures = |run: &TsneTrainer, device: &Device| -> Result<[f64; 5]> {
        let (rows, layout) = (rows.to_device(device)?, layout.to_device(device)?);
        let of = TrueDistances::Rows(&rows, Metric::Euclidean);
        Ok([
            run.kl_estimate(&layout, usize::MAX)?.value,
            run.kl_estimate(&layout, 60)?.value,
            run.kl_estimate(&wide.to_device(device)?, usize::MAX)?.value,
            trustworthiness(of, &layout, 7, usize::MAX)?,
            knn_recall(of, &layout, 7)?,
        ])
    };
    let want = figures(&run, &CPU)?;
    for device in devices()? {
        let run = TsneTrainer::new(unique(Method::Exact, 2), PLACE, &rows.to_device(&device)?)?;
        let got = figures(&run, &device)?;
        for (e, (got, want)) in got.iter().zip(&want).enumerate() {
            // Of the last two, points that f32 has as equally far may change places.
            let room = if e < 3 { 2e-5 } else { 1e-3 };
            assert!((got - want).abs() < room * want, "{got} for {want}, {e}, on {:?}", device.location());
        }
        let host = layout.to_vec2::<f32>()?;
        let apart: Vec<Vec<f32>> = host
            .iter()
            .enumerate()
            .map(|(i, y)| if i == 249 { vec![y[0] + 1., y[1]] } else { y.clone() })
            .collect();
        let said = super::refused(run.kl_estimate(&Tensor::new(apart, &device)?, usize::MAX));
        assert!(said.contains("equal rows must have one place"), "{said}");
    }
    Ok(())
}

#[test]
fn points_in_an_order_of_their_own_keep_their_weights() -> Result<()> {
    // So many that they are sorted.
    let points = normal((20_500, 3), &CPU, Philox::new(94, 6))?;
    let rows = Tensor::cat(&[&points, &points.narrow(0, 3000, 7000)?], 0)?;
    for device in devices()? {
        let of =
            TsneConfig { perplexity: 3., early_iterations: 50, iterations: 25, ..unique(Method::Fft, 2) };
        let mut run = TsneTrainer::new(of, PLACE, &rows.to_device(&device)?)?;
        run.fit()?;
        let (told, kl) = (run.kl()?, run.kl_estimate(&run.layout()?, usize::MAX)?.value);
        assert!((told - kl).abs() < 0.01 * kl, "{told} for {kl} on {:?}", device.location());
    }
    Ok(())
}

#[test]
fn few_points_and_one_have_layouts_on_every_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let by_turns = |n: usize| -> Result<Tensor> {
        let rows: Vec<f32> = (0..40).flat_map(|i| [(i % n) as f32, 1., (i % n * i % n) as f32]).collect();
        Tensor::from_vec(rows, (40, 3), &CPU)
    };
    for device in devices()? {
        for n in [1, 2, 3] {
            let rows = by_turns(n)?.to_device(&device)?;
            for (method, start) in [
                (Method::Exact, Start::Pca),
                (Method::BarnesHut, Start::Random),
                (Method::Fft, Start::Spectral),
            ] {
                let of = TsneConfig { start, keep_neighbours: true, ..unique(method, 2) };
                let mut run = TsneTrainer::new(of, PLACE, &rows)?;
                assert_eq!(run.n_points(), n);
                run.fit()?;
                let (layout, seen) = (layout_of(&run)?, run.metrics()?);
                let what = format!("{n} points, {method:?}, {:?}", device.location());
                let places = layout.to_vec2::<f32>()?;
                assert!(places.iter().flatten().all(|y| y.is_finite()), "{what}: {places:?}");
                assert!((0..40).all(|i| places[i] == places[i % n]), "{what}: {places:?}");
                assert!(seen.kl.is_finite() && seen.gradient_norm.is_finite(), "{what}: {seen:?}");
                assert!(n > 1 || seen.kl < 1e-4, "{what}: {seen:?}");
                run.save(&path, &Null)?;
                let (again, _) = TsneTrainer::load(&path, &rows, &device)?;
                assert_same_bits(&what, &layout_of(&again)?, &layout)?;
            }
        }
    }
    Ok(())
}

#[test]
fn rows_of_a_matrix_are_unique_on_every_device() -> Result<()> {
    let points = normal((30, 3), &CPU, Philox::new(94, 7))?;
    let rows = Tensor::cat(&[&points, &points.narrow(0, 4, 20)?], 0)?;
    let squares = rows.unsqueeze(0)?.broadcast_sub(&rows.unsqueeze(1)?)?.sqr()?.sum(2)?;
    let distances = squares.sqrt()?;
    let of = TsneConfig { start: Start::Random, ..unique(Method::Exact, 2) };
    let mut of_cpu = None;
    for device in devices()? {
        let run = TsneTrainer::from_distances(of.clone(), PLACE, &distances.to_device(&device)?)?;
        assert_eq!(run.n_points(), 30);
        let kl = run.kl()?;
        let want = *of_cpu.get_or_insert(kl);
        assert!((kl - want).abs() < 2e-5 * want, "{kl} for {want} on {:?}", device.location());
    }
    Ok(())
}
