//! The hidden units of one rank of a group.
use super::super::RbmConfig;
use candle::{Result, Tensor};
use chandlery_ops::core::Draws;
use chandlery_ops::{Group, Philox};
use std::ops::Range;

/// Hidden units of a part begin at multiples of the first of these by which all of them divide.
const BLOCKS: [usize; 3] = [64, 16, 4];

/// Which of the hidden units this rank has.
#[derive(Clone)]
pub(in super::super) struct HiddenShare {
    pub group: Group,
    own: Range<usize>,
    of: usize,
}

impl HiddenShare {
    /// All of them.
    pub fn whole(rbm: &RbmConfig) -> Self {
        Self { group: Group::single(), own: 0..rbm.n_hidden, of: rbm.n_hidden }
    }

    /// Those of a rank.
    ///
    /// # Errors
    /// When units do not divide so.
    pub fn of(group: &Group, rbm: &RbmConfig) -> Result<Self> {
        let of = rbm.n_hidden;
        let Some(block) =
            BLOCKS.into_iter().find(|block| of.is_multiple_of(*block) && of / block >= group.world())
        else {
            candle::bail!(
                "RbmTrainer: hidden units must be a multiple of 4, and 4 for each of {} ranks, got {of}",
                group.world()
            )
        };
        let part = group.part(of / block);
        Ok(Self { group: group.clone(), own: block * part.start..block * part.end, of })
    }

    /// The RBM of these hidden units.
    pub fn config(&self, rbm: &RbmConfig) -> RbmConfig {
        RbmConfig { n_hidden: self.own.len(), ..rbm.clone() }
    }

    /// Where these units take their draws.
    pub fn draws<'a>(&self, philox: Philox, counter: &'a Tensor) -> Draws<'a> {
        if self.group.is_single() {
            return Draws::Counter { philox, counter };
        }
        Draws::Columns { philox, counter, first: self.own.start, of: self.of }
    }

    /// How many draws the hidden units of all ranks take of `batch` rows.
    pub fn n_draws(&self, batch: usize) -> usize {
        batch * self.of
    }

    /// The part of these units of a tensor of all, along the dimension of hidden units.
    pub fn part(&self, whole: &Tensor, dim: usize) -> Result<Tensor> {
        whole.narrow(dim, self.own.start, self.own.len())?.contiguous()
    }

    /// The tensor of all units of the part that each rank has; all ranks must ask for it.
    pub fn gathered(&self, part: &Tensor, dim: usize) -> Result<Tensor> {
        let mut shape = part.dims().to_vec();
        shape[dim] = self.of;
        // Parts may differ in size; each entry is a sum of one number and zeros, and so exact.
        let whole = Tensor::zeros(shape, part.dtype(), part.device())?;
        whole.slice_set(&part.contiguous()?, dim, self.own.start)?;
        self.group.all_reduce_(&whole)?;
        Ok(whole)
    }
}
