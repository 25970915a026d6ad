//! Products of layers whose hidden units see windows of a grid: overlapping patches, each with
//! weights of its own.
//!
//! ```text
//! up      x_p[j] = Σ_i W_p[j, i] v[π_p(i)]               hidden units of patch p, of the values in its window
//! down    x[u] = Σ_p Σ_j h_p[j] W_p[j, i],  π_p(i) = u   a visible unit, of the hidden units of all windows that cover it
//! update  G_p[j, i] = Σ_b h[b, p, j] v[b, π_p(i)]        the gradient of the weights of patch p
//! ```
//!
//! | symbol | name | shape |
//! |---|---|---|
//! | `v` | visible units | `[batch, planes · height · width · depth]`, see [`PatchGrid`] |
//! | `h` | hidden units | `[batch, n_patches · hidden]`: patches by rows, units of a patch next to each other |
//! | `W` | `weight` | `[n_patches, hidden, window_len]` |
//! | `π_p(i)` | the place of entry `i` of the window of patch `p` | [`PatchGrid::place`] |
//!
//! The windows are read where they lie: nothing here stores the windows of a batch one by one. A
//! visible unit adds the patches that cover it in one fixed order.
//!
//! [`patch_product_`] is up and down, [`patch_gradient_`] the gradient; [`units_of_patches_`],
//! [`sums_of_patches_`], [`patch_cd_update_`] and [`patch_last_step_`] are what a step of contrastive
//! divergence needs, in few launches. [`patch_product`] is differentiable.
//!
//! Source: Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using graphics
//! processors", ICML 2009, section 5.
mod cells;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod differentiable;
mod gradient;
mod grid;
mod last_form;
mod last_step;
mod product;
mod shape;
mod sizes;
mod step;
mod units;
mod warpgroups;

pub use cells::{cells_into_, cells_into_reference};
pub use differentiable::patch_product;
pub use gradient::{patch_gradient_, patch_gradient_reference};
pub use grid::PatchGrid;
pub use last_step::patch_last_step_;
pub use product::{patch_product_, patch_product_reference};
pub use sizes::{PatchDirection, patch_steps_fuse};
pub use step::{patch_cd_update_, patch_step_takes_halves};
pub use units::{sums_of_patches_, units_of_patches_};
