//! The precision of each row's Gaussian.
use crate::core::check::matrix;
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
/// distances are all equal gets `1 / k`. With several perplexities (at most 8) the result is the
/// mean of their affinities.
///
/// Cost: `O(n · k)` exponentials for each of some 6 steps.
///
/// # Errors
/// When `distances` is not such a matrix, or a perplexity is not in `1..=k`, or a step is being
/// recorded.
pub fn perplexity_search(distances: &Tensor, perplexities: &[f64]) -> Result<Tensor> {
    let (n, k) = matrix(OP, "distances", "[n, k]", distances, &[DType::F32])?;
    if perplexities.is_empty() || perplexities.len() > MOST {
        candle::bail!("{OP}: there must be 1 to {MOST} perplexities, got {}", perplexities.len())
    }
    if let Some(wrong) = perplexities.iter().find(|&&p| !(p >= 1. && p <= k as f64)) {
        candle::bail!("{OP}: a perplexity must be in 1..={k}, the number of neighbours, got {wrong}")
    }
    let p = new_tensor(OP, (n, k), DType::F32, distances.device())?;
    let mut search = Search { n, k, count: perplexities.len(), entropies: [0.; MOST] };
    search.entropies.iter_mut().zip(perplexities).for_each(|(entropy, p)| *entropy = p.ln());
    if n > 0 {
        operands(OP).write("p", &p).read("distances", distances).run(&search)?;
    }
    Ok(p)
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
        let ([p], [distances]) = io.parts()?;
        let rows = distances.elements::<f32>()?.par_chunks(self.k);
        let each = p.elements::<f32>()?.par_chunks_mut(self.k).zip(rows);
        each.for_each_init(Vec::new, |room, (p, distances)| self.row(p, distances, room));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

impl Search {
    /// Writes a row of affinities. The shifted squares are in units of their mean, so that f32
    /// holds them whatever their scale.
    fn row(&self, p: &mut [f32], distances: &[f32], shifted: &mut Vec<f32>) {
        let square = |&d: &f32| f64::from(d) * f64::from(d);
        let least = distances.iter().map(square).fold(f64::INFINITY, f64::min);
        let mean = distances.iter().map(|d| square(d) - least).sum::<f64>() / distances.len() as f64;
        let unit = if mean > 0. { 1. / mean } else { 0. };
        shifted.clear();
        shifted.extend(distances.iter().map(|d| ((square(d) - least) * unit) as f32));
        p.fill(0.);
        for &entropy in &self.entropies[..self.count] {
            let beta = precision(shifted, entropy);
            let scale = 1. / (moments(shifted, beta)[0] * self.count as f64);
            add_weights(p, shifted, beta, scale as f32);
        }
    }
}

/// β for which the entropy of the row is `target`, to [`TOLERANCE`]: Newton's steps in ln β, by
/// which the entropy `H` changes as `−β² var d`, inside the interval that earlier steps left.
fn precision(squares: &[f32], target: f64) -> f32 {
    let (mut low, mut high, mut at) = (f64::NEG_INFINITY, f64::INFINITY, 0f64);
    for _ in 0..STEPS {
        let beta = at.exp();
        let [sum, first, second] = moments(squares, beta as f32);
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

/// Sums of `w`, `w d` and `w d²` with `w = exp(−β d)`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn moments(squares: &[f32], beta: f32) -> [f64; 3] {
    const FUSED: bool = fused!();
    let mut sums = [[0f32; LANES]; 3];
    let (chunks, rest) = squares.as_chunks::<LANES>();
    for d in chunks {
        for l in 0..LANES {
            let w = math::exp(-beta * d[l]);
            sums[0][l] += w;
            sums[1][l] = fma::<f32, FUSED>(w, d[l], sums[1][l]);
            sums[2][l] = fma::<f32, FUSED>(w * d[l], d[l], sums[2][l]);
        }
    }
    for (l, &d) in rest.iter().enumerate() {
        let w = math::exp(-beta * d);
        sums[0][l] += w;
        sums[1][l] += w * d;
        sums[2][l] += w * d * d;
    }
    sums.map(|lanes| lanes.iter().map(|&x| f64::from(x)).sum())
}

/// `p ← p + scale · exp(−β d)`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_weights(p: &mut [f32], squares: &[f32], beta: f32, scale: f32) {
    for (p, d) in p.iter_mut().zip(squares) {
        *p += scale * math::exp(-beta * d);
    }
}
