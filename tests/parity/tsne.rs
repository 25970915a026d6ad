//! The stages of t-SNE on every device: the exact neighbours and affinities of the references, forces within the method's error, and the same bits in
//! every run.
use candle::{DType, Device, Result, Tensor};
use chandlery::tsne::{Method, TsneConfig, TsneRun, measure};
use chandlery_ops::{
    Affinities, LayoutState, LayoutStep, Metric, Philox, Repulsion, RepulsionMethod, affinities_in_order,
    curve_order, curve_order_reference, knn, knn_of, knn_of_reference, knn_reference, layout_divergence,
    layout_divergence_reference, layout_step_, layout_step_reference, normal, perplexity_search,
    perplexity_search_reference, repulsion_at, repulsion_reference, set_scalars_, symmetrize,
    symmetrize_reference,
};
use chandlery_tests::{assert_close, assert_same_bits, devices};
use std::ops::ControlFlow;

const CPU: Device = Device::Cpu;

/// Rows in a few groups, some of them twice.
fn rows(n: usize, d: usize, stream: u64) -> Result<Tensor> {
    let group = (Tensor::arange(0u32, n as u32, &CPU)?.to_dtype(DType::F32)?.unsqueeze(1)? / 7.)?.floor()?;
    let rows = normal((n, d), &CPU, Philox::new(90, stream))?.broadcast_add(&(group * 0.3)?)?;
    let again = n / 5;
    Tensor::cat(&[rows.narrow(0, 0, n - again)?, rows.narrow(0, 0, again)?], 0)?.contiguous()
}

/// A layout that is `span` wide, with points that lie on each other.
fn layout(n: usize, d: usize, span: f64) -> Result<Tensor> {
    let y = rows(n, d, 5)?;
    let sides = (y.max(0)? - y.min(0)?)?.max(0)?.to_scalar::<f32>()?;
    y * (span / f64::from(sides.max(1e-3)))
}

/// Distances are those of the reference, and each index has the distance that stands beside it.
fn assert_neighbours(
    what: &str,
    got: &chandlery_ops::Neighbours,
    want: &chandlery_ops::Neighbours,
    all: &[Vec<f64>],
) -> Result<()> {
    let close = |d: f64| 2e-5 * d.abs() + 2e-5;
    let (indices, distances) =
        (got.indices.to_device(&CPU)?.to_vec2::<u32>()?, got.distances.to_device(&CPU)?.to_vec2::<f32>()?);
    let want = want.distances.to_vec2::<f32>()?;
    for (q, (indices, distances)) in indices.iter().zip(&distances).enumerate() {
        let mut seen = std::collections::HashSet::new();
        for (e, (&j, &d)) in indices.iter().zip(distances).enumerate() {
            let (d, best) = (f64::from(d), f64::from(want[q][e]));
            assert!(
                (d - best).abs() <= close(best),
                "{what}: query {q}, neighbour {e}: distance {d}, want {best}"
            );
            let own = all[q][j as usize];
            assert!((d - own).abs() <= close(own), "{what}: query {q}: row {j} is {own} away, got {d}");
            assert!(seen.insert(j), "{what}: query {q} has row {j} twice");
        }
        let pairs = distances.iter().zip(indices).collect::<Vec<_>>();
        assert!(pairs.is_sorted(), "{what}: query {q} is not sorted by distance and index");
    }
    Ok(())
}

/// Every distance, in f64.
fn distances(queries: &Tensor, rows: &Tensor, metric: Metric) -> Result<Vec<Vec<f64>>> {
    let n = rows.dim(0)?;
    let all = knn_of_reference(queries, rows, n, metric)?;
    let (indices, sorted) = (all.indices.to_vec2::<u32>()?, all.distances.to_vec2::<f32>()?);
    Ok(indices
        .iter()
        .zip(&sorted)
        .map(|(indices, sorted)| {
            let mut out = vec![0.; n];
            indices.iter().zip(sorted).for_each(|(&j, &d)| out[j as usize] = d.into());
            out
        })
        .collect())
}

#[test]
fn neighbours_are_the_nearest_rows_on_every_device() -> Result<()> {
    for (n, d, k) in [(2, 1, 1), (10, 3, 9), (37, 8, 5), (300, 9, 90), (1100, 50, 15), (2300, 4, 30)] {
        let rows = rows(n, d, 1)?;
        let queries = normal((13, d), &CPU, Philox::new(90, 2))?;
        for metric in [Metric::Euclidean, Metric::Cosine] {
            let (want, all) = (knn_reference(&rows, k, metric)?, distances(&rows, &rows, metric)?);
            let (of, of_all) =
                (knn_of_reference(&queries, &rows, k, metric)?, distances(&queries, &rows, metric)?);
            for device in devices()? {
                let what = format!("{n} rows of {d}, k {k}, {metric:?}, {:?}", device.location());
                let there = rows.to_device(&device)?;
                assert_neighbours(&what, &knn(&there, k, metric)?, &want, &all)?;
                assert_neighbours(
                    &what,
                    &knn_of(&queries.to_device(&device)?, &there, k, metric)?,
                    &of,
                    &of_all,
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn neighbours_are_found_where_products_lose_all_digits() -> Result<()> {
    // Pairs of rows that are 1e-3 apart, far from the others and from the mean.
    let far = (normal((600, 40), &CPU, Philox::new(90, 3))? * 100.)?;
    let near = (&far + (normal((600, 40), &CPU, Philox::new(90, 4))? * 1e-3)?)?;
    let rows = Tensor::cat(&[far, near], 0)?;
    for device in devices()? {
        let found = knn(&rows.to_device(&device)?, 1, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
        for (i, found) in found.iter().enumerate() {
            assert_eq!(found[0] as usize, (i + 600) % 1200, "row {i} on {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn queries_and_rows_may_be_parts_of_one_tensor() -> Result<()> {
    let all = normal((600, 20), &CPU, Philox::new(90, 12))?;
    for device in devices()? {
        let there = all.to_device(&device)?;
        let (queries, rows) = (there.narrow(0, 0, 300)?, there.narrow(0, 300, 300)?);
        let want = knn_of(&queries.copy()?, &rows.copy()?, 5, Metric::Euclidean)?;
        let got = knn_of(&queries, &rows, 5, Metric::Euclidean)?;
        assert_eq!(got.indices.to_vec2::<u32>()?, want.indices.to_vec2::<u32>()?);
    }
    Ok(())
}

#[test]
fn an_approximate_search_finds_most_neighbours_and_says_how_many() -> Result<()> {
    let rows = normal((5200, 6), &CPU, Philox::new(90, 10))?;
    for device in devices()? {
        let there = rows.to_device(&device)?;
        let exact = knn(&there, 10, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
        let share = |found: &chandlery_ops::Neighbours| -> Result<f64> {
            let found = found.indices.to_vec2::<u32>()?;
            let right = exact.iter().zip(&found).map(|(a, b)| a.iter().filter(|j| b.contains(j)).count());
            Ok(right.sum::<usize>() as f64 / 52_000.)
        };
        let search = |probes| {
            chandlery_ops::knn_approximate(&there, 10, Metric::Euclidean, probes, Philox::new(90, 11))
        };
        let (few, many) = (search(1)?, search(4)?);
        let (of_few, of_many) = (share(&few.neighbours)?, share(&many.neighbours)?);
        assert!(of_few > 0.4 && of_few < of_many && of_many > 0.9, "{of_few} and {of_many}");
        assert!(
            (few.recall - of_few).abs() < 0.05 && (many.recall - of_many).abs() < 0.05,
            "{} and {}",
            few.recall,
            many.recall
        );
        let found = many.neighbours.indices.to_vec2::<u32>()?;
        assert!(
            found.iter().enumerate().all(|(i, row)| !row.contains(&(i as u32))),
            "a row is its own neighbour"
        );
        assert_same_bits(
            "distances of a second search",
            &search(4)?.neighbours.distances,
            &many.neighbours.distances,
        )?;
        assert!((share(&search(5)?.neighbours)? - 1.).abs() < 1e-9, "as many probes as cells are exact");
    }
    Ok(())
}

/// The error of a search that must be refused.
fn message(found: Result<chandlery_ops::Neighbours>) -> String {
    found.err().map_or_else(String::new, |e| e.to_string())
}

#[test]
fn entries_that_are_not_finite_are_refused_with_their_place() -> Result<()> {
    for device in devices()? {
        let mut values = vec![1f32; 40 * 30];
        values[17 * 30 + 4] = f32::NAN;
        values[30 * 30] = f32::INFINITY;
        let rows = Tensor::from_vec(values, (40, 30), &device)?;
        let error = message(knn(&rows, 3, Metric::Euclidean));
        assert!(error.contains("row 17, column 4"), "{error}");
        let clean = rows.zeros_like()?;
        let error = message(knn_of(&rows, &clean, 3, Metric::Euclidean));
        assert!(error.contains("queries") && error.contains("row 17, column 4"), "{error}");
    }
    Ok(())
}

fn graph(n: usize, d: usize, k: usize, perplexity: f64) -> Result<(Tensor, Tensor)> {
    let near = knn_reference(&rows(n, d, 1)?, k, Metric::Euclidean)?;
    let p = perplexity_search_reference(&near.distances, &[perplexity])?;
    Ok((near.indices, p))
}

#[test]
fn affinities_have_the_perplexity_on_every_device() -> Result<()> {
    for (n, k, perplexities) in
        [(2, 1, vec![1.]), (40, 7, vec![2.5]), (300, 90, vec![30.]), (100, 50, vec![5., 16., 30.])]
    {
        let near = knn_reference(&rows(n, 6, 1)?, k, Metric::Euclidean)?;
        let want = perplexity_search_reference(&near.distances, &perplexities)?;
        for device in devices()? {
            let got = perplexity_search(&near.distances.to_device(&device)?, &perplexities)?;
            // The entropy is met to 1e-6 nats.
            assert_close(&format!("affinities of {n} rows"), &got.to_device(&CPU)?, &want, 2e-5, 1e-7)?;
        }
    }
    Ok(())
}

#[test]
fn the_symmetric_graph_is_that_of_the_dense_matrix() -> Result<()> {
    for (n, d, k, perplexity) in [(2, 3, 1, 1.), (9, 2, 8, 3.), (150, 6, 31, 10.), (400, 3, 90, 30.)] {
        let (indices, p) = graph(n, d, k, perplexity)?;
        let want = symmetrize_reference(&indices, &p)?;
        for device in devices()? {
            let got = symmetrize(&indices.to_device(&device)?, &p.to_device(&device)?)?;
            assert_eq!(got.offsets.to_vec1::<u32>()?, want.offsets.to_vec1::<u32>()?);
            assert_eq!(got.columns.to_vec1::<u32>()?, want.columns.to_vec1::<u32>()?);
            assert_close(
                &format!("values of {n} rows"),
                &got.values.to_device(&CPU)?,
                &want.values,
                1e-6,
                0.,
            )?;
        }
    }
    Ok(())
}

/// The largest error of forces over the largest force, and that of the total.
fn errors(repulsion: &Repulsion, y: &Tensor, want: &(Tensor, f64)) -> Result<(f64, f64)> {
    let (forces, total) = (y.ones_like()?, Tensor::zeros(1, DType::F64, y.device())?);
    repulsion.arrange(y)?;
    repulsion.repulsion_(&forces, &total, y)?;
    let difference = (forces.to_device(&CPU)?.to_dtype(DType::F64)? - &want.0)?.abs()?.max_all()?;
    let largest = want.0.abs()?.max_all()?.to_scalar::<f64>()?.max(1e-300);
    let total = total.to_vec1::<f64>()?[0];
    Ok((difference.to_scalar::<f64>()? / largest, (total - want.1).abs() / want.1.max(1e-300)))
}

#[test]
fn exact_repulsion_is_that_of_the_reference() -> Result<()> {
    for (n, d) in [(1, 2), (2, 3), (10, 2), (129, 2), (500, 3), (1500, 2)] {
        for (span, alpha) in [(1e-4, 1.), (30., 1.), (30., 0.6)] {
            let y = layout(n, d, span)?;
            let want = repulsion_reference(&y, alpha)?;
            for device in devices()? {
                let repulsion = Repulsion::new(RepulsionMethod::Exact, n, d, alpha as f32, &device)?;
                let (force, total) = errors(&repulsion, &y.to_device(&device)?, &want)?;
                let what = format!("{n} points, {d}-D, span {span}, alpha {alpha}, {:?}", device.location());
                assert!(force <= 2e-4 || n == 1, "{what}: forces are off by {force}");
                assert!(total <= 1e-5 || n == 1, "{what}: the total is off by {total}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_tree_is_as_good_as_its_theta() -> Result<()> {
    for (n, d) in [(1, 2), (7, 2), (9, 3), (1000, 2), (1200, 3)] {
        let y = layout(n, d, 40.)?;
        let want = repulsion_reference(&y, 1.)?;
        for device in devices()? {
            let there = y.to_device(&device)?;
            for (theta, limit) in [(0., 1e-4), (0.2, 0.01), (0.5, 0.05)] {
                let tree = Repulsion::new(RepulsionMethod::Tree { theta }, n, d, 1., &device)?;
                let (force, total) = errors(&tree, &there, &want)?;
                let what = format!("{n} points, {d}-D, theta {theta}, {:?}", device.location());
                assert!(force <= limit || n == 1, "{what}: forces are off by {force}");
                assert!(total <= limit || n == 1, "{what}: the total is off by {total}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_tree_of_many_levels_is_as_good_as_its_theta() -> Result<()> {
    for (n, d) in [(4_700, 3), (40_000, 2), (36_870, 3)] {
        let y = (normal((n, d), &CPU, Philox::new(90, 15))? * 12.)?;
        for device in devices()? {
            let there = y.to_device(&device)?;
            let (forces, total) = (there.ones_like()?, Tensor::zeros(1, DType::F64, &device)?);
            Repulsion::new(RepulsionMethod::Exact, n, d, 1., &device)?.repulsion_(&forces, &total, &there)?;
            let want = (forces.to_device(&CPU)?.to_dtype(DType::F64)?, total.to_vec1::<f64>()?[0]);
            for (theta, limit) in [(0.2, 0.01), (0.5, 0.05)] {
                let tree = Repulsion::new(RepulsionMethod::Tree { theta }, n, d, 1., &device)?;
                let (force, total) = errors(&tree, &there, &want)?;
                let what = format!("{n} points, {d}-D, theta {theta}, {:?}", device.location());
                assert!(force <= limit, "{what}: forces are off by {force}");
                assert!(total <= limit, "{what}: the total is off by {total}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_grid_holds_many_points_in_one_cell_at_its_edge() -> Result<()> {
    // Two heaps far from each other, of which the larger weighs most.
    let (n, heap) = (30_000, 25_000);
    let near = normal((n, 2), &CPU, Philox::new(90, 16))?;
    let far =
        Tensor::cat(&[(near.narrow(0, 0, heap)? * 1e-3)?, (near.narrow(0, heap, n - heap)? + 100.)?], 0)?;
    for device in devices()? {
        let there = far.to_device(&device)?;
        let (forces, total) = (there.ones_like()?, Tensor::zeros(1, DType::F64, &device)?);
        Repulsion::new(RepulsionMethod::Exact, n, 2, 1., &device)?.repulsion_(&forces, &total, &there)?;
        let want = (forces.to_device(&CPU)?.to_dtype(DType::F64)?, total.to_vec1::<f64>()?[0]);
        let grid = Repulsion::new(RepulsionMethod::Grid { nodes: 1024 }, n, 2, 1., &device)?;
        let (force, total) = errors(&grid, &there, &want)?;
        let what = format!("{:?}", device.location());
        assert!(force <= 0.01, "{what}: forces are off by {force}");
        assert!(total <= 0.01, "{what}: the total is off by {total}");
    }
    Ok(())
}

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
fn a_grid_is_as_good_as_its_nodes_are_near() -> Result<()> {
    for (n, span, alpha) in [(3, 2., 1.), (900, 1e-4, 1.), (900, 25., 1.), (900, 25., 0.7)] {
        let y = layout(n, 2, span)?;
        let want = repulsion_reference(&y, alpha)?;
        for device in devices()? {
            let there = y.to_device(&device)?;
            let mut before = f64::INFINITY;
            for (nodes, limit) in [(64, 0.1), (128, 0.02), (256, 2e-3), (384, 1e-3), (512, 1e-3), (768, 1e-3)]
            {
                let grid = Repulsion::new(RepulsionMethod::Grid { nodes }, n, 2, alpha as f32, &device)?;
                let (force, total) = errors(&grid, &there, &want)?;
                let what =
                    format!("{n} points, span {span}, alpha {alpha}, {nodes} nodes, {:?}", device.location());
                assert!(force <= limit, "{what}: forces are off by {force}");
                assert!(total <= limit, "{what}: the total is off by {total}");
                assert!(force <= before.max(1e-4), "{what}: {force} is more than with fewer nodes, {before}");
                before = force;
            }
        }
    }
    Ok(())
}

#[test]
fn layouts_at_the_edge_of_numbers_have_finite_forces() -> Result<()> {
    let n = 300;
    let same = Tensor::zeros((n, 2), DType::F32, &CPU)?;
    let half = Tensor::cat(&[same.narrow(0, 0, 150)?, normal((150, 2), &CPU, Philox::new(90, 6))?], 0)?;
    let apart = (half.narrow(0, 0, n)?
        + Tensor::cat(
            &[Tensor::full(1e6f32, (150, 2), &CPU)?, Tensor::zeros((150, 2), DType::F32, &CPU)?],
            0,
        )?)?;
    for (name, y) in
        [("equal", same), ("half equal", half.clone()), ("far apart", apart), ("tiny", (half * 1e-30)?)]
    {
        for device in devices()? {
            let there = y.to_device(&device)?;
            for method in [
                RepulsionMethod::Exact,
                RepulsionMethod::Tree { theta: 0.5 },
                RepulsionMethod::Grid { nodes: 128 },
            ] {
                let repulsion = Repulsion::new(method, n, 2, 1., &device)?;
                let (forces, total) = (there.ones_like()?, Tensor::zeros(1, DType::F64, &device)?);
                repulsion.arrange(&there)?;
                repulsion.repulsion_(&forces, &total, &there)?;
                let what = format!("{name}, {method:?}, {:?}", device.location());
                let all = forces.flatten_all()?.to_vec1::<f32>()?;
                assert!(all.iter().all(|f| f.is_finite()), "{what}: forces are not finite");
                let total = total.to_vec1::<f64>()?[0];
                let most = (n * (n - 1)) as f64;
                assert!(
                    total.is_finite() && total > 0.2 * most && total < 1.01 * most || name == "far apart",
                    "{what}: total {total}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn points_beside_a_layout_feel_all_of_it() -> Result<()> {
    for (m, n, d) in [(1, 1, 2), (5, 300, 2), (200, 70, 3)] {
        let (queries, y) = (normal((m, d), &CPU, Philox::new(90, 7))?, layout(n, d, 20.)?);
        for alpha in [1., 0.5] {
            let together = Tensor::cat(&[&queries, &y], 0)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
            let (queries_f64, y_f64) = together.split_at(m);
            for device in devices()? {
                let (forces, totals) =
                    repulsion_at(&queries.to_device(&device)?, &y.to_device(&device)?, alpha as f32)?;
                let (forces, totals) = (forces.to_vec2::<f32>()?, totals.to_vec1::<f32>()?);
                for (i, q) in queries_f64.iter().enumerate() {
                    let (mut force, mut total) = (vec![0.; d], 0.);
                    for y in y_f64 {
                        let square: f64 = q.iter().zip(y).map(|(a, b)| (a - b).powi(2)).sum();
                        let near = 1. / (1. + square / alpha);
                        total += near.powf(alpha);
                        force
                            .iter_mut()
                            .enumerate()
                            .for_each(|(k, f)| *f += near.powf(alpha + 1.) * (q[k] - y[k]));
                    }
                    assert!(
                        (f64::from(totals[i]) - total).abs() <= 1e-5 * total,
                        "total {} for {total}",
                        totals[i]
                    );
                    for k in 0..d {
                        assert!(
                            (f64::from(forces[i][k]) - force[k]).abs() <= 1e-5 * total,
                            "{} for {}",
                            forces[i][k],
                            force[k]
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

fn on(affinities: &Affinities, device: &Device) -> Result<Affinities> {
    let there = |t: &Tensor| t.to_device(device);
    Ok(Affinities {
        offsets: there(&affinities.offsets)?,
        columns: there(&affinities.columns)?,
        values: there(&affinities.values)?,
    })
}

#[test]
fn steps_and_divergences_are_those_of_the_references() -> Result<()> {
    for (n, d, k) in [(2, 2, 1), (33, 3, 9), (257, 2, 40), (5000, 2, 3)] {
        let (indices, p) = if n < 1000 { graph(n, 4, k, 3f64.min(k as f64))? } else { ring(n, k)? };
        let affinities =
            if n < 1000 { symmetrize_reference(&indices, &p)? } else { symmetrize(&indices, &p)? };
        let y = layout(n, d, 10.)?;
        for alpha in [1f32, 0.5] {
            let step = LayoutStep { degrees_of_freedom: alpha, largest_step: 0.05, ..LayoutStep::default() };
            let (forces, total) = (normal((n, d), &CPU, Philox::new(90, 8))?, 50.);
            for device in devices()? {
                let (state, there) = (LayoutState::new(&y.to_device(&device)?)?, on(&affinities, &device)?);
                set_scalars_(&state.rates, &[30., 0.8, 4.])?;
                let (forces, totals) = (forces.to_device(&device)?, Tensor::new(&[total], &device)?);
                for _ in 0..3 {
                    let want = layout_step_reference(&state, &there, &forces, total, &step)?;
                    layout_step_(&state, &there, &forces, &totals, &step)?;
                    assert_close(
                        "velocity",
                        &state.velocity.to_device(&CPU)?,
                        &want.velocity.to_device(&CPU)?,
                        1e-4,
                        1e-5,
                    )?;
                    assert_close(
                        "layout",
                        &state.layout.to_device(&CPU)?,
                        &want.layout.to_device(&CPU)?,
                        1e-4,
                        1e-5,
                    )?;
                    assert_close(
                        "gains",
                        &state.gains.to_device(&CPU)?,
                        &want.gains.to_device(&CPU)?,
                        1e-6,
                        0.,
                    )?;
                    let (got, want) = (state.figures()?, want.figures()?);
                    assert!(
                        (got.gradient_norm / want.gradient_norm - 1.).abs() < 1e-4,
                        "{got:?} for {want:?}"
                    );
                    assert!((got.span / want.span - 1.).abs() < 1e-4, "{got:?} for {want:?}");
                }
                let got = layout_divergence(&there, &state.layout, &totals, alpha)?.to_vec1::<f64>()?[0];
                let want = layout_divergence_reference(&there, &state.layout, total, alpha.into())?;
                assert!((got - want).abs() <= 1e-5 * want.abs().max(1.), "divergence {got} for {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn edges_beyond_the_points_are_taken_for_those_of_the_last() -> Result<()> {
    let (indices, p) = ring(40, 3)?;
    let good = symmetrize(&indices, &p)?;
    let y = layout(40, 2, 10.)?;
    for device in devices()? {
        let mut columns = good.columns.to_vec1::<u32>()?;
        let total = Tensor::new(&[50f64], &device)?;
        let of = |columns: &[u32]| -> Result<f64> {
            let graph = on(&Affinities { columns: Tensor::new(columns, &CPU)?, ..good.clone() }, &device)?;
            layout_divergence(&graph, &y.to_device(&device)?, &total, 1.)?.get(0)?.to_scalar()
        };
        columns[7] = 39;
        let want = of(&columns)?;
        columns[7] = u32::MAX;
        assert!((of(&columns)? - want).abs() < 1e-12, "{:?}", device.location());
    }
    Ok(())
}

/// A ring in which each point knows the next `k`.
fn ring(n: usize, k: usize) -> Result<(Tensor, Tensor)> {
    let indices: Vec<u32> = (0..n).flat_map(|i| (1..=k).map(move |s| ((i + s) % n) as u32)).collect();
    Ok((Tensor::from_vec(indices, (n, k), &CPU)?, Tensor::full(1. / k as f32, (n, k), &CPU)?))
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
        let new = || TsneRun::from_affinities(config.clone(), graph.clone(), &begin);
        let mut run = new()?;
        let mut seen = vec![];
        let path = folder.path().join("checkpoint");
        run.run(|run, progress| {
            let kl = measure::kl_of_affinities(&graph, &run.layout()?, 1.)?;
            // Of a grid the total is a few per cent off.
            assert!((progress.kl - kl).abs() < 0.1, "{} for {kl} on {:?}", progress.kl, device.location());
            seen.push(progress.iteration);
            if progress.iteration == 50 {
                run.save_checkpoint(&path, &())?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        assert_eq!(seen, [25, 50, 60, 65]);
        let (mut again, ()) = TsneRun::load_checkpoint(&path, None, &device)?;
        again.run(|_, _| Ok(ControlFlow::Continue(())))?;
        assert_same_bits("a run from a checkpoint", &again.layout()?, &run.layout()?)?;
        let mut second = new()?;
        second.run(|_, _| Ok(ControlFlow::Continue(())))?;
        assert_same_bits("a second run", &second.layout()?, &run.layout()?)?;
    }
    Ok(())
}

fn config(method: Method, n_dims: usize) -> TsneConfig {
    TsneConfig {
        n_dims,
        perplexity: 8.,
        method: Some(method),
        early_iterations: 60,
        iterations: 70,
        ..TsneConfig::default()
    }
}

#[test]
fn a_run_has_the_same_bits_again_and_from_a_checkpoint_on_every_device() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let rows = rows(400, 12, 1)?;
    for (method, n_dims) in
        [(Method::Exact, 2), (Method::BarnesHut, 2), (Method::BarnesHut, 3), (Method::Fft, 2)]
    {
        let mut kl = vec![];
        for device in devices()? {
            let there = rows.to_device(&device)?;
            let whole = |_: ()| -> Result<(Tensor, f64)> {
                let mut run = TsneRun::new(config(method, n_dims), Philox::new(90, 9), &there)?;
                run.run(|_, _| Ok(ControlFlow::Continue(())))?;
                Ok((run.layout()?, run.kl()?))
            };
            let (first, divergence) = whole(())?;
            assert_same_bits("a second run", &first, &whole(())?.0)?;
            let mut run = TsneRun::new(config(method, n_dims), Philox::new(90, 9), &there)?;
            run.run(|_, seen| {
                Ok(if seen.iteration >= 75 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            let path = folder.path().join("checkpoint");
            run.save_checkpoint(&path, &())?;
            let (mut again, ()) = TsneRun::load_checkpoint(&path, Some(&there), &device)?;
            again.run(|_, _| Ok(ControlFlow::Continue(())))?;
            assert_same_bits("a run from a checkpoint", &again.layout()?, &first)?;
            let exact = measure::kl_of_affinities(again.affinities(), &first, 1.)?;
            // Of a grid whose nodes are half a unit apart the total is a few per cent off.
            assert!((divergence - exact).abs() < 0.05, "{method:?}: {divergence} for {exact}");
            kl.push(exact);
        }
        for other in &kl {
            assert!((other / kl[0] - 1.).abs() < 0.05, "{method:?}: {kl:?}");
        }
    }
    Ok(())
}
