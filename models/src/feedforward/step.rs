//! One step of backpropagation: its memory and its sequence of ops.
//!
//! Everything is allocated in [`Buffers::new`]; [`Buffers::run`] is a fixed sequence of ops on that
//! memory, so that it can be recorded as a CUDA graph. For the equations see
//! [`train`](super::train).
//!
//! Between dense layers there are units that are always 0 beside those of the network; see
//! [`padding`](crate::padding).
use super::layer_step::{LayerStep, Parameters};
use super::places::{copy_params_, places, with_units};
use super::{
    Connections, Feedforward, FeedforwardConfig, FeedforwardTrainConfig, LayerConfig, Optimizer,
    ReconstructionLoss, Task,
};
use crate::conv_rbm::ConvGrid;
use crate::flat;
use crate::model::Model;
use crate::padding::{bias_of_nothing, corner, with_biases, with_zeros};
use crate::share::Share;
use candle::{D, DType, Device, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::{Draws, advance_};
use chandlery_ops::layers::{
    Activation, AdamStep, Dropout, OutputLoss, SgdStep, adam_step_, adam_step_of_product_,
    adam_step_of_product_fuses, layer_forward_, layer_forward_into_, max_norm_rows_, output_loss_, sgd_step_,
    softmax_loss_,
};
use chandlery_ops::{Group, Philox, Precision};

/// Planes of the flat buffer; those above belong to the optimiser.
const VALUES: usize = 0;
const GRADIENT: usize = 1;
/// Entries of the gradient that are worth a sum over ranks of their own, which takes some 20 µs
/// before the first one is there: 4 MB.
const BUCKET: usize = 1 << 20;

/// A layer, and what dropout leaves out of what it reads.
#[derive(Clone)]
struct LayerBuffers {
    step: LayerStep,
    /// Where its weights begin in the flat buffer.
    first_weight: usize,
    /// The share left out, and where its draws begin.
    dropout: Option<(f32, Philox)>,
}

/// All memory of a step, and the views of it that the step uses. Clones share it.
#[derive(Clone)]
pub(super) struct Buffers {
    config: FeedforwardTrainConfig,
    /// The network, and its layers as steps train them: with units that stay at 0.
    own: FeedforwardConfig,
    of: Vec<LayerConfig>,
    share: Share,
    loss: Option<OutputLoss>,
    /// `[planes, n]`: values, gradient, and what the optimiser remembers. Weights come first,
    /// biases after them. Those of units that stay at 0 are among them.
    pub(super) all_params: Tensor,
    /// Entries of all weights, which come first.
    n_weights: usize,
    /// Layers, from the lowest on, whose weights are stepped by where their gradient is summed.
    fused: usize,
    /// `[n_weights]` bf16, where products read such numbers.
    rounded: Option<Tensor>,
    layers: Vec<LayerBuffers>,
    /// Where the rank's rows are loaded to, `[rows, n_inputs]`: f32, or bf16 where only products read
    /// them.
    rows: Tensor,
    /// The filters of the lowest layer, for which the channels of a pixel lie together in `rows`.
    lowest: Option<ConvGrid>,
    /// Biases of 0 for the loss, where the outputs have biases that several share.
    no_bias: Option<Tensor>,
    /// What the lowest layer reads: the rows, or what dropout leaves of them; f32 or bf16.
    input: Tensor,
    /// `[rows]` u32, of a classifier.
    pub(super) labels: Option<Tensor>,
    /// `[2, rows]` f64, see [`softmax_loss_`].
    pub(super) gathered: Tensor,
    /// Rate, momentum.
    pub(super) scalars: Tensor,
    /// Steps made.
    pub(super) steps: Tensor,
    /// Blocks of random draws used so far, and those of one step.
    pub(super) counter: Tensor,
    blocks: i64,
}

/// What buffers for minibatches of any number of rows have in common; see [`Buffers`].
struct Shared {
    params: Tensor,
    rounded: Option<Tensor>,
    scalars: Tensor,
    steps: Tensor,
    counter: Tensor,
}

impl Buffers {
    /// `own` is what the network is.
    pub(super) fn new(
        network: &Feedforward,
        own: FeedforwardConfig,
        config: &FeedforwardTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        let of = with_units(&own);
        let (_, n_weights, n) = places(&of);
        let planes = match config.optimizer {
            Optimizer::Adam => 4,
            Optimizer::Sgd => 3,
        };
        let device = network.device();
        // Planes begin on 16 bytes.
        let params = Tensor::zeros((planes, n.next_multiple_of(4)), DType::F32, device)?;
        let scalars = Tensor::zeros(2, DType::F32, device)?;
        let zero = || Tensor::new(&[0i64], device);
        let rounds = config.precision == Precision::Bf16 && device.is_cuda() && rounds(&of);
        let rounded = rounds.then(|| Tensor::zeros(n_weights, DType::BF16, device)).transpose()?;
        let shared = Shared { params, rounded, scalars, steps: zero()?, counter: zero()? };
        let share = Share::new(&Group::single(), config.batch);
        let buffers = Self::on((own, of), config, philox, share, shared)?;
        for ((layer, of), (weight, bias)) in buffers.layers.iter().zip(&buffers.of).zip(network.layers()) {
            let to = &layer.step.params;
            let plain = |t: &Tensor| t.to_dtype(DType::F32)?.contiguous();
            let nothing = bias_of_nothing(of.activation);
            scale_into_(&to.weight, &with_zeros(&plain(weight)?, to.weight.dims())?, 1.)?;
            scale_into_(&to.bias, &with_biases(&plain(bias)?, to.bias.dim(0)?, nothing)?, 1.)?;
        }
        buffers.refresh()?;
        Ok(buffers)
    }

    /// Rounds the weights anew for the products that read them so, after a change from outside.
    pub(super) fn refresh(&self) -> Result<()> {
        let Some(rounded) = &self.rounded else { return Ok(()) };
        scale_into_(rounded, &self.all_params.get(VALUES)?.narrow(0, 0, self.n_weights)?, 1.)
    }

    /// All planes as checkpoints hold them, without units that stay at 0.
    pub(super) fn params(&self) -> Result<Tensor> {
        let (_, _, n) = places(&self.own.layers);
        if self.holds_own()? {
            return Ok(self.all_params.clone());
        }
        let own = Tensor::zeros((self.all_params.dim(0)?, n), DType::F32, self.device())?;
        copy_params_((&self.own.layers, &own), (&self.of, &self.all_params))?;
        Ok(own)
    }

    /// Whether all planes are as checkpoints hold them.
    fn holds_own(&self) -> Result<bool> {
        let (_, _, n) = places(&self.own.layers);
        Ok(self.of == self.own.layers && self.all_params.dim(1)? == n)
    }

    /// Takes over what [`params`](Self::params) gave, after changes.
    pub(super) fn take(&self, params: &Tensor) -> Result<()> {
        if !self.holds_own()? {
            copy_params_((&self.of, &self.all_params), (&self.own.layers, params))?;
        }
        self.refresh()
    }

    /// Buffers for minibatches of `rows`, fewer than these have, on the same parameters and
    /// counters.
    pub(super) fn of_fewer(&self, philox: Philox, rows: usize) -> Result<Self> {
        self.for_share(philox, Share::new(self.share.group(), rows))
    }

    /// The same for this rank's rows of minibatches of as many, in a group.
    pub(super) fn in_group(&self, philox: Philox, group: &Group) -> Result<Self> {
        self.for_share(philox, Share::new(group, self.share.of()))
    }

    fn for_share(&self, philox: Philox, share: Share) -> Result<Self> {
        let Self { all_params: params, rounded, scalars, steps, counter, own, of, .. } = self.clone();
        let shared = Shared { params, rounded, scalars, steps, counter };
        Self::on((own, of), &self.config, philox, share, shared)
    }

    fn on(
        (own, of): (FeedforwardConfig, Vec<LayerConfig>),
        config: &FeedforwardTrainConfig,
        philox: Philox,
        share: Share,
        shared: Shared,
    ) -> Result<Self> {
        let Shared { params, rounded, scalars, steps, counter } = shared;
        let (batch, device) = (share.rows().len(), params.device());
        let (places, n_weights, _) = places(&of);
        let rate = |layer: usize| config.dropout.get(layer).copied().filter(|&rate| rate > 0.);
        let mut at = philox;
        let mut layers = Vec::with_capacity(places.len());
        for (i, (layer, place)) in of.iter().zip(&places).enumerate() {
            let view =
                |plane: usize, start: usize, shape: &[usize]| flat::view(&params.get(plane)?, start, shape);
            let (shape, n_biases) = (layer.weight_shape(), layer.n_biases());
            let first = at.advanced(share.rows().start * layer.n_inputs);
            let dropout = rate(i).map(|rate| (rate as f32, first));
            if dropout.is_some() {
                at = at.advanced(share.of() * layer.n_inputs);
            }
            let own = Parameters {
                weight: view(VALUES, place.weight, &shape)?,
                bias: view(VALUES, place.bias, &[n_biases])?,
                weight_gradient: view(GRADIENT, place.weight, &shape)?,
                bias_gradient: view(GRADIENT, place.bias, &[n_biases])?,
            };
            let copy = rounded.as_ref().map(|all| flat::view(all, place.weight, &shape));
            let step = LayerStep::new(layer, own, copy.transpose()?, batch, config.precision, i == 0)?;
            layers.push(LayerBuffers { step, first_weight: place.weight, dropout });
        }
        // Ranks need the gradient, to sum it.
        let may = config.optimizer == Optimizer::Adam && rounded.is_some() && share.group().is_single();
        let mut fused = 0;
        for layer in of.iter().filter(|_| may) {
            let (size, rows) = ([layer.n_outputs, layer.n_inputs], share.rows().len());
            if !adam_step_of_product_fuses(device, size, rows)? {
                break;
            }
            fused += 1;
        }
        let outputs = layers.last().map_or(Activation::Identity, |layer| layer.step.activation);
        let shared = layers.last().filter(|top| top.step.shares_biases());
        let no_bias = shared.map(|top| top.step.output.get(0)?.zeros_like()).transpose()?;
        let (loss, labels) = match (own.task, config.loss) {
            (Task::Classify, _) => (None, Some(Tensor::zeros(batch, DType::U32, device)?)),
            (_, ReconstructionLoss::SquaredError) => (Some(OutputLoss::SquaredError(outputs)), None),
            (_, ReconstructionLoss::CrossEntropy) => (Some(OutputLoss::CrossEntropy), None),
        };
        let n_inputs = of[0].n_inputs;
        let zeros = |dtype| Tensor::zeros((batch, n_inputs), dtype, device);
        let of_products = if rounded.is_some() { DType::BF16 } else { DType::F32 };
        let drops = rate(0).is_some();
        let rows = zeros(if drops || loss.is_some() { DType::F32 } else { of_products })?;
        let input = if drops || rows.dtype() != of_products { zeros(of_products)? } else { rows.clone() };
        Ok(Self {
            config: config.clone(),
            share,
            loss,
            all_params: params.clone(),
            n_weights,
            fused,
            rounded,
            layers,
            rows,
            lowest: match of[0].connections {
                Connections::Filters(grid) => Some(grid),
                _ => None,
            },
            no_bias,
            input,
            labels,
            gathered: Tensor::zeros((2, batch), DType::F64, device)?,
            scalars,
            steps,
            counter,
            blocks: at.offset.wrapping_sub(philox.offset) as i64,
            own,
            of,
        })
    }

    /// The network in training. It shares its memory with these buffers, or has a copy of what lies
    /// apart in them.
    pub(super) fn network(&self) -> Result<Feedforward> {
        let parts = |params: &Parameters| (params.weight.clone(), params.bias.clone());
        Feedforward::from_tensors(self.own.clone(), self.of_each(parts)?)
    }

    /// What the network in training is.
    pub(super) fn own(&self) -> &FeedforwardConfig {
        &self.own
    }

    /// Where everything lies.
    pub(super) fn device(&self) -> &Device {
        self.all_params.device()
    }

    /// Parts of each layer without units that stay at 0: of the shapes of its weight and its bias.
    fn of_each(&self, parts: impl Fn(&Parameters) -> (Tensor, Tensor)) -> Result<Vec<(Tensor, Tensor)>> {
        let cut = |t: &Tensor, dims: &[usize]| corner(t, dims)?.contiguous();
        let layers = self.layers.iter().zip(&self.own.layers).map(|(layer, own)| {
            let (weight, bias) = parts(&layer.step.params);
            Ok((cut(&weight, &own.weight_shape())?, cut(&bias, &[own.n_biases()])?))
        });
        layers.collect()
    }

    /// The gradient of the last step for each layer: of its weight, and of its bias.
    #[cfg(test)]
    pub(super) fn gradients(&self) -> Result<Vec<(Tensor, Tensor)>> {
        self.of_each(|params| (params.weight_gradient.clone(), params.bias_gradient.clone()))
    }

    /// What belongs to units that stay at 0, of all planes but for the biases themselves, and what
    /// they read and make.
    #[cfg(test)]
    pub(super) fn of_nothing(&self) -> Result<Vec<Tensor>> {
        let (places, ..) = places(&self.of);
        let mut found = vec![];
        let beyond = |t: &Tensor, dim: usize, n: usize| t.narrow(dim, n, t.dim(dim)? - n);
        for (own, (of, place)) in self.own.layers.iter().zip(self.of.iter().zip(places)) {
            for plane in 0..self.all_params.dim(0)? {
                let plane_of = self.all_params.get(plane)?;
                let weight = flat::view(&plane_of, place.weight, &of.weight_shape())?;
                if of != own {
                    found.push(beyond(&weight, 0, own.n_outputs)?);
                    found.push(beyond(&weight, 1, own.n_inputs)?);
                }
                if plane != VALUES {
                    let bias = flat::view(&plane_of, place.bias, &[of.n_biases()])?;
                    found.push(beyond(&bias, 0, own.n_biases())?);
                }
            }
        }
        found.push(beyond(&self.input, 1, self.own.layers[0].n_inputs)?);
        for (layer, own) in self.layers.iter().zip(&self.own.layers) {
            found.push(beyond(&layer.step.output, 1, own.n_outputs)?);
        }
        Ok(found)
    }

    /// Rows of a minibatch, those of all ranks.
    pub(super) fn batch(&self) -> usize {
        self.share.of()
    }

    /// This rank's share of them.
    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Loads the labels of this rank's rows, of all labels of a classifier's minibatch; returns
    /// them.
    pub(super) fn own_labels(&self, labels: Option<&Tensor>) -> Result<Option<Tensor>> {
        const OP: &str = "FeedforwardTrainer::step";
        match (&self.labels, labels) {
            (None, _) => Ok(None),
            (Some(to), Some(labels))
                if labels.dims() == [self.share.of()] && labels.dtype() == DType::U32 =>
            {
                let own = self.share.own(labels)?;
                if !self.share.rows().is_empty() {
                    to.slice_set(&own, 0, 0)?;
                }
                Ok(Some(own))
            }
            (Some(_), Some(labels)) => candle::bail!(
                "{OP}: labels must be u32 of shape {:?}, got {:?} {:?}",
                [self.share.of()],
                labels.dtype(),
                labels.dims()
            ),
            (Some(_), None) => candle::bail!("{OP}: a classifier must be given labels, got none"),
        }
    }

    /// Loads `scale · rows`.
    pub(super) fn load(&self, rows: &Tensor, scale: f32) -> Result<()> {
        match &self.lowest {
            Some(grid) => scale_into_(&self.rows, &grid.channels_last(rows)?, scale),
            // Units beside those that rows have stay as they were made, 0.
            None => scale_into_(&self.rows.narrow(1, 0, rows.dim(1)?)?, rows, scale),
        }
    }

    /// One step from what was loaded to `rows` and `labels`.
    pub(super) fn run(&self) -> Result<()> {
        let gradient = self.all_params.get(GRADIENT)?;
        if self.share.rows().is_empty() {
            scale_into_(&gradient, &gradient.zeros_like()?, 1.)?;
        } else {
            self.forward()?;
        }
        // Ranks sum what a layer leaves while those below it are at work; biases lie behind all
        // weights.
        let mut sums = self.share.group().beside();
        let mut end = self.n_weights;
        self.backward(|start| {
            if start > 0 && end - start < BUCKET {
                return Ok(());
            }
            sums.all_reduce_(&gradient.narrow(0, start, end - start)?)?;
            end = start;
            Ok(())
        })?;
        let n_biases = gradient.elem_count() - self.n_weights;
        sums.all_reduce_(&gradient.narrow(0, self.n_weights, n_biases)?)?;
        sums.join()?;
        self.update()?;
        if self.blocks != 0 {
            advance_(&self.counter, self.blocks)?;
        }
        advance_(&self.steps, 1)
    }

    /// Up to the loss, whose derivative is left in the top layer's output.
    fn forward(&self) -> Result<()> {
        let dropout = self.layers.first().and_then(|lowest| self.dropout(lowest));
        if self.input.dtype() != self.rows.dtype() {
            layer_forward_into_(&self.input, &self.rows, None, Activation::Identity, dropout)?;
        } else if dropout.is_some() {
            scale_into_(&self.input, &self.rows, 1.)?;
            layer_forward_(&self.input, None, Activation::Identity, dropout)?;
        }
        let mut x = &self.input;
        for (i, LayerBuffers { step, .. }) in self.layers.iter().enumerate() {
            step.product(x)?;
            match self.layers.get(i + 1) {
                Some(above) => step.activate(self.dropout(above))?,
                None => {
                    self.loss(step)?;
                    step.round()?;
                }
            }
            x = step.values();
        }
        Ok(())
    }

    fn loss(&self, top: &LayerStep) -> Result<()> {
        let bias = match &self.no_bias {
            Some(no_bias) => {
                top.add_biases()?;
                no_bias
            }
            None => &top.params.bias,
        };
        match (self.loss, &self.labels) {
            (Some(loss), _) => {
                output_loss_(&top.output, bias, &self.rows, loss, self.share.of(), &self.gathered)
            }
            (None, Some(labels)) => softmax_loss_(&top.output, bias, labels, self.share.of(), &self.gathered),
            (None, None) => candle::bail!("FeedforwardTrainer: there is nothing to hold the outputs against"),
        }
    }

    /// Gradients of all layers, from the top down; `done` hears where in the flat buffer the
    /// weights of each begin, above which all are there. Without rows there is nothing to compute.
    fn backward(&self, mut done: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let Some(mut delta) = self.layers.last().map(|top| top.step.values()) else { return Ok(()) };
        for (i, layer) in self.layers.iter().enumerate().rev() {
            if self.share.rows().is_empty() {
                done(layer.first_weight)?;
                continue;
            }
            let below = if i == 0 { None } else { self.layers.get(i - 1) };
            let x = below.map_or(&self.input, |below| below.step.values());
            let is_fused = i < self.fused;
            if is_fused {
                layer.step.bias_gradient(delta)?;
            } else {
                layer.step.gradient(delta, x)?;
            }
            done(layer.first_weight)?;
            let input_delta = layer.step.input_delta(delta)?;
            if is_fused {
                self.step_of_product(layer, delta, x)?;
            }
            if let (Some(below), Some(input_delta)) = (below, input_delta) {
                delta = below.step.through(input_delta, self.dropout(layer))?;
            }
        }
        Ok(())
    }

    fn adam(&self) -> AdamStep {
        AdamStep { weight_decay: self.config.weight_decay as f32, ..AdamStep::default() }
    }

    /// Steps the weights of a layer, once nobody in this step reads them any more.
    fn step_of_product(&self, layer: &LayerBuffers, delta: &Tensor, x: &Tensor) -> Result<()> {
        let Self { all_params, scalars, steps, .. } = self;
        let Some(copy) = &self.rounded else {
            candle::bail!("FeedforwardTrainer: a layer without bf16 weights has a gradient of its own")
        };
        let (first, adam) = (layer.first_weight, self.adam());
        adam_step_of_product_(all_params, copy, first, delta, x, scalars, steps, adam, true)
    }

    fn update(&self) -> Result<()> {
        match self.config.optimizer {
            Optimizer::Adam => {
                let Self { all_params, scalars, steps, n_weights, .. } = self;
                let copy = self.rounded.as_ref();
                let first = self.layers.get(self.fused).map_or(*n_weights, |layer| layer.first_weight);
                adam_step_(all_params, scalars, steps, self.adam(), first.., *n_weights, copy)?;
            }
            Optimizer::Sgd => {
                let step = SgdStep { weight_decay: self.config.weight_decay as f32 };
                sgd_step_(&self.all_params, &self.scalars, step, self.n_weights, self.rounded.as_ref())?;
            }
        }
        if let (Some(max_norm), [hidden @ .., _]) = (self.config.max_norm, &self.layers[..]) {
            for LayerBuffers { step, .. } in hidden {
                // A line for the weights of a hidden unit, or of a filter.
                max_norm_rows_(&step.params.weight.flatten_to(D::Minus2)?, max_norm as f32)?;
            }
            self.refresh()?;
        }
        Ok(())
    }

    /// What is left out of what a layer reads.
    fn dropout(&self, layer: &LayerBuffers) -> Option<Dropout<'_>> {
        let (rate, philox) = layer.dropout?;
        Some(Dropout { rate, draws: Draws::Counter { philox, counter: &self.counter } })
    }
}

/// Whether products in bf16 are faster from numbers that are rounded once: those of dense layers
/// whose rows begin on 16 bytes. The outputs may be few.
fn rounds(layers: &[LayerConfig]) -> bool {
    layers.iter().all(|layer| layer.connections.is_dense() && layer.n_inputs.is_multiple_of(8))
}
