//! What passes over the rows of a large sparse autoencoder begin with: the parameters as the passes
//! read them, and their squares; see [`terms`](super::terms) for the rest.
use super::SparseCost;
use super::parameters::SparseParameters;
#[cfg(feature = "cuda")]
use super::parameters::spans;
#[cfg(feature = "cuda")]
use super::terms::segments;
use super::terms::{GRAIN, LANES, sum};
use crate::core::check::{expect, expect_layout};
use crate::core::op::{Io, Kernel, Out, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

const BEGIN: &str = "sparse_begin_";
/// Entries that a block of `kernels/layers/sparse_terms.cu` has in flight.
const ROUND: usize = 16 * LANES;
/// Parts of the squares from which on they are of more rounds: so many are summed in some
/// microseconds, and are enough for every GPU.
const MANY: usize = 8192;

/// Entries of a weight matrix whose squares make one part; the last of a matrix may have fewer.
fn segment(cost: SparseCost) -> usize {
    ROUND * (2 * cost.n_weights()).div_ceil(ROUND * MANY).max(1)
}

/// Parts in which [`sparse_begin_`] writes the squares.
pub fn square_parts(cost: SparseCost) -> usize {
    2 * cost.n_weights().div_ceil(segment(cost))
}

/// What passes begin with: `copy ← theta`, `squares` ← parts of `Σ W² + Σ W'²`, and `gathered ← 0`,
/// to which [`output_loss_`](crate::layers::output_loss_) adds.
///
/// `theta` is `[n_parameters]` f32, laid out as for [`sparse_cost_`](super::sparse_cost_); weights
/// of `copy` are f32, or bf16 rounded to nearest and ties to even; `squares`, of the weights of
/// `theta`, are f64 of [`square_parts`] entries, those of `W` before those of `W'`, `gathered` f64 of
/// any shape, all contiguous. What lies between lines stays as it is. The same bits on CPU and CUDA.
///
/// Cost: reads 4 bytes a parameter and writes 4, or 2.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn sparse_begin_(
    copy: &SparseParameters,
    squares: &Tensor,
    gathered: &Tensor,
    theta: &Tensor,
    cost: SparseCost,
) -> Result<()> {
    let dtype = if copy.weight.dtype() == DType::BF16 { DType::BF16 } else { DType::F32 };
    let lines = copy.check(BEGIN, "copy", dtype, cost)?;
    expect(BEGIN, "theta", theta, &[DType::F32], &[cost.n_parameters()])?;
    expect(BEGIN, "squares", squares, &[DType::F64], &[square_parts(cost)])?;
    expect_layout(BEGIN, "gathered", gathered, &[DType::F64])?;
    let io = operands(BEGIN).write("squares", squares).write("gathered", gathered);
    let io = io.write("copy.weight", &copy.weight).write("copy.decoder_weight", &copy.decoder_weight);
    let io = io.write("copy.bias", &copy.bias).write("copy.visible_bias", &copy.visible_bias);
    io.read("theta", theta).run(&Begin { cost, dtype, lines })
}

struct Begin {
    cost: SparseCost,
    /// Of the weights of the copy.
    dtype: DType,
    /// How far lines of `W` and `W'` are from each other.
    lines: [usize; 2],
}

impl Begin {
    fn in_threads(&self) -> bool {
        self.cost.n_parameters() >= GRAIN
    }

    /// Parts of the squares of `W`, then those of `W'`.
    fn squares(&self, squares: &mut [f64], matrices: [&[f32]; 2]) {
        let (each, segment) = (squares.len() / 2, segment(self.cost));
        let part = |(i, square): (usize, &mut f64)| {
            let (matrix, start) = (matrices[i / each], i % each * segment);
            let weights = &matrix[start..(start + segment).min(matrix.len())];
            *square = sum::<LANES, _>(weights, |&w| f64::from(w) * f64::from(w));
        };
        match self.in_threads() {
            false => squares.iter_mut().enumerate().for_each(part),
            true => squares.par_iter_mut().enumerate().for_each(part),
        }
    }

    /// Copies lines of `width` to those of `out`, so far from each other.
    fn copy<T: WithDType>(
        &self,
        out: Out<'_, CpuStorage>,
        line: usize,
        (weight, width): (&[f32], usize),
        copy: impl Fn(&mut [T], &[f32]) + Sync,
    ) -> Result<()> {
        let start = out.layout().start_offset();
        let span = (weight.len() / width - 1) * line + width;
        let out = &mut out.all::<T>()?[start..][..span];
        let copy = |(out, weight): (&mut [T], &[f32])| copy(&mut out[..width], weight);
        match self.in_threads() {
            false => out.chunks_mut(line).zip(weight.chunks(width)).for_each(copy),
            true => out.par_chunks_mut(line).zip(weight.par_chunks(width)).for_each(copy),
        }
        Ok(())
    }
}

impl Kernel for Begin {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([squares, gathered, weight, decoder, bias, visible_bias], [theta]) = io.parts()?;
        let (n, SparseCost { n_visible, n_hidden, .. }) = (self.cost.n_weights(), self.cost);
        let (weights, biases) = theta.elements::<f32>()?.split_at(2 * n);
        let (of_weight, of_decoder) = weights.split_at(n);
        let matrices = [(weight, (of_weight, n_visible)), (decoder, (of_decoder, n_hidden))];
        for ((to, from), line) in matrices.into_iter().zip(self.lines) {
            match self.dtype {
                DType::BF16 => self.copy::<bf16>(to, line, from, |to, x| to.convert_from_f32_slice(x))?,
                _ => self.copy::<f32>(to, line, from, |to, x| to.copy_from_slice(x))?,
            }
        }
        bias.elements()?.copy_from_slice(&biases[..n_hidden]);
        visible_bias.elements()?.copy_from_slice(&biases[n_hidden..]);
        gathered.elements::<f64>()?.fill(0.);
        self.squares(squares.elements()?, [of_weight, of_decoder]);
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        !self.in_threads()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([squares, gathered, weight, decoder, bias, visible_bias], [theta]) = io.parts()?;
        let [weight_span, decoder_span] = spans(self.cost, self.lines);
        let (mut bias, mut visible_bias) = (bias.elements::<f32>()?, visible_bias.elements::<f32>()?);
        let (mut squares, mut gathered) = (squares.elements::<f64>()?, gathered.elements::<f64>()?);
        let (theta, n_gathered) = (theta.elements::<f32>()?, gathered.len());
        let kernel = format!("sparse_begin_{}", self.dtype.as_str());
        for_type!(self.dtype, [BF16: bf16; f32], |T| {
            let (mut weight, mut decoder) = (weight.span::<T>(weight_span)?, decoder.span::<T>(decoder_span)?);
            let launch = gpu.launch(BEGIN, "sparse_terms", &kernel)?;
            let launch = launch.write(&mut weight).write(&mut decoder);
            let launch = launch.write(&mut bias).write(&mut visible_bias);
            let launch = launch.write(&mut squares).write(&mut gathered).read(&theta);
            let launch = launch.num(self.cost.n_visible).num(self.cost.n_hidden);
            let launch = launch.num(self.lines[0]).num(self.lines[1]).num(n_gathered);
            let launch = launch.count(segment(self.cost));
            let blocks = segments(self.cost, segment(self.cost));
            // SAFETY: (2 × T*, 2 × float*, 2 × double*, const float*, 5 × size_t, unsigned): theta
            // holds the parameters of these sizes and squares one number for each segment of a matrix,
            // the weights reach to the end of their last lines, and biases are n_hidden and n_visible,
            // by `sparse_begin_`; a block has a segment.
            unsafe { launch.blocks(blocks, LANES as u32).go() }
        })
    }
}
