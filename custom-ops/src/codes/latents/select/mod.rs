//! Which latents are active, from a matrix of pre-activations.
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod keep;
mod width;

use super::types::{FLOATS, on_device, wide_type};
use crate::arrays::elementwise::contiguous;
use crate::codes::SparseCodes;
use crate::core::check::{expect, expect_layout, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use keep::keep;
use width::new_told;

pub use width::CodeWidth;

/// Indices stay below 2^32 with the steps of latents added that a GPU fetches ahead.
const MOST_LATENTS: usize = (1 << 32) - 4096;
/// Entries of a row for which [`active`] has room at first.
const GUESS: usize = 256;
/// Rows of a sample from which a GPU guesses a floor below the threshold of a batch, at least.
const SAMPLE: usize = 512;

/// The `k` largest values of each row of `pre + bias`, those above 0: `k` entries or fewer, in the
/// order of latents. Of equal values the one of the lower latent goes first.
///
/// `pre` is `[batch, n]`, contiguous, f32, f64 or bf16; `bias` `[n]` of the type of the values, f64
/// for f64, else f32, in which the sum is made. With `among`, u32 `[n_among]` in ascending order,
/// other latents do not count. NaN is never chosen.
///
/// Cost: one read of `pre`.
///
/// # Errors
/// When shapes or types do not fit, `k` is 0 or, on the CPU, an entry of `among` names no latent (a
/// GPU passes over it).
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
    let pre = &on_device(pre)?;
    let codes = room(OP, m, width, n, bias)?;
    if m > 0 {
        let io = operands(OP).write("the result", &codes.indices).write("the result", &codes.values);
        let io = io.write("the result", &codes.count).read("pre", pre).read("bias", bias);
        io.maybe("among", among).run(&TopK { n, k: width, dtype: pre.dtype() })?;
    }
    Ok(codes)
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

/// The `count`-th largest value above 0 of all of `pre + bias`, `[1]`; the least value above 0
/// where there are fewer, and infinity where there are none.
///
/// # Errors
/// When shapes or types do not fit, or `count` is 0.
pub fn batch_threshold(pre: &Tensor, bias: &Tensor, count: usize) -> Result<Tensor> {
    const OP: &str = "batch_threshold";
    sizes(OP, pre, bias)?;
    threshold(OP, pre, Some(bias), Rank { count, every: 1, is_coarse: false })
}

/// Which value is looked for.
#[derive(Debug, Clone, Copy)]
struct Rank {
    /// The `count`-th largest value of
    count: usize,
    /// every so many-th row,
    every: usize,
    /// or, on a GPU, a number that is not above it and near.
    is_coarse: bool,
}

fn threshold(op: &'static str, pre: &Tensor, bias: Option<&Tensor>, rank: Rank) -> Result<Tensor> {
    let (m, n) = pre.dims2()?;
    let wide = wide_type(pre.dtype());
    if rank.count == 0 {
        candle::bail!("{op}: count must be at least 1, got 0")
    }
    if m == 0 {
        return Tensor::new(&[f64::INFINITY], pre.device())?.to_dtype(wide);
    }
    let pre = &on_device(pre)?;
    let out = new_tensor(op, 1, wide, pre.device())?;
    let io = operands(op).write("the result", &out).read("pre", pre).maybe("bias", bias);
    io.run(&Threshold { n, rank, dtype: pre.dtype() })?;
    Ok(out)
}

/// The same by a sort of all values.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn batch_threshold_reference(pre: &Tensor, bias: &Tensor, count: usize) -> Result<Tensor> {
    let all = sums(pre, bias)?.flatten_all()?.to_vec1::<f64>()?;
    let mut above: Vec<f64> = all.into_iter().filter(|&v| v > 0.).collect();
    above.sort_by(|a, b| b.total_cmp(a));
    let found = above.get(count - 1).or(above.last()).copied().unwrap_or(f64::INFINITY);
    Tensor::new(&[found], pre.device())?.to_dtype(bias.dtype())
}

/// The values of `pre + bias` that are above `bound`, or with `or_equal` at it: entries in the
/// order of latents, as wide as the row that has most, at least 1.
///
/// `bound` is `[1]`, or `[n]` with one for each latent, of the type of `bias`. Waits for the
/// device, once, to learn how wide codes are; [`CodeWidth::active`] does not.
///
/// Cost: a read of `pre`, and another where a row has more than 256.
///
/// # Errors
/// When shapes or types do not fit.
pub fn active(pre: &Tensor, bias: &Tensor, bound: &Tensor, or_equal: bool) -> Result<SparseCodes> {
    active_of([pre, bias, bound], or_equal, None)
}

/// [`active`] of pre-activations, biases and bounds, without a wait where there is a guess of the
/// width.
fn active_of(
    [pre, bias, bound]: [&Tensor; 3],
    or_equal: bool,
    width: Option<&mut CodeWidth>,
) -> Result<SparseCodes> {
    const OP: &str = "active";
    let [m, n] = sizes(OP, pre, bias)?;
    if bound.dims() != [1] {
        expect(OP, "bound", bound, &[bias.dtype()], &[n])?;
    }
    expect_layout(OP, "bound", bound, &[bias.dtype()])?;
    let pre = &on_device(pre)?;
    if m == 0 {
        return room(OP, 0, 1, n, bias);
    }
    let told = &new_told(pre.device())?;
    if let Some(width) = width.filter(|_| !pre.device().is_cpu()) {
        if let Some(guess) = width.guess() {
            let guess = guess.min(n);
            let codes = listed(OP, [pre, bias, bound], or_equal, guess, &told.narrow(0, 2, 2)?)?;
            width.ask(told, 0, 0, guess)?;
            return Ok(codes);
        }
        let codes = active(pre, bias, bound, or_equal)?;
        width.learn(codes.width());
        return Ok(codes);
    }
    let list = |width: usize| -> Result<(SparseCodes, usize)> {
        let told = new_told(pre.device())?.narrow(0, 0, 2)?;
        let codes = listed(OP, [pre, bias, bound], or_equal, width, &told)?;
        Ok((codes, told.get(0)?.to_scalar::<u32>()? as usize))
    };
    match list(n.min(GUESS))? {
        (codes, most) if most <= codes.width() => narrowed(codes, most),
        (_, most) => Ok(list(most)?.0),
    }
}

/// Those of `pre + bias` that are above their bound, or at it, in rows of `width` entries. Into
/// `told`, two zeros, go the largest count and the sum of counts, of entries that do not fit as
/// well.
fn listed(
    op: &'static str,
    [pre, bias, bound]: [&Tensor; 3],
    or_equal: bool,
    width: usize,
    told: &Tensor,
) -> Result<SparseCodes> {
    let (m, n) = pre.dims2()?;
    let codes = room(op, m, width, n, bias)?;
    let io = operands(op).write("the result", &codes.indices).write("the result", &codes.values);
    let io = io.write("the result", &codes.count).write("told", told).read("pre", pre).read("bias", bias);
    io.read("bound", bound).run(&ListActive { n, or_equal, width, dtype: pre.dtype() })?;
    Ok(codes)
}

/// The `count` largest values above 0 of all of `pre + bias`, and those that equal the least of
/// them: entries of each row in the order of latents, as wide as the row that has most, at least 1;
/// and that least value, as [`batch_threshold`] gives it.
///
/// Types are those of [`top_k`]. Waits for the device, once, to learn how wide codes are;
/// [`CodeWidth::batch_top_k`] does not.
///
/// Cost: on a GPU one read of `pre` and of a sample of its rows, or of all of them where these are
/// few; four to six more where that guesses badly, or a row has four times the mean number and 64
/// more.
///
/// # Errors
/// As [`batch_threshold`].
pub fn batch_top_k(pre: &Tensor, bias: &Tensor, count: usize) -> Result<(SparseCodes, Tensor)> {
    batch_top_k_of(pre, bias, count, None)
}

/// [`batch_top_k`], without a wait where there is a guess of the width.
fn batch_top_k_of(
    pre: &Tensor,
    bias: &Tensor,
    count: usize,
    width: Option<&mut CodeWidth>,
) -> Result<(SparseCodes, Tensor)> {
    const OP: &str = "batch_top_k";
    let [m, n] = sizes(OP, pre, bias)?;
    let wide = n.min(4 * count.div_ceil(m.max(1)) + 64);
    if m > 0 && !pre.device().is_cpu() && wide < n {
        let pre = &on_device(pre)?;
        let told = &new_told(pre.device())?;
        // Most of the values at the floor or above are among those that are wanted. The count of a
        // sample is 4 % off where rows have as many as it comes; a quarter more is enough.
        let every = (m / SAMPLE).max(1);
        let in_sample = if every > 1 { (count / every) * 5 / 4 + 64 } else { count };
        let floor = threshold(OP, pre, Some(bias), Rank { count: in_sample, every, is_coarse: true })?;
        let some = listed(OP, [pre, bias, &floor], true, wide, &told.narrow(0, 0, 2)?)?;
        let cut = threshold(OP, &some.values, None, Rank { count, every: 1, is_coarse: false })?;
        let guess = width.as_ref().and_then(|width| width.guess()).map(|guess| guess.min(wide));
        let to = guess.unwrap_or(wide);
        let codes = keep(&some, &cut, to, &told.narrow(0, 2, 2)?)?;
        match (guess, width) {
            (Some(_), Some(width)) => {
                width.ask(told, wide, count, to)?;
                return Ok((codes, cut));
            }
            (_, width) => {
                let told = told.to_vec1::<u32>()?;
                let &[of_list, all, most, _] = &told[..] else { candle::bail!("{OP}: four numbers") };
                if of_list as usize <= wide && all as usize >= count {
                    if let Some(width) = width {
                        width.learn(most as usize);
                    }
                    return Ok((narrowed(codes, most as usize)?, cut));
                }
            }
        }
    }
    let cut = batch_threshold(pre, bias, count)?;
    Ok((active(pre, bias, &cut, true)?, cut))
}

/// The first `width` entries of each row, at least one.
fn narrowed(codes: SparseCodes, width: usize) -> Result<SparseCodes> {
    let width = width.max(1);
    if width == codes.width() {
        return Ok(codes);
    }
    let of = |t: &Tensor| contiguous(&t.narrow(1, 0, width)?);
    Ok(SparseCodes { indices: of(&codes.indices)?, values: of(&codes.values)?, ..codes })
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
    let rows = sums(pre, bias)?.to_vec2::<f64>()?;
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
        values: Tensor::from_vec(values, (m, width), device)?.to_dtype(bias.dtype())?,
        count: Tensor::from_vec(count, m, device)?,
        n_atoms,
    })
}

/// `pre + bias` in f64, of sums in the type of the bias.
fn sums(pre: &Tensor, bias: &Tensor) -> Result<Tensor> {
    pre.to_dtype(bias.dtype())?.broadcast_add(bias)?.to_dtype(DType::F64)
}

fn sizes(op: &str, pre: &Tensor, bias: &Tensor) -> Result<[usize; 2]> {
    let (m, n) = matrix(op, "pre", "[batch, n_latents]", pre, &FLOATS)?;
    expect(op, "bias", bias, &[wide_type(pre.dtype())], &[n])?;
    if n == 0 || n >= MOST_LATENTS {
        candle::bail!("{op}: there must be 1 to {} latents, got {n}", MOST_LATENTS - 1)
    }
    Ok([m, n])
}

/// Unset codes on the device of `like` and with values of its type.
fn room(op: &'static str, m: usize, width: usize, n_atoms: usize, like: &Tensor) -> Result<SparseCodes> {
    let device = like.device();
    Ok(SparseCodes {
        indices: new_tensor(op, (m, width), DType::U32, device)?,
        values: new_tensor(op, (m, width), like.dtype(), device)?,
        count: new_tensor(op, m, DType::U32, device)?,
        n_atoms,
    })
}

struct TopK {
    n: usize,
    k: usize,
    dtype: DType,
}

struct Threshold {
    n: usize,
    rank: Rank,
    dtype: DType,
}

/// Those above their bounds, or at them, in rows of `width` entries.
struct ListActive {
    n: usize,
    or_equal: bool,
    width: usize,
    dtype: DType,
}

impl Kernel for TopK {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.choose::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_latents!(self.dtype, |T, V| self.launch::<T, V>(gpu, io))
    }
}

impl Kernel for Threshold {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| {
            let ([out], [pre, bias]) = io.parts()?;
            out.elements::<T>()?.fill(self.find::<T>(pre.elements()?, bias.elements()?));
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_latents!(self.dtype, |T, V| self.launch::<T, V>(gpu, io))
    }
}

impl Kernel for ListActive {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.list::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_latents!(self.dtype, |T, V| self.launch::<T, V>(gpu, io))
    }
}
