//! Rows that differ.
use super::super::alike;
use super::{Distances, HostRows};
use candle::Result;
use std::hash::{DefaultHasher, Hasher};

/// Rows of which none equals another.
pub(in super::super) struct Unlike {
    /// The first of all rows that each of them stands for, ascending.
    pub firsts: Vec<u32>,
    /// How many it stands for.
    pub counts: Vec<u32>,
    /// The place in both of each of all rows.
    pub places: Vec<u32>,
}

/// The rows that equal each.
pub(in super::super) struct Members {
    /// Where those of each place begin in `rows`, and the end.
    offsets: Vec<usize>,
    rows: Vec<u32>,
}

impl Members {
    /// The rows that the one at a place stands for, ascending.
    pub(in super::super) fn of(&self, place: u32) -> &[u32] {
        &self.rows[self.offsets[place as usize]..self.offsets[place as usize + 1]]
    }
}

impl Unlike {
    /// From the first that equals each of all rows.
    pub(in super::super) fn of_firsts(firsts: &[u32]) -> Self {
        let mut unlike = Self { firsts: vec![], counts: vec![], places: vec![0; firsts.len()] };
        for (row, &first) in (0..).zip(firsts) {
            let place = if first == row {
                unlike.firsts.push(row);
                unlike.counts.push(0);
                unlike.firsts.len() as u32 - 1
            } else {
                // The first of them was there before.
                unlike.places[first as usize]
            };
            unlike.places[row as usize] = place;
            unlike.counts[place as usize] += 1;
        }
        unlike
    }

    /// The rows that they stand for.
    pub(in super::super) fn members(&self) -> Members {
        let mut offsets = Vec::with_capacity(self.counts.len() + 1);
        offsets.push(0);
        let mut end = 0;
        for &count in &self.counts {
            end += count as usize;
            offsets.push(end);
        }
        let (mut next, mut rows) = (offsets.clone(), vec![0; self.places.len()]);
        for (row, &place) in (0..).zip(&self.places) {
            let at = &mut next[place as usize];
            rows[*at] = row;
            *at += 1;
        }
        Members { offsets, rows }
    }
}

impl HostRows {
    /// A number for each of `rows`, which equal ones share: the place of the first of them.
    pub(super) fn firsts(&self, rows: &[u32]) -> Vec<u32> {
        // -0 equals 0.
        let bits = |place: u32| self.row(rows[place as usize] as usize).iter().map(|x| (x + 0.).to_bits());
        let hash = |place: u32| {
            let mut hasher = DefaultHasher::new();
            bits(place).for_each(|bits| hasher.write_u32(bits));
            hasher.finish()
        };
        alike::firsts(rows.len() as u32, hash, |a, b| bits(a).eq(bits(b)))
    }
}

impl Distances {
    /// The rows that differ, of all.
    pub(in super::super) fn unlike(&self) -> Result<&Unlike> {
        let host = self.host()?;
        Ok(self.unlike.get_or_init(|| {
            let all: Vec<u32> = (0..self.n as u32).collect();
            Unlike::of_firsts(&host.firsts(&all))
        }))
    }
}
