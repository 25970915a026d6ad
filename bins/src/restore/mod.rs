//! The commands `denoise` and `inpaint` of `dictionary-learning` and `sparse-coding`.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | the command line |
//! | `card` | the model card of a dictionary that was learned from an image |
//! | `denoise`, `inpaint` | the commands |
pub mod args;
mod card;
mod denoise;
mod inpaint;
mod task;

pub use denoise::denoise;
pub use inpaint::inpaint;
pub use task::{Codes, check_step};
