//! The commands `denoise` and `inpaint` of `dictionary-learning` and `sparse-coding`.
//!
//! | module | what |
//! |---|---|
//! | `card` | the model card of a dictionary that was learned from an image |
//! | `denoise`, `inpaint` | the commands |
mod card;
mod denoise;
mod inpaint;
mod task;

pub use denoise::denoise;
pub use inpaint::inpaint;
pub use task::{Codes, check_group, check_step};
