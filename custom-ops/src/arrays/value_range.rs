//! The range of the values that were seen so far.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let range = Tensor::new(&[f32::INFINITY, f32::NEG_INFINITY], &Cpu)?;
//! chandlery_ops::arrays::extend_range_(&range, &Tensor::new(&[3f32, -1.], &Cpu)?)?;
//! chandlery_ops::arrays::extend_range_(&range, &Tensor::new(&[[f32::NAN, 2.]], &Cpu)?)?;
//! assert_eq!(range.to_vec1::<f32>()?, [-1., 3.]);
//! # Ok(()) }
//! ```
use crate::core::check::{expect, expect_layout};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use rayon::prelude::*;

const OP: &str = "extend_range_";
/// Values of one task of the CPU twin.
const CHUNK: usize = 1 << 16;

/// `range[0] ← min(range[0], x)`, `range[1] ← max(range[1], x)` over all `x`; NaN is passed over.
///
/// `range` is `[2]` f32, and begins as +∞ and −∞; `x` is u8 or f32 of any shape, contiguous.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn extend_range_(range: &Tensor, x: &Tensor) -> Result<()> {
    expect(OP, "range", range, &[DType::F32], &[2])?;
    expect_layout(OP, "x", x, &[DType::U8, DType::F32])?;
    operands(OP).write("range", range).read("x", x).run(&ExtendRange { dtype: x.dtype(), n: x.elem_count() })
}

struct ExtendRange {
    dtype: DType,
    n: usize,
}

impl Kernel for ExtendRange {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([range], [x]) = io.parts()?;
        let range = range.elements()?;
        for_type!(self.dtype, [U8: u8; f32], |T| extend(range, x.elements::<T>()?));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let kernel = format!("extend_range_{}", self.dtype.as_str());
        for_type!(self.dtype, [U8: u8; f32], |T| {
            /// Of the kernel.
            const THREADS: usize = 256;
            /// Values of a thread, so that few blocks meet in `range`.
            const EACH: usize = 16;
            const MOST_BLOCKS: usize = 1024;
            let ([range], [x]) = io.parts()?;
            let (mut range, x) = (range.elements::<f32>()?, x.elements::<T>()?);
            let launch = gpu.launch(OP, "value_range", &kernel)?.write(&mut range).read(&x).num(self.n);
            let blocks = self.n.div_ceil(THREADS * EACH).min(MOST_BLOCKS);
            // SAFETY: (float*, const T*, size_t); range holds two floats and x n entries, checked
            // by `extend_range_`; a block has the kernel's 256 threads, and any number of them is
            // allowed.
            unsafe { launch.blocks(blocks, THREADS as u32).go() }
        })
    }
}

fn extend<T: WithDType + Into<f32>>(range: &mut [f32], x: &[T]) {
    // `f32::min` and `max` pass over NaN.
    let of = |x: &[T]| {
        x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), &x| {
            let x: f32 = x.into();
            (least.min(x), most.max(x))
        })
    };
    let both = |a: (f32, f32), b: (f32, f32)| (a.0.min(b.0), a.1.max(b.1));
    let (least, most) = match x.len() <= CHUNK {
        true => of(x),
        false => x.par_chunks(CHUNK).map(of).reduce(|| (f32::INFINITY, f32::NEG_INFINITY), both),
    };
    (range[0], range[1]) = both((range[0], range[1]), (least, most));
}
