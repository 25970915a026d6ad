//! Signals of a [`DictionaryTrainer`] divided over the ranks of a group.
use super::coded::Coded;
use super::train::{OfAll, Previous};
use super::{DictionaryTrainer, UpdateRule};
use crate::share::{Share, of_first};
use candle::{Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::codes::{AtomUses, ErrorTarget, SparseCodes};

impl DictionaryTrainer {
    /// See [`Trainer::in_group`](crate::Trainer::in_group) of this trainer.
    pub(super) fn divided(mut self, group: &Group) -> Result<Self> {
        const OP: &str = "DictionaryTrainer::in_group";
        if group.is_single() {
            return Ok(self);
        }
        if !self.share.group().is_single() {
            candle::bail!("{OP}: the trainer must not be in a group yet")
        }
        let changeable = self.current.atoms.dim(0)? - self.config.n_fixed;
        match self.config.rule {
            UpdateRule::Ksvd => candle::bail!(
                "{OP}: rule must be ak-svd, sgk, nsgk or mod for several ranks, got ksvd, where each atom follows from the errors that those \
                 before it left; take ak-svd, or one rank"
            ),
            UpdateRule::AkSvd if self.config.group < changeable => candle::bail!(
                "{OP}: group must be all atoms, {changeable}, for ak-svd on several ranks, got {}, where each group follows from the \
                 coefficients that those before it left; take sgk, or one rank",
                self.config.group
            ),
            UpdateRule::AkSvd | UpdateRule::Sgk | UpdateRule::Nsgk | UpdateRule::Mod => {}
        }
        let share = Share::new(group, self.share.of());
        self.current.atoms = of_first(group, &self.current.atoms)?;
        // Copies, so that what other ranks have needs no memory any more.
        let own = |t: &Tensor| share.own(t)?.copy();
        if let Some(ErrorTarget::PerSignal(targets)) = &mut self.coder.error {
            *targets = own(targets)?;
        }
        self.signals = own(&self.signals)?;
        let Coded { codes, uses, error, squares, .. } = &mut self.coded;
        (*codes, *uses) = own_codes(&own, codes)?;
        (*error, *squares) = (own(error)?, own(squares)?);
        if let Some(Previous { codes, uses }) = &mut self.previous {
            (*codes, *uses) = own_codes(&own, codes)?;
        }
        self.share = share;
        Ok(self)
    }

    /// What all ranks have of what a checkpoint holds.
    pub(super) fn gathered(&self) -> Result<OfAll> {
        let previous = self.previous.as_ref().map(|Previous { codes, .. }| self.share.gathered_codes(codes));
        let targets = match &self.coder.error {
            Some(ErrorTarget::PerSignal(targets)) => Some(self.share.gathered(targets)?),
            _ => None,
        };
        Ok(OfAll { previous: previous.transpose()?, targets })
    }
}

/// A rank's own codes, and their uses.
fn own_codes(
    own: &impl Fn(&Tensor) -> Result<Tensor>,
    codes: &SparseCodes,
) -> Result<(SparseCodes, AtomUses)> {
    let SparseCodes { indices, values, count, n_atoms } = codes;
    let codes =
        SparseCodes { indices: own(indices)?, values: own(values)?, count: own(count)?, n_atoms: *n_atoms };
    let uses = AtomUses::of(&codes)?;
    Ok((codes, uses))
}
