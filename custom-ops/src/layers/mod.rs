//! Ops of dense layers: products, units, losses, optimisers and the updates of contrastive
//! divergence.
pub mod activation;
pub mod adam_of_product;
pub mod annealed_units;
pub mod bias_step;
pub mod cd_update;
pub mod corrupt;
pub mod denoising_steps;
pub mod gemm;
pub mod layer;
pub mod layer_sums;
pub mod loss;
pub mod optimizer;
mod pingpong;
pub mod printed;
pub mod products;
pub mod rounding;
pub mod softmax_objective;
pub mod softmax_units;
pub mod sparse_cost;
mod tiles;
pub mod units;
pub mod weight_step;

pub use activation::Activation;
pub use adam_of_product::{adam_step_of_product_, adam_step_of_product_fuses};
pub use annealed_units::{
    Rise, annealed_hidden_, annealed_hidden_reference, annealed_visible_, annealed_visible_reference,
};
pub use bias_step::{BiasStep, Phases, Sparsity, bias_step_, bias_step_reference, bias_sums_shape};
pub use cd_update::{
    BiasGradients, CdOperands, CdUpdate, cd_update_, cd_update_fuses, cd_update_reference,
    cd_update_takes_halves,
};
pub use corrupt::{Corruption, corrupt, corrupt_, corrupt_minibatches_, corrupt_reference};
pub use denoising_steps::{
    DENOISING_FIGURES, DenoisingParams, DenoisingSteps, denoising_steps_, denoising_steps_fit,
    denoising_steps_reference,
};
pub use gemm::{
    Factors, Precision, gemm_, gemm_batched_, gemm_onto_, gemm_parts_, gemm_reference, gemm_split_,
    gemm_split_makes_tensors, product,
};
pub use layer::{
    Dropout, layer_backward_, layer_backward_biased_, layer_backward_into_, layer_backward_reference,
    layer_forward_, layer_forward_into_, layer_forward_reference,
};
pub use layer_sums::{layer_backward_sums_, layer_forward_sums_};
pub use loss::{
    OutputLoss, output_loss_, output_loss_into_, output_loss_reference, softmax_loss_, softmax_loss_reference,
};
pub use optimizer::{AdamStep, SgdStep, adam_step_, adam_step_reference, sgd_step_, sgd_step_reference};
pub use printed::{TILE_WIDTHS, naive_denoising_step_, naive_denoising_step_reference, tiled_product_};
pub use products::{
    deltas_of_product_, deltas_of_product_reference, error_places, errors_of_product_,
    errors_of_product_reference, product_of_split_, product_of_split_reference, split_products_are_faster,
    two_part_products_fuse, units_of_product_, units_of_product_reference, warpgroups_multiply,
};
pub use rounding::{round_stochastic, rounding_bits};
pub use softmax_objective::{SoftmaxObjective, softmax_objective, softmax_objective_reference};
pub use softmax_units::{softmax_units_, softmax_units_reference};
pub use sparse_cost::{
    LEAST_ACTIVATION, SparseCost, SparseParameters, SparseParts, divergence_parts, sparse_begin_,
    sparse_cost_, sparse_cost_fits, sparse_cost_reference, sparse_figures, sparse_figures_of_lines,
    sparse_figures_of_products, sparsity_pull_, square_parts,
};
pub use units::{Unit, UnitPlanes, unit_mean, unit_sample, units_, units_reference};
pub use weight_step::{WeightStep, max_norm_rows_, weight_step_, weight_step_reference};
