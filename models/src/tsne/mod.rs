//! t-SNE: a picture of the rows in one to three dimensions in which near rows are near.
//!
//! ```text
//! p_j|i = exp(−β_i |x_i − x_j|²) / Σ_l exp(−β_i |x_i − x_l|²)      over the neighbours of row i
//! β_i: −Σ_j p_j|i ln p_j|i = ln(perplexity)
//! p_ij  = (p_j|i + p_i|j) / 2n
//! q_ij  = w_ij / Σ_kl w_kl,   w_ij = (1 + |y_i − y_j|²/α)^−α
//! KL    = Σ_ij p_ij ln(p_ij / q_ij)                                made small by gradient descent
//! ∂KL/∂y_i = 4 Σ_j (p_ij − q_ij) (y_i − y_j) / (1 + |y_i − y_j|²/α)
//! ```
//!
//! Other kinds of `p_j|i`, of which the rest is the same: [`Affinity`]. What may change during the
//! descent: [`NewValues`], by [`TsneConfig::changes`] or [`TsneTrainer::change`]. Equal rows as one
//! point: [`TsneConfig::unique`].
//!
//! | symbol | where | shape |
//! |---|---|---|
//! | `x` | prepared rows | `[n, n_features]` |
//! | `y` | [`Embedding::layout`] | `[n, n_dims]` |
//! | `p` | [`TsneTrainer::affinities`] | `n` compressed rows |
//! | `α` | [`TsneConfig::degrees_of_freedom`] | |
//!
//! The stages stand alone, with their equations, in [`chandlery_ops::tsne`]: `knn` in
//! [`neighbours`](chandlery_ops::tsne::neighbours), `perplexity_search` and `symmetrize` in
//! [`affinities`](chandlery_ops::tsne::affinities), [`Repulsion`](chandlery_ops::tsne::Repulsion),
//! and `layout_step_` in [`layout`](chandlery_ops::tsne::layout). The same seed on the same device
//! gives the same bits.
//!
//! Sources: van der Maaten and Hinton, "Visualizing data using t-SNE", JMLR 9, 2008; Linderman et
//! al., "Fast interpolation-based t-SNE", 2019; Han-Chen, "Accelerating TSNE with GPUs: from hours
//! to seconds", 2019; the schedule is that of Poličar et al., "openTSNE", 2019.
//!
//! Departures from Han-Chen, whose library is cuML; `bench paper cuml` measures both sides:
//!
//! | his | here |
//! |---|---|
//! | Barnes-Hut with θ = .5, or all pairs below 2,000 rows | FFT on a grid in 2 dimensions; Barnes-Hut is [`Method::BarnesHut`], over points sorted along a curve, whose cells are judged for 16 neighbouring points together, 32 on a GPU |
//! | optimisation 1: both directions of an edge in coordinate form, at row pointers that atomic additions move on | both ends merged to one entry of compressed rows, in a fixed order: 8 bytes an entry in place of 12, and the same bits in every run |
//! | optimisation 2: affinities of the `k` nearest rows, by FAISS | the same, by a search of our own that is exact up to 150,000 rows ([`TsneConfig::approximate`]) and finds a wanted share beyond ([`TsneConfig::recall`]) |
//! | optimisation 3: attraction for both ends of an edge at once | each end by itself, without atomic additions; the step reads an edge and gathers a point twice |
//! | optimisation 4: what the coordinates of a pair share is computed once | the same |
//! | points that come out too far are pushed back, and their momentum starts anew | no point moves by more than 5 in a step; his is [`TsneConfig::push_back`] |
//! | 1,000 iterations from a random start | 750 from principal components, [`TsneConfig::start`] |
//! | a learning rate that follows the data in a way that is not printed | rows over exaggeration ([`TsneConfig::learning_rate`]) |
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::Philox;
//! use chandlery::tsne::{Tsne, TsneConfig};
//! # fn main() -> candle::Result<()> {
//! // Two groups of 20 points, far from each other.
//! let noise = chandlery_ops::core::uniform((40, 5), &Cpu, Philox::new(0, 0))?;
//! let group = Tensor::arange(0u32, 40, &Cpu)?.ge(20u32)?.to_dtype(candle::DType::F32)?.unsqueeze(1)?;
//! let rows = noise.broadcast_add(&(group * 50.)?)?;
//! let tsne = Tsne { config: TsneConfig { perplexity: 5., ..TsneConfig::default() }, philox: Philox::new(0, 1) };
//! let embedding = tsne.fit(&rows)?;
//! assert_eq!(embedding.layout().dims(), [40, 2]);
//! let y = embedding.layout().to_vec2::<f32>()?;
//! let distance = |a: usize, b: usize| ((y[a][0] - y[b][0]).powi(2) + (y[a][1] - y[b][1]).powi(2)).sqrt();
//! assert!(distance(0, 1) < distance(0, 39));
//! # Ok(()) }
//! ```
mod affinity;
mod alike;
mod changes;
mod conditional;
mod config;
mod distances;
mod embedding;
mod given;
mod line;
mod matrix;
pub mod measure;
mod memory;
mod neighbours;
mod order;
mod ranks;
mod run;
mod run_of_matrix;
mod schedule;
mod spectral;
mod start;
mod transform;
mod transform_config;
mod transform_trainer;
mod unique;

pub use affinity::Affinity;
pub use chandlery_ops::tsne::{Affinities, Metric, Neighbours, Recall};
pub use changes::{Change, NewValues};
pub use config::{Method, Start, TsneConfig};
pub use embedding::Embedding;
pub use given::{CheckedNeighbours, GivenNeighbours, WrongNeighbours};
pub use matrix::GivenDistances;
pub use memory::MemoryNeeds;
pub use run::{Progress, StageSeconds, TsneTrainer};
pub use spectral::spectral_layout;
pub use transform_config::TransformConfig;
pub use transform_trainer::{TransformProgress, TransformTrainer};

use crate::{FullBatchTrainer, Philox, Trainer};
use candle::{Result, Tensor};
use std::ops::ControlFlow;

/// Makes layouts: settings, and where random numbers come from.
#[derive(Debug, Clone)]
pub struct Tsne {
    /// The settings.
    pub config: TsneConfig,
    /// Where random numbers come from. Each use of them has a stream of its own: `stream` with the
    /// upper byte exchanged.
    pub philox: Philox,
}

/// What random numbers are used for. Each has a stream of its own, so that none sees the draws of
/// another.
#[derive(Debug, Clone, Copy)]
enum Draw {
    /// The cells of an approximate search, and the rows that its recall is measured on.
    Cells = 1,
    /// Which of several equally far rows are neighbours.
    Ties,
    /// The rows among which those are looked for.
    Candidates,
    /// The first directions of the search for principal components, or for those of a random walk.
    Directions,
    /// Coordinates of the first layout.
    Start,
}

impl Draw {
    fn of(self, philox: Philox) -> Philox {
        Philox { stream: philox.stream ^ ((self as u64) << 56), ..philox }
    }
}

impl Tsne {
    /// The layout of raw `rows`, `[n, n_features]` u8 or f32, on their device.
    ///
    /// # Errors
    /// When the configuration does not fit the rows, an entry is not finite (the message names row
    /// and column), the descent becomes infinite or NaN, or memory is short.
    pub fn fit(&self, rows: &Tensor) -> Result<Embedding> {
        self.fit_with(rows, |_, _| Ok(ControlFlow::Continue(())))
    }

    /// The same; `each` sees the run every 50 iterations and at the end of each phase, and may end
    /// it.
    ///
    /// # Errors
    /// As [`fit`](Self::fit), and when `each` fails.
    pub fn fit_with(
        &self,
        rows: &Tensor,
        each: impl FnMut(&mut TsneTrainer, &Progress) -> Result<ControlFlow<()>>,
    ) -> Result<Embedding> {
        let mut run = TsneTrainer::new(self.config.clone(), self.philox, rows)?;
        run.fit_with(each)?;
        run.model()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_of_random_numbers_has_a_stream_of_its_own() {
        let uses = [Draw::Cells, Draw::Ties, Draw::Candidates, Draw::Directions, Draw::Start];
        let mut streams: Vec<u64> = uses.iter().map(|of| of.of(Philox::new(3, 1 << 32)).stream).collect();
        streams.push(1 << 32);
        streams.sort_unstable();
        streams.dedup();
        assert_eq!(streams.len(), uses.len() + 1);
    }
}
