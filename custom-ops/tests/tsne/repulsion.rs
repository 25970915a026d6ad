use super::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::tsne::{Repulsion, RepulsionMethod, repulsion_reference};

const EXACT: RepulsionMethod = RepulsionMethod::Exact;

fn tree(theta: f32) -> RepulsionMethod {
    RepulsionMethod::Tree { theta }
}

fn grid(nodes: usize) -> RepulsionMethod {
    RepulsionMethod::Grid { nodes }
}

/// Forces and total.
fn run(method: RepulsionMethod, layout: &Tensor, alpha: f32) -> Result<(Vec<f64>, f64)> {
    let (n, d) = layout.dims2()?;
    let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, &CPU)?);
    Repulsion::new(method, n, d, alpha, &CPU)?.repulsion_(&forces, &total, layout)?;
    Ok((flat(&forces)?, total.to_vec1::<f64>()?[0]))
}

fn reference(layout: &Tensor, alpha: f32) -> Result<(Vec<f64>, f64)> {
    let (forces, total) = repulsion_reference(layout, alpha.into())?;
    Ok((flat(&forces)?, total))
}

/// The root mean square of the error over that of the forces.
fn error(method: RepulsionMethod, layout: &Tensor, alpha: f32) -> Result<f64> {
    let ((got, _), (want, _)) = (run(method, layout, alpha)?, reference(layout, alpha)?);
    let differences: Vec<f64> = got.iter().zip(&want).map(|(a, b)| a - b).collect();
    Ok(rms(&differences) / rms(&want))
}

#[test]
fn every_pair_is_summed_as_in_f64() -> Result<()> {
    for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 63, 300] {
        for d in [2, 3] {
            for alpha in [1., 0.5, 2.7] {
                let layout = (gaussian(n, d, 1)? * 3.)?;
                let (want, want_total) = reference(&layout, alpha)?;
                for method in [EXACT, tree(0.)] {
                    let what = format!("{method:?}, {n}×{d}, α {alpha}");
                    let (got, total) = run(method, &layout, alpha)?;
                    assert_near(&what, &got, &want, 3e-6);
                    assert!(
                        (total - want_total).abs() <= 2e-6 * want_total.max(1.),
                        "{what}: {total}, {want_total}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn stages_of_a_call_have_its_bits_and_names() -> Result<()> {
    let layout = (gaussian(3000, 2, 3)? * 8.)?;
    for (method, names) in [
        (EXACT, &["pairs"][..]),
        (tree(0.5), &["sorting", "tree and summary", "traversal"]),
        (grid(128), &["sorting", "spreading", "FFT", "interpolation"]),
    ] {
        let repulsion = Repulsion::new(method, 3000, 2, 1., &CPU)?;
        let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, &CPU)?);
        let stages = repulsion.repulsion_stages_(&forces, &total, &layout)?;
        assert_eq!(stages.iter().map(|stage| stage.0).collect::<Vec<_>>(), names);
        assert!(stages.iter().all(|stage| stage.1 > 0.), "{stages:?}");
        assert_eq!((flat(&forces)?, total.to_vec1::<f64>()?[0]), run(method, &layout, 1.)?, "{method:?}");
    }
    Ok(())
}

#[test]
fn the_error_of_the_tree_falls_with_theta() -> Result<()> {
    for (d, alpha) in [(2, 1.), (3, 1.), (2, 0.6)] {
        let layout = (gaussian(1500, d, 2)? * 8.)?;
        let errors = [1., 0.6, 0.3, 0.1].map(|theta| error(tree(theta), &layout, alpha).unwrap());
        assert!(
            errors.windows(2).all(|pair| pair[1] < 0.7 * pair[0]),
            "{d} dimensions, α {alpha}: {errors:?}"
        );
        assert!(errors[1] < 0.1 && errors[3] < 3e-3, "{d} dimensions, α {alpha}: {errors:?}");
    }
    Ok(())
}

#[test]
fn the_error_of_the_grid_falls_with_the_distance_of_its_nodes() -> Result<()> {
    for alpha in [1., 0.6] {
        let layout = (gaussian(1500, 2, 2)? * 8.)?;
        let errors = [64, 128, 240, 480].map(|nodes| error(grid(nodes), &layout, alpha).unwrap());
        // Half of the distance is an eighth of the error at least, once it is below the kernel's
        // width.
        assert!(errors.windows(2).all(|pair| pair[1] < 0.5 * pair[0]), "α {alpha}: {errors:?}");
        assert!(errors[2] < 5e-3 && errors[3] < 7e-4, "α {alpha}: {errors:?}");
        let ((_, total), (_, want)) = (run(grid(256), &layout, alpha)?, reference(&layout, alpha)?);
        assert!((total / want - 1.).abs() < 1e-3, "α {alpha}: {total}, {want}");
    }
    Ok(())
}

#[test]
fn forces_sum_to_zero() -> Result<()> {
    for (method, limit) in [(EXACT, 1e-6), (grid(256), 1e-5), (tree(0.3), 1e-2)] {
        let (forces, _) = run(method, &(gaussian(700, 2, 3)? * 6.)?, 1.)?;
        for k in 0..2 {
            let own = || forces.iter().skip(k).step_by(2);
            let (sum, sizes) = (own().sum::<f64>(), own().map(|x| x.abs()).sum::<f64>());
            assert!(sum.abs() < limit * sizes, "{method:?}: {sum} of {sizes}");
        }
    }
    Ok(())
}

/// Exact forces are a gradient: that of `ln total`, times `−total / 2`.
#[test]
fn forces_are_the_gradient_of_the_total() -> Result<()> {
    for alpha in [1f32, 0.7, 3.] {
        let layout = gaussian(12, 2, 4)?;
        let (forces, _) = run(EXACT, &layout, alpha)?;
        let h = 1e-5;
        for at in 0..24 {
            let moved = |by: f64| -> Result<f64> {
                let mut y = flat(&layout)?;
                y[at] += by;
                Ok(repulsion_reference(&Tensor::from_vec(y, (12, 2), &CPU)?, alpha.into())?.1)
            };
            // Each pair is counted twice, and d w / d y = −2 w^(1 + 1/α) (y_i − y_j).
            let slope = -(moved(h)? - moved(-h)?) / (2. * h) / 4.;
            assert!((slope - forces[at]).abs() < 1e-5, "α {alpha}, {at}: {slope}, {}", forces[at]);
        }
    }
    Ok(())
}

#[test]
fn hard_layouts_have_finite_forces_near_the_exact_ones() -> Result<()> {
    for (n, d) in [(1, 2), (2, 2), (3, 3), (10, 2), (501, 2), (501, 3)] {
        for (name, layout) in layouts(n, d)? {
            let (want, want_total) = reference(&layout, 1.)?;
            let mut methods = vec![(EXACT, 1e-5), (tree(0.3), 0.02)];
            // Nodes that are further apart than the kernel is wide see nothing of it.
            let wide = name == "two far clusters" || name == "an outlier";
            if d == 2 {
                methods.push((grid(256), if wide { f64::INFINITY } else { 2e-3 }));
            }
            for (method, limit) in methods {
                let what = format!("{name}, {method:?}, {n}×{d}");
                let (got, total) = run(method, &layout, 1.)?;
                assert!(got.iter().all(|x| x.is_finite()) && total.is_finite(), "{what}");
                if limit.is_finite() {
                    assert_near(&what, &got, &want, limit);
                    // The grid subtracts the points themselves from the total.
                    let own = if method == grid(256) { n as f64 } else { 0. };
                    let room = limit * (want_total + own);
                    assert!((total - want_total).abs() <= room, "{what}: {total}, {want_total}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_layout_that_is_not_finite_gives_nan() -> Result<()> {
    for wrong in [f32::NAN, f32::INFINITY] {
        let mut layout = gaussian(40, 2, 6)?.to_vec2::<f32>()?;
        layout[7][1] = wrong;
        let layout = Tensor::new(layout, &CPU)?;
        for method in [EXACT, tree(0.5), grid(64)] {
            let (forces, total) = run(method, &layout, 1.)?;
            assert!(total.is_nan() && forces.iter().all(|x| x.is_nan()), "{method:?}");
        }
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_threads_runs_or_earlier_layouts() -> Result<()> {
    for d in [2, 3] {
        let layout = (gaussian(3000, d, 7)? * 5.)?;
        let methods = [EXACT, tree(0.5), grid(128)];
        for method in &methods[..if d == 2 { 3 } else { 2 }] {
            let [one, three] = on_threads(|| run(*method, &layout, 1.).unwrap());
            assert!(one == three, "{method:?}");
            let repulsion = Repulsion::new(*method, 3000, d, 1., &CPU)?;
            let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, &CPU)?);
            for layout in [&(&layout * 2.)?, &layout] {
                repulsion.repulsion_(&forces, &total, layout)?;
            }
            assert!(one == (flat(&forces)?, total.to_vec1::<f64>()?[0]), "{method:?}");
        }
    }
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let new = |method, d, alpha| message(Repulsion::new(method, 5, d, alpha, &CPU));
    assert_eq!(new(EXACT, 4, 1.), "repulsion: layouts must have 2 or 3 dimensions, got 4");
    assert_eq!(new(EXACT, 2, 0.), "repulsion: degrees of freedom must be above 0, got 0");
    assert_eq!(new(tree(1.5), 2, 1.), "repulsion: theta must be in 0..=1, got 1.5");
    assert_eq!(new(grid(64), 3, 1.), "repulsion: a grid is for 2 dimensions, got 3; use a tree");
    assert_eq!(
        new(grid(100), 2, 1.),
        "repulsion: nodes must be 16 times factors of 2, 3 and 5 in 64..=2048, got 100"
    );
    let layout = gaussian(4, 2, 8)?;
    let repulsion = Repulsion::new(EXACT, 5, 2, 1., &CPU)?;
    let result = repulsion.repulsion_(&layout, &Tensor::zeros(1, DType::F64, &CPU)?, &layout);
    assert_eq!(message(result), "repulsion: layout must have shape [5, 2], got [4, 2]");
    Ok(())
}

#[test]
fn parts_of_the_points_add_up_to_all() -> Result<()> {
    let n = 700;
    for d in [2, 3] {
        for method in [EXACT, RepulsionMethod::Tree { theta: 0.5 }, RepulsionMethod::Grid { nodes: 64 }] {
            if d == 3 && matches!(method, RepulsionMethod::Grid { .. }) {
                continue;
            }
            let layout = (gaussian(n, d, 77)? * 3.)?;
            let zeros =
                || Ok::<_, candle::Error>((layout.zeros_like()?, Tensor::zeros(1, DType::F64, &CPU)?));
            let (forces, total) = zeros()?;
            Repulsion::new(method, n, d, 1., &CPU)?.repulsion_(&forces, &total, &layout)?;
            let (mut sum, mut sum_of_totals) = (layout.zeros_like()?, 0.);
            for own in [0..256, 256..640, 640..640, 640..n] {
                let (forces, total) = zeros()?;
                let part = Repulsion::new(method, n, d, 1., &CPU)?.of_part(own.clone())?;
                part.repulsion_(&forces, &total, &layout)?;
                let touched = forces.sqr()?.sum(1)?.gt(0f64)?.to_vec1::<u8>()?;
                assert!(touched.iter().filter(|&&t| t > 0).count() <= own.len(), "{method:?} {own:?}");
                sum = (sum + forces)?;
                sum_of_totals += total.get(0)?.to_scalar::<f64>()?;
            }
            assert_eq!(sum.to_vec2::<f32>()?, forces.to_vec2::<f32>()?, "{method:?} in {d} dimensions");
            let total = total.get(0)?.to_scalar::<f64>()?;
            assert!(
                (sum_of_totals - total).abs() <= 1e-12 * total,
                "{method:?}: {sum_of_totals} and {total}"
            );
        }
    }
    for wrong in [10..128, 0..130, 128..701] {
        let error = Repulsion::new(EXACT, n, 2, 1., &CPU)?.of_part(wrong.clone());
        let want =
            format!("repulsion: a part of 700 points must begin and end at multiples of 128, got {wrong:?}");
        assert_eq!(message(error), want);
    }
    Ok(())
}
