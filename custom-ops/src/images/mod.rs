//! Ops of images: patches, convolutions and pools.
pub mod convolution;
pub mod patches;
pub mod pool_units;

pub use convolution::{
    ConvolutionShape, Padding, convolution, convolution_, convolution_gradient_places,
    convolution_input_gradient_, convolution_input_gradient_reference, convolution_reference,
    convolution_transposed, convolution_weight_gradient_, convolution_weight_gradient_reference,
};
pub use patches::{
    PatchDirection, PatchGrid, cells_into_, cells_into_reference, patch_cd_update_, patch_gradient_,
    patch_gradient_reference, patch_last_step_, patch_product, patch_product_, patch_product_reference,
    patch_step_takes_halves, patch_steps_fuse, sums_of_patches_, units_of_patches_,
};
pub use pool_units::{
    PoolShape, PoolSide, block_means_, block_means_reference, pool_backward_, pool_backward_reference,
    pool_units_, pool_units_reference, spread_blocks_, spread_blocks_reference,
};
