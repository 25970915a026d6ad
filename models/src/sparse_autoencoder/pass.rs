//! The passes of the [cost](super::Cost) over rows that are on the device: their products, in
//! memory that is kept, and both passes over all rows at once as a step that is recorded on a GPU.
use super::SparseAutoencoderConfig;
use super::lines::{Lines, Parameters};
use crate::padding::Width;
use crate::split::Split;
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::elementwise::add;
use chandlery_ops::arrays::{column_sums_, scale_into_};
use chandlery_ops::core::Replay;
use chandlery_ops::layers::{
    Activation, Factors, OutputLoss, SparseCost, SparseParameters, SparseParts, divergence_parts, gemm_,
    gemm_split_, gemm_split_makes_tensors, layer_backward_biased_, layer_backward_reference, layer_forward_,
    layer_forward_reference, output_loss_, sparse_begin_, sparse_figures_of_lines, sparsity_pull_,
    square_parts,
};

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

/// What rows go through, f32 or f64; f64 rows, for checks, have candle's elementwise ops.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    terms: SparseCost,
    precision: Precision,
    /// Rows that the cost is over, `m`.
    n_samples: usize,
    /// Where products are written, for the most rows at a time.
    features: Tensor,
    outputs: Tensor,
    hidden: Tensor,
    /// What the products of both layers read, where they are made of f32 numbers in parts: of all
    /// these rows, for a gradient that is not added to another.
    split: Option<[Split; 2]>,
}

impl Pass {
    /// For at most as many rows at a time as `like` has, in its type and on its device.
    pub fn new(terms: SparseCost, precision: Precision, n_samples: usize, like: &Tensor) -> Result<Self> {
        let of = |n: usize| Tensor::zeros((like.dim(0)?, n), like.dtype(), like.device());
        let (features, outputs, hidden) = (of(terms.n_hidden)?, of(terms.n_visible)?, of(terms.n_hidden)?);
        Ok(Self { terms, precision, n_samples, features, outputs, hidden, split: None })
    }

    /// For as many rows as `like` has, always, and gradients that are not added to others.
    fn of_whole(terms: SparseCost, precision: Precision, n_samples: usize, like: &Tensor) -> Result<Self> {
        let SparseCost { n_visible, n_hidden, .. } = terms;
        let new = |sizes, is_lowest| Split::new(like.device(), like.dim(0)?, sizes, is_lowest);
        let split = match precision {
            Precision::F32 => new([n_hidden, n_visible], true)?.zip(new([n_visible, n_hidden], false)?),
            _ => None,
        };
        let split = split.map(|(lower, upper)| [lower, upper]);
        Ok(Self { split, ..Self::new(terms, precision, n_samples, like)? })
    }

    /// Rows that it takes at a time, at most.
    pub fn most_rows(&self) -> usize {
        self.features.dims()[0]
    }

    /// `sigmoid(x Wᵀ + b)`, `[rows, n_hidden]`.
    pub fn features(&self, x: &Tensor, [weight, _, bias, _]: &[Tensor; 4]) -> Result<Tensor> {
        let out = self.features.narrow(0, 0, x.dim(0)?)?;
        match &self.split {
            Some([lower, _]) => lower.product(&out, x, weight)?,
            None => self.multiply(&out, x, &weight.t()?, 0.)?,
        }
        match x.dtype() {
            DType::F32 => layer_forward_(&out, Some(bias), Activation::Sigmoid, None).map(|()| out),
            _ => layer_forward_reference(&out, Some(bias), Activation::Sigmoid, None),
        }
    }

    /// `(h − x) ∘ f'(h)/m`, from the features `a`; to each row of `gathered`, `[2, rows]` f64, half
    /// its squared error is added in the first line.
    pub fn output_delta(
        &self,
        x: &Tensor,
        a: &Tensor,
        [_, decoder, _, bias]: &[Tensor; 4],
        gathered: &Tensor,
    ) -> Result<Tensor> {
        let f = self.terms.decoder;
        let out = self.outputs.narrow(0, 0, x.dim(0)?)?;
        match &self.split {
            Some([_, upper]) => upper.product(&out, a, decoder)?,
            None => self.multiply(&out, a, &decoder.t()?, 0.)?,
        }
        if x.dtype() == DType::F32 {
            output_loss_(&out, bias, x, OutputLoss::SquaredError(f), self.n_samples, gathered)?;
            return Ok(out);
        }
        let h = layer_forward_reference(&out, Some(bias), f, None)?;
        let apart = (&h - x)?;
        let losses = (apart.sqr()?.sum(1)? * 0.5)?.unsqueeze(0)?;
        gathered.slice_set(&add(&gathered.narrow(0, 0, 1)?, &losses)?, 0, 0)?;
        layer_backward_reference(&(apart / self.n_samples as f64)?, &h, f, None)
    }

    /// The gradient of all but the decay, from the features `a`, the delta of the outputs and
    /// `s/m`; `gradient ← gradient of these rows + beta · gradient`.
    pub fn gradient(
        &self,
        x: &Tensor,
        (a, delta, pull): (&Tensor, &Tensor, &Tensor),
        decoder: &Tensor,
        gradient: &[Tensor; 4],
        beta: f64,
    ) -> Result<()> {
        let [of_weight, of_decoder, of_bias, of_visible_bias] = gradient;
        match &self.split {
            Some([_, upper]) => upper.gradient(of_decoder, delta)?,
            None => self.multiply(of_decoder, &delta.t()?, a, beta)?,
        }
        sums_into(of_visible_bias, delta, beta)?;
        let hidden = self.hidden_delta(a, delta, decoder, pull)?;
        match &self.split {
            Some([lower, _]) => lower.gradient(of_weight, &hidden)?,
            None => self.multiply(of_weight, &hidden.t()?, x, beta)?,
        }
        sums_into(of_bias, &hidden, beta)
    }

    /// `(δ' W' + s/m) ∘ a ∘ (1 − a)`
    fn hidden_delta(&self, a: &Tensor, delta: &Tensor, decoder: &Tensor, pull: &Tensor) -> Result<Tensor> {
        let hidden = self.hidden.narrow(0, 0, a.dim(0)?)?;
        match &self.split {
            Some([_, upper]) => upper.input_delta(&hidden, delta)?,
            None => self.multiply(&hidden, delta, decoder, 0.)?,
        }
        if a.dtype() == DType::F32 {
            layer_backward_biased_(&hidden, a, pull, Activation::Sigmoid)?;
            return Ok(hidden);
        }
        layer_backward_reference(&hidden.broadcast_add(pull)?, a, Activation::Sigmoid, None)
    }

    /// `c ← a b + beta c` in the precision of the cost.
    fn multiply(&self, c: &Tensor, a: &Tensor, b: &Tensor, beta: f64) -> Result<()> {
        let factors = Factors::Host { alpha: 1., beta };
        match (a.dtype(), self.precision) {
            (DType::F32, Precision::F32) => gemm_split_(c, a, b, factors),
            (_, precision) => gemm_(c, a, b, factors, precision),
        }
    }

    /// Whether a product of all rows makes tensors, so that it cannot be recorded.
    fn makes_tensors(&self, x: &Tensor, parameters: &[Tensor; 4], gradient: &[Tensor; 4]) -> Result<bool> {
        if self.precision != Precision::F32 || self.split.is_some() {
            return Ok(false);
        }
        let Self { features, outputs, hidden, .. } = self;
        let [weight, decoder, ..] = parameters;
        let [of_weight, of_decoder, ..] = gradient;
        let products = [
            (features, x, &weight.t()?),
            (outputs, features, &decoder.t()?),
            (of_decoder, &outputs.t()?, features),
            (hidden, outputs, decoder),
            (of_weight, &hidden.t()?, x),
        ];
        for (c, a, b) in products {
            if gemm_split_makes_tensors(c, a, b)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Sums over the rows of `x`, `[rows, n]`, as a new tensor `[n]`.
pub(super) fn column_sums(x: &Tensor) -> Result<Tensor> {
    if x.dtype() != DType::F32 {
        return x.sum(0);
    }
    let sums = Tensor::zeros(x.dim(1)?, DType::F32, x.device())?;
    column_sums_(&sums, x)?;
    Ok(sums)
}

/// `to ← column sums of x + beta · to`, for a `beta` of 0 or 1.
fn sums_into(to: &Tensor, x: &Tensor, beta: f64) -> Result<()> {
    match beta == 0. && x.dtype() == DType::F32 {
        true => column_sums_(to, x),
        false => to.slice_set(&add(to, &column_sums(x)?)?, 0, 0),
    }
}

/// Both passes over all rows at once, as one step.
pub(super) trait AllRows: Send {
    /// `J` and its terms, `[4]` f64, and the gradient at `theta`, new tensors.
    fn evaluate(&mut self, theta: &Tensor) -> Result<(Tensor, Tensor)>;

    /// Takes other rows, as many, in place of those that it has, which it writes over.
    fn put(&self, rows: &Tensor) -> Result<()>;
}

/// Both passes over all rows at once, f32, with products of f32 numbers.
///
/// Where lines are longer than what is in them, the units beside the own ones are 0 for every row:
/// their weights are 0, and their biases keep them there. So all goes over whole lines, and no
/// derivative reaches them; their mean activations have no part in the divergence.
pub(super) struct RecordedPass {
    replay: Replay,
    terms: SparseCost,
    n_samples: usize,
    /// What the step reads: the parameters, and the rows, which are copied where their lines are
    /// longer.
    copy: SparseParameters,
    rows: Tensor,
    in_lines: Option<Tensor>,
    /// `[2, m]` f64: to the first line the step adds half the squared error of each row.
    gathered: Tensor,
    /// What the step writes: the gradient of all but the decay, and sums.
    of_rows: SparseParameters,
    parts: SparseParts,
}

impl RecordedPass {
    /// Over `rows`, which it reads in place where `widths` have no other units.
    pub fn new(
        terms: SparseCost,
        precision: Precision,
        widths @ [visible, hidden]: [Width; 2],
        rows: &Tensor,
    ) -> Result<Self> {
        let (device, n_samples) = (rows.device(), rows.dim(0)?);
        let zeros = |n: usize, dtype| Tensor::zeros(n, dtype, device);
        let x = match visible.has_more() {
            true => Lines::new(Width::as_it_is(n_samples), visible, DType::F32, device)?,
            false => Lines { whole: rows.clone(), own: rows.clone() },
        };
        let whole = SparseCost { n_visible: visible.all, n_hidden: hidden.all, ..terms };
        let pass = Pass::of_whole(whole, precision, n_samples, &x.whole)?;
        let copy = Parameters::new(widths, terms.decoder, DType::F32, device)?;
        let of_rows = Parameters::new(widths, Activation::Identity, DType::F32, device)?;
        let (sums, pull) = (zeros(hidden.all, DType::F32)?, zeros(hidden.all, DType::F32)?);
        let gathered = Tensor::zeros((2, n_samples), DType::F64, device)?;
        let parts = SparseParts {
            losses: gathered.narrow(0, 0, 1)?,
            squares: zeros(square_parts(terms), DType::F64)?,
            divergence: zeros(divergence_parts(terms), DType::F64)?,
        };
        let (parameters, gradient) = (copy.whole, of_rows.whole);
        let records = !pass.makes_tensors(&x.whole, &parameters, &gradient)?;
        let (all_rows, losses, divergence) = (x.whole, gathered.clone(), parts.divergence.clone());
        let step = move || {
            let a = pass.features(&all_rows, &parameters)?;
            column_sums_(&sums, &a)?;
            let [own_pull, own_sums] = [&pull, &sums].map(|t| t.narrow(0, 0, hidden.own));
            sparsity_pull_(&own_pull?, &divergence, &own_sums?, terms, n_samples)?;
            let delta = pass.output_delta(&all_rows, &a, &parameters, &losses)?;
            pass.gradient(&all_rows, (&a, &delta, &pull), &parameters[1], &gradient, 0.)
        };
        let replay = match records {
            true => Replay::new(device, step).unshared(),
            false => Replay::unrecorded(device, step),
        };
        let (copy, of_rows, rows) = (copy.own, of_rows.own, rows.clone());
        let in_lines = visible.has_more().then_some(x.own);
        let pass = Self { replay, terms, n_samples, copy, rows, in_lines, gathered, of_rows, parts };
        pass.align_rows()?;
        Ok(pass)
    }

    fn align_rows(&self) -> Result<()> {
        self.in_lines.as_ref().map_or(Ok(()), |in_lines| scale_into_(in_lines, &self.rows, 1.))
    }
}

impl AllRows for RecordedPass {
    fn evaluate(&mut self, theta: &Tensor) -> Result<(Tensor, Tensor)> {
        sparse_begin_(&self.copy, &self.parts.squares, &self.gathered, theta, self.terms)?;
        self.replay.run()?;
        sparse_figures_of_lines(&self.parts, theta, &self.of_rows, self.terms, self.n_samples)
    }

    fn put(&self, rows: &Tensor) -> Result<()> {
        scale_into_(&self.rows, rows, 1.)?;
        self.align_rows()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device::Cpu;
    use chandlery_ops::Philox;
    use chandlery_ops::core::{normal, uniform};

    #[test]
    fn units_beside_the_own_ones_change_no_figure_and_no_derivative() -> Result<()> {
        for decoder in [Activation::Sigmoid, Activation::Identity] {
            for (v, h, m) in [(67, 77, 9), (5, 8, 3), (8, 5, 1)] {
                let terms = SparseCost {
                    n_visible: v,
                    n_hidden: h,
                    decoder,
                    weight_decay: 0.01,
                    sparsity_weight: 3.,
                    sparsity_target: 0.05,
                };
                let theta = (normal(2 * v * h + v + h, &Cpu, Philox::new(1, 0))? * 0.2)?;
                let rows = uniform((m, v), &Cpu, Philox::new(1, 1))?;
                let new = |widths| RecordedPass::new(terms, Precision::F32, widths, &rows.copy()?);
                let mut with = new([v, h].map(Width::aligned))?;
                let mut without = new([v, h].map(Width::as_it_is))?;
                let others = uniform((m, v), &Cpu, Philox::new(1, 2))?;
                for turn in 0..2 {
                    let what = format!("{v}-{h}-{v}, {m} rows, {decoder:?}, {turn}");
                    let (figures, gradient) = with.evaluate(&theta)?;
                    let (want, want_gradient) = without.evaluate(&theta)?;
                    let figures = figures.to_vec1::<f64>()?.into_iter().zip(want.to_vec1::<f64>()?);
                    for (got, want) in figures {
                        assert!((got - want).abs() <= 1e-6 * want, "{what}: {got}, want {want}");
                    }
                    // Sums of at most 80 terms of about 1 in another order.
                    let largest = (&gradient - &want_gradient)?.abs()?.max_all()?.to_scalar::<f32>()?;
                    assert!(largest <= 1e-6, "{what}: {largest}");
                    let entries = gradient.to_vec1::<f32>()?;
                    assert!(entries.iter().all(|x| x.is_finite() && *x != 0.), "{what}");
                    with.put(&others)?;
                    without.put(&others)?;
                }
            }
        }
        Ok(())
    }
}
