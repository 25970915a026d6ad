//! Blocks of samples over all cores.
use super::{OP, Objective};
use crate::core::fused::{fma, fused};
use crate::core::op::Io;
use crate::core::real::{Real, halves};
use candle::{CpuStorage, Result};
use multiversion::multiversion;
use rayon::prelude::*;

/// Classes, and samples, whose sums are in registers at once.
const CLASSES: usize = 5;
const SAMPLES: usize = 2;
/// Bytes of samples that stay in a core's cache between the two products.
const BLOCK: usize = 256 << 10;
/// Parts of the samples that have a gradient of their own, at most.
const PARTS: usize = 64;

/// What a part of the samples gives.
struct Sums<T> {
    loss: f64,
    /// `[padded classes, n_features]`
    weight: Vec<T>,
    bias: Vec<f64>,
}

pub(super) fn run<T: Real, const W: usize>(of: &Objective, io: Io<'_, CpuStorage>) -> Result<()> {
    let ([value, to_weight, to_bias], [x, labels, weight, bias]) = io.parts()?;
    let (x, labels) = (x.elements::<T>()?, labels.elements::<u32>()?);
    let (weight, bias) = (weight.elements::<T>()?, bias.elements::<T>()?);
    let (n, d, n_classes) = (labels.len(), of.n_features, of.n_classes);
    if let Some((row, label)) = labels.iter().enumerate().find(|(_, label)| **label as usize >= n_classes) {
        candle::bail!(
            "{OP}: labels must be below {n_classes}, the number of classes, got {label} in row {row}"
        )
    }
    let padded = n_classes.next_multiple_of(CLASSES);
    let mut wide = vec![T::zero(); padded * d];
    wide[..n_classes * d].copy_from_slice(weight);
    let height = (BLOCK / (d.max(1) * size_of::<T>())).clamp(SAMPLES, 4096) / SAMPLES * SAMPLES;
    // Whole blocks, so that parts are the same on any number of threads.
    let of_part = n.div_ceil(PARTS).next_multiple_of(height);
    let scale = 1. / n as f64;
    let part = |(p, labels): (usize, &[u32])| {
        let mut sums = Sums { loss: 0., weight: vec![T::zero(); padded * d], bias: vec![0.; n_classes] };
        let mut deltas = vec![T::zero(); height * padded];
        for (b, labels) in labels.chunks(height).enumerate() {
            let first = p * of_part + b * height;
            let x = &x[first * d..(first + labels.len()) * d];
            let deltas = &mut deltas[..labels.len() * padded];
            scores::<T, W>(deltas, x, &wide, d, padded);
            for (z, &label) in deltas.chunks_exact_mut(padded).zip(labels) {
                sums.loss += row::<T>(z, bias, label as usize, &mut sums.bias, scale);
            }
            add_products::<T, W>(&mut sums.weight, deltas, x, d, padded);
        }
        sums
    };
    let parts: Vec<Sums<T>> = labels.par_chunks(of_part).enumerate().map(part).collect();
    value.elements::<f64>()?[0] = parts.iter().map(|part| part.loss).sum::<f64>() * scale;
    let total = |j: usize| parts.iter().map(|part| part.bias[j]).sum::<f64>();
    to_bias.elements::<T>()?.iter_mut().enumerate().for_each(|(j, to)| *to = T::from_f64(total(j)));
    let to_weight = to_weight.elements::<T>()?;
    to_weight.fill(T::zero());
    for part in &parts {
        to_weight.iter_mut().zip(&part.weight).for_each(|(to, &of)| *to += of);
    }
    Ok(())
}

/// Replaces products by the derivative times `scale`, adds it to the bias' and returns the loss.
fn row<T: Real>(z: &mut [T], bias: &[T], label: usize, to_bias: &mut [f64], scale: f64) -> f64 {
    let (z, padding) = z.split_at_mut(bias.len());
    padding.fill(T::zero());
    let mut largest = f64::NEG_INFINITY;
    for (z, &b) in z.iter_mut().zip(bias) {
        *z += b;
        largest = largest.max(z.to_f64());
    }
    let of_label = z[label].to_f64() - largest;
    let mut sum = 0.;
    for z in &mut *z {
        let e = (z.to_f64() - largest).exp();
        sum += e;
        *z = T::from_f64(e);
    }
    for (j, (z, to_bias)) in z.iter_mut().zip(to_bias).enumerate() {
        let delta = (z.to_f64() / sum - if j == label { 1. } else { 0. }) * scale;
        *to_bias += delta;
        *z = T::from_f64(delta);
    }
    sum.ln() - of_label
}

/// `z ← x Wᵀ` of some samples, `[_, d]` and `[padded, d]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn scores<T: Real, const W: usize>(z: &mut [T], x: &[T], weight: &[T], d: usize, padded: usize) {
    const FUSED: bool = fused!();
    let rest = d / W * W;
    for (z, x) in z.chunks_mut(SAMPLES * padded).zip(x.chunks(SAMPLES * d.max(1))) {
        // One sample counts twice where there is no second.
        let (x, y) = (&x[..d], &x[x.len() - d..]);
        for first in (0..padded).step_by(CLASSES) {
            let classes = &weight[first * d..][..CLASSES * d];
            let mut sums = products_of::<T, FUSED, W>([x, y], classes, d);
            for (sums, x) in sums.iter_mut().zip([x, y]) {
                for (k, sum) in sums.iter_mut().enumerate() {
                    for at in rest..d {
                        *sum = fma::<T, FUSED>(x[at], classes[k * d + at], *sum);
                    }
                }
            }
            for (z, sums) in z.chunks_mut(padded).zip(sums) {
                z[first..][..CLASSES].copy_from_slice(&sums);
            }
        }
    }
}

/// Products of two samples with five classes, without what is left of a row behind blocks of `W`.
/// The sums are registers, so each has a name.
#[inline(always)]
fn products_of<T: Real, const FUSED: bool, const W: usize>(
    [x, y]: [&[T]; SAMPLES],
    classes: &[T],
    d: usize,
) -> [[T; CLASSES]; SAMPLES] {
    let n = d / W;
    let (x, y) = (&x.as_chunks::<W>().0[..n], &y.as_chunks::<W>().0[..n]);
    let (w0, rest) = classes.split_at(d);
    let (w1, rest) = rest.split_at(d);
    let (w2, rest) = rest.split_at(d);
    let (w3, w4) = rest.split_at(d);
    let (w0, w1, w2) =
        (&w0.as_chunks::<W>().0[..n], &w1.as_chunks::<W>().0[..n], &w2.as_chunks::<W>().0[..n]);
    let (w3, w4) = (&w3.as_chunks::<W>().0[..n], &w4.as_chunks::<W>().0[..n]);
    let zeros = [T::zero(); W];
    let (mut x0, mut x1, mut x2, mut x3, mut x4) = (zeros, zeros, zeros, zeros, zeros);
    let (mut y0, mut y1, mut y2, mut y3, mut y4) = (zeros, zeros, zeros, zeros, zeros);
    for c in 0..n {
        let (x, y) = (x[c], y[c]);
        (x0, y0) = (sum::<T, FUSED, W>(x, w0[c], x0), sum::<T, FUSED, W>(y, w0[c], y0));
        (x1, y1) = (sum::<T, FUSED, W>(x, w1[c], x1), sum::<T, FUSED, W>(y, w1[c], y1));
        (x2, y2) = (sum::<T, FUSED, W>(x, w2[c], x2), sum::<T, FUSED, W>(y, w2[c], y2));
        (x3, y3) = (sum::<T, FUSED, W>(x, w3[c], x3), sum::<T, FUSED, W>(y, w3[c], y3));
        (x4, y4) = (sum::<T, FUSED, W>(x, w4[c], x4), sum::<T, FUSED, W>(y, w4[c], y4));
    }
    [totals(&[x0, x1, x2, x3, x4]), totals(&[y0, y1, y2, y3, y4])]
}

/// The sums of lanes. Inlined, it would have the compiler mix the lanes of several sums before.
#[inline(never)]
fn totals<T: Real, const W: usize>(lanes: &[[T; W]; CLASSES]) -> [T; CLASSES] {
    lanes.map(halves)
}

/// `a · b + rest`. By value: the arrays are registers.
#[inline(always)]
fn sum<T: Real, const FUSED: bool, const W: usize>(a: [T; W], b: [T; W], rest: [T; W]) -> [T; W] {
    let mut sum = [T::zero(); W];
    for i in 0..W {
        sum[i] = fma::<T, FUSED>(a[i], b[i], rest[i]);
    }
    sum
}

/// `out ← out + δᵀ x` of some samples: `[padded, d]`, `[_, padded]` and `[_, d]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_products<T: Real, const W: usize>(out: &mut [T], deltas: &[T], x: &[T], d: usize, padded: usize) {
    const FUSED: bool = fused!();
    let rest = d / (2 * W) * (2 * W);
    let samples = || deltas.chunks_exact(padded).zip(x.chunks_exact(d.max(1)));
    for first in (0..padded).step_by(CLASSES) {
        for at in (0..rest).step_by(2 * W) {
            let mut sums = [[[T::zero(); W]; 2]; CLASSES];
            for (deltas, x) in samples() {
                let (deltas, x) = (&deltas[first..][..CLASSES], &x[at..][..2 * W]);
                for k in 0..CLASSES {
                    for half in 0..2 {
                        for l in 0..W {
                            sums[k][half][l] = fma::<T, FUSED>(deltas[k], x[half * W + l], sums[k][half][l]);
                        }
                    }
                }
            }
            for k in 0..CLASSES {
                let out = &mut out[(first + k) * d + at..][..2 * W];
                for half in 0..2 {
                    for l in 0..W {
                        out[half * W + l] += sums[k][half][l];
                    }
                }
            }
        }
        for (deltas, x) in samples() {
            for k in 0..CLASSES {
                let out = &mut out[(first + k) * d..][..d];
                for at in rest..d {
                    out[at] = fma::<T, FUSED>(deltas[first + k], x[at], out[at]);
                }
            }
        }
    }
}
