//! Replacement of atoms that are unused or nearly copies of another atom.
use super::Replace;
use super::scaling::{level, unit_rows};
use super::statistics::{Idle, Statistics};
use crate::share::Share;
use candle::{Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::relu;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::codes::{atom_coherence, row_squares};

/// How alike two signals may be that become atoms at the same time, where the configuration sets no
/// limit.
const DISTINCT: f64 = 0.99;

/// The largest of some numbers of at least 0; a NaN among them is the answer.
pub(super) fn largest(x: &[f64]) -> Result<f64> {
    Ok(x.iter().fold(0., |most, &x| if x > most || x.is_nan() { x } else { most }))
}

/// The first `k` signals in the order of `order` that are neither zero nor like one before them, of
/// length 1; fewer when there are not so many. `[≤ k, n_features]`. Where `nonnegative`, signals
/// count with 0 for what is below it. `signals` are those of this rank's share.
pub(super) fn distinct(
    share: &Share,
    signals: &Tensor,
    order: &[u32],
    k: usize,
    limit: f64,
    nonnegative: bool,
) -> Result<Tensor> {
    let device = signals.device();
    let mut kept = Tensor::zeros((0, signals.dim(1)?), signals.dtype(), device)?;
    if k == 0 {
        return Ok(kept);
    }
    let (mut rest, mut take) = (order, k + k / 2 + 8);
    while !rest.is_empty() && kept.dim(0)? < k {
        let candidates;
        (candidates, rest) = rest.split_at(take.min(rest.len()));
        let rows = share.rows_at(&signals.contiguous()?, candidates)?;
        let rows = level(&if nonnegative { relu(&rows)? } else { rows })?;
        let rows = Tensor::cat(&[kept, rows], 0)?;
        let squares = row_squares(&rows)?.to_vec1::<f64>()?;
        let like = atom_coherence(&rows)?.to_vec1::<f64>()?;
        let chosen: Vec<u32> = (0u32..)
            .zip(squares.iter().zip(&like))
            .filter(|(_, (squares, like))| **squares > 0. && **like <= limit)
            .map(|(i, _)| i)
            .take(k)
            .collect();
        kept = gather_rows(&rows, &chosen)?;
        // Some at a time: what was found out about those that are left out is not found out again.
        take = (2 * take).min(4 * k + 2048);
    }
    unit_rows(&kept)
}

/// What care needs to know of a dictionary and the last codes over it.
pub(crate) struct Care<'a> {
    pub replace: Replace,
    pub max_coherence: Option<f64>,
    pub n_fixed: usize,
    /// Whether new atoms are at least 0.
    pub nonnegative: bool,
    /// What this rank has of the signals.
    pub share: &'a Share,
    /// Where new atoms come from, `[n_samples, n_features]`, this rank's.
    pub signals: &'a Tensor,
    /// The squared errors of their codes, f64 `[n_samples]`.
    pub squares: &'a Tensor,
    /// Where random ones are drawn.
    pub philox: Philox,
}

/// Where batch `t` draws: each from a stretch of its own.
pub(crate) fn draws_of_batch(philox: Philox, t: u64) -> Philox {
    Philox { offset: philox.offset.wrapping_add(t << 32), ..philox }
}

/// A dictionary that was cared for.
pub(crate) struct CaredFor {
    pub(crate) atoms: Tensor,
    /// The atoms that are new.
    pub replaced: Vec<usize>,
    /// The mutual coherence of the atoms, where it came out on the way.
    pub coherence: Option<f64>,
}

/// Whether care needs to know how much alike atoms are.
pub(crate) fn compares(replace: Replace, max_coherence: Option<f64>) -> bool {
    replace != Replace::None && max_coherence.is_some()
}

impl Care<'_> {
    /// Replaces the atoms for which `idle` holds and, of those too much alike, the later ones.
    pub(super) fn take(&self, atoms: Tensor, idle: impl Fn(usize) -> bool) -> Result<CaredFor> {
        match compares(self.replace, self.max_coherence) {
            true => {
                let like = atom_coherence(&atoms)?.to_vec1::<f64>()?;
                self.take_knowing(atoms, Some(&like), idle)
            }
            false => self.take_knowing(atoms, None, idle),
        }
    }

    /// The same for atoms of which is known how much each is like one before it.
    fn take_knowing(
        &self,
        atoms: Tensor,
        like: Option<&[f64]>,
        idle: impl Fn(usize) -> bool,
    ) -> Result<CaredFor> {
        if self.replace == Replace::None {
            return Ok(CaredFor { atoms, replaced: Vec::new(), coherence: None });
        }
        let n = atoms.dim(0)?;
        let too_like = |j: usize| match (like, self.max_coherence) {
            (Some(like), Some(limit)) => like[j] > limit,
            _ => false,
        };
        let bad: Vec<usize> = (self.n_fixed..n).filter(|&j| idle(j) || too_like(j)).collect();
        if bad.is_empty() {
            let coherence = like.map(largest).transpose()?;
            return Ok(CaredFor { atoms, replaced: bad, coherence });
        }
        let rows = self.new_atoms(bad.len())?;
        let replaced = bad[..rows.dim(0)?].to_vec();
        let atoms = atoms.copy()?;
        for (i, &j) in replaced.iter().enumerate() {
            atoms.slice_set(&rows.narrow(0, i, 1)?.force_contiguous()?, 0, j)?;
        }
        Ok(CaredFor { atoms, replaced, coherence: None })
    }

    /// [`take_knowing`](Self::take_knowing) after a batch, of atoms that no signal has used for
    /// `max_idle`; those that are new have no past. `like` counts where [`compares`] says so.
    pub(crate) fn take_after_batch(
        &self,
        atoms: Tensor,
        like: &[f64],
        idle: &mut Idle,
        max_idle: usize,
        statistics: &Statistics,
    ) -> Result<CaredFor> {
        let like = compares(self.replace, self.max_coherence).then_some(like);
        let cared_for = self.take_knowing(atoms, like, |j| idle.0[j] >= max_idle as u64)?;
        statistics.forget(&cared_for.replaced)?;
        idle.forget(&cared_for.replaced);
        Ok(cared_for)
    }

    /// At most `k` atoms from signals; fewer when there are not so many distinct ones.
    fn new_atoms(&self, k: usize) -> Result<Tensor> {
        let m = self.share.of();
        let limit = self.max_coherence.unwrap_or(DISTINCT);
        // Some are alike or zero: a few times as many as places, and all if those do not do.
        let mut wanted = 4 * k + 256;
        loop {
            let order = match self.replace {
                Replace::None => Vec::new(),
                Replace::Random => self.random(wanted.min(m)),
                Replace::WorstRepresented => {
                    worst(&self.share.gathered(self.squares)?.to_vec1()?, wanted.min(m))
                }
            };
            let rows = distinct(self.share, self.signals, &order, k, limit, self.nonnegative)?;
            if rows.dim(0)? == k || wanted >= m {
                return Ok(rows);
            }
            wanted = wanted.saturating_mul(64);
        }
    }

    /// So many draws of a signal; the same one twice is like itself.
    fn random(&self, wanted: usize) -> Vec<u32> {
        let m = self.share.of() as u64;
        (0..wanted as u64).map(|i| ((u64::from(self.philox.bits(i)) * m) >> 32) as u32).collect()
    }
}

/// The indices of the `wanted` largest, the largest first, of equals the first.
fn worst(squares: &[f64], wanted: usize) -> Vec<u32> {
    let by_error = |&a: &u32, &b: &u32| squares[b as usize].total_cmp(&squares[a as usize]).then(a.cmp(&b));
    let mut order: Vec<u32> = (0..squares.len() as u32).collect();
    if wanted < order.len() {
        order.select_nth_unstable_by(wanted, by_error);
        order.truncate(wanted);
    }
    order.sort_unstable_by(by_error);
    order
}

#[cfg(test)]
mod tests {
    use super::worst;

    #[test]
    fn the_worst_come_first_whether_few_or_all_are_wanted() {
        let squares = [1., 5., 0., 5., 2.];
        let all = worst(&squares, 5);
        assert_eq!(all, [1, 3, 4, 0, 2]);
        for wanted in 0..5 {
            assert_eq!(worst(&squares, wanted), all[..wanted]);
        }
    }
}
