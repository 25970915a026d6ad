//! A search in rows of host memory, of which a device holds some at a time.
//!
//! ```text
//! stretches  rows that follow each other, as many as fit twice beside what their search takes
//! lists      for each stretch of queries the nearest of each stretch of rows, merged
//! recall     of rows that are drawn from all, by an exact search of these
//! ```
//!
//! Each pair of stretches is searched as if they were all there is, so that no cell crosses an end;
//! each stretch goes to the device once for each stretch of queries.
use super::approximate::{ApproximateNeighbours, Recall, SAMPLE};
use super::{Metric, Neighbours, OP, knn_approximate, knn_of, knn_of_approximate, not_finite};
use crate::arrays::gather_rows;
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands};
use crate::core::philox::Philox;
use candle::{CpuStorage, DType, Device, Result, Tensor};
use rayon::prelude::*;

/// Bytes that the search of a pair of stretches takes, in bytes of a stretch: both, joined as they
/// came and as points, and by cell.
const COPIES: u64 = 8;
/// Rows of the shortest stretch, in neighbours of a row.
const SHORTEST: usize = 2;

/// How rows of host memory are searched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamedSearch {
    /// Neighbours of each row.
    pub k: usize,
    /// How rows are compared.
    pub metric: Metric,
    /// The share of the nearest that is wanted, in `(0, 1]`; 1 for an exact search.
    pub recall: f64,
    /// Bytes of the device for stretches, beside the result.
    pub bytes: u64,
}

/// The nearest other rows of each of `rows`, f32 `[n, n_features]` in host memory, found by `device`,
/// which has the result: for rows that do not fit there, see [`knn_approximate`] and
/// [`knn`](super::knn) for those that do. Rows are cut into stretches of which `bytes` hold two with
/// what their search takes, and each pair of stretches is searched as if it were all there is.
///
/// Cost: that of [`knn_of_approximate`] for each pair of stretches, and `128 n² n_features² / bytes`
/// bytes to the device.
///
/// # Errors
/// As [`knn_approximate`], when rows are not in host memory, or `bytes` are too few for a stretch of
/// `2 (k + 1)` rows.
pub fn knn_streamed(
    rows: &Tensor,
    device: &Device,
    search: &StreamedSearch,
    philox: Philox,
) -> Result<ApproximateNeighbours> {
    let &StreamedSearch { k, metric, recall, bytes } = search;
    let (n, d) = matrix(OP, "rows", "[n, n_features]", rows, &[DType::F32])?;
    not_recording(OP, device)?;
    if !rows.device().is_cpu() {
        candle::bail!("{OP}: rows must be in host memory, got {:?}", rows.device().location())
    }
    if k == 0 || k >= n {
        candle::bail!("{OP}: k must be in 1..={} for {n} rows, got {k}", n.saturating_sub(1))
    }
    if !(recall > 0. && recall <= 1.) {
        candle::bail!("{OP}: recall must be above 0 and at most 1, got {recall}")
    }
    check_finite(rows)?;
    let stretches = stretches(n, d, k, bytes)?;
    let picks = if recall < 1. { philox.sample(n, SAMPLE) } else { vec![] };
    let farthest = farthest_of(rows, device, &stretches, &picks, k, metric)?;
    // What a pair of stretches is asked for.
    let mut wanted = recall;
    loop {
        let (neighbours, looked_at) = found(rows, device, &stretches, search, wanted, philox)?;
        let reached = match wanted < 1. {
            true => recall_of(&neighbours, &picks, &farthest, k)?,
            false => Recall::exact(n),
        };
        if reached.mean >= recall || wanted == 1. {
            return Ok(ApproximateNeighbours { neighbours, recall: reached, looked_at });
        }
        wanted = if wanted > 0.99 { 1. } else { 0.5 * (1. + wanted) };
    }
}

/// Where stretches of rows begin, and the end.
fn stretches(n: usize, d: usize, k: usize, bytes: u64) -> Result<Vec<usize>> {
    let of_row = COPIES * 4 * d.next_multiple_of(8).max(8) as u64;
    let most = (bytes / of_row).min(n as u64) as usize;
    let shortest = (SHORTEST * (k + 1)).min(n);
    if most < shortest {
        candle::bail!(
            "{OP}: {shortest} rows of {d} features need {} bytes of the device, got {bytes}; take fewer neighbours than {k}",
            of_row * shortest as u64
        )
    }
    let count = n.div_ceil(most);
    // The last is no shorter than the others by more than a row.
    Ok((0..=count).map(|i| (i as u128 * n as u128 / count as u128) as usize).collect())
}

/// Refuses an entry that is not finite, by its place among all.
fn check_finite(rows: &Tensor) -> Result<()> {
    let (d, numbers) = (rows.dim(1)?.max(1), rows.flatten_all()?);
    let io = operands(OP);
    let first = Tensor::full(-1i64, 1, &Device::Cpu)?;
    io.write("first", &first).read("rows", &numbers).run(&NotFinite)?;
    match usize::try_from(first.get(0)?.to_scalar::<i64>()?) {
        Ok(at) => Err(not_finite("rows", at / d, at % d, numbers.get(at)?.to_scalar()?)),
        Err(_) => Ok(()),
    }
}

struct NotFinite;

impl Kernel for NotFinite {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([first], [rows]) = io.parts()?;
        let at = rows.elements::<f32>()?.par_iter().position_first(|x| !x.is_finite());
        first.elements::<i64>()?.fill(at.map_or(-1, |at| at as i64));
        Ok(())
    }
}

/// All lists, with pairs of stretches searched for a share of their nearest; and the share of rows
/// that were looked at.
fn found(
    rows: &Tensor,
    device: &Device,
    stretches: &[usize],
    search: &StreamedSearch,
    recall: f64,
    philox: Philox,
) -> Result<(Neighbours, f64)> {
    let (n, k, metric) = (rows.dim(0)?, search.k, search.metric);
    let zeros = |dtype| Tensor::zeros((n, k), dtype, device);
    let all = Neighbours { indices: zeros(DType::U32)?, distances: zeros(DType::F32)? };
    let mut looked_at = 0.;
    for own in stretches.windows(2) {
        let queries = stretch(rows, own, device)?;
        let mut nearest: Option<Neighbours> = None;
        for (place, of) in (1..).zip(stretches.windows(2)) {
            let philox = philox.skipped(place << 40);
            let found = match of == own {
                true => knn_approximate(&queries, k, metric, recall, philox)?,
                false => {
                    let rows = stretch(rows, of, device)?;
                    knn_of_approximate(&queries, &rows, k, metric, recall, philox)?
                }
            };
            looked_at += found.looked_at * (own[1] - own[0]) as f64 * (of[1] - of[0]) as f64;
            nearest = Some(match nearest {
                None => found.neighbours,
                Some(nearest) => merge_nearest(&nearest, &found.neighbours, of[0])?,
            });
        }
        if let Some(nearest) = nearest {
            all.indices.slice_set(&nearest.indices, 0, own[0])?;
            all.distances.slice_set(&nearest.distances, 0, own[0])?;
        }
    }
    Ok((all, looked_at / (n as f64).powi(2)))
}

fn stretch(rows: &Tensor, ends: &[usize], device: &Device) -> Result<Tensor> {
    rows.narrow(0, ends[0], ends[1] - ends[0])?.contiguous()?.to_device(device)
}

/// The distance of the `k`-th nearest other row of each of these.
fn farthest_of(
    rows: &Tensor,
    device: &Device,
    stretches: &[usize],
    picks: &[u32],
    k: usize,
    metric: Metric,
) -> Result<Vec<f32>> {
    if picks.is_empty() {
        return Ok(vec![]);
    }
    let queries = gather_rows(rows, picks)?.to_device(device)?;
    let mut all: Vec<Vec<f32>> = vec![vec![]; picks.len()];
    for of in stretches.windows(2) {
        // Itself among them.
        let found = knn_of(&queries, &stretch(rows, of, device)?, (k + 1).min(of[1] - of[0]), metric)?;
        let (indices, distances) = (found.indices.to_vec2::<u32>()?, found.distances.to_vec2::<f32>()?);
        for (((all, pick), indices), distances) in all.iter_mut().zip(picks).zip(indices).zip(distances) {
            let others = indices.into_iter().zip(distances);
            all.extend(others.filter(|&(j, _)| of[0] + j as usize != *pick as usize).map(|(_, d)| d));
        }
    }
    all.iter_mut().for_each(|of| of.sort_by(f32::total_cmp));
    Ok(all.into_iter().map(|of| of[k - 1]).collect())
}

/// How many of what was found for these rows are no farther than their `k`-th nearest.
fn recall_of(found: &Neighbours, picks: &[u32], farthest: &[f32], k: usize) -> Result<Recall> {
    let got = gather_rows(&found.distances, picks)?.to_vec2::<f32>()?;
    let share =
        |(got, &most): (&Vec<f32>, &f32)| got.iter().filter(|&&d| d <= most).count() as f64 / k as f64;
    Ok(Recall::of(&got.iter().zip(farthest).map(share).collect::<Vec<_>>()))
}

/// The `k` nearest of two lists of each query, `[m, k]`, of which the rows of the second are counted
/// from row `first` on; those of the first list come first among equals.
fn merge_nearest(a: &Neighbours, b: &Neighbours, first: usize) -> Result<Neighbours> {
    let ((m, k), device) = (a.indices.dims2()?, a.indices.device());
    for (name, t, dtype) in [
        ("a", &a.indices, DType::U32),
        ("b", &b.indices, DType::U32),
        ("distances of a", &a.distances, DType::F32),
        ("distances of b", &b.distances, DType::F32),
    ] {
        expect(OP, name, t, &[dtype], &[m, k])?;
    }
    let new = |dtype| new_tensor(OP, (m, k), dtype, device);
    let merged = Neighbours { indices: new(DType::U32)?, distances: new(DType::F32)? };
    let io = operands(OP).write("indices", &merged.indices).write("distances", &merged.distances);
    let io = io.read("a", &a.indices).read("distances of a", &a.distances);
    io.read("b", &b.indices).read("distances of b", &b.distances).run(&Merge { m, k, first })?;
    Ok(merged)
}

struct Merge {
    m: usize,
    k: usize,
    first: usize,
}

impl Kernel for Merge {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([indices, distances], [a, of_a, b, of_b]) = io.parts()?;
        let (k, first) = (self.k, self.first as u32);
        let (a, of_a) = (a.elements::<u32>()?.par_chunks(k), of_a.elements::<f32>()?.par_chunks(k));
        let (b, of_b) = (b.elements::<u32>()?.par_chunks(k), of_b.elements::<f32>()?.par_chunks(k));
        let to =
            indices.elements::<u32>()?.par_chunks_mut(k).zip(distances.elements::<f32>()?.par_chunks_mut(k));
        to.zip(a.zip(of_a)).zip(b.zip(of_b)).for_each(|(((indices, distances), (a, of_a)), (b, of_b))| {
            let (mut i, mut j) = (0, 0);
            for (index, distance) in indices.iter_mut().zip(distances) {
                // Both have k, so that neither ends before.
                let from_a = of_a[i] <= of_b[j];
                (*index, *distance) = if from_a { (a[i], of_a[i]) } else { (first + b[j], of_b[j]) };
                if from_a { i += 1 } else { j += 1 }
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([indices, distances], [a, of_a, b, of_b]) = io.parts()?;
        let (mut indices, mut distances) = (indices.elements::<u32>()?, distances.elements::<f32>()?);
        let (a, of_a) = (a.elements::<u32>()?, of_a.elements::<f32>()?);
        let (b, of_b) = (b.elements::<u32>()?, of_b.elements::<f32>()?);
        let launch = gpu.launch(OP, "ranks", "merge_nearest")?.write(&mut indices).write(&mut distances);
        let launch = launch.read(&a).read(&of_a).read(&b).read(&of_b);
        let n = 2 * self.m * self.k;
        // SAFETY: (unsigned*, float*, 2 × (const unsigned*, const float*), size_t, 2 × unsigned): all
        // are [m, k], n is 2 m k.
        unsafe { launch.num(n).count(self.k).count(self.first).linear(n).go() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_fit_and_none_is_much_shorter() -> Result<()> {
        for (n, d, k, bytes) in [(100, 3, 5, 1 << 20), (1001, 16, 5, 100_000), (997, 7, 90, 60_000)] {
            let ends = stretches(n, d, k, bytes)?;
            assert_eq!((ends.first(), ends.last()), (Some(&0), Some(&n)));
            let lengths: Vec<usize> = ends.windows(2).map(|ends| ends[1] - ends[0]).collect();
            let (least, most) = (lengths.iter().min(), lengths.iter().max());
            assert!(
                most.zip(least).is_some_and(|(most, least)| most - least <= 1 && *least > k),
                "{lengths:?}"
            );
            assert!(lengths.iter().all(|&length| (length * d.next_multiple_of(8) * 32) as u64 <= bytes));
        }
        let got = stretches(1000, 8, 10, 1000).map_or_else(|error| error.to_string(), |_| String::new());
        assert!(got.contains("22 rows of 8 features need 5632 bytes of the device, got 1000"), "{got}");
        Ok(())
    }
}
