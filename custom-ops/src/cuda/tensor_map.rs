//! Matrices as the copies of `kernels/sm_90a/wgmma.cuh` see them.
use candle::cuda::WrapErr;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::cuda::cudarc::driver::sys;
use candle::{DType, Result};

/// Bytes of a line of a block, in which the copies turn the order of 16 bytes by the line.
const LINE: usize = 128;

/// `TensorMap` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TensorMap([u64; 16]);
// SAFETY: sixteen 64-bit numbers, which the driver made for kernels.
unsafe impl DeviceRepr for TensorMap {}

impl TensorMap {
    /// The matrix of so many entries, columns first, then rows and, where there are several of one form, how many lie one after the other,
    /// from `address` on; f32, f16 or bf16. It is copied in blocks of 128 bytes by `lines` rows, at most 256. What a block has beyond the
    /// matrix is 0, and is not written.
    ///
    /// # Errors
    /// When the driver refuses: a row must be a multiple of 16 bytes, and `address` one of them.
    pub(crate) fn of(address: u64, dtype: DType, sizes: &[usize], lines: usize) -> Result<Self> {
        use sys::CUtensorMapDataType as Type;
        let of_driver = match dtype {
            DType::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            _ => candle::bail!("cuda: copies of blocks are of f32, f16 or bf16 numbers, got {dtype:?}"),
        };
        let bytes = dtype.size_in_bytes();
        let rank = sizes.len().min(3);
        let (mut dims, mut strides) = ([1u64; 3], [0u64; 3]);
        let mut stride = bytes as u64;
        for ((size, dim), to) in sizes.iter().zip(&mut dims).zip(&mut strides) {
            *dim = *size as u64;
            stride *= *size as u64;
            *to = stride;
        }
        let (block, steps) = ([(LINE / bytes) as u32, lines as u32, 1], [1; 3]);
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have as many entries as there are dimensions, two or three; the driver only writes the map, and does not touch
        // the matrix.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                of_driver,
                rank as u32,
                address as *mut std::ffi::c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                block.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        made.result().w()?;
        Ok(Self(map.opaque))
    }
}
