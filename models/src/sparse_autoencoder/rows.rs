//! The rows that a cost is over: a rank's share of them, and how many at a time are on the device.
use crate::share::Share;
use candle::{Result, Tensor};
use chandlery_ops::Group;

/// A rank's rows.
pub(super) struct Rows {
    share: Share,
    place: Place,
}

/// Where they are.
enum Place {
    /// Prepared and on the device.
    Resident(Tensor),
    /// Raw, where the caller has them; so many at a time go to the device.
    Chunked { raw: Tensor, chunk: usize },
}

impl Rows {
    /// Those of this rank, of raw `rows` of all ranks; without `chunk`, `prepared` makes of them
    /// what stays on the device.
    pub(super) fn new(
        group: &Group,
        rows: &Tensor,
        chunk: Option<usize>,
        prepared: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let share = Share::new(group, rows.dim(0)?);
        let raw = share.own(rows)?;
        let place = match chunk {
            None => Place::Resident(prepared(&raw)?),
            Some(chunk) => Place::Chunked { raw, chunk },
        };
        Ok(Self { share, place })
    }

    /// What a rank of a group has of rows that it had alone.
    pub(super) fn in_group(self, group: &Group) -> Result<Self> {
        if !self.group().is_single() {
            candle::bail!("Cost::in_group: the cost must not be in a group yet")
        }
        if group.is_single() {
            return Ok(self);
        }
        let share = Share::new(group, self.of_all());
        let place = match self.place {
            // Of their own memory, so that the rows of other ranks need none any more.
            Place::Resident(rows) => Place::Resident(share.own(&rows)?.force_contiguous()?),
            Place::Chunked { raw, chunk } => Place::Chunked { raw: share.own(&raw)?, chunk },
        };
        Ok(Self { share, place })
    }

    /// The ranks that have rows.
    pub(super) fn group(&self) -> &Group {
        self.share.group()
    }

    /// How many there are, those of all ranks.
    pub(super) fn of_all(&self) -> usize {
        self.share.of()
    }

    /// How many this rank has.
    pub(super) fn own(&self) -> usize {
        self.share.rows().len()
    }

    /// All of them, prepared, of a lone rank that has them on the device.
    pub(super) fn resident(&self) -> Option<&Tensor> {
        match &self.place {
            Place::Resident(rows) if self.group().is_single() => Some(rows),
            _ => None,
        }
    }

    /// This rank's rows of as many raw rows of all ranks.
    ///
    /// # Errors
    /// When there are not as many.
    pub(super) fn own_of(&self, rows: &Tensor) -> Result<Tensor> {
        match rows.dim(0)? == self.of_all() {
            true => self.share.own(rows),
            false => candle::bail!("Cost: rows must be {}, got {}", self.of_all(), rows.dim(0)?),
        }
    }

    /// Takes this rank's rows, prepared, in place of those on the device.
    pub(super) fn put(&mut self, rows: Tensor) {
        self.place = Place::Resident(rows);
    }

    /// Calls `f` with each chunk of this rank's rows, prepared; none is empty.
    pub(super) fn each_chunk(
        &self,
        prepared: impl Fn(&Tensor) -> Result<Tensor>,
        mut f: impl FnMut(&Tensor) -> Result<()>,
    ) -> Result<()> {
        let n = self.own();
        match &self.place {
            Place::Resident(_) if n == 0 => Ok(()),
            Place::Resident(rows) => f(rows),
            Place::Chunked { raw, chunk } => (0..n)
                .step_by(*chunk)
                .try_for_each(|start| f(&prepared(&raw.narrow(0, start, (*chunk).min(n - start))?)?)),
        }
    }
}
