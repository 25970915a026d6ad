//! The parts of a step of contrastive divergence that differ for maps of units.
use super::ConvGrid;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::core::{Draws, advance_};
use chandlery_ops::images::{
    PoolSide, convolution_, convolution_gradient_places, convolution_input_gradient_,
    convolution_weight_gradient_, pool_units_,
};
use chandlery_ops::layers::{
    BiasStep, CdOperands, CdUpdate, Factors, Phases, Sparsity, Unit, UnitPlanes, bias_step_, bias_sums_shape,
    units_, weight_step_,
};

/// Where filters lie, and the memory that their gradients need.
#[derive(Clone)]
pub(crate) struct MapSteps {
    grid: ConvGrid,
    /// Partial sums of the gradient of both phases.
    parts: Tensor,
    /// Partial sums over the places of the maps and of the images.
    hidden_sums: Tensor,
    visible_sums: Tensor,
}

impl MapSteps {
    /// Memory for minibatches of `batch` rows.
    pub(crate) fn new(grid: ConvGrid, batch: usize, device: &Device) -> Result<Self> {
        let shape = grid.shape();
        let places = convolution_gradient_places(device, shape, 2 * batch, DType::F32)?;
        let zeros = |rows: usize, columns: usize| Tensor::zeros((rows, columns), DType::F32, device);
        let sums = |places: usize, n: usize| {
            let (rows, columns) = bias_sums_shape(batch * places, n);
            zeros(rows, columns)
        };
        Ok(Self {
            parts: zeros(places, shape.n_filters * shape.filter_len())?,
            hidden_sums: sums(grid.n_positions(), grid.n_filters)?,
            visible_sums: sums(grid.n_places(), grid.channels())?,
            grid,
        })
    }

    /// Places that a gradient of weights is the mean over, for each row.
    pub(crate) fn n_positions(&self) -> usize {
        self.grid.n_positions()
    }

    /// Draws of hidden units for each row: one for each block.
    pub(crate) fn n_draws(&self) -> usize {
        self.grid.n_pooled()
    }

    /// Units of maps given `visible`, `[batch, n_visible]`, to `planes`, `[_, batch, n_units]`.
    #[expect(clippy::too_many_arguments, reason = "a product and the units of it")]
    pub(crate) fn hidden_units(
        &self,
        planes: &Tensor,
        pre: &Tensor,
        visible: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        out: UnitPlanes,
        draws: Draws<'_>,
    ) -> Result<()> {
        convolution_(pre, visible, weight, self.grid.shape())?;
        match self.grid.pool {
            1 => {
                let (planes, pre) =
                    (by_place(planes, self.grid.n_filters)?, pre.reshape(((), self.grid.n_filters))?);
                units_(&planes, &pre, bias, Unit::Bernoulli, out, draws, None)
            }
            _ => pool_units_(planes, pre, bias, self.grid.pools(), PoolSide::Detection, out, draws),
        }
    }

    /// Pre-activations of visible units given units of maps, `hidden`, `[batch, n_units]`.
    pub(crate) fn visible_sums(&self, pre: &Tensor, hidden: &Tensor, weight: &Tensor) -> Result<()> {
        convolution_input_gradient_(pre, hidden, weight, self.grid.shape())
    }

    /// Visible units of pre-activations, to `planes`, `[_, batch, n_visible]`.
    pub(crate) fn visible_units(
        &self,
        planes: &Tensor,
        pre: &Tensor,
        bias: &Tensor,
        unit: Unit,
        out: UnitPlanes,
        draws: Draws<'_>,
    ) -> Result<()> {
        let channels = self.grid.channels();
        units_(&by_place(planes, channels)?, &pre.reshape(((), channels))?, bias, unit, out, draws, None)
    }

    /// Velocity, weights and biases from the states of both phases, `[≥ 2, batch, n_units]` and
    /// `[≥ 2, batch, n_visible]`.
    pub(crate) fn update(
        &self,
        to: CdOperands<'_>,
        hidden: &Tensor,
        visible: &Tensor,
        scalars: &Tensor,
        step: CdUpdate<'_>,
    ) -> Result<()> {
        let (hidden, visible) = (hidden.narrow(0, 0, 2)?, visible.narrow(0, 0, 2)?);
        self.add_gradient(&to.params.get(1)?, &hidden, &visible, Factors::Tensor(scalars))?;
        weight_step_(to.params, scalars, step.weights)?;
        let [of_hidden, of_visible] = self.bias_steps(step.sparsity);
        let [hidden, visible] = self.planes_of_biases(&hidden, &visible)?;
        bias_step_(to.hidden_state, &hidden, scalars, of_hidden)?;
        bias_step_(to.visible_state, &visible, scalars, of_visible)?;
        advance_(to.counter, step.advance)
    }

    /// `velocity ← factors[0] hᵀ x + factors[1] velocity` of both phases, `[2, batch, n_units]` and
    /// `[2, batch, n_visible]`.
    pub(crate) fn add_gradient(
        &self,
        velocity: &Tensor,
        hidden: &Tensor,
        visible: &Tensor,
        factors: Factors<'_>,
    ) -> Result<()> {
        let (h, x) = (hidden.flatten(0, 1)?, visible.flatten(0, 1)?);
        convolution_weight_gradient_(velocity, &self.parts, &x, &h, self.grid.shape(), factors)
    }

    /// How the biases of maps and of channels follow [`planes_of_biases`](Self::planes_of_biases).
    pub(crate) fn bias_steps(&self, sparsity: Option<Sparsity>) -> [BiasStep<'_>; 2] {
        let of_hidden = BiasStep {
            phases: Phases::Sum,
            sparsity,
            gather_error: false,
            scale: None,
            sums: Some(&self.hidden_sums),
        };
        let of_visible = BiasStep {
            phases: Phases::Difference,
            sparsity: None,
            gather_error: true,
            scale: None,
            sums: Some(&self.visible_sums),
        };
        [of_hidden, of_visible]
    }

    /// The states of both phases with a row for each place.
    pub(crate) fn planes_of_biases(&self, hidden: &Tensor, visible: &Tensor) -> Result<[Tensor; 2]> {
        Ok([by_place(hidden, self.grid.n_filters)?, by_place(visible, self.grid.channels())?])
    }
}

/// Planes `[n, batch, places · values]` as `[n, batch · places, values]`.
fn by_place(planes: &Tensor, values: usize) -> Result<Tensor> {
    planes.reshape((planes.dim(0)?, (), values))
}
