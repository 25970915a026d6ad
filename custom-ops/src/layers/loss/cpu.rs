//! The CPU version of `kernels/layers/loss.cu`, with the same sums in the same lanes.
use super::{OutputLoss, OutputLossOp, SoftmaxLoss};
use crate::core::math::{exp, ln, softplus};
use crate::core::op::Io;
use crate::core::real::halves;
use crate::layers::activation::{SIGMOID, activate, through, with_activation};
use candle::{CpuStorage, Result};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;
use rayon::prelude::*;

/// Lanes of a row's sums, by op; the kernels' threads.
const CLASS_LANES: usize = 32;
const OUTPUT_LANES: usize = 128;
/// Elements below which other threads are not worth waking.
pub(super) const GRAIN: usize = 16 * 1024;

impl SoftmaxLoss {
    pub(super) fn run_cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([pre, gathered], [bias, labels]) = io.parts()?;
        let (bias, labels) = (bias.elements::<f32>()?, labels.elements::<u32>()?);
        if let Some((row, label)) = labels.iter().enumerate().find(|(_, label)| **label as usize >= self.n) {
            candle::bail!(
                "softmax_loss_: labels must be below {}, the number of classes, got {label} in row {row}",
                self.n
            )
        }
        let inverse = 1. / self.of as f32;
        let row = |row: usize, x: &mut [f32]| softmax_row(x, bias, labels[row] as usize, inverse);
        gather(gathered.elements()?, each_row(pre.elements()?, self.n, row));
        Ok(())
    }
}

impl OutputLossOp {
    pub(super) fn run_cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out, gathered], [bias, target, pre]) = io.parts()?;
        let (bias, target) = (bias.elements::<f32>()?, target.elements::<f32>()?);
        let n = self.n;
        let (inverse, loss) = (1. / self.of as f32, self.loss);
        let row = |row: usize, x: &mut [f32]| {
            let t = &target[row * n..][..n];
            match loss {
                OutputLoss::SquaredError(f) => {
                    let square = with_activation!(f, squared_row(x, bias, t, inverse));
                    [0.5 * square, square]
                }
                OutputLoss::CrossEntropy => cross_row(x, bias, t, inverse),
            }
        };
        let sums = match self.pre_line {
            None => each_row(out.elements()?, n, row),
            Some(line) => {
                let pre = &pre.all::<f32>()?[pre.layout()?.start_offset()..];
                let start = out.layout().start_offset();
                let out = &mut out.all::<bf16>()?[start..][..self.span(self.out_line)];
                each_row(out, self.out_line, |i, out: &mut [bf16]| {
                    let mut x = pre[i * line..][..n].to_vec();
                    let sums = row(i, &mut x);
                    out[..n].convert_from_f32_slice(&x);
                    sums
                })
            }
        };
        gather(gathered.elements()?, sums);
        Ok(())
    }

    /// Entries from the first of a matrix to its last, by how far its lines are from each other.
    pub(super) fn span(&self, line: usize) -> usize {
        (self.batch - 1) * line + self.n
    }
}

/// Adds the sums of each row to `gathered`, `[2, batch]`.
fn gather(gathered: &mut [f64], sums: Vec<[f64; 2]>) {
    let (first, second) = gathered.split_at_mut(sums.len());
    for ((first, second), sums) in first.iter_mut().zip(second).zip(&sums) {
        *first += sums[0];
        *second += sums[1];
    }
}

/// What `row` gives of each row and its number; rows begin so many entries from each other.
fn each_row<T: Send>(
    x: &mut [T],
    n: usize,
    row: impl Fn(usize, &mut [T]) -> [f64; 2] + Sync,
) -> Vec<[f64; 2]> {
    if x.len() < GRAIN {
        x.chunks_mut(n).enumerate().map(|(i, x)| row(i, x)).collect()
    } else {
        x.par_chunks_mut(n).enumerate().map(|(i, x)| row(i, x)).collect()
    }
}

fn softmax_row(x: &mut [f32], bias: &[f32], label: usize, inverse: f32) -> [f64; 2] {
    let (mut best, mut at) = (f32::NEG_INFINITY, x.len());
    for (j, (x, bias)) in x.iter_mut().zip(bias).enumerate() {
        *x += bias;
        if *x > best {
            (best, at) = (*x, j);
        }
    }
    let mut lanes = [0f32; CLASS_LANES];
    for (j, x) in x.iter().enumerate() {
        lanes[j % CLASS_LANES] += exp(x - best);
    }
    let sum = halves(lanes);
    let hit = if at == label { 1. } else { 0. };
    let of_label = x.get(label).copied().filter(|_| sum >= 1.);
    let Some(of_label) = of_label else {
        x.fill(f32::NAN);
        return [f64::NAN, hit];
    };
    for (j, x) in x.iter_mut().enumerate() {
        let p = exp(*x - best) / sum;
        *x = (p - if j == label { 1. } else { 0. }) * inverse;
    }
    [f64::from(ln(sum) + best - of_label), hit]
}

/// Half-squared distance: returns its double.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn squared_row<const F: u8>(x: &mut [f32], bias: &[f32], target: &[f32], inverse: f32) -> f64 {
    let mut squares = [0f32; OUTPUT_LANES];
    let lines = x.chunks_mut(OUTPUT_LANES).zip(bias.chunks(OUTPUT_LANES)).zip(target.chunks(OUTPUT_LANES));
    for ((x, bias), target) in lines {
        for (((x, bias), t), square) in x.iter_mut().zip(bias).zip(target).zip(&mut squares) {
            let y = activate::<F>(*x + bias);
            let d = y - t;
            *square += d * d;
            *x = through::<F>(d, y) * inverse;
        }
    }
    f64::from(halves(squares))
}

/// Cross-entropy of a row: replaces `x` by its derivative times `inverse`, and returns the loss and
/// the squared error.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn cross_row(x: &mut [f32], bias: &[f32], target: &[f32], inverse: f32) -> [f64; 2] {
    let (mut losses, mut squares) = ([0f32; OUTPUT_LANES], [0f32; OUTPUT_LANES]);
    let lines = x.chunks_mut(OUTPUT_LANES).zip(bias.chunks(OUTPUT_LANES)).zip(target.chunks(OUTPUT_LANES));
    for ((x, bias), target) in lines {
        let sums = losses.iter_mut().zip(&mut squares);
        for (((x, bias), t), (loss, square)) in x.iter_mut().zip(bias).zip(target).zip(sums) {
            let v = *x + bias;
            let d = activate::<SIGMOID>(v) - t;
            *square += d * d;
            *loss += softplus(v) - t * v;
            *x = d * inverse;
        }
    }
    [f64::from(halves(losses)), f64::from(halves(squares))]
}
