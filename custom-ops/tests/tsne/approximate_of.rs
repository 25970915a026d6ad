//! The search in cells for queries that are no rows.
use super::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use chandlery_ops::tsne::{ApproximateNeighbours, Metric, knn_of, knn_of_approximate};

const AT: Philox = Philox::new(7, 93);

fn search(
    queries: &Tensor,
    rows: &Tensor,
    metric: Metric,
    recall: f64,
) -> Result<(ApproximateNeighbours, f64)> {
    const K: usize = 12;
    let found = knn_of_approximate(queries, rows, K, metric, recall, AT)?;
    let (n, m) = (rows.dim(0)?, queries.dim(0)?);
    assert_eq!(found.neighbours.indices.dims(), [m, K]);
    // The share is that of every eighth query.
    let eighth = Tensor::arange_step(0u32, m as u32, 8, &CPU)?;
    let exact = knn_of(&queries.index_select(&eighth, 0)?, rows, K, metric)?.distances.to_vec2::<f32>()?;
    let (indices, distances) =
        (found.neighbours.indices.to_vec2::<u32>()?, found.neighbours.distances.to_vec2::<f32>()?);
    let mut right = 0;
    for (i, (indices, distances)) in indices.iter().zip(&distances).enumerate() {
        let mut once = indices.clone();
        once.sort_unstable();
        once.dedup();
        assert!(once.len() == K && (once[K - 1] as usize) < n, "query {i}: {indices:?}");
        assert!(distances.is_sorted() && distances.iter().all(|d| d.is_finite()), "query {i}: {distances:?}");
        if i % 8 == 0 {
            right += distances.iter().filter(|&&d| d <= exact[i / 8][K - 1]).count();
        }
    }
    Ok((found, right as f64 / (K * exact.len()) as f64))
}

#[test]
fn each_metric_finds_its_nearest_of_other_rows_to_the_recall_that_is_told() -> Result<()> {
    let all = low_rank(11_000, 60, 5, 110)?;
    let (rows, queries) = (all.narrow(0, 0, 6000)?.contiguous()?, all.narrow(0, 6000, 5000)?.contiguous()?);
    for metric in Metric::ALL {
        let (found, share) = search(&queries, &rows, metric, 0.9)?;
        let [low, high] = found.recall.interval;
        let room = high - low;
        assert!(found.recall.mean >= 0.9, "{metric:?}: {:?}", found.recall);
        assert!((low - room..=high + room).contains(&share), "{metric:?}: {share}, {:?}", found.recall);
        if metric == Metric::Euclidean {
            assert!(found.looked_at < 0.6, "{}", found.looked_at);
        }
    }
    Ok(())
}

/// Queries beside all rows, far from them, equal to them, or all in one place.
#[test]
fn queries_of_any_place_find_their_nearest() -> Result<()> {
    let (rows, noise) = (gaussian(7000, 6, 111)?, gaussian(5000, 6, 112)?);
    for (what, queries) in [
        ("far", (&noise + 1e4)?),
        ("beside", (&noise * 3.)?),
        ("tiny", (&noise * 1e-6)?),
        ("equal to rows", rows.narrow(0, 0, 5000)?.contiguous()?),
        ("equal to each other", Tensor::ones((5000, 6), DType::F32, &CPU)?),
    ] {
        for metric in [Metric::Euclidean, Metric::Cosine, Metric::Correlation, Metric::Manhattan] {
            let (found, share) = search(&queries, &rows, metric, 0.9)?;
            assert!(share > 0.87 && found.recall.mean >= 0.9, "{what}, {metric:?}: {share}");
            if what == "equal to rows" && metric == Metric::Euclidean {
                let first = found.neighbours.distances.narrow(1, 0, 1)?;
                assert_eq!(first.max_all()?.to_scalar::<f32>()?, 0., "a query is near itself");
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_are_equal_or_zero_are_found_once() -> Result<()> {
    let is_row = (uniform(7000, &CPU, Philox::new(7, 113))?.ge(0.5)?.to_dtype(DType::F32)?).unsqueeze(1)?;
    let rows = gaussian(7000, 5, 114)?.broadcast_mul(&is_row)?;
    let queries = Tensor::cat(&[&gaussian(4500, 5, 115)?, &Tensor::zeros((500, 5), DType::F32, &CPU)?], 0)?;
    for metric in [Metric::Euclidean, Metric::Cosine] {
        let (found, share) = search(&queries, &rows, metric, 0.9)?;
        assert!(share > 0.87, "{metric:?}: {share}");
        let zeros = found.neighbours.distances.narrow(0, 4500, 500)?;
        let want = if metric == Metric::Cosine { 1. } else { 0. };
        assert_eq!(zeros.min_all()?.to_scalar::<f32>()?, want);
        assert_eq!(zeros.max_all()?.to_scalar::<f32>()?, want);
    }
    Ok(())
}

#[test]
fn few_queries_are_searched_exactly_and_what_makes_no_sense_is_refused() -> Result<()> {
    let (rows, queries) = (gaussian(6000, 5, 116)?, gaussian(5000, 5, 117)?);
    let few = queries.narrow(0, 0, 4000)?.contiguous()?;
    assert_eq!(search(&few, &rows, Metric::Euclidean, 0.5)?.0.looked_at, 1.);
    assert!(search(&queries, &rows, Metric::Euclidean, 0.5)?.0.looked_at < 0.5);
    let error = |queries: &Tensor, k: usize, recall: f64| {
        knn_of_approximate(queries, &rows, k, Metric::Euclidean, recall, AT)
            .err()
            .map_or_else(String::new, |e| e.to_string())
    };
    let mut bad = queries.flatten_all()?.to_vec1::<f32>()?;
    bad[4321 * 5 + 3] = f32::NAN;
    let bad = Tensor::from_vec(bad, (5000, 5), &CPU)?;
    for metric_error in [error(&bad, 5, 0.5), error(&bad, 5, 1.)] {
        assert!(metric_error.contains("got NaN in row 4321, column 3"), "{metric_error}");
    }
    assert!(error(&queries, 5, 0.).contains("recall must be above 0 and at most 1, got 0"));
    assert!(error(&queries, 6001, 0.9).contains("k must be in 1..=6000 for 6000 rows, got 6001"));
    let narrow = queries.narrow(1, 0, 4)?.contiguous()?;
    assert!(error(&narrow, 5, 0.9).contains("queries must have 5 features, as rows have, got 4"));
    Ok(())
}
