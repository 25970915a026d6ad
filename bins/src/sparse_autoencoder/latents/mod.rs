//! Models with many latents of which few are active: `--kind`.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | their options |
//! | `train` | the command `train` |
//! | `apply` | the commands `encode` and `evaluate` |
mod apply;
pub mod args;
mod train;

pub use apply::{encode, evaluate};
pub use train::train;
