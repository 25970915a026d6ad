//! One step on a minibatch: its memory and its sequence of ops.
//!
//! Everything is allocated in [`Buffers::new`]; [`Buffers::run`] is a fixed sequence of ops on that
//! memory, so that it can be recorded as a CUDA graph. For the equations see
//! [`train`](super::train).
//!
//! | form | for | a step |
//! |---|---|---|
//! | [`Flat`], in one op | the paper's network in small minibatches, without momentum | a share of one op |
//! | [`Parts`] | the paper's network where products of 16-bit numbers, of f32 in two parts, are one kernel | four kernels, and one for several steps |
//! | [`Flat`] | everything else | an op for each module |
//!
//! In the latter two, layers have units that are always 0 beside their own; see
//! [`padding`](crate::padding). Noise is numbered and drawn as without them.
mod flat;
mod parts;

use super::{Dae, DaeConfig, DaeTrainConfig};
use crate::feedforward::{Activation as UnitActivation, ReconstructionLoss};
use crate::flat::{Places, view};
use crate::masters::Format;
use crate::model::Model;
use crate::padding::{Width, bias_of_nothing, copy_common_, corner, with_biases, with_zeros};
use crate::share::Share;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::advance_;
use chandlery_ops::layers::{Activation, Factors, gemm_, layer_forward_};
use chandlery_ops::{Group, Philox, Precision};
use flat::{Flat, FlatShared};
use parts::Parts;

/// Planes of the flat buffer.
pub(super) const VALUES: usize = 0;
pub(super) const GRADIENT: usize = 1;
pub(super) const VELOCITY: usize = 2;
const PLANES: usize = 3;

/// An autoencoder below the one that is trained, and what its hidden units are.
#[derive(Clone)]
struct LowerLayer {
    weight: Tensor,
    bias: Tensor,
    activation: Activation,
    /// `[batch, n_hidden]`
    hidden: Tensor,
}

/// The parameters of one kind: values, gradients or velocities.
#[derive(Clone)]
pub(super) struct Parameters {
    pub(super) weight: Tensor,
    pub(super) decoder_weight: Option<Tensor>,
    pub(super) bias: Tensor,
    pub(super) visible_bias: Tensor,
}

/// All memory of a step, and the views of it that the step uses. Clones share it.
#[derive(Clone)]
pub(super) struct Buffers {
    /// The network, and as steps train it: with units that stay at 0.
    own: DaeConfig,
    of: DaeConfig,
    precision: Precision,
    lower: Vec<LowerLayer>,
    /// Where this rank's prepared rows are loaded to: what the lowest autoencoder reads,
    /// `[at_once · rows, n_visible]` of it.
    input: Tensor,
    /// This rank's share of a minibatch.
    share: Share,
    /// `[2, n]` f64: sums of the loss and of the squared error, in as many parts as the form has
    /// places for.
    pub(super) gathered: Tensor,
    /// Blocks of random draws used so far.
    pub(super) counter: Tensor,
    form: Form,
}

/// A form of steps, in the order of the table of the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    OneOp,
    Parts(Format),
    Flat,
}

impl Way {
    /// The fastest for this network, which reads rows or what others make of them.
    fn of(reads_rows: bool, own: &DaeConfig, config: &DaeTrainConfig, device: &Device) -> Result<Self> {
        let parts_are_faster = reads_rows && parts::faster(own, config, device);
        if !parts_are_faster && flat::fits_one_op(own, config, device)? {
            return Ok(Self::OneOp);
        }
        Ok(parts::fits(own, config, device).map_or(Self::Flat, Self::Parts))
    }

    /// Units of a layer of visible units. One op takes any number alike.
    fn visible(self, n: usize) -> Width {
        if self == Self::OneOp { Width::as_it_is(n) } else { Width::padded(n) }
    }

    /// Units of the layer of hidden units that is trained.
    fn hidden(self, n: usize) -> Width {
        if let Self::Parts(_) = self { Width::aligned(n) } else { self.visible(n) }
    }
}

/// Where the parameters are, and how they are stepped.
#[derive(Clone)]
enum Form {
    Flat(Flat),
    Parts(Parts),
}

impl Form {
    fn at_once(&self) -> usize {
        match self {
            Self::Flat(_) => 1,
            Self::Parts(parts) => parts.at_once,
        }
    }

    /// Places of the sums of loss and squared error.
    fn places(&self) -> Result<usize> {
        match self {
            Self::Flat(flat) => Ok(flat.places()),
            Self::Parts(parts) => parts.places(),
        }
    }
}

impl Buffers {
    pub(super) fn new(lower: &[Dae], dae: &Dae, config: &DaeTrainConfig, philox: Philox) -> Result<Self> {
        let way = Way::of(lower.is_empty(), dae.config(), config, dae.weight().device())?;
        Self::of_way(way, lower, dae, config, philox, Share::new(&Group::single(), config.batch))
    }

    fn of_way(
        way: Way,
        lower: &[Dae],
        dae: &Dae,
        config: &DaeTrainConfig,
        philox: Philox,
        share: Share,
    ) -> Result<Self> {
        let (own, device, rows) = (dae.config(), dae.weight().device(), share.rows().len());
        let of = DaeConfig {
            n_visible: way.visible(own.n_visible).all,
            n_hidden: way.hidden(own.n_hidden).all,
            ..own.clone()
        };
        let zeros = |rows: usize, n: usize| Tensor::zeros((rows, n), DType::F32, device);
        let mut layers = Vec::with_capacity(lower.len());
        for layer in lower {
            let &DaeConfig { n_visible, n_hidden, hidden, .. } = layer.config();
            let (n_visible, n_hidden) = (way.visible(n_visible).all, way.visible(n_hidden).all);
            let bias = with_biases(&copied(layer.bias())?, n_hidden, bias_of_nothing(hidden))?;
            layers.push(LowerLayer {
                weight: with_zeros(&copied(layer.weight())?, &[n_hidden, n_visible])?.copy()?,
                bias: bias.copy()?,
                activation: hidden.into(),
                hidden: zeros(rows, n_hidden)?,
            });
        }
        // What is below makes one minibatch at a time.
        let at_once = if lower.is_empty() { parts::at_once(config.batch, own.n_visible) } else { 1 };
        let form = match way {
            Way::Parts(format) => {
                Form::Parts(Parts::new(&of, own.n_visible, config, philox, (format, at_once), device)?)
            }
            Way::OneOp | Way::Flat => {
                let (in_one_op, shared) = (way == Way::OneOp, FlatShared::new(&of, device)?);
                let share = share.clone();
                Form::Flat(Flat::new(&of, own.n_visible, config, philox, in_one_op, share, shared)?)
            }
        };
        let n_inputs = way.visible(lower.first().unwrap_or(dae).config().n_visible).all;
        let buffers = Self {
            own: own.clone(),
            of,
            precision: config.precision,
            lower: layers,
            input: zeros(form.at_once() * rows, n_inputs)?,
            share,
            gathered: Tensor::zeros((2, form.places()?), DType::F64, device)?,
            counter: Tensor::new(&[0i64], device)?,
            form,
        };
        let values = buffers.values()?;
        for (to, (name, from)) in values.tensors().into_iter().zip(dae.tensors()) {
            let from = copied(&from)?;
            let from = match &name[..] {
                "bias" => with_biases(&from, to.dim(0)?, bias_of_nothing(own.hidden))?,
                "visible_bias" => with_biases(&from, to.dim(0)?, bias_of_nothing(own.output))?,
                _ => with_zeros(&from, to.dims())?,
            };
            scale_into_(to, &from, 1.)?;
        }
        if let Form::Parts(parts) = &buffers.form {
            parts.set_values(&values)?;
        }
        Ok(buffers)
    }

    /// Buffers for one minibatch of `config.batch` rows, fewer than these have, on the same
    /// parameters and counter; `config` is otherwise theirs. What they gather lies apart.
    pub(super) fn of_fewer(&self, config: &DaeTrainConfig) -> Result<Self> {
        let share = Share::new(self.share.group(), config.batch);
        let form = match &self.form {
            Form::Flat(flat) => Form::Flat(flat.of_fewer(&self.of, config, share.clone())?),
            Form::Parts(parts) => Form::Parts(parts.of_fewer(&self.of, config)?),
        };
        let rows = share.rows().len();
        let zeros = |like: &Tensor| Tensor::zeros((rows, like.dim(1)?), DType::F32, like.device());
        let hidden = |layer: &LowerLayer| Ok(LowerLayer { hidden: zeros(&layer.hidden)?, ..layer.clone() });
        Ok(Self {
            lower: self.lower.iter().map(hidden).collect::<Result<_>>()?,
            input: zeros(&self.input)?,
            share,
            gathered: Tensor::zeros((2, form.places()?), DType::F64, self.counter.device())?,
            form,
            ..self.clone()
        })
    }

    /// Buffers for this rank's share of minibatches of as many rows, above the same others, on
    /// parameters and a counter that are those of the first rank: in the form that has a gradient to
    /// sum.
    pub(super) fn in_group(
        &self,
        lower: &[Dae],
        config: &DaeTrainConfig,
        philox: Philox,
        group: &Group,
    ) -> Result<Self> {
        let (share, params) = (Share::new(group, self.share.of()), self.params()?);
        [&params, &self.counter].into_iter().try_for_each(|state| group.broadcast_(state, 0))?;
        let buffers = Self::of_way(Way::Flat, lower, &self.dae()?, config, philox, share)?;
        // Velocities too; these are the parameters themselves.
        copy_params_((&buffers.of, &buffers.all_params()?), (&buffers.own, &params))?;
        Ok(Self { counter: self.counter.clone(), ..buffers })
    }

    /// Rows of a minibatch.
    pub(super) fn batch(&self) -> usize {
        self.share.of()
    }

    /// This rank's share of them.
    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// The values, with those of units that stay at 0.
    fn values(&self) -> Result<Parameters> {
        match &self.form {
            Form::Flat(flat) => Ok(flat.values.clone()),
            Form::Parts(parts) => parts.values(),
        }
    }

    /// The autoencoder in training. It shares its memory with these buffers, or has a copy of what
    /// lies apart in them or in halves.
    pub(super) fn dae(&self) -> Result<Dae> {
        let (v, h) = (self.own.n_visible, self.own.n_hidden);
        let cut = |t: &Tensor, dims: &[usize]| corner(t, dims)?.contiguous();
        let Parameters { weight, decoder_weight, bias, visible_bias } = &self.values()?;
        let decoder_weight = decoder_weight.as_ref().map(|decoder| cut(decoder, &[v, h])).transpose()?;
        let (weight, bias) = (cut(weight, &[h, v])?, cut(bias, &[h])?);
        Dae::from_tensors(self.own.clone(), weight, bias, cut(visible_bias, &[v])?, decoder_weight)
    }

    /// What the autoencoder in training is.
    pub(super) fn config(&self) -> &DaeConfig {
        &self.own
    }

    /// What steps go by from now on.
    pub(super) fn set_rates(&self, rate: f32, momentum: f32) -> Result<()> {
        match &self.form {
            Form::Flat(flat) => flat.set_rates(rate, momentum),
            Form::Parts(parts) => parts.set_rates(rate, momentum),
        }
    }

    /// Loads `scale · rows` of this rank, of one minibatch or several, from minibatch `first` on.
    pub(super) fn load(&self, first: usize, rows: &Tensor, scale: f32) -> Result<()> {
        let to = self.input.narrow(0, first * self.share.rows().len(), rows.dim(0)?)?;
        // Units beside those that rows have stay as they were made, 0.
        scale_into_(&to.narrow(1, 0, rows.dim(1)?)?, rows, scale)
    }

    /// The rows of so many minibatches.
    fn input(&self, minibatches: usize) -> Result<Tensor> {
        self.input.narrow(0, 0, minibatches * self.share.rows().len())
    }

    /// A step for each of so many minibatches that are loaded, at most [`at_once`](Self::at_once):
    /// the six modules of the paper, and the update.
    pub(super) fn run(&self, minibatches: usize) -> Result<()> {
        let x = self.rows(minibatches)?;
        match &self.form {
            Form::Flat(flat) => {
                flat.run(&x, &self.gathered, &self.counter)?;
                advance_(&self.counter, blocks_of(self.share.of(), self.own.n_visible))
            }
            Form::Parts(parts) => parts.run(&x, &self.gathered, &self.counter),
        }
    }

    /// Most minibatches of one [`run`](Self::run).
    pub(super) fn at_once(&self) -> usize {
        self.form.at_once()
    }

    /// A step for each minibatch of `x`, prepared rows times `scale`, without momentum: no gradient
    /// and no velocity is stored.
    pub(super) fn run_in_one_op(&self, x: &Tensor, scale: f32, learning_rate: f32) -> Result<()> {
        match &self.form {
            Form::Flat(flat) => flat.run_in_one_op(x, scale, learning_rate, &self.gathered, &self.counter),
            Form::Parts(_) => candle::bail!("DaeTrainer: this network takes one step at a time"),
        }
    }

    /// Whether many steps are one op.
    pub(super) fn in_one_op(&self) -> bool {
        matches!(&self.form, Form::Flat(flat) if flat.in_one_op)
    }

    /// `x`: the loaded rows, or what the autoencoders below make of them.
    fn rows(&self, minibatches: usize) -> Result<Tensor> {
        let mut x = self.input(minibatches)?;
        for LowerLayer { weight, bias, activation, hidden } in &self.lower {
            if self.share.rows().is_empty() {
                x = hidden.clone();
                continue;
            }
            gemm_(hidden, &x, &weight.t()?, Factors::OVERWRITE, self.precision)?;
            layer_forward_(hidden, Some(bias), *activation, None)?;
            x = hidden.clone();
        }
        Ok(x)
    }

    /// Values, gradient and velocity of all parameters as checkpoints hold them, `[3, n]`: the same
    /// of each form, without units that stay at 0.
    pub(super) fn params(&self) -> Result<Tensor> {
        let all = self.all_params()?;
        if !self.has_more() {
            return Ok(all);
        }
        let own = Tensor::zeros(&flat_shape(&self.own).0, DType::F32, all.device())?;
        copy_params_((&self.own, &own), (&self.of, &all))?;
        Ok(own)
    }

    /// Takes over what [`params`](Self::params) gave, after changes.
    pub(super) fn take(&self, params: &Tensor) -> Result<()> {
        let all = match self.has_more() {
            true => self.all_params()?,
            false => params.clone(),
        };
        if self.has_more() {
            copy_params_((&self.of, &all), (&self.own, params))?;
        }
        match &self.form {
            // They are the parameters themselves.
            Form::Flat(_) => Ok(()),
            Form::Parts(parts) => parts.unflatten(&self.of, &all),
        }
    }

    /// Whether there are units that stay at 0.
    fn has_more(&self) -> bool {
        (self.of.n_visible, self.of.n_hidden) != (self.own.n_visible, self.own.n_hidden)
    }

    /// Values, gradient or velocity, with those of units that stay at 0.
    #[cfg(test)]
    pub(super) fn plane(&self, plane: usize) -> Result<Parameters> {
        parameters(&self.of, &self.all_params()?.get(plane)?)
    }

    /// `x̃` of the last minibatch, with units that stay at 0.
    #[cfg(test)]
    pub(super) fn corrupted(&self) -> Result<Tensor> {
        match &self.form {
            Form::Flat(flat) => Ok(flat.corrupted.clone()),
            Form::Parts(_) => candle::bail!("numbers in parts are for GPUs"),
        }
    }

    /// All parameters in a flat buffer.
    fn all_params(&self) -> Result<Tensor> {
        match &self.form {
            Form::Flat(flat) => Ok(flat.params.clone()),
            Form::Parts(parts) => parts.flattened(&self.of),
        }
    }
}

/// Copies what belongs to the units that both networks have, between flat buffers of theirs.
fn copy_params_((to_of, to): (&DaeConfig, &Tensor), (from_of, from): (&DaeConfig, &Tensor)) -> Result<()> {
    for plane in 0..PLANES {
        let (to, from) = (parameters(to_of, &to.get(plane)?)?, parameters(from_of, &from.get(plane)?)?);
        for (to, from) in to.tensors().into_iter().zip(from.tensors()) {
            copy_common_(to, from)?;
        }
    }
    Ok(())
}

/// Whether it is the paper's network: tied weights, sigmoid units and the cross-entropy.
fn is_the_papers(of: &DaeConfig) -> bool {
    let sigmoid = UnitActivation::Sigmoid;
    of.tied && (of.hidden, of.output) == (sigmoid, sigmoid) && of.loss == ReconstructionLoss::CrossEntropy
}

/// Blocks of random draws for the noise on a minibatch.
fn blocks_of(batch: usize, n_visible: usize) -> i64 {
    (batch * n_visible).div_ceil(4) as i64
}

fn copied(t: &Tensor) -> Result<Tensor> {
    t.to_dtype(DType::F32)?.contiguous()
}

impl Parameters {
    /// In the order of [`Dae::tensors`].
    fn tensors(&self) -> Vec<&Tensor> {
        [&self.weight, &self.bias, &self.visible_bias].into_iter().chain(&self.decoder_weight).collect()
    }
}

/// Places in a plane of a flat buffer of all parameters.
struct ParameterPlaces {
    weight: usize,
    decoder_weight: Option<usize>,
    bias: usize,
    visible_bias: usize,
    /// Entries of the weights, which come first, and of everything.
    n_weights: usize,
    n: usize,
}

impl ParameterPlaces {
    fn of(of: &DaeConfig) -> Self {
        let (mut at, n) = (Places::default(), of.n_visible * of.n_hidden);
        let weight = at.take(n);
        let decoder_weight = (!of.tied).then(|| at.take(n));
        let n_weights = at.len();
        let (bias, visible_bias) = (at.take(of.n_hidden), at.take(of.n_visible));
        Self { weight, decoder_weight, bias, visible_bias, n_weights, n: at.len() }
    }
}

/// The shape of a flat buffer for all parameters, and the entries of the weights, which come first.
fn flat_shape(of: &DaeConfig) -> ([usize; 2], usize) {
    let places = ParameterPlaces::of(of);
    ([PLANES, places.n], places.n_weights)
}

/// The parts of one plane of a flat buffer.
fn parameters(of: &DaeConfig, plane: &Tensor) -> Result<Parameters> {
    let (n_visible, n_hidden, at) = (of.n_visible, of.n_hidden, ParameterPlaces::of(of));
    let decoder = |start: usize| view(plane, start, &[n_visible, n_hidden]);
    Ok(Parameters {
        weight: view(plane, at.weight, &[n_hidden, n_visible])?,
        decoder_weight: at.decoder_weight.map(decoder).transpose()?,
        bias: view(plane, at.bias, &[n_hidden])?,
        visible_bias: view(plane, at.visible_bias, &[n_visible])?,
    })
}
