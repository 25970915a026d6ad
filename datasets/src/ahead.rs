//! Chunks of rows that are read and sent ahead of their use, across the ends of epochs too.
//!
//! ```text
//! thread   gather 2 │ gather 3 │ gather 4
//! link     copy 1   │ copy 2   │ copy 3
//! device   use 0    │ use 1    │ use 2
//! ```
//!
//! While the last chunks of a shuffled epoch are in use, the first ones of the next epoch follow
//! them: an epoch that begins when the one before has ended finds its rows on the device. What was
//! read for an epoch that does not come is dropped.
//!
//! Of a rank's rows alone the others are neither read nor kept: a chunk has their places, with 0. A
//! minibatch of so few rows that a rank would have none is read whole by all.
use crate::gather::Gatherer;
use crate::order::{Order, Orders};
use crate::source::{copy, row_bytes};
use crate::{Result, Source};
use candle::Tensor;
use chandlery_ops::Group;
use chandlery_ops::core::ChunkUpload;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that come from a disk together at least.
const PAGE: usize = 4096;
/// Chunks that are gathered, or wait to be sent, at a time.
const GATHERED: usize = 2;

/// Some rows of an epoch: places in its order.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub epoch: u64,
    pub order: Order,
    pub range: Range<usize>,
}

impl Part {
    /// The first `n` rows, or all; leaves the others.
    pub fn take(&mut self, n: usize) -> Self {
        let end = self.range.end.min(self.range.start.saturating_add(n));
        let first = Self { range: self.range.start..end, ..self.clone() };
        self.range.start = end;
        first
    }

    /// The rows as the source counts them.
    pub fn rows(&self) -> Vec<u32> {
        self.order.rows(self.range.clone())
    }
}

/// The chunks of one epoch after the other on their way to a device.
#[derive(Debug)]
pub(crate) struct Ahead {
    gatherer: Gatherer,
    upload: ChunkUpload,
    orders: Orders,
    row_bytes: usize,
    /// Rows of a minibatch, and of a chunk.
    batch: usize,
    chunk_rows: usize,
    /// Whose rows of each minibatch are read.
    group: Group,
    /// What is left to gather of an epoch, until that is known to be the last.
    rest: Option<Part>,
    /// Whether the next chunk does not follow the one before.
    turned: bool,
    gathered: VecDeque<Part>,
    sent: Option<Part>,
}

impl Ahead {
    pub fn new(
        rows: Arc<dyn Source>,
        upload: ChunkUpload,
        orders: Orders,
        (batch, chunk_rows): (usize, usize),
    ) -> Result<Self> {
        Ok(Self {
            row_bytes: row_bytes(rows.as_ref()),
            gatherer: Gatherer::spawn(rows)?,
            upload,
            orders,
            batch,
            chunk_rows,
            group: Group::single(),
            rest: None,
            turned: true,
            gathered: VecDeque::new(),
            sent: None,
        })
    }

    /// Turns to `epoch` from row `start` of its order on, a multiple of `batch`, for this rank's
    /// rows of each minibatch. Nothing is read anew if these are the rows that come next anyway.
    pub fn begin(&mut self, epoch: u64, start: usize, group: &Group) -> Result<()> {
        let next = self.sent.as_ref().or(self.gathered.front()).or(self.rest.as_ref());
        let seat = |group: &Group| (group.rank(), group.world());
        if next.is_some_and(|next| (next.epoch, next.range.start) == (epoch, start))
            && seat(&self.group) == seat(group)
        {
            return Ok(());
        }
        self.drop_all()?;
        self.group = group.clone();
        self.rest = Some(Part { epoch, order: self.orders.of(epoch), range: start..self.orders.n_samples });
        Ok(())
    }

    /// The next chunk of `epoch`, none at its end; sees to it that the one after is on its way.
    pub fn receive(&mut self, epoch: u64) -> Result<Option<(Tensor, Part)>> {
        if self.sent.is_none() {
            self.send(epoch)?;
        }
        let Some(part) = self.sent.take_if(|part| part.epoch == epoch) else { return Ok(None) };
        let rows = self.upload.receive()?;
        // Overwrites the chunk before this one, whose minibatches have all been handed out and
        // queued.
        self.send(epoch)?;
        Ok(Some((rows, part)))
    }

    /// Sends the next chunk, while `epoch` is under way, and has the one after gathered.
    fn send(&mut self, epoch: u64) -> Result<()> {
        self.ask()?;
        let Some(part) = self.gathered.pop_front() else { return Ok(()) };
        match self.send_part(&part) {
            Ok(()) => self.sent = Some(part),
            Err(error) if part.epoch == epoch => return Err(error),
            // The next epoch will be read again, and fail, when it begins.
            Err(_) => self.drop_all()?,
        }
        Ok(())
    }

    fn send_part(&mut self, part: &Part) -> Result<()> {
        let bytes = self.gatherer.receive()?;
        let own = self.own_places(&part.range);
        self.upload.send(part.range.len(), &mut |staging: &mut [u8]| {
            let mut from = bytes.as_slice();
            let mut done = 0;
            for places in &own {
                let at = |place: usize| (place - part.range.start) * self.row_bytes;
                let (first, end) = (at(places.start), at(places.end));
                let (rows, rest) = from.split_at(end - first);
                // What others have, and then these rows.
                staging[done..first].fill(0);
                copy(rows, &mut staging[first..end]);
                (from, done) = (rest, end);
            }
            staging[done..].fill(0);
            Ok(())
        })?;
        self.gatherer.recycle(bytes);
        Ok(())
    }

    /// The places of this rank's rows among those of whole minibatches, one range for all of them
    /// where it is alone.
    fn own_places(&self, places: &Range<usize>) -> Vec<Range<usize>> {
        if self.group.is_single() {
            return vec![places.clone()];
        }
        let minibatches = places.clone().step_by(self.batch);
        let own = minibatches.map(|first| {
            let n = self.batch.min(places.end - first);
            // Of few rows trainers may take all on every rank.
            let all_have = !self.group.rows_of(self.group.world() - 1, n).is_empty();
            let own = if all_have { self.group.rows(n) } else { 0..n };
            first + own.start..first + own.end
        });
        own.filter(|own| !own.is_empty()).collect()
    }

    /// Rows that lie together and are needed soon after those of a part; `first` says that nothing
    /// was read before them.
    fn soon(&self, part: &Part, first: bool) -> Vec<Range<usize>> {
        if self.group.is_single() {
            return part.order.soon(part.range.clone(), first);
        }
        let Some(ahead) = part.order.ahead() else { return vec![] };
        // Whole minibatches, of which this rank's rows are known.
        let ahead = ahead.next_multiple_of(self.batch);
        let from = if first { part.range.start } else { part.range.start + ahead };
        let to = self.orders.n_samples.min(part.range.end + ahead);
        let own = self.own_places(&(from.min(to)..to));
        let mut rows: Vec<u32> = own.into_iter().flat_map(|places| part.order.rows(places)).collect();
        rows.sort_unstable();
        let mut together: Vec<Range<usize>> = vec![];
        for row in rows.into_iter().map(|row| row as usize) {
            match together.last_mut() {
                // The page that ends one has the other, too.
                Some(last) if (row - last.end) * self.row_bytes < PAGE => last.end = row + 1,
                _ => together.push(row..row + 1),
            }
        }
        together
    }

    /// Asks for chunks: one is gathered and waits while another is being gathered.
    fn ask(&mut self) -> Result<()> {
        while self.gathered.len() < GATHERED {
            let Some(rest) = &mut self.rest else { break };
            if rest.range.is_empty() {
                // Who does not shuffle passes over the rows once, for evaluation.
                let epoch = rest.epoch.wrapping_add(1);
                let next = || Part { epoch, order: self.orders.of(epoch), range: 0..self.orders.n_samples };
                self.rest = self.orders.shuffle.then(next);
                self.turned = true;
                continue;
            }
            let part = rest.take(self.chunk_rows);
            let turned = std::mem::replace(&mut self.turned, false);
            let own = self.own_places(&part.range);
            let rows = own.into_iter().flat_map(|places| part.order.rows(places)).collect();
            self.gatherer.ask(rows, self.soon(&part, turned))?;
            self.gathered.push_back(part);
        }
        Ok(())
    }

    fn drop_all(&mut self) -> Result<()> {
        (self.rest, self.sent, self.turned) = (None, None, true);
        self.gathered.clear();
        self.gatherer.discard()?;
        while self.upload.waiting() > 0 {
            self.upload.receive()?;
        }
        Ok(())
    }
}
