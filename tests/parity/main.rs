//! Every op equals its reference on every device, and where it promises so the bits are those of the CPU.
#![allow(missing_docs)]
mod atoms;
mod contrastive;
mod draw;
mod feed;
mod feedforward;
mod gemm;
mod likelihood;
mod pursuit;
mod small;
mod softmax_units;
mod sums;
mod training;
mod units;
mod up_down;
