//! The precision of each row's Gaussian.
use crate::core::check::{expect, matrix};
use crate::core::fused::{fma, fused};
use crate::core::math;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "perplexity_search";
/// Perplexities of one call: those of `kernels/tsne/affinities.cu`.
pub(super) const MOST: usize = 8;
/// Steps of a search at most; some 6 are usual.
pub(super) const STEPS: usize = 200;
/// How exactly the entropy is met, in nats.
pub(super) const TOLERANCE: f64 = 1e-6;
/// The most that ln β changes in a step.
const LONGEST_STEP: f64 = 3.;
/// The largest ln β that f32 holds. Only where more rows share the least distance than the
/// perplexity asks for is β so large.
const LARGEST: f64 = 88.;
const LANES: usize = 16;

/// The conditional affinities `p_j|i` of each row's neighbours, whose rows sum to 1: f32 `[n, k]`.
///
/// `distances` is a contiguous f32 `[n, k]` of distances, not squared, in any order. The distance
/// of the nearest is subtracted from the squares of a row, so that no row underflows. A row whose
/// distances are all equal gets `1 / k`; where more neighbours share the least distance than the
/// perplexity asks for, these share the row. With several perplexities (at most 8) the result is the
/// mean of their affinities.
///
/// Cost: `O(n · k)` exponentials for each of some 6 steps.
///
/// # Errors
/// When `distances` is not such a matrix, or a perplexity is not in `1..=k`, or a step is being
/// recorded.
pub fn perplexity_search(distances: &Tensor, perplexities: &[f64]) -> Result<Tensor> {
    search(distances, None, perplexities)
}

/// The same for neighbours of which each stands for several at its distance, `counts`, a contiguous
/// f32 `[n, k]` of numbers of at least 0:
///
/// ```text
/// p_j|i = c_ij exp(−β_i d_ij²) / Σ_l c_il exp(−β_i d_il²)   with β_i such that Σ_j −p_j|i ln(p_j|i / c_ij) = ln(perplexity)
/// ```
///
/// `p_j|i` is the affinity of all that `j` stands for; one of count 0 has none.
///
/// # Errors
/// When shapes, types or devices differ from these, a count is out of range, a perplexity is not at
/// least 1, or above the sum of the counts of a row, or a step is being recorded.
pub fn perplexity_search_of_counts(
    distances: &Tensor,
    counts: &Tensor,
    perplexities: &[f64],
) -> Result<Tensor> {
    search(distances, Some(counts), perplexities)
}

fn search(distances: &Tensor, counts: Option<&Tensor>, perplexities: &[f64]) -> Result<Tensor> {
    let (n, k) = matrix(OP, "distances", "[n, k]", distances, &[DType::F32])?;
    if perplexities.is_empty() || perplexities.len() > MOST {
        candle::bail!("{OP}: there must be 1 to {MOST} perplexities, got {}", perplexities.len())
    }
    let most = match counts {
        None => k as f64,
        Some(counts) => least_count(counts, n, k)?,
    };
    if let Some(wrong) = perplexities.iter().find(|&&p| !(p >= 1. && p <= most)) {
        candle::bail!("{OP}: a perplexity must be in 1..={most}, the number of neighbours, got {wrong}")
    }
    let p = new_tensor(OP, (n, k), DType::F32, distances.device())?;
    let mut search = Search { n, k, count: perplexities.len(), entropies: [0.; MOST] };
    search.entropies.iter_mut().zip(perplexities).for_each(|(entropy, p)| *entropy = p.ln());
    if n > 0 {
        operands(OP).write("p", &p).read("distances", distances).maybe("counts", counts).run(&search)?;
    }
    Ok(p)
}

/// The least sum of a row of counts, which are looked at.
fn least_count(counts: &Tensor, n: usize, k: usize) -> Result<f64> {
    expect(OP, "counts", counts, &[DType::F32], &[n, k])?;
    if n == 0 || k == 0 {
        return Ok(if n == 0 { f64::INFINITY } else { 0. });
    }
    let sums = new_tensor(OP, n, DType::F64, counts.device())?;
    operands(OP).write("sums", &sums).read("counts", counts).run(&SumCounts { n, k })?;
    let sums = sums.to_vec1::<f64>()?;
    if let Some(row) = sums.iter().position(|sum| sum.is_nan()) {
        let row = counts.get(row)?.to_vec1::<f32>()?;
        let wrong = row.into_iter().find(|&count| !is_count(count));
        candle::bail!("{OP}: counts must be finite numbers of at least 0, got {}", wrong.unwrap_or(f32::NAN))
    }
    Ok(sums.into_iter().fold(f64::INFINITY, f64::min))
}

fn is_count(count: f32) -> bool {
    count >= 0. && count.is_finite()
}

/// Sums of the rows of counts, f64 `[n]`: NaN where one is none.
#[derive(Debug, Clone, Copy)]
pub(super) struct SumCounts {
    pub n: usize,
    pub k: usize,
}

impl Kernel for SumCounts {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([sums], [counts]) = io.parts()?;
        let of = |&count: &f32| if is_count(count) { f64::from(count) } else { f64::NAN };
        let rows = counts.elements::<f32>()?.par_chunks(self.k);
        let each = sums.elements::<f64>()?.par_iter_mut().zip(rows);
        each.for_each(|(sum, row)| *sum = row.iter().map(of).sum());
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

/// A checked call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    pub n: usize,
    pub k: usize,
    pub count: usize,
    /// Logarithms of the perplexities, `count` of them.
    pub entropies: [f64; MOST],
}

impl Kernel for Search {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([p], [distances, counts]) = io.parts()?;
        let rows = distances.elements::<f32>()?.par_chunks(self.k);
        let each = p.elements::<f32>()?.par_chunks_mut(self.k).zip(rows);
        match counts.maybe::<f32>()? {
            None => each
                .for_each_init(Vec::new, |room, (p, distances)| self.row::<false>(p, distances, &[], room)),
            Some(counts) => {
                each.zip(counts.par_chunks(self.k)).for_each_init(
                    Vec::new,
                    |room, ((p, distances), counts)| {
                        self.row::<true>(p, distances, counts, room);
                    },
                );
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

impl Search {
    /// Writes a row of affinities. The shifted squares are in units of their mean, so that f32
    /// holds them whatever their scale. `COUNTED` says that there are counts.
    fn row<const COUNTED: bool>(
        &self,
        p: &mut [f32],
        distances: &[f32],
        counts: &[f32],
        shifted: &mut Vec<f32>,
    ) {
        let square = |&d: &f32| f64::from(d) * f64::from(d);
        shifted.clear();
        if COUNTED {
            let there = || distances.iter().zip(counts).filter(|&(_, &count)| count > 0.);
            let least = there().map(|(d, _)| square(d)).fold(f64::INFINITY, f64::min);
            let all: f64 = counts.iter().map(|&count| f64::from(count)).sum();
            let sum: f64 = there().map(|(d, &count)| f64::from(count) * (square(d) - least)).sum();
            let unit = if sum > 0. { all / sum } else { 0. };
            // Of none, which may be nearer, nothing is added.
            shifted.extend(distances.iter().map(|d| ((square(d) - least).max(0.) * unit) as f32));
        } else {
            let least = distances.iter().map(square).fold(f64::INFINITY, f64::min);
            let mean = distances.iter().map(|d| square(d) - least).sum::<f64>() / distances.len() as f64;
            let unit = if mean > 0. { 1. / mean } else { 0. };
            shifted.extend(distances.iter().map(|d| ((square(d) - least) * unit) as f32));
        }
        p.fill(0.);
        for &entropy in &self.entropies[..self.count] {
            let beta = precision::<COUNTED>(shifted, counts, entropy);
            let scale = 1. / (moments::<COUNTED>(shifted, counts, beta)[0] * self.count as f64);
            add_weights::<COUNTED>(p, shifted, counts, beta, scale as f32);
        }
    }
}

/// β for which the entropy of the row is `target`, to [`TOLERANCE`]: Newton's steps in ln β, by
/// which the entropy `H` changes as `−β² var d`, inside the interval that earlier steps left.
fn precision<const COUNTED: bool>(squares: &[f32], counts: &[f32], target: f64) -> f32 {
    let (mut low, mut high, mut at) = (f64::NEG_INFINITY, f64::INFINITY, 0f64);
    for _ in 0..STEPS {
        let beta = at.exp();
        let [sum, first, second] = moments::<COUNTED>(squares, counts, beta as f32);
        let mean = first / sum;
        let excess = sum.ln() + beta * mean - target;
        let slope = beta * beta * (second / sum - mean * mean).max(0.);
        if excess.abs() < TOLERANCE || (at == LARGEST && excess > 0.) {
            break;
        }
        if excess > 0. {
            low = at
        } else {
            high = at
        }
        let newton = at + (excess / slope.max(f64::MIN_POSITIVE)).clamp(-LONGEST_STEP, LONGEST_STEP);
        at = if newton > low && newton < high { newton.min(LARGEST) } else { f64::midpoint(low, high) };
    }
    at.exp() as f32
}

/// Sums of `w`, `w d` and `w d²` with `w = exp(−β d)`, times counts where there are any.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn moments<const COUNTED: bool>(squares: &[f32], counts: &[f32], beta: f32) -> [f64; 3] {
    const FUSED: bool = fused!();
    let mut sums = [[0f32; LANES]; 3];
    let (chunks, rest) = squares.as_chunks::<LANES>();
    let (of_chunks, of_rest) = counts.as_chunks::<LANES>();
    for (c, d) in chunks.iter().enumerate() {
        for l in 0..LANES {
            let w = math::exp(-beta * d[l]);
            let w = if COUNTED { of_chunks[c][l] * w } else { w };
            sums[0][l] += w;
            sums[1][l] = fma::<f32, FUSED>(w, d[l], sums[1][l]);
            sums[2][l] = fma::<f32, FUSED>(w * d[l], d[l], sums[2][l]);
        }
    }
    for (l, &d) in rest.iter().enumerate() {
        let w = math::exp(-beta * d);
        let w = if COUNTED { of_rest[l] * w } else { w };
        sums[0][l] += w;
        sums[1][l] += w * d;
        sums[2][l] += w * d * d;
    }
    sums.map(|lanes| lanes.iter().map(|&x| f64::from(x)).sum())
}

/// `p ← p + scale · exp(−β d)`, times counts where there are any.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_weights<const COUNTED: bool>(p: &mut [f32], squares: &[f32], counts: &[f32], beta: f32, scale: f32) {
    if COUNTED {
        for ((p, d), count) in p.iter_mut().zip(squares).zip(counts) {
            *p += scale * count * math::exp(-beta * d);
        }
    } else {
        for (p, d) in p.iter_mut().zip(squares) {
            *p += scale * math::exp(-beta * d);
        }
    }
}
