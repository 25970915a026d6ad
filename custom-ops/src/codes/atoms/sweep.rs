//! The CPU twin of [`update_atoms`](super::update_atoms): the atoms of a group, and the error after
//! it.
use super::{AtomUpdate, GRAIN, axpy, dot, dots, normalize, weighted_sum};
use crate::core::fused::Fused;
use candle::WithDType;
use rayon::prelude::*;

/// Signals that one task takes when new coefficients are put back or errors brought up to date.
const SIGNALS: usize = 1024;

/// Which atoms each signal uses.
pub(super) struct Codes<'a> {
    pub s: usize,
    pub indices: &'a [u32],
    pub count: &'a [u32],
}

/// What the atoms of a group read.
pub(super) struct Sweep<'a, T> {
    pub s: usize,
    pub p: usize,
    pub update: AtomUpdate,
    pub error: &'a [T],
    /// Atoms before the group, updated.
    pub done: &'a [T],
    /// All atoms as they came.
    pub d_in: &'a [T],
}

impl<T: Fused> Sweep<'_, T> {
    /// Updates atom `j`, whose row is still the old one; `x` are the coefficients of the entries
    /// `list`.
    pub(super) fn atom(&self, j: usize, d: &mut [T], list: &[u32], x: &mut [T]) {
        if list.is_empty() {
            return;
        }
        let (s, p) = (self.s, self.p);
        let signals: Vec<u32> = list.iter().map(|&e| e / s as u32).collect();
        let (x_old, old) = (x.to_vec(), d.to_vec());
        let mut g = vec![T::zero(); p];
        for _ in 0..self.update.power_steps.max(1) {
            // F·x = E_I·x + (x_old·x) d_old
            weighted_sum(self.error, &signals, x, &mut g);
            axpy(dot(x, &x_old), &old, &mut g);
            self.penalize(j, d, &mut g);
            if !normalize(&mut g) {
                return;
            }
            let change: f64 = d.iter().zip(&g).map(|(d, g)| (g.to_f64() - d.to_f64()).powi(2)).sum();
            d.copy_from_slice(&g);
            if self.update.power_steps == 0 {
                return;
            }
            all_dots(self.error, &signals, d, x);
            axpy(dot(&old, d), &x_old, x);
            if change <= self.update.tolerance * self.update.tolerance {
                return;
            }
        }
    }

    /// `g ← g − 2γ Σ_{l≠j} (d_l·d) d_l`.
    fn penalize(&self, j: usize, d: &[T], g: &mut [T]) {
        let (p, gamma) = (self.p, self.update.coherence_penalty);
        if gamma == 0. {
            return;
        }
        let others = self.done.chunks(p).chain(self.d_in.chunks(p).skip(self.done.len() / p));
        for (l, other) in others.enumerate() {
            if l != j {
                axpy(T::from_f64(-2. * gamma) * dot(other, d), other, g);
            }
        }
    }
}

/// [`dots`] on several threads where that is worth it.
fn all_dots<T: Fused>(rows: &[T], list: &[u32], d: &[T], out: &mut [T]) {
    const STEP: usize = 512;
    if list.len() > STEP && list.len() * d.len() >= 2 * GRAIN {
        list.par_chunks(STEP).zip(out.par_chunks_mut(STEP)).for_each(|(list, out)| dots(rows, list, d, out));
    } else {
        dots(rows, list, d, out);
    }
}

/// `x_out[listed[k]] ← moved[k]`, where each of `lists` is a range of ascending entries.
pub(super) fn write_back<T: WithDType>(
    x_out: &mut [T],
    s: usize,
    listed: &[u32],
    moved: &[T],
    lists: &[std::ops::Range<usize>],
) {
    if listed.len() < GRAIN {
        for (&e, &x) in listed.iter().zip(moved) {
            x_out[e as usize] = x;
        }
        return;
    }
    // Some signals at a time: in every list they are one stretch.
    x_out.par_chunks_mut(SIGNALS * s).enumerate().for_each(|(c, x_out)| {
        let (first, end) = (c * SIGNALS * s, c * SIGNALS * s + x_out.len());
        for list in lists {
            let (entries, moved) = (&listed[list.clone()], &moved[list.clone()]);
            let start = entries.partition_point(|&e| (e as usize) < first);
            let here = entries[start..].iter().zip(&moved[start..]);
            for (&e, &x) in here.take_while(|&(&e, _)| (e as usize) < end) {
                x_out[e as usize - first] = x;
            }
        }
    });
}

/// What a group changed: `E ← E + x_old d_old − x_new d_new` brings the error up to date.
pub(super) struct Change<'a, T> {
    pub first: usize,
    pub p: usize,
    /// Rows of the group.
    pub old: &'a [T],
    pub new: &'a [T],
    pub x_in: &'a [T],
    pub x_out: &'a [T],
}

impl<T: Fused> Change<'_, T> {
    #[inline(always)]
    fn entry(&self, e: usize, row: usize, error: &mut [T]) {
        let atom = row * self.p..(row + 1) * self.p;
        axpy(self.x_in[e], &self.old[atom.clone()], error);
        axpy(T::zero() - self.x_out[e], &self.new[atom], error);
    }

    /// A group of one atom. `error` begins at signal `first`.
    pub(super) fn follow_atom(&self, error: &mut [T], first: usize, list: &[u32], s: usize) {
        // Between two signals: one that names the atom twice is not parted.
        let signal = list.get(list.len() / 2).map_or(0, |&e| e as usize / s.max(1));
        let half = list.partition_point(|&e| (e as usize / s) < signal);
        if half > 0 && list.len() * self.p >= 2 * GRAIN {
            let (low, high) = list.split_at(half);
            let middle = signal;
            let (low_error, high_error) = error.split_at_mut((middle - first) * self.p);
            rayon::join(
                || self.follow_atom(low_error, first, low, s),
                || self.follow_atom(high_error, middle, high, s),
            );
            return;
        }
        for &e in list {
            let at = (e as usize / s - first) * self.p;
            self.entry(e as usize, 0, &mut error[at..at + self.p]);
        }
    }

    /// A group of many: signal by signal, in the order of its code.
    pub(super) fn follow_group(&self, error: &mut [T], codes: &Codes) {
        let (p, s) = (self.p, codes.s);
        let group = self.first..self.first + self.old.len() / p;
        error.par_chunks_mut(SIGNALS * p).enumerate().for_each(|(c, error)| {
            for (i, error) in error.chunks_exact_mut(p).enumerate() {
                let i = c * SIGNALS + i;
                for e in i * s..i * s + (codes.count[i] as usize).min(s) {
                    let atom = codes.indices[e] as usize;
                    if group.contains(&atom) {
                        self.entry(e, atom - group.start, error);
                    }
                }
            }
        });
    }
}
