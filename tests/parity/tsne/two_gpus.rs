//! t-SNE divided over two GPUs against one: `cargo test --features cuda --test parity -- --ignored
//! two_gpus`, on a machine that has them.
#![cfg(feature = "cuda")]
use crate::two_gpus::{both, each, in_turn};
use candle::{DType, Device, Result, Tensor};
use chandlery::tsne::{Method, Metric, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Group, Philox, Trainer};
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{Neighbours, knn_approximate_in_group, knn_in_group};
use chandlery_tests::{assert_close, assert_same_bits};

/// Rows in ten heaps.
fn rows(n: usize, d: usize, device: &Device) -> Result<Tensor> {
    let centres = (normal((10, d), device, Philox::new(5, 1))? * 4.)?;
    let own: Vec<u32> = (0..n).map(|i| (i % 10) as u32).collect();
    gather_rows(&centres, &own)? + normal((n, d), device, Philox::new(5, 2))?
}

fn on_host(t: &Tensor) -> Result<Tensor> {
    t.to_device(&Device::Cpu)
}

fn exact(group: &Group, device: &Device, metric: Metric) -> Result<[Tensor; 2]> {
    of(&knn_in_group(group, &rows(9001, 40, device)?, 15, metric)?)
}

fn approximate(group: &Group, device: &Device, metric: Metric) -> Result<[Tensor; 2]> {
    let rows = rows(60_001, 40, device)?;
    let found = knn_approximate_in_group(group, &rows, 15, metric, 0.9, Philox::new(5, 3))?;
    assert!(found.looked_at < 1., "the search was exact");
    of(&found.neighbours)
}

fn of(found: &Neighbours) -> Result<[Tensor; 2]> {
    Ok([on_host(&found.indices)?, on_host(&found.distances)?])
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_find_the_neighbours_of_one() -> Result<()> {
    let devices = both()?;
    for metric in [Metric::Euclidean, Metric::Cosine, Metric::Manhattan, Metric::Hamming] {
        let alone = exact(&Group::single(), &devices[0], metric)?;
        let _turn = in_turn();
        for found in each(Group::on_gpus(&devices)?, &devices, |group, device| exact(group, device, metric))?
        {
            assert_same_bits(metric.name(), &found[0], &alone[0])?;
            assert_same_bits(metric.name(), &found[1], &alone[1])?;
        }
    }
    let alone = approximate(&Group::single(), &devices[0], Metric::Euclidean)?;
    let _turn = in_turn();
    let both = each(Group::on_gpus(&devices)?, &devices, |group, device| {
        approximate(group, device, Metric::Euclidean)
    })?;
    assert_same_bits("the other rank", &both[1][0], &both[0][0])?;
    // Products of other sizes may round a row to another place in a list.
    let other = both[0][0].ne(&alone[0])?.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()?;
    assert!(other < 1e-4, "a share of {other} of the neighbours is other than of one GPU");
    Ok(())
}

#[test]
#[ignore = "needs two GPUs"]
fn two_gpus_make_the_layout_of_one() -> Result<()> {
    let devices = both()?;
    // More points than from which on they are sorted, and fewer.
    for (method, n_dims, n) in [
        (Method::Fft, 2, 21_003),
        (Method::Fft, 2, 3001),
        (Method::BarnesHut, 2, 21_003),
        (Method::BarnesHut, 3, 3001),
        (Method::Exact, 3, 3001),
    ] {
        let (what, iterations) = (format!("{method:?} of {n} in {n_dims}"), 30);
        let method = Some(method);
        let early_iterations = 30;
        let config = TsneConfig { method, n_dims, iterations, early_iterations, ..TsneConfig::default() };
        let made = |group: &Group, device: &Device| -> Result<(Vec<Tensor>, f64)> {
            let rows = rows(n, 40, device)?;
            let run = TsneTrainer::new_in_group(group, config.clone(), Philox::new(5, 0), &rows)?;
            let mut run = run.in_group(group)?;
            let kl = run.fit()?.last().map_or(f64::NAN, |seen| seen.kl);
            run.gather()?;
            Ok((vec![on_host(&run.layout()?)?, on_host(&run.affinities().values)?], kl))
        };
        let (alone, kl) = made(&Group::single(), &devices[0])?;
        let _turn = in_turn();
        let first = each(Group::on_gpus(&devices)?, &devices, made)?;
        let again = each(Group::on_gpus(&devices)?, &devices, made)?;
        assert_same_bits(&what, &first[0].0[1], &alone[1])?;
        assert_close(&what, &first[0].0[0], &alone[0], 1e-2, 1e-2)?;
        assert!((first[0].1 - kl).abs() < 1e-4, "{what}: divergences {} and {kl}", first[0].1);
        assert_same_bits(&format!("{what}, the other rank"), &first[1].0[0], &first[0].0[0])?;
        assert_same_bits(&format!("{what}, another run"), &again[0].0[0], &first[0].0[0])?;
    }
    Ok(())
}
