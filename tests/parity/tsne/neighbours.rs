//! The nearest rows are those of the reference, and what is no number is refused.
use super::{CPU, rows};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{
    Metric, knn, knn_approximate, knn_of, knn_of_reference, knn_reference, row_distances,
};
use chandlery_tests::{assert_same_bits, devices};

/// Rows of an approximate search: without a GPU as many as make it one.
const N_SEARCHED: usize = if cfg!(feature = "cuda") { 12_000 } else { 5_000 };

/// Distances are those of the reference, and each index has the distance that stands beside it.
fn assert_neighbours(
    what: &str,
    got: &chandlery_ops::tsne::Neighbours,
    want: &chandlery_ops::tsne::Neighbours,
    all: &[Vec<f64>],
) -> Result<()> {
    let close = |d: f64| 2e-5 * d.abs() + 2e-5;
    let (indices, distances) =
        (got.indices.to_device(&CPU)?.to_vec2::<u32>()?, got.distances.to_device(&CPU)?.to_vec2::<f32>()?);
    let want = want.distances.to_vec2::<f32>()?;
    for (q, (indices, distances)) in indices.iter().zip(&distances).enumerate() {
        let mut seen = std::collections::HashSet::new();
        for (e, (&j, &d)) in indices.iter().zip(distances).enumerate() {
            let (d, best) = (f64::from(d), f64::from(want[q][e]));
            assert!(
                (d - best).abs() <= close(best),
                "{what}: query {q}, neighbour {e}: distance {d}, want {best}"
            );
            let own = all[q][j as usize];
            assert!((d - own).abs() <= close(own), "{what}: query {q}: row {j} is {own} away, got {d}");
            assert!(seen.insert(j), "{what}: query {q} has row {j} twice");
        }
        // Distances in f64 rank rows: of two that f32 cannot tell apart, either may come first.
        assert!(distances.is_sorted(), "{what}: query {q} is not sorted by distance");
    }
    Ok(())
}

/// Every distance, in f64.
fn distances(queries: &Tensor, rows: &Tensor, metric: Metric) -> Result<Vec<Vec<f64>>> {
    let n = rows.dim(0)?;
    let all = knn_of_reference(queries, rows, n, metric)?;
    let (indices, sorted) = (all.indices.to_vec2::<u32>()?, all.distances.to_vec2::<f32>()?);
    Ok(indices
        .iter()
        .zip(&sorted)
        .map(|(indices, sorted)| {
            let mut out = vec![0.; n];
            indices.iter().zip(sorted).for_each(|(&j, &d)| out[j as usize] = d.into());
            out
        })
        .collect())
}

#[test]
fn neighbours_are_the_nearest_rows_on_every_device() -> Result<()> {
    for (n, d, k) in [(2, 1, 1), (10, 3, 9), (37, 8, 5), (300, 9, 90), (1100, 50, 15), (2300, 4, 30)] {
        let rows = rows(n, d, 1)?;
        let queries = normal((13, d), &CPU, Philox::new(90, 2))?;
        for metric in Metric::ALL {
            let (want, all) = (knn_reference(&rows, k, metric)?, distances(&rows, &rows, metric)?);
            let (of, of_all) =
                (knn_of_reference(&queries, &rows, k, metric)?, distances(&queries, &rows, metric)?);
            for device in devices()? {
                let what = format!("{n} rows of {d}, k {k}, {metric:?}, {:?}", device.location());
                let there = rows.to_device(&device)?;
                assert_neighbours(&what, &knn(&there, k, metric)?, &want, &all)?;
                assert_neighbours(
                    &what,
                    &knn_of(&queries.to_device(&device)?, &there, k, metric)?,
                    &of,
                    &of_all,
                )?;
            }
        }
    }
    Ok(())
}

/// Around the tiles of 128 and the blocks of 1,024 queries and 8,192 rows, with features that are
/// no multiple of eight.
#[test]
fn distances_without_products_are_those_of_the_reference_at_the_edges_of_tiles() -> Result<()> {
    for metric in [Metric::Manhattan, Metric::Chebyshev] {
        for (m, n, d, k) in
            [(1, 127, 7, 3), (128, 128, 8, 128), (129, 131, 9, 130), (5, 8193, 3, 40), (1030, 260, 17, 11)]
        {
            let (queries, rows) =
                (normal((m, d), &CPU, Philox::new(90, 20))?, normal((n, d), &CPU, Philox::new(90, 21))?);
            let (want, all) =
                (knn_of_reference(&queries, &rows, k, metric)?, distances(&queries, &rows, metric)?);
            for device in devices()? {
                let what =
                    format!("{m} queries, {n} rows of {d}, k {k}, {metric:?}, {:?}", device.location());
                let (queries, rows) = (queries.to_device(&device)?, rows.to_device(&device)?);
                assert_neighbours(&what, &knn_of(&queries, &rows, k, metric)?, &want, &all)?;
                let every = row_distances(&queries, &rows, metric)?.to_vec2::<f32>()?;
                for (every, all) in every.iter().zip(&all) {
                    let worst =
                        every.iter().zip(all).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0., f64::max);
                    assert!(worst < 2e-5, "{what}: {worst}");
                }
                let again = knn_of(&queries, &rows, k, metric)?;
                assert_same_bits(&what, &again.distances, &knn_of(&queries, &rows, k, metric)?.distances)?;
            }
        }
    }
    Ok(())
}

#[test]
fn duplicates_come_in_the_order_of_rows_by_every_metric() -> Result<()> {
    let rows = normal((150, 12), &CPU, Philox::new(90, 22))?;
    let thrice = Tensor::cat(&[&rows, &rows, &rows], 0)?;
    for device in devices()? {
        let there = thrice.to_device(&device)?;
        // As sets all of these rows are equal.
        for metric in Metric::ALL.into_iter().filter(|&metric| metric != Metric::Jaccard) {
            let found = knn(&there, 2, metric)?;
            for (i, found) in found.indices.to_vec2::<u32>()?.iter().enumerate() {
                let copies = (0..3).map(|copy| (copy * 150 + i % 150) as u32);
                let want: Vec<u32> = copies.filter(|&j| j as usize != i).collect();
                assert_eq!(found, &want, "row {i} by {metric:?} on {:?}", device.location());
            }
        }
    }
    Ok(())
}

#[test]
fn neighbours_are_found_where_products_lose_all_digits() -> Result<()> {
    // Pairs of rows that are 1e-3 apart, far from the others and from the mean.
    let far = (normal((600, 40), &CPU, Philox::new(90, 3))? * 100.)?;
    let near = (&far + (normal((600, 40), &CPU, Philox::new(90, 4))? * 1e-3)?)?;
    let rows = Tensor::cat(&[far, near], 0)?;
    for device in devices()? {
        let found = knn(&rows.to_device(&device)?, 1, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
        for (i, found) in found.iter().enumerate() {
            assert_eq!(found[0] as usize, (i + 600) % 1200, "row {i} on {:?}", device.location());
        }
    }
    Ok(())
}

#[test]
fn queries_and_rows_may_be_parts_of_one_tensor() -> Result<()> {
    let all = normal((600, 20), &CPU, Philox::new(90, 12))?;
    for device in devices()? {
        let there = all.to_device(&device)?;
        let (queries, rows) = (there.narrow(0, 0, 300)?, there.narrow(0, 300, 300)?);
        let want = knn_of(&queries.copy()?, &rows.copy()?, 5, Metric::Euclidean)?;
        let got = knn_of(&queries, &rows, 5, Metric::Euclidean)?;
        assert_eq!(got.indices.to_vec2::<u32>()?, want.indices.to_vec2::<u32>()?);
    }
    Ok(())
}

fn is_of_categories(metric: Metric) -> bool {
    matches!(metric, Metric::Hamming | Metric::Jaccard)
}

#[test]
fn an_approximate_search_finds_what_is_wanted_and_says_how_much() -> Result<()> {
    // Few features are multiplied in f32, many in TF32.
    for (n, d) in [(N_SEARCHED, 6), (N_SEARCHED, 200)] {
        let few = normal((n, 6), &CPU, Philox::new(90, 10))?;
        let rows = if d == 6 { few } else { few.matmul(&normal((6, d), &CPU, Philox::new(90, 12))?)? };
        for device in devices()? {
            let there = rows.to_device(&device)?;
            // By the Hamming and the Jaccard distance normal rows are all as far from each other.
            for metric in Metric::ALL.into_iter().filter(|metric| !is_of_categories(*metric)) {
                let exact = knn(&there, 10, metric)?.distances.to_vec2::<f32>()?;
                let search = || knn_approximate(&there, 10, metric, 0.9, Philox::new(90, 11));
                let found = search()?;
                let what = format!("{metric:?}, {d} features on {:?}", device.location());
                let distances = found.neighbours.distances.to_vec2::<f32>()?;
                let of_row =
                    |(far, exact): (&Vec<f32>, &Vec<f32>)| far.iter().filter(|&d| *d <= exact[9]).count();
                let share = distances.iter().zip(&exact).map(of_row).sum::<usize>() as f64 / (10 * n) as f64;
                assert!(share > 0.87 && found.recall.mean >= 0.9, "{what}: {share}, told {:?}", found.recall);
                assert!(found.looked_at < 1., "{what}");
                // No row that was found is nearer than the nearest.
                for (found, nearest) in distances.iter().zip(&exact) {
                    let near = found.iter().zip(nearest).all(|(found, nearest)| found >= nearest);
                    assert!(near, "{what}: {found:?} and {nearest:?}");
                }
                let indices = found.neighbours.indices.to_vec2::<u32>()?;
                let is_own = |(i, row): (usize, &Vec<u32>)| row.contains(&(i as u32));
                assert!(!indices.iter().enumerate().any(is_own), "{what}: a row is its own neighbour");
                let again = search()?.neighbours;
                assert_same_bits(
                    "distances of a second search",
                    &again.distances,
                    &found.neighbours.distances,
                )?;
                assert_eq!(again.indices.to_vec2::<u32>()?, indices, "{what}: a second search");
            }
        }
    }
    Ok(())
}

/// Clusters far apart and tight, half of the rows a dense far cluster, equal rows, zero rows, and
/// scales whose squares f32 does not hold.
#[test]
fn an_approximate_search_takes_rows_of_any_place_and_scale() -> Result<()> {
    let n = N_SEARCHED;
    for d in [10, 200] {
        let noise = normal((n, d), &CPU, Philox::new(90, 23))?;
        let of = |count: usize| Tensor::new((0..n).map(|i| (i % count) as u32).collect::<Vec<u32>>(), &CPU);
        let centres = (normal((6, d), &CPU, Philox::new(90, 24))? * 1e4)?;
        let far = ((&noise * 0.1)? + centres.index_select(&of(6)?, 0)?)?;
        let dense = (noise.narrow(0, 0, n / 2)? * 1e-3)?;
        let half = Tensor::cat(&[&dense, &(noise.narrow(0, n / 2, n / 2)? + 100.)?], 0)?;
        let zeros = noise.broadcast_mul(&of(5)?.gt(0u32)?.to_dtype(DType::F32)?.unsqueeze(1)?)?;
        let cases = [
            ("far and tight", far),
            ("half is dense", half),
            ("a fifth is zero", zeros),
            ("1e-25", (&noise * 1e-25)?),
            ("1e18", (&noise * 1e18)?),
        ];
        for device in devices()? {
            for (what, rows) in &cases {
                let there = rows.to_device(&device)?;
                for metric in [Metric::Euclidean, Metric::Cosine] {
                    let exact = knn(&there, 10, metric)?.distances.to_vec2::<f32>()?;
                    let found = knn_approximate(&there, 10, metric, 0.8, Philox::new(90, 25))?;
                    let distances = found.neighbours.distances.to_vec2::<f32>()?;
                    let of_row =
                        |(far, exact): (&Vec<f32>, &Vec<f32>)| far.iter().filter(|&d| *d <= exact[9]).count();
                    let share =
                        distances.iter().zip(&exact).map(of_row).sum::<usize>() as f64 / (10 * n) as f64;
                    let what = format!("{what}, {d} features, {metric:?} on {:?}", device.location());
                    assert!(share > 0.77 && found.recall.mean >= 0.8, "{what}: {share}, {:?}", found.recall);
                    let indices = found.neighbours.indices.to_vec2::<u32>()?;
                    assert!(indices.iter().flatten().all(|&j| (j as usize) < n), "{what}: no row");
                }
            }
        }
    }
    Ok(())
}
