//! The weights of a step in the form in which they are stored, and what a step does with them: both
//! products, and the update.
//!
//! | form | products | update |
//! |---|---|---|
//! | dense, f32 | `gemm_` and `units_` | [`cd_update_`] |
//! | dense, with a copy of 16 bits | [`units_of_product_`] | [`cd_update_`] |
//! | patches | [`units_of_patches_`] | [`patch_cd_update_`], [`patch_last_step_`] |
//! | filters | those of [`MapSteps`] | [`MapSteps::update`] |
use super::super::{Rbm, RbmConnections, RbmTrainConfig};
use super::share::HiddenShare;
use super::units::Units;
use crate::conv_rbm::MapSteps;
use crate::masters::{Format, Masters, Storage};
use candle::{D, DType, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::images::{
    PatchDirection, PatchGrid, patch_cd_update_, patch_gradient_, patch_last_step_, sums_of_patches_,
    units_of_patches_,
};
use chandlery_ops::layers::{
    BiasStep, CdUpdate, Factors, Phases, Sparsity, Unit, WeightStep, cd_update_, gemm_, gemm_parts_,
    max_norm_rows_, units_, units_of_product_, weight_step_,
};
use chandlery_ops::{Philox, Precision};

/// Weights are rounded by the stream of the units' draws with this bit turned.
const ROUNDING_STREAM: u64 = 1 << 63;

/// Which visible units a hidden unit sees, with the memory that steps of it need.
#[derive(Clone)]
pub(super) enum Form {
    Dense,
    /// `[.., n_hidden, n_visible]` below is `[.., n_patches, hidden, window_len]`.
    Patches(PatchGrid),
    /// Hidden units are those of maps, and biases are those of maps and channels.
    Maps(MapSteps),
}

/// The weights, their velocity, and how products read them. Clones share memory.
#[derive(Clone)]
pub(in super::super) struct Weights {
    pub(super) form: Form,
    /// Weights `[n_hidden, n_visible]`, and how states and weights are stored for products.
    pub(in super::super) masters: Masters,
    precision: Precision,
    /// Where the draws begin by which bf16 weights are rounded.
    pub(super) rounding: Option<Philox>,
}

/// States of both phases, of one part: `[2, batch, n_hidden]` and `[2, batch, n_visible]`.
pub(super) struct States {
    pub hidden: Tensor,
    pub visible: Tensor,
}

/// States and biases that an update reads and writes.
pub(super) struct Update<'a> {
    /// `[parts, 3, batch, n_hidden]` and `[parts, 2, batch, n_visible]`.
    pub hidden: &'a Tensor,
    pub visible: &'a Tensor,
    pub hidden_state: &'a Tensor,
    pub visible_state: &'a Tensor,
    pub scalars: &'a Tensor,
    pub counter: &'a Tensor,
}

impl Weights {
    /// Those of `rbm`, for steps on so many rows, and where ranks learn together from rows of their
    /// own in memory for weights and velocity, `[2, n_weights]`.
    pub(super) fn new(
        rbm: &Rbm,
        config: &RbmTrainConfig,
        philox: Philox,
        rows: usize,
        together: Option<Tensor>,
    ) -> Result<Self> {
        let (device, of) = (rbm.weight().device(), rbm.config());
        let format = match together {
            Some(_) => Format::plain(of, config.precision),
            None => Format::of(of, config.precision, device),
        };
        let storage = format.storage(of, config, device);
        let rounding = (storage == Storage::Bf16)
            .then_some(Philox { stream: philox.stream ^ ROUNDING_STREAM, ..philox });
        let shape = rbm.weight().dims();
        let masters = match together {
            Some(together) if rounding.is_none() => {
                Masters::of(together.reshape([&[2], shape].concat())?, format)?
            }
            _ => Masters::zeros(shape, storage, format, device)?,
        };
        let weight = masters.weight()?;
        scale_into_(&weight, &rbm.weight().to_dtype(DType::F32)?.contiguous()?, 1.)?;
        masters.set_weight(&weight)?;
        let form = match of.connections {
            RbmConnections::Dense => Form::Dense,
            RbmConnections::Patches(grid) => Form::Patches(grid),
            // A minibatch may have no row for this rank.
            RbmConnections::Filters(grid) => Form::Maps(MapSteps::new(grid, rows.max(1), device)?),
        };
        Ok(Self { form, masters, precision: config.precision, rounding })
    }

    /// These with the memory of `shared`, for steps of another number of rows.
    pub(super) fn sharing(self, shared: &Self) -> Self {
        Self { form: self.form, ..shared.clone() }
    }

    /// How states and weights are stored for products.
    pub(super) fn format(&self) -> Format {
        self.masters.format
    }

    /// Numbers that a state is the sum of.
    pub(super) fn parts(&self) -> usize {
        self.format().parts()
    }

    /// The grid of patches.
    pub(super) fn patches(&self) -> Option<&PatchGrid> {
        match &self.form {
            Form::Patches(grid) => Some(grid),
            Form::Dense | Form::Maps(_) => None,
        }
    }

    /// The maps of filters.
    pub(in super::super) fn maps(&self) -> Option<&MapSteps> {
        match &self.form {
            Form::Maps(maps) => Some(maps),
            Form::Dense | Form::Patches(_) => None,
        }
    }

    /// Hidden units given `visible`, `[parts, batch, n_visible]`.
    pub(super) fn hidden_units(&self, visible: &Tensor, to: Units<'_>) -> Result<()> {
        let Units { planes, pre, bias, unit, out, draws } = to;
        match (&self.form, &self.masters.copy) {
            (Form::Maps(maps), _) => {
                maps.hidden_units(planes, pre, &visible.get(0)?, &self.masters.weight()?, bias, out, draws)
            }
            (Form::Patches(grid), _) => {
                let (weight, scale) = self.parts_of_patches()?;
                let up = PatchDirection::Up;
                units_of_patches_(
                    planes, pre, visible, &weight, grid, up, scale, bias, unit, out, draws, None,
                )
            }
            (Form::Dense, None) => {
                let weight = self.masters.weight()?.t()?;
                gemm_(pre, &visible.get(0)?, &weight, Factors::OVERWRITE, self.precision)?;
                units_(planes, pre, bias, unit, out, draws, None)
            }
            (Form::Dense, Some(copy)) => {
                let (weight, scale) = (copy.transpose(1, 2)?, self.format().product_scale());
                units_of_product_(planes, pre, visible, &weight, scale, bias, unit, out, draws)
            }
        }
    }

    /// Visible units given `hidden`, `[batch, n_hidden]`, with the deviations `stdev` of Gaussian
    /// ones. Where ranks share the hidden units, their pre-activations are summed over those of
    /// `share`.
    pub(super) fn visible_units(
        &self,
        hidden: &Tensor,
        to: Units<'_>,
        stdev: Option<&Tensor>,
        share: &HiddenShare,
    ) -> Result<()> {
        let Units { planes, pre, bias, unit, out, draws } = to;
        let alone = share.group.is_single();
        let parts = || hidden.unsqueeze(0); // 0 and 1 have no second part
        match (&self.form, &self.masters.copy) {
            (Form::Maps(maps), _) => {
                maps.visible_sums(pre, hidden, &self.masters.weight()?)?;
                share.sum_(pre)?;
                maps.visible_units(planes, pre, bias, unit, out, draws)
            }
            (Form::Patches(grid), _) => {
                let ((weight, scale), down) = (self.parts_of_patches()?, PatchDirection::Down);
                let hidden = parts()?;
                if !alone {
                    sums_of_patches_(pre, &hidden, &weight, grid, down, scale)?;
                    share.sum_(pre)?;
                    return share.visible_units(&to, stdev);
                }
                units_of_patches_(
                    planes, pre, &hidden, &weight, grid, down, scale, bias, unit, out, draws, stdev,
                )
            }
            (Form::Dense, None) => {
                gemm_(pre, hidden, &self.masters.weight()?, Factors::OVERWRITE, self.precision)?;
                share.sum_(pre)?;
                units_(planes, pre, bias, unit, out, draws, stdev)
            }
            (Form::Dense, Some(copy)) if !alone => {
                gemm_parts_(pre, &parts()?, copy, self.format().product_scale())?;
                share.sum_(pre)?;
                units_(planes, pre, bias, unit, out, draws, stdev)
            }
            (Form::Dense, Some(copy)) => {
                let scale = self.format().product_scale();
                units_of_product_(planes, pre, &parts()?, copy, scale, bias, unit, out, draws)
            }
        }
    }

    /// The gradient `hᵀ x` of whole states, `[2 · batch, n_hidden]` and `[2 · batch, n_visible]`,
    /// in f32.
    pub(super) fn gradient(&self, h: &Tensor, x: &Tensor) -> Result<Tensor> {
        let Form::Patches(grid) = &self.form else { return h.t()?.matmul(x) };
        let gradient = self.masters.weight()?.zeros_like()?;
        patch_gradient_(&gradient, &h.unsqueeze(0)?, &x.unsqueeze(0)?, grid, Factors::OVERWRITE)?;
        Ok(gradient)
    }

    /// Velocity, weights and biases from the states of both phases; with `last_means`, the
    /// pre-activations of hidden units and their kind, after the means of the negative phase.
    pub(super) fn update(
        &self,
        states: Update<'_>,
        step: CdUpdate<'_>,
        last_means: Option<(&Tensor, Unit)>,
        max_norm: Option<f64>,
    ) -> Result<()> {
        let Update { hidden, visible, hidden_state, visible_state, scalars, counter } = states;
        let to = self.masters.operands(hidden_state, visible_state, counter);
        match &self.form {
            Form::Dense => cd_update_(to, hidden, visible, scalars, step)?,
            Form::Patches(grid) => match last_means {
                Some((pre, unit)) => patch_last_step_(to, hidden, pre, visible, grid, unit, scalars, step)?,
                None => patch_cd_update_(to, hidden, visible, grid, scalars, step)?,
            },
            Form::Maps(maps) => maps.update(to, &hidden.get(0)?, &visible.get(0)?, scalars, step)?,
        }
        self.shorten(max_norm)
    }

    /// Scales rows beyond a norm back to it.
    fn shorten(&self, max_norm: Option<f64>) -> Result<()> {
        let Some(max_norm) = max_norm else { return Ok(()) };
        let weight = self.masters.weight()?;
        let len = weight.dim(D::Minus1)?;
        max_norm_rows_(&weight.reshape(((), len))?, max_norm as f32)?;
        self.masters.set_weight(&weight)
    }

    /// `V ← factors[0] hᵀ x + factors[1] V` of both phases, for states of one part.
    pub(super) fn add_gradient(&self, states: &States, factors: &Tensor) -> Result<()> {
        let (velocity, factors) = (self.masters.velocity()?, Factors::Tensor(factors));
        let States { hidden, visible } = states;
        let (h, x) = (hidden.flatten(0, 1)?, visible.flatten(0, 1)?);
        match &self.form {
            Form::Dense => gemm_(&velocity, &h.t()?, &x, factors, self.precision),
            Form::Patches(grid) => {
                patch_gradient_(&velocity, &h.unsqueeze(0)?, &x.unsqueeze(0)?, grid, factors)
            }
            Form::Maps(maps) => maps.add_gradient(&velocity, hidden, visible, factors),
        }
    }

    /// The rest of the step, once the velocity is complete.
    pub(super) fn step_by_velocity(
        &self,
        scalars: &Tensor,
        decay: WeightStep,
        max_norm: Option<f64>,
    ) -> Result<()> {
        weight_step_(&self.masters.params()?, scalars, decay)?;
        match max_norm {
            Some(_) => self.shorten(max_norm),
            None => self.masters.set_weight(&self.masters.weight()?),
        }
    }

    /// How the biases of both sides follow [`planes_of_biases`](Self::planes_of_biases).
    pub(super) fn bias_steps(&self, sparsity: Option<Sparsity>) -> [BiasStep<'_>; 2] {
        if let Form::Maps(maps) = &self.form {
            return maps.bias_steps(sparsity);
        }
        let of = |phases| BiasStep { phases, sparsity: None, gather_error: false, scale: None, sums: None };
        let of_hidden = BiasStep { sparsity, ..of(Phases::Sum) };
        [of_hidden, BiasStep { gather_error: true, ..of(Phases::Difference) }]
    }

    /// The states of both phases as biases follow them, `[2, n, biases]` of each side.
    pub(super) fn planes_of_biases(&self, states: &States) -> Result<[Tensor; 2]> {
        let States { hidden, visible } = states;
        match &self.form {
            Form::Maps(maps) => maps.planes_of_biases(hidden, visible),
            Form::Dense | Form::Patches(_) => Ok([hidden.clone(), visible.clone()]),
        }
    }

    /// The weights as products of patches read them, in parts, and the factor on such a product.
    fn parts_of_patches(&self) -> Result<(Tensor, f32)> {
        Ok((self.masters.operand()?, self.format().product_scale()))
    }
}
