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
//! See the [module above](super) for the symbols. Rows come in chunks. With one chunk the features
//! of the first pass serve in the second; with more they are computed again, so that the memory is
//! that of one chunk. The rows may be divided over the ranks of a group, [`Cost::in_group`], which
//! sum `ρ̂` after the first pass, and errors and gradient after the second.
//!
//! f32 rows that are all on the device of a lone rank take one of two ways. Small networks are one
//! op, [`sparse_cost_`]. With others an evaluation is a copy of the parameters, the products and
//! what stands between them, and a sum of the gradient and the decay's: on CUDA three launches, the
//! second of which is both passes, recorded at the third evaluation, see
//! [`Replay`](chandlery_ops::core::Replay). Products of
//! [`Precision::F32`] that are so large that they are made of numbers in two parts
//! ([`gemm_split_makes_tensors`](chandlery_ops::layers::gemm_split_makes_tensors)) are launched one
//! by one. This way keeps 8 bytes a parameter, and 8 bytes for each feature and 4 for each value of
//! every row. Where products take a GPU longer than launches, matrices are kept in lines that begin on
//! 16 bytes; rows of odd widths are copied to such lines, which takes 4 bytes more for each value.
//!
//! With [`Precision::Bf16`] each number that products read is rounded once: parameters as they are
//! copied, rows when they are put, features and deltas where they are made; all else stays f32, and
//! the gradient by `c` is summed of rounded deltas. Large networks then have the decay from the
//! gradient's products, which are no part of the recorded step. This keeps 2 bytes a parameter, or
//! 6, and 12 for each feature and 8 for each value of every row.
//!
//! Chunks, groups and f64 rows, for checks, have the same products, and candle's ops between them
//! where there are no others. Costs are summed in f64. Nothing waits for the device.
//!
//! Cost: `10 m n_visible n_hidden` FLOP with one chunk, and 12 with more.
use super::lines::widths;
use super::pass::{AllRows, Pass, RecordedPass, column_sums, views};
use super::rounded_pass::RoundedPass;
use super::rows::Rows;
use super::{CostConfig, Decoder, SparseAutoencoderConfig};
use crate::check::at_least_one;
use crate::prepare::prepared;
use crate::unit_range::UnitRange;
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_ops::arrays::elementwise::add;
use chandlery_ops::arrays::row_dots;
use chandlery_ops::layers::{
    SparseCost, SparseParts, divergence_parts, sparse_cost_, sparse_cost_fits, sparse_figures, sparsity_pull_,
};
use chandlery_ops::{Group, Precision};
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    terms: SparseCost,
    way: Way,
    /// For the largest chunk so far.
    pass: Mutex<Option<Pass>>,
}

/// How rows go through the passes.
enum Way {
    /// All in the op of small networks.
    Small,
    /// All in one step.
    Recorded(Mutex<Option<Box<dyn AllRows>>>),
    /// In chunks, as rows of a group, or in f64.
    Chunks,
}

/// The range of the rows of a model, where they are the targets of sigmoid outputs.
pub(super) fn target_range(model: &SparseAutoencoderConfig, device: &Device) -> Result<Option<UnitRange>> {
    let sigmoid = model.decoder == Decoder::Sigmoid;
    sigmoid.then(|| UnitRange::new("sigmoid outputs", "a linear decoder", device)).transpose()
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
        let terms = SparseCost {
            n_visible,
            n_hidden,
            decoder: decoder.into(),
            weight_decay: config.weight_decay,
            sparsity_weight: config.sparsity_weight,
            sparsity_target: config.sparsity_target,
        };
        let is_whole = group.is_single() && dtype == DType::F32 && chunk.is_none();
        let way = match is_whole {
            true if config.precision != Precision::Bf16 && sparse_cost_fits(device, n_visible, n_hidden)? => {
                Way::Small
            }
            true => Way::Recorded(Mutex::default()),
            false => Way::Chunks,
        };
        let rows = Rows::new(group, rows, chunk, |raw| of_raw(&model, raw, dtype, device))?;
        Ok(Self { model, config, rows, dtype, device: device.clone(), terms, way, pass: Mutex::default() })
    }

    /// Takes other raw rows, as many, in place of those that it has. A cost that was made of rows on
    /// the device writes over them.
    ///
    /// # Errors
    /// When they do not fit the model, there are not as many, or memory is short.
    pub(super) fn put(&mut self, rows: &Tensor) -> Result<()> {
        let rows = self.rows.own_of(rows)?;
        let prepared = self.prepared(&rows)?;
        if let Way::Recorded(pass) = &self.way
            && let Some(pass) = &*lock(pass)
        {
            return pass.put(&prepared);
        }
        self.rows.put(prepared);
        Ok(())
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
            (self.way, self.pass) = (Way::Chunks, Mutex::default());
        }
        Ok(self)
    }

    /// `J` at `theta`, a scalar f64 on the device, and its gradient, `[n_parameters]` in the type
    /// of `theta`: new tensors, which later evaluations leave as they are.
    ///
    /// # Errors
    /// When `theta` is not `[n_parameters]` of the type and on the device of the cost, memory is
    /// short, or on a device of candle's `Device::new_cuda` in another thread than before.
    pub fn evaluate(&self, theta: &Tensor) -> Result<(Tensor, Tensor)> {
        let views = self.views(theta)?;
        let (figures, gradient) = match self.whole(theta)? {
            Some(made) => made,
            None => {
                let of_rows = theta.zeros_like()?;
                let parts = self.passes(theta, &views, Some(&of_rows))?;
                sparse_figures(&parts, theta, &of_rows, self.terms, self.n_samples())?
            }
        };
        Ok((figures.get(0)?, gradient))
    }

    /// The terms of the cost at `theta`. Waits for the device.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate).
    pub fn parts(&self, theta: &Tensor) -> Result<CostParts> {
        let views = self.views(theta)?;
        let [cost, squared_error, squares, divergence] = match self.whole(theta)? {
            Some((figures, _)) => read(&figures)?,
            None => {
                let SparseParts { losses, squares, divergence } = self.passes(theta, &views, None)?;
                let all = [losses, squares, divergence.sum_keepdim(0)?];
                let [losses, squares, divergence] = read(&Tensor::cat(&all, 0)?)?;
                let squared_error = losses / self.n_samples() as f64;
                [self.terms.value(squared_error, squares, divergence), squared_error, squares, divergence]
            }
        };
        Ok(CostParts { cost, squared_error, decay: 0.5 * self.config.weight_decay * squares, divergence })
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

    /// `J` and its terms, `[4]` f64, and the gradient, where all rows go through the passes at once.
    fn whole(&self, theta: &Tensor) -> Result<Option<(Tensor, Tensor)>> {
        let Some(rows) = self.rows.resident() else { return Ok(None) };
        match &self.way {
            Way::Small => {
                let figures = Tensor::zeros(4, DType::F64, &self.device)?;
                let gradient = theta.zeros_like()?;
                sparse_cost_(&figures, &gradient, theta, rows, self.terms)?;
                Ok(Some((figures, gradient)))
            }
            Way::Recorded(pass) => {
                let mut pass = lock(pass);
                let pass = match &mut *pass {
                    Some(pass) => pass,
                    none => none.insert(self.all_rows(rows)?),
                };
                pass.evaluate(theta).map(Some)
            }
            Way::Chunks => Ok(None),
        }
    }

    /// Both passes over all rows.
    fn all_rows(&self, rows: &Tensor) -> Result<Box<dyn AllRows>> {
        let (terms, precision) = (self.terms, self.config.precision);
        let widths = widths(terms, precision, rows.dim(0)?, rows.device().is_cuda());
        Ok(match precision {
            Precision::Bf16 => Box::new(RoundedPass::new(terms, widths, rows)?),
            _ => Box::new(RecordedPass::new(terms, precision, widths, rows)?),
        })
    }

    /// What rows go through, with memory for at least as many as `x` has.
    fn pass_of(&self, x: &Tensor) -> Result<Pass> {
        let mut pass = lock(&self.pass);
        match &*pass {
            Some(pass) if pass.most_rows() >= x.dim(0)? => Ok(pass.clone()),
            _ => {
                let larger = Pass::new(self.terms, self.config.precision, self.n_samples(), x)?;
                Ok(pass.insert(larger).clone())
            }
        }
    }

    /// Both passes, chunk by chunk; the gradient of all but the decay is added to `gradient` where
    /// it is given.
    fn passes(
        &self,
        theta: &Tensor,
        parameters: &[Tensor; 4],
        gradient: Option<&Tensor>,
    ) -> Result<SparseParts> {
        let SparseCost { n_hidden, .. } = self.terms;
        let (n_samples, group) = (self.n_samples(), self.rows.group());
        let zeros = |n: usize, dtype| Tensor::zeros(n, dtype, &self.device);
        let mut kept = None;
        let mut sums = zeros(n_hidden, DType::F64)?;
        self.each_chunk(|x| {
            let a = self.pass_of(x)?.features(x, parameters)?;
            sums = add(&sums, &column_sums(&a)?.to_dtype(DType::F64)?)?;
            kept = (x.dim(0)? == self.rows.own()).then_some(a);
            Ok(())
        })?;
        group.all_reduce_(&sums)?;
        let (pull, divergence) =
            (zeros(n_hidden, self.dtype)?, zeros(divergence_parts(self.terms), DType::F64)?);
        sparsity_pull_(&pull, &divergence, &sums, self.terms, n_samples)?;

        let mut losses = zeros(1, DType::F64)?;
        let to = gradient.map(|gradient| views(&self.model, gradient)).transpose()?;
        self.each_chunk(|x| {
            let pass = self.pass_of(x)?;
            let a = match kept.take() {
                Some(a) => a,
                None => pass.features(x, parameters)?,
            };
            let gathered = Tensor::zeros((2, x.dim(0)?), DType::F64, &self.device)?;
            let delta = pass.output_delta(x, &a, parameters, &gathered)?;
            losses = add(&losses, &gathered.get(0)?.sum_keepdim(0)?)?;
            match &to {
                Some(to) => pass.gradient(x, (&a, &delta, &pull), &parameters[1], to, 1.),
                None => Ok(()),
            }
        })?;
        group.all_reduce_(&losses)?;
        gradient.map_or(Ok(()), |gradient| group.all_reduce_(gradient))?;
        let weights = theta.narrow(0, 0, 2 * self.model.n_weights())?.unsqueeze(0)?;
        Ok(SparseParts { losses, squares: row_dots(&weights, &[0])?.flatten_all()?, divergence })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many numbers, read from the device.
fn read<const N: usize>(figures: &Tensor) -> Result<[f64; N]> {
    let numbers = figures.to_vec1::<f64>()?;
    let n = numbers.len();
    numbers.try_into().map_err(|_| Error::Msg(format!("Cost: {N} numbers must be read, got {n}")))
}

/// What the model reads of raw rows.
fn of_raw(model: &SparseAutoencoderConfig, rows: &Tensor, dtype: DType, device: &Device) -> Result<Tensor> {
    prepared("SparseAutoencoder", &model.preparation, &rows.to_device(device)?, dtype)?.contiguous()
}
