//! Rows divided over the ranks of a group, and what the ranks put together again.
use candle::{DType, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::codes::SparseCodes;
use std::ops::Range;

/// A rank's share of rows that all ranks of a group have between them, [`Group::rows`].
///
/// Rows of any model are encoded together so: each rank encodes its own, and all get the codes of
/// all, in order.
///
/// ```
/// use candle::{Device::Cpu, Result};
/// use chandlery::rbm::{Rbm, RbmConfig};
/// use chandlery::{Encode, Group, Philox, Share};
///
/// # fn main() -> Result<()> {
/// let rbm = Rbm::init(RbmConfig::new(6, 4), Philox::new(0, 0), &Cpu)?;
/// let rows = chandlery_ops::core::uniform((10, 6), &Cpu, Philox::new(0, 1))?;
/// let made = Group::on_threads(Group::threads(3), |group| {
///     let share = Share::new(group, rows.dim(0)?);
///     share.gathered(&rbm.encode(&share.own(&rows)?)?)?.to_vec2::<f32>()
/// });
/// for codes in made {
///     assert_eq!(codes?, rbm.encode(&rows)?.to_vec2::<f32>()?);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Share {
    group: Group,
    rows: Range<usize>,
    of: usize,
}

impl Share {
    /// This rank's share of so many rows; it may have none.
    pub fn new(group: &Group, of: usize) -> Self {
        Self { group: group.clone(), rows: group.rows(of), of }
    }

    /// The ranks that have rows.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Where this rank's rows are among those of all.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Rows of all ranks.
    pub fn of(&self) -> usize {
        self.of
    }

    /// This rank's rows of the rows of all, a view.
    ///
    /// # Errors
    /// When there are fewer rows.
    pub fn own(&self, all: &Tensor) -> Result<Tensor> {
        all.narrow(0, self.rows.start, self.rows.len())
    }

    /// What each rank has of its rows, in the order of rows, on every rank: `[of, …]` from each
    /// rank's `[rows, …]`, of a type that ranks exchange. Cost: an all-gather of the result.
    ///
    /// # Errors
    /// When `own` has not as many rows as the share, the ranks differ in shape or type, or one is
    /// gone.
    pub fn gathered(&self, own: &Tensor) -> Result<Tensor> {
        self.expect(own)?;
        if self.group.is_single() {
            return Ok(own.clone());
        }
        // The first rank has most.
        let (most, world) = (self.group.rows_of(0, self.of).len(), self.group.world());
        let zeros = |rows: usize| {
            let mut shape = own.dims().to_vec();
            shape.splice(..1, [rows]);
            Tensor::zeros(shape, own.dtype(), own.device())
        };
        let (part, all) = (zeros(most)?, zeros(world * most)?);
        if !self.rows.is_empty() {
            part.slice_set(&own.contiguous()?, 0, 0)?;
        }
        self.group.all_gather_(&all, &part)?;
        let of = |rank: usize| all.narrow(0, rank * most, self.group.rows_of(rank, self.of).len());
        Tensor::cat(&(0..world).map(of).collect::<Result<Vec<_>>>()?, 0)
    }

    /// The same of sparse codes, as wide as the widest of any rank. Waits for the device.
    ///
    /// # Errors
    /// As [`gathered`](Self::gathered).
    pub fn gathered_codes(&self, own: &SparseCodes) -> Result<SparseCodes> {
        let width = self.widest(own)?;
        let entries = |t: &Tensor| self.gathered(&padded(t, width)?);
        Ok(SparseCodes {
            indices: entries(&own.indices)?,
            values: entries(&own.values)?,
            count: self.gathered(&own.count)?,
            n_atoms: own.n_atoms,
        })
    }

    /// The largest width of the codes of all ranks. Waits for the device.
    pub(crate) fn widest(&self, own: &SparseCodes) -> Result<usize> {
        if self.group.is_single() {
            return Ok(own.width());
        }
        let most = Tensor::new(&[own.width() as f64], own.count.device())?;
        joined_(&self.group, &most, 0..1)?;
        Ok(most.get(0)?.to_scalar::<f64>()? as usize)
    }

    /// The rows at places `at` among those of all ranks, on every rank: `[at.len(), …]` of finite
    /// numbers from each rank's `[rows, …]`. All ranks name the same places. Cost: an all-reduce of
    /// the result.
    pub(crate) fn rows_at(&self, own: &Tensor, at: &[u32]) -> Result<Tensor> {
        self.expect(own)?;
        if self.group.is_single() {
            return gather_rows(own, at);
        }
        let (mut from, mut place) = (vec![], vec![]);
        for &row in at {
            let is_own = self.rows.contains(&(row as usize));
            // Rows of other ranks are 0 here: the row behind those that this rank has.
            place.push(if is_own { from.len() as u32 } else { u32::MAX });
            if is_own {
                from.push(row - self.rows.start as u32);
            }
        }
        let zero = from.len() as u32;
        place.iter_mut().for_each(|place| *place = (*place).min(zero));
        let mut shape = own.dims().to_vec();
        shape.splice(..1, [1]);
        let zero = Tensor::zeros(shape, own.dtype(), own.device())?;
        let known = if from.is_empty() { zero } else { Tensor::cat(&[gather_rows(own, &from)?, zero], 0)? };
        let rows = gather_rows(&known, &place)?;
        self.group.all_reduce_(&rows)?;
        Ok(rows)
    }

    /// Gives rows that ranks have, `own` of each, the first of all of them, to the rows `theirs` of
    /// another share of as many or fewer. Cost: an all-gather.
    pub(crate) fn lend(&self, own: &Tensor, to: &Self, theirs: &Tensor) -> Result<()> {
        let all = self.gathered(own)?;
        if to.rows.is_empty() {
            return Ok(());
        }
        theirs.slice_set(&to.own(&all)?, 0, 0)
    }

    /// Takes back what [`lend`](Self::lend) gave.
    pub(crate) fn take_back(&self, own: &Tensor, from: &Self, theirs: &Tensor) -> Result<()> {
        let all = from.gathered(theirs)?;
        match self.rows.end.min(from.of).checked_sub(self.rows.start) {
            None | Some(0) => Ok(()),
            Some(n) => own.slice_set(&all.narrow(0, self.rows.start, n)?, 0, 0),
        }
    }

    /// Refuses too few rows, which are called `what`, to give each rank of the group some.
    pub(crate) fn check(trainer: &str, group: &Group, what: &str, of: usize) -> Result<()> {
        let least = 4 * (group.world() - 1) + 1;
        if of < least {
            candle::bail!(
                "{trainer}::in_group: {what} must be at least {least} for {} ranks, got {of}",
                group.world()
            )
        }
        Ok(())
    }

    fn expect(&self, own: &Tensor) -> Result<()> {
        if own.dims().first() != Some(&self.rows.len()) {
            candle::bail!(
                "Share: rank {} must have {} rows of {}, got shape {:?}",
                self.group.rank(),
                self.rows.len(),
                self.of,
                own.dims()
            )
        }
        Ok(())
    }
}

/// Entries of codes, `[rows, s]`, with 0 beyond them up to a width.
pub(crate) fn padded(entries: &Tensor, width: usize) -> Result<Tensor> {
    entries.pad_with_zeros(1, 0, width.saturating_sub(entries.dim(1)?))
}

/// Makes the reports of all ranks, f64 `[n]` each, into one of all their rows: sums, and of the
/// numbers within `largest` the largest.
pub(crate) fn joined_(group: &Group, report: &Tensor, largest: Range<usize>) -> Result<()> {
    if group.is_single() {
        return Ok(());
    }
    let all = Tensor::zeros((group.world(), report.elem_count()), DType::F64, report.device())?;
    group.all_gather_(&all, report)?;
    let most = all.narrow(1, largest.start, largest.len())?.contiguous()?.max(0)?;
    report.slice_set(&all.sum(0)?, 0, 0)?;
    report.slice_set(&most, 0, largest.start)
}

/// A copy of the first rank's tensor, on every rank; the tensor itself where a rank is alone.
pub(crate) fn of_first(group: &Group, t: &Tensor) -> Result<Tensor> {
    if group.is_single() {
        return Ok(t.clone());
    }
    let copy = t.copy()?;
    group.broadcast_(&copy, 0)?;
    Ok(copy)
}
