//! Image restoration by sparse codes of patches: denoising and inpainting.
//!
//! | module | what |
//! |---|---|
//! | [`denoise`](mod@denoise) | all overlapping patches coded to an error target and averaged (Elad and Aharon 2006) |
//! | [`inpaint`](mod@inpaint) | the same with codes of the known pixels |
//! | [`learn`] | a dictionary learned from the image that it will restore |
//! | [`patches`] | all patches of an image as rows, and back |
//! | [`colour`] | opponent colour planes, in which white noise stays white |
//! | [`psnr`], [`estimate_sigma`] | the difference of two images; the noise of an image |
//! | [`random_patches`] | patches to learn from |
//!
//! An image is one plane, `[height, width]` f32 in grey levels from 0 to 255. A colour image is
//! three planes; convert them with [`colour::to_opponent`] for the best results.
mod coder;
pub mod colour;
pub mod denoise;
pub mod inpaint;
pub mod learn;
pub mod patches;
mod quality;
mod sample;

pub use denoise::{Denoise, Restored, denoise, denoise_with_progress};
pub use inpaint::{Inpaint, inpaint, inpaint_with_progress};
pub use learn::{ImageTrainer, ImageTraining, cosines};
pub use patches::{BandSum, PatchGrid};
pub use quality::{estimate_sigma, psnr};
pub use sample::random_patches;
