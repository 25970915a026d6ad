//! What every op stands on: random draws, the adapter between candle and the kernels, recorded
//! steps, copies to the device.
#[macro_use]
pub(crate) mod types;

pub(crate) mod adam;
pub(crate) mod atomic;
pub mod binarize;
pub(crate) mod check;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub mod device;
pub mod dlpack;
pub mod draw;
pub(crate) mod fused;
pub(crate) mod late;
pub(crate) mod limits;
pub mod math;
pub(crate) mod op;
pub mod philox;
pub(crate) mod real;
#[cfg(feature = "cuda")]
pub(crate) mod recorder;
pub mod replay;
pub mod scalars;
pub mod threads;
pub mod upload;
pub(crate) mod vector;

pub use binarize::{bernoulli, bernoulli_into_, bernoulli_into_reference};
pub use device::{cuda_device, device_name, free_memory, keep_current, most_memory, n_gpus};
pub use draw::{Draws, normal, normal_, uniform, uniform_};
pub use philox::{Philox, PhiloxRng};
pub use replay::Replay;
pub use scalars::{advance_, raise_to_largest_, set_scalars_};
pub use threads::candle_on_one_thread;
pub use upload::ChunkUpload;
