//! Ops that candle lacks, for the CPU and CUDA. Each is tested against a plain reference.
//!
//! An op consists of a public function that checks its arguments, a private struct with the code
//! for both devices (`Kernel`) and, for tests, a slow and simple `*_reference`. An op whose name
//! ends in `_` writes its first argument in place. This crate holds all CUDA code and all `unsafe`
//! code of the workspace: `src/ROOM/NAME.rs` launches `kernels/ROOM/NAME.cu`. Arrows between rooms
//! go down: [`core`] ← [`arrays`] ← [`layers`], [`codes`] ← [`images`], [`tsne`]; [`group`] stands on
//! [`core`] alone.
//!
//! In-place ops neither allocate nor read back, so a sequence of them can be recorded as a CUDA
//! graph ([`core::Replay`]). They read the numbers that change between replays from tensors on the
//! device. Ops that return new tensors allocate memory and are refused within a recorded step; so
//! are the pursuits, which wait for the device once.
#![cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "much of what is told here is for launches on a GPU")
)]
#[macro_use]
pub mod core;
pub mod arrays;
pub mod codes;
pub mod group;
/// Builds for GPUs, and a new op file by file.
#[doc = include_str!("../README.md")]
pub mod guide {}
pub mod images;
pub mod layers;
pub mod tsne;

pub use self::core::{Philox, PhiloxRng};
pub use self::group::Group;
pub use self::layers::Precision;
