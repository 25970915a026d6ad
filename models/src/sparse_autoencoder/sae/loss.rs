//! The loss of a minibatch and its gradient.
use super::config::{BIAS, DECODER_BIAS, SKIP};
use super::loss_config::{LossConfig, Moment};
use super::pass::{Block, LENGTHS, Terms, column_sums, pass};
use super::{Kind, Sae, auxiliary, gated, jump_relu, matryoshka, relu, top_k};
use crate::check::batch_of;
use crate::share::Share;
use candle::{DType, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::codes::{
    AtomUses, CodeWidth, LatentGradients, SparseCodes, latent_gradients, row_squares, stacked_entries,
    use_sums,
};

/// The loss of a minibatch, and what its gradient is made of.
#[derive(Debug)]
pub struct Gradients {
    /// The loss: a mean over rows, f64 scalar.
    pub loss: Tensor,
    /// What the codes leave of the targets, `[batch, n_targets]`, of a rank's own rows.
    pub residual: Tensor,
    /// `Σ` of squares of the residual, f64 scalar.
    pub squared_error: Tensor,
    /// `Σ` of squares of the targets about their mean over the minibatch, f64 scalar.
    pub spread: Tensor,
    /// How often each latent was active in the minibatch, `[n_latents]`.
    pub fired: Tensor,
    /// The least pre-activation that was chosen, `[1]`, of BatchTopK and Matryoshka.
    pub cut: Option<Tensor>,
    /// Gradients of the parameters beside the weights, by their names in files.
    pub others: Vec<(&'static str, Tensor)>,
    codes: SparseCodes,
    uses: AtomUses,
    pre: Tensor,
    x: Tensor,
    errors: Tensor,
    /// Ends of the groups of latents with errors of their own.
    ends: Vec<usize>,
    lengths: Option<Tensor>,
    unit: bool,
}

/// `Σ_rows ‖t − t̄‖²` of targets, from `y`, the targets less what is beside codes, where that is
/// one point: `Σ ‖y‖² − m ‖ȳ‖²`, in f64.
fn spread(sae: &Sae, share: &Share, of_y: &Tensor, y: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (squares, y) = match sae.config.skip {
        true => {
            let squares = row_squares(targets)?.sum_all()?;
            share.group().all_reduce_(&squares)?;
            (squares, targets)
        }
        false => (of_y.clone(), y),
    };
    let sums = column_sums(y)?.to_dtype(DType::F64)?;
    share.group().all_reduce_(&sums)?;
    squares - (sums.sqr()?.sum_all()? / share.of() as f64)?
}

impl Gradients {
    /// Of prepared rows `x`, `[batch, n_visible]`, and their targets, `[batch, n_targets]`, of the
    /// type of the model. `dead` are the latents that AuxK may use, u32, ascending. With `width`
    /// the device is not waited for, and gradients are wrong unless codes [fit](CodeWidth::fits).
    ///
    /// # Errors
    /// When shapes, types or devices do not fit.
    pub fn of(
        sae: &Sae,
        config: &LossConfig,
        moment: Moment,
        rows: [&Tensor; 2],
        dead: Option<&Tensor>,
        width: Option<&mut CodeWidth>,
    ) -> Result<Self> {
        let share = Share::new(&Group::single(), rows[0].dim(0)?);
        Self::of_share(sae, config, moment, &share, rows, dead, width)
    }

    /// The same of a minibatch of which this rank has a share, as all ranks have, who get the same
    /// bits; with `width` for a lone rank.
    pub(super) fn of_share(
        sae: &Sae,
        config: &LossConfig,
        moment: Moment,
        share: &Share,
        [x, targets]: [&Tensor; 2],
        dead: Option<&Tensor>,
        width: Option<&mut CodeWidth>,
    ) -> Result<Self> {
        let batch = batch_of("Sae", "targets", targets, sae.config.n_outputs())?;
        if batch != batch_of("Sae", "x", x, sae.config.n_visible)? || batch == 0 {
            candle::bail!(
                "Sae: x and targets must have as many rows, at least 1, got {} and {batch}",
                x.dim(0)?
            )
        }
        let pass = pass(sae, config, moment, share, [x, targets], width)?;
        let mut terms = match &sae.config.kind {
            Kind::Relu => relu::terms(&pass),
            Kind::TopK { .. } => top_k::of_rows(&pass),
            Kind::BatchTopK { .. } => top_k::of_batch(&pass),
            Kind::JumpRelu => jump_relu::terms(&pass),
            Kind::Gated => gated::terms(&pass),
            Kind::Matryoshka { prefixes, .. } => matryoshka::terms(&pass, prefixes),
        }?;
        if let Some(dead) = dead {
            auxiliary::add(&pass, &mut terms, dead)?;
        }
        let terms = terms.of_all(&pass)?;
        let spread = spread(sae, share, &terms.squares[1], &pass.y, targets)?;
        Self::summed(sae, config, share, terms, x, share.gathered(&pass.narrow)?, spread)
    }

    fn summed(
        sae: &Sae,
        config: &LossConfig,
        share: &Share,
        terms: Terms,
        x: &Tensor,
        narrow: Tensor,
        spread: Tensor,
    ) -> Result<Self> {
        let Terms { blocks, beside, residual, squares, loss, cut } = terms;
        let codes = blocks.iter().map(|block| block.codes.clone()).collect::<Vec<_>>();
        let codes = SparseCodes::stacked(&codes)?;
        let uses = AtomUses::of(&codes)?;
        let stacked = |of: &dyn Fn(&Block) -> Result<Tensor>| -> Result<Tensor> {
            let parts = blocks.iter().map(of).collect::<Result<Vec<_>>>()?;
            stacked_entries(&parts.iter().collect::<Vec<_>>())
        };
        let pre = stacked(&|block| Ok(block.pre.clone()))?;
        let fires = stacked(&|block| {
            let values = &block.codes.values;
            if block.fires { values.gt(0f64)?.to_dtype(values.dtype()) } else { values.zeros_like() }
        })?;
        // Other blocks than the first have none; the bias of a gate has the gradient at the product
        // there.
        let named: Vec<&'static str> =
            blocks.iter().flat_map(|block| &block.sums).map(|(name, _)| *name).collect();
        let mut planes = vec![pre.clone(), fires];
        for name in &named {
            planes.push(stacked(&|block| match block.sums.iter().find(|(of, _)| of == name) {
                Some((_, t)) => Ok(t.clone()),
                None if *name == BIAS => Ok(block.pre.clone()),
                None => block.pre.zeros_like(),
            })?);
        }
        let sums = use_sums(&codes, &uses, &Tensor::stack(&planes, 0)?)?;
        let at_products = sums.get(0)?;
        let mut others = vec![];
        let mut lengths = None;
        if !named.contains(&BIAS) {
            others.push((BIAS, at_products.clone()));
        }
        for (i, name) in named.into_iter().enumerate() {
            let sum = sums.get(i + 2)?;
            if name == LENGTHS { lengths = Some(sum) } else { others.push((name, sum)) }
        }
        let mut bias = column_sums(&beside)?;
        share.group().all_reduce_(&bias)?;
        if sae.config.subtract_bias {
            let through = at_products.unsqueeze(0)?.to_dtype(sae.encoder.dtype())?.matmul(&sae.encoder)?;
            bias = (bias - through.squeeze(0)?.to_dtype(at_products.dtype())?)?;
        }
        others.push((DECODER_BIAS, bias));
        if sae.config.skip {
            let skip = beside.to_dtype(x.dtype())?.t()?.contiguous()?.matmul(x)?;
            share.group().all_reduce_(&skip)?;
            others.push((SKIP, skip));
        }
        let errors = blocks.iter().map(|block| &block.errors).collect::<Vec<_>>();
        Ok(Self {
            loss,
            residual,
            squared_error: squares[0].clone(),
            spread,
            fired: sums.get(1)?,
            cut,
            others,
            errors: Tensor::cat(&errors, 0)?,
            ends: sae.config.ends(),
            codes,
            uses,
            pre,
            x: narrow,
            lengths,
            unit: config.unit_atoms,
        })
    }

    /// What the gradients of encoder and decoder are summed from.
    pub fn of_latents(&self) -> LatentGradients<'_> {
        LatentGradients {
            codes: &self.codes,
            uses: &self.uses,
            pre: &self.pre,
            x: &self.x,
            errors: &self.errors,
            ends: &self.ends,
            lengths: self.lengths.as_ref(),
            unit: self.unit,
        }
    }

    /// The gradients of encoder and decoder, `[n_latents, n_visible]` and `[n_latents, n_targets]`;
    /// of rows of length 1 without the part along the row.
    ///
    /// # Errors
    /// When memory is short.
    pub fn weights(&self, sae: &Sae) -> Result<(Tensor, Tensor)> {
        latent_gradients(&self.of_latents(), &sae.decoder.to_dtype(self.pre.dtype())?)
    }

    /// The sum of squares of all gradients, f64 scalar.
    ///
    /// # Errors
    /// When memory is short.
    pub fn squares(&self, sae: &Sae) -> Result<Tensor> {
        let (encoder, decoder) = self.weights(sae)?;
        let all = [&encoder, &decoder].into_iter().chain(self.others.iter().map(|(_, t)| t));
        let squares = all.map(super::pass::squares).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&squares, 0)?.to_dtype(DType::F64)?.sum_all()
    }
}
