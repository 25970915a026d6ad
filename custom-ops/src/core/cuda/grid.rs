//! The windows of a grid as kernels take them.
use candle::cuda::cudarc::driver::DeviceRepr;

/// `Grid` of kernels/core/patches.cuh, in its order.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Grid {
    pub planes: i32,
    pub height: i32,
    pub width: i32,
    pub depth: i32,
    pub window: i32,
    pub stride: i32,
    pub across: i32,
    pub down: i32,
    pub values: i32,
    pub hidden: i32,
}
// SAFETY: ten ints, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Grid {}
