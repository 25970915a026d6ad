//! Which latents are active, from a matrix of pre-activations.
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod keep;

use super::types::{FLOATS, on_device, wide_type};
use crate::arrays::elementwise::contiguous;
use crate::codes::SparseCodes;
use crate::core::check::{expect, expect_layout, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::raise_to_largest_;
use candle::{CpuStorage, DType, Result, Tensor};
use keep::keep;

/// Indices stay below 2^32 with a step of 512 latents added.
const MOST_LATENTS: usize = (1 << 32) - 512;
/// Entries of a row for which [`active`] has room at first.
const GUESS: usize = 256;

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
/// When shapes or types do not fit, `k` is 0 or, on the CPU, an entry of `among` names no latent (a GPU
/// passes over it).
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

/// The `count`-th largest value above 0 of all of `pre + bias`, `[1]`; the least value above 0 where
/// there are fewer, and infinity where there are none.
///
/// # Errors
/// When shapes or types do not fit, or `count` is 0.
pub fn batch_threshold(pre: &Tensor, bias: &Tensor, count: usize) -> Result<Tensor> {
    const OP: &str = "batch_threshold";
    sizes(OP, pre, bias)?;
    threshold(OP, pre, Some(bias), count, false)
}

/// [`batch_threshold`], or, on a GPU, a number that is not above it and near.
fn threshold(
    op: &'static str,
    pre: &Tensor,
    bias: Option<&Tensor>,
    count: usize,
    is_coarse: bool,
) -> Result<Tensor> {
    let (m, n) = pre.dims2()?;
    let wide = wide_type(pre.dtype());
    if count == 0 {
        candle::bail!("{op}: count must be at least 1, got 0")
    }
    if m == 0 {
        return Tensor::new(&[f64::INFINITY], pre.device())?.to_dtype(wide);
    }
    let pre = &on_device(pre)?;
    let out = new_tensor(op, 1, wide, pre.device())?;
    let io = operands(op).write("the result", &out).read("pre", pre).maybe("bias", bias);
    io.run(&Threshold { n, count, is_coarse, dtype: pre.dtype() })?;
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

/// The values of `pre + bias` that are above `bound`, or with `or_equal` at it: entries in the order
/// of latents, as wide as the row that has most, at least 1.
///
/// `bound` is `[1]`, or `[n]` with one for each latent, of the type of `bias`. Waits for the device,
/// once, to learn how wide codes are.
///
/// Cost: a read of `pre`, and another where a row has more than 256.
///
/// # Errors
/// When shapes or types do not fit.
pub fn active(pre: &Tensor, bias: &Tensor, bound: &Tensor, or_equal: bool) -> Result<SparseCodes> {
    const OP: &str = "active";
    let [m, n] = sizes(OP, pre, bias)?;
    if bound.dims() != [1] {
        expect(OP, "bound", bound, &[bias.dtype()], &[n])?;
    }
    expect_layout(OP, "bound", bound, &[bias.dtype()])?;
    let pre = &on_device(pre)?;
    let list = |width: usize| -> Result<(SparseCodes, usize)> {
        let codes = room(OP, m, width, n, bias)?;
        let io = operands(OP).write("the result", &codes.indices).write("the result", &codes.values);
        let io = io.write("the result", &codes.count).read("pre", pre).read("bias", bias);
        io.read("bound", bound).run(&ListActive { n, or_equal, width, dtype: pre.dtype() })?;
        let [most] = most_of([&codes.count])?;
        Ok((codes, most))
    };
    if m == 0 {
        return room(OP, 0, 1, n, bias);
    }
    match list(n.min(GUESS))? {
        (codes, most) if most <= codes.width() => narrowed(codes, most),
        (_, most) => Ok(list(most)?.0),
    }
}

/// The `count` largest values above 0 of all of `pre + bias`, and those that equal the least of
/// them: entries of each row in the order of latents, as wide as the row that has most, at least 1;
/// and that least value, as [`batch_threshold`] gives it.
///
/// Types are those of [`top_k`]. Waits for the device, once, to learn how wide codes are.
///
/// Cost: two reads of `pre` where no row has four times the mean number and 64 more, else four to
/// six.
///
/// # Errors
/// As [`batch_threshold`].
pub fn batch_top_k(pre: &Tensor, bias: &Tensor, count: usize) -> Result<(SparseCodes, Tensor)> {
    const OP: &str = "batch_top_k";
    let [m, n] = sizes(OP, pre, bias)?;
    let width = n.min(4 * count.div_ceil(m.max(1)) + 64);
    if m > 0 && !pre.device().is_cpu() && width < n {
        // Few values beside those wanted are at least as large as the lower end of the digit.
        let floor = threshold(OP, pre, Some(bias), count, true)?;
        let some = room(OP, m, width, n, bias)?;
        let io = operands(OP).write("the result", &some.indices).write("the result", &some.values);
        let io = io.write("the result", &some.count).read("pre", pre).read("bias", bias);
        io.read("bound", &floor).run(&ListActive { n, or_equal: true, width, dtype: pre.dtype() })?;
        let cut = threshold(OP, &some.values, None, count, false)?;
        let codes = keep(&some, 0..n, Some(&cut))?;
        let [all, most] = most_of([&some.count, &codes.count])?;
        if all <= width {
            return Ok((narrowed(codes, most)?, cut));
        }
    }
    let cut = batch_threshold(pre, bias, count)?;
    Ok((active(pre, bias, &cut, true)?, cut))
}

/// The largest of each of these numbers. Waits for the device.
fn most_of<const N: usize>(counts: [&Tensor; N]) -> Result<[usize; N]> {
    let most = Tensor::zeros(N, DType::U32, counts[0].device())?;
    for (i, count) in counts.into_iter().enumerate() {
        raise_to_largest_(&most.narrow(0, i, 1)?, count)?;
    }
    let most = most.to_vec1::<u32>()?;
    Ok(std::array::from_fn(|i| most.get(i).map_or(0, |&most| most as usize)))
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
    count: usize,
    /// Whether the highest digit of its key is enough.
    is_coarse: bool,
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
