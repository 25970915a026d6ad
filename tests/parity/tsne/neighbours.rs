//! The nearest rows are those of the reference, and what is no number is refused.
use super::{CPU, rows};
use candle::{Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{
    Metric, knn, knn_approximate, knn_of, knn_of_reference, knn_reference, row_distances,
};
use chandlery_tests::{assert_same_bits, devices};

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
        for metric in Metric::ALL {
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

#[test]
fn an_approximate_search_finds_most_neighbours_and_says_how_many() -> Result<()> {
    let rows = normal((5200, 6), &CPU, Philox::new(90, 10))?;
    for device in devices()? {
        let there = rows.to_device(&device)?;
        let exact = knn(&there, 10, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
        let share = |found: &chandlery_ops::tsne::Neighbours| -> Result<f64> {
            let found = found.indices.to_vec2::<u32>()?;
            let right = exact.iter().zip(&found).map(|(a, b)| a.iter().filter(|j| b.contains(j)).count());
            Ok(right.sum::<usize>() as f64 / 52_000.)
        };
        let search = |probes| knn_approximate(&there, 10, Metric::Euclidean, probes, Philox::new(90, 11));
        let (few, many) = (search(1)?, search(4)?);
        let (of_few, of_many) = (share(&few.neighbours)?, share(&many.neighbours)?);
        assert!(of_few > 0.4 && of_few < of_many && of_many > 0.9, "{of_few} and {of_many}");
        assert!(
            (few.recall - of_few).abs() < 0.05 && (many.recall - of_many).abs() < 0.05,
            "{} and {}",
            few.recall,
            many.recall
        );
        let found = many.neighbours.indices.to_vec2::<u32>()?;
        assert!(
            found.iter().enumerate().all(|(i, row)| !row.contains(&(i as u32))),
            "a row is its own neighbour"
        );
        assert_same_bits(
            "distances of a second search",
            &search(4)?.neighbours.distances,
            &many.neighbours.distances,
        )?;
        assert!((share(&search(5)?.neighbours)? - 1.).abs() < 1e-9, "as many probes as cells are exact");
    }
    Ok(())
}

#[test]
fn an_approximate_search_is_for_every_metric() -> Result<()> {
    let rows = normal((5200, 6), &CPU, Philox::new(90, 23))?;
    for device in devices()? {
        let there = rows.to_device(&device)?;
        for metric in Metric::ALL {
            let exact = knn(&there, 10, metric)?;
            let few = knn_approximate(&there, 10, metric, 4, Philox::new(90, 24))?;
            assert!(few.recall > 0.8, "{metric:?} on {:?}: {}", device.location(), few.recall);
            // No row that was found is nearer than the nearest.
            let (found, nearest) =
                (few.neighbours.distances.to_vec2::<f32>()?, exact.distances.to_vec2::<f32>()?);
            for (found, nearest) in found.iter().zip(&nearest) {
                let near =
                    found.iter().zip(nearest).all(|(found, nearest)| found * (1. + 1e-5) + 1e-6 >= *nearest);
                assert!(near, "{metric:?} on {:?}: {found:?} and {nearest:?}", device.location());
            }
        }
    }
    Ok(())
}

#[test]
fn equal_rows_far_from_the_last_block_of_products_are_found_lowest_first() -> Result<()> {
    // Of three blocks of 8,192 rows only the first holds rows that are as near as the last
    // neighbour: more than there are candidates.
    let (n, d, equal, k) = (20_000, 12, 500, 40);
    let mut all = normal((n, d), &CPU, Philox::new(90, 25))?.flatten_all()?.to_vec1::<f32>()?;
    all[..equal * d].fill(5.);
    let rows = Tensor::from_vec(all, (n, d), &CPU)?;
    for device in devices()? {
        for metric in Metric::ALL {
            let found = knn(&rows.to_device(&device)?, k, metric)?;
            let indices = found.indices.narrow(0, 0, equal)?.to_vec2::<u32>()?;
            for (i, indices) in indices.iter().enumerate() {
                let want: Vec<u32> = (0..n as u32).filter(|&j| j as usize != i).take(k).collect();
                assert!(*indices == want, "{metric:?} on {:?}, row {i}: {indices:?}", device.location());
            }
        }
    }
    Ok(())
}

/// The error of a search that must be refused.
fn message(found: Result<chandlery_ops::tsne::Neighbours>) -> String {
    found.err().map_or_else(String::new, |e| e.to_string())
}

#[test]
fn entries_that_are_not_finite_are_refused_with_their_place() -> Result<()> {
    for device in devices()? {
        let mut values = vec![1f32; 40 * 30];
        values[17 * 30 + 4] = f32::NAN;
        values[30 * 30] = f32::INFINITY;
        let rows = Tensor::from_vec(values, (40, 30), &device)?;
        let clean = rows.zeros_like()?;
        for metric in Metric::ALL {
            let error = message(knn(&rows, 3, metric));
            assert!(error.contains("row 17, column 4"), "{metric:?}: {error}");
            let error = message(knn_of(&rows, &clean, 3, metric));
            assert!(error.contains("queries") && error.contains("row 17, column 4"), "{metric:?}: {error}");
        }
    }
    Ok(())
}
