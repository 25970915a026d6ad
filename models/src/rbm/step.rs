//! One step of contrastive divergence: its memory and its sequence of ops.
//!
//! Everything is allocated in [`Buffers::new`]; [`Buffers::run`] is a fixed sequence of ops on that
//! memory, so that it can be recorded as a CUDA graph. For the equations see
//! [`train`](super::train).
mod minibatches;
mod rows;
mod share;
mod units;
mod weights;

pub(super) use share::HiddenShare;

use self::minibatches::{input_of, inputs_of, minibatches_at_once};
use self::rows::RowShare;
use self::units::Units;
use self::weights::{States, Update, Weights};
use super::lower::{LowerLayer, Place, hidden_unit};
use super::variance::{self, Moments, Variance};
use super::{Rbm, RbmConfig, RbmTrainConfig, VisibleUnit};
use crate::conv_rbm::{ConvGrid, MapSteps};
use crate::patch_rbm::{Cells, Lines};
use crate::share::Share;
use candle::{D, DType, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::{Draws, bernoulli, bernoulli_into_};
use chandlery_ops::images::PoolSide;
use chandlery_ops::layers::{BiasGradients, CdUpdate, Sparsity, Unit, UnitPlanes, WeightStep};
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
/// All memory of a step, and the views of it that the step uses. Clones share it.
#[derive(Clone)]
pub(super) struct Buffers {
    pub(super) config: RbmTrainConfig,
    pub(super) hidden_unit: Unit,
    pub(super) visible_unit: Unit,
    pub(super) philox: Philox,
    pub(super) weights: Weights,
    /// The hidden units that are there: all, or those of a rank.
    pub(super) share: HiddenShare,
    /// The rows that are there: all of a minibatch, or those of a rank.
    pub(super) divided: RowShare,
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
    /// `cells` are those in which the lowest RBM has its visible units; `rbm` has the hidden units of
    /// `share`. Minibatches have `config.batch` rows, of which those of `rows` are this rank's.
    pub(super) fn new(
        lower: &[Rbm],
        rbm: &Rbm,
        cells: Option<Cells>,
        config: &RbmTrainConfig,
        philox: Philox,
        share: HiddenShare,
        rows: Share,
    ) -> Result<Self> {
        let device = rbm.weight().device();
        let of = rbm.config();
        let (batch, n_visible, n_hidden) = (rows.rows().len(), of.n_visible, of.n_units());
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
        let units = [of.n_hidden_biases(), of.n_visible_biases()];
        let (n_weights, target) = (rbm.weight().elem_count(), config.sparsity.is_some());
        let divided = RowShare::new(rows, n_weights, units, rbm.weight(), target)?;
        let weights = Weights::new(rbm, config, philox, batch, divided.params()?)?;
        let (parts, dtype) = (weights.parts(), weights.format().dtype());
        let configs: Vec<_> = lower.iter().map(|layer| layer.config().clone()).collect();
        let below = weights.format().below(&configs, config.precision, device);
        let share = share.for_rows(batch, device)?;
        let state = |bias: &Tensor| {
            let bias = bias.to_dtype(DType::F32)?;
            let zero = bias.zeros_like()?;
            Tensor::stack(&[&bias, &zero, &zero, &zero], 0)
        };
        let hidden = Tensor::zeros((parts * H_PLANES, batch, n_hidden), dtype, device)?;
        let at_once = match divided.share.group().is_single() {
            true => minibatches_at_once(lower, rbm, config, parts, share.n_visible(n_visible)),
            false => 1,
        };
        let visible = Tensor::zeros((parts * (at_once + 1), batch, n_visible), dtype, device)?;
        let mut counted = Philox { offset: 0, ..philox };
        if config.persistent && divided.share.group().is_single() {
            // Chains begin with fair coins; ranks take theirs of those of one.
            let coins = match rbm.config().filter_grid() {
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
            layers.push(LowerLayer::new(layer, below, (batch, config.precision), place)?);
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
            false => {
                let parts = if input.rank() == 3 { 2 } else { 1 };
                input.reshape((parts, batch, input.dim(D::Minus1)?))?
            }
        };
        let lowest = lower.first().unwrap_or(rbm).config();
        if config.binarize && lowest.visible != VisibleUnit::Bernoulli {
            candle::bail!(
                "RbmTrainConfig: binarize must be false for real-valued rows, got true for {}",
                lowest.visible
            )
        }
        Ok(Self {
            config: config.clone(),
            hidden_unit: hidden_unit(rbm.config().hidden),
            visible_unit: match rbm.config().visible {
                VisibleUnit::Bernoulli => Unit::Bernoulli,
                VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => Unit::Gaussian,
            },
            philox,
            lowest: lowest.filter_grid(),
            cells,
            weights,
            share,
            divided,
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
        })
    }

    /// The RBM whose parameters are these buffers, of the hidden units of this rank; its weights are a
    /// copy where they are in halves.
    pub(super) fn rbm(&self, config: &RbmConfig) -> Result<Rbm> {
        Rbm::from_tensors(
            self.share.config(config),
            self.weights.masters.weight()?,
            self.hidden_state.get(0)?,
            self.visible_state.get(0)?,
            self.variance.as_ref().map(|v| v.state.get(0)).transpose()?,
        )
    }

    /// Terms of the sum that a gradient of weights is the mean of: rows, or rows and the places of
    /// filters.
    pub(super) fn n_terms(&self) -> usize {
        self.config.batch * self.weights.maps().map_or(1, MapSteps::n_positions)
    }

    /// One step from the rows in `input`.
    fn step(&self) -> Result<()> {
        let mut draws = self.philox;
        if self.config.binarize {
            self.draw_rows(&mut draws)?;
        }
        let mut below = self.input.clone();
        for layer in self.lower.iter().filter(|_| !self.divided.is_empty()) {
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

    /// Draws the rows of this step from their probabilities.
    fn draw_rows(&self, draws: &mut Philox) -> Result<()> {
        let drawn = match self.input.rank() {
            3 => self.input.narrow(0, 0, 1)?.squeeze(0)?, // 0 and 1 have no second part
            _ => self.input.clone(),
        };
        let (rows, counter) = (self.probabilities()?, &self.counter);
        let lines = self.share.input();
        let width = lines.as_ref().map_or(rows.dim(1)?, Lines::n_of_all);
        let philox = self.divided.first(*draws, width);
        *draws = draws.advanced(self.config.batch * width);
        match lines {
            _ if self.divided.is_empty() => Ok(()),
            None => bernoulli_into_(&drawn, &rows, Draws::Counter { philox, counter }),
            Some(lines) => {
                let place = lines.draws(philox, counter);
                bernoulli_into_(&lines.by_plane(&drawn)?, &lines.by_plane(&rows)?, place)
            }
        }
    }

    /// Whether the last visible states are drawn, too, and are no means.
    fn draws_last(&self) -> bool {
        self.config.sample_visible || self.config.persistent
    }

    /// Makes the second part of the negative visible states 0, where states are drawn to the first
    /// part in which the step before left means, or a minibatch: draws of Bernoulli units write no
    /// second part.
    fn clear_second_part(&self) -> Result<()> {
        if self.config.k == 1 || self.draws_last() || self.weights.parts() == 1 {
            return Ok(());
        }
        // Any finite numbers of this shape, 0 times.
        let second = self.visible.get(self.at_once + 1 + self.plane(V_NEG))?;
        scale_into_(&second, &self.visible_pre, 0.)
    }

    /// Whether the last means of hidden units go with the update: those of patches, unless they are
    /// drawn, too.
    fn ends_with_means(&self) -> bool {
        let alone = self.divided.share.group().is_single();
        alone && self.weights.patches().is_some() && !self.config.persistent && self.variance.is_none()
    }

    /// Hidden units given plane `from` of the visible ones.
    fn hidden_phase(&self, from: usize, out: UnitPlanes, draws: &mut Philox) -> Result<()> {
        let visible = self.visible_by_part(self.read_by_hidden(), from, 1)?.squeeze(1)?;
        let n = self.n_hidden_draws();
        let place = match out.sample {
            Some(_) => self.share.draws(self.divided.first(*draws, n), &self.counter),
            None => Draws::Mode,
        };
        if out.sample.is_some() {
            *draws = draws.advanced(self.config.batch * n);
        }
        if self.divided.is_empty() {
            return Ok(());
        }
        let out = UnitPlanes { low: self.weights.format().low(H_PLANES), ..out };
        let to = Units {
            planes: &self.hidden,
            pre: &self.hidden_pre,
            bias: &self.hidden_state.get(0)?,
            unit: self.hidden_unit,
            out,
            draws: place,
        };
        self.weights.hidden_units(&visible, to)
    }

    /// Visible units given the drawn hidden ones, to the negative plane: `drawn` states, or means.
    fn visible_phase(&self, drawn: bool, variance: Option<&Moments>, draws: &mut Philox) -> Result<()> {
        let low = self.weights.format().low(self.at_once + 1);
        let to = Some(self.plane(V_NEG));
        let n = self.share.n_visible(self.visible_pre.dim(1)?);
        let (out, place) = match drawn {
            true => (
                UnitPlanes { sample: to, low, ..UnitPlanes::default() },
                self.share.visible_draws(self.divided.first(*draws, n), &self.counter),
            ),
            false => (UnitPlanes { mean: to, low, ..UnitPlanes::default() }, Draws::Mode),
        };
        if drawn {
            *draws = draws.advanced(self.config.batch * n);
        }
        if self.divided.is_empty() {
            return Ok(());
        }
        let to = Units {
            planes: &self.visible,
            pre: &self.visible_pre,
            bias: &self.visible_state.get(0)?,
            unit: self.visible_unit,
            out,
            draws: place,
        };
        let stdev = variance.map(|moments| &moments.stdev);
        self.weights.visible_units(&self.hidden.get(H_DRAWN)?, to, stdev, &self.share)?;
        self.scale_visible(V_NEG, variance)
    }

    /// Draws of the hidden units of a row, of all ranks: one for each, or for each block of the
    /// units of maps.
    fn n_hidden_draws(&self) -> usize {
        self.share.of_all(self.weights.maps().map_or(self.share.n_own(), MapSteps::n_draws))
    }

    /// Velocity, weights, biases and variances from the states of both phases; `advance` blocks of
    /// draws are used up.
    fn update(&self, variance: Option<&Moments>, advance: i64) -> Result<()> {
        let RbmTrainConfig { batch, precision, l1, l2, max_norm, .. } = self.config;
        let sparsity = self.config.sparsity.map(|s| Sparsity {
            target: s.target as f32,
            cost: s.cost as f32,
            decay: s.decay as f32,
        });
        let step = CdUpdate {
            weights: WeightStep { l1: l1 as f32, l2: l2 as f32 },
            sparsity,
            visible_scale: variance.map(|m| &m.inverse),
            copy_scale: self.weights.format().weight_scale(),
            advance,
            precision,
            biases: BiasGradients::BothPhases,
            rounding: self.weights.rounding,
        };
        let states = || -> Result<_> {
            let visible = self.visible_by_part(self.read_by_hidden(), V_NEG, V_PLANES)?;
            Ok((self.by_part(&self.hidden, H_PLANES)?, visible))
        };
        let of_one_part = || {
            let (hidden, visible) = states()?;
            Ok(States { hidden: hidden.get(0)?.narrow(0, 0, 2)?, visible: visible.get(0)? })
        };
        if self.learn_together(&self.weights, of_one_part, step)? {
            return Ok(());
        }
        let (hidden, visible) = states()?;
        if let (Some(moments), Some(v)) = (variance, &self.variance) {
            let both = |planes: &Tensor| planes.get(0)?.narrow(0, 0, 2)?.flatten(0, 1);
            let (h, x) = (both(&hidden)?, both(&visible)?);
            let gradient = (self.weights.gradient(&h, &x)? / batch as f64)?;
            let phases = variance::Phases {
                positive: &self.visible.get(V_POS)?,
                negative: &self.visible.get(V_NEG)?,
                bias: &self.visible_state.get(0)?,
                weight: &self.weights.masters.weight()?,
                gradient: &gradient,
                patches: self.weights.patches(),
            };
            v.step(moments, &phases, &self.scalars)?;
        }
        let states = Update {
            hidden: &hidden,
            visible: &visible,
            hidden_state: &self.hidden_state,
            visible_state: &self.visible_state,
            scalars: &self.scalars,
            counter: &self.counter,
        };
        let last_means = self.ends_with_means().then_some((&self.hidden_pre, self.hidden_unit));
        self.weights.update(states, step, last_means, max_norm)
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
