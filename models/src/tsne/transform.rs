//! New points in a layout that stays.
use super::Embedding;
use super::neighbours::{in_unit, unit_of};
use super::transform_config::{OP, TransformConfig};

use crate::model::Model;
use candle::{D, DType, Result, Tensor};
use chandlery_ops::arrays::gather_rows_by;
use chandlery_ops::tsne::{knn_of, perplexity_search, repulsion_at};

/// New rows that descend in one go.
const BLOCK: usize = 4096;

impl Embedding {
    /// [`transform`](Self::transform) with other settings.
    ///
    /// Cost: a search among the training rows, and `m · n` pairs an iteration.
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
            candle::bail!("{OP}: this embedding was made from affinities and has no rows to compare with")
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
        let block = |start: usize| {
            let part = |t: &Tensor| t.narrow(0, start, BLOCK.min(m - start));
            self.place(&part(&near.indices)?, &part(&p)?, config)
        };
        let blocks = (0..m).step_by(BLOCK).map(block).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&blocks, 0)
    }

    /// The places of rows from their neighbours, u32 `[m, k]`, and affinities to them, f32
    /// `[m, k]`.
    fn place(&self, neighbours: &Tensor, p: &Tensor, config: &TransformConfig) -> Result<Tensor> {
        let (m, k) = neighbours.dims2()?;
        let p = p.unsqueeze(D::Minus1)?;
        let targets = gather_rows_by(&self.layout, &neighbours.flatten_all()?)?;
        let targets = targets.reshape((m, k, self.config.n_dims))?;
        let alpha = f64::from(self.config.degrees_of_freedom);
        let mut y = p.broadcast_mul(&targets)?.sum(1)?;
        let mut velocity = y.zeros_like()?;
        for _ in 0..config.iterations {
            let difference = y.unsqueeze(1)?.broadcast_sub(&targets)?;
            let near = ((difference.sqr()?.sum_keepdim(D::Minus1)? / alpha)? + 1.)?.recip()?;
            let attraction = (&p * near)?.broadcast_mul(&difference)?.sum(1)?;
            let (forces, totals) =
                repulsion_at(&y.contiguous()?, &self.layout, self.config.degrees_of_freedom)?;
            // As in a step of the training, nothing repels a point whose total is 0.
            let totals = (&totals + totals.eq(0f32)?.to_dtype(DType::F32)?)?;
            let repulsion = forces.broadcast_div(&totals.unsqueeze(1)?)?;
            let gradient = (((attraction * config.exaggeration)? - repulsion)? * 4.)?;
            let norm = gradient.sqr()?.sum_keepdim(1)?.sqrt()?;
            let shortened =
                (config.largest_gradient / norm.clamp(config.largest_gradient, f64::INFINITY)?)?;
            let step = (gradient.broadcast_mul(&shortened)? * config.learning_rate)?;
            velocity = ((velocity * config.momentum)? - step)?;
            y = (y + &velocity)?;
        }
        Ok(y)
    }
}
