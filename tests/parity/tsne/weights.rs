//! Points that stand for several each, and neighbours of which there are several.
use super::{CPU, layout, on, refused};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, set_scalars_, uniform};
use chandlery_ops::tsne::{
    LayoutState, LayoutStep, Repulsion, RepulsionMethod, layout_step_, layout_step_reference,
    perplexity_search, perplexity_search_of_counts, symmetrize, symmetrize_reference,
};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const METHODS: [RepulsionMethod; 3] =
    [RepulsionMethod::Exact, RepulsionMethod::Tree { theta: 0.5 }, RepulsionMethod::Grid { nodes: 256 }];

/// Weights of `n` points: 1 to thousands by turns, or 1 for all but one.
fn weights(n: usize, all_but_one: bool) -> Result<Tensor> {
    let of = |i: usize| match all_but_one {
        true => {
            if i == n / 2 {
                4321.
            } else {
                1.
            }
        }
        false => [1f32, 7., 2., 3000., 1., 40.][i % 6],
    };
    Tensor::from_vec((0..n).map(of).collect::<Vec<f32>>(), n, &CPU)
}

/// Forces and total of a layout on its device.
fn repulsion(
    method: RepulsionMethod,
    y: &Tensor,
    weights: Option<&Tensor>,
    alpha: f32,
) -> Result<(Tensor, f64)> {
    let (n, d) = y.dims2()?;
    let (forces, total) = (y.ones_like()?, Tensor::zeros(1, DType::F64, y.device())?);
    let repulsion = Repulsion::new(method, n, d, alpha, y.device())?;
    repulsion.arrange(y)?;
    repulsion.repulsion_of_(&forces, &total, y, weights)?;
    Ok((forces.to_device(&CPU)?, total.to_vec1::<f64>()?[0]))
}

#[test]
fn points_with_weights_push_on_every_device_as_on_the_cpu() -> Result<()> {
    let tree = |theta| RepulsionMethod::Tree { theta };
    let methods = [
        (RepulsionMethod::Exact, 2e-4, 1e-5),
        (tree(0.), 2e-4, 1e-4),
        (tree(0.2), 0.01, 0.01),
        (tree(0.5), 0.1, 0.05),
        (RepulsionMethod::Grid { nodes: 256 }, 5e-3, 5e-3),
    ];
    for (n, d, alpha) in
        [(1, 2, 1f32), (2, 3, 1.), (3, 2, 0.6), (33, 3, 0.6), (129, 2, 1.), (1000, 2, 1.), (1000, 3, 1.)]
    {
        for all_but_one in [false, true] {
            let (y, weights) = (layout(n, d, 25.)?, weights(n, all_but_one)?);
            let (want, want_total) = repulsion(RepulsionMethod::Exact, &y, Some(&weights), alpha)?;
            let largest = want.abs()?.max_all()?.to_scalar::<f32>()?;
            for device in devices()? {
                let (y, weights) = (y.to_device(&device)?, weights.to_device(&device)?);
                for (method, of_forces, of_total) in methods {
                    if d == 3 && matches!(method, RepulsionMethod::Grid { .. }) {
                        continue;
                    }
                    let (forces, total) = repulsion(method, &y, Some(&weights), alpha)?;
                    let what = format!("{method:?} of {n}×{d}, α {alpha}, {:?}", device.location());
                    assert_close(&what, &forces, &want, 0., of_forces * largest + 1e-6)?;
                    let off = (total - want_total).abs();
                    assert!(off <= of_total * want_total.max(1.), "{what}: {total} for {want_total}");
                }
            }
        }
    }
    Ok(())
}

/// The same bits on a GPU; on the CPU, which adds up in another order, the same to rounding.
fn assert_alike(what: &str, got: &Tensor, want: &Tensor, device: &Device) -> Result<()> {
    match device.is_cpu() {
        true => assert_close(what, got, want, 2e-5, 1e-6),
        false => assert_same_bits(what, got, want),
    }
}

#[test]
fn weights_of_1_are_none() -> Result<()> {
    for (n, d) in [(33, 2), (900, 2), (700, 3)] {
        for device in devices()? {
            let y = layout(n, d, 20.)?.to_device(&device)?;
            let ones = Tensor::ones(n, DType::F32, &device)?;
            let mut pushed = vec![];
            for method in METHODS {
                if d == 3 && matches!(method, RepulsionMethod::Grid { .. }) {
                    continue;
                }
                let (forces, total) = repulsion(method, &y, Some(&ones), 1.)?;
                let (want, want_total) = repulsion(method, &y, None, 1.)?;
                let what = format!("{method:?} of {n}×{d}, {:?}", device.location());
                let largest = want.abs()?.max_all()?.to_scalar::<f32>()?;
                assert_alike(
                    &what,
                    &(forces / f64::from(largest))?,
                    &(&want / f64::from(largest))?,
                    &device,
                )?;
                let off = (total - want_total).abs();
                assert!(
                    off <= if device.is_cpu() { 1e-6 * want_total } else { 0. },
                    "{what}: {total}, {want_total}"
                );
                pushed.push((want, want_total));
            }
            let (indices, p) = ring(n, 5)?;
            let graph = on(&symmetrize(&indices, &p)?, &device)?;
            let (forces, total) = (pushed[0].0.to_device(&device)?, Tensor::new(&[pushed[0].1], &device)?);
            let moved = |weights: Option<Tensor>| -> Result<LayoutState> {
                let state = LayoutState { weights, ..LayoutState::new(&y)? };
                set_scalars_(&state.rates, &[300., 0.5, 12.])?;
                for _ in 0..2 {
                    layout_step_(&state, &graph, &forces, &total, &LayoutStep::default())?;
                }
                Ok(state)
            };
            let (got, want) = (moved(Some(ones))?, moved(None)?);
            for (name, got, want) in [
                ("layout", &got.layout, &want.layout),
                ("velocity", &got.velocity, &want.velocity),
                ("gains", &got.gains, &want.gains),
            ] {
                assert_alike(name, &got.to_device(&CPU)?, &want.to_device(&CPU)?, &device)?;
            }
            assert_eq!(got.figures()?.span, want.figures()?.span);
        }
    }
    Ok(())
}

/// Itself and those that follow, of which each point knows `k`.
fn ring(n: usize, k: usize) -> Result<(Tensor, Tensor)> {
    let indices: Vec<u32> = (0..n).flat_map(|i| (0..k).map(move |s| ((i + s) % n) as u32)).collect();
    let p = (uniform((n, k), &CPU, Philox::new(94, 1))? + 0.1)?;
    Ok((Tensor::from_vec(indices, (n, k), &CPU)?, p))
}

#[test]
fn points_with_weights_move_as_the_reference_says() -> Result<()> {
    for (n, d, k) in [(1, 2, 1), (2, 3, 2), (3, 2, 2), (33, 3, 9), (1000, 2, 40), (5000, 2, 3)] {
        let (indices, p) = ring(n, k)?;
        // Of points that stand for thousands, edges weigh as much.
        let graph = symmetrize_or_reference(&indices, &(p * 20.)?, n)?;
        let y = layout(n, d, 10.)?;
        for (all_but_one, alpha, largest_step) in
            [(false, 1f32, 0.05), (true, 0.5, 0.05), (false, 1., f32::INFINITY)]
        {
            let step = LayoutStep { degrees_of_freedom: alpha, largest_step, ..LayoutStep::default() };
            let (forces, total) = (normal((n, d), &CPU, Philox::new(94, 2))?, 50.);
            for device in devices()? {
                let there = on(&graph, &device)?;
                let mut state = LayoutState::new(&y.to_device(&device)?)?;
                state.weights = Some(weights(n, all_but_one)?.to_device(&device)?);
                set_scalars_(&state.rates, &[30., 0.8, 4.])?;
                let (forces, totals) = (forces.to_device(&device)?, Tensor::new(&[total], &device)?);
                for _ in 0..3 {
                    let want = layout_step_reference(&state, &there, &forces, total, &step)?;
                    layout_step_(&state, &there, &forces, &totals, &step)?;
                    for (name, got, want, room) in [
                        ("velocity", &state.velocity, &want.velocity, 1e-5),
                        ("layout", &state.layout, &want.layout, 1e-5),
                        ("gains", &state.gains, &want.gains, 0.),
                    ] {
                        let what = format!("{name} of {n}×{d}, {:?}", device.location());
                        assert_close(&what, &got.to_device(&CPU)?, &want.to_device(&CPU)?, 1e-4, room)?;
                    }
                    let (got, want) = (state.figures()?, want.figures()?);
                    assert!(
                        (got.gradient_norm / want.gradient_norm - 1.).abs() < 1e-4,
                        "{got:?} for {want:?}"
                    );
                    assert!((got.span - want.span).abs() <= 1e-4 * want.span, "{got:?} for {want:?}");
                }
            }
        }
    }
    Ok(())
}

/// Of few points that of the reference.
fn symmetrize_or_reference(
    indices: &Tensor,
    p: &Tensor,
    n: usize,
) -> Result<chandlery_ops::tsne::Affinities> {
    if n < 1000 { symmetrize_reference(indices, p) } else { symmetrize(indices, p) }
}

#[test]
fn parts_of_points_with_weights_add_up_to_all() -> Result<()> {
    let n = 300;
    for device in devices()? {
        let (y, weights) = (layout(n, 2, 20.)?.to_device(&device)?, weights(n, false)?.to_device(&device)?);
        for method in METHODS {
            let (want, want_total) = repulsion(method, &y, Some(&weights), 1.)?;
            let (mut all, mut sum) = (Tensor::zeros((n, 2), DType::F32, &CPU)?, 0.);
            for part in [0..128, 128..256, 256..n] {
                let (forces, total) = (y.zeros_like()?, Tensor::zeros(1, DType::F64, &device)?);
                let of_part = Repulsion::new(method, n, 2, 1., &device)?.of_part(part)?;
                of_part.arrange(&y)?;
                of_part.repulsion_of_(&forces, &total, &y, Some(&weights))?;
                all = (all + forces.to_device(&CPU)?)?;
                sum += total.to_vec1::<f64>()?[0];
            }
            let what = format!("{method:?}, {:?}", device.location());
            let largest = want.abs()?.max_all()?.to_scalar::<f32>()?;
            assert_close(&what, &all, &want, 1e-5, 1e-6 * largest)?;
            assert!((sum - want_total).abs() <= 1e-9 * want_total, "{what}: {sum}, {want_total}");
        }
    }
    Ok(())
}

#[test]
fn counted_neighbours_have_on_every_device_the_affinities_of_the_cpu() -> Result<()> {
    for (n, k, perplexities) in [
        (1, 1, vec![1.]),
        (2, 3, vec![2.5]),
        (3, 7, vec![4., 1.]),
        (33, 33, vec![30., 900.]),
        (1000, 91, vec![30.]),
    ] {
        let distances = (normal((n, k), &CPU, Philox::new(94, 3))?.abs()? + 0.5)?;
        let counts: Vec<f32> = (0..n * k).map(|e| [3f32, 1., 0., 2500., 1., 60., 2.][e % 7]).collect();
        let counts = Tensor::from_vec(counts, (n, k), &CPU)?;
        let want = perplexity_search_of_counts(&distances, &counts, &perplexities)?;
        for device in devices()? {
            let (distances, counts) = (distances.to_device(&device)?, counts.to_device(&device)?);
            let got = perplexity_search_of_counts(&distances, &counts, &perplexities)?.to_device(&CPU)?;
            // Both meet the entropy to 1e-6 nats.
            let what = format!("{n} rows of {k}, {:?}", device.location());
            assert_close(&what, &got, &want, 1e-4, 2e-6)?;
            let ones = Tensor::ones((n, k), DType::F32, &device)?;
            let few = [perplexities[0].min(k as f64)];
            let got = perplexity_search_of_counts(&distances, &ones, &few)?.to_device(&CPU)?;
            let plain = perplexity_search(&distances, &few)?.to_device(&CPU)?;
            assert_alike(&format!("{what}, counts of 1"), &got, &plain, &device)?;
        }
    }
    Ok(())
}

#[test]
fn counts_that_are_none_are_refused_on_every_device() -> Result<()> {
    let n = 40;
    for device in devices()? {
        let distances = (uniform((n, 3), &CPU, Philox::new(94, 4))? + 1.)?.to_device(&device)?;
        let said = |of_row_7: [f32; 3], perplexity: f64| -> Result<String> {
            let counts: Vec<f32> =
                (0..n).flat_map(|i| if i == 7 { of_row_7 } else { [2., 1., 1.] }).collect();
            let counts = Tensor::from_vec(counts, (n, 3), &device)?;
            Ok(refused(perplexity_search_of_counts(&distances, &counts, &[perplexity])))
        };
        for (counts, perplexity, want) in [
            ([1., -1., 3.], 1., "counts must be finite numbers of at least 0, got -1"),
            ([1., f32::NAN, 3.], 1., "got NaN"),
            ([f32::INFINITY, 1., 3.], 1., "got inf"),
            ([1., 2., 0.], 3.5, "a perplexity must be in 1..=3, the number of neighbours, got 3.5"),
            ([0.; 3], 1., "in 1..=0"),
        ] {
            let said = said(counts, perplexity)?;
            assert!(said.contains(want), "{said}");
        }
        assert_eq!(said([0., 1., 3.], 3.5)?, "");
    }
    Ok(())
}

#[test]
fn rows_that_are_their_own_neighbours_have_the_affinities_of_the_reference() -> Result<()> {
    let (n, k) = (300u32, 9u32);
    // Itself and those that follow it, by turns.
    let to: Vec<u32> = (0..n).flat_map(|i| (0..k).map(move |e| (i + e * (1 + i % 3)) % n)).collect();
    let indices = Tensor::from_vec(to, (300, 9), &CPU)?;
    let p = uniform((300, 9), &CPU, Philox::new(94, 1))?;
    let want = symmetrize_reference(&indices, &p)?;
    for device in devices()? {
        let got = symmetrize(&indices.to_device(&device)?, &p.to_device(&device)?)?;
        assert_eq!(got.offsets.to_vec1::<u32>()?, want.offsets.to_vec1::<u32>()?);
        assert_eq!(got.columns.to_vec1::<u32>()?, want.columns.to_vec1::<u32>()?);
        assert_close("values", &got.values.to_device(&CPU)?, &want.values, 1e-5, 0.)?;
    }
    Ok(())
}
