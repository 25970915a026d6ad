//! Rows of host memory that are searched in stretches.
use super::inputs::*;
use candle::{Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::tsne::{Metric, StreamedSearch, knn, knn_streamed};

const AT: Philox = Philox::new(5, 17);

/// Bytes in which `rows` rows of `d` features are searched at once.
fn bytes(rows: usize, d: usize) -> u64 {
    (rows * d.next_multiple_of(8) * 32) as u64
}

#[test]
fn an_exact_search_in_stretches_finds_what_one_of_all_rows_does() -> Result<()> {
    for (n, d, k, at_once) in [(300, 5, 7, 300), (301, 5, 7, 100), (500, 33, 20, 60), (90, 3, 29, 60)] {
        let rows = gaussian(n, d, 7)?;
        for metric in Metric::ALL {
            let what = format!("{n}x{d}, {k}, {at_once} at once, {metric:?}");
            let search = StreamedSearch { k, metric, recall: 1., bytes: bytes(at_once, d) };
            let got = knn_streamed(&rows, &Cpu, &search, AT)?;
            let want = knn(&rows, k, metric)?;
            let (distances, all) =
                (got.neighbours.distances.to_vec2::<f32>()?, want.distances.to_vec2::<f32>()?);
            assert_eq!(distances, all, "{what}");
            assert_eq!((got.recall.mean, got.looked_at), (1., 1.), "{what}");
            // Equally far rows may come in another order where f64 tells them apart.
            let sorted = |t: &Tensor| -> Result<Vec<Vec<u32>>> {
                let mut of = t.to_vec2::<u32>()?;
                of.iter_mut().for_each(|of| of.sort_unstable());
                Ok(of)
            };
            if matches!(metric, Metric::Euclidean | Metric::Manhattan) {
                assert_eq!(sorted(&got.neighbours.indices)?, sorted(&want.indices)?, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_search_for_some_of_them_tells_the_share_that_it_found() -> Result<()> {
    const K: usize = 10;
    let rows = low_rank(16_000, 40, 5, 3)?;
    let exact = knn(&rows, K, Metric::Euclidean)?.distances.to_vec2::<f32>()?;
    let search = StreamedSearch { k: K, metric: Metric::Euclidean, recall: 0.9, bytes: bytes(8000, 40) };
    let got = knn_streamed(&rows, &Cpu, &search, AT)?;
    let (indices, distances) =
        (got.neighbours.indices.to_vec2::<u32>()?, got.neighbours.distances.to_vec2::<f32>()?);
    let mut right = 0;
    for (i, (indices, distances)) in indices.iter().zip(&distances).enumerate() {
        let mut once = indices.clone();
        once.sort_unstable();
        once.dedup();
        assert!(once.len() == K && !once.contains(&(i as u32)), "row {i}: {indices:?}");
        assert!(distances.is_sorted(), "row {i}: {distances:?}");
        right += distances.iter().filter(|&&d| d <= exact[i][K - 1]).count();
    }
    let share = right as f64 / (16_000 * K) as f64;
    let [low, high] = got.recall.interval;
    assert!(got.recall.mean >= 0.9 && got.looked_at < 0.7, "{:?}, {}", got.recall, got.looked_at);
    assert!((2. * low - high..=2. * high - low).contains(&share), "{share}, {:?}", got.recall);
    let again = knn_streamed(&rows, &Cpu, &search, AT)?;
    assert_eq!(again.neighbours.indices.to_vec2::<u32>()?, indices);
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let search = StreamedSearch { k: 3, metric: Metric::Euclidean, recall: 1., bytes: bytes(50, 4) };
    let message = |rows: &Tensor, search: StreamedSearch| {
        knn_streamed(rows, &Cpu, &search, AT).map_or_else(|error| error.to_string(), |_| String::new())
    };
    let rows = gaussian(100, 4, 1)?;
    let mut bad = rows.to_vec2::<f32>()?;
    (bad[77][2], bad[90][0]) = (f32::NAN, f32::INFINITY);
    for (got, want) in [
        (message(&Tensor::new(bad, &Cpu)?, search), "rows must be finite, got NaN in row 77, column 2"),
        (message(&rows, StreamedSearch { k: 100, ..search }), "k must be in 1..=99 for 100 rows, got 100"),
        (
            message(&rows, StreamedSearch { recall: 0., ..search }),
            "recall must be above 0 and at most 1, got 0",
        ),
        (message(&rows, StreamedSearch { bytes: 2000, ..search }), "8 rows of 4 features need 2048 bytes"),
    ] {
        assert!(got.contains(want), "{got}");
    }
    Ok(())
}
