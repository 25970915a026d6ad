//! Which latents are active, from a matrix of pre-activations.
use crate::codes::SparseCodes;
use crate::core::check::{expect, expect_layout, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::real::Real;
use candle::{CpuStorage, DType, Device, Result, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;
use std::cmp::Ordering;

const FLOATS: [DType; 2] = [DType::F32, DType::F64];
/// Lanes of maxima for each latent that is wanted: the `k`-th largest of them is a bound below which
/// nothing can be chosen, and only a few more than `k` values are not below it.
const LANES: usize = 4;
/// Values that are looked at together.
const GROUP: usize = 64;

/// The `k` largest values of each row of `pre + bias`, those above 0: `k` entries or fewer, in the
/// order of latents. Of equal values the one of the lower latent goes first.
///
/// `pre` is `[batch, n]`, contiguous, f32 or f64; `bias` `[n]` of its type. With `among`, u32
/// `[n_among]` in ascending order, other latents do not count. NaN is never chosen.
///
/// Cost: one read of `pre`.
///
/// # Errors
/// When shapes or types do not fit, `k` is 0, or an entry of `among` names no latent.
pub fn top_k(pre: &Tensor, bias: &Tensor, k: usize, among: Option<&Tensor>) -> Result<SparseCodes> {
    const OP: &str = "top_k";
    let [m, n] = sizes(OP, pre, bias)?;
    if k == 0 {
        candle::bail!("{OP}: k must be at least 1, got 0")
    }
    if let Some(among) = among {
        expect_layout(OP, "among", among, &[DType::U32])?;
    }
    let width = k.min(among.map_or(n, Tensor::elem_count)).max(1);
    on_host(pre, bias, among, |pre, bias, among| {
        let codes = room(OP, m, width, n, pre.dtype())?;
        let io = operands(OP).write("the result", &codes.indices).write("the result", &codes.values);
        let io = io.write("the result", &codes.count).read("pre", pre).read("bias", bias);
        if m > 0 {
            io.maybe("among", among).run(&TopK { n, k: width, dtype: pre.dtype() })?;
        }
        Ok(codes)
    })
}

/// The same by a sort of each row.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn top_k_reference(pre: &Tensor, bias: &Tensor, k: usize, among: Option<&Tensor>) -> Result<SparseCodes> {
    let among = among.map(Tensor::to_vec1::<u32>).transpose()?;
    let chosen = |row: &[f64]| {
        let mut order: Vec<usize> = (0..row.len()).filter(|&j| row[j] > 0.).collect();
        order.retain(|&j| among.as_ref().is_none_or(|among| among.contains(&(j as u32))));
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        order.truncate(k);
        order
    };
    dense_codes(pre, bias, chosen)
}

/// The `count`-th largest value above 0 of all of `pre + bias`, `[1]`; the least value above 0 where
/// there are fewer, and infinity where there are none.
///
/// # Errors
/// When shapes or types do not fit, or `count` is 0.
pub fn batch_threshold(pre: &Tensor, bias: &Tensor, count: usize) -> Result<Tensor> {
    const OP: &str = "batch_threshold";
    let [m, n] = sizes(OP, pre, bias)?;
    if count == 0 {
        candle::bail!("{OP}: count must be at least 1, got 0")
    }
    let device = pre.device();
    let (pre, bias) = (pre.to_device(&Device::Cpu)?, bias.to_device(&Device::Cpu)?);
    let out = new_tensor(OP, 1, pre.dtype(), &Device::Cpu)?;
    let io = operands(OP).write("the result", &out).read("pre", &pre).read("bias", &bias);
    io.run(&Threshold { n, lanes: (LANES * count).div_ceil(m.max(1)), count, dtype: pre.dtype() })?;
    out.to_device(device)
}

/// The same by a sort of all values.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn batch_threshold_reference(pre: &Tensor, bias: &Tensor, count: usize) -> Result<Tensor> {
    let all = pre.broadcast_add(bias)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let mut above: Vec<f64> = all.into_iter().filter(|&v| v > 0.).collect();
    above.sort_by(|a, b| b.total_cmp(a));
    let found = above.get(count - 1).or(above.last()).copied().unwrap_or(f64::INFINITY);
    Tensor::new(&[found], pre.device())?.to_dtype(pre.dtype())
}

/// The values of `pre + bias` that are above `bound`, or with `or_equal` at it: entries in the order
/// of latents, as wide as the row that has most, at least 1.
///
/// `bound` is `[1]`, or `[n]` with one for each latent, of the type of `pre`. Waits for the device.
///
/// # Errors
/// When shapes or types do not fit.
pub fn active(pre: &Tensor, bias: &Tensor, bound: &Tensor, or_equal: bool) -> Result<SparseCodes> {
    const OP: &str = "active";
    let [m, n] = sizes(OP, pre, bias)?;
    if bound.dims() != [1] {
        expect(OP, "bound", bound, &[pre.dtype()], &[n])?;
    }
    expect_layout(OP, "bound", bound, &[pre.dtype()])?;
    on_host(pre, bias, Some(bound), |pre, bias, bound| {
        let of = Above { n, or_equal, dtype: pre.dtype() };
        let count = new_tensor(OP, m, DType::U32, &Device::Cpu)?;
        if m == 0 {
            return room(OP, 0, 1, n, pre.dtype());
        }
        let io = operands(OP).write("the result", &count).read("pre", pre).read("bias", bias);
        io.maybe("bound", bound).run(&CountActive(of))?;
        let width = (count.max(0)?.to_scalar::<u32>()? as usize).max(1);
        let codes = room(OP, m, width, n, pre.dtype())?;
        let io = operands(OP).write("the result", &codes.indices).write("the result", &codes.values);
        let io = io.read("pre", pre).read("bias", bias).maybe("bound", bound);
        io.run(&ListActive(of, width))?;
        Ok(SparseCodes { count, ..codes })
    })
}

/// The same from dense codes.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn active_reference(pre: &Tensor, bias: &Tensor, bound: &Tensor, or_equal: bool) -> Result<SparseCodes> {
    let bound = bound.to_dtype(DType::F64)?.broadcast_as(bias.shape())?.to_vec1::<f64>()?;
    let chosen = |row: &[f64]| {
        let is = |j: &usize| row[*j] > bound[*j] || or_equal && row[*j] == bound[*j];
        (0..row.len()).filter(is).collect()
    };
    dense_codes(pre, bias, chosen)
}

/// Codes of the values that `chosen` names for each row.
fn dense_codes(pre: &Tensor, bias: &Tensor, chosen: impl Fn(&[f64]) -> Vec<usize>) -> Result<SparseCodes> {
    let rows = pre.broadcast_add(bias)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let (m, n_atoms) = pre.dims2()?;
    let mut rows: Vec<(Vec<usize>, Vec<f64>)> = rows.into_iter().map(|row| (chosen(&row), row)).collect();
    let width = rows.iter().map(|(chosen, _)| chosen.len()).max().unwrap_or(0).max(1);
    let (mut indices, mut values, mut count) = (vec![], vec![], vec![]);
    for (chosen, row) in &mut rows {
        chosen.sort_unstable();
        count.push(chosen.len() as u32);
        indices.extend(chosen.iter().map(|&j| j as u32).chain(std::iter::repeat(0)).take(width));
        values.extend(chosen.iter().map(|&j| row[j]).chain(std::iter::repeat(0.)).take(width));
    }
    let device = pre.device();
    Ok(SparseCodes {
        indices: Tensor::from_vec(indices, (m, width), device)?,
        values: Tensor::from_vec(values, (m, width), device)?.to_dtype(pre.dtype())?,
        count: Tensor::from_vec(count, m, device)?,
        n_atoms,
    })
}

fn sizes(op: &str, pre: &Tensor, bias: &Tensor) -> Result<[usize; 2]> {
    let (m, n) = matrix(op, "pre", "[batch, n_latents]", pre, &FLOATS)?;
    expect(op, "bias", bias, &[pre.dtype()], &[n])?;
    if n == 0 || u32::try_from(n).is_err() {
        candle::bail!("{op}: there must be 1 to 2^32 - 1 latents, got {n}")
    }
    Ok([m, n])
}

/// Zeros for codes on the CPU.
fn room(op: &'static str, m: usize, width: usize, n_atoms: usize, dtype: DType) -> Result<SparseCodes> {
    let cpu = &Device::Cpu;
    Ok(SparseCodes {
        indices: new_tensor(op, (m, width), DType::U32, cpu)?,
        values: new_tensor(op, (m, width), dtype, cpu)?,
        count: new_tensor(op, m, DType::U32, cpu)?,
        n_atoms,
    })
}

/// Codes that are chosen on the host, on the device of `pre`.
fn on_host(
    pre: &Tensor,
    bias: &Tensor,
    third: Option<&Tensor>,
    choose: impl FnOnce(&Tensor, &Tensor, Option<&Tensor>) -> Result<SparseCodes>,
) -> Result<SparseCodes> {
    let device = pre.device();
    if device.is_cpu() {
        return choose(pre, bias, third);
    }
    let host = |t: &Tensor| t.to_device(&Device::Cpu);
    let codes = choose(&host(pre)?, &host(bias)?, third.map(host).transpose()?.as_ref())?;
    Ok(SparseCodes {
        indices: codes.indices.to_device(device)?,
        values: codes.values.to_device(device)?,
        count: codes.count.to_device(device)?,
        n_atoms: codes.n_atoms,
    })
}

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

struct TopK {
    n: usize,
    k: usize,
    dtype: DType,
}

impl Kernel for TopK {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.choose::<T>(io))
    }
}

impl TopK {
    fn choose<T: Real>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
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

struct Threshold {
    n: usize,
    /// Lanes of maxima of a row, before they are rounded up.
    lanes: usize,
    count: usize,
    dtype: DType,
}

impl Kernel for Threshold {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| {
            let ([out], [pre, bias]) = io.parts()?;
            out.elements::<T>()?[0] = self.find(pre.elements()?, bias.elements()?);
        });
        Ok(())
    }
}

impl Threshold {
    fn find<T: Real>(&self, pre: &[T], bias: &[T]) -> T {
        let &Self { n, count, .. } = self;
        let lanes = self.lanes.next_multiple_of(GROUP);
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

/// What is above its bound.
#[derive(Clone, Copy)]
struct Above {
    n: usize,
    or_equal: bool,
    dtype: DType,
}

/// A bound for each latent.
fn bounds<T: Real>(bound: &[T], n: usize) -> std::borrow::Cow<'_, [T]> {
    match *bound {
        [bound] => vec![bound; n].into(),
        _ => bound.into(),
    }
}

/// How many of each row are.
struct CountActive(Above);

impl Kernel for CountActive {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let Above { n, or_equal, dtype } = self.0;
        for_float!(dtype, |T| {
            let ([count], [pre, bias, bound]) = io.parts()?;
            let (pre, bias) = (pre.elements::<T>()?, bias.elements::<T>()?);
            let bound = bounds(bound.elements::<T>()?, n);
            let rows = count.elements::<u32>()?.par_iter_mut().zip(pre.par_chunks_exact(n));
            rows.with_min_len(4).for_each_init(Vec::new, |found, (count, pre)| {
                found.clear();
                above(pre, bias, &bound, or_equal, found);
                *count = found.len() as u32;
            });
        });
        Ok(())
    }
}

/// Those of each row, in rows of so many entries.
struct ListActive(Above, usize);

impl Kernel for ListActive {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self(Above { n, or_equal, dtype }, width) = self;
        for_float!(dtype, |T| {
            let ([indices, values], [pre, bias, bound]) = io.parts()?;
            let (pre, bias) = (pre.elements::<T>()?, bias.elements::<T>()?);
            let bound = bounds(bound.elements::<T>()?, n);
            let rows = indices.elements::<u32>()?.par_chunks_exact_mut(width);
            let rows = rows.zip(values.elements::<T>()?.par_chunks_exact_mut(width));
            rows.zip(pre.par_chunks_exact(n)).with_min_len(4).for_each_init(
                Vec::new,
                |found, ((indices, values), pre)| {
                    found.clear();
                    above(pre, bias, &bound, or_equal, found);
                    for ((index, value), &(v, j)) in indices.iter_mut().zip(values).zip(found.iter()) {
                        (*index, *value) = (j, v);
                    }
                },
            );
        });
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
