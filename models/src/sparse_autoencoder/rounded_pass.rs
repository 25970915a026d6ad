//! Both passes of the [cost](super::Cost) over all rows at once, with products of bf16 numbers.
//!
//! Every number that a product reads is rounded once, where it is made: parameters at the beginning
//! of an evaluation, rows when they are put, features and deltas by what stands between products.
//! All else, and every result of a product, is f32; features are computed again from their
//! pre-activations where their derivative is asked for. Matrices that products read lie in lines
//! of whole 16 bytes, of which the rest is 0, and products over them go over the rest too.
use super::lines::{Lines, Parameters, products_bind};
use super::pass::AllRows;
use crate::padding::Width;
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::{column_sums_, scale_into_};
use chandlery_ops::core::Replay;
use chandlery_ops::layers::{
    Activation, Factors, OutputLoss, SparseCost, SparseParameters, SparseParts, divergence_parts, gemm_,
    layer_backward_sums_, layer_forward_sums_, output_loss_into_, sparse_begin_, sparse_figures,
    sparse_figures_of_lines, sparse_figures_of_products, sparsity_pull_, square_parts,
};

/// Entries of both weight matrices from which on a pass over all parameters takes a GPU longer than
/// the host takes to queue two products: the gradient's products then are no part of the recorded
/// step, whose results are always at one place, but write the tensor that is given out, and add the
/// decay.
const LARGE: usize = 1 << 23;

/// The memory of the passes, and what they read. Clones share it.
#[derive(Clone)]
struct Buffers {
    terms: SparseCost,
    n_samples: usize,
    /// Targets, f32, and the same as products read them.
    rows: Tensor,
    rounded_rows: Lines,
    /// With rounded weights.
    parameters: Parameters,
    /// Products: pre-activations of features and outputs, and derivatives by features.
    pre: Lines,
    outputs: Lines,
    hidden: Lines,
    /// What products read of these.
    features: Lines,
    deltas: Lines,
    hidden_deltas: Lines,
    /// Sums of features, and `s/m`.
    sums: Tensor,
    pull: Tensor,
    /// The gradient by `b`, and by `c` with the sums of the zeros beside the deltas.
    of_biases: [Tensor; 2],
    /// `[2, m]` f64: to the first line the step adds half the squared error of each row.
    gathered: Tensor,
    /// In parts.
    divergence: Tensor,
}

/// `c ← a b` of bf16 numbers.
fn multiply(c: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    gemm_(c, a, b, Factors::OVERWRITE, Precision::Bf16)
}

impl Buffers {
    /// All but the gradient by weights.
    fn run(&self) -> Result<()> {
        let Self { terms, n_samples, .. } = *self;
        let Self { pre, features, outputs, deltas, hidden, hidden_deltas, pull, .. } = self;
        let [weight, decoder, ..] = &self.parameters.whole;
        let SparseParameters { bias, visible_bias, .. } = &self.parameters.own;
        multiply(&pre.whole, &self.rounded_rows.whole, &weight.t()?)?;
        layer_forward_sums_(&features.own, &self.sums, &pre.own, bias, Activation::Sigmoid)?;
        sparsity_pull_(pull, &self.divergence, &self.sums, terms, n_samples)?;
        multiply(&outputs.whole, &features.whole, &decoder.t()?)?;
        let loss = OutputLoss::SquaredError(terms.decoder);
        output_loss_into_(
            &deltas.own,
            &outputs.own,
            visible_bias,
            &self.rows,
            loss,
            n_samples,
            &self.gathered,
        )?;
        let [of_bias, of_visible_bias] = &self.of_biases;
        column_sums_(of_visible_bias, &deltas.whole)?;
        multiply(&hidden.whole, &deltas.whole, decoder)?;
        let layer = (&pre.own, bias);
        layer_backward_sums_(&hidden_deltas.own, of_bias, &hidden.own, pull, layer, Activation::Sigmoid)
    }

    /// What the gradients by `W` and `W'` are products of, but for the decay, with the zeros beside
    /// them if `whole`.
    fn products(&self, whole: bool) -> Result<[(Tensor, &Tensor); 2]> {
        fn of(whole: bool, lines: &Lines) -> &Tensor {
            if whole { &lines.whole } else { &lines.own }
        }
        let of_weight = (of(whole, &self.hidden_deltas).t()?, of(whole, &self.rounded_rows));
        Ok([of_weight, (of(whole, &self.deltas).t()?, of(whole, &self.features))])
    }

    fn round_rows(&self) -> Result<()> {
        scale_into_(&self.rounded_rows.own, &self.rows, 1.)
    }
}

/// Both passes over all rows at once, f32, with products of bf16 numbers.
pub(super) struct RoundedPass {
    replay: Replay,
    buffers: Buffers,
    parts: SparseParts,
    gradient: Gradient,
}

/// The gradient of all but the decay.
enum Gradient {
    /// The recorded step makes it in lines that begin on 16 bytes: products write others more
    /// slowly.
    InLines(SparseParameters),
    /// The recorded step makes it, one part after the other, where products take no longer than
    /// launches, or all lines begin so.
    InOne(Tensor),
    /// The recorded step makes that by biases, `[n_hidden + n_visible]`.
    OfBiases(Tensor),
}

impl RoundedPass {
    /// Over `rows`, which it reads in place.
    pub(super) fn new(
        terms: SparseCost,
        widths @ [visible, hidden]: [Width; 2],
        rows: &Tensor,
    ) -> Result<Self> {
        let (device, m) = (rows.device(), rows.dim(0)?);
        let (v, h) = (visible.own, hidden.own);
        let zeros = |n: usize, dtype| Tensor::zeros(n, dtype, device);
        let lines = |width, dtype| Lines::new(Width::as_it_is(m), width, dtype, device);
        let n_weights = 2 * v * h;
        let has_more = widths.iter().any(|width| width.has_more());
        let (gradient, of_weights, of_biases) = if has_more && products_bind(terms, Precision::Bf16, m) {
            let Parameters { whole, own } =
                Parameters::new(widths, Activation::Identity, DType::F32, device)?;
            let [of_weight, of_decoder, _, of_visible_bias] = whole;
            let of_biases = [own.bias.clone(), of_visible_bias];
            (Gradient::InLines(own), vec![of_weight, of_decoder], of_biases)
        } else {
            // The gradient by `c` is summed together with the zeros beside the deltas, which come
            // last.
            let is_large = n_weights >= LARGE && !has_more;
            let n_before = if is_large { 0 } else { n_weights };
            let all = zeros(n_before + h + visible.all, DType::F32)?;
            let of_biases = [all.narrow(0, n_before, h)?, all.narrow(0, n_before + h, visible.all)?];
            let own = all.narrow(0, 0, n_before + h + v)?;
            match is_large {
                true => (Gradient::OfBiases(own), vec![], of_biases),
                false => {
                    let of_weight = own.narrow(0, 0, v * h)?.reshape((h, v))?;
                    let of_decoder = own.narrow(0, v * h, v * h)?.reshape((v, h))?;
                    (Gradient::InOne(own), vec![of_weight, of_decoder], of_biases)
                }
            }
        };
        let buffers = Buffers {
            terms,
            n_samples: m,
            rows: rows.clone(),
            rounded_rows: lines(visible, DType::BF16)?,
            parameters: Parameters::new(widths, terms.decoder, DType::BF16, device)?,
            pre: lines(hidden, DType::F32)?,
            outputs: lines(visible, DType::F32)?,
            hidden: lines(hidden, DType::F32)?,
            features: lines(hidden, DType::BF16)?,
            deltas: lines(visible, DType::BF16)?,
            hidden_deltas: lines(hidden, DType::BF16)?,
            sums: zeros(h, DType::F32)?,
            pull: zeros(h, DType::F32)?,
            of_biases,
            gathered: Tensor::zeros((2, m), DType::F64, device)?,
            divergence: zeros(divergence_parts(terms), DType::F64)?,
        };
        buffers.round_rows()?;
        let parts = SparseParts {
            losses: buffers.gathered.narrow(0, 0, 1)?,
            squares: zeros(square_parts(terms), DType::F64)?,
            divergence: buffers.divergence.clone(),
        };
        let step = {
            let buffers = buffers.clone();
            let whole = matches!(gradient, Gradient::InLines(_));
            move || {
                buffers.run()?;
                for (to, (a, b)) in of_weights.iter().zip(buffers.products(whole)?) {
                    multiply(to, &a, b)?;
                }
                Ok(())
            }
        };
        let replay = Replay::new(device, step).unshared();
        Ok(Self { replay, buffers, parts, gradient })
    }
}

impl AllRows for RoundedPass {
    fn evaluate(&mut self, theta: &Tensor) -> Result<(Tensor, Tensor)> {
        let Self { buffers, parts, gradient, .. } = self;
        let Buffers { terms, n_samples, gathered, parameters, .. } = &*buffers;
        sparse_begin_(&parameters.own, &parts.squares, gathered, theta, *terms)?;
        self.replay.run()?;
        match gradient {
            Gradient::InLines(of_rows) => sparse_figures_of_lines(parts, theta, of_rows, *terms, *n_samples),
            Gradient::InOne(of_rows) => sparse_figures(parts, theta, of_rows, *terms, *n_samples),
            Gradient::OfBiases(of_biases) => {
                let [(a, b), (c, d)] = buffers.products(false)?;
                let products = [(&a, b), (&c, d)];
                sparse_figures_of_products(parts, theta, products, of_biases, *terms, *n_samples)
            }
        }
    }

    fn put(&self, rows: &Tensor) -> Result<()> {
        scale_into_(&self.buffers.rows, rows, 1.)?;
        self.buffers.round_rows()
    }
}
