//! What the ranks of a group exchange of a minibatch: what the gradients of encoder and decoder are
//! summed from, which is less than these where rows are fewer than latents.
use super::Kind;
use super::largest::Dead;
use super::pass::{Block, Pass, Terms};
use crate::share::{Share, padded};
use candle::{Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::codes::{SparseCodes, active, batch_threshold, batch_top_k, top_k};

impl Pass<'_> {
    /// Codes of the `k` largest a row of the minibatch, those of this rank's rows, and the least of
    /// them, which several ranks find from the largest of each.
    pub(super) fn largest_of_batch(&self) -> Result<(SparseCodes, Tensor)> {
        let (products, bias, count) = (self.products()?, self.bias()?, self.moment.k * self.share.of());
        if let Some(width) = &mut *self.width.borrow_mut() {
            return width.batch_top_k(products, bias, count);
        }
        let found = batch_top_k(products, bias, count)?;
        if self.share.group().is_single() && self.latents.is_single() {
            return Ok(found);
        }
        let values = if self.latents.is_single() {
            let width = self.share.widest(&found.0)?;
            self.share.gathered(&padded(&found.0.values, width)?)?
        } else {
            let width = Share::new(self.latents, self.share.of()).widest(&found.0)?;
            gathered_columns(self.latents, &padded(&found.0.values, width)?)?
        };
        let cut = batch_threshold(&values, &values.get(0)?.zeros_like()?, count)?;
        Ok((active(products, bias, &cut, true)?, cut))
    }
}

impl Terms {
    /// Those of all ranks, but for what is beside codes and the residual.
    pub(super) fn of_all(mut self, pass: &Pass<'_>) -> Result<Self> {
        let share = pass.share;
        if share.group().is_single() {
            return Ok(self);
        }
        let ends = pass.sae.config.ends();
        let groups = std::iter::once(ends.len()).chain(std::iter::repeat(1));
        let blocks = self.blocks.into_iter().zip(groups);
        self.blocks = blocks.map(|(block, groups)| block.of_all(pass, groups)).collect::<Result<_>>()?;
        let [error, whole] = &self.squares;
        let sums = Tensor::stack(&[&self.loss, error, whole], 0)?;
        share.group().all_reduce_(&sums)?;
        self.loss = sums.get(0)?;
        self.squares = [sums.get(1)?, sums.get(2)?];
        Ok(self)
    }
}

impl Block {
    /// The same of all ranks, whose errors are of so many groups of latents.
    fn of_all(self, pass: &Pass<'_>, groups: usize) -> Result<Self> {
        let (share, Self { codes, pre, errors, fires, sums }) = (pass.share, self);
        // Only these have as many entries a row on every rank.
        let width = match pass.sae.config.kind {
            Kind::TopK { .. } => codes.width(),
            _ => share.widest(&codes)?,
        };
        let counted = Tensor::cat(&[padded(&codes.indices, width)?, codes.count.unsqueeze(1)?], 1)?;
        let counted = share.gathered(&counted)?;
        let planes = [&codes.values, &pre].into_iter().chain(sums.iter().map(|(_, t)| t));
        let planes = planes.map(|entries| padded(entries, width)).collect::<Result<Vec<_>>>()?;
        let planes = share.gathered(&Tensor::stack(&planes, 1)?)?;
        let plane = |i: usize| planes.narrow(1, i, 1)?.squeeze(1)?.contiguous();
        let named = sums.iter().zip(2..).map(|((name, _), i)| Ok((*name, plane(i)?)));
        let rows = share.rows().len();
        let errors = (0..groups).map(|group| share.gathered(&errors.narrow(0, group * rows, rows)?));
        Ok(Self {
            codes: SparseCodes {
                indices: counted.narrow(1, 0, width)?.contiguous()?,
                values: plane(0)?,
                count: counted.narrow(1, width, 1)?.squeeze(1)?.contiguous()?,
                n_atoms: codes.n_atoms,
            },
            pre: plane(1)?,
            errors: Tensor::cat(&errors.collect::<Result<Vec<_>>>()?, 0)?,
            fires,
            sums: named.collect::<Result<_>>()?,
        })
    }
}

impl Pass<'_> {
    /// Codes of the `k` largest of each row, of TopK.
    pub(super) fn largest(&self, k: usize) -> Result<SparseCodes> {
        match self.largest.of_all.iter().find(|(of, _)| *of == k) {
            Some((_, own)) => self.of_all_latents(own, k),
            None => candle::bail!("Sae: the {k} largest of a row were not looked for"),
        }
    }

    /// Codes of the `k` of AuxK that are largest among the dead.
    pub(super) fn largest_of_dead(&self, dead: &Dead) -> Result<SparseCodes> {
        let k = self.config.aux_k;
        let own = match (&dead.own, &self.largest.of_dead) {
            (_, Some(own)) => own.clone(),
            (Some(among), None) => top_k(self.products()?, self.bias()?, k, Some(among))?,
            (None, None) => self.none()?,
        };
        self.of_all_latents(&own, k)
    }

    /// Codes without entries.
    fn none(&self) -> Result<SparseCodes> {
        let (rows, device) = (self.x.dim(0)?, self.x.device());
        Ok(SparseCodes {
            indices: Tensor::zeros((rows, 1), candle::DType::U32, device)?,
            values: Tensor::zeros((rows, 1), self.x.dtype(), device)?,
            count: Tensor::zeros(rows, candle::DType::U32, device)?,
            n_atoms: self.sae.config.n_latents,
        })
    }

    /// Of the codes of this rank's largest, those that are among the `k` largest of all ranks: the
    /// values, `k` a row and rank, are gathered, and the `k` largest of these are those of all. The
    /// columns of what is gathered are in the order of latents, so that of equal values the same go
    /// first as on one rank.
    fn of_all_latents(&self, own: &SparseCodes, k: usize) -> Result<SparseCodes> {
        let group = self.latents;
        if group.is_single() {
            return Ok(own.clone());
        }
        let largest = |values: &Tensor| {
            top_k(values, &Tensor::zeros(values.dim(1)?, values.dtype(), values.device())?, k, None)
        };
        let values = gathered_columns(group, &padded(&own.values, k)?)?;
        let chosen = largest(&values)?.to_dense()?;
        let mine = largest(&chosen.narrow(1, group.rank() * k, k)?.contiguous()?)?;
        let there = mine.mask()?.to_dtype(candle::DType::U32)?;
        let indices = (padded(&own.indices, k)?.gather(&mine.indices, 1)? * there)?;
        Ok(SparseCodes { indices, n_atoms: own.n_atoms, ..mine })
    }
}

/// The columns of a matrix of each rank side by side, on every rank: `[rows, world · n]` of
/// `[rows, n]` each.
fn gathered_columns(group: &Group, own: &Tensor) -> Result<Tensor> {
    let ((rows, n), world) = (own.dims2()?, group.world());
    let all = Tensor::zeros((world, rows, n), own.dtype(), own.device())?;
    group.all_gather_(&all, &own.contiguous()?)?;
    all.transpose(0, 1)?.contiguous()?.reshape((rows, world * n))
}
