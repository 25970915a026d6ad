use crate::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::{Metric, Neighbours, knn, knn_of, knn_of_reference, knn_reference};

const METRICS: [Metric; 2] = [Metric::Euclidean, Metric::Cosine];

/// Distances agree to rounding of f32, and rows that differ from those wanted are as near.
fn assert_same(
    what: &str,
    got: &Neighbours,
    want: &Neighbours,
    distance: impl Fn(usize, u32) -> f64,
) -> Result<()> {
    let (distances, wanted) = (flat(&got.distances)?, flat(&want.distances)?);
    assert_near(what, &distances, &wanted, 2e-7);
    let (rows, wanted_rows) = (got.indices.to_vec2::<u32>()?, want.indices.to_vec2::<u32>()?);
    for (i, (rows, wanted_rows)) in rows.iter().zip(&wanted_rows).enumerate() {
        let mut once = rows.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), rows.len(), "{what}: a row twice for query {i}");
        for (c, (&row, &wanted)) in rows.iter().zip(wanted_rows).enumerate() {
            let (a, b) = (distance(i, row), distance(i, wanted));
            assert!(
                row == wanted || (a - b).abs() <= 2e-7 * b.max(1e-7),
                "{what}: query {i}, {c}: {row}, not {wanted}"
            );
        }
    }
    Ok(())
}

fn check(what: &str, queries: Option<&Tensor>, rows: &Tensor, k: usize, metric: Metric) -> Result<()> {
    let of = queries.unwrap_or(rows);
    let (got, want) = match queries {
        Some(queries) => (knn_of(queries, rows, k, metric)?, knn_of_reference(queries, rows, k, metric)?),
        None => (knn(rows, k, metric)?, knn_reference(rows, k, metric)?),
    };
    let (q, x) = (of.to_dtype(DType::F64)?.to_vec2::<f64>()?, rows.to_dtype(DType::F64)?.to_vec2::<f64>()?);
    assert_same(&format!("{what}, {metric:?}, k {k}"), &got, &want, |i, j| {
        let sum = |of: &dyn Fn(f64, f64) -> f64| {
            q[i].iter().zip(&x[j as usize]).map(|(&a, &b)| of(a, b)).sum::<f64>()
        };
        match metric {
            Metric::Euclidean => sum(&|a, b| (a - b) * (a - b)).sqrt(),
            Metric::Cosine => {
                let lengths = (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
                if lengths > 0. { 1. - sum(&|a, b| a * b) / lengths } else { 1. }
            }
        }
    })
}

#[test]
fn neighbours_are_those_of_all_distances_in_f64() -> Result<()> {
    for (n, d, k) in [(2, 1, 1), (3, 7, 2), (10, 1, 9), (37, 16, 5), (260, 33, 17), (700, 5, 30)] {
        for metric in METRICS {
            check(&format!("{n}×{d}"), None, &gaussian(n, d, 1)?, k, metric)?;
        }
    }
    Ok(())
}

#[test]
fn queries_find_rows_that_equal_them() -> Result<()> {
    let rows = gaussian(300, 12, 2)?;
    for metric in METRICS {
        check("others", Some(&gaussian(41, 12, 3)?), &rows, 20, metric)?;
        check("all rows", Some(&gaussian(3, 12, 3)?), &rows, 300, metric)?;
        let found = knn_of(&rows.narrow(0, 100, 5)?, &rows, 1, metric)?;
        assert_eq!(found.indices.flatten_all()?.to_vec1::<u32>()?, [100, 101, 102, 103, 104]);
    }
    Ok(())
}

/// Enough features and rows for bounds by leading directions; rows without any, for which all features are used, too.
#[test]
fn bounds_by_few_coordinates_lose_no_neighbour() -> Result<()> {
    for metric in METRICS {
        check("low rank", None, &low_rank(2100, 330, 20, 30)?, 40, metric)?;
        check("offset", None, &(low_rank(2100, 330, 20, 30)? + 50.)?, 7, metric)?;
        check("no structure", None, &gaussian(2100, 330, 40)?, 11, metric)?;
        check("queries", Some(&low_rank(50, 330, 20, 50)?), &low_rank(2100, 330, 20, 30)?, 9, metric)?;
    }
    Ok(())
}

/// Directions are those between clusters, and say nothing within one.
#[test]
fn tight_clusters_far_apart_are_told_apart_within() -> Result<()> {
    let centres = (gaussian(2, 330, 60)? * 1e4)?;
    let of = (0..2100).map(|i| i % 2).collect::<Vec<u32>>();
    let rows = (centres.index_select(&Tensor::new(of, &CPU)?, 0)? + gaussian(2100, 330, 61)?)?;
    check("clusters", None, &rows, 13, Metric::Euclidean)
}

#[test]
fn duplicates_are_neighbours_and_the_lower_row_comes_first() -> Result<()> {
    let rows = gaussian(40, 6, 4)?;
    let twice = Tensor::cat(&[&rows, &rows, &rows], 0)?;
    let found = knn(&twice, 2, Metric::Euclidean)?;
    assert_eq!(found.distances.max_all()?.to_scalar::<f32>()?, 0.);
    for (i, found) in found.indices.to_vec2::<u32>()?.iter().enumerate() {
        let want: Vec<u32> =
            (0..3).map(|copy| (copy * 40 + i % 40) as u32).filter(|&j| j as usize != i).collect();
        assert_eq!(found, &want);
    }
    let equal = knn(&Tensor::ones((2500, 400), DType::F32, &CPU)?, 3, Metric::Euclidean)?;
    assert_eq!(equal.indices.to_vec2::<u32>()?[..3], [[1, 2, 3], [0, 2, 3], [0, 1, 3]]);
    Ok(())
}

#[test]
fn zero_rows_are_at_cosine_distance_one_from_all() -> Result<()> {
    let rows = Tensor::cat(&[&Tensor::zeros((2, 4), DType::F32, &CPU)?, &gaussian(60, 4, 5)?], 0)?;
    check("zeros", None, &rows, 61, Metric::Cosine)?;
    let found = knn(&rows, 3, Metric::Cosine)?;
    assert_eq!(found.indices.to_vec2::<u32>()?[0], [1, 2, 3]);
    assert_eq!(found.distances.to_vec2::<f32>()?[1], [1., 1., 1.]);
    Ok(())
}

#[test]
fn any_scale_is_searched() -> Result<()> {
    for scale in [1e-30, 1e-6, 1e6, 1e18, 1e30] {
        check(&format!("scale {scale}"), None, &(gaussian(500, 9, 6)? * scale)?, 12, Metric::Euclidean)?;
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_threads_or_runs() -> Result<()> {
    let rows = low_rank(2300, 330, 20, 70)?;
    let [one, three] = on_threads(|| knn(&rows, 15, Metric::Euclidean).unwrap());
    let again = knn(&rows, 15, Metric::Euclidean)?;
    for other in [three, again] {
        assert_eq!(one.indices.to_vec2::<u32>()?, other.indices.to_vec2::<u32>()?);
        assert_eq!(one.distances.to_vec2::<f32>()?, other.distances.to_vec2::<f32>()?);
    }
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let rows = gaussian(4, 3, 7)?;
    let mut bad = rows.to_vec2::<f32>()?;
    bad[2][1] = f32::NAN;
    let bad = Tensor::new(bad, &CPU)?;
    let euclidean = Metric::Euclidean;
    let cases = [
        (knn(&bad, 1, euclidean), "knn: rows must be finite, got NaN in row 2, column 1"),
        (knn_of(&bad, &rows, 1, euclidean), "knn: queries must be finite, got NaN in row 2, column 1"),
        (knn(&rows, 4, euclidean), "knn: k must be in 1..=3 for 4 rows, got 4"),
        (knn(&rows, 0, euclidean), "knn: k must be in 1..=3 for 4 rows, got 0"),
        (knn_of(&rows, &rows, 5, euclidean), "knn: k must be in 1..=4 for 4 rows, got 5"),
        (
            knn_of(&gaussian(2, 2, 8)?, &rows, 1, euclidean),
            "knn: queries must have 3 features, as rows have, got 2",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(message(result), want);
    }
    Ok(())
}
