//! How wide codes are whose rows have as many entries as come.
use super::{active_of, batch_top_k_of};
use crate::codes::SparseCodes;
use crate::core::late::LateNumbers;
use candle::{DType, Device, Result, Tensor};

/// How wide codes are whose rows have as many entries as come, as far as earlier minibatches tell:
/// they are formed without a wait for the device, and afterwards one asks whether they
/// [fit](Self::fits).
///
/// ```text
/// codes ← width.batch_top_k(…)        of a guessed width: nothing is waited for
/// what follows from codes is queued
/// width.fits()?                       waits until the device has chosen; if not, once more
/// ```
#[derive(Debug, Default)]
pub struct CodeWidth {
    guess: Option<usize>,
    limits: Option<Limits>,
    told: LateNumbers,
}

/// What must hold of the numbers that the device tells: the largest count and the number of all
/// entries of a first list, and the same of the codes.
#[derive(Debug)]
struct Limits {
    listed: usize,
    least: usize,
    width: usize,
}

/// Numbers that selection tells, zeros.
pub(super) fn new_told(device: &Device) -> Result<Tensor> {
    Tensor::zeros(4, DType::U32, device)
}

impl CodeWidth {
    /// The width that codes may have, none where that is not known.
    pub(super) fn guess(&self) -> Option<usize> {
        self.guess
    }

    /// Notes what `told` must hold: of a first list at most `listed` a row and at least `least` in
    /// all, of codes at most `width` a row.
    pub(super) fn ask(&mut self, told: &Tensor, listed: usize, least: usize, width: usize) -> Result<()> {
        self.limits = Some(Limits { listed, least, width });
        self.told.ask(told)
    }

    /// Guesses from codes that have at most so many entries a row: a quarter more.
    pub(super) fn learn(&mut self, most: usize) {
        self.guess = Some((most + most / 4 + 1).next_multiple_of(8));
    }

    /// [`active`](super::active); with a guess of the width codes may be wider than they must.
    ///
    /// # Errors
    /// As there.
    pub fn active(
        &mut self,
        pre: &Tensor,
        bias: &Tensor,
        bound: &Tensor,
        or_equal: bool,
    ) -> Result<SparseCodes> {
        active_of([pre, bias, bound], or_equal, Some(self))
    }

    /// [`batch_top_k`](super::batch_top_k); with a guess of the width codes may be wider than they
    /// must.
    ///
    /// # Errors
    /// As there.
    pub fn batch_top_k(
        &mut self,
        pre: &Tensor,
        bias: &Tensor,
        count: usize,
    ) -> Result<(SparseCodes, Tensor)> {
        batch_top_k_of(pre, bias, count, Some(self))
    }

    /// Whether the codes that it gave last are whole. If not, they and what was formed from
    /// them are wrong; another call gives codes that are right, after a wait.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fits(&mut self) -> Result<bool> {
        let Some(Limits { listed, least, width }) = self.limits.take() else { return Ok(true) };
        self.guess = None;
        let told = self.told.read()?;
        let &[of_list, all, most, _] = &told[..] else { candle::bail!("CodeWidth: four numbers") };
        let fits = of_list as usize <= listed && all as usize >= least && most as usize <= width;
        if fits {
            self.learn(most as usize);
        }
        Ok(fits)
    }
}
