//! New points in a layout that stays.
use super::line::{for_ops, from_ops};
use super::neighbours::{in_unit, unit_of};
use super::transform_config::{OP, TransformConfig};
use super::{Embedding, Method};
use crate::model::Model;
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::elementwise::contiguous;
use chandlery_ops::tsne::{PlaceSteps, RepulsionField, knn_of, perplexity_search, place_points};

impl Embedding {
    /// [`transform`](Self::transform) with other settings.
    ///
    /// Cost: a search among all training rows, and `m` places on a grid an iteration; `m · n` pairs
    /// where the layout has 3 dimensions or few points ([`TsneConfig::method`](super::TsneConfig::method)), and of new points
    /// that leave the grid.
    ///
    /// # Errors
    /// When a setting is out of range, the embedding has no rows, or the new ones do not fit them.
    pub fn transform_with(&self, rows: &Tensor, config: &TransformConfig) -> Result<Tensor> {
        match rows.dim(0)? {
            m if m > 0 && self.rows.is_some() => {
                self.transform_prepared(&self.prepare(&rows.to_device(self.layout.device())?)?, config)
            }
            _ => self.transform_prepared(rows, config),
        }
    }

    /// The same for rows that are prepared already, f32 `[m, n_features]`.
    ///
    /// # Errors
    /// As [`transform_with`](Self::transform_with).
    pub fn transform_prepared(&self, rows: &Tensor, config: &TransformConfig) -> Result<Tensor> {
        let Some(training) = self.prepared_rows()? else {
            candle::bail!(
                "{OP}: this embedding was made from neighbours, distances or affinities and has no rows to compare with; lay all rows out together"
            )
        };
        config.validate()?;
        let n = self.layout.dim(0)?;
        let config = &config.lowered(n);
        let (m, device) = (rows.dim(0)?, self.layout.device());
        if m == 0 {
            return Tensor::zeros((0, self.config.n_dims), DType::F32, device);
        }
        let k = ((3. * config.perplexity).ceil() as usize).clamp(1, n);
        let rows = rows.to_device(device)?;
        let unit = unit_of(&training, self.config.metric)?;
        let near = knn_of(&in_unit(&rows, unit)?, &in_unit(&training, unit)?, k, self.config.metric)?;
        let p = perplexity_search(&near.distances, &[config.perplexity.min(k as f64)])?;
        let layout = for_ops(&self.layout)?;
        let placed = place_points(&near.indices, &p, &layout, self.field()?.as_ref(), &self.steps(config))?;
        from_ops(placed, self.config.n_dims)
    }

    /// What the layout does to points beside it, where a grid tells it.
    fn field(&self) -> Result<Option<RepulsionField>> {
        /// Of the distance of nodes of a descent: a grid that is made once may be finer.
        const FINER: f64 = 0.5;
        /// Units around the layout, beyond which points go their way with exact sums.
        const MARGIN: f64 = 5.;
        let (n, on_gpu) = (self.layout.dim(0)?, self.layout.device().is_cuda());
        if self.config.n_dims != 2 || self.config.method_for(n, on_gpu) == Method::Exact {
            return Ok(None);
        }
        let distance = FINER * f64::from(self.config.node_distance);
        let layout = &contiguous(&self.layout)?;
        RepulsionField::new(layout, distance, MARGIN, self.config.degrees_of_freedom).map(Some)
    }

    fn steps(&self, config: &TransformConfig) -> PlaceSteps {
        PlaceSteps {
            degrees_of_freedom: self.config.degrees_of_freedom,
            iterations: config.iterations,
            exaggeration: config.exaggeration as f32,
            learning_rate: config.learning_rate as f32,
            momentum: config.momentum as f32,
            largest_gradient: config.largest_gradient as f32,
        }
    }
}
