//! Ops of sparse autoencoders with many latents, of which few are active in a row: selection of
//! active latents from a matrix of pre-activations, and gradients that touch these alone.
//!
//! ```text
//! S_i   = { j : v_ij among the largest, or above a bound }      v = pre + bias    top_k, batch_top_k, active
//! z_i·  = values of the row's active latents                                      SparseCodes
//! E     = c (Y − X̂)                                                               code_errors
//! ∂z_ij = e_i·d_j                        j ∈ S_i                                  code_dots
//! ∂d_j  = Σ_{i: j ∈ S_i} z_ij e_i,   ∂w_j = Σ_{i: j ∈ S_i} ∂v_ij x_i              latent_gradients
//! w, d  ← Adam                                                                    latent_step_
//! ```
//!
//! A loss of several reconstructions by codes of their own has several codes for each row of the
//! minibatch, block after block: row `r` of the codes belongs to row `r mod batch` of `x`, and has
//! an error of its own. A loss of reconstructions by nested prefixes of the latents has one code a
//! row, and errors of its own for each group of latents that a prefix adds.
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `v`, `pre` | pre-activations, without and with bias | `[batch, n]` |
//! | `x` | what the encoder read | `[batch, d_in]` |
//! | `e` | `errors`, gradients of the loss at the reconstructions | `[blocks · batch, d_out]` |
//! | `w`, `d` | rows of encoder and decoder | `[n, d_in]`, `[n, d_out]` |
//!
//! No product over all latents but the encoder's own is made. On one device every sum has a fixed
//! order, so that the same input gives the same bits.
//!
//! Matrices (`pre`, `x`, `errors`, rows of encoder and decoder) are f32, f64 or bf16; everything
//! else is f64 for f64, else f32, and so are sums.
//!
//! Source: Gao, la Tour, Tillman, Goh, Troll, Radford, Sutskever, Leike and Wu, "Scaling and
//! evaluating sparse autoencoders", 2024, appendix D.
#[macro_use]
mod types;
mod centred;
#[cfg(feature = "cuda")]
mod cuda;
mod dots;
mod errors;
mod gradients;
mod groups;
mod select;
mod step;
mod sums;

pub use centred::centred;
pub use dots::code_dots;
pub use errors::{CodeErrors, code_errors, code_errors_reference};
pub use gradients::{LatentGradients, latent_gradients};
pub use groups::MOST_GROUPS;
pub use select::{
    CodeWidth, active, active_reference, batch_threshold, batch_threshold_reference, batch_top_k, top_k,
    top_k_reference,
};
pub use step::{LatentState, latent_step_};
pub use sums::use_sums;
