//! Every op equals its reference on every device, and where it promises so the bits are those of the CPU.
#![allow(missing_docs)]
mod atoms;
mod contrastive;
mod corrupt;
mod dae;
mod denoising_steps;
mod draw;
mod feed;
mod feedforward;
mod gemm;
mod lasso;
mod likelihood;
mod operands;
mod pursuit;
mod recording;
mod row_dots;
mod small;
mod softmax_units;
mod sort_by_key;
mod sparse_autoencoder;
mod sums;
mod threads;
mod training;
mod tsne;
mod two_gpus;
mod units;
mod up_down;
