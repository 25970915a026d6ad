//! Ops that candle lacks, for the CPU and CUDA. Each is tested against a plain reference.
//!
//! An op consists of a public function that checks its arguments, a private struct with the code for both devices (`Kernel`) and,
//! for tests, a slow and simple `*_reference`. An op whose name ends in `_` writes its first argument in place. This crate holds
//! all CUDA code and all `unsafe` code of the workspace: `src/NAME.rs` launches `kernels/NAME.cu`.
//!
//! In-place ops neither allocate nor read back, so a sequence of them can be recorded as a CUDA graph ([`Replay`]). They read the
//! numbers that change between replays from tensors on the device. Ops that return new tensors allocate memory and are refused
//! within a recorded step; so are the pursuits, which wait for the device once.
#[cfg(feature = "cuda")]
mod cuda;

#[macro_use]
mod types;

mod activation;
mod affinities;
mod atoms;
mod bias_step;
mod binarize;
mod check;
mod contrast_step;
mod convolution;
mod corrupt;
mod curve_order;
mod denoising_steps;
mod device;
mod draw;
mod fused;
mod gather_rows;
mod gemm;
mod halves;
mod history;
pub mod lasso;
mod layer;
mod layout;
mod limits;
mod loss;
pub mod math;
mod neighbours;
mod op;
mod optimizer;
mod patches;
mod philox;
mod pool_units;
mod prefix_sum;
mod products;
pub mod pursuit;
mod real;
mod replay;
mod repulsion;
mod rounding;
mod row_dots;
mod scalars;
mod scale;
mod softmax_units;
mod sort_by_key;
mod sparse_cost;
mod sums;
mod units;
mod upload;
mod value_range;
mod vector;
mod weight_step;

pub use affinities::{
    Affinities, AffinityPairs, affinities_in_order, affinities_in_order_, perplexity_search,
    perplexity_search_reference, symmetrize, symmetrize_pairs, symmetrize_reference,
};
pub use atoms::{
    AtomLength, AtomUpdate, AtomUses, Bounds, FIGURE_PARTS, StatisticsStep, atom_coherence, atom_coherence_,
    atom_coherence_reference, code_figures_, codes_statistics_, descend_atoms_, descend_atoms_reference,
    row_squares, update_atoms, update_atoms_reference,
};
pub use bias_step::{BiasStep, Phases, Sparsity, bias_step_, bias_step_reference, bias_sums_shape};
pub use binarize::{bernoulli_into_, bernoulli_into_reference};
pub use contrast_step::{
    BiasGradients, Contrast, ContrastStep, contrast_step_, contrast_step_fuses, contrast_step_reference,
    contrast_step_takes_halves,
};
pub use convolution::{
    ConvolutionShape, Padding, convolution, convolution_, convolution_gradient_places,
    convolution_input_gradient_, convolution_input_gradient_reference, convolution_reference,
    convolution_transposed, convolution_weight_gradient_, convolution_weight_gradient_reference,
};
pub use corrupt::{Corruption, corrupt, corrupt_, corrupt_reference};
pub use curve_order::{curve_order, curve_order_reference};
pub use denoising_steps::{
    DENOISING_FIGURES, DenoisingParams, DenoisingSteps, denoising_steps_, denoising_steps_fit,
    denoising_steps_reference,
};
pub use device::{cuda_device, device_name, free_memory, most_memory};
pub use draw::{Draws, bernoulli, normal, normal_, uniform, uniform_};
pub use gather_rows::{gather_rows, gather_rows_by, gather_rows_reference};
pub use gemm::{Factors, Precision, gemm_, gemm_batched_, gemm_parts_, gemm_reference, gemm_split_};
pub use halves::{halves_into_, joined_into_};
pub use history::{
    combine_rows_, combine_rows_reference, moved_along, moved_along_reference, put_difference_,
    put_difference_reference,
};
pub use lasso::{
    LassoMethod, LassoOptions, LassoReport, LassoStep, LineSearch, MaskedSignals, lasso_,
    lasso_gaps_reference, lasso_masked_, lasso_reference, lasso_step_, lasso_step_reference,
};
pub use layout::{
    LayoutFigures, LayoutState, LayoutStep, layout_divergence, layout_divergence_reference, layout_step_,
    layout_step_reference,
};
pub use neighbours::{
    ApproximateNeighbours, Metric, Neighbours, knn, knn_approximate, knn_of, knn_of_reference, knn_reference,
    row_distances,
};
pub use patches::{
    PatchDirection, PatchGrid, cells_into_, cells_into_reference, patch_contrast_step_, patch_gradient_,
    patch_gradient_reference, patch_last_step_, patch_product, patch_product_, patch_product_reference,
    patch_step_takes_halves, patch_steps_fuse, units_of_patches_,
};
pub use philox::Philox;
pub use pool_units::{
    PoolShape, PoolSide, block_means_, block_means_reference, pool_backward_, pool_backward_reference,
    pool_units_, pool_units_reference, spread_blocks_, spread_blocks_reference,
};
pub use prefix_sum::{PrefixSum, prefix_sum, prefix_sum_reference};
pub use products::{
    deltas_of_product_, deltas_of_product_reference, error_places, errors_of_product_,
    errors_of_product_reference, two_part_products_fuse, units_of_product_, units_of_product_reference,
    warpgroups_multiply,
};
pub use pursuit::{
    ErrorTarget, Pursuit, SparseCodes, bomp, bomp_masked, bomp_masked_reference, ols, ols_masked,
    ols_masked_reference, ols_reference, omp_reference,
};
pub use replay::Replay;
pub use repulsion::{Repulsion, RepulsionMethod, grid_sides, repulsion_at, repulsion_reference};
pub use rounding::{round_stochastic, rounding_bits};
pub use row_dots::{row_dots, row_dots_reference};
pub use scalars::{advance_, raise_to_largest_, set_scalars_};
pub use scale::{scale_into_, scale_into_reference, split_into_};
pub use softmax_units::{softmax_units_, softmax_units_reference};
pub use sort_by_key::{SortedKeys, sort_by_key, sort_by_key_reference};
pub use sparse_cost::{LEAST_ACTIVATION, SparseCost, sparse_cost_, sparse_cost_fits, sparse_cost_reference};
pub use sums::{column_sums_, column_sums_reference};
pub use units::{Unit, UnitPlanes, unit_mean, unit_sample, units_, units_reference};
pub use upload::ChunkUpload;
pub use value_range::extend_range_;
pub use weight_step::{WeightStep, max_norm_rows_, weight_step_, weight_step_reference};

pub use activation::Activation;
pub use layer::{
    Dropout, layer_backward_, layer_backward_reference, layer_forward_, layer_forward_reference,
};
pub use loss::{OutputLoss, output_loss_, output_loss_reference, softmax_loss_, softmax_loss_reference};
pub use optimizer::{AdamStep, SgdStep, adam_step_, adam_step_reference, sgd_step_, sgd_step_reference};
