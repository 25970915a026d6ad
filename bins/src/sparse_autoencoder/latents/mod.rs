//! Models with many latents of which few are active: `--kind`.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | their options |
//! | `train` | the command `train` |
//! | `apply` | the commands `encode` and `evaluate` |
//! | `top` | the command `top` |
//! | `targets` | what transcoders give back |
mod apply;
pub mod args;
mod targets;
mod top;
mod train;

pub use apply::{encode, evaluate};
pub use top::top;
pub use train::train;
