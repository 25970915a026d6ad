//! Every op equals its reference on every device, and where it promises so the bits are those of
//! the CPU. Without the feature `cuda` the CPU is the only device: tests that would compare it with
//! itself are ignored then.
#![allow(missing_docs)]
mod atom_descent;
mod atoms;
mod contrastive;
mod conv_rbm;
mod convolution;
mod corrupt;
mod dae;
mod denoising_steps;
mod dlpack;
mod draw;
mod elementwise;
mod feed;
mod feedforward;
mod gather_rows;
mod gemm;
mod halves;
mod history;
mod lasso;
mod latents;
mod likelihood;
mod operands;
mod patches;
mod pool_units;
mod printed;
mod pursuit;
mod recording;
mod resume;
mod rounding;
mod row_dots;
mod small;
mod softmax;
mod softmax_units;
mod sort_by_key;
mod sparse_autoencoder;
mod sparse_cost;
mod sums;
mod threads;
mod training;
mod tsne;
mod two_gpus;
mod two_gpus_families;
mod units;
mod up_down;
mod value_range;
