//! One step of the up-down algorithm: its memory and its sequence of ops.
//!
//! Everything is allocated in [`Buffers::new`]; [`Buffers::run`] is a fixed sequence of ops on that
//! memory, so that it can be recorded as a CUDA graph. For the equations see
//! [`LabelledDbnTrainer`](super::LabelledDbnTrainer).
mod matrix;
mod ranks;
mod rates;

use super::{LabelledDbn, LabelledDbnConfig, LabelledDbnTrainConfig, LabelledRbm, Stage};
use crate::model::Model;
use crate::share::Share;
use candle::{DType, Result, Tensor};
use candle_nn::Linear;
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::Draws;
use chandlery_ops::layers::{
    BiasGradients, BiasStep, CdOperands, CdUpdate, Factors, Phases, Unit, UnitPlanes, WeightStep, bias_step_,
    cd_update_, gemm_, softmax_units_, units_, weight_step_,
};
use chandlery_ops::{Group, Philox, Precision};
use matrix::Matrix;
use ranks::Together;
use rates::Rates;

/// Planes of the states of a layer, `[2, batch, n]`. Below the top the negative plane holds what
/// the other direction predicts of the positive one; the layer that the top RBM reads holds its two
/// phases.
const NEG: usize = 0;
pub(super) const POS: usize = 1;
/// Planes of the hidden states of the top RBM: `[−h_k; h₀; ĥ]`.
const H_NEG: usize = 0;
const H_POS: usize = 1;
pub(super) const H_DRAWN: usize = 2;

/// No plane; the base of the ones below.
const NONE: UnitPlanes = UnitPlanes { mean: None, mean_scale: 1., sample: None, low: None };

/// A layer of one direction.
#[derive(Clone)]
pub(super) struct Directed {
    /// `[n_out, n_in]`
    pub(super) matrix: Matrix,
    /// `[4, n_out]`, see [`bias_step_`].
    pub(super) state: Tensor,
    /// Pre-activations, `[batch, n_out]`.
    pre: Tensor,
}

impl Directed {
    fn new(layer: &Linear, batch: usize) -> Result<Self> {
        let weight = layer.weight().to_dtype(DType::F32)?;
        let bias = match layer.bias() {
            Some(bias) => bias.to_dtype(DType::F32)?,
            None => candle::bail!("LabelledDbnTrainer: a layer must have a bias, got none"),
        };
        Ok(Self {
            pre: Tensor::zeros((batch, weight.dim(0)?), DType::F32, weight.device())?,
            matrix: Matrix::new(&weight)?,
            state: side(&bias)?,
        })
    }

    fn n_out(&self) -> Result<usize> {
        self.state.dim(1)
    }

    /// The layer whose parameters are these buffers.
    fn linear(&self) -> Result<Linear> {
        Ok(Linear::new(self.matrix.weight.clone(), Some(self.state.get(0)?)))
    }

    /// Units of `planes` given plane [`POS`] of `below`.
    fn infer(
        &self,
        below: &Tensor,
        planes: &Tensor,
        out: UnitPlanes,
        draws: Draws,
        precision: Precision,
    ) -> Result<()> {
        let weight = self.matrix.weight.t()?;
        product_(&self.pre, &below.get(POS)?, &weight, Factors::OVERWRITE, precision)?;
        units_(planes, &self.pre, &self.state.get(0)?, Unit::Bernoulli, out, draws, None)
    }

    /// The delta rule: what plane [`POS`] of `planes` held minus what this layer predicted of it in
    /// plane [`NEG`].
    fn learn(
        &self,
        below: &Tensor,
        planes: &Tensor,
        rates: &Rates,
        config: &LabelledDbnTrainConfig,
    ) -> Result<()> {
        for (states, below, factors) in Self::products(below, planes, rates)? {
            gemm_(&self.matrix.velocity, &states.t()?, &below, Factors::Tensor(factors), config.precision)?;
        }
        let decay = WeightStep { l1: 0., l2: config.l2 as f32 };
        weight_step_(&self.matrix.params()?, &rates.first, decay)?;
        bias_step_(&self.state, planes, &rates.first, SEEN)
    }

    /// `a`, `b` and the factors of the products `aᵀ b` of the delta rule, in the order in which they
    /// go to the velocity.
    fn products<'a>(
        below: &Tensor,
        planes: &Tensor,
        rates: &'a Rates,
    ) -> Result<[(Tensor, Tensor, &'a Tensor); 2]> {
        let below = below.get(POS)?;
        let first = (planes.get(POS)?, below.clone(), &rates.product);
        Ok([first, (planes.get(NEG)?, below, &rates.second)])
    }
}

/// How biases follow states that both planes hold as they are.
const SEEN: BiasStep<'static> =
    BiasStep { phases: Phases::Difference, sparsity: None, gather_error: true, scale: None, sums: None };

/// The top RBM.
#[derive(Clone)]
pub(super) struct Top {
    /// `[n_hidden, n_visible]`
    pub(super) matrix: Matrix,
    /// `[2, n_hidden, n_classes]`: weights of labels, their velocity.
    pub(super) label_params: Tensor,
    /// `[4, n]` of each side, see [`bias_step_`].
    pub(super) hidden_state: Tensor,
    pub(super) visible_state: Tensor,
    pub(super) label_state: Tensor,
    /// `[3, batch, n_hidden]`
    pub(super) hidden: Tensor,
    /// `[2, batch, n_classes]`: labels of both phases.
    pub(super) labels: Tensor,
    hidden_pre: Tensor,
    visible_pre: Tensor,
    label_pre: Tensor,
}

impl Top {
    fn new(top: &LabelledRbm, batch: usize) -> Result<Self> {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, top.weight().device());
        let [weight, bias, visible_bias, label_weight, label_bias] = top.tensors().map(|(_, t)| t);
        let (n_visible, n_hidden, n_classes) = (top.n_visible(), top.n_hidden(), top.n_classes());
        Ok(Self {
            matrix: Matrix::new(&weight.to_dtype(DType::F32)?)?,
            label_params: Matrix::new(&label_weight.to_dtype(DType::F32)?)?.params()?,
            hidden_state: side(bias)?,
            visible_state: side(visible_bias)?,
            label_state: side(label_bias)?,
            hidden: zeros(&[3, batch, n_hidden])?,
            labels: zeros(&[2, batch, n_classes])?,
            hidden_pre: zeros(&[batch, n_hidden])?,
            visible_pre: zeros(&[batch, n_visible])?,
            label_pre: zeros(&[batch, n_classes])?,
        })
    }

    /// The RBM whose parameters are these buffers.
    fn rbm(&self) -> Result<LabelledRbm> {
        LabelledRbm::from_tensors(
            self.matrix.weight.clone(),
            self.hidden_state.get(0)?,
            self.visible_state.get(0)?,
            self.label_params.get(0)?,
            self.label_state.get(0)?,
        )
    }

    /// Both phases: `visible` and the labels hold the data in plane [`POS`] and, after `k` Gibbs
    /// steps, draws of the model in plane [`NEG`].
    fn contrast(
        &self,
        visible: &Tensor,
        config: &LabelledDbnTrainConfig,
        k: usize,
        draws: &mut Sequence,
    ) -> Result<()> {
        let drawn = (!config.persistent).then_some(H_DRAWN);
        self.hidden_phase(
            visible,
            POS,
            UnitPlanes { mean: Some(H_POS), sample: drawn, ..NONE },
            config,
            draws,
        )?;
        for j in 1..=k {
            let hidden = self.hidden.get(H_DRAWN)?;
            let weight = &self.matrix.weight;
            product_(&self.visible_pre, &hidden, weight, Factors::OVERWRITE, config.precision)?;
            let out = UnitPlanes { sample: Some(NEG), ..NONE };
            let place = draws.take(self.visible_state.dim(1)?);
            let bias = self.visible_state.get(0)?;
            units_(visible, &self.visible_pre, &bias, Unit::Bernoulli, out, place, None)?;
            product_(
                &self.label_pre,
                &hidden,
                &self.label_params.get(0)?,
                Factors::OVERWRITE,
                config.precision,
            )?;
            let place = draws.take_of_rows(self.label_state.dim(1)?);
            softmax_units_(&self.labels, &self.label_pre, &self.label_state.get(0)?, out, place)?;
            let last = j == k;
            let out = UnitPlanes {
                mean: last.then_some(H_NEG),
                mean_scale: -1.,
                sample: (!last || config.persistent).then_some(H_DRAWN),
                low: None,
            };
            self.hidden_phase(visible, NEG, out, config, draws)?;
        }
        Ok(())
    }

    /// Hidden units given plane `from` of features and labels.
    fn hidden_phase(
        &self,
        visible: &Tensor,
        from: usize,
        out: UnitPlanes,
        config: &LabelledDbnTrainConfig,
        draws: &mut Sequence,
    ) -> Result<()> {
        const ADD: Factors<'static> = Factors::Host { alpha: 1., beta: 1. };
        let (weight, label_weight) = (&self.matrix.weight, self.label_params.get(0)?);
        let (x, y) = (visible.get(from)?, self.labels.get(from)?);
        product_(&self.hidden_pre, &x, &weight.t()?, Factors::OVERWRITE, config.precision)?;
        product_(&self.hidden_pre, &y, &label_weight.t()?, ADD, config.precision)?;
        let place = match out.sample {
            Some(_) => draws.take(self.hidden_state.dim(1)?),
            None => Draws::Mode,
        };
        let bias = self.hidden_state.get(0)?;
        units_(&self.hidden, &self.hidden_pre, &bias, Unit::Bernoulli, out, place, None)
    }

    /// Weights and biases from the states of both phases; `counter` moves on by `advance`.
    fn learn(
        &self,
        visible: &Tensor,
        rates: &Rates,
        config: &LabelledDbnTrainConfig,
        counter: &Tensor,
        advance: i64,
    ) -> Result<()> {
        let weights = WeightStep { l1: 0., l2: config.l2 as f32 };
        let h = self.hidden.narrow(0, 0, 2)?.flatten(0, 1)?;
        let velocity = self.label_params.get(1)?;
        gemm_(
            &velocity,
            &h.t()?,
            &self.labels.flatten(0, 1)?,
            Factors::Tensor(&rates.label),
            config.precision,
        )?;
        weight_step_(&self.label_params, &rates.label, weights)?;
        bias_step_(&self.label_state, &self.labels, &rates.label, SEEN)?;
        let to = CdOperands {
            params: &self.matrix.params()?,
            velocity: None,
            copy: None,
            hidden_state: &self.hidden_state,
            visible_state: &self.visible_state,
            counter,
        };
        let step = CdUpdate {
            weights,
            sparsity: None,
            visible_scale: None,
            copy_scale: 1.,
            advance,
            precision: config.precision,
            biases: BiasGradients::BothPhases,
            rounding: None,
        };
        cd_update_(to, &self.hidden.unsqueeze(0)?, &visible.unsqueeze(0)?, &rates.first, step)
    }
}

/// `c ← alpha · a b + beta · c`, and nothing where this rank has no rows.
fn product_(c: &Tensor, a: &Tensor, b: &Tensor, factors: Factors<'_>, precision: Precision) -> Result<()> {
    if a.dim(0)? == 0 { Ok(()) } else { gemm_(c, a, b, factors, precision) }
}

/// Places in the random sequence of a step, one after the other: those of all rows, of which this
/// rank's have some.
struct Sequence<'a> {
    at: Philox,
    counter: &'a Tensor,
    share: &'a Share,
}

impl<'a> Sequence<'a> {
    /// The place of the draws of so many units in each row.
    fn take(&mut self, n_units: usize) -> Draws<'a> {
        self.next(n_units, self.share.rows().start * n_units)
    }

    /// The same where a draw for each row is used; places are counted for each element.
    fn take_of_rows(&mut self, n_units: usize) -> Draws<'a> {
        self.next(n_units, self.share.rows().start)
    }

    fn next(&mut self, n_units: usize, first: usize) -> Draws<'a> {
        // Rows of a rank begin with a block of draws.
        let philox = self.at.advanced(first);
        self.at = self.at.advanced(self.share.of() * n_units);
        Draws::Counter { philox, counter: self.counter }
    }
}

/// All memory of a step. Clones share it.
#[derive(Clone)]
pub(super) struct Buffers {
    pub(super) config: LabelledDbnTrainConfig,
    pub(super) philox: Philox,
    /// Blocks of random draws used so far.
    pub(super) counter: Tensor,
    pub(super) rates: Rates,
    pub(super) recognition: Vec<Directed>,
    pub(super) generative: Vec<Directed>,
    pub(super) top: Top,
    /// States of layers 0 to m, `[2, batch, n]` each: inferred from the rows, and fantasies; the
    /// latter when all learn.
    pub(super) wake: Vec<Tensor>,
    pub(super) sleep: Vec<Tensor>,
    /// This rank's rows of a minibatch.
    pub(super) share: Share,
    /// Where there are several ranks.
    together: Option<Together>,
}

impl Buffers {
    pub(super) fn new(dbn: &LabelledDbn, config: &LabelledDbnTrainConfig, philox: Philox) -> Result<Self> {
        let buffers = Self::on(dbn, config, philox, Share::new(&Group::single(), config.batch))?;
        let top = &buffers.top;
        let mut counted = Philox { offset: 0, ..philox };
        if config.persistent {
            // Chains begin with fair coins.
            let out = UnitPlanes { sample: Some(H_DRAWN), ..NONE };
            let no_bias = top.hidden_state.get(1)?;
            units_(&top.hidden, &top.hidden_pre, &no_bias, Unit::Bernoulli, out, Draws::At(philox), None)?;
            counted = counted.advanced(top.hidden_pre.elem_count());
        }
        let counter = Tensor::new(&[counted.offset as i64], dbn.device())?;
        Ok(Self { counter, ..buffers })
    }

    /// Buffers for a rank's rows of minibatches, `config.batch` of all ranks.
    fn on(dbn: &LabelledDbn, config: &LabelledDbnTrainConfig, philox: Philox, share: Share) -> Result<Self> {
        let (device, rows) = (dbn.device(), share.rows().len());
        let layers = |of: &[Linear]| of.iter().map(|layer| Directed::new(layer, rows)).collect::<Result<_>>();
        let states = || {
            let lower = &dbn.config().sizes[..=dbn.config().n_lower()];
            lower.iter().map(|&n| Tensor::zeros((2, rows, n), DType::F32, device)).collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            config: config.clone(),
            philox,
            counter: Tensor::new(&[0i64], device)?,
            rates: Rates::new(share.group(), device)?,
            recognition: layers(dbn.recognition())?,
            generative: layers(dbn.generative())?,
            top: Top::new(dbn.top(), rows)?,
            wake: states()?,
            sleep: if config.stage == Stage::UpDown { states()? } else { Vec::new() },
            share,
            together: None,
        })
    }

    /// Buffers for minibatches of `rows`, fewer than these have, on the same parameters, velocities
    /// and counter; `dbn` is the network that these buffers are for. Rates are their own, since the
    /// mean of a gradient is over the rows.
    pub(super) fn of_fewer(&self, dbn: &LabelledDbn, rows: usize) -> Result<Self> {
        let share = Share::new(self.share.group(), rows);
        let together = self.together.as_ref().map(|of_all| of_all.by(&share)).transpose()?;
        Ok(Self { together, ..self.with(dbn, share)? })
    }

    /// Buffers for another share, on the same parameters, velocities and counter.
    fn with(&self, dbn: &LabelledDbn, share: Share) -> Result<Self> {
        let config = LabelledDbnTrainConfig { batch: share.of(), ..self.config.clone() };
        let own = Self::on(dbn, &config, self.philox, share)?;
        let shared = |layers: &[Directed], own: Vec<Directed>| {
            let of = |(layer, own): (&Directed, Directed)| Directed {
                matrix: layer.matrix.clone(),
                state: layer.state.clone(),
                ..own
            };
            layers.iter().zip(own).map(of).collect()
        };
        let top = self.top.clone();
        Ok(Self {
            counter: self.counter.clone(),
            recognition: shared(&self.recognition, own.recognition),
            generative: shared(&self.generative, own.generative),
            top: Top {
                matrix: top.matrix,
                label_params: top.label_params,
                hidden_state: top.hidden_state,
                visible_state: top.visible_state,
                label_state: top.label_state,
                ..own.top
            },
            ..own
        })
    }

    /// The network whose parameters are these buffers.
    pub(super) fn dbn(&self, config: &LabelledDbnConfig) -> Result<LabelledDbn> {
        let layers = |of: &[Directed]| of.iter().map(Directed::linear).collect::<Result<Vec<_>>>();
        let (recognition, generative) = (layers(&self.recognition)?, layers(&self.generative)?);
        LabelledDbn::from_parts(config.clone(), recognition, generative, self.top.rbm()?)
    }

    /// One step with `k` Gibbs steps on top, from this rank's rows in plane [`POS`] of `wake[0]` and
    /// of the labels.
    pub(super) fn run(&self, k: usize) -> Result<()> {
        let Self { config, rates, recognition, generative, top, wake, sleep, .. } = self;
        let (m, precision) = (recognition.len(), config.precision);
        let whole = config.stage == Stage::UpDown;
        let mut draws = Sequence { at: self.philox, counter: &self.counter, share: &self.share };
        let sample = UnitPlanes { sample: Some(POS), ..NONE };
        let mean = |plane| UnitPlanes { mean: Some(plane), ..NONE };

        // Wake: up by recognition; what would generation have predicted of each layer from the one
        // above?
        for l in 1..=m {
            let (out, place) = match whole {
                true => (sample, draws.take(recognition[l - 1].n_out()?)),
                false => (mean(POS), Draws::Mode),
            };
            recognition[l - 1].infer(&wake[l - 1], &wake[l], out, place, precision)?;
        }
        top.contrast(&wake[m], config, k, &mut draws)?;
        if whole {
            for l in 1..=m {
                generative[l - 1].infer(&wake[l], &wake[l - 1], mean(NEG), Draws::Mode, precision)?;
            }
            // Sleep: down by generation from where the chains are; what would recognition have made
            // of each layer?
            scale_into_(&sleep[m].get(POS)?, &wake[m].get(NEG)?, 1.)?;
            for l in (1..=m).rev() {
                let (out, place) = match l {
                    1 => (mean(POS), Draws::Mode),
                    _ => (sample, draws.take(generative[l - 1].n_out()?)),
                };
                generative[l - 1].infer(&sleep[l], &sleep[l - 1], out, place, precision)?;
            }
            for l in 1..=m {
                recognition[l - 1].infer(&sleep[l - 1], &sleep[l], mean(NEG), Draws::Mode, precision)?;
            }
        }
        let used = draws.at.offset.wrapping_sub(self.philox.offset) as i64;
        if let Some(together) = &self.together {
            return self.learn_together(together, used);
        }
        for (layer, below, planes) in self.directed() {
            layer.learn(below, planes, rates, config)?;
        }
        top.learn(&wake[m], rates, config, &self.counter, used)
    }

    /// The layers of one direction that learn, each with what it reads and with the planes of what
    /// it predicts.
    fn directed(&self) -> Vec<(&Directed, &Tensor, &Tensor)> {
        // Without fantasies none of them learns.
        let wake = self.generative.iter().zip(self.wake.windows(2));
        let sleep = self.recognition.iter().zip(self.sleep.windows(2));
        let both = wake
            .zip(sleep)
            .flat_map(|((down, wake), (up, sleep))| [(down, &wake[1], &wake[0]), (up, &sleep[0], &sleep[1])]);
        both.collect()
    }
}

/// `[4, n]`: biases, and zeros for the rest of what [`bias_step_`] keeps.
fn side(bias: &Tensor) -> Result<Tensor> {
    let bias = bias.to_dtype(DType::F32)?;
    let zero = bias.zeros_like()?;
    Tensor::stack(&[&bias, &zero, &zero, &zero], 0)
}
