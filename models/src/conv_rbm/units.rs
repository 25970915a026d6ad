//! The units of maps: what an [`Rbm`](crate::rbm::Rbm) with a convolution computes in place of
//! products with one matrix.
use super::ConvGrid;
use candle::{DType, Result, Tensor};
use candle_nn::ops::sigmoid;
use chandlery_ops::Philox;
use chandlery_ops::core::Draws;
use chandlery_ops::images::{
    PoolSide, convolution, convolution_transposed, pool_units_, spread_blocks_reference,
};
use chandlery_ops::layers::UnitPlanes;

/// What the probabilities of blocks are made of,
/// `[rows, blocks down, 1, blocks across, 1, n_filters]`, but for `e`.
struct BlockSums {
    /// The largest of 0 and the pre-activations of a block.
    top: Tensor,
    /// `e^(x − top)` of each unit, in the shape of [`ConvGrid::by_block`].
    e: Tensor,
    /// The sum of `e` over a block.
    sum: Tensor,
    /// `sum`, and `e^(− top)` of the state in which all units are off.
    total: Tensor,
}

impl ConvGrid {
    /// `[rows, n_units]` as `[rows, blocks down, pool, blocks across, pool, n_filters]`.
    fn by_block(&self, x: &Tensor) -> Result<Tensor> {
        let (p, down, across) = (self.pool, self.maps_height() / self.pool, self.maps_width() / self.pool);
        x.reshape(vec![x.dim(0)?, down, p, across, p, self.n_filters])
    }

    /// The sums of blocks from pre-activations with biases, `[rows, n_units]`. Differentiable.
    fn block_sums(&self, x: &Tensor) -> Result<BlockSums> {
        let x = self.by_block(x)?;
        // The results do not depend on it.
        let top = x.detach().max_keepdim(2)?.max_keepdim(4)?.relu()?;
        let e = x.broadcast_sub(&top)?.exp()?;
        let sum = e.sum_keepdim((2, 4))?;
        let total = (&sum + top.neg()?.exp()?)?;
        Ok(BlockSums { top, e, sum, total })
    }

    /// Means of the pooled units, `[rows, n_pooled]`, from pre-activations `x` with biases.
    /// Differentiable.
    pub(crate) fn pooled_mean(&self, x: &Tensor) -> Result<Tensor> {
        if self.pool == 1 {
            return sigmoid(x);
        }
        if x.dtype() == DType::F32 && !x.track_op() {
            let out = UnitPlanes { mean: Some(0), ..UnitPlanes::default() };
            return self.pool_units(x, PoolSide::Pooled, out, Draws::Mode);
        }
        let BlockSums { sum, total, .. } = self.block_sums(x)?;
        (sum / total)?.reshape((x.dim(0)?, self.n_pooled()))
    }

    /// Means of the units of maps, `[rows, n_units]`, from pre-activations `x` with biases.
    /// Differentiable.
    pub(crate) fn units_mean(&self, x: &Tensor) -> Result<Tensor> {
        if self.pool == 1 {
            return sigmoid(x);
        }
        let BlockSums { e, total, .. } = self.block_sums(x)?;
        e.broadcast_div(&total)?.reshape(x.shape())
    }

    /// `Σ ln(1 + Σ_t e^x_t)` over blocks, `[rows]`.
    pub(crate) fn softplus_of_blocks(&self, x: &Tensor) -> Result<Tensor> {
        let BlockSums { top, total, .. } = self.block_sums(x)?;
        (top + total.log()?)?.flatten_from(1)?.sum(1)
    }

    /// Draws from pre-activations `x` with biases, of the type of `x`.
    pub(crate) fn sample(&self, x: &Tensor, side: PoolSide, philox: Philox) -> Result<Tensor> {
        let out = UnitPlanes { sample: Some(0), ..UnitPlanes::default() };
        self.pool_units(&x.detach().to_dtype(DType::F32)?, side, out, Draws::At(philox))?.to_dtype(x.dtype())
    }

    fn pool_units(&self, x: &Tensor, side: PoolSide, out: UnitPlanes, draws: Draws<'_>) -> Result<Tensor> {
        let n = match side {
            PoolSide::Detection => self.n_units(),
            PoolSide::Pooled => self.n_pooled(),
        };
        let planes = Tensor::zeros((1, x.dim(0)?, n), DType::F32, x.device())?;
        let no_bias = Tensor::zeros(self.n_filters, DType::F32, x.device())?;
        pool_units_(&planes, &x.contiguous()?, &no_bias, self.pools(), side, out, draws)?;
        planes.squeeze(0)
    }

    /// Values of the units of maps from those of pooled units: each has `1/pool²` of its block's.
    pub(crate) fn spread(&self, pooled: &Tensor) -> Result<Tensor> {
        if self.pool == 1 {
            return Ok(pooled.clone());
        }
        spread_blocks_reference(pooled, self.pools())
    }

    /// Pre-activations of the units of maps, `[batch, n_units]`, from `v`, `[batch, n_visible]`, by
    /// filters `weight` with a bias for each map.
    pub(crate) fn maps_input(&self, v: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        of_places(&convolution(&self.channels_last(v)?.contiguous()?, weight, self.shape())?, bias)
    }

    /// What goes into the visible units, `[batch, n_visible]`, from units of maps,
    /// `[batch, n_units]`, with a bias for each channel.
    pub(crate) fn visible_input(&self, units: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let x = convolution_transposed(&units.contiguous()?, weight, self.shape())?;
        self.planes_first(&of_places(&x, bias)?)
    }
}

/// Adds a bias to each of the values of a place.
fn of_places(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let n = bias.elem_count();
    x.reshape(((), n))?.broadcast_add(bias)?.reshape(x.shape())
}
