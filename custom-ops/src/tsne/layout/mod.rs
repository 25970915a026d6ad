//! A step of t-SNE's gradient descent, and the divergence of a layout.
//!
//! ```text
//! attraction_i = Σ_j p_ij (y_i − y_j) / (1 + |y_i − y_j|² / α)              over the edges of row i
//! gradient_i   = 4 (exaggeration · attraction_i − forces_i / total)
//! gain         ← gain + 0.2 where gradient and velocity have opposite signs or one is 0, else 0.8 gain; kept in its range
//! velocity     ← momentum · velocity − learning_rate · gain · gradient,     shortened to `largest_step`
//! y            ← y + velocity − mean(y + velocity);    a coordinate beyond `largest_coordinate` is put back to it, at rest and with gain 1
//! ```
//!
//! Points may stand for several each, `c_i`: edges are then those of all that are at their ends,
//! `attraction_i` is divided by `c_i`, which is what one of those at `i` feels, and mean and norm
//! are over all. So points move as if there were `c_i` at each place.
//!
//! `forces` and `total` are those of [`Repulsion`](crate::tsne::Repulsion). van der Maaten and
//! Hinton, 2008; gains are Jacobs' (1988). The limit of a step is that of openTSNE (Poličar et al.,
//! 2019); putting points back is the answer of Han-Chen, "Accelerating TSNE with GPUs", 2019, to
//! the same fault, and off by default.
mod attraction;
#[cfg(feature = "cuda")]
mod cuda;
mod divergence;
mod edges;
mod reference;
mod step;

pub use attraction::{AttractionForm, attraction, attraction_reference, one_direction};
pub use divergence::{layout_divergence, layout_divergence_reference};
pub use reference::layout_step_reference;
pub use step::{LayoutFigures, LayoutState, LayoutStep, layout_centre_, layout_move_, layout_step_};
