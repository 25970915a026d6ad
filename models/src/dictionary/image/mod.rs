//! Images by sparse codes of their patches: denoising, and filling in what is missing.
//!
//! | module | what |
//! |---|---|
//! | [`denoise`](mod@denoise) | all overlapping patches coded to an error target and averaged (Elad and Aharon 2006) |
//! | [`inpaint`](mod@inpaint) | the same by masked pursuit, from known pixels |
//! | [`learn`] | a dictionary from the image that it is to restore |
//! | [`patches`] | all patches of an image as rows, and back |
//! | [`colour`] | colour planes that noise leaves alike |
//! | [`psnr`], [`estimate_sigma`] | how far an image is from another; how much noise is in one |
//! | [`random_patches`] | patches to learn from |
//!
//! An image is one plane, `[height, width]` f32 in grey levels from 0 to 255; a colour image is three, best after
//! [`colour::to_opponent`].
pub mod colour;
pub mod denoise;
pub mod inpaint;
pub mod learn;
pub mod patches;
mod quality;
mod sample;

pub use denoise::{Denoise, Restored, denoise};
pub use inpaint::{Inpaint, inpaint};
pub use learn::{ImageTrainer, ImageTraining, cosines};
pub use patches::{BandSum, PatchGrid};
pub use quality::{estimate_sigma, psnr};
pub use sample::random_patches;
