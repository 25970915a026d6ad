//! Steps and divergences are those of the references, and a run has the same bits again.
use super::{CPU, config, graph, layout, on, rows};
use candle::{DType, Result, Tensor};
use chandlery::tsne::{Method, TsneTrainer, measure};
use chandlery::{FullBatchTrainer, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, set_scalars_};
use chandlery_ops::tsne::{
    Affinities, AttractionForm, LayoutState, LayoutStep, attraction, attraction_reference, layout_divergence,
    layout_divergence_reference, layout_step_, layout_step_reference, one_direction, symmetrize,
    symmetrize_reference,
};
use chandlery_tests::{assert_close, assert_same_bits, devices};
use std::ops::ControlFlow;

/// A ring in which each point knows the next `k`.
fn ring(n: usize, k: usize) -> Result<(Tensor, Tensor)> {
    let indices: Vec<u32> = (0..n).flat_map(|i| (1..=k).map(move |s| ((i + s) % n) as u32)).collect();
    Ok((Tensor::from_vec(indices, (n, k), &CPU)?, Tensor::full(1. / k as f32, (n, k), &CPU)?))
}

#[test]
fn steps_and_divergences_are_those_of_the_references() -> Result<()> {
    for (n, d, k) in [(2, 2, 1), (33, 3, 9), (257, 2, 40), (5000, 2, 3)] {
        let (indices, p) = if n < 1000 { graph(n, 4, k, 3f64.min(k as f64))? } else { ring(n, k)? };
        let affinities =
            if n < 1000 { symmetrize_reference(&indices, &p)? } else { symmetrize(&indices, &p)? };
        let y = layout(n, d, 10.)?;
        for (alpha, largest_step, largest_coordinate) in
            [(1f32, 0.05, f32::INFINITY), (0.5, 0.05, f32::INFINITY), (1., f32::INFINITY, 9.)]
        {
            let step = LayoutStep {
                degrees_of_freedom: alpha,
                largest_step,
                largest_coordinate,
                ..LayoutStep::default()
            };
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
fn attraction_of_both_forms_is_that_of_the_reference() -> Result<()> {
    for (n, d, k) in [(2, 2, 1), (33, 3, 9), (257, 2, 40), (5000, 3, 3)] {
        let (indices, p) = if n < 1000 { graph(n, 4, k, 3f64.min(k as f64))? } else { ring(n, k)? };
        let affinities = symmetrize(&indices, &p)?;
        let once = one_direction(&affinities)?;
        let y = layout(n, d, 10.)?;
        for alpha in [1f32, 0.5] {
            let want = attraction_reference(&affinities, &y, alpha.into())?.to_dtype(DType::F32)?;
            // Of sums whose terms cancel: a share of the largest.
            let least = 1e-5 * want.abs()?.max_all()?.to_scalar::<f32>()?;
            for device in devices()? {
                let there = y.to_device(&device)?;
                for (graph, form) in
                    [(&affinities, AttractionForm::EachEnd), (&once, AttractionForm::BothEnds)]
                {
                    let got = attraction(&on(graph, &device)?, &there, alpha, form)?;
                    assert_close(&format!("{form:?} of {n}"), &got.to_device(&CPU)?, &want, 1e-4, least)?;
                }
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
                let mut run = TsneTrainer::new(config(method, n_dims), Philox::new(90, 9), &there)?;
                run.fit()?;
                Ok((run.layout()?, run.kl()?))
            };
            let (first, divergence) = whole(())?;
            assert_same_bits("a second run", &first, &whole(())?.0)?;
            let mut run = TsneTrainer::new(config(method, n_dims), Philox::new(90, 9), &there)?;
            run.fit_with(|_, seen| {
                Ok(if seen.iteration >= 75 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            let path = folder.path().join("checkpoint");
            run.save(&path, &serde_json::Value::Null)?;
            let (mut again, _) = TsneTrainer::load(&path, &there, &device)?;
            again.fit()?;
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
