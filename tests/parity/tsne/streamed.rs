//! Rows of host memory that a device searches in stretches.
use super::CPU;
use candle::{Result, Tensor};
use chandlery::tsne::{TsneConfig, TsneTrainer};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{Metric, StreamedSearch, knn, knn_streamed};
use chandlery_tests::devices;

/// Bytes in which `rows` rows of `d` features are searched at once.
fn bytes(rows: usize, d: usize) -> u64 {
    (rows * d.next_multiple_of(8) * 32) as u64
}

#[test]
fn an_exact_search_in_stretches_finds_what_one_of_all_rows_does() -> Result<()> {
    for (n, d, k, at_once) in [(301, 5, 7, 100), (1000, 33, 20, 190), (700, 64, 90, 350)] {
        let rows = normal((n, d), &CPU, Philox::new(8, 1))?;
        for metric in [Metric::Euclidean, Metric::Cosine, Metric::Manhattan, Metric::Jaccard] {
            let want = knn(&rows, k, metric)?.distances.to_vec2::<f32>()?;
            for device in devices()? {
                let search = StreamedSearch { k, metric, recall: 1., bytes: bytes(at_once, d) };
                let got = knn_streamed(&rows, &device, &search, Philox::new(8, 2))?;
                let what = format!("{n}x{d}, {k}, {metric:?}, {:?}", device.location());
                let distances = got.neighbours.distances.to_vec2::<f32>()?;
                for (i, (got, want)) in distances.iter().zip(&want).enumerate() {
                    for (got, want) in got.iter().zip(want) {
                        assert!(
                            (got - want).abs() <= 1e-6 * (1. + want),
                            "{what}, row {i}: {got} for {want}"
                        );
                    }
                }
                for (i, indices) in got.neighbours.indices.to_vec2::<u32>()?.into_iter().enumerate() {
                    let mut once = indices.clone();
                    once.sort_unstable();
                    once.dedup();
                    assert!(once.len() == k && !once.contains(&(i as u32)), "{what}, row {i}: {indices:?}");
                    assert!(once.iter().all(|&j| (j as usize) < n), "{what}, row {i}: {indices:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_run_over_rows_of_host_memory_is_that_over_rows_of_the_device() -> Result<()> {
    let rows = normal((600, 20), &CPU, Philox::new(9, 1))?;
    let config =
        TsneConfig { iterations: 50, early_iterations: 50, perplexity: 10., ..TsneConfig::default() };
    for device in devices()? {
        let what = format!("{:?}", device.location());
        let whole = TsneTrainer::new(config.clone(), Philox::new(9, 2), &rows.to_device(&device)?)?;
        let streamed =
            |bytes| TsneTrainer::new_streamed(config.clone(), Philox::new(9, 2), &rows, &device, Some(bytes));
        for at_once in [150, 600] {
            let run = streamed(bytes(at_once, 20))?;
            let numbers = |t: &Tensor| t.to_device(&CPU)?.to_vec1::<f32>();
            let columns = |run: &TsneTrainer| run.affinities().columns.to_vec1::<u32>();
            assert_eq!(columns(&run)?, columns(&whole)?, "{what}, {at_once}");
            let (got, want) = (numbers(&run.affinities().values)?, numbers(&whole.affinities().values)?);
            let apart = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
            let largest = want.iter().copied().fold(0., f32::max);
            assert!(apart <= 1e-4 * largest, "{what}, {at_once}: {apart} of {largest}");
            assert!(run.layout()?.device().same_device(&device));
        }
        let few = streamed(1000).map_or_else(|error| error.to_string(), |_| String::new());
        assert!(few.contains("bytes of the device, got 1000"), "{few}");
    }
    Ok(())
}
