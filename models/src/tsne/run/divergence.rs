//! The divergence on the way.
use super::super::line::dims_of_ops;
use super::super::measure::{at_least_0, kl_of_affinities};
use super::TsneTrainer;
use candle::Result;
use chandlery_ops::tsne::{Repulsion, RepulsionMethod, grid_sides, layout_divergence};

impl TsneTrainer {
    /// The divergence of the layout as it is, with the sums over all pairs of the run's method.
    /// Waits for the device. To be called on all ranks of a group.
    ///
    /// # Errors
    /// When memory is short, or a rank is gone.
    pub fn kl(&self) -> Result<f64> {
        let Some((method, repulsion)) = &self.repulsion else {
            if self.unique.is_some() {
                return Ok(self.kl_estimate(&self.layout()?, usize::MAX)?.value);
            }
            let alpha = self.objective.degrees_of_freedom;
            return kl_of_affinities(&self.points.graph, &self.state.layout, alpha);
        };
        let (alpha, weights) = (self.objective.degrees_of_freedom, self.state.weights.as_ref());
        match self.finer(*method) {
            Some(method) => {
                let (n, device) = (self.affinities.n(), self.state.layout.device());
                let finer = Repulsion::new(method, n, dims_of_ops(self.config.n_dims), alpha, device)?;
                finer.repulsion_of_(&self.forces, &self.total, &self.state.layout, weights)?;
            }
            None => {
                repulsion.repulsion_of_(&self.forces, &self.total, &self.state.layout, weights)?;
                self.ranks.group.all_reduce_(&self.total)?;
            }
        }
        let kl = layout_divergence(&self.points.graph, &self.state.layout, &self.total, alpha)?;
        Ok(at_least_0(kl.get(0)?.to_scalar::<f64>()? - self.of_pairs))
    }

    /// How the divergence is told where the nodes of the descent are far apart: by nearer ones, or
    /// by all pairs where these are fewer.
    fn finer(&self, method: RepulsionMethod) -> Option<RepulsionMethod> {
        /// In units of the layout: errors are some thousandths.
        const NEAR: f64 = 0.2;
        /// Pairs that take the CPU as long as a node of a new grid.
        const PAIRS: usize = 300;
        let RepulsionMethod::Grid { nodes } = method else { return None };
        if self.span <= NEAR * nodes as f64 {
            return None;
        }
        let (n, device) = (self.affinities.n(), self.state.layout.device());
        let nodes = grid_sides(device).find(|&side| side >= 2 * nodes)?;
        let is_few = device.is_cpu() && n.saturating_mul(n) <= PAIRS * nodes * nodes;
        Some(if is_few { RepulsionMethod::Exact } else { RepulsionMethod::Grid { nodes } })
    }
}
