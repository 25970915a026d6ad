//! The parts that every op needs on CUDA: the GPU, launches, memory, recordings.
//!
//! Only this module and [`op`](crate::core::op) depend on how candle stores device memory. An op
//! gets a [`Gpu`] and its operands, builds a [`Launch`] from them, and takes [`Scratch`] where it
//! needs memory.
mod devices;
mod flags;
mod gpu;
mod grid;
mod handles;
mod launch;
mod memory;
mod products;
pub(crate) mod recording;
mod scratch;
mod tensor_map;
mod words;

pub(crate) use candle::cuda::WrapErr;
pub(crate) use devices::{keep_current, n_gpus, open};
pub(crate) use flags::Flags;
pub(crate) use gpu::{Gpu, State};
pub(crate) use grid::Grid;
pub(crate) use handles::Handle;
pub(crate) use launch::{Address, Launch};
pub(crate) use memory::{MostMemory, free_memory};
pub(crate) use products::{Lent, products_so_far};
pub(crate) use recording::{alone, log};
pub(crate) use scratch::{Part, Scratch, ScratchLayout};
pub(crate) use tensor_map::{Fetch, TensorMap};

use candle::Result;

mod fatbins {
    include!(concat!(env!("OUT_DIR"), "/fatbins.rs"));
}

/// A size that a kernel takes as `unsigned`.
pub(crate) fn count(op: &'static str, n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| candle::Error::Msg(format!("{op}: a size must be below 2^32, got {n}")))
}
