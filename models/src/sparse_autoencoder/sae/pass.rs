//! What the kinds have in common in a pass over a minibatch.
use super::divided::Part;
use super::largest::{Dead, Largest, is_by_row};
use super::{LossConfig, Moment, Sae};
use crate::share::Share;
use candle::{DType, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::{column_sums_, elementwise::sub};
use chandlery_ops::codes::{CodeErrors, CodeWidth, SparseCodes, active, code_dots, code_errors, row_squares};
use std::cell::RefCell;

/// A minibatch on its way through a model.
pub(super) struct Pass<'a> {
    pub sae: &'a Sae,
    pub config: &'a LossConfig,
    pub moment: Moment,
    /// Which rows of the minibatch this rank has.
    pub share: &'a Share,
    /// Ranks that have the other latents.
    pub latents: &'a Group,
    /// What the encoder reads, `[batch, n_visible]`, of the type of values.
    pub x: Tensor,
    /// The same in the type of the encoder.
    pub narrow: Tensor,
    /// What codes are to stand for, `[batch, n_targets]`: targets less what is beside codes.
    pub y: Tensor,
    /// Pre-activations without their bias, `[batch, n_latents]`, of kinds that need all at once.
    products: Option<Tensor>,
    /// What kinds that do not have looked for.
    pub largest: Largest,
    /// How wide codes are, where that is guessed.
    pub width: RefCell<Option<&'a mut CodeWidth>>,
}

/// Codes that reconstruct, with what gradients are summed from.
pub(super) struct Block {
    pub codes: SparseCodes,
    /// Gradient at the pre-activation of each entry, 0 beyond the counts: `[batch, s]`.
    pub pre: Tensor,
    /// Gradient at the reconstruction, `[batch, n_targets]`; of the first block for each group of
    /// latents.
    pub errors: Tensor,
    /// Whether active latents of this block count as fired.
    pub fires: bool,
    /// What is summed over the entries of each latent besides: gradients of parameters by their
    /// names, and of the lengths of decoder rows, `[batch, s]`.
    pub sums: Vec<(&'static str, Tensor)>,
}

/// The name of gradients of lengths among the sums.
pub(super) const LENGTHS: &str = "lengths";

/// What a kind makes of a minibatch.
pub(super) struct Terms {
    pub blocks: Vec<Block>,
    /// Gradient at what is beside codes, `[batch, n_targets]`.
    pub beside: Tensor,
    /// What the codes that the model encodes by leave of `y`, `[batch, n_targets]`.
    pub residual: Tensor,
    /// `Σ` of its squares, and of those of `y`, f64 scalars.
    pub squares: [Tensor; 2],
    /// The loss, f64 scalar.
    pub loss: Tensor,
    /// The least pre-activation that was chosen, `[1]`, where the kind has a threshold to follow
    /// it.
    pub cut: Option<Tensor>,
}

/// What is left of a target.
pub(super) struct Left {
    /// `y − Σ_j z_j d_j`
    pub residual: Tensor,
    /// Gradient of the loss at the reconstruction, of the type of the decoder; for each group of
    /// latents.
    pub errors: Tensor,
    /// `Σ` of squares of the residual and of the target, f64 scalars.
    pub squares: [Tensor; 2],
    /// The loss, f64 scalar.
    pub loss: Tensor,
}

/// `Σ` over the rows of a matrix, f64 for f64, else f32.
pub(super) fn column_sums(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::F64 {
        return x.sum(0);
    }
    let sums = Tensor::zeros(x.dim(1)?, DType::F32, x.device())?;
    column_sums_(&sums, &x.contiguous()?)?;
    Ok(sums)
}

/// `Σ` over each row of a matrix. candle sums a row with one block of threads, so long ones are cut
/// into parts.
pub(super) fn row_sums(x: &Tensor) -> Result<Tensor> {
    const PARTS: usize = 128;
    let (rows, n) = x.dims2()?;
    if !n.is_multiple_of(PARTS) || n < 16 * PARTS {
        return x.sum(1);
    }
    x.reshape((rows * PARTS, n / PARTS))?.sum(1)?.reshape((rows, PARTS))?.sum(1)
}

/// `Σ` of squares in f64.
pub(super) fn squares(t: &Tensor) -> Result<Tensor> {
    t.to_dtype(DType::F64)?.sqr()?.sum_all()
}

impl Pass<'_> {
    /// Rows of the minibatch, those of all ranks.
    pub(super) fn batch(&self) -> f64 {
        self.share.of() as f64
    }

    /// The pre-activations' bias.
    pub(super) fn bias(&self) -> Result<&Tensor> {
        self.sae.other(super::config::BIAS)
    }

    /// Pre-activations without their bias.
    pub(super) fn products(&self) -> Result<&Tensor> {
        match &self.products {
            Some(products) => Ok(products),
            None => candle::bail!("Sae: {:?} has not all pre-activations in memory", self.sae.config.kind),
        }
    }

    /// Numbers of the model's type.
    pub(super) fn numbers(&self, x: &[f64]) -> Result<Tensor> {
        Tensor::new(x, self.x.device())?.to_dtype(self.x.dtype())
    }

    /// What codes leave of `y`, with a loss of `weight` times its mean square a row, summed over
    /// the prefixes of latents that end at `ends`.
    pub(super) fn left(&self, y: &Tensor, codes: &SparseCodes, ends: &[usize], weight: f64) -> Result<Left> {
        let scale = -2. * weight / self.batch();
        let of = if self.latents.is_single() {
            code_errors(codes, y, &self.sae.decoder, ends, scale)?
        } else {
            self.left_by_all_ranks(y, codes, scale)?
        };
        let CodeErrors { residual, errors, squares } = of;
        let squares = row_sums(&squares)?;
        let of_prefixes = squares.narrow(0, 0, ends.len())?.sum_all()?;
        let loss = (of_prefixes * (weight / self.batch()))?;
        let squares = [squares.get(ends.len() - 1)?, squares.get(ends.len())?];
        Ok(Left { residual, errors, loss, squares })
    }

    /// What the codes of all ranks leave of `y`, which each takes its own from.
    fn left_by_all_ranks(&self, y: &Tensor, codes: &SparseCodes, scale: f64) -> Result<CodeErrors> {
        let decoder = &self.sae.decoder;
        let of_rank = if self.latents.rank() == 0 { y.clone() } else { y.zeros_like()? };
        let CodeErrors { residual, .. } = code_errors(codes, &of_rank, decoder, &[codes.n_atoms], scale)?;
        self.latents.all_reduce_(&residual)?;
        let errors = (&residual * scale)?.to_dtype(decoder.dtype())?;
        let squares = Tensor::stack(&[row_squares(&residual)?, row_squares(y)?], 0)?;
        Ok(CodeErrors { residual, errors, squares })
    }

    /// The same of all latents at once.
    pub(super) fn left_by_all(&self, codes: &SparseCodes) -> Result<Left> {
        self.left(&self.y, codes, &[self.sae.config.n_latents], 1.)
    }

    /// Gradient at the values of codes, from that at the reconstruction of each group of latents; 0
    /// beyond the counts.
    pub(super) fn at_values(&self, codes: &SparseCodes, errors: &Tensor, ends: &[usize]) -> Result<Tensor> {
        code_dots(codes, errors, &self.sae.decoder, ends)
    }

    /// Codes of what is above a bound.
    pub(super) fn active(&self, bound: &Tensor) -> Result<SparseCodes> {
        match &mut *self.width.borrow_mut() {
            Some(width) => width.active(self.products()?, self.bias()?, bound, false),
            None => active(self.products()?, self.bias()?, bound, false),
        }
    }

    /// Entries of a vector over latents at those of codes.
    pub(super) fn at(&self, of_latents: &Tensor, codes: &SparseCodes) -> Result<Tensor> {
        of_latents.index_select(&codes.indices.flatten_all()?, 0)?.reshape(codes.indices.shape())
    }

    /// The lengths of decoder rows at the entries of codes; none where they are 1.
    pub(super) fn lengths(&self, codes: &SparseCodes) -> Result<Option<Tensor>> {
        if self.config.unit_atoms {
            return Ok(None);
        }
        let decoder = self.sae.decoder.to_dtype(self.x.dtype())?;
        self.at(&decoder.sqr()?.sum(1)?.sqrt()?, codes).map(Some)
    }

    /// 1 for entries that are there, 0 beyond the counts.
    pub(super) fn there(&self, codes: &SparseCodes) -> Result<Tensor> {
        codes.mask()?.to_dtype(self.x.dtype())
    }

    /// `Σ t / batch` of numbers at entries, in f64, so that zeros beyond the counts change no bit:
    /// how many there are depends on what was guessed; over the latents of all ranks.
    pub(super) fn mean(&self, t: &Tensor) -> Result<Tensor> {
        let of_rows = t.to_dtype(DType::F64)?.sum_keepdim(1)?.t()?.contiguous()?;
        let sum = row_sums(&of_rows)?;
        self.latents.all_reduce_(&sum)?;
        sum.squeeze(0)? * (1. / self.batch())
    }
}

/// The minibatch of prepared rows `x` and their targets, with latents that are dead.
pub(super) fn pass<'a>(
    sae: &'a Sae,
    config: &'a LossConfig,
    moment: Moment,
    part: &'a Part,
    [x, targets]: [&Tensor; 2],
    dead: Option<&Dead>,
    width: Option<&'a mut CodeWidth>,
) -> Result<Pass<'a>> {
    let [centred, narrow] = sae.centred(x)?;
    let y = match sae.config.n_targets {
        None if !sae.config.skip && sae.config.subtract_bias => centred.clone(),
        _ => sub(targets, &sae.beside_codes(x)?)?,
    };
    let (products, largest) = if is_by_row(&sae.config.kind) {
        (None, Largest::of(sae, &narrow, config, moment, dead)?)
    } else {
        (Some(sae.products(&narrow)?), Largest::default())
    };
    let (share, latents, width) = (&part.rows, &part.latents, RefCell::new(width));
    Ok(Pass { products, largest, sae, config, moment, share, latents, x: centred, narrow, y, width })
}
