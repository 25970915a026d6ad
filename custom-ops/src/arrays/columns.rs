//! Some columns of a matrix to some of another.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Cpu)?;
//! let out = Tensor::zeros((2, 4), candle::DType::F32, &Cpu)?;
//! chandlery_ops::arrays::columns_into_(&out.narrow(1, 2, 2)?, &x.narrow(1, 0, 2)?)?;
//! assert_eq!(out.to_vec2::<f32>()?, [[0., 0., 1., 2.], [0., 0., 4., 5.]]);
//! # Ok(()) }
//! ```
use crate::core::check::expect_dtype;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use rayon::prelude::*;

const OP: &str = "columns_into_";
/// Entries below which other threads are not worth waking.
const GRAIN: usize = 64 * 1024;
const TYPES: [DType; 2] = [DType::F32, DType::U8];

/// `out ← x` for matrices of one shape whose lines are contiguous and may lie apart, as those of some
/// columns do: f32 or u8.
///
/// # Errors
/// When shapes, types or devices differ, or lines are not contiguous.
pub fn columns_into_(out: &Tensor, x: &Tensor) -> Result<()> {
    let (rows, width) = match *out.dims() {
        [rows, width] => (rows, width),
        _ => candle::bail!("{OP}: out must have shape [rows, columns], got {:?}", out.dims()),
    };
    for (name, t) in [("out", out), ("x", x)] {
        expect_dtype(OP, name, t, &TYPES)?;
        if t.dims() != [rows, width] || t.dtype() != out.dtype() || width > 1 && t.stride()[1] != 1 {
            candle::bail!(
                "{OP}: {name} must be {:?} [{rows}, {width}] with contiguous lines, got {:?} {:?} with strides {:?}",
                out.dtype(),
                t.dtype(),
                t.dims(),
                t.stride()
            )
        }
    }
    if rows * width == 0 {
        return Ok(());
    }
    let op = Columns { rows, width, dtype: out.dtype() };
    operands(OP).write("out", out).read("x", x).run(&op)
}

struct Columns {
    rows: usize,
    width: usize,
    dtype: DType,
}

impl Columns {
    /// Entries from the first to behind the last of a matrix with lines so far apart.
    fn span(&self, apart: usize) -> usize {
        (self.rows - 1) * apart + self.width
    }

    fn run_cpu<T: WithDType>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [x]) = io.parts()?;
        let (to, from) = (out.layout(), x.layout()?);
        let ends = |layout: &candle::Layout| {
            let (start, apart) = (layout.start_offset(), layout.stride()[0]);
            (start..start + self.span(apart), apart)
        };
        let ((out_range, out_apart), (x_range, x_apart)) = (ends(to), ends(from));
        let (out, x) = (&mut out.all::<T>()?[out_range], &x.all::<T>()?[x_range]);
        // The last line may end before the next would begin.
        let lines = out.par_chunks_mut(out_apart.max(1)).zip(x.par_chunks(x_apart.max(1)));
        lines.for_each(|(out, x)| out[..self.width].copy_from_slice(&x[..self.width]));
        Ok(())
    }
}

impl Kernel for Columns {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_type!(self.dtype, [U8: u8; f32], |T| self.run_cpu::<T>(io))
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        // A thread for every 16 bytes of a line, and blocks for as many lines as a grid has.
        const THREADS: usize = 128;
        let size = self.dtype.size_in_bytes();
        let of_line = (self.width * size).div_ceil(16).div_ceil(THREADS).clamp(1, 1024);
        let ([out], [x]) = io.parts()?;
        let (out_apart, x_apart) = (out.layout().stride()[0], x.layout()?.stride()[0]);
        for_type!(self.dtype, [U8: u8; f32], |T| {
            let (mut out, x) = (out.span::<T>(self.span(out_apart))?, x.span::<T>(self.span(x_apart))?);
            let launch = gpu.launch(OP, "columns", "columns_into")?.read(&x).write(&mut out).num(self.rows);
            let launch = launch.num(self.width * size).num(x_apart * size).num(out_apart * size);
            // SAFETY: (const unsigned char*, unsigned char*, 4 × size_t); `columns_into_` checked that
            // lines are contiguous, and the spans reach to the end of the last.
            unsafe { launch.grid([of_line, self.rows.min(65_535), 1], (THREADS as u32, 1, 1)).go() }
        })
    }
}
