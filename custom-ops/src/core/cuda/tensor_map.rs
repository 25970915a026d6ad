//! Matrices as the copies of `kernels/core/sm_90a/wgmma.cuh` see them.
use candle::cuda::WrapErr;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::cuda::cudarc::driver::sys;
use candle::{DType, Result};

/// `TensorMap` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TensorMap([u64; 16]);
// SAFETY: sixteen 64-bit numbers, which the driver made for kernels.
unsafe impl DeviceRepr for TensorMap {}

/// What comes from memory at once: a line of 128 bytes, or the one beside it, too. That is faster,
/// unless the copy of the other line follows so late that the second-level cache has lost it, and
/// memory is read twice.
#[derive(Clone, Copy)]
pub(crate) enum Fetch {
    Line,
    TwoLines,
}

impl TensorMap {
    /// The matrix of `sizes` entries, columns first, then rows and, where there are several, how
    /// many in one or two dimensions more, from `address` on; f32, f16 or bf16. `apart` says how
    /// many entries lie from one row to the next, and from one matrix to the next. It is copied in
    /// blocks of `line` bytes, 128 or 64, by `lines` rows, at most 256; the copies swizzle a line
    /// of 128 bytes. What a block has beyond the matrix is 0, and is not written.
    ///
    /// # Errors
    /// When the driver refuses: `apart` must be multiples of 16 bytes, and `address` one of them.
    pub(crate) fn of(
        address: u64,
        dtype: DType,
        sizes: &[usize],
        apart: &[usize],
        [line, lines]: [usize; 2],
        fetch: Fetch,
    ) -> Result<Self> {
        Self::encode(address, dtype, sizes, apart, (line, &[lines]), fetch)
    }

    /// An operand of products that lies along its outer dimension: `rows` lines of `width` entries,
    /// `line` entries apart, in planes, or planes and parts: how many there are of each, and how many
    /// entries they lie apart. It is copied in `blocks` blocks of 128 bytes beside each other by `lines`
    /// rows, by `copy_columns` of `kernels/core/sm_90a/wgmma.cuh`. Of a `width` of whole blocks these are
    /// the third dimension, so that one copy takes all; of another that dimension is 1, and each block is
    /// a copy.
    ///
    /// # Errors
    /// As for [`Self::of`].
    pub(crate) fn of_columns(
        address: u64,
        dtype: DType,
        [width, rows, line]: [usize; 3],
        planes: &[(usize, usize)],
        [blocks, lines]: [usize; 2],
    ) -> Result<Self> {
        const LINE: usize = 128;
        let of_block = LINE / dtype.size_in_bytes();
        let (sizes, blocks) = match width.is_multiple_of(of_block) {
            true => ([of_block, rows, width / of_block], blocks),
            false => ([width, rows, 1], 1),
        };
        let (many, far): (Vec<usize>, Vec<usize>) = planes.iter().copied().unzip();
        let (sizes, apart) = ([&sizes[..], &many].concat(), [&[line, of_block][..], &far].concat());
        Self::encode(address, dtype, &sizes, &apart, (LINE, &[lines, blocks]), Fetch::TwoLines)
    }

    /// The map whose copies are of `line` bytes by `lines` in the next dimensions, and by one in all
    /// that follow.
    fn encode(
        address: u64,
        dtype: DType,
        sizes: &[usize],
        apart: &[usize],
        (line, lines): (usize, &[usize]),
        fetch: Fetch,
    ) -> Result<Self> {
        use sys::CUtensorMapDataType as Type;
        let of_driver = match dtype {
            DType::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            _ => candle::bail!("cuda: copies of blocks are of f32, f16 or bf16 numbers, got {dtype:?}"),
        };
        let bytes = dtype.size_in_bytes();
        let rank = sizes.len().min(5).min(apart.len() + 1);
        let (mut dims, mut strides) = ([1u64; 5], [0u64; 4]);
        for (size, dim) in sizes.iter().zip(&mut dims) {
            *dim = *size as u64;
        }
        for (entries, stride) in apart.iter().zip(&mut strides) {
            *stride = (entries * bytes) as u64;
        }
        let swizzle = match line {
            64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let fetch = match fetch {
            Fetch::Line => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            Fetch::TwoLines => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        };
        let (mut block, steps) = ([(line / bytes) as u32, 1, 1, 1, 1], [1; 5]);
        for (lines, of) in lines.iter().zip(&mut block[1..]) {
            *of = *lines as u32;
        }
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: all arrays have as many entries as there are dimensions, at most five, strides
        // one less; the driver only writes the map, and does not touch the matrix.
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
                swizzle,
                fetch,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        made.result().w()?;
        Ok(Self(map.opaque))
    }
}
