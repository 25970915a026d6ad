use super::inputs::*;
use candle::{DType, Result, Tensor};
use chandlery_ops::tsne::{Metric, Neighbours, knn, knn_of, knn_of_reference, knn_reference, row_distances};

/// Distances agree to rounding of f32, and rows that differ from those wanted are as near.
fn assert_same(
    what: &str,
    got: &Neighbours,
    want: &Neighbours,
    tolerance: f64,
    distance: impl Fn(usize, u32) -> f64,
) -> Result<()> {
    let (distances, wanted) = (flat(&got.distances)?, flat(&want.distances)?);
    assert_near(what, &distances, &wanted, tolerance);
    let (rows, wanted_rows) = (got.indices.to_vec2::<u32>()?, want.indices.to_vec2::<u32>()?);
    for (i, (rows, wanted_rows)) in rows.iter().zip(&wanted_rows).enumerate() {
        let mut once = rows.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), rows.len(), "{what}: a row twice for query {i}");
        for (c, (&row, &wanted)) in rows.iter().zip(wanted_rows).enumerate() {
            let (a, b) = (distance(i, row), distance(i, wanted));
            assert!(
                row == wanted || (a - b).abs() <= tolerance * b.max(1e-7),
                "{what}: query {i}, {c}: {row}, not {wanted}"
            );
        }
    }
    Ok(())
}

/// Rows from which on the reference, which is slow, looks at every fifth row: at all places of the
/// blocks that the search has.
const MANY: usize = 1000;

fn check(what: &str, queries: Option<&Tensor>, rows: &Tensor, k: usize, metric: Metric) -> Result<()> {
    let n = rows.dim(0)?;
    let fifth = Tensor::arange_step(0u32, n as u32, 5, &CPU)?;
    let of = match queries {
        Some(queries) => queries.clone(),
        None if n > MANY => rows.index_select(&fifth, 0)?,
        None => rows.clone(),
    };
    let (got, want) = match queries {
        Some(queries) => (knn_of(queries, rows, k, metric)?, knn_of_reference(queries, rows, k, metric)?),
        None if n > MANY => {
            let all = knn(rows, k, metric)?;
            // The nearest of all rows to a row is itself.
            let with_self = knn_of_reference(&of, rows, k + 1, metric)?;
            let [got, want] = [
                [all.indices.index_select(&fifth, 0)?, all.distances.index_select(&fifth, 0)?],
                [with_self.indices.narrow(1, 1, k)?, with_self.distances.narrow(1, 1, k)?],
            ]
            .map(|[indices, distances]| Neighbours { indices, distances });
            (got, want)
        }
        None => (knn(rows, k, metric)?, knn_reference(rows, k, metric)?),
    };
    let (q, x) = (of.to_dtype(DType::F64)?.to_vec2::<f64>()?, rows.to_dtype(DType::F64)?.to_vec2::<f64>()?);
    // Rows without their means are rounded once more: by half an eps of each entry, which the angle
    // of near rows makes more of.
    let tolerance = if metric == Metric::Correlation { 2e-6 } else { 2e-7 };
    assert_same(&format!("{what}, {metric:?}, k {k}"), &got, &want, tolerance, |i, j| {
        distance(&q[i], &x[j as usize], metric)
    })
}

fn distance(a: &[f64], b: &[f64], metric: Metric) -> f64 {
    let apart = || a.iter().zip(b).map(|(a, b)| (a - b).abs());
    match metric {
        Metric::Euclidean => apart().map(|x| x * x).sum::<f64>().sqrt(),
        Metric::Manhattan => apart().sum(),
        Metric::Chebyshev => apart().fold(0., f64::max),
        Metric::Hamming => a.iter().zip(b).filter(|(a, b)| a != b).count() as f64 / a.len() as f64,
        Metric::Jaccard => {
            let count = |is_in: fn(bool, bool) -> bool| {
                a.iter().zip(b).filter(|&(&a, &b)| is_in(a != 0., b != 0.)).count() as f64
            };
            if count(|a, b| a | b) > 0. { 1. - count(|a, b| a & b) / count(|a, b| a | b) } else { 0. }
        }
        Metric::Cosine => {
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let lengths = (dot(a, a) * dot(b, b)).sqrt();
            if lengths > 0. { 1. - dot(a, b) / lengths } else { 1. }
        }
        Metric::Correlation => {
            let [a, b] = [a, b].map(|x| {
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                x.iter().map(|x| x - mean).collect::<Vec<_>>()
            });
            distance(&a, &b, Metric::Cosine)
        }
    }
}

#[test]
fn neighbours_are_those_of_all_distances_in_f64() -> Result<()> {
    for (n, d, k) in [(2, 1, 1), (3, 7, 2), (10, 1, 9), (37, 16, 5), (260, 33, 17), (700, 5, 30)] {
        for metric in Metric::ALL {
            check(&format!("{n}×{d}"), None, &gaussian(n, d, 1)?, k, metric)?;
        }
    }
    Ok(())
}

#[test]
fn queries_find_rows_that_equal_them() -> Result<()> {
    let rows = gaussian(300, 12, 2)?;
    for metric in Metric::ALL {
        check("others", Some(&gaussian(41, 12, 3)?), &rows, 20, metric)?;
        check("all rows", Some(&gaussian(3, 12, 3)?), &rows, 300, metric)?;
        let found = knn_of(&rows.narrow(0, 100, 5)?, &rows, 1, metric)?;
        // As sets all of these rows are equal.
        let want = if metric == Metric::Jaccard { [0; 5] } else { [100, 101, 102, 103, 104] };
        assert_eq!(found.indices.flatten_all()?.to_vec1::<u32>()?, want);
    }
    Ok(())
}

/// Whether leading directions bound the distances, where there are many rows; of others each pair is
/// looked at, however many rows there are.
fn has_bounds(metric: Metric) -> bool {
    matches!(metric, Metric::Euclidean | Metric::Cosine | Metric::Correlation)
}

/// Enough features and rows for bounds by leading directions; rows without any, for which all
/// features are used, too.
#[test]
fn bounds_by_few_coordinates_lose_no_neighbour() -> Result<()> {
    for metric in [Metric::Euclidean, Metric::Cosine, Metric::Correlation] {
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
    check("clusters", None, &rows, 13, Metric::Euclidean)?;
    check("clusters", None, &rows, 13, Metric::Manhattan)?;
    check("clusters", None, &rows, 13, Metric::Chebyshev)
}

#[test]
fn duplicates_are_neighbours_and_the_lower_row_comes_first() -> Result<()> {
    let rows = gaussian(40, 6, 4)?;
    let twice = Tensor::cat(&[&rows, &rows, &rows], 0)?;
    for metric in [Metric::Euclidean, Metric::Manhattan, Metric::Chebyshev] {
        let found = knn(&twice, 2, metric)?;
        assert_eq!(found.distances.max_all()?.to_scalar::<f32>()?, 0.);
        for (i, found) in found.indices.to_vec2::<u32>()?.iter().enumerate() {
            let want: Vec<u32> =
                (0..3).map(|copy| (copy * 40 + i % 40) as u32).filter(|&j| j as usize != i).collect();
            assert_eq!(found, &want, "{metric:?}");
        }
    }
    for metric in Metric::ALL {
        let n = if has_bounds(metric) { 2500 } else { 700 };
        let equal = knn(&Tensor::ones((n, 400), DType::F32, &CPU)?, 3, metric)?;
        assert_eq!(equal.indices.to_vec2::<u32>()?[..3], [[1, 2, 3], [0, 2, 3], [0, 1, 3]], "{metric:?}");
    }
    Ok(())
}

#[test]
fn constant_rows_are_at_correlation_distance_one_from_all() -> Result<()> {
    let constant = Tensor::new(&[[0.1f32; 7], [1e20; 7], [0.; 7]], &CPU)?;
    let rows = Tensor::cat(&[&constant, &gaussian(60, 7, 5)?], 0)?;
    check("constants", None, &rows, 62, Metric::Correlation)?;
    let found = knn(&rows, 3, Metric::Correlation)?;
    assert_eq!(found.indices.to_vec2::<u32>()?[0], [1, 2, 3]);
    assert_eq!(found.distances.to_vec2::<f32>()?[1], [1., 1., 1.]);
    // An offset and a scale of a row do not count.
    let other = ((gaussian(60, 7, 5)? * 3.)? + 8.)?;
    let same = knn_of(&other, &gaussian(60, 7, 5)?, 1, Metric::Correlation)?;
    assert_eq!(same.indices.flatten_all()?.to_vec1::<u32>()?, (0..60).collect::<Vec<u32>>());
    Ok(())
}

#[test]
fn all_distances_are_those_of_the_reference() -> Result<()> {
    for (m, n, d) in [(1, 1, 1), (9, 7, 16), (17, 4, 33), (3, 259, 5), (20, 600, 70)] {
        let (queries, rows) = (gaussian(m, d, 80)?, gaussian(n, d, 81)?);
        let wide = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
        let (q, x) = (wide(&queries)?, wide(&rows)?);
        for metric in [Metric::Manhattan, Metric::Chebyshev, Metric::Hamming, Metric::Jaccard] {
            let got = flat(&row_distances(&queries, &rows, metric)?)?;
            let want: Vec<f64> =
                q.iter().flat_map(|q| x.iter().map(|x| distance(q, x, metric)).collect::<Vec<_>>()).collect();
            // Sums of 70 numbers in f32.
            assert_near(&format!("{m}×{n}×{d}, {metric:?}"), &got, &want, 2e-6);
        }
    }
    let none = Tensor::zeros((5, 0), DType::F32, &CPU)?;
    assert_eq!(row_distances(&none, &none, Metric::Manhattan)?.to_vec2::<f32>()?, [[0.; 5]; 5]);
    let rows = gaussian(3, 2, 82)?;
    let error = message(row_distances(&rows, &rows, Metric::Cosine));
    let want = "row_distances: metric must be Manhattan, Chebyshev, Hamming or Jaccard, got Cosine; get it from a product";
    assert_eq!(error, want);
    Ok(())
}

#[test]
fn zero_rows_are_at_cosine_distance_one_from_all() -> Result<()> {
    let rows = Tensor::cat(&[&Tensor::zeros((2, 4), DType::F32, &CPU)?, &gaussian(60, 4, 5)?], 0)?;
    check("zeros", None, &rows, 61, Metric::Cosine)?;
    let found = knn(&rows, 3, Metric::Cosine)?;
    assert_eq!(found.indices.to_vec2::<u32>()?[0], [1, 2, 3]);
    assert_eq!(found.distances.to_vec2::<f32>()?[1], [1., 1., 1.]);
    // Rows at 60 to 90 degrees are nearer, though the ends of unit rows are farther apart than
    // theirs from 0.
    let fan: Vec<f32> = (0..40).flat_map(|i| <[f32; 2]>::from((1.05 + 0.01 * i as f32).sin_cos())).collect();
    let query = Tensor::new(&[[0f32, 1.]], &CPU)?;
    let rows =
        Tensor::cat(&[&Tensor::zeros((9, 2), DType::F32, &CPU)?, &Tensor::from_vec(fan, (40, 2), &CPU)?], 0)?;
    let found = knn_of(&query, &rows, 20, Metric::Cosine)?;
    assert_eq!(found.indices.to_vec2::<u32>()?[0], (9..29).collect::<Vec<u32>>());
    Ok(())
}

#[test]
fn any_scale_is_searched() -> Result<()> {
    for scale in [1e-30, 1e-6, 1e6, 1e18, 1e30] {
        for metric in [Metric::Euclidean, Metric::Correlation, Metric::Manhattan, Metric::Chebyshev] {
            check(&format!("scale {scale}"), None, &(gaussian(500, 9, 6)? * scale)?, 12, metric)?;
        }
    }
    Ok(())
}

#[test]
fn rows_far_shorter_than_the_longest_are_searched() -> Result<()> {
    // As shares of the longest rows, squares of the others are numbers that f32 has few digits for.
    let rows = Tensor::cat(&[&(gaussian(2, 10, 8)? * 1e30)?, &(gaussian(2000, 10, 9)? * 1e8)?], 0)?;
    check("short rows", None, &rows, 5, Metric::Euclidean)
}

#[test]
fn results_do_not_depend_on_threads_or_runs() -> Result<()> {
    let rows = low_rank(2300, 330, 20, 70)?;
    for metric in Metric::ALL {
        let rows = if has_bounds(metric) { rows.clone() } else { rows.narrow(0, 0, 700)? };
        let [one, three] = on_threads(|| knn(&rows, 15, metric).unwrap());
        let again = knn(&rows, 15, metric)?;
        for other in [three, again] {
            assert_eq!(one.indices.to_vec2::<u32>()?, other.indices.to_vec2::<u32>()?);
            assert_eq!(one.distances.to_vec2::<f32>()?, other.distances.to_vec2::<f32>()?);
        }
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
    for metric in Metric::ALL {
        let want = "knn: rows must be finite, got NaN in row 2, column 1";
        assert_eq!(message(knn(&bad, 1, metric)), want, "{metric:?}");
        let want = "knn: queries must be finite, got NaN in row 2, column 1";
        assert_eq!(message(knn_of(&bad, &rows, 1, metric)), want, "{metric:?}");
    }
    let cases = [
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

/// Rows of a few categories, of which many are 0: many distances are equal.
fn categories(n: usize, d: usize, stream: u64) -> Result<Tensor> {
    let values = flat(&gaussian(n, d, stream)?)?;
    let values: Vec<f32> = values.iter().map(|x| (x.abs() as f32).floor()).collect();
    Tensor::from_vec(values, (n, d), &CPU)
}

#[test]
fn categories_and_sets_are_compared_column_by_column() -> Result<()> {
    let rows = Tensor::new(&[[1f32, 2., 0., 0.], [1., 3., 0., 0.], [0., 2., 5., -0.], [0.; 4]], &CPU)?;
    let of = |metric| row_distances(&rows, &rows, metric)?.to_vec2::<f32>();
    let third = 1. / 3.;
    let hamming = [[0., 0.25, 0.5, 0.5], [0.25, 0., 0.75, 0.5], [0.5, 0.75, 0., 0.5], [0.5, 0.5, 0.5, 0.]];
    assert_eq!(of(Metric::Hamming)?, hamming);
    let jaccard = [
        [0., 0., 2. * third, 1.],
        [0., 0., 2. * third, 1.],
        [2. * third, 2. * third, 0., 1.],
        [1., 1., 1., 0.],
    ];
    assert_eq!(of(Metric::Jaccard)?, jaccard);
    for metric in [Metric::Hamming, Metric::Jaccard] {
        for (n, d, k) in [(30, 1, 5), (300, 7, 20), (300, 16, 20), (411, 61, 35)] {
            let rows = categories(n, d, 96)?;
            check(&format!("{n}×{d}"), None, &rows, k, metric)?;
            check(&format!("{n}×{d}"), Some(&categories(9, d, 97)?), &rows, k, metric)?;
            // No unit changes what is equal or 0, not even one in which no square fits.
            check("tiny", None, &(&rows * 1e-44)?, k, metric)?;
            check("huge", None, &(&rows * 1e37)?, k, metric)?;
        }
        let none = knn(&Tensor::zeros((3, 0), DType::F32, &CPU)?, 2, metric)?;
        assert_eq!(none.distances.to_vec2::<f32>()?, [[0.; 2]; 3]);
    }
    Ok(())
}

/// Queries that are far larger than the rows, and the other way round.
#[test]
fn queries_and_rows_may_differ_in_scale() -> Result<()> {
    for (of_queries, of_rows) in [(1e30, 1e-3), (1e-30, 1e10), (1e20, 1e20)] {
        let (queries, rows) = ((gaussian(9, 40, 94)? * of_queries)?, (gaussian(700, 40, 95)? * of_rows)?);
        for metric in [Metric::Euclidean, Metric::Cosine, Metric::Manhattan, Metric::Chebyshev] {
            check(&format!("{of_queries} and {of_rows}"), Some(&queries), &rows, 12, metric)?;
        }
    }
    Ok(())
}

/// Distances that differ by less than f32 can tell.
#[test]
fn near_ties_are_ranked_in_f64() -> Result<()> {
    let values: Vec<f32> = (0..64u8).flat_map(|i| [1., f32::from(i) * 1e-5]).rev().collect();
    let rows = Tensor::from_vec(values, (64, 2), &CPU)?;
    let query = Tensor::new(&[[0f32, -1000.]], &CPU)?;
    // |q − x|² is 1000² and a bit: its digits are below those of f32.
    let found = knn_of(&query, &rows, 64, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
    let want = knn_of_reference(&query, &rows, 64, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
    assert_eq!(found, want);
    Ok(())
}
