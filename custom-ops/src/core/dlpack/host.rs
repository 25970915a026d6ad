//! Copies of what other libraries have in the memory of the host.
use super::Memory;
use candle::{Device, Result, Shape, Tensor, WithDType};
use half::{bf16, f16};

/// A copy of the entries, of any strides and alignment.
///
/// # Safety
/// They are there, and nobody writes them meanwhile.
pub(super) unsafe fn copy(memory: &Memory) -> Result<Tensor> {
    for_type!(
        memory.dtype,
        [U8: u8, U32: u32, I16: i16, I32: i32, I64: i64, BF16: bf16, F16: f16, F64: f64; f32],
        // SAFETY: as promised to this function.
        |T| Tensor::from_vec(unsafe { values::<T>(memory) }, Shape::from(memory.dims.as_slice()), &Device::Cpu)
    )
}

/// # Safety
/// As for [`copy`], and they are of type `T`.
unsafe fn values<T: WithDType>(memory: &Memory) -> Vec<T> {
    let first = std::ptr::with_exposed_provenance::<T>(memory.address);
    let n = memory.len();
    let mut values = Vec::<T>::with_capacity(n);
    if n == 0 {
        return values;
    }
    if memory.is_contiguous() {
        // SAFETY: so many entries lie one after the other there, and there is room for them here;
        // as bytes they may lie anywhere.
        unsafe {
            std::ptr::copy_nonoverlapping(first.cast::<u8>(), values.as_mut_ptr().cast(), n * size_of::<T>());
            values.set_len(n);
        }
        return values;
    }
    let mut at = vec![0; memory.dims.len()];
    let mut place = 0isize;
    for _ in 0..n {
        // SAFETY: `place` is that of an entry.
        values.push(unsafe { first.offset(place).read_unaligned() });
        for ((at, &n), &stride) in at.iter_mut().zip(&memory.dims).zip(&memory.strides).rev() {
            *at += 1;
            place += stride;
            if *at < n {
                break;
            }
            place -= stride * n as isize;
            *at = 0;
        }
    }
    values
}
