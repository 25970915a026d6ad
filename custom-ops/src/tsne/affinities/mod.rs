//! From distances to the affinities of t-SNE.
//!
//! ```text
//! perplexity_search  p_j|i = exp(−β_i d_ij²) / Σ_l exp(−β_i d_il²)   with β_i such that Σ_j −p_j|i ln p_j|i = ln(perplexity)
//! symmetrize         p_ij = (p_j|i + p_i|j) / 2n                     each edge once, rows sorted
//! ```
//!
//! van der Maaten and Hinton, "Visualizing data using t-SNE", 2008; several perplexities are
//! averaged as by Kobak and Berens, "The art of using t-SNE for single-cell transcriptomics", 2019.
#[cfg(feature = "cuda")]
mod cuda;
mod perplexity;
mod reference;
mod reorder;
mod symmetrize;

pub use perplexity::{perplexity_search, perplexity_search_of_counts};
pub use reference::{perplexity_search_reference, symmetrize_reference};
pub use reorder::{affinities_in_order, affinities_in_order_};
pub use symmetrize::symmetrize;

use candle::Tensor;

/// The name of [`affinities_in_order`] in messages.
const REORDER: &str = "affinities_in_order";

/// Symmetric affinities as compressed rows: the entries of row `i` are
/// `offsets[i]..offsets[i + 1]`.
#[derive(Debug, Clone)]
pub struct Affinities {
    /// u32 `[n + 1]`
    pub offsets: Tensor,
    /// The other point of each edge, ascending within a row: u32 `[n_edges]`.
    pub columns: Tensor,
    /// `p_ij`; all together sum to 1: f32 `[n_edges]`.
    pub values: Tensor,
}

impl Affinities {
    /// The number of points.
    pub fn n(&self) -> usize {
        self.offsets.elem_count() - 1
    }
}
