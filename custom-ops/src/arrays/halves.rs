//! f32 numbers in two halves of 16 bits each, of which the upper one is a bf16 number that products
//! can read.
//!
//! The upper half is the bf16 number next to the f32 number (of two that are equally near, the one
//! away from zero), the lower half the last 16 bits of the f32 number as a signed number:
//! `bits = upper · 2¹⁶ + lower`. Nothing is lost: the f32 number that comes back has the same bits,
//! but for NaN, which stays NaN. Numbers of at least 2¹²⁸ − 2¹¹⁹ have an infinite upper half, and
//! come back too.
//!
//! So f32 weights, and the bf16 copy of them that products read, take 4 bytes instead of 6.
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use half::bf16;
use rayon::prelude::*;

/// Numbers that one task of the CPU twins handles.
const CHUNK: usize = 16 * 1024;

/// `upper, lower ← x`, the halves of each number: `upper` is bf16 and `lower` i16, `x` f32, all
/// contiguous and of one shape.
///
/// Cost: 8 bytes a number.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn halves_into_(upper: &Tensor, lower: &Tensor, x: &Tensor) -> Result<()> {
    const OP: &str = "halves_into_";
    check(OP, upper, lower, ("x", x))?;
    operands(OP).write("upper", upper).write("lower", lower).read("x", x).run(&Halves)
}

/// `out ← upper, lower`: the f32 numbers of the halves that [`halves_into_`] made, with the same
/// bits.
///
/// Cost: 8 bytes a number.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn joined_into_(out: &Tensor, upper: &Tensor, lower: &Tensor) -> Result<()> {
    const OP: &str = "joined_into_";
    check(OP, upper, lower, ("out", out))?;
    operands(OP).write("out", out).read("upper", upper).read("lower", lower).run(&Joined)
}

fn check(op: &str, upper: &Tensor, lower: &Tensor, (name, whole): (&str, &Tensor)) -> Result<()> {
    expect(op, name, whole, &[DType::F32], whole.dims())?;
    expect(op, "upper", upper, &[DType::BF16], whole.dims())?;
    expect(op, "lower", lower, &[DType::I16], whole.dims())
}

fn halves(x: f32) -> (bf16, i16) {
    let bits = if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
    (bf16::from_bits((bits.wrapping_add(0x8000) >> 16) as u16), bits as i16)
}

fn joined(upper: bf16, lower: i16) -> f32 {
    f32::from_bits((u32::from(upper.to_bits()) << 16).wrapping_add(i32::from(lower) as u32))
}

struct Halves;

impl Kernel for Halves {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([upper, lower], [x]) = io.parts()?;
        let (upper, lower, x) = (upper.elements::<bf16>()?, lower.elements::<i16>()?, x.elements::<f32>()?);
        let chunks = upper.par_chunks_mut(CHUNK).zip(lower.par_chunks_mut(CHUNK)).zip(x.par_chunks(CHUNK));
        chunks.for_each(|((upper, lower), x)| {
            for ((upper, lower), &x) in upper.iter_mut().zip(lower).zip(x) {
                (*upper, *lower) = halves(x);
            }
        });
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([upper, lower], [x]) = io.parts()?;
        let n = x.layout()?.shape().elem_count();
        let (mut upper, mut lower) = (upper.elements::<bf16>()?, lower.elements::<i16>()?);
        let x = x.elements::<f32>()?;
        let launch = gpu.launch("halves_into_", "halves", "halves_into")?;
        // SAFETY: (const float*, unsigned short*, short*, size_t), each of n entries by `check`.
        unsafe { launch.read(&x).write(&mut upper).write(&mut lower).num(n).linear(n).go() }
    }
}

struct Joined;

impl Kernel for Joined {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [upper, lower]) = io.parts()?;
        let (out, upper, lower) =
            (out.elements::<f32>()?, upper.elements::<bf16>()?, lower.elements::<i16>()?);
        let chunks = out.par_chunks_mut(CHUNK).zip(upper.par_chunks(CHUNK)).zip(lower.par_chunks(CHUNK));
        chunks.for_each(|((out, upper), lower)| {
            for ((out, &upper), &lower) in out.iter_mut().zip(upper).zip(lower) {
                *out = joined(upper, lower);
            }
        });
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([out], [upper, lower]) = io.parts()?;
        let n = upper.layout()?.shape().elem_count();
        let (upper, lower) = (upper.elements::<bf16>()?, lower.elements::<i16>()?);
        let mut out = out.elements::<f32>()?;
        let launch = gpu.launch("joined_into_", "halves", "joined_into")?;
        // SAFETY: (const unsigned short*, const short*, float*, size_t), each of n entries by
        // `check`.
        unsafe { launch.read(&upper).read(&lower).write(&mut out).num(n).linear(n).go() }
    }
}

#[cfg(test)]
mod tests {
    use super::{halves, joined};
    use half::bf16;

    #[test]
    fn halves_of_every_kind_of_number_give_it_back_and_the_upper_one_is_next_to_it() {
        let steps = (0u32..=u32::MAX).step_by(65_521); // all exponents, both signs, and all lower halves in turn
        let ends =
            [0, 0x8000_0000, 1, 0x7f7f_ffff, 0xff7f_ffff, 0x7f80_0000, 0xff80_0000, 0x3f80_8000, 0x3f81_8000];
        for bits in steps.chain(ends) {
            let x = f32::from_bits(bits);
            let (upper, lower) = halves(x);
            if x.is_nan() {
                assert!(upper.is_nan() && joined(upper, lower).is_nan(), "{bits:x}");
                continue;
            }
            assert_eq!(joined(upper, lower).to_bits(), bits, "{bits:x}");
            let tie = bits & 0xffff == 0x8000;
            let nearest = bf16::from_f32(x);
            assert!(upper == nearest || tie && upper.to_bits() == nearest.to_bits() + 1, "{bits:x}");
        }
    }
}
