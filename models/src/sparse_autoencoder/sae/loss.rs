//! The loss of a minibatch and its gradient.
use super::config::{BIAS, DECODER_BIAS, SKIP};
use super::divided::Part;
use super::largest::Dead;
use super::loss_config::{LossConfig, Moment};
use super::pass::{Block, LENGTHS, Terms, column_sums, pass};
use super::{Kind, Sae, auxiliary, gated, jump_relu, matryoshka, relu, top_k};
use crate::check::batch_of;
use crate::share::Share;
use candle::{DType, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::codes::{
    AtomUses, CodeWidth, LatentGradients, SparseCodes, code_errors, latent_gradients, row_squares,
    stacked_entries, use_sums,
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

/// `Wᵀ g` of gradients `g` at the products of all rows, `[n_visible]`: from the rows of the encoder
/// that entries name, where these are fewer than latents.
fn through_encoder(sae: &Sae, codes: &SparseCodes, pre: &Tensor, at_products: &Tensor) -> Result<Tensor> {
    let (encoder, n, dtype) = (&sae.encoder, codes.n_atoms, at_products.dtype());
    if pre.elem_count() >= n {
        let through = at_products.unsqueeze(0)?.to_dtype(encoder.dtype())?.matmul(encoder)?;
        return through.squeeze(0)?.to_dtype(dtype);
    }
    let rows = SparseCodes { values: pre.clone(), ..codes.clone() };
    let zeros = Tensor::zeros((pre.dim(0)?, encoder.dim(1)?), pre.dtype(), pre.device())?;
    column_sums(&code_errors(&rows, &zeros, encoder, &[n], 1.)?.residual)?.neg()
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
        let part = Part::whole(rows[0].dim(0)?);
        let dead = dead.map(|own| Dead { own: Some(own.clone()), n: own.elem_count() });
        Self::of_part(sae, config, moment, &part, rows, dead.as_ref(), width)
    }

    /// The same of a minibatch of which this rank has a part, as all ranks have: those that have all
    /// latents get the same bits, others those of their own latents; with `width` for a lone rank.
    pub(super) fn of_part(
        sae: &Sae,
        config: &LossConfig,
        moment: Moment,
        part: &Part,
        [x, targets]: [&Tensor; 2],
        dead: Option<&Dead>,
        width: Option<&mut CodeWidth>,
    ) -> Result<Self> {
        let batch = batch_of("Sae", "targets", targets, sae.config.n_outputs())?;
        if batch != batch_of("Sae", "x", x, sae.config.n_visible)? || batch == 0 {
            candle::bail!(
                "Sae: x and targets must have as many rows, at least 1, got {} and {batch}",
                x.dim(0)?
            )
        }
        let pass = pass(sae, config, moment, part, [x, targets], dead, width)?;
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
        let share = &part.rows;
        let spread = spread(sae, share, &terms.squares[1], &pass.y, targets)?;
        Self::summed(sae, config, part, terms, x, share.gathered(&pass.narrow)?, spread)
    }

    fn summed(
        sae: &Sae,
        config: &LossConfig,
        Part { rows: share, latents }: &Part,
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
            let through = through_encoder(sae, &codes, &pre, &at_products)?;
            latents.all_reduce_(&through)?;
            bias = (bias - through)?;
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
        self.squares_of_all(sae, &Group::single())
    }

    /// The same of the latents of all ranks.
    pub(super) fn squares_of_all(&self, sae: &Sae, latents: &Group) -> Result<Tensor> {
        let (encoder, decoder) = self.weights(sae)?;
        let parts = sae.config.parts();
        let is_of_latents = |name: &str| parts.iter().any(|part| part.name == name && part.of_latents);
        let (own, alike): (Vec<_>, Vec<_>) = self.others.iter().partition(|(name, _)| is_of_latents(name));
        let sum = |all: &[&Tensor]| {
            let squares = all.iter().map(|t| super::pass::squares(t)).collect::<Result<Vec<_>>>()?;
            Tensor::stack(&squares, 0)?.sum_all()
        };
        let own: Vec<_> = [&encoder, &decoder].into_iter().chain(own.into_iter().map(|(_, t)| t)).collect();
        let own = sum(&own)?;
        latents.all_reduce_(&own)?;
        own + sum(&alike.into_iter().map(|(_, t)| t).collect::<Vec<_>>())?
    }
}
