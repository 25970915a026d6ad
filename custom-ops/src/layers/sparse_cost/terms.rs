//! What stands between the products of a pass over the rows of a sparse autoencoder that is too
//! large for one op: the terms of mean activations and parameters, and the figures.
//!
//! ```text
//! sparse_begin_    copy ← theta,      squares ← Σ W² + Σ W'² in parts,   gathered ← 0
//!                  W and W' in lines, or rounded for products in bf16
//! sparsity_pull_   pull ← s/m,        divergence ← Σ KL(ρ‖ρ̂) in parts    ρ̂ = sums/m
//! sparse_figures   J and its terms,   ∂J = of_rows + λ (W, W', 0, 0)
//! ```
//!
//! Symbols are those of the [module above](super). Sums and products are f64, in one order: lane `l`
//! of `N` adds entries `l, l + N, …` from first to last, then the lanes are added in halves; `N` is
//! 256 within a part, and 1024 over all parts. Results are the same bits on CPU and CUDA, but for
//! divergences, whose logarithms round otherwise.
use super::SparseCost;
use super::parameters::{SparseParameters, spans};
use crate::core::check::{expect, expect_layout};
use crate::core::op::{In, Io, Kernel, new_tensor, operands};
use crate::core::real::halves;
use crate::layers::gemm::{Precision, gemm_onto_};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use rayon::prelude::*;

const PULL: &str = "sparsity_pull_";
const FIGURES: &str = "sparse_figures";
const FLOATS: [DType; 2] = [DType::F32, DType::F64];
/// Lanes of the sum of a part, and of that of all parts: those of `kernels/layers/sparse_terms.cu`.
pub(super) const LANES: usize = 256;
const ALL_LANES: usize = 1024;
/// Entries of a segment of the gradient.
const OF_GRADIENT: usize = 8 * ALL_LANES;
/// Entries below which other threads are not worth waking.
pub(super) const GRAIN: usize = 256 * 1024;
/// Most blocks of a gradient that does not lie in lines.
#[cfg(feature = "cuda")]
const BLOCKS: usize = 4096;

/// Parts in which [`sparsity_pull_`] writes the divergence.
pub fn divergence_parts(cost: SparseCost) -> usize {
    cost.n_hidden.div_ceil(LANES)
}

/// `pull ← s/m` and `divergence ←` parts of `Σ KL(ρ‖ρ̂)`, of mean activations `ρ̂ = sums/m`.
///
/// `sums` and `pull` are `[n_hidden]`, each f32 or f64, `divergence` is f64 of [`divergence_parts`]
/// entries, all contiguous; a pull is rounded once. `m` is the number of rows that were summed, at
/// least 1. The pull is the same bits on CPU and CUDA, the divergence the same on one device, and to
/// rounding on both.
///
/// # Errors
/// When shapes, types or devices do not fit, or `m` is 0.
pub fn sparsity_pull_(
    pull: &Tensor,
    divergence: &Tensor,
    sums: &Tensor,
    cost: SparseCost,
    m: usize,
) -> Result<()> {
    check_rows(PULL, m)?;
    for (name, t) in [("sums", sums), ("pull", pull)] {
        expect(PULL, name, t, &FLOATS, &[cost.n_hidden])?;
    }
    expect(PULL, "divergence", divergence, &[DType::F64], &[divergence_parts(cost)])?;
    let op = Pull { cost, m: m as f64, sums: sums.dtype(), pull: pull.dtype() };
    operands(PULL).write("pull", pull).write("divergence", divergence).read("sums", sums).run(&op)
}

/// What the passes over rows have gathered for [`sparse_figures`], each contiguous f64.
#[derive(Debug, Clone)]
pub struct SparseParts {
    /// Sums to `Σ ½ (H − X)²`; of any shape.
    pub losses: Tensor,
    /// Sums to `Σ W² + Σ W'²`; of any shape.
    pub squares: Tensor,
    /// Sums to `Σ KL`; of any shape.
    pub divergence: Tensor,
}

/// `J`, `1/m Σ ½ (H − X)²`, `Σ W² + Σ W'²` and `Σ KL`, `[4]` f64, and `∂J`: `of_rows`, the gradient
/// of all but the decay, with that of the decay added, both rounded once.
///
/// `theta` and `of_rows` are `[n_parameters]`, both f32 or both f64, contiguous; `m` is the number
/// of rows of `parts`, at least 1. The result is two new tensors. The same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, `m` is 0, memory is short, or a step is being recorded.
pub fn sparse_figures(
    parts: &SparseParts,
    theta: &Tensor,
    of_rows: &Tensor,
    cost: SparseCost,
    m: usize,
) -> Result<(Tensor, Tensor)> {
    check_rows(FIGURES, m)?;
    let (n, dtype) = (cost.n_parameters(), theta.dtype());
    expect(FIGURES, "theta", theta, &FLOATS, &[n])?;
    expect(FIGURES, "of_rows", of_rows, &[dtype], &[n])?;
    let gradient = new_tensor(FIGURES, n, dtype, theta.device())?;
    let figures = figures_of(parts, &gradient, Some(theta), OfRows::InOne(of_rows), cost, m)?;
    Ok((figures, gradient))
}

/// [`sparse_figures`] of f32 numbers where the gradient of all but the decay is that of matrices in
/// lines that may lie apart, as products make it whose lines begin on 16 bytes.
///
/// # Errors
/// As [`sparse_figures`].
pub fn sparse_figures_of_lines(
    parts: &SparseParts,
    theta: &Tensor,
    of_rows: &SparseParameters,
    cost: SparseCost,
    m: usize,
) -> Result<(Tensor, Tensor)> {
    check_rows(FIGURES, m)?;
    expect(FIGURES, "theta", theta, &[DType::F32], &[cost.n_parameters()])?;
    let lines = of_rows.check(FIGURES, "of_rows", DType::F32, cost)?;
    let gradient = new_tensor(FIGURES, cost.n_parameters(), DType::F32, theta.device())?;
    let figures = figures_of(parts, &gradient, Some(theta), OfRows::InLines(of_rows, lines), cost, m)?;
    Ok((figures, gradient))
}

/// [`sparse_figures`] of weights whose gradient is still to be made: the decay is added by its
/// products, so that nothing passes over all parameters once more.
///
/// `products` are `(a, b)` whose product `a b` is the gradient of all but the decay by `W`,
/// `[n_hidden, n_visible]`, and by `W'`, `[n_visible, n_hidden]`, as for
/// [`gemm_onto_`](crate::layers::gemm_onto_); `of_biases` is that by `b` and `c`,
/// `[n_hidden + n_visible]`. All else is f32, as in [`sparse_figures`].
///
/// Cost: that of two products, and 8 bytes a parameter.
///
/// # Errors
/// As [`sparse_figures`] and [`gemm_onto_`](crate::layers::gemm_onto_).
pub fn sparse_figures_of_products(
    parts: &SparseParts,
    theta: &Tensor,
    products: [(&Tensor, &Tensor); 2],
    of_biases: &Tensor,
    cost: SparseCost,
    m: usize,
) -> Result<(Tensor, Tensor)> {
    check_rows(FIGURES, m)?;
    let (v, h, n, n_weights) = (cost.n_visible, cost.n_hidden, cost.n_parameters(), cost.n_weights());
    expect(FIGURES, "theta", theta, &[DType::F32], &[n])?;
    expect(FIGURES, "of_biases", of_biases, &[DType::F32], &[h + v])?;
    let gradient = new_tensor(FIGURES, n, DType::F32, theta.device())?;
    for ((a, b), (start, shape)) in products.into_iter().zip([(0, (h, v)), (n_weights, (v, h))]) {
        let of = |t: &Tensor| t.narrow(0, start, n_weights)?.reshape(shape);
        gemm_onto_(&of(&gradient)?, &of(theta)?, a, b, cost.weight_decay, Precision::F32)?;
    }
    let to = gradient.narrow(0, 2 * n_weights, h + v)?;
    let figures = figures_of(parts, &to, None, OfRows::InOne(of_biases), cost, m)?;
    Ok((figures, gradient))
}

/// The gradient of all but the decay: one after the other, or in lines so far from each other.
#[derive(Clone, Copy)]
enum OfRows<'a> {
    InOne(&'a Tensor),
    InLines(&'a SparseParameters, [usize; 2]),
}

/// The figures, and `gradient ← of_rows + λ (W, W', 0, 0)`, without the decay where there is no
/// `theta`.
fn figures_of(
    parts: &SparseParts,
    gradient: &Tensor,
    theta: Option<&Tensor>,
    of_rows: OfRows<'_>,
    cost: SparseCost,
    m: usize,
) -> Result<Tensor> {
    let SparseParts { losses, squares, divergence } = parts;
    for (name, t) in [("losses", losses), ("squares", squares), ("divergence", divergence)] {
        expect_layout(FIGURES, name, t, &[DType::F64])?;
    }
    let figures = new_tensor(FIGURES, super::FIGURES, DType::F64, gradient.device())?;
    let n_weights = if theta.is_some() { 2 * cost.n_weights() } else { 0 };
    let (lines, [in_one, weight, decoder, bias, visible_bias]) = match of_rows {
        OfRows::InOne(of_rows) => (None, [Some(of_rows), None, None, None, None]),
        OfRows::InLines(SparseParameters { weight, decoder_weight, bias, visible_bias }, lines) => {
            (Some(lines), [None, Some(weight), Some(decoder_weight), Some(bias), Some(visible_bias)])
        }
    };
    let (n, dtype) = (gradient.elem_count(), gradient.dtype());
    let op = Figures { cost, n, n_weights, m: m as f64, dtype, lines };
    let io = operands(FIGURES).write("figures", &figures).write("gradient", gradient);
    let io = io.maybe("theta", theta).maybe("of_rows", in_one);
    let io = io.maybe("of_rows.weight", weight).maybe("of_rows.decoder_weight", decoder);
    let io = io.maybe("of_rows.bias", bias).maybe("of_rows.visible_bias", visible_bias);
    io.read("losses", losses).read("squares", squares).read("divergence", divergence).run(&op)?;
    Ok(figures)
}

fn check_rows(op: &str, m: usize) -> Result<()> {
    match m {
        0 => candle::bail!("{op}: m must be at least 1, got 0"),
        _ => Ok(()),
    }
}

/// The sum of `of` in so many lanes.
pub(super) fn sum<const N: usize, T>(values: &[T], of: impl Fn(&T) -> f64) -> f64 {
    let mut lanes = [0f64; N];
    for values in values.chunks(N) {
        lanes.iter_mut().zip(values).for_each(|(lane, x)| *lane += of(x));
    }
    halves(lanes)
}

/// Segments of so many entries of `W`, of `W'`, and of both biases together.
#[cfg(feature = "cuda")]
pub(super) fn segments(cost: SparseCost, entries: usize) -> usize {
    2 * cost.n_weights().div_ceil(entries) + (cost.n_hidden + cost.n_visible).div_ceil(entries)
}

struct Pull {
    cost: SparseCost,
    m: f64,
    sums: DType,
    pull: DType,
}

impl Pull {
    fn run_cpu<S: WithDType, T: WithDType>(&self, pull: &mut [T], divergence: &mut [f64], sums: &[S]) {
        let mean = |sum: &S| sum.to_f64() / self.m;
        for (pull, sum) in pull.iter_mut().zip(sums) {
            *pull = T::from_f64(self.cost.pull(mean(sum)) / self.m);
        }
        for (divergence, sums) in divergence.iter_mut().zip(sums.chunks(LANES)) {
            *divergence = sum::<LANES, _>(sums, |sum| self.cost.divergence(mean(sum)));
        }
    }
}

impl Kernel for Pull {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([pull, divergence], [sums]) = io.parts()?;
        let divergence = divergence.elements::<f64>()?;
        for_float!(self.sums, |S| for_float!(self.pull, |T| {
            self.run_cpu(pull.elements::<T>()?, divergence, sums.elements::<S>()?);
        }));
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([pull, divergence], [sums]) = io.parts()?;
        let mut divergence = divergence.elements::<f64>()?;
        let kernel = format!("sparsity_pull_{}_{}", self.sums.as_str(), self.pull.as_str());
        for_float!(self.sums, |S| for_float!(self.pull, |T| {
            let (mut pull, sums) = (pull.elements::<T>()?, sums.elements::<S>()?);
            let launch = gpu.launch(PULL, "sparse_terms", &kernel)?;
            let launch = launch.write(&mut pull).write(&mut divergence).read(&sums);
            let launch =
                launch.count(self.cost.n_hidden).num(self.m).num(super::cuda::Weighs::of(&self.cost));
            // SAFETY: (T*, double*, const S*, unsigned, double, Weighs): pull and sums hold n_hidden
            // numbers and divergence one for each block, by `sparsity_pull_`; blocks are the kernel's,
            // which waits for the launch before.
            unsafe { launch.blocks(divergence_parts(self.cost), LANES as u32).overlapped().go() }
        }))
    }
}

struct Figures {
    cost: SparseCost,
    n: usize,
    n_weights: usize,
    m: f64,
    dtype: DType,
    /// How far lines of the gradient by `W` and by `W'` are from each other, where it is in lines.
    lines: Option<[usize; 2]>,
}

impl Figures {
    /// What is in lines so far from each other, one after the other.
    fn in_one(&self, lines: [usize; 2], of_rows: [In<'_, CpuStorage>; 4]) -> Result<Vec<f32>> {
        let [weight, decoder, bias, visible_bias] = of_rows;
        let SparseCost { n_visible, n_hidden, .. } = self.cost;
        let mut all = Vec::with_capacity(self.n);
        let matrices = [(weight, n_visible), (decoder, n_hidden)].into_iter().zip(lines);
        for (((matrix, width), line), span) in matrices.zip(spans(self.cost, lines)) {
            let entries = &matrix.all::<f32>()?[matrix.layout()?.start_offset()..][..span];
            entries.chunks(line).for_each(|line| all.extend_from_slice(&line[..width]));
        }
        all.extend_from_slice(bias.elements()?);
        all.extend_from_slice(visible_bias.elements()?);
        Ok(all)
    }

    fn gradient<T: WithDType>(&self, gradient: &mut [T], theta: &[T], of_rows: &[T]) {
        let lambda = self.cost.weight_decay;
        let part = |(i, gradient): (usize, &mut [T])| {
            let start = i * OF_GRADIENT;
            let n_weights = self.n_weights.saturating_sub(start).min(gradient.len());
            let (theta, of_rows) = (theta.get(start..).unwrap_or_default(), &of_rows[start..]);
            let (of_weights, of_biases) = gradient.split_at_mut(n_weights);
            for ((gradient, of_rows), theta) in of_weights.iter_mut().zip(of_rows).zip(theta) {
                *gradient = T::from_f64(of_rows.to_f64() + lambda * theta.to_f64());
            }
            let n = of_biases.len();
            of_biases.copy_from_slice(&of_rows[n_weights..n_weights + n]);
        };
        if self.n < GRAIN {
            gradient.chunks_mut(OF_GRADIENT).enumerate().for_each(part);
        } else {
            gradient.par_chunks_mut(OF_GRADIENT).enumerate().for_each(part);
        }
    }
}

impl Kernel for Figures {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([figures, gradient], [theta, of_rows, weight, decoder, bias, visible_bias, parts @ ..]) =
            io.parts::<2, 9>()?;
        match self.lines {
            Some(lines) => {
                let of_rows = self.in_one(lines, [weight, decoder, bias, visible_bias])?;
                self.gradient(gradient.elements()?, theta.elements::<f32>()?, &of_rows);
            }
            None => for_float!(self.dtype, |T| {
                let theta = theta.maybe::<T>()?.unwrap_or_default();
                self.gradient(gradient.elements()?, theta, of_rows.elements()?);
            }),
        }
        let mut sums = [0.; 3];
        for (to, part) in sums.iter_mut().zip(parts) {
            *to = sum::<ALL_LANES, _>(part.elements::<f64>()?, |&part| part);
        }
        let [errors, weights, divergence] = [sums[0] / self.m, sums[1], sums[2]];
        let value = self.cost.value(errors, weights, divergence);
        figures.elements()?.copy_from_slice(&[value, errors, weights, divergence]);
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        self.n < GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([figures, gradient], [theta, of_rows, weight, decoder, bias, visible_bias, parts @ ..]) =
            io.parts::<2, 9>()?;
        let (mut figures, parts) = (figures.elements::<f64>()?, super::cuda::Parts::of(parts)?);
        let weighs = super::cuda::Weighs::of(&self.cost);
        if let Some(lines) = self.lines {
            let (mut gradient, theta) = (gradient.elements::<f32>()?, theta.elements::<f32>()?);
            let [weight_span, decoder_span] = spans(self.cost, lines);
            let (weight, decoder) = (weight.span::<f32>(weight_span)?, decoder.span::<f32>(decoder_span)?);
            let (bias, visible_bias) = (bias.elements::<f32>()?, visible_bias.elements::<f32>()?);
            let launch = gpu.launch(FIGURES, "sparse_terms", "sparse_figures_lines")?;
            let launch = launch.write(&mut figures).write(&mut gradient).read(&theta);
            let launch = launch.read(&weight).read(&decoder).read(&bias).read(&visible_bias);
            let launch = parts.add(launch);
            let launch = launch.num(self.cost.n_visible).num(self.cost.n_hidden).num(lines[0]).num(lines[1]);
            let launch = launch.num(self.m).num(weighs);
            let blocks = 1 + segments(self.cost, OF_GRADIENT);
            // SAFETY: (double*, float*, 5 × const float*, Parts, 4 × size_t, double, Weighs): figures
            // holds four numbers, and gradient and theta one for each parameter of these sizes, by
            // `sparse_figures_of_lines`; the weights reach to the end of their last lines, biases are
            // n_hidden and n_visible, the parts as many as is said; a block has a segment.
            return unsafe { launch.blocks(blocks, ALL_LANES as u32).go() };
        }
        let kernel = format!("sparse_figures_{}", self.dtype.as_str());
        for_float!(self.dtype, |T| {
            let mut gradient = gradient.elements::<T>()?;
            let (theta, of_rows) = (theta.maybe::<T>()?, of_rows.elements::<T>()?);
            let launch = gpu.launch(FIGURES, "sparse_terms", &kernel)?;
            let launch = launch.write(&mut figures).write(&mut gradient).maybe(&theta).read(&of_rows);
            let launch = parts.add(launch).num(self.n).num(self.n_weights).num(self.m).num(weighs);
            let blocks = 1 + self.n.div_ceil(ALL_LANES).clamp(1, BLOCKS);
            // SAFETY: (double*, T*, 2 × const T*, Parts, 2 × size_t, double, Weighs): figures holds
            // four numbers, and gradient, theta and of_rows n, by the callers of `figures_of`, the
            // parts as many as is said; theta may be null, since then there are no weights.
            unsafe { launch.blocks(blocks, ALL_LANES as u32).go() }
        })
    }
}
