//! The latents of a model divided over the ranks of a group, and what of a minibatch each has.
use super::SaeConfig;
use crate::share::Share;
use candle::{Result, Tensor};
use chandlery_ops::Group;
use std::ops::Range;

/// What of a minibatch this rank has: some of its rows and all latents, or all rows and some of the
/// latents. A side that is whole belongs to a group of one.
#[derive(Debug)]
pub(super) struct Part {
    pub rows: Share,
    /// Ranks that have the other latents.
    pub latents: Group,
}

impl Part {
    /// So many rows, and all latents.
    pub fn whole(rows: usize) -> Self {
        Self { rows: Share::new(&Group::single(), rows), latents: Group::single() }
    }
}

/// Numbers of a matrix that ranks pass on at a time.
const PIECE: usize = 1 << 24;

/// Which of the latents this rank has, in the order of ranks. Parts begin at multiples of 4, so that
/// the draws of their rows begin with a block of a [`Philox`](chandlery_ops::Philox) sequence.
#[derive(Debug, Clone)]
pub(super) struct LatentPart {
    group: Group,
    of: usize,
}

impl LatentPart {
    /// All of so many.
    pub fn whole(of: usize) -> Self {
        Self { group: Group::single(), of }
    }

    /// # Errors
    /// When a rank would have none.
    pub fn of(group: &Group, of: usize) -> Result<Self> {
        Share::check("SaeTrainer", group, "latents", of)?;
        Ok(Self { group: group.clone(), of })
    }

    /// The ranks that have them.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Where this rank's are among all.
    pub fn own(&self) -> Range<usize> {
        self.group.rows(self.of)
    }

    /// What a model of this rank's latents alone is; its `k` is that of all.
    pub fn config(&self, model: &SaeConfig) -> SaeConfig {
        SaeConfig { n_latents: self.own().len(), ..model.clone() }
    }

    /// This rank's part of a tensor of all, whose dimension `dim` is that of latents.
    pub fn part(&self, whole: &Tensor, dim: usize) -> Result<Tensor> {
        let own = self.own();
        whole.narrow(dim, own.start, own.len())?.contiguous()
    }

    /// The tensor of all latents of the part that each rank has; all ranks ask for it.
    pub fn gathered(&self, part: &Tensor, dim: usize) -> Result<Tensor> {
        if self.group.is_single() {
            return Ok(part.clone());
        }
        let mut shape = part.dims().to_vec();
        if let Some(n) = shape.get_mut(dim) {
            *n = self.of;
        }
        // Parts may differ in size; each entry is a sum of one number and zeros, and so exact.
        let whole = Tensor::zeros(shape, part.dtype(), part.device())?;
        whole.slice_set(&part.contiguous()?, dim, self.own().start)?;
        self.group.all_reduce_(&whole)?;
        Ok(whole)
    }

    /// Sums numbers of all ranks, f64.
    pub fn sum(&self, x: f64, like: &Tensor) -> Result<f64> {
        if self.group.is_single() {
            return Ok(x);
        }
        let sum = Tensor::new(&[x], like.device())?;
        self.group.all_reduce_(&sum)?;
        sum.get(0)?.to_scalar()
    }

    /// Passes the rows of a matrix of all latents by, of which each rank has its own, `[own, d]`: a
    /// piece at a time and in order, on every rank. No rank has more than its own and a piece.
    pub fn pieces(&self, own: &Tensor, mut give: impl FnMut(&Tensor) -> Result<()>) -> Result<()> {
        let (_, d) = own.dims2()?;
        let at_a_time = (PIECE / d).max(1);
        for rank in 0..self.group.world() {
            let n = self.group.rows_of(rank, self.of).len();
            for first in (0..n).step_by(at_a_time) {
                let rows = at_a_time.min(n - first);
                let piece = if rank == self.group.rank() {
                    own.narrow(0, first, rows)?.copy()?
                } else {
                    Tensor::zeros((rows, d), own.dtype(), own.device())?
                };
                self.group.broadcast_(&piece, rank)?;
                give(&piece)?;
            }
        }
        Ok(())
    }

    /// Fills this rank's rows `[own, d]` of a matrix of all, from what `rows` gives for places among
    /// all: a piece at a time.
    pub fn fill(&self, own: &Tensor, rows: impl Fn(Range<usize>) -> Result<Tensor>) -> Result<()> {
        let (_, d) = own.dims2()?;
        let start = self.own().start;
        self.each(d, |at| own.slice_set(&rows(at.clone())?.contiguous()?, 0, at.start - start))
    }

    /// Calls `piece` with places among all latents: this rank's, so many at a time as make a piece of
    /// rows of `d` numbers, each beginning with a block of draws as the part does.
    pub fn each(&self, d: usize, mut piece: impl FnMut(Range<usize>) -> Result<()>) -> Result<()> {
        let own = self.own();
        let at_a_time = (PIECE / d).next_multiple_of(4).max(4);
        own.clone().step_by(at_a_time).try_for_each(|at| piece(at..own.end.min(at + at_a_time)))
    }
}
