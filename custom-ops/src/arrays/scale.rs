//! Conversion of stored rows to the numbers that a model reads.
use crate::core::check::{expect_dtype, expect_layout};
use crate::core::op::{In, Io, Kernel, Out, operands};
use candle::{CpuStorage, DType, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;

/// Elements that one task of the CPU twin handles.
const CHUNK: usize = 16 * 1024;

/// `out ← scale · x`, from the stored type of `x` to the type of `out`.
///
/// `x` is u8 or f32, `out` f32, bf16 or f16, both contiguous and of the same shape; `out` may also be
/// some columns of a wider matrix. `scale` is 1/255 for bytes that represent `[0, 1]`, and 1 for
/// numbers. The 16-bit types are rounded to nearest, ties to even.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn scale_into_(out: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    if out.dims() != x.dims() {
        candle::bail!("scale_into_: x must have the shape of out {:?}, got {:?}", out.dims(), x.dims())
    }
    if !matches!(x.dtype(), DType::U8 | DType::F32)
        || !matches!(out.dtype(), DType::F32 | DType::BF16 | DType::F16)
    {
        candle::bail!(
            "scale_into_: x must be u8 or f32 and out f32, bf16 or f16, got {:?} and {:?}",
            x.dtype(),
            out.dtype()
        )
    }
    let Some(runs) = Runs::of(out.dims(), out.stride()).filter(|_| x.is_contiguous()) else {
        candle::bail!(
            "scale_into_: x and out must be contiguous, got strides {:?} and {:?}",
            x.stride(),
            out.stride()
        )
    };
    run(out, x, scale, None, runs)
}

/// The same computed with candle's own ops; returns a new f32 tensor.
///
/// # Errors
/// When candle cannot convert `x`.
pub fn scale_into_reference(x: &Tensor, scale: f32) -> Result<Tensor> {
    x.to_dtype(DType::F32)?.affine(f64::from(scale), 0.)
}

/// `scale · x` as the sum of two f16 numbers: `out[0] ← f16(scale x)`,
/// `out[1] ← f16(scale x − out[0])`.
///
/// `x` is contiguous u8 or f32 and `out` f16 of shape `[2, ..x]`, each of the two contiguous, or
/// some columns of a wider matrix. The sum is within 2⁻²² of `scale x` where that is between 2⁻² and
/// 65,504, and within 3e-8 below.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn split_into_(out: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    const OP: &str = "split_into_";
    expect_layout(OP, "x", x, &[DType::U8, DType::F32])?;
    let runs = match (out.dims(), out.stride()) {
        ([2, dims @ ..], [_, stride @ ..]) if dims == x.dims() => Runs::of(dims, stride),
        _ => None,
    };
    let runs = match runs.filter(|runs| runs.n > 1) {
        Some(runs) => {
            expect_dtype(OP, "out", out, &[DType::F16])?;
            expect_apart(OP, out, runs.span())?;
            runs
        }
        None => {
            check_parts(OP, out, x.dims())?;
            Runs::whole(x.elem_count())
        }
    };
    run(out, x, scale, Some(out.stride()[0]), runs)
}

/// Stretches of a result without gaps: `n` of `len` entries, the next begins `apart` entries
/// further on.
#[derive(Debug, Clone, Copy)]
struct Runs {
    n: usize,
    len: usize,
    apart: usize,
}

impl Runs {
    /// All in one.
    fn whole(len: usize) -> Self {
        Self { n: 1, len, apart: len }
    }

    /// Those of a contiguous tensor, or of some columns of a matrix.
    fn of(dims: &[usize], stride: &[usize]) -> Option<Self> {
        let len: usize = dims.iter().product();
        if Shape::from(dims).is_contiguous(stride) {
            return Some(Self::whole(len));
        }
        match (dims, stride) {
            (&[n, width], &[apart, 1]) if apart >= width && len > 0 => Some(Self { n, len: width, apart }),
            _ => None,
        }
    }

    /// Entries from the first of all to the last.
    fn span(self) -> usize {
        (self.n - 1) * self.apart + self.len
    }

    /// Entries of a task of the CPU: of the result, and of what it is made of.
    fn chunks(self) -> (usize, usize) {
        match self.n {
            1 => (CHUNK, CHUNK),
            _ => (self.apart, self.len),
        }
    }
}

/// Checks that `out` is f16 `[2, ..shape]`, each of the two contiguous.
pub(crate) fn check_parts(op: &str, out: &Tensor, shape: &[usize]) -> Result<()> {
    if out.dtype() != DType::F16 || out.dims().split_first() != Some((&2, shape)) {
        let (dtype, got) = (out.dtype(), out.dims());
        candle::bail!("{op}: out must be F16 of shape [2, ..{shape:?}], got {dtype:?} {got:?}")
    }
    // Not `get`, which copies what is not contiguous.
    if !out.narrow(0, 0, 1)?.is_contiguous() {
        candle::bail!("{op}: each part of out must be contiguous, got strides {:?}", out.stride())
    }
    expect_apart(op, out, shape.iter().product())
}

/// Refuses parts that share memory, on every device: each reaches over `span` entries.
pub(crate) fn expect_apart(op: &str, out: &Tensor, span: usize) -> Result<()> {
    if out.stride()[0] < span {
        candle::bail!(
            "{op}: the parts of out must be at least {span} entries apart, got strides {:?}",
            out.stride()
        )
    }
    Ok(())
}

/// Both parts of what [`check_parts`] saw, of `n` entries each.
pub(crate) fn parts_of<'a>(
    op: &str,
    out: Out<'a, CpuStorage>,
    part: usize,
    n: usize,
) -> Result<[&'a mut [f16]; 2]> {
    let start = out.layout().start_offset();
    let parts = [start..start + n, start + part..start + part + n];
    let found = out.all::<f16>()?.get_disjoint_mut(parts);
    found.map_err(|_| candle::Error::Msg(format!("{op}: the parts of out overlap")))
}

/// `part` is how far on the second part begins, where there are two.
fn run(out: &Tensor, x: &Tensor, scale: f32, part: Option<usize>, runs: Runs) -> Result<()> {
    let op = Scale { scale, part, from: x.dtype(), to: out.dtype(), runs };
    operands(op.name()).write("out", out).read("x", x).run(&op)
}

/// Both ops: `scale · x` rounded to the type of `out`, or split into two f16 numbers.
struct Scale {
    scale: f32,
    part: Option<usize>,
    from: DType,
    to: DType,
    runs: Runs,
}

impl Scale {
    fn name(&self) -> &'static str {
        if self.part.is_some() { "split_into_" } else { "scale_into_" }
    }

    fn run_cpu<T: WithDType>(
        &self,
        out: Out<'_, CpuStorage>,
        x: In<'_, CpuStorage>,
        wide: impl Fn(T) -> f32 + Sync,
    ) -> Result<()> {
        let x = x.elements::<T>()?;
        let scaled = |x| wide(x) * self.scale;
        match (self.part, self.to) {
            (Some(part), _) => {
                let (to, from) = self.runs.chunks();
                let [high, low] = parts_of(self.name(), out, part, self.runs.span())?;
                self.convert(high, x, |x| f16::from_f32(scaled(x)));
                let pairs = low.par_chunks_mut(to).zip(high.par_chunks(to)).zip(x.par_chunks(from));
                pairs.for_each(|((low, high), x)| {
                    for ((low, high), &x) in low.iter_mut().zip(high).zip(x) {
                        *low = f16::from_f32(scaled(x) - high.to_f32());
                    }
                });
            }
            (None, DType::BF16) => self.convert(self.all(out)?, x, |x| bf16::from_f32(scaled(x))),
            (None, DType::F16) => self.convert(self.all(out)?, x, |x| f16::from_f32(scaled(x))),
            (None, _) => self.convert(self.all(out)?, x, scaled),
        }
        Ok(())
    }

    /// The result from its first entry to its last.
    fn all<'a, U: WithDType>(&self, out: Out<'a, CpuStorage>) -> Result<&'a mut [U]> {
        let start = out.layout().start_offset();
        Ok(&mut out.all::<U>()?[start..][..self.runs.span()])
    }

    fn convert<T: Copy + Sync, U: Send>(&self, out: &mut [U], x: &[T], f: impl Fn(T) -> U + Sync) {
        let (to, from) = self.runs.chunks();
        out.par_chunks_mut(to).zip(x.par_chunks(from)).for_each(|(out, x)| {
            out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x));
        });
    }
}

impl Kernel for Scale {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [x]) = io.parts()?;
        match self.from {
            DType::U8 => self.run_cpu::<u8>(out, x, f32::from),
            _ => self.run_cpu::<f32>(out, x, |x| x),
        }
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let (from, to) = (self.from.as_str(), self.to.as_str());
        let kernel = match self.part {
            Some(_) => format!("split_{from}"),
            None => format!("scale_{from}_{to}"),
        };
        let ([out], [x]) = io.parts()?;
        for_type!(self.from, [U8: u8; f32], |T| for_type!(self.to, [F32: f32, BF16: bf16; f16], |U| {
            let span = self.part.unwrap_or(0) + self.runs.span();
            let (mut out, x) = (out.span::<U>(span)?, x.elements::<T>()?);
            let mut launch = gpu.launch(self.name(), "scale", &kernel)?.read(&x).write(&mut out);
            if let Some(part) = self.part {
                launch = launch.num(part);
            }
            let Runs { n, len, apart } = self.runs;
            let launch = launch.num(self.scale).num(n).num(len).num(apart);
            // SAFETY: (const In*, Out*, size_t of the split_* kernels, float, 3 × size_t) of the types
            // named; x holds n runs of `len` entries, and `out`, whose shape and layout the public
            // functions checked, reaches to the end of the last run of its last part.
            unsafe { launch.linear(n * len.div_ceil(4)).go() }
        }))
    }
}
