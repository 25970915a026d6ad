//! Affinities have the perplexity, and the graph is symmetric.
use super::{CPU, graph, rows};
use candle::{Result, Tensor};
use chandlery_ops::tsne::{
    Metric, knn_reference, perplexity_search, perplexity_search_reference, symmetrize, symmetrize_reference,
};
use chandlery_tests::{assert_close, devices};

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
fn more_neighbours_that_tie_than_the_perplexity_share_the_affinity_on_every_device() -> Result<()> {
    // So many at the least distance, of 40.
    for (ties, least) in [(2usize, 0f32), (10, 0.), (10, 1.5), (25, 1e-18), (39, 3e18), (40, 2.)] {
        let row = |i: usize| {
            // Others are a little or far more away, some of them alike.
            let far = move |e: usize| least + (1e-4 + (e / 2 + i) as f32) * least.max(1e-20);
            (0..40).map(move |e| if (e + 3 * i) % 40 < ties { least } else { far(e) })
        };
        let distances = Tensor::from_vec((0..9).flat_map(row).collect::<Vec<f32>>(), (9, 40), &CPU)?;
        for perplexities in [vec![1.], vec![9.5], vec![1.5, 30.]] {
            let want = perplexity_search_reference(&distances, &perplexities)?;
            for device in devices()? {
                let got = perplexity_search(&distances.to_device(&device)?, &perplexities)?;
                let what =
                    format!("{ties} at {least}, perplexities {perplexities:?}, {:?}", device.location());
                assert_close(&what, &got.to_device(&CPU)?, &want, 5e-5, 1e-6)?;
            }
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
