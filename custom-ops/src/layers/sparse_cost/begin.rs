//! What passes over the rows of a large sparse autoencoder begin with: the parameters as the passes
//! read them, and their squares; see [`terms`](super::terms) for the rest.
use super::SparseCost;
#[cfg(feature = "cuda")]
use super::terms::LANES;
use super::terms::{GRAIN, SEGMENT, sum};
use crate::core::check::{expect, expect_layout, lines};
use crate::core::op::{Io, Kernel, Out, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

const BEGIN: &str = "sparse_begin_";
const ROUNDED: &str = "sparse_begin_rounded_";

/// Parts in which [`sparse_begin_`] writes the squares.
pub fn square_parts(cost: SparseCost) -> usize {
    cost.n_parameters().div_ceil(SEGMENT)
}

/// What passes begin with: `copy ← theta`, `squares` ← parts of `Σ W² + Σ W'²`, and `gathered ← 0`,
/// to which [`output_loss_`](crate::layers::output_loss_) adds.
///
/// `copy` and `theta` are `[n_parameters]` f32, laid out as for
/// [`sparse_cost_`](super::sparse_cost_), `squares` is f64 of [`square_parts`] entries, `gathered`
/// f64 of any shape, all contiguous. The same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn sparse_begin_(
    copy: &Tensor,
    squares: &Tensor,
    gathered: &Tensor,
    theta: &Tensor,
    cost: SparseCost,
) -> Result<()> {
    expect(BEGIN, "copy", copy, &[DType::F32], &[cost.n_parameters()])?;
    check(BEGIN, squares, gathered, theta, cost)?;
    let io = operands(BEGIN).write("squares", squares).write("gathered", gathered).write("copy", copy);
    io.read("theta", theta).run(&Begin { cost, lines: None })
}

/// Parameters as passes whose products are of bf16 numbers read them.
#[derive(Debug, Clone)]
pub struct RoundedParameters {
    /// `W`, `[n_hidden, n_visible]` bf16; lines are contiguous and may lie apart.
    pub weight: Tensor,
    /// `W'`, `[n_visible, n_hidden]`, the same.
    pub decoder_weight: Tensor,
    /// `b` and `c` one after the other, `[n_hidden + n_visible]` f32, contiguous.
    pub biases: Tensor,
}

/// [`sparse_begin_`] whose copy has `W` and `W'` rounded to bf16, to nearest and ties to even; the
/// squares are of those of `theta`. The same bits on CPU and CUDA.
///
/// Cost: reads 4 bytes a parameter and writes 2.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn sparse_begin_rounded_(
    copy: &RoundedParameters,
    squares: &Tensor,
    gathered: &Tensor,
    theta: &Tensor,
    cost: SparseCost,
) -> Result<()> {
    let (v, h) = (cost.n_visible, cost.n_hidden);
    let RoundedParameters { weight, decoder_weight, biases } = copy;
    let of_weight = lines(ROUNDED, "copy.weight", weight, &[DType::BF16], [h, v])?;
    let of_decoder = lines(ROUNDED, "copy.decoder_weight", decoder_weight, &[DType::BF16], [v, h])?;
    expect(ROUNDED, "copy.biases", biases, &[DType::F32], &[h + v])?;
    check(ROUNDED, squares, gathered, theta, cost)?;
    let io = operands(ROUNDED).write("squares", squares).write("gathered", gathered);
    let io = io.write("copy.weight", weight).write("copy.decoder_weight", decoder_weight);
    let op = Begin { cost, lines: Some([of_weight, of_decoder]) };
    io.write("copy.biases", biases).read("theta", theta).run(&op)
}

fn check(op: &str, squares: &Tensor, gathered: &Tensor, theta: &Tensor, cost: SparseCost) -> Result<()> {
    expect(op, "theta", theta, &[DType::F32], &[cost.n_parameters()])?;
    expect(op, "squares", squares, &[DType::F64], &[square_parts(cost)])?;
    expect_layout(op, "gathered", gathered, &[DType::F64])
}

struct Begin {
    cost: SparseCost,
    /// How far lines of `W` and `W'` are from each other where they are rounded.
    lines: Option<[usize; 2]>,
}

impl Begin {
    fn n(&self) -> usize {
        self.cost.n_parameters()
    }

    /// Entries of both weight matrices.
    fn n_weights(&self) -> usize {
        2 * self.cost.n_weights()
    }

    /// Entries from the first of `W` and of `W'` to their last.
    fn spans(&self, [of_weight, of_decoder]: [usize; 2]) -> [usize; 2] {
        let SparseCost { n_visible: v, n_hidden: h, .. } = self.cost;
        [(h - 1) * of_weight + v, (v - 1) * of_decoder + h]
    }

    fn in_threads(&self) -> bool {
        self.n() >= GRAIN
    }

    fn squares(&self, squares: &mut [f64], theta: &[f32]) {
        let weights = &theta[..self.n_weights()];
        let part = |(i, square): (usize, &mut f64)| {
            let start = (i * SEGMENT).min(weights.len());
            let weights = &weights[start..(start + SEGMENT).min(weights.len())];
            *square = sum(weights.iter().map(|&w: &f32| f64::from(w) * f64::from(w)));
        };
        match self.in_threads() {
            false => squares.iter_mut().enumerate().for_each(part),
            true => squares.par_iter_mut().enumerate().for_each(part),
        }
    }

    /// Rounds lines of `width` to those of `out`, so far from each other.
    fn round(&self, out: Out<'_, CpuStorage>, line: usize, weight: &[f32], width: usize) -> Result<()> {
        let start = out.layout().start_offset();
        let span = (weight.len() / width - 1) * line + width;
        let out = &mut out.all::<bf16>()?[start..][..span];
        let round = |(out, weight): (&mut [bf16], &[f32])| out[..width].convert_from_f32_slice(weight);
        match self.in_threads() {
            false => out.chunks_mut(line).zip(weight.chunks(width)).for_each(round),
            true => out.par_chunks_mut(line).zip(weight.par_chunks(width)).for_each(round),
        }
        Ok(())
    }
}

impl Kernel for Begin {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let Some([of_weight, of_decoder]) = self.lines else {
            let ([squares, gathered, copy], [theta]) = io.parts()?;
            let theta = theta.elements()?;
            copy.elements::<f32>()?.copy_from_slice(theta);
            gathered.elements::<f64>()?.fill(0.);
            self.squares(squares.elements()?, theta);
            return Ok(());
        };
        let ([squares, gathered, weight, decoder, biases], [theta]) = io.parts()?;
        let (n, SparseCost { n_visible, n_hidden, .. }) = (self.cost.n_weights(), self.cost);
        let theta = theta.elements::<f32>()?;
        self.round(weight, of_weight, &theta[..n], n_visible)?;
        self.round(decoder, of_decoder, &theta[n..2 * n], n_hidden)?;
        biases.elements()?.copy_from_slice(&theta[2 * n..]);
        gathered.elements::<f64>()?.fill(0.);
        self.squares(squares.elements()?, theta);
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        !self.in_threads()
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let blocks = self.n().div_ceil(SEGMENT);
        let Some([of_weight, of_decoder]) = self.lines else {
            let ([squares, gathered, copy], [theta]) = io.parts()?;
            let (mut copy, mut squares) = (copy.elements::<f32>()?, squares.elements::<f64>()?);
            let (mut gathered, theta) = (gathered.elements::<f64>()?, theta.elements::<f32>()?);
            let n_gathered = gathered.len();
            let launch = gpu.launch(BEGIN, "sparse_terms", "sparse_begin_f32")?;
            let launch = launch.write(&mut copy).write(&mut squares).write(&mut gathered).read(&theta);
            let launch = launch.num(self.n()).num(self.n_weights()).num(n_gathered);
            // SAFETY: (float*, 2 × double*, const float*, 3 × size_t): copy and theta hold n numbers
            // and squares one for each segment, by `sparse_begin_`; a block has a segment.
            return unsafe { launch.blocks(blocks, LANES as u32).go() };
        };
        let ([squares, gathered, weight, decoder, biases], [theta]) = io.parts()?;
        let [weight_span, decoder_span] = self.spans([of_weight, of_decoder]);
        let mut weight = weight.span::<bf16>(weight_span)?;
        let mut decoder = decoder.span::<bf16>(decoder_span)?;
        let (mut biases, mut squares) = (biases.elements::<f32>()?, squares.elements::<f64>()?);
        let (mut gathered, theta) = (gathered.elements::<f64>()?, theta.elements::<f32>()?);
        let n_gathered = gathered.len();
        let launch = gpu.launch(ROUNDED, "sparse_terms", "sparse_begin_bf16")?;
        let launch = launch.write(&mut weight).write(&mut decoder).write(&mut biases);
        let launch = launch.write(&mut squares).write(&mut gathered).read(&theta);
        let launch = launch.num(self.cost.n_visible).num(self.cost.n_hidden);
        let launch = launch.num(of_weight).num(of_decoder).num(n_gathered);
        // SAFETY: (2 × bf16*, float*, 2 × double*, const float*, 5 × size_t): theta holds the
        // parameters of these sizes and squares one number for each segment, the weights reach to
        // the end of their last lines, and biases are the rest, by `sparse_begin_rounded_`; a block
        // has a segment.
        unsafe { launch.blocks(blocks, LANES as u32).go() }
    }
}
