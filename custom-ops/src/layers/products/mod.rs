//! Products of numbers in two parts, and what is computed from their entries in the same kernel.
//!
//! [`units_of_product_`] gives the units of a layer; [`errors_of_product_`] and
//! [`deltas_of_product_`] are the later half of a step of a denoising autoencoder.
//!
//! On a GPU of capability 9.0 each is one kernel of warpgroups
//! (`kernels/layers/sm_90a/product_tile.cuh`), [`units_of_product_`] for numbers in one part and in
//! two.
//!
//! For numbers in two parts on CUDA each is one kernel, as exact as f32 products: it adds partial
//! sums outside the tensor cores, where [`gemm_parts_`](crate::layers::gemm_parts_) splits the
//! product into many ([`two_part_products_fuse`]).
pub mod errors;
#[cfg(feature = "cuda")]
mod errors_cuda;
#[cfg(feature = "cuda")]
mod operands;
#[cfg(feature = "cuda")]
mod product;
pub(crate) mod shape;
mod split;
mod units;
#[cfg(feature = "cuda")]
mod units_cuda;
#[cfg(feature = "cuda")]
mod warpgroup_operands;
pub(crate) mod warpgroup_shape;
mod warpgroup_tile;

pub use errors::{
    deltas_of_product_, deltas_of_product_reference, error_places, errors_of_product_,
    errors_of_product_reference,
};
pub use split::{product_of_split_, product_of_split_reference, split_products_are_faster};
pub use units::{units_of_product_, units_of_product_reference};

use candle::Device;

const ERRORS: &str = "errors_of_product_";
const DELTAS: &str = "deltas_of_product_";

/// Whether a product of numbers in two parts, with sizes that are multiples of four, is one kernel
/// with its units. It is on a GPU of capability 9.0 or above with enough shared memory for a tile,
/// if the build has kernels for such a GPU. Otherwise it takes many launches, and f32 operands are
/// faster.
pub fn two_part_products_fuse(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => crate::core::cuda::Gpu::of(device).is_ok_and(|gpu| shape::fuse(gpu.limits())),
        _ => false,
    }
}

/// Whether the products of this module are made by warpgroups, at up to twice the speed: on a GPU
/// of capability 9.0, if the build has kernels for it.
pub fn warpgroups_multiply(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            crate::core::cuda::Gpu::of(device).is_ok_and(|gpu| gpu.limits().has_warpgroup_products())
        }
        _ => false,
    }
}
