use super::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::tsne::{
    AttractionForm, LayoutState, LayoutStep, Repulsion, RepulsionMethod, attraction, attraction_reference,
    layout_divergence, layout_divergence_reference, layout_step_, layout_step_reference, one_direction,
    repulsion_reference,
};

/// A state in motion, with rates, of `n` points.
fn state(n: usize, d: usize, rates: [f32; 3]) -> Result<LayoutState> {
    let mut state = LayoutState::new(&(gaussian(n, d, 1)? * 2.)?)?;
    state.velocity = (gaussian(n, d, 2)? * 0.1)?;
    state.gains = (gaussian(n, d, 3)?.abs()? + 0.1)?;
    state.rates = Tensor::new(&rates, &CPU)?;
    Ok(state)
}

fn copy(state: &LayoutState) -> Result<LayoutState> {
    Ok(LayoutState {
        layout: state.layout.copy()?,
        velocity: state.velocity.copy()?,
        gains: state.gains.copy()?,
        room: state.room.copy()?,
        figures: state.figures.copy()?,
        rates: state.rates.copy()?,
        work: state.work.copy()?,
        weights: None,
    })
}

#[test]
fn a_step_is_that_of_plain_loops_in_f64() -> Result<()> {
    for (n, k, d, alpha) in
        [(2, 1, 2, 1.), (5, 4, 3, 1.), (10, 9, 2, 0.5), (300, 17, 2, 1.), (301, 40, 3, 2.)]
    {
        let (_, graph) = graph(n, k)?;
        let state = state(n, d, [50., 0.8, 12.])?;
        let (forces, total) = repulsion_reference(&state.layout, alpha.into())?;
        let forces = forces.to_dtype(DType::F32)?;
        let step = LayoutStep { degrees_of_freedom: alpha, largest_step: 0.7, ..LayoutStep::default() };
        let want = layout_step_reference(&state, &graph, &forces, total, &step)?;
        layout_step_(&state, &graph, &forces, &Tensor::new(&[total], &CPU)?, &step)?;
        let named = [
            ("layout", &state.layout, &want.layout),
            ("velocity", &state.velocity, &want.velocity),
            ("gains", &state.gains, &want.gains),
        ];
        for (name, got, want) in named {
            assert_near(&format!("{name}, {n}×{d}"), &flat(got)?, &flat(want)?, 2e-5);
        }
        assert_near("figures", &flat(&state.figures)?, &flat(&want.figures)?, 2e-5);
        let mean = flat(&state.layout.mean(0)?)?;
        assert!(mean.iter().all(|mean| mean.abs() < 1e-6), "{mean:?}");
    }
    Ok(())
}

/// The step of a state at rest is `−learning rate · gain · gradient`.
#[test]
fn the_gradient_is_that_of_the_divergence() -> Result<()> {
    for (d, alpha) in [(2, 1f32), (3, 1.), (2, 0.6)] {
        let (_, graph) = graph(14, 6)?;
        let state = LayoutState::new(&gaussian(14, d, 4)?)?;
        let state = LayoutState { rates: Tensor::new(&[1f32, 0., 1.], &CPU)?, ..state };
        let y = flat(&state.layout)?;
        let (forces, total) = (state.layout.zeros_like()?, Tensor::zeros(1, DType::F64, &CPU)?);
        let exact = Repulsion::new(RepulsionMethod::Exact, 14, d, alpha, &CPU)?;
        exact.repulsion_(&forces, &total, &state.layout)?;
        let step = LayoutStep {
            degrees_of_freedom: alpha,
            smallest_gain: 1.,
            largest_gain: 1.,
            largest_step: 1e9,
            ..LayoutStep::default()
        };
        layout_step_(&state, &graph, &forces, &total, &step)?;
        let h = 1e-5;
        for (at, velocity) in flat(&state.velocity)?.into_iter().enumerate() {
            let moved = |by: f64| -> Result<f64> {
                let mut y = y.clone();
                y[at] += by;
                let layout = Tensor::from_vec(y, (14, d), &CPU)?;
                let total = repulsion_reference(&layout, alpha.into())?.1;
                layout_divergence_reference(&graph, &layout, total, alpha.into())
            };
            let slope = (moved(h)? - moved(-h)?) / (2. * h);
            assert!((slope + velocity).abs() < 1e-5, "{d} dimensions, α {alpha}, {at}: {slope}, {velocity}");
        }
    }
    Ok(())
}

#[test]
fn the_divergence_is_that_of_plain_loops_in_f64() -> Result<()> {
    for (n, k, d, alpha) in [(2, 1, 2, 1.), (9, 8, 3, 0.5), (300, 17, 2, 1.), (700, 40, 3, 2.)] {
        let (_, graph) = graph(n, k)?;
        for scale in [1e-4, 1., 50.] {
            let layout = (gaussian(n, d, 5)? * scale)?;
            let total = repulsion_reference(&layout, f64::from(alpha))?.1;
            let got = layout_divergence(&graph, &layout, &Tensor::new(&[total], &CPU)?, alpha)?;
            let got = got.flatten_all()?.to_vec1::<f64>()?;
            let want = layout_divergence_reference(&graph, &layout, total, alpha.into())?;
            assert!(
                got.len() == 1 && (got[0] - want).abs() < 1e-5,
                "{n}×{d}, scale {scale}: {got:?}, {want}"
            );
        }
    }
    Ok(())
}

#[test]
fn attraction_from_each_end_and_for_both_at_once_is_that_of_plain_loops() -> Result<()> {
    for (n, k, d, alpha) in [(2, 1, 2, 1.), (9, 8, 3, 0.5), (301, 17, 2, 1.), (1500, 40, 3, 2.)] {
        let (_, graph) = graph(n, k)?;
        let layout = (gaussian(n, d, 6)? * 5.)?;
        let want = flat(&attraction_reference(&graph, &layout, f64::from(alpha))?)?;
        let once = one_direction(&graph)?;
        assert_eq!(2 * once.columns.elem_count(), graph.columns.elem_count());
        for got in on_threads(|| {
            let each = flat(&attraction(&graph, &layout, alpha, AttractionForm::EachEnd)?)?;
            let both = flat(&attraction(&once, &layout, alpha, AttractionForm::BothEnds)?)?;
            candle::Result::Ok([each, both])
        }) {
            let [each, both] = got?;
            assert_near(&format!("each end, {n}×{d}"), &each, &want, 1e-5);
            assert_near(&format!("both ends, {n}×{d}"), &both, &want, 1e-5);
        }
    }
    Ok(())
}

#[test]
fn no_point_moves_further_than_the_largest_step() -> Result<()> {
    let (_, graph) = graph(50, 9)?;
    let state = state(50, 2, [1e6, 0.5, 12.])?;
    let (forces, total) = repulsion_reference(&state.layout, 1.)?;
    let step = LayoutStep { largest_step: 0.25, ..LayoutStep::default() };
    layout_step_(&state, &graph, &forces.to_dtype(DType::F32)?, &Tensor::new(&[total], &CPU)?, &step)?;
    let lengths = flat(&state.velocity.sqr()?.sum(1)?.sqrt()?)?;
    assert!(lengths.iter().all(|&length| length < 0.250_001) && lengths.iter().any(|&length| length > 0.249));
    Ok(())
}

#[test]
fn what_lies_beyond_the_largest_coordinate_is_put_back_at_rest() -> Result<()> {
    let (_, graph) = graph(50, 9)?;
    let (forces, total) = repulsion_reference(&state(50, 2, [50., 0.5, 12.])?.layout, 1.)?;
    let (forces, total) = (forces.to_dtype(DType::F32)?, Tensor::new(&[total], &CPU)?);
    let after = |largest_coordinate: f32| -> Result<LayoutState> {
        let state = state(50, 2, [50., 0.5, 12.])?;
        let step = LayoutStep { largest_step: f32::INFINITY, largest_coordinate, ..LayoutStep::default() };
        layout_step_(&state, &graph, &forces, &total, &step)?;
        Ok(state)
    };
    let (free, kept) = (after(f32::INFINITY)?, after(3.)?);
    let of = |state: &LayoutState| Ok::<_, candle::Error>((flat(&state.layout)?, flat(&state.velocity)?));
    let ((free_y, free_v), (kept_y, kept_v)) = (of(&free)?, of(&kept)?);
    let gains = flat(&kept.gains)?;
    let (mut back, mut as_before) = (0, 0);
    for i in 0..free_y.len() {
        if free_y[i].abs() > 3. {
            assert_eq!((kept_y[i], kept_v[i], gains[i]), (3f64.copysign(free_y[i]), 0., 1.), "{i}");
            back += 1;
        } else {
            assert_eq!((kept_y[i], kept_v[i]), (free_y[i], free_v[i]), "{i}");
            as_before += 1;
        }
    }
    assert!(back > 5 && as_before > 5, "{back} put back, {as_before} as before");
    let want = layout_step_reference(
        &state(50, 2, [50., 0.5, 12.])?,
        &graph,
        &forces,
        total.to_vec1::<f64>()?[0],
        &LayoutStep { largest_step: f32::INFINITY, largest_coordinate: 3., ..LayoutStep::default() },
    )?;
    assert_near("layout", &kept_y, &flat(&want.layout)?, 2e-5);
    assert_near("velocity", &kept_v, &flat(&want.velocity)?, 2e-5);
    assert_near("gains", &gains, &flat(&want.gains)?, 2e-5);
    assert_near("figures", &flat(&kept.figures)?, &flat(&want.figures)?, 2e-5);
    Ok(())
}

#[test]
fn results_do_not_depend_on_threads() -> Result<()> {
    let (_, graph) = graph(900, 20)?;
    let start = state(900, 2, [50., 0.8, 1.])?;
    let (forces, total) = repulsion_reference(&start.layout, 1.)?;
    let (forces, total) = (forces.to_dtype(DType::F32)?, Tensor::new(&[total], &CPU)?);
    let [one, three] = on_threads(|| {
        let state = copy(&start).unwrap();
        layout_step_(&state, &graph, &forces, &total, &LayoutStep::default()).unwrap();
        let divergence = layout_divergence(&graph, &state.layout, &total, 1.).unwrap();
        [&state.layout, &state.velocity, &state.gains, &state.figures, &divergence].map(|x| flat(x).unwrap())
    });
    assert!(one == three);
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let (_, graph) = graph(6, 2)?;
    assert_eq!(
        message(LayoutState::new(&gaussian(6, 4, 6)?)),
        "layout_step_: layout must have 2 or 3 dimensions, got 4"
    );
    let total = Tensor::new(&[1f64], &CPU)?;
    assert_eq!(
        message(layout_divergence(&graph, &gaussian(7, 2, 6)?, &total, 1.)),
        "layout_divergence: offsets must have shape [8], got [7]"
    );
    let state = LayoutState::new(&gaussian(6, 2, 6)?)?;
    assert_eq!(
        message(layout_step_(&state, &graph, &state.layout.narrow(1, 0, 1)?, &total, &LayoutStep::default())),
        "layout_step_: forces must have shape [6, 2], got [6, 1]"
    );
    Ok(())
}
