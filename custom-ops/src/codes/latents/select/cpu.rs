//! Selection on the CPU.
use super::keep::tell;
use super::{ListActive, Threshold, TopK};
use crate::core::op::Io;
use crate::core::real::Real;
use candle::{CpuStorage, DType, Result};
use multiversion::multiversion;
use rayon::prelude::*;
use std::cmp::Ordering;

/// Lanes of maxima for each latent that is wanted: the `k`-th largest of them is a bound below
/// which nothing can be chosen, and only a few more than `k` values are not below it.
const LANES: usize = 4;
/// Values that are looked at together.
const GROUP: usize = 64;

/// `lanes[l] ← max` of the values at `l, l + lanes.len(), …` of a row, at least 0.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn lane_maxima<T: Real>(pre: &[T], bias: &[T], lanes: &mut [T]) {
    lanes.fill(T::zero());
    let n = lanes.len();
    for (pre, bias) in pre.chunks(n).zip(bias.chunks(n)) {
        for ((lane, &pre), &bias) in lanes.iter_mut().zip(pre).zip(bias) {
            let v = pre + bias;
            *lane = if v > *lane { v } else { *lane };
        }
    }
}

/// Adds the values that are at least `bound`, which is above 0, with their latents.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn collect<T: Real>(pre: &[T], bias: &[T], bound: T, into: &mut Vec<(T, u32)>) {
    for (g, (pre, bias)) in pre.chunks(GROUP).zip(bias.chunks(GROUP)).enumerate() {
        let mut hits = 0u32;
        for (&pre, &bias) in pre.iter().zip(bias) {
            hits += u32::from(pre + bias >= bound);
        }
        if hits > 0 {
            for (l, (&pre, &bias)) in pre.iter().zip(bias).enumerate() {
                if pre + bias >= bound {
                    into.push((pre + bias, (g * GROUP + l) as u32));
                }
            }
        }
    }
}

/// The largest first.
fn falling<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    b.partial_cmp(a).unwrap_or(Ordering::Equal)
}

/// The `k`-th largest of values, and a number above 0 that is not larger where that is 0.
fn bound_of<T: Real>(values: &mut [T], k: usize, least: T) -> T {
    if k > values.len() {
        return least;
    }
    let (_, &mut found, _) = values.select_nth_unstable_by(k - 1, falling);
    if found > least { found } else { least }
}

impl TopK {
    pub(super) fn choose<T: Real>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { n, k, .. } = self;
        let ([indices, values, count], [pre, bias, among]) = io.parts()?;
        let (pre, bias) = (pre.elements::<T>()?, bias.elements::<T>()?);
        let among = among.maybe::<u32>()?;
        if let Some(j) = among.and_then(|among| among.iter().find(|&&j| j as usize >= n)) {
            candle::bail!("top_k: among must name latents below {n}, got {j}")
        }
        let lanes = (LANES * k).next_multiple_of(GROUP);
        let is_filtered = lanes * 4 <= n;
        let rows = indices.elements::<u32>()?.par_chunks_exact_mut(k);
        let rows = rows.zip(values.elements::<T>()?.par_chunks_exact_mut(k)).zip(count.elements::<u32>()?);
        let room = || (vec![T::zero(); if is_filtered { lanes } else { 0 }], Vec::new());
        rows.zip(pre.par_chunks_exact(n)).with_min_len(4).for_each_init(
            room,
            |(lanes, found), (((indices, values), count), pre)| {
                found.clear();
                let least = least::<T>();
                match among {
                    Some(among) => {
                        let value = |&j: &u32| (pre[j as usize] + bias[j as usize], j);
                        found.extend(among.iter().map(value).filter(|(v, _)| *v > T::zero()));
                    }
                    None if is_filtered => {
                        lane_maxima(pre, bias, lanes);
                        collect(pre, bias, bound_of(lanes, k, least), found);
                    }
                    None => collect(pre, bias, least, found),
                }
                if found.len() > k {
                    found.select_nth_unstable_by(k - 1, |a, b| falling(&a.0, &b.0).then(a.1.cmp(&b.1)));
                    found.truncate(k);
                    found.sort_unstable_by_key(|&(_, j)| j);
                }
                *count = found.len() as u32;
                for ((index, value), &(v, j)) in indices.iter_mut().zip(values).zip(found.iter()) {
                    (*index, *value) = (j, v);
                }
            },
        );
        Ok(())
    }
}

/// The least number above 0.
fn least<T: Real>() -> T {
    T::from_f64(if T::DTYPE == DType::F32 { f64::from(f32::from_bits(1)) } else { f64::from_bits(1) })
}

impl Threshold {
    pub(super) fn find<T: Real>(&self, pre: &[T], bias: &[T]) -> T {
        let (n, count) = (self.n, self.rank.count);
        let lanes = (LANES * count).div_ceil(pre.len() / n).next_multiple_of(GROUP);
        let mut bound = least::<T>();
        if lanes * 4 <= n {
            let mut maxima = vec![T::zero(); pre.len() / n * lanes];
            let rows = maxima.par_chunks_exact_mut(lanes).zip(pre.par_chunks_exact(n)).with_min_len(4);
            rows.for_each(|(lanes, pre)| lane_maxima(pre, bias, lanes));
            bound = bound_of(&mut maxima, count, bound);
        }
        let of_rows = pre.par_chunks(n * GROUP).map(|rows| {
            let mut found = Vec::new();
            rows.chunks_exact(n).for_each(|pre| collect(pre, bias, bound, &mut found));
            found.into_iter().map(|(v, _)| v).collect::<Vec<T>>()
        });
        let mut found = of_rows.collect::<Vec<_>>().concat();
        match found.len() {
            0 => T::INFINITY,
            n => *found.select_nth_unstable_by(count.min(n) - 1, falling).1,
        }
    }
}

/// A bound for each latent.
fn bounds<T: Real>(bound: &[T], n: usize) -> std::borrow::Cow<'_, [T]> {
    match *bound {
        [bound] => vec![bound; n].into(),
        _ => bound.into(),
    }
}

impl ListActive {
    pub(super) fn list<T: Real>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { n, or_equal, width, .. } = self;
        let ([indices, values, count, told], [pre, bias, bound]) = io.parts()?;
        let (pre, bias) = (pre.elements::<T>()?, bias.elements::<T>()?);
        let count = count.elements::<u32>()?;
        let bound = bounds(bound.elements::<T>()?, n);
        let rows = indices.elements::<u32>()?.par_chunks_exact_mut(width);
        let rows = rows.zip(values.elements::<T>()?.par_chunks_exact_mut(width));
        let rows = rows.zip(&mut *count).zip(pre.par_chunks_exact(n));
        rows.with_min_len(4).for_each_init(Vec::new, |found, (((indices, values), count), pre)| {
            found.clear();
            above(pre, bias, &bound, or_equal, found);
            *count = found.len() as u32;
            for ((index, value), &(v, j)) in indices.iter_mut().zip(values).zip(found.iter()) {
                (*index, *value) = (j, v);
            }
        });
        tell(told.elements::<u32>()?, count);
        Ok(())
    }
}

/// Adds the values that are above their bounds, with their latents.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn above<T: Real>(pre: &[T], bias: &[T], bound: &[T], or_equal: bool, into: &mut Vec<(T, u32)>) {
    let groups = pre.chunks(GROUP).zip(bias.chunks(GROUP)).zip(bound.chunks(GROUP));
    for (g, ((pre, bias), bound)) in groups.enumerate() {
        let mut hits = 0u32;
        for ((&pre, &bias), &bound) in pre.iter().zip(bias).zip(bound) {
            hits += u32::from(pre + bias >= bound);
        }
        if hits > 0 {
            for (l, ((&pre, &bias), &bound)) in pre.iter().zip(bias).zip(bound).enumerate() {
                let v = pre + bias;
                if v > bound || or_equal && v == bound {
                    into.push((v, (g * GROUP + l) as u32));
                }
            }
        }
    }
}
