//! Repulsion is within each method's error.
use super::{CPU, layout};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{Repulsion, RepulsionMethod, repulsion_at, repulsion_reference};
use chandlery_tests::{assert_same_bits, devices};

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
fn the_stages_of_a_call_are_told_on_every_device() -> Result<()> {
    let y = layout(5000, 2, 40.)?;
    for device in devices()? {
        let there = y.to_device(&device)?;
        for method in [
            RepulsionMethod::Exact,
            RepulsionMethod::Tree { theta: 0.5 },
            RepulsionMethod::Grid { nodes: 128 },
        ] {
            let repulsion = Repulsion::new(method, 5000, 2, 1., &device)?;
            let (forces, total) = (there.ones_like()?, Tensor::zeros(1, DType::F64, &device)?);
            repulsion.repulsion_(&forces, &total, &there)?;
            let (want, want_total) = (forces.copy()?, total.to_vec1::<f64>()?);
            let stages = repulsion.repulsion_stages_(&forces, &total, &there)?;
            let of = |name: &str| stages.iter().any(|&(stage, seconds)| stage == name && seconds > 0.);
            let last = ["pairs", "traversal", "interpolation"];
            assert!(last.iter().any(|name| of(name)), "{method:?}, {:?}: {stages:?}", device.location());
            assert_same_bits("forces", &forces.to_device(&CPU)?, &want.to_device(&CPU)?)?;
            assert_eq!(total.to_vec1::<f64>()?, want_total);
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
