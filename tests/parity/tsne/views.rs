//! Ops take contiguous views at any entry of their storage, or refuse them, alike on every device.
use super::{CPU, graph, layout, on, rows};
use candle::{DType, Result, Tensor};
use chandlery_ops::tsne::{
    LayoutState, LayoutStep, Metric, Repulsion, RepulsionMethod, affinities_in_order, curve_order, knn,
    knn_of, layout_divergence, layout_step_, perplexity_search, repulsion_at, row_distances, symmetrize,
    symmetrize_reference,
};
use chandlery_tests::{assert_same_bits, devices};

/// The same matrix as a contiguous view that begins `offset` entries into its storage.
fn view(t: &Tensor, offset: usize) -> Result<Tensor> {
    let flat = t.flatten_all()?;
    let before = Tensor::zeros(offset, t.dtype(), t.device())?;
    let n = flat.elem_count();
    let view = Tensor::cat(&[&before, &flat], 0)?.narrow(0, offset, n)?.reshape(t.shape())?;
    assert!(view.is_contiguous() && view.layout().start_offset() == offset);
    Ok(view)
}

#[test]
fn points_at_odd_entries_are_those_points_or_are_refused() -> Result<()> {
    for (n, d) in [(3, 2), (300, 2), (300, 3), (1025, 2)] {
        let y = layout(n, d, 10.)?;
        let (indices, p) = graph(n, 4, 2.max(n / 50), 2.)?;
        let graph = symmetrize_reference(&indices, &p)?;
        for device in devices()? {
            let (there, graph) = (y.to_device(&device)?, on(&graph, &device)?);
            let total = Tensor::new(&[50f64], &device)?;
            for offset in [1, 2, 3] {
                let what = format!("{n} points, {d}-D, offset {offset}, {:?}", device.location());
                let odd = view(&there, offset)?;
                let order = |y: &Tensor| curve_order(y)?.to_vec1::<u32>();
                assert_eq!(order(&odd)?, order(&there)?, "{what}");
                let kl = |y: &Tensor| layout_divergence(&graph, y, &total, 1.)?.to_vec1::<f64>();
                assert_eq!(kl(&odd)?, kl(&there)?, "{what}");
                let queries = view(&there.narrow(0, 0, 3)?.contiguous()?, offset)?;
                let at = |queries: &Tensor, y: &Tensor| repulsion_at(queries, y, 1.);
                let (got, want) = (at(&queries, &odd)?, at(&there.narrow(0, 0, 3)?.contiguous()?, &there)?);
                assert_same_bits(&what, &got.0, &want.0)?;
                assert_same_bits(&what, &got.1, &want.1)?;

                let is_refused = d == 2 && offset % 2 == 1;
                let (forces, total) = (there.zeros_like()?, Tensor::zeros(1, DType::F64, &device)?);
                let mut methods = vec![RepulsionMethod::Exact, RepulsionMethod::Tree { theta: 0.5 }];
                if d == 2 {
                    methods.push(RepulsionMethod::Grid { nodes: 128 });
                }
                for method in methods {
                    let repulsion = Repulsion::new(method, n, d, 1., &device)?;
                    for done in [repulsion.arrange(&odd), repulsion.repulsion_(&forces, &total, &odd)] {
                        check(&what, is_refused, done);
                    }
                }
                // A state has a copy of its own; who makes one of views is told.
                let state = LayoutState::new(&odd)?;
                layout_step_(
                    &state,
                    &graph,
                    &forces,
                    &Tensor::new(&[50f64], &device)?,
                    &LayoutStep::default(),
                )?;
                let odd = LayoutState { layout: view(&there, offset)?, ..state };
                let total = Tensor::new(&[50f64], &device)?;
                check(&what, is_refused, layout_step_(&odd, &graph, &forces, &total, &LayoutStep::default()));
            }
        }
    }
    Ok(())
}

fn check(what: &str, is_refused: bool, done: Result<()>) {
    match done {
        Ok(()) => assert!(!is_refused, "{what}: accepted"),
        Err(e) => assert!(
            is_refused && e.to_string().contains("must begin on a multiple of 8 bytes"),
            "{what}: {e}"
        ),
    }
}

#[test]
fn rows_and_neighbours_at_odd_entries_are_those_rows() -> Result<()> {
    for (n, d, k) in [(40, 3, 5), (300, 17, 30), (1100, 64, 15)] {
        let rows = rows(n, d, 1)?;
        for device in devices()? {
            let there = rows.to_device(&device)?;
            for offset in [1, 2, 3] {
                let what = format!("{n} rows of {d}, offset {offset}, {:?}", device.location());
                let odd = view(&there, offset)?;
                for metric in Metric::ALL {
                    let (got, want) = (knn(&odd, k, metric)?, knn(&there, k, metric)?);
                    assert_same_bits(&what, &got.indices, &want.indices)?;
                    assert_same_bits(&what, &got.distances, &want.distances)?;
                    let got = knn_of(&view(&there.narrow(0, 0, 9)?.contiguous()?, offset)?, &odd, k, metric)?;
                    let want = knn_of(&there.narrow(0, 0, 9)?.contiguous()?, &there, k, metric)?;
                    assert_same_bits(&what, &got.indices, &want.indices)?;
                }
                let distances = |rows: &Tensor| row_distances(rows, rows, Metric::Manhattan);
                assert_same_bits(&what, &distances(&odd)?, &distances(&there)?)?;
                let near = knn(&there, k, Metric::Euclidean)?;
                let of = |distances: &Tensor| perplexity_search(distances, &[2.]);
                let p = of(&near.distances)?;
                assert_same_bits(&what, &of(&view(&near.distances, offset)?)?, &p)?;
                let want = symmetrize(&near.indices, &p)?;
                let got = symmetrize(&view(&near.indices, offset)?, &view(&p, offset)?)?;
                assert_same_bits(&what, &got.values, &want.values)?;
                let order = Tensor::arange(0u32, n as u32, &CPU)?.to_device(&device)?;
                let got = affinities_in_order(&want, &view(&order, offset)?)?;
                assert_same_bits(&what, &got.values, &want.values)?;
            }
        }
    }
    Ok(())
}
