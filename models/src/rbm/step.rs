//! One step of contrastive divergence: its memory and its sequence of ops.
//!
//! Everything is allocated in [`Buffers::new`]; [`Buffers::run`] is a fixed sequence of ops on that
//! memory, so that it can be recorded as a CUDA graph. For the equations see
//! [`train`](super::train).
mod minibatches;

use self::minibatches::{input_of, inputs_of, minibatches_at_once};
use super::lower::{LowerLayer, Place, hidden_unit};
use super::storage::{Format, store};
use super::variance::{self, Moments, Variance};
use super::{Rbm, RbmConfig, RbmTrainConfig, VisibleUnit, WeightStorage};
use crate::conv_rbm::{ConvGrid, MapSteps};
use crate::patch_rbm::Cells;
use candle::{D, DType, Result, Tensor};
use chandlery_ops::arrays::{halves_into_, joined_into_, scale_into_};
use chandlery_ops::core::{Draws, bernoulli, bernoulli_into_};
use chandlery_ops::images::{
    PatchDirection, PatchGrid, PoolSide, patch_contrast_step_, patch_gradient_, patch_last_step_,
    units_of_patches_,
};
use chandlery_ops::layers::{
    BiasGradients, Contrast, ContrastStep, Factors, Sparsity, Unit, UnitPlanes, WeightStep, contrast_step_,
    gemm_, max_norm_rows_, units_, units_of_product_,
};
use chandlery_ops::{Philox, Precision};

/// Planes of the visible states: `[v_k; v₀]`, so that one product takes both phases. With two parts
/// the second ones follow. Where several minibatches are loaded at once, the reconstruction of each
/// takes the place of the minibatch before: `[v_k; v₀; v₀; …]`.
const V_NEG: usize = 0;
const V_POS: usize = 1;
const V_PLANES: usize = 2;
/// Planes of the hidden states: `[−h_k; h₀; ĥ]`.
const H_NEG: usize = 0;
const H_POS: usize = 1;
pub(super) const H_DRAWN: usize = 2;
const H_PLANES: usize = 3;
/// Weights are rounded by the stream of the units' draws with this bit turned.
const ROUNDING_STREAM: u64 = 1 << 63;

/// All memory of a step, and the views of it that the step uses. Clones share it.
#[derive(Clone)]
pub(super) struct Buffers {
    pub(super) config: RbmTrainConfig,
    pub(super) hidden_unit: Unit,
    pub(super) visible_unit: Unit,
    pub(super) philox: Philox,
    /// How states and weights are stored for products.
    format: Format,
    /// Where the weights are those of patches; then `[.., n_hidden, n_visible]` below is
    /// `[.., n_patches, hidden, window_len]`.
    patches: Option<PatchGrid>,
    /// Where they are those of filters; then hidden units below are those of maps, and biases are
    /// those of maps and channels.
    pub(super) maps: Option<MapSteps>,
    /// `[2, n_hidden, n_visible]`: weights, velocity; or the weights alone, which are bf16 where
    /// they are rounded stochastically, and i16 where they are the lower halves of weights whose
    /// upper halves are `copy`.
    params: Tensor,
    /// `[n_hidden, n_visible]` bf16, where the velocity is stored apart.
    pub(super) velocity: Option<Tensor>,
    /// `[4, n_hidden]` and `[4, n_visible]`, see [`bias_step_`].
    pub(super) hidden_state: Tensor,
    pub(super) visible_state: Tensor,
    /// Rate over batch, momentum, rate.
    pub(super) scalars: Tensor,
    /// Blocks of random draws used so far.
    pub(super) counter: Tensor,
    /// `[parts · 3, batch, n_hidden]` and `[parts · (at_once + 1), batch, n_visible]`: states of
    /// both phases, and drawn hidden states.
    pub(super) hidden: Tensor,
    pub(super) visible: Tensor,
    pub(super) hidden_pre: Tensor,
    pub(super) visible_pre: Tensor,
    /// `[parts, n_hidden, n_visible]`: the weights as products read them, where that is not f32;
    /// `params` themselves where those are bf16.
    pub(super) copy: Option<Tensor>,
    /// Where the draws begin by which bf16 weights are rounded.
    rounding: Option<Philox>,
    pub(super) variance: Option<Variance>,
    lower: Vec<LowerLayer>,
    /// Minibatches that there is room for, and the one that this step takes.
    pub(super) at_once: usize,
    minibatch: usize,
    /// Where the lowest RBM reads rows, `[batch, n_input]`, or `[2, batch, n_input]` in two parts.
    input: Tensor,
    /// Of the lowest RBM.
    lowest: Option<ConvGrid>,
    /// Of the lowest RBM, whose rows are then loaded cell by cell.
    cells: Option<Cells>,
    /// Where rows are loaded to, `[parts, at_once · batch, n_input]`: the inputs of all steps, or
    /// f32 probabilities, in one part, from which these are drawn.
    rows: Tensor,
}

impl Buffers {
    /// `cells` are those in which the lowest RBM has its visible units.
    pub(super) fn new(
        lower: &[Rbm],
        rbm: &Rbm,
        cells: Option<Cells>,
        config: &RbmTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        let device = rbm.weight().device();
        let (batch, n_visible, n_hidden) = (config.batch, rbm.config().n_visible, rbm.config().n_units());
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
        let format = Format::of(rbm.config(), config.precision, device);
        let (parts, dtype) = (format.parts(), format.dtype());
        let configs: Vec<_> = lower.iter().map(|layer| layer.config().clone()).collect();
        let below = format.below(&configs, config.precision, device);
        let weight = rbm.weight().to_dtype(DType::F32)?;
        let state = |bias: &Tensor| {
            let bias = bias.to_dtype(DType::F32)?;
            let zero = bias.zeros_like()?;
            Tensor::stack(&[&bias, &zero, &zero, &zero], 0)
        };
        let hidden = Tensor::zeros((parts * H_PLANES, batch, n_hidden), dtype, device)?;
        let at_once = minibatches_at_once(lower, rbm, config, parts);
        let visible = Tensor::zeros((parts * (at_once + 1), batch, n_visible), dtype, device)?;
        let mut counted = Philox { offset: 0, ..philox };
        if config.persistent {
            // Chains begin with fair coins.
            let coins = match &rbm.config().convolution {
                Some(grid) => grid.sample(&zeros(&[batch, n_hidden])?, PoolSide::Detection, philox)?,
                None => bernoulli(&zeros(&[batch, n_hidden])?.affine(0., 0.5)?, philox)?,
            };
            scale_into_(&hidden.get(H_DRAWN)?, &coins, 1.)?;
            counted = counted.advanced(batch * rbm.config().n_hidden);
        }
        let mut layers = Vec::with_capacity(lower.len());
        let mut input = None;
        for (i, layer) in lower.iter().enumerate() {
            let n = layer.config().n_hidden;
            if layer.config().visible == VisibleUnit::GaussianLearned {
                candle::bail!(
                    "RbmTrainer: a layer with learned variances must be trained alone, got one below another"
                )
            }
            let top = i + 1 == lower.len();
            let (of_below, n_input) = (below.parts(), layer.config().n_visible);
            let planes = match top {
                true => visible.clone(),
                false => Tensor::zeros((of_below, batch, n), below.dtype(), device)?,
            };
            if i == 0 {
                let shape = if of_below == 2 { vec![2, batch, n_input] } else { vec![batch, n_input] };
                input = Some(Tensor::zeros(shape, below.dtype(), device)?);
            }
            let place = match top {
                true => Place { planes, plane: V_POS, low: (parts == 2).then_some(V_PLANES) },
                false => Place { planes, plane: 0, low: (of_below == 2).then_some(1) },
            };
            layers.push(LowerLayer::new(layer, below, config, place)?);
        }
        let variance = match rbm.log_variance() {
            Some(log_variance) if config.precision == Precision::Bf16 => candle::bail!(
                "RbmTrainConfig: precision must be f32 or tf32 for learned variances, got bf16 for {} of them",
                log_variance.elem_count()
            ),
            Some(log_variance) => Some(Variance {
                state: Tensor::stack(&[log_variance, &log_variance.zeros_like()?], 0)?,
                scaled: visible.zeros_like()?,
            }),
            None => None,
        };
        let input = match input {
            Some(input) => input,
            None => input_of(&visible, parts, V_POS)?,
        };
        let rows = match config.binarize {
            true => zeros(&[1, at_once * batch, input.dim(D::Minus1)?])?,
            false if lower.is_empty() => inputs_of(&visible, parts)?,
            false => input.reshape(((), batch, input.dim(D::Minus1)?))?,
        };
        let lowest = lower.first().unwrap_or(rbm).config();
        if config.binarize && lowest.visible != VisibleUnit::Bernoulli {
            candle::bail!(
                "RbmTrainConfig: binarize must be false for real-valued rows, got true for {}",
                lowest.visible
            )
        }
        let rounding = (config.weights == WeightStorage::Bf16Stochastic)
            .then_some(Philox { stream: philox.stream ^ ROUNDING_STREAM, ..philox });
        let apart = rounding.is_some() || format.velocity_apart(rbm.config(), device);
        let velocity = apart.then(|| Tensor::zeros(weight.shape(), DType::BF16, device)).transpose()?;
        let in_halves = rounding.is_none() && format.in_halves(rbm.config(), config, device);
        let weight = weight.unsqueeze(0)?;
        let params = match apart {
            false => Tensor::cat(&[&weight, &weight.zeros_like()?], 0)?,
            true if rounding.is_some() => weight.to_dtype(DType::BF16)?.copy()?,
            true if in_halves => Tensor::zeros(weight.shape(), DType::I16, device)?,
            true => weight.copy()?,
        };
        let buffers = Self {
            config: config.clone(),
            hidden_unit: hidden_unit(rbm.config().hidden),
            visible_unit: match rbm.config().visible {
                VisibleUnit::Bernoulli => Unit::Bernoulli,
                VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => Unit::Gaussian,
            },
            philox,
            patches: rbm.config().patches,
            maps: match rbm.config().convolution {
                Some(grid) => Some(MapSteps::new(grid, batch, device)?),
                None => None,
            },
            lowest: lowest.convolution,
            cells,
            copy: match format {
                _ if rounding.is_some() => Some(params.clone()),
                Format::F32 => None,
                _ => Some(Tensor::zeros([&[parts], rbm.weight().dims()].concat(), dtype, device)?),
            },
            rounding,
            params,
            velocity,
            hidden_state: state(rbm.bias())?,
            visible_state: state(rbm.visible_bias())?,
            scalars: zeros(&[3])?,
            counter: Tensor::new(&[counted.offset as i64], device)?,
            rows,
            at_once,
            minibatch: 0,
            input,
            hidden,
            visible,
            hidden_pre: zeros(&[batch, n_hidden])?,
            visible_pre: zeros(&[batch, n_visible])?,
            variance,
            lower: layers,
            format,
        };
        buffers.set_params(&weight)?;
        Ok(buffers)
    }

    /// `[1, n_hidden, n_visible]`: the weights, or `[2, n_hidden, n_visible]` where the velocity is
    /// stored with them. They share memory with the buffers unless the weights are in halves.
    pub(super) fn params(&self) -> Result<Tensor> {
        match &self.copy {
            Some(upper) if self.in_halves() => {
                let whole = Tensor::zeros(upper.shape(), DType::F32, upper.device())?;
                joined_into_(&whole, upper, &self.params)?;
                Ok(whole)
            }
            _ => Ok(self.params.clone()),
        }
    }

    /// Brings what products read up to date with `params`, which [`params`](Self::params) gave and
    /// which has changed.
    pub(super) fn set_params(&self, params: &Tensor) -> Result<()> {
        match &self.copy {
            Some(upper) if self.in_halves() => halves_into_(upper, &self.params, params),
            _ => self.refresh_copy(),
        }
    }

    /// Whether `params` are the lower halves of weights, and `copy` the upper ones.
    fn in_halves(&self) -> bool {
        self.params.dtype() == DType::I16
    }

    /// The cells in which the lowest RBM has its visible units.
    pub(super) fn lowest_cells(&self) -> Option<Cells> {
        self.cells
    }

    /// The RBM whose parameters are these buffers; its weights are a copy where they are in halves.
    pub(super) fn rbm(&self, config: &RbmConfig) -> Result<Rbm> {
        Rbm::from_tensors(
            config.clone(),
            self.params()?.get(0)?,
            self.hidden_state.get(0)?,
            self.visible_state.get(0)?,
            self.variance.as_ref().map(|v| v.state.get(0)).transpose()?,
        )
    }

    /// Terms of the sum that a gradient of weights is the mean of: rows, or rows and the places of
    /// filters.
    pub(super) fn n_terms(&self) -> usize {
        self.config.batch * self.maps.as_ref().map_or(1, MapSteps::n_positions)
    }

    /// One step from the rows in `input`.
    fn step(&self) -> Result<()> {
        let mut draws = self.philox;
        if self.config.binarize {
            let place = Draws::Counter { philox: draws, counter: &self.counter };
            let drawn = match self.input.rank() {
                3 => self.input.narrow(0, 0, 1)?.squeeze(0)?, // 0 and 1 have no second part
                _ => self.input.clone(),
            };
            let rows = self.probabilities()?;
            bernoulli_into_(&drawn, &rows, place)?;
            draws = draws.advanced(rows.elem_count());
        }
        let mut below = self.input.clone();
        for layer in &self.lower {
            below = layer.rise(&below)?;
        }
        let variance = self.variance.as_ref().map(Variance::moments).transpose()?;
        let variance = variance.as_ref();

        self.scale_visible(V_POS, variance)?;
        let drawn = (!self.config.persistent).then_some(H_DRAWN);
        let out = UnitPlanes { mean: Some(H_POS), sample: drawn, ..UnitPlanes::default() };
        self.hidden_phase(V_POS, out, &mut draws)?;
        self.clear_second_part()?;
        for j in 1..=self.config.k {
            let last = j == self.config.k;
            self.visible_phase(!last || self.draws_last(), variance, &mut draws)?;
            if last && self.ends_with_means() {
                break; // of which the update takes care
            }
            let out = UnitPlanes {
                mean: last.then_some(H_NEG),
                mean_scale: -1.,
                sample: (!last || self.config.persistent).then_some(H_DRAWN),
                low: None,
            };
            self.hidden_phase(V_NEG, out, &mut draws)?;
        }
        self.update(variance, draws.offset.wrapping_sub(self.philox.offset) as i64)
    }

    /// Whether the last visible states are drawn, too, and are no means.
    fn draws_last(&self) -> bool {
        self.config.sample_visible || self.config.persistent
    }

    /// Makes the second part of the negative visible states 0, where states are drawn to the first
    /// part in which the step before left means, or a minibatch: draws of Bernoulli units write no
    /// second part.
    fn clear_second_part(&self) -> Result<()> {
        if self.config.k == 1 || self.draws_last() || self.format.parts() == 1 {
            return Ok(());
        }
        // Any finite numbers of this shape, 0 times.
        let second = self.visible.get(self.at_once + 1 + self.plane(V_NEG))?;
        scale_into_(&second, &self.visible_pre, 0.)
    }

    /// Whether the last means of hidden units go with the update: those of patches, unless they are
    /// drawn, too.
    fn ends_with_means(&self) -> bool {
        self.patches.is_some() && !self.config.persistent && self.variance.is_none()
    }

    /// Hidden units given plane `from` of the visible ones.
    fn hidden_phase(&self, from: usize, out: UnitPlanes, draws: &mut Philox) -> Result<()> {
        let visible = self.read_by_hidden();
        let bias = self.hidden_state.get(0)?;
        let place = match out.sample {
            Some(_) => Draws::Counter { philox: *draws, counter: &self.counter },
            None => Draws::Mode,
        };
        let out = UnitPlanes { low: (self.format.parts() == 2).then_some(H_PLANES), ..out };
        let (planes, pre, unit) = (&self.hidden, &self.hidden_pre, self.hidden_unit);
        match (&self.copy, &self.patches, &self.maps) {
            (_, _, Some(maps)) => {
                let (visible, weight) = (visible.get(self.plane(from))?, self.params.get(0)?);
                maps.hidden_units(planes, pre, &visible, &weight, &bias, out, place)?;
            }
            (_, Some(grid), None) => {
                let visible = self.visible_by_part(visible, from, 1)?.squeeze(1)?;
                let (weight, scale) = self.weight_parts()?;
                let up = PatchDirection::Up;
                units_of_patches_(
                    planes, pre, &visible, &weight, grid, up, scale, &bias, unit, out, place, None,
                )?;
            }
            (None, None, None) => {
                let (visible, weight) = (visible.get(self.plane(from))?, self.params.get(0)?.t()?);
                gemm_(pre, &visible, &weight, Factors::OVERWRITE, self.config.precision)?;
                units_(planes, pre, &bias, unit, out, place, None)?;
            }
            (Some(copy), None, None) => {
                let visible = self.visible_by_part(visible, from, 1)?.squeeze(1)?;
                let weight = copy.transpose(1, 2)?;
                let scale = self.format.product_scale();
                units_of_product_(planes, pre, &visible, &weight, scale, &bias, unit, out, place)?;
            }
        }
        if out.sample.is_some() {
            *draws = draws.advanced(self.n_hidden_draws());
        }
        Ok(())
    }

    /// Visible units given the drawn hidden ones, to the negative plane: `drawn` states, or means.
    fn visible_phase(&self, drawn: bool, variance: Option<&Moments>, draws: &mut Philox) -> Result<()> {
        let hidden = self.hidden.get(H_DRAWN)?;
        let bias = self.visible_state.get(0)?;
        let low = (self.format.parts() == 2).then_some(self.at_once + 1);
        let to = Some(self.plane(V_NEG));
        let (out, place) = match drawn {
            true => (
                UnitPlanes { sample: to, low, ..UnitPlanes::default() },
                Draws::Counter { philox: *draws, counter: &self.counter },
            ),
            false => (UnitPlanes { mean: to, low, ..UnitPlanes::default() }, Draws::Mode),
        };
        let (planes, pre, unit) = (&self.visible, &self.visible_pre, self.visible_unit);
        match (&self.copy, &self.patches, &self.maps) {
            (_, _, Some(maps)) => {
                maps.visible_units(planes, pre, &hidden, &self.params.get(0)?, &bias, unit, out, place)?;
            }
            (_, Some(grid), None) => {
                let (weight, scale) = self.weight_parts()?;
                let (hidden, down) = (hidden.unsqueeze(0)?, PatchDirection::Down);
                let std = variance.map(|m| &m.stdev);
                units_of_patches_(
                    planes, pre, &hidden, &weight, grid, down, scale, &bias, unit, out, place, std,
                )?;
            }
            (None, None, None) => {
                gemm_(pre, &hidden, &self.params.get(0)?, Factors::OVERWRITE, self.config.precision)?;
                units_(planes, pre, &bias, unit, out, place, variance.map(|m| &m.stdev))?;
            }
            (Some(copy), None, None) => {
                let hidden = hidden.unsqueeze(0)?; // 0 and 1 have no second part
                let scale = self.format.product_scale();
                units_of_product_(planes, pre, &hidden, copy, scale, &bias, unit, out, place)?;
            }
        }
        if drawn {
            *draws = draws.advanced(self.visible_pre.elem_count());
        }
        self.scale_visible(V_NEG, variance)
    }

    /// Draws of hidden units: one for each, or for each block of the units of maps.
    fn n_hidden_draws(&self) -> usize {
        match &self.maps {
            Some(maps) => self.config.batch * maps.n_draws(),
            None => self.hidden_pre.elem_count(),
        }
    }

    /// Velocity, weights, biases and variances from the states of both phases; `advance` blocks of
    /// draws are used up.
    fn update(&self, variance: Option<&Moments>, advance: i64) -> Result<()> {
        let RbmTrainConfig { batch, precision, l1, l2, .. } = self.config;
        let hidden = self.by_part(&self.hidden, H_PLANES)?;
        let visible = self.visible_by_part(self.read_by_hidden(), V_NEG, V_PLANES)?;
        if let (Some(moments), Some(v)) = (variance, &self.variance) {
            let both = |planes: &Tensor| planes.get(0)?.narrow(0, 0, 2)?.flatten(0, 1);
            let (h, x) = (both(&hidden)?, both(&visible)?);
            let gradient = match &self.patches {
                None => h.t()?.matmul(&x)?,
                Some(grid) => {
                    let gradient = self.params.get(0)?.zeros_like()?;
                    patch_gradient_(&gradient, &h.unsqueeze(0)?, &x.unsqueeze(0)?, grid, Factors::OVERWRITE)?;
                    gradient
                }
            };
            let gradient = (gradient / batch as f64)?;
            let phases = variance::Phases {
                positive: &self.visible.get(V_POS)?,
                negative: &self.visible.get(V_NEG)?,
                bias: &self.visible_state.get(0)?,
                weight: &self.params.get(0)?,
                gradient: &gradient,
                patches: self.patches.as_ref(),
            };
            v.step(moments, &phases, &self.scalars)?;
        }
        let sparsity = self.config.sparsity.map(|s| Sparsity {
            target: s.target as f32,
            cost: s.cost as f32,
            decay: s.decay as f32,
        });
        let step = ContrastStep {
            weights: WeightStep { l1: l1 as f32, l2: l2 as f32 },
            sparsity,
            visible_scale: variance.map(|m| &m.inverse),
            copy_scale: self.format.weight_scale(),
            advance,
            precision,
            biases: BiasGradients::BothPhases,
            rounding: self.rounding,
        };
        let to = Contrast {
            params: &self.params,
            velocity: self.velocity.as_ref(),
            copy: self.copy.as_ref().filter(|_| self.rounding.is_none()),
            hidden_state: &self.hidden_state,
            visible_state: &self.visible_state,
            counter: &self.counter,
        };
        match (&self.patches, &self.maps) {
            (None, None) => contrast_step_(to, &hidden, &visible, &self.scalars, step)?,
            (Some(grid), _) if self.ends_with_means() => {
                let (pre, unit) = (&self.hidden_pre, self.hidden_unit);
                patch_last_step_(to, &hidden, pre, &visible, grid, unit, &self.scalars, step)?;
            }
            (Some(grid), _) => patch_contrast_step_(to, &hidden, &visible, grid, &self.scalars, step)?,
            (None, Some(maps)) => {
                maps.update(to, &hidden.get(0)?, &visible.get(0)?, &self.scalars, step)?;
            }
        }
        match self.config.max_norm {
            Some(max_norm) => {
                let weight = self.params.get(0)?;
                let len = weight.dim(D::Minus1)?;
                max_norm_rows_(&weight.reshape(((), len))?, max_norm as f32)?;
                self.refresh_copy()
            }
            None => Ok(()),
        }
    }

    /// The weights as products of patches read them, in parts, and the factor on such a product.
    fn weight_parts(&self) -> Result<(Tensor, f32)> {
        match &self.copy {
            Some(copy) => Ok((copy.clone(), self.format.product_scale())),
            None => Ok((self.params.narrow(0, 0, 1)?, 1.)),
        }
    }

    /// Brings the copy of the weights up to date.
    fn refresh_copy(&self) -> Result<()> {
        match &self.copy {
            Some(copy) if self.rounding.is_none() => {
                store(copy, &self.params.get(0)?, self.format.weight_scale())
            }
            _ => Ok(()),
        }
    }

    /// The visible states as hidden units and the gradient read them.
    fn read_by_hidden(&self) -> &Tensor {
        self.variance.as_ref().map_or(&self.visible, |v| &v.scaled)
    }

    fn scale_visible(&self, plane: usize, moments: Option<&Moments>) -> Result<()> {
        match (moments, &self.variance) {
            (Some(moments), Some(variance)) => variance.scale(plane, &self.visible.get(plane)?, moments),
            _ => Ok(()),
        }
    }
}
