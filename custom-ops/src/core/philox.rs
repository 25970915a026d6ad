//! Philox4x32-10, the only source of random bits.
//!
//! A block of four 32-bit words is a function of a key and a counter, ten rounds of
//!
//! ```text
//! (c0, c1, c2, c3) ← (hi(M1·c2) ^ c1 ^ k0,  lo(M1·c2),  hi(M0·c0) ^ c3 ^ k1,  lo(M0·c0))
//! (k0, k1)         ← (k0 + W0, k1 + W1)
//! ```
//!
//! | symbol      | field                        | value                          |
//! |-------------|------------------------------|--------------------------------|
//! | `k0 k1`     | [`Philox::seed`]             | low and high word              |
//! | `c0 c1`     | [`Philox::offset`] + block   | low and high word              |
//! | `c2 c3`     | [`Philox::stream`]           | low and high word              |
//! | `M0 M1`     |                              | `0xD2511F53`, `0xCD9E8D57`     |
//! | `W0 W1`     |                              | `0x9E3779B9`, `0xBB67AE85`     |
//!
//! There is no state: element `e` of a tensor of draws takes word `e % 4` of block
//! `offset + e / 4`, on any thread of any device. `kernels/core/philox.cuh` is the same function.
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
//! section 3.3; the layout of key and counter is specific to this crate.
//!
//! ```
//! use chandlery_ops::Philox;
//! let draws = Philox::new(7, 0);
//! // Element 6 is word 2 of block 1, and ten elements use three blocks.
//! assert_eq!(draws.bits(6), draws.block(1)[2]);
//! assert_eq!(draws.advanced(10).bits(0), draws.bits(12));
//! ```
use rand_core::{RngCore, SeedableRng};
use std::collections::HashMap;

const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;
const ROUNDS: usize = 10;

/// Blocks that [`Philox::tile`] makes at once.
pub(crate) const BLOCKS: usize = 32;
/// Elements of that many blocks.
pub(crate) const TILE: usize = 4 * BLOCKS;

/// A place in the random sequence: the same seed, stream and offset give the same draws on every
/// device.
///
/// Streams of one seed are independent; give each use its own (initial weights, order of rows,
/// units of a layer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Philox {
    /// The key. Any value; sequences of different seeds are independent.
    pub seed: u64,
    /// The upper half of the counter, one value for each use of the seed.
    pub stream: u64,
    /// The lower half of the counter, in blocks of four draws; wraps around.
    pub offset: u64,
}

impl Philox {
    /// The start of `stream` under `seed`.
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream, offset: 0 }
    }

    /// The place after the blocks that `n_elements` draws use: `⌈n_elements / 4⌉` blocks further.
    #[must_use]
    pub fn advanced(self, n_elements: usize) -> Self {
        self.skipped(n_elements.div_ceil(4) as u64)
    }

    /// The place `blocks` further on.
    #[must_use]
    pub(crate) const fn skipped(self, blocks: u64) -> Self {
        Self { offset: self.offset.wrapping_add(blocks), ..self }
    }

    /// The four words of block `index`, counted from `offset`.
    pub fn block(&self, index: u64) -> [u32; 4] {
        self.words(index)
    }

    /// The word of one element: `block(element / 4)[element % 4]`.
    pub fn bits(&self, element: u64) -> u32 {
        self.words(element / 4)[(element % 4) as usize]
    }

    /// A random order of `0..n`: each of the `n!` orders is equally likely.
    ///
    /// The Fisher-Yates shuffle from the end, `for i in (1..n).rev(): swap(i, below(i + 1))`, where
    /// `below` is Lemire's unbiased multiply-and-reject method ("Fast random integer generation in
    /// an interval", TOMACS 2019) and takes the words of this place in order, from element 0. The
    /// result is part of the format of checkpoints: the same place gives the same order in every
    /// version. Words can be rejected, so the number of words used varies (it is at least `n - 1`).
    /// Give each order its own stream.
    ///
    /// # Panics
    /// When `n` is above 2³².
    pub fn permutation(&self, n: usize) -> Vec<u32> {
        assert!(n as u64 <= 1 << 32, "Philox::permutation: n must be at most 2^32, got {n}");
        let mut order: Vec<u32> = (0..n as u64).map(|i| i as u32).collect();
        let mut words = (0..).flat_map(|block| self.words(block));
        for i in (1..n).rev() {
            let j = below(i as u64 + 1, &mut words);
            order.swap(i, j as usize);
        }
        order
    }

    /// `k` of `0..n` without replacement, each set of `k` equally likely: the last `k` places of
    /// [`permutation`](Self::permutation) from the last on, or all of them where there are fewer.
    /// In time and memory of `k`, whatever `n` is.
    ///
    /// # Panics
    /// When `n` is above 2³².
    pub fn sample(&self, n: usize, k: usize) -> Vec<u32> {
        assert!(n as u64 <= 1 << 32, "Philox::sample: n must be at most 2^32, got {n}");
        let mut words = (0..).flat_map(|block| self.words(block));
        // What lies at places that are not their own number.
        let mut moved = HashMap::new();
        let mut drawn = Vec::with_capacity(k.min(n));
        for i in (n.saturating_sub(k)..n).rev() {
            let j = if i > 0 { below(i as u64 + 1, &mut words) as usize } else { 0 };
            let own = moved.remove(&i).unwrap_or(i as u32);
            drawn.push(if i == j { own } else { moved.insert(j, own).unwrap_or(j as u32) });
        }
        drawn
    }

    /// The words from here on, for what draws from a `rand` generator.
    pub const fn rng(self) -> PhiloxRng {
        PhiloxRng { place: self, words: [0; 4], n_used: 4 }
    }

    #[inline(always)]
    fn words(&self, index: u64) -> [u32; 4] {
        let at = self.offset.wrapping_add(index);
        let mut c = [at as u32, (at >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        let (mut k0, mut k1) = (self.seed as u32, (self.seed >> 32) as u32);
        for _ in 0..ROUNDS {
            let p0 = u64::from(M0) * u64::from(c[0]);
            let p1 = u64::from(M1) * u64::from(c[2]);
            c = [(p1 >> 32) as u32 ^ c[1] ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k1, p0 as u32];
            (k0, k1) = (k0.wrapping_add(W0), k1.wrapping_add(W1));
        }
        c
    }

    /// Word `w` of block `first + b` at `[w][b]`: [`Self::words`] turned so that the compiler can
    /// put one block in each lane of a vector.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "a lane is an index into four arrays")]
    pub(crate) fn tile(&self, first: u64) -> [[u32; BLOCKS]; 4] {
        let mut out = [[0; BLOCKS]; 4];
        for b in 0..BLOCKS {
            let c = self.words(first.wrapping_add(b as u64));
            out[0][b] = c[0];
            out[1][b] = c[1];
            out[2][b] = c[2];
            out[3][b] = c[3];
        }
        out
    }
}

/// The words of a [`Philox`] in order, as a generator of `rand`: its distributions and shuffles
/// draw from it.
///
/// `next_u32` gives `bits(0)`, `bits(1)`, …; a `u64` is two of these, the low word first, and bytes
/// are those of words from the lowest on. What a distribution makes of them is up to the version of
/// `rand`.
///
/// ```
/// use chandlery_ops::Philox;
/// use rand::{Rng, RngCore, seq::SliceRandom};
/// let place = Philox::new(7, 0);
/// let mut rng = place.rng();
/// assert_eq!([rng.next_u32(), rng.next_u32()], [place.bits(0), place.bits(1)]);
/// let mut cards: Vec<u8> = (0..52).collect();
/// cards.shuffle(&mut rng);
/// assert!((0. ..1.).contains(&rng.random::<f64>()));
/// // The next block on, where nothing was drawn yet.
/// assert!(rng.place().offset > place.offset);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhiloxRng {
    /// The block after `words`.
    place: Philox,
    words: [u32; 4],
    /// Words of them that were given.
    n_used: usize,
}

impl PhiloxRng {
    /// The first place of which nothing was drawn: what is left of a block is passed over.
    pub const fn place(&self) -> Philox {
        self.place
    }
}

impl From<Philox> for PhiloxRng {
    fn from(place: Philox) -> Self {
        place.rng()
    }
}

impl RngCore for PhiloxRng {
    fn next_u32(&mut self) -> u32 {
        if self.n_used == self.words.len() {
            self.words = self.place.block(0);
            self.place = self.place.skipped(1);
            self.n_used = 0;
        }
        self.n_used += 1;
        self.words[self.n_used - 1]
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_u32(self)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(4) {
            chunk.copy_from_slice(&self.next_u32().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// From seed, stream and offset, eight bytes each, the lowest first. `seed_from_u64(seed)` is the
/// start of stream 0.
impl SeedableRng for PhiloxRng {
    type Seed = [u8; 24];

    fn from_seed(bytes: Self::Seed) -> Self {
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [seed, stream, offset] = words;
        Philox { seed, stream, offset }.rng()
    }

    fn seed_from_u64(seed: u64) -> Self {
        Philox::new(seed, 0).rng()
    }
}

/// A uniform draw from `0..n` for `1 ≤ n ≤ 2³²`: the upper word of `n · word`, without the words
/// that would favour some results.
fn below(n: u64, words: &mut impl Iterator<Item = u32>) -> u32 {
    let mut draw = || n * u64::from(words.next().unwrap_or(0));
    let mut product = draw();
    if u64::from(product as u32) < n {
        let uneven = (1 << 32) % n; // this many of the 2^32 words are too many
        while u64::from(product as u32) < uneven {
            product = draw();
        }
    }
    (product >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn words_that_would_favour_some_results_are_passed_over() {
        // 2^32 = 3 · 2^30 + 2^30: of 2^32 words 2^30 are too many, those with 3 · word ≡ 0 mod 4.
        let mut words = [0, 4, 5, 6].into_iter();
        assert_eq!(below(3 << 30, &mut words), 3);
        assert_eq!(words.next(), Some(6), "two words were rejected and one used");
        // Powers of two divide 2^32: every word counts.
        assert_eq!(below(1 << 32, &mut [0xffff_fff0].into_iter()), 0xffff_fff0);
        assert_eq!(below(4, &mut [0x8000_0000].into_iter()), 2);
    }
}
