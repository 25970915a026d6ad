//! The divergence on the way.
use super::super::measure::{at_least_0, kl_of_affinities};
use super::TsneTrainer;
use candle::Result;
use chandlery_ops::tsne::{Repulsion, RepulsionMethod, grid_sides, layout_divergence};

impl TsneTrainer {
    /// The divergence of the layout as it is, with the sums over all pairs of the run's method.
    /// Waits for the device.
    ///
    /// # Errors
    /// When memory is short.
    pub fn kl(&self) -> Result<f64> {
        let Some((method, repulsion)) = &self.repulsion else {
            let alpha = self.config.degrees_of_freedom;
            return kl_of_affinities(&self.points.graph, &self.state.layout, alpha);
        };
        let alpha = self.config.degrees_of_freedom;
        match self.finer_grid(*method) {
            Some(nodes) => {
                let (n, device) = (self.affinities.n(), self.state.layout.device());
                let method = RepulsionMethod::Grid { nodes };
                let finer = Repulsion::new(method, n, self.config.n_dims, alpha, device)?;
                finer.repulsion_(&self.forces, &self.total, &self.state.layout)?;
            }
            None => repulsion.repulsion_(&self.forces, &self.total, &self.state.layout)?,
        }
        let kl = layout_divergence(&self.points.graph, &self.state.layout, &self.total, alpha)?;
        Ok(at_least_0(kl.get(0)?.to_scalar()?))
    }

    /// Nodes of a side by which the divergence is told, where those of the descent are far apart.
    fn finer_grid(&self, method: RepulsionMethod) -> Option<usize> {
        /// In units of the layout: errors are some thousandths.
        const NEAR: f64 = 0.2;
        match method {
            RepulsionMethod::Grid { nodes } if self.span > NEAR * nodes as f64 => {
                grid_sides(self.state.layout.device()).find(|&side| side >= 2 * nodes)
            }
            _ => None,
        }
    }
}
