//! What sparse codes stand for: few rows of the dictionary, added.
use super::lanes::{Of, Real, fma, has_fused};
use crate::host::Operand;
use crate::pursuit::SparseCodes;
use candle::{DType, Device, Result, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// Columns that are summed in registers.
const LANES: usize = 64;
/// Signals of a task.
const ROWS: usize = 256;

/// `X D`, or `Y − X D` where `signals` are given; shapes, types and device were checked.
pub(in crate::pursuit) fn combine(
    op: &'static str,
    codes: &SparseCodes,
    dictionary: &Tensor,
    signals: Option<&Tensor>,
) -> Result<Tensor> {
    match dictionary.dtype() {
        DType::F64 => run::<f64>(op, codes, dictionary, signals),
        _ => run::<f32>(op, codes, dictionary, signals),
    }
}

fn run<T: Real>(
    op: &'static str,
    codes: &SparseCodes,
    dictionary: &Tensor,
    signals: Option<&Tensor>,
) -> Result<Tensor> {
    let ((m, s), (n, p)) = (codes.indices.dims2()?, dictionary.dims2()?);
    let (indices, values) = (codes.indices.contiguous()?, codes.values.contiguous()?);
    let (dictionary, signals) = (dictionary.contiguous()?, signals.map(Tensor::contiguous).transpose()?);
    let mut out = vec![T::zero(); m * p];
    {
        let (indices, values, dictionary) =
            (Operand::new(&indices), Operand::new(&values), Operand::new(&dictionary));
        let signals = signals.as_ref().map(Operand::new);
        let (indices, values) = (indices.elements::<u32>(op)?, values.elements::<T>(op)?);
        let (dictionary, signals) = (
            dictionary.elements::<T>(op)?,
            signals.as_ref().map(|signals| signals.elements::<T>(op)).transpose()?,
        );
        if let Some(bad) = indices.iter().find(|&&i| i as usize >= n) {
            candle::bail!("{op}: indices must be below {n}, the number of atoms, got {bad}")
        }
        let fused = has_fused();
        out.par_chunks_mut((ROWS * p).max(1)).enumerate().for_each(|(c, out)| {
            for (row, out) in (c * ROWS..).zip(out.chunks_exact_mut(p)) {
                let code = (&indices[row * s..][..s], &values[row * s..][..s]);
                let from = signals.map(|signals| &signals[row * p..][..p]);
                match fused {
                    true => add_atoms::<T, Of<false, false, true>>(out, from, code, dictionary),
                    false => add_atoms::<T, Of<false, false, false>>(out, from, code, dictionary),
                }
            }
        });
    }
    Tensor::from_vec(out, (m, p), &Device::Cpu)
}

/// `out ← Σ xᵢ dᵢ`, or `from − Σ xᵢ dᵢ`; the entries in their order.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn add_atoms<T: Real, K: super::Kind>(
    out: &mut [T],
    from: Option<&[T]>,
    (indices, values): (&[u32], &[T]),
    dictionary: &[T],
) {
    let p = out.len();
    let sign = if from.is_some() { -T::one() } else { T::one() };
    let (blocks, rest) = out.as_chunks_mut::<LANES>();
    for (b, out) in blocks.iter_mut().enumerate() {
        let mut sum = [T::zero(); LANES];
        if let Some(from) = from {
            sum.copy_from_slice(&from[b * LANES..][..LANES]);
        }
        for (&i, &x) in indices.iter().zip(values) {
            let (x, atom) = (sign * x, &dictionary[i as usize * p + b * LANES..][..LANES]);
            for lane in 0..LANES {
                sum[lane] = fma::<T, K>(x, atom[lane], sum[lane]);
            }
        }
        *out = sum;
    }
    let start = p - rest.len();
    if let Some(from) = from {
        rest.copy_from_slice(&from[start..]);
    }
    for (&i, &x) in indices.iter().zip(values) {
        let (x, atom) = (sign * x, &dictionary[i as usize * p + start..][..rest.len()]);
        rest.iter_mut().zip(atom).for_each(|(sum, &d)| *sum = fma::<T, K>(x, d, *sum));
    }
}
