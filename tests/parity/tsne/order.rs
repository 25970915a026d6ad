//! Points in the order of their places.
use super::{CPU, config, graph, layout, on};
use candle::{Result, Tensor};
use chandlery::tsne::{Method, TsneConfig, TsneTrainer, measure};
use chandlery::{FullBatchTrainer, Trainer};
use chandlery_ops::tsne::{Affinities, affinities_in_order, curve_order, curve_order_reference, symmetrize};
use chandlery_tests::{assert_same_bits, devices};
use std::ops::ControlFlow;

#[test]
fn points_follow_hilberts_curve_on_every_device() -> Result<()> {
    let lattice = |side: u32, d: u32| -> Result<Tensor> {
        let cells = side.pow(d);
        let place = |i: u32| (0..d).map(move |k| ((i * 7 % cells) / side.pow(k) % side) as f32);
        Tensor::from_vec((0..cells).flat_map(place).collect::<Vec<_>>(), (cells as usize, d as usize), &CPU)
    };
    for device in devices()? {
        for (side, d) in [(16, 2), (8, 3)] {
            let points = lattice(side, d)?;
            let order = curve_order(&points.to_device(&device)?)?.to_device(&CPU)?;
            let along = points.index_select(&order, 0)?.to_vec2::<f32>()?;
            for pair in along.windows(2) {
                let steps: f32 = pair[0].iter().zip(&pair[1]).map(|(a, b)| (a - b).abs()).sum();
                assert!((steps - 1.).abs() < 1e-6, "{d}-D on {:?}: {pair:?}", device.location());
            }
        }
        for (n, d) in [(1, 2), (2, 3), (31, 2), (500, 3), (5000, 2), (3000, 3)] {
            let points = layout(n, d, 40.)?;
            let got = curve_order(&points.to_device(&device)?)?.to_vec1::<u32>()?;
            assert_eq!(got, curve_order_reference(&points)?, "{n} points, {d}-D, {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn a_graph_in_another_order_has_the_same_edges_between_its_points() -> Result<()> {
    // A point that all others know has a row that is longer than what a block sorts.
    let hub: Vec<u32> =
        (0..5000u32).flat_map(|i| [if i == 0 { 1 } else { 0 }, if i < 2 { 2 } else { i - 1 }]).collect();
    let hub = symmetrize(&Tensor::from_vec(hub, (5000, 2), &CPU)?, &Tensor::full(0.5f32, (5000, 2), &CPU)?)?;
    let (indices, p) = graph(300, 4, 31, 10.)?;
    for graph in [symmetrize(&indices, &p)?, hub] {
        let n = graph.n();
        let order: Vec<u32> = (0..n as u32).map(|i| (i * 7 + 3) % n as u32).collect();
        let edges = |graph: &Affinities| -> Result<Vec<Vec<(u32, u32)>>> {
            let (offsets, columns) = (graph.offsets.to_vec1::<u32>()?, graph.columns.to_vec1::<u32>()?);
            let values = graph.values.to_vec1::<f32>()?;
            let row = |i: usize| {
                (offsets[i] as usize..offsets[i + 1] as usize).map(|e| (columns[e], values[e].to_bits()))
            };
            Ok((0..n).map(|i| row(i).collect()).collect())
        };
        let given = edges(&graph)?;
        for device in devices()? {
            let made = affinities_in_order(&on(&graph, &device)?, &Tensor::new(&order[..], &device)?)?;
            for (i, mut row) in edges(&made)?.into_iter().enumerate() {
                let what = format!("row {i} of {n}, {:?}", device.location());
                assert!(row.len() > 2048 || row.is_sorted(), "{what}");
                row.iter_mut().for_each(|(j, _)| *j = order[*j as usize]);
                row.sort_unstable();
                assert_eq!(row, given[order[i] as usize], "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn many_points_come_back_in_the_order_of_their_rows() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // A ring that is given out of order, of as many points as are sorted.
    let (n, k) = (20_000, 6);
    let indices: Vec<u32> = (0..n).flat_map(|i| (1..=k).map(move |s| ((i + 7919 * s) % n) as u32)).collect();
    let p = Tensor::full(1. / k as f32, (n, k), &CPU)?;
    let ring = symmetrize(&Tensor::from_vec(indices, (n, k), &CPU)?, &p)?;
    let angle = |i: usize| ((i * 3 % n) as f32).sin();
    let begin = Tensor::from_vec((0..2 * n).map(|i| 1e-2 * angle(i)).collect::<Vec<_>>(), (n, 2), &CPU)?;
    let config = TsneConfig { early_iterations: 60, iterations: 5, ..config(Method::Fft, 2) };
    for device in devices()? {
        let (graph, begin) = (on(&ring, &device)?, begin.to_device(&device)?);
        let new = || TsneTrainer::from_affinities(config.clone(), graph.clone(), &begin);
        let mut run = new()?;
        let mut seen = vec![];
        let path = folder.path().join("checkpoint");
        run.fit_with(|run, progress| {
            let kl = measure::kl_of_affinities(&graph, &run.layout()?, 1.)?;
            // Of a grid the total is a few per cent off.
            assert!((progress.kl - kl).abs() < 0.1, "{} for {kl} on {:?}", progress.kl, device.location());
            seen.push(progress.iteration);
            if progress.iteration == 50 {
                run.save(&path, &serde_json::Value::Null)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        assert_eq!(seen, [25, 50, 60, 65]);
        let (mut again, _) = TsneTrainer::restored(&path, None, &device)?;
        again.fit()?;
        assert_same_bits("a run from a checkpoint", &again.layout()?, &run.layout()?)?;
        let mut second = new()?;
        second.fit()?;
        assert_same_bits("a second run", &second.layout()?, &run.layout()?)?;
    }
    Ok(())
}
