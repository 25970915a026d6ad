//! Sparse codes as dense rows, and their product with a dictionary: a weighted sum of few atoms per
//! row.
use super::lanes::Real;
use crate::codes::pursuit::codes::Codes;
use crate::core::fused::{fma, fused};
use crate::core::op::Io;
use candle::{CpuStorage, Result, WithDType};
use multiversion::multiversion;
use rayon::prelude::*;

/// Columns that are summed in registers.
const LANES: usize = 64;
/// Signals of a task.
const ROWS: usize = 256;

/// Writes `out`, `[m, n]` zeros, from indices and values.
pub(in crate::codes::pursuit) fn to_dense<T: WithDType>(codes: Codes, io: Io<'_, CpuStorage>) -> Result<()> {
    let ([out], [indices, values]) = io.parts()?;
    let Codes { n, s, .. } = codes;
    let (out, indices, values) = (out.elements::<T>()?, indices.elements::<u32>()?, values.elements::<T>()?);
    codes.check(indices)?;
    if n * s > 0 {
        let codes = indices.par_chunks_exact(s).zip(values.par_chunks_exact(s));
        out.par_chunks_exact_mut(n).zip(codes).for_each(|(out, (indices, values))| {
            // What follows the end of a code names atom 0, with the value 0.
            indices.iter().zip(values).for_each(|(&i, &x)| out[i as usize] += x);
        });
    }
    Ok(())
}

/// Writes `out`, `[m, p]`: `X D`, or `Y − X D` where there are signals.
pub(in crate::codes::pursuit) fn add_rows<T: Real>(
    codes: Codes,
    p: usize,
    io: Io<'_, CpuStorage>,
) -> Result<()> {
    let ([out], [indices, values, dictionary, signals]) = io.parts()?;
    let s = codes.s;
    let (indices, values) = (indices.elements::<u32>()?, values.elements::<T>()?);
    let (dictionary, signals) = (dictionary.elements::<T>()?, signals.maybe::<T>()?);
    codes.check(indices)?;
    out.elements::<T>()?.par_chunks_mut((ROWS * p).max(1)).enumerate().for_each(|(c, out)| {
        for (row, out) in (c * ROWS..).zip(out.chunks_exact_mut(p)) {
            let code = (&indices[row * s..][..s], &values[row * s..][..s]);
            let from = signals.map(|signals| &signals[row * p..][..p]);
            add_atoms(out, from, code, dictionary);
        }
    });
    Ok(())
}

/// `out ← Σ xᵢ dᵢ`, or `from − Σ xᵢ dᵢ`; the entries in their order.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_atoms<T: Real>(
    out: &mut [T],
    from: Option<&[T]>,
    (indices, values): (&[u32], &[T]),
    dictionary: &[T],
) {
    const FUSED: bool = fused!();
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
                sum[lane] = fma::<T, FUSED>(x, atom[lane], sum[lane]);
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
        rest.iter_mut().zip(atom).for_each(|(sum, &d)| *sum = fma::<T, FUSED>(x, d, *sum));
    }
}
