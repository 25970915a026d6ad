//! The cost of a sparse autoencoder and its gradient over any number of rows.
//!
//! ```text
//! first pass     a = sigmoid(x Wᵀ + b),   ρ̂ = 1/m Σ a
//! second pass    h = f(a W'ᵀ + c)
//!                δ' = (h − x) ∘ f'(h)/m                          by output_loss_
//!                δ  = (δ' W' + s/m) ∘ a ∘ (1 − a)                s = β (−ρ/ρ̂ + (1 − ρ)/(1 − ρ̂))
//!                a ρ̂ or 1 − ρ̂ below 1e-30 counts as 1e-30 in KL(ρ‖ρ̂), and its term of s as 0
//! gradient       ∂J/∂W  = δᵀ x + λ W,    ∂J/∂b = Σ_rows δ
//!                ∂J/∂W' = δ'ᵀ a + λ W',  ∂J/∂c = Σ_rows δ'
//! ```
//!
//! See the [module above](super) for the symbols. Rows come in chunks of `c`. With one chunk the
//! features of the first pass serve in the second; with more they are computed again, so that the
//! memory is that of one chunk. Within a chunk the deltas are `m/c` times as large, and what is
//! added to the gradient has the factor `c/m`. The rows may be divided over the ranks of a group,
//! [`Cost::in_group`], which sum `ρ̂` after the first pass, and errors and gradient after the second.
//!
//! f32 rows run on the ops that train the other models, those of small networks in one op,
//! [`sparse_cost_`], if they are all on the device; f64 rows, for checks, have the products of the
//! same crate and candle's elementwise ops. Costs are summed in f64. Nothing waits for the device.
//!
//! Cost: `10 m n_visible n_hidden` FLOP with one chunk, and 12 with more.
use super::rows::Rows;
use super::{CostConfig, Decoder, SparseAutoencoderConfig};
use crate::check::at_least_one;
use crate::prepare::prepared;
use crate::unit_range::UnitRange;
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_ops::arrays::elementwise::{add, at_least, equal, ln, mul, recip, sub};
use chandlery_ops::arrays::{column_sums_, row_dots};
use chandlery_ops::layers::{
    Activation, Factors, LEAST_ACTIVATION, OutputLoss, SparseCost, gemm_, gemm_split_, layer_backward_,
    layer_backward_reference, layer_forward_, layer_forward_reference, output_loss_, sparse_cost_,
    sparse_cost_fits,
};
use chandlery_ops::{Group, Precision};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// The terms of the cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostParts {
    /// `J`
    pub cost: f64,
    /// Mean over rows of half the squared error.
    pub squared_error: f64,
    /// `λ/2 (Σ W² + Σ W'²)`
    pub decay: f64,
    /// `Σ KL(ρ‖ρ̂)`, without `β`.
    pub divergence: f64,
}

/// The cost over given rows as a function of the parameters; see the [module](self) for the
/// equations.
///
/// ```
/// use candle::{DType, Device::Cpu, Tensor};
/// use chandlery::sparse_autoencoder::{Cost, CostConfig, SparseAutoencoderConfig};
/// # fn main() -> candle::Result<()> {
/// // With all parameters 0 everything is ½: the error is ½ (½² + ½²), and ρ = ½ makes the divergence 0.
/// let rows = Tensor::new(&[[0f64, 1.], [1., 0.], [1., 1.]], &Cpu)?;
/// let settings = CostConfig { sparsity_target: 0.5, ..CostConfig::default() };
/// let cost = Cost::new(SparseAutoencoderConfig::new(2, 3), settings, &rows, None, DType::F64, &Cpu)?;
/// assert_eq!(cost.parts(&Tensor::zeros(17, DType::F64, &Cpu)?)?.cost, 0.25);
/// # Ok(()) }
/// ```
pub struct Cost {
    model: SparseAutoencoderConfig,
    config: CostConfig,
    rows: Rows,
    dtype: DType,
    device: Device,
    /// What the op of small networks takes, where it is the way.
    small: Option<SparseCost>,
    /// Where products of passes are written, by [`Place`]; of the largest chunk so far.
    buffers: RefCell<[Option<Tensor>; 3]>,
}

/// Which product of a pass.
#[derive(Debug, Clone, Copy)]
enum Place {
    Features,
    Outputs,
    HiddenDelta,
}

/// The range of the rows of a model, where they are the targets of sigmoid outputs.
pub(super) fn target_range(model: &SparseAutoencoderConfig, device: &Device) -> Result<Option<UnitRange>> {
    let sigmoid = model.decoder == Decoder::Sigmoid;
    sigmoid.then(|| UnitRange::new("sigmoid outputs", "a linear decoder", device)).transpose()
}

/// What a pass over the rows has gathered, as tensors on the device.
struct Gathered {
    /// `J`, f64, a scalar.
    value: Tensor,
    /// `Σ ½ ‖h − x‖²/m`, `Σ W² + Σ W'²` and `Σ KL`, `[3]` f64.
    parts: Tensor,
}

impl Cost {
    /// The cost over raw `rows`, `[m, n_inputs]` u8 or float, which go through the model's
    /// preparation, in `dtype`, f32 or f64, on `device`.
    ///
    /// With `chunk` the rows stay where they are, and so many at a time are taken to the device, in
    /// both passes of every evaluation: for data larger than its memory. Without it they are
    /// prepared once and stay there.
    ///
    /// # Errors
    /// When a setting is out of range, rows do not fit the model or lie outside 0 to 1 where
    /// outputs are sigmoid, or memory is short. Looks at all rows, and waits for the device.
    pub fn new(
        model: SparseAutoencoderConfig,
        config: CostConfig,
        rows: &Tensor,
        chunk: Option<usize>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let group = Group::single();
        let cost = Self::unchecked(model, config, rows, &group, chunk, dtype, device)?;
        if let Some(mut range) = target_range(&cost.model, device)? {
            cost.see(&mut range)?;
            range.check("SparseAutoencoder")?;
        }
        Ok(cost)
    }

    /// Adds the range of the prepared rows.
    pub(super) fn see(&self, range: &mut UnitRange) -> Result<()> {
        self.each_chunk(|x| range.see(&x.to_dtype(DType::F32)?, 1.))
    }

    /// The same for a rank of a group without a look at the range of the rows, which waits for
    /// nothing. `rows` are those of all ranks.
    pub(super) fn unchecked(
        model: SparseAutoencoderConfig,
        config: CostConfig,
        rows: &Tensor,
        group: &Group,
        chunk: Option<usize>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        const OP: &str = "Cost";
        model.validate()?;
        config.validate()?;
        if !matches!(dtype, DType::F32 | DType::F64) {
            candle::bail!("{OP}: dtype must be f32 or f64, got {dtype:?}")
        }
        let n_inputs = model.n_inputs();
        let m = crate::check::batch_of(OP, "rows", rows, n_inputs)?;
        at_least_one(OP, "rows", m)?;
        at_least_one(OP, "chunk", chunk.unwrap_or(1))?;
        let mut model = model;
        model.preparation = model.preparation.to_device(device).map_err(Error::wrap)?;
        let SparseAutoencoderConfig { n_visible, n_hidden, decoder, .. } = model;
        let takes_small = group.is_single()
            && dtype == DType::F32
            && chunk.is_none()
            && config.precision != Precision::Bf16;
        let small = takes_small && sparse_cost_fits(device, n_visible, n_hidden)?;
        let small = small.then(|| SparseCost {
            n_visible,
            n_hidden,
            decoder: decoder.into(),
            weight_decay: config.weight_decay,
            sparsity_weight: config.sparsity_weight,
            sparsity_target: config.sparsity_target,
        });
        let rows = Rows::new(group, rows, chunk, |raw| of_raw(&model, raw, dtype, device))?;
        let buffers = RefCell::default();
        Ok(Self { model, config, rows, dtype, device: device.clone(), small, buffers })
    }

    /// The same cost of this rank's rows, [`Group::rows`], with those of the other ranks of a group:
    /// each has the cost and the gradient of all rows, up to the order of sums, the same bits on all
    /// ranks. They call [`evaluate`](Self::evaluate) and [`parts`](Self::parts) alike.
    ///
    /// An evaluation costs all-reduces of `n_hidden` f64, of the gradient, `n_parameters` numbers of
    /// the type of the cost, and of one f64.
    ///
    /// # Errors
    /// When the cost is in a group already, or memory is short.
    pub fn in_group(mut self, group: &Group) -> Result<Self> {
        self.rows = self.rows.in_group(group)?;
        if !group.is_single() {
            (self.small, self.buffers) = (None, RefCell::default());
        }
        Ok(self)
    }

    /// `J` at `theta`, a scalar f64 on the device, and its gradient, `[n_parameters]` in the type
    /// of `theta`.
    ///
    /// # Errors
    /// When `theta` is not `[n_parameters]` of the type and on the device of the cost, or memory is
    /// short.
    pub fn evaluate(&self, theta: &Tensor) -> Result<(Tensor, Tensor)> {
        let views = self.views(theta)?;
        if let Some((figures, gradient)) = self.of_small(theta)? {
            return Ok((figures.get(0)?, gradient));
        }
        let gradient = match self.rows.group().rank() {
            0 => self.decay_gradient(theta)?,
            _ => theta.zeros_like()?,
        };
        let gathered = self.passes(theta, &views, Some(&gradient))?;
        Ok((gathered.value, gradient))
    }

    /// The terms of the cost at `theta`. Waits for the device.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate).
    pub fn parts(&self, theta: &Tensor) -> Result<CostParts> {
        let views = self.views(theta)?;
        let figures = match self.of_small(theta)? {
            Some((figures, _)) => figures,
            None => {
                let gathered = self.passes(theta, &views, None)?;
                Tensor::cat(&[gathered.value.reshape(1)?, gathered.parts], 0)?
            }
        };
        let read = figures.to_vec1::<f64>()?;
        let &[cost, squared_error, weights, divergence] = &read[..] else {
            candle::bail!("Cost: four numbers must be read, got {}", read.len())
        };
        Ok(CostParts { cost, squared_error, decay: 0.5 * self.config.weight_decay * weights, divergence })
    }

    /// Rows that the cost is over, those of all ranks.
    pub fn n_samples(&self) -> usize {
        self.rows.of_all()
    }

    /// What the model is.
    pub fn model_config(&self) -> &SparseAutoencoderConfig {
        &self.model
    }

    /// What the cost weighs.
    pub fn config(&self) -> &CostConfig {
        &self.config
    }

    fn prepared(&self, rows: &Tensor) -> Result<Tensor> {
        of_raw(&self.model, rows, self.dtype, &self.device)
    }

    /// Calls `f` with each chunk of this rank's prepared rows.
    fn each_chunk(&self, f: impl FnMut(&Tensor) -> Result<()>) -> Result<()> {
        self.rows.each_chunk(|raw| self.prepared(raw), f)
    }

    fn views(&self, theta: &Tensor) -> Result<[Tensor; 4]> {
        if theta.dtype() != self.dtype || !theta.device().same_device(&self.device) {
            candle::bail!(
                "Cost: theta must be {:?} on {:?}, got {:?} on {:?}",
                self.dtype,
                self.device.location(),
                theta.dtype(),
                theta.device().location()
            )
        }
        views(&self.model, theta)
    }

    /// `J` and its terms, `[4]` f64, and the gradient, where one op makes them.
    fn of_small(&self, theta: &Tensor) -> Result<Option<(Tensor, Tensor)>> {
        let (Some(cost), Some(rows)) = (self.small, self.rows.resident()) else { return Ok(None) };
        let figures = Tensor::zeros(4, DType::F64, &self.device)?;
        let gradient = theta.zeros_like()?;
        sparse_cost_(&figures, &gradient, theta, rows, cost)?;
        Ok(Some((figures, gradient)))
    }

    /// `λ W` and `λ W'` where they belong in the gradient, and 0 for the biases.
    fn decay_gradient(&self, theta: &Tensor) -> Result<Tensor> {
        let n = 2 * self.model.n_weights();
        let weights = (theta.narrow(0, 0, n)? * self.config.weight_decay)?;
        let biases = Tensor::zeros(theta.elem_count() - n, self.dtype, &self.device)?;
        Tensor::cat(&[weights, biases], 0)
    }

    /// Both passes; the gradient of all but the decay is added to `gradient` where it is given.
    fn passes(&self, theta: &Tensor, views: &[Tensor; 4], gradient: Option<&Tensor>) -> Result<Gathered> {
        let [weight, _, bias, _] = views;
        let (n_samples, group) = (self.n_samples(), self.rows.group());
        let mut kept = None;
        let mut sums = Tensor::zeros(self.model.n_hidden, DType::F64, &self.device)?;
        self.each_chunk(|x| {
            let a = self.features(x, weight, bias)?;
            sums = add(&sums, &self.column_sums(&a)?.to_dtype(DType::F64)?)?;
            kept = (x.dim(0)? == self.rows.own()).then_some(a);
            Ok(())
        })?;
        group.all_reduce_(&sums)?;
        let mean = (sums / n_samples as f64)?;
        let (divergence, pull) = self.sparsity(&mean)?;

        let mut squares = Tensor::zeros((), DType::F64, &self.device)?;
        let mut start = 0;
        self.each_chunk(|x| {
            let a = match kept.take() {
                Some(a) => a,
                None => self.features(x, weight, bias)?,
            };
            squares = add(&squares, &self.backward(x, &a, &pull, views, gradient)?)?;
            start += x.dim(0)?;
            Ok(())
        })?;
        group.all_reduce_(&squares)?;
        gradient.map_or(Ok(()), |gradient| group.all_reduce_(gradient))?;
        let squared = (squares / n_samples as f64)?;
        let weights = theta.narrow(0, 0, 2 * self.model.n_weights())?.unsqueeze(0)?;
        let weights = row_dots(&weights, &[0])?.reshape(())?;
        let decay = (&weights * (0.5 * self.config.weight_decay))?;
        let value = add(&add(&squared, &decay)?, &(&divergence * self.config.sparsity_weight)?)?;
        Ok(Gathered { value, parts: Tensor::stack(&[squared, weights, divergence], 0)? })
    }

    /// `Σ KL(ρ‖ρ̂)`, f64, and the `s` of each feature in the type of the rows.
    fn sparsity(&self, mean: &Tensor) -> Result<(Tensor, Tensor)> {
        let rho = self.config.sparsity_target;
        let rest = mean.affine(-1., 1.)?;
        let (on, off) = (at_least(mean, LEAST_ACTIVATION)?, at_least(&rest, LEAST_ACTIVATION)?);
        let of_on = ln(&on)?.affine(-rho, rho * rho.ln())?;
        let of_off = ln(&off)?.affine(rho - 1., (1. - rho) * (1. - rho).ln())?;
        let divergence = add(&of_on, &of_off)?;
        // A term that is bounded has no slope.
        let slope = |t: &Tensor, bounded: &Tensor| mul(&recip(bounded)?, &equal(bounded, t)?);
        let beta = self.config.sparsity_weight;
        let pull = sub(&(slope(&rest, &off)? * (beta * (1. - rho)))?, &(slope(mean, &on)? * (beta * rho))?)?;
        Ok((divergence.sum_all()?, pull.to_dtype(self.dtype)?))
    }

    /// `sigmoid(x Wᵀ + b)`, `[rows, n_hidden]`.
    fn features(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let out = self.product(Place::Features, x, &weight.t()?)?;
        match self.dtype {
            DType::F32 => layer_forward_(&out, Some(bias), Activation::Sigmoid, None).map(|()| out),
            _ => layer_forward_reference(&out, Some(bias), Activation::Sigmoid, None),
        }
    }

    /// Second pass over one chunk, from its features: the sum over rows of half the squared error,
    /// f64; adds to `gradient`.
    fn backward(
        &self,
        x: &Tensor,
        a: &Tensor,
        pull: &Tensor,
        [_, decoder, _, visible_bias]: &[Tensor; 4],
        gradient: Option<&Tensor>,
    ) -> Result<Tensor> {
        let rows = x.dim(0)? as f64;
        let (delta, squares) =
            self.output_delta(x, self.product(Place::Outputs, a, &decoder.t()?)?, visible_bias)?;
        let Some(gradient) = gradient else { return Ok(squares) };
        let [weight_gradient, decoder_gradient, ..] = views(&self.model, gradient)?;
        let alpha = rows / self.n_samples() as f64;
        let add = Factors::Host { alpha, beta: 1. };
        self.multiply(&decoder_gradient, &delta.t()?, a, add)?;
        let biases = 2 * self.model.n_weights();
        self.add_sums(gradient, biases + self.model.n_hidden, &delta, alpha)?;
        let hidden = self.product(Place::HiddenDelta, &delta, decoder)?;
        let hidden = self.hidden_delta(hidden, a, &(pull / rows)?)?;
        self.multiply(&weight_gradient, &hidden.t()?, x, add)?;
        self.add_sums(gradient, biases, &hidden, alpha)?;
        Ok(squares)
    }

    /// `(h − x) ∘ f'(h)` over the rows of the chunk, from the product of the decoder, and the sum
    /// of half the squared error.
    fn output_delta(&self, x: &Tensor, pre: Tensor, bias: &Tensor) -> Result<(Tensor, Tensor)> {
        let f: Activation = self.model.decoder.into();
        let rows = x.dim(0)?;
        if self.dtype == DType::F32 {
            let gathered = Tensor::zeros((2, rows), DType::F64, &self.device)?;
            output_loss_(&pre, bias, x, OutputLoss::SquaredError(f), rows, &gathered)?;
            return Ok((pre, gathered.get(0)?.sum_all()?));
        }
        let h = layer_forward_reference(&pre, Some(bias), f, None)?;
        let apart = (&h - x)?;
        let squares = (apart.sqr()?.sum_all()? * 0.5)?;
        Ok((layer_backward_reference(&(apart / rows as f64)?, &h, f, None)?, squares))
    }

    /// `(δ' W' + s) ∘ a ∘ (1 − a)`, from the product.
    fn hidden_delta(&self, product: Tensor, a: &Tensor, pull: &Tensor) -> Result<Tensor> {
        if self.dtype == DType::F32 {
            layer_forward_(&product, Some(pull), Activation::Identity, None)?;
            layer_backward_(&product, a, Activation::Sigmoid, None)?;
            return Ok(product);
        }
        layer_backward_reference(&product.broadcast_add(pull)?, a, Activation::Sigmoid, None)
    }

    /// `a b` in the memory of its place.
    fn product(&self, place: Place, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (rows, columns) = (a.dim(0)?, b.dim(1)?);
        let buffer = &mut self.buffers.borrow_mut()[place as usize];
        let whole = match buffer.take() {
            Some(whole) if whole.dim(0)? >= rows => whole,
            _ => Tensor::zeros((rows, columns), self.dtype, &self.device)?,
        };
        let out = whole.narrow(0, 0, rows)?;
        *buffer = Some(whole);
        self.multiply(&out, a, b, Factors::OVERWRITE)?;
        Ok(out)
    }

    /// `c ← alpha a b + beta c` in the precision of the cost.
    fn multiply(&self, c: &Tensor, a: &Tensor, b: &Tensor, factors: Factors<'_>) -> Result<()> {
        match (self.dtype, self.config.precision) {
            (DType::F32, Precision::F32) => gemm_split_(c, a, b, factors),
            (_, precision) => gemm_(c, a, b, factors, precision),
        }
    }

    fn column_sums(&self, x: &Tensor) -> Result<Tensor> {
        if self.dtype != DType::F32 {
            return x.sum(0);
        }
        let sums = Tensor::zeros(x.dim(1)?, DType::F32, &self.device)?;
        column_sums_(&sums, x)?;
        Ok(sums)
    }

    /// Adds `alpha` times the column sums to the entries of `gradient` from `at` on.
    fn add_sums(&self, gradient: &Tensor, at: usize, delta: &Tensor, alpha: f64) -> Result<()> {
        let sums = self.column_sums(delta)?;
        let sum = add(&gradient.narrow(0, at, sums.elem_count())?, &(sums * alpha)?)?;
        gradient.slice_set(&sum, 0, at)
    }
}

/// What the model reads of raw rows.
fn of_raw(model: &SparseAutoencoderConfig, rows: &Tensor, dtype: DType, device: &Device) -> Result<Tensor> {
    prepared("SparseAutoencoder", &model.preparation, &rows.to_device(device)?, dtype)?.contiguous()
}

/// `[weight, decoder_weight, bias, visible_bias]` of one vector of all parameters, as views.
pub(super) fn views(model: &SparseAutoencoderConfig, theta: &Tensor) -> Result<[Tensor; 4]> {
    if theta.dims() != [model.n_parameters()] || !theta.is_contiguous() {
        candle::bail!(
            "SparseAutoencoder: theta must be contiguous of shape [{}], got {:?}",
            model.n_parameters(),
            theta.dims()
        )
    }
    let (v, h, n) = (model.n_visible, model.n_hidden, model.n_weights());
    Ok([
        theta.narrow(0, 0, n)?.reshape((h, v))?,
        theta.narrow(0, n, n)?.reshape((v, h))?,
        theta.narrow(0, 2 * n, h)?,
        theta.narrow(0, 2 * n + h, v)?,
    ])
}
