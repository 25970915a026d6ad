//! Which row comes when in an epoch.
//!
//! | order | row at a place | needs |
//! |---|---|---|
//! | as stored | the place | nothing |
//! | shuffled | `Philox { seed, stream: ORDER_STREAM + epoch }.permutation(n_samples)` | 4 bytes a row |
//! | mixed | the rows of 16 pieces, taken from anywhere, in an order of their own | 4 bytes a row of three buffers |
//!
//! A mixed order is for rows that lie in files larger than memory: it reads whole pieces of
//! `mix / 16` rows, each from front to back. The pieces of an epoch are shuffled; 16 of them after
//! the other fill the buffer, whose rows are shuffled in turn. What lies in the buffer follows from
//! seed, epoch and place alone, so that a run can go on from any place.
use chandlery_ops::Philox;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Epoch `e` is shuffled by the Philox stream `ORDER_STREAM + e`.
pub const ORDER_STREAM: u64 = 0x6f72_6465_7200_0000; // "order"
/// The rows of a buffer by the stream `MIX_STREAM + e`, from as many blocks on as rows came before.
const MIX_STREAM: u64 = 0x6d69_7800_0000_0000; // "mix"
/// Pieces that a buffer is filled with.
const PIECES: usize = 16;
/// Buffers whose rows are kept: that in use, and those of which rows are fetched.
const BUFFERS: usize = 3;

/// The orders of epochs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    pub n_samples: usize,
    pub seed: u64,
    pub shuffle: bool,
    /// Rows of the buffer of mixed orders.
    pub mix: Option<usize>,
}

impl Orders {
    pub fn of(self, epoch: u64) -> Order {
        let place = Philox::new(self.seed, ORDER_STREAM.wrapping_add(epoch));
        match (self.shuffle, self.mix) {
            (false, _) => Order::AsStored,
            (true, None) => Order::Shuffled(place.permutation(self.n_samples).into()),
            (true, Some(mix)) => Order::Mixed(Arc::new(Mixed::new(self, mix, epoch, place))),
        }
    }
}

/// The order of an epoch.
#[derive(Debug, Clone)]
pub(crate) enum Order {
    AsStored,
    Shuffled(Arc<[u32]>),
    Mixed(Arc<Mixed>),
}

impl Order {
    /// The rows at these places.
    pub fn rows(&self, places: Range<usize>) -> Vec<u32> {
        match self {
            Self::AsStored => places.map(|row| row as u32).collect(),
            Self::Shuffled(rows) => rows.get(places).unwrap_or_default().to_vec(),
            Self::Mixed(mixed) => mixed.rows(places),
        }
    }

    /// Places from a row to those whose rows should be fetched when it is read; none where they
    /// need not be.
    pub fn ahead(&self) -> Option<usize> {
        match self {
            Self::Mixed(mixed) => Some(PIECES * mixed.piece_rows),
            _ => None,
        }
    }

    /// Rows that lie together and are needed soon after those at `places`; `first` says that nothing
    /// was read before them.
    pub fn soon(&self, places: Range<usize>, first: bool) -> Vec<Range<usize>> {
        match self {
            Self::Mixed(mixed) => mixed.soon(places, first),
            _ => vec![],
        }
    }
}

/// A mixed order.
#[derive(Debug)]
pub(crate) struct Mixed {
    n_samples: usize,
    /// Rows of a piece; the last one of the data may have fewer.
    piece_rows: usize,
    pieces: Vec<u32>,
    /// Which piece in the order is the last one of the data.
    short: usize,
    draws: Philox,
    /// The buffers that were used last, as many as a chunk and what is fetched ahead of it lie in:
    /// the first place of each and its rows.
    buffers: Mutex<VecDeque<(usize, Arc<[u32]>)>>,
}

impl Mixed {
    fn new(orders: Orders, mix: usize, epoch: u64, place: Philox) -> Self {
        let piece_rows = (mix / PIECES).max(1);
        let pieces = place.permutation(orders.n_samples.div_ceil(piece_rows));
        let short = pieces.iter().position(|&piece| piece as usize + 1 == pieces.len()).unwrap_or(0);
        let draws = Philox::new(orders.seed, MIX_STREAM.wrapping_add(epoch));
        let buffers = Mutex::default();
        Self { n_samples: orders.n_samples, piece_rows, pieces, short, draws, buffers }
    }

    /// Rows that the last piece of the data has less than the others.
    fn missing(&self) -> usize {
        self.pieces.len() * self.piece_rows - self.n_samples
    }

    /// The first place of a piece of the order, or the end of all.
    fn start(&self, piece: usize) -> usize {
        let missing = if piece > self.short { self.missing() } else { 0 };
        piece.min(self.pieces.len()) * self.piece_rows - missing
    }

    /// The piece of the order that a place lies in.
    fn piece_at(&self, place: usize) -> usize {
        let piece = place / self.piece_rows;
        if piece < self.short || place < self.start(self.short + 1) {
            return piece;
        }
        (place + self.missing()) / self.piece_rows
    }

    /// The rows at these places before those of each buffer are shuffled: ranges of the data.
    fn stored(&self, places: Range<usize>) -> Vec<Range<usize>> {
        let (mut place, end) = (places.start, places.end.min(self.n_samples));
        let mut ranges = Vec::new();
        while place < end {
            let piece = self.piece_at(place);
            let next = self.start(piece + 1).min(end);
            let first = self.pieces.get(piece).map_or(0, |&of_data| of_data as usize * self.piece_rows)
                + (place - self.start(piece));
            ranges.push(first..first + (next - place));
            place = next;
        }
        ranges
    }

    /// The places of the buffer that a place lies in.
    fn buffer_at(&self, place: usize) -> Range<usize> {
        let first = self.piece_at(place) / PIECES * PIECES;
        self.start(first)..self.start((first + PIECES).min(self.pieces.len()))
    }

    /// The rows of a buffer in their order.
    fn buffer(&self, places: &Range<usize>) -> Arc<[u32]> {
        // A buffer is whole whatever a thread that panicked did.
        let mut last = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = last.iter().find(|(first, _)| *first == places.start) {
            return rows.clone();
        }
        let rows: Vec<u32> =
            self.stored(places.clone()).into_iter().flatten().map(|row| row as u32).collect();
        let mixed = self.draws.advanced(4 * places.start).permutation(rows.len());
        let rows: Arc<[u32]> = mixed.into_iter().filter_map(|at| rows.get(at as usize).copied()).collect();
        last.truncate(BUFFERS - 1);
        last.push_front((places.start, rows.clone()));
        rows
    }

    fn rows(&self, places: Range<usize>) -> Vec<u32> {
        let mut place = places.start;
        let mut rows = Vec::with_capacity(places.len());
        while place < places.end.min(self.n_samples) {
            let buffer = self.buffer_at(place);
            let end = buffer.end.min(places.end);
            let of_buffer = self.buffer(&buffer);
            rows.extend_from_slice(
                of_buffer.get(place - buffer.start..end - buffer.start).unwrap_or_default(),
            );
            place = end;
        }
        rows
    }

    /// What fills the places a buffer further on; at first the buffer of `places` too.
    fn soon(&self, places: Range<usize>, first: bool) -> Vec<Range<usize>> {
        let ahead = PIECES * self.piece_rows;
        let from = if first { self.buffer_at(places.start).start } else { places.start + ahead };
        self.stored(from..places.end + ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(n_samples: usize, mix: usize) -> Orders {
        Orders { n_samples, seed: 5, shuffle: true, mix: Some(mix) }
    }

    #[test]
    fn a_mixed_order_has_each_row_once_and_those_of_a_buffer_together() {
        for (n, mix) in [(1000, 64), (1003, 64), (1023, 320), (50, 64), (7, 1), (1, 16), (100, 100)] {
            let order = orders(n, mix).of(3);
            let rows = order.rows(0..n);
            let mut sorted = rows.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n as u32).collect::<Vec<_>>(), "{n} by {mix}");
            let Order::Mixed(mixed) = &order else { panic!("not mixed") };
            // By hand: the pieces one after the other, of which the last of the data may be short.
            let size = (mix / 16).max(1);
            let of_piece = |&piece: &u32| {
                (piece as usize * size..n.min((piece as usize + 1) * size)).map(|row| row as u32)
            };
            let mut first = 0;
            for pieces in mixed.pieces.chunks(16) {
                let mut want: Vec<u32> = pieces.iter().flat_map(of_piece).collect();
                let mut got = rows[first..first + want.len()].to_vec();
                first += want.len();
                if want.len() > 8 {
                    assert_ne!(got, want, "a buffer that is not mixed");
                }
                want.sort_unstable();
                got.sort_unstable();
                assert_eq!(got, want, "{n} by {mix}");
            }
            // Any part by itself.
            for part in [0..1, n / 3..n, n / 2..n / 2 + n / 4, n..n] {
                assert_eq!(orders(n, mix).of(3).rows(part.clone()), rows[part], "{n} by {mix}");
            }
        }
    }

    #[test]
    fn orders_of_epochs_differ_and_follow_from_the_seed() {
        let rows = |orders: Orders, epoch| orders.of(epoch).rows(0..500);
        assert_eq!(rows(orders(500, 64), 1), rows(orders(500, 64), 1));
        assert_ne!(rows(orders(500, 64), 1), rows(orders(500, 64), 2));
        assert_ne!(rows(orders(500, 64), 1), rows(Orders { seed: 6, ..orders(500, 64) }, 1));
    }

    #[test]
    fn what_is_needed_soon_is_every_row_before_its_buffer_begins() {
        let order = orders(1003, 64).of(0);
        let mut told = vec![false; 1003];
        for (i, first) in (0..1003).step_by(10).enumerate() {
            let places = first..(first + 10).min(1003);
            for row in order.soon(places.clone(), i == 0).into_iter().flatten() {
                told[row] = true;
            }
            assert!(order.rows(places).iter().all(|&row| told[row as usize]), "at {first}");
        }
        assert!(orders(1003, 64).of(0).soon(500..510, true).len() > 15, "all of a buffer at first");
    }
}
