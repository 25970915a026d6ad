//! Where the solvers find rows of a Gram matrix: all of them made before, or each when it is first
//! asked for.
use super::lanes::{Rows, subtract_rows};
use crate::core::real::Real;

/// All rows, in the order of the atoms.
#[derive(Clone, Copy)]
pub(super) struct AllRows<'a, T> {
    pub entries: &'a [T],
    pub stride: usize,
}

impl<T> Rows<T> for AllRows<'_, T> {
    fn place(&mut self, j: usize) -> usize {
        j
    }

    fn entries(&self) -> &[T] {
        self.entries
    }

    fn stride(&self) -> usize {
        self.stride
    }
}

/// The place of a row that was not made yet.
const ABSENT: u32 = u32::MAX;

/// Rows of the Gram matrix of the observed samples of a dictionary, made when they are first asked
/// for: a signal asks for those of the atoms that were ever in its support. Its memory serves one
/// signal after the other.
pub(super) struct LazyRows<'a, T, const W: usize> {
    /// `Bᵀ`, `[p, padded]`
    columns: &'a [T],
    padded: usize,
    /// The observed samples.
    samples: Vec<u32>,
    /// `1 / wⱼ`, 0 for zero atoms and padding
    inverse: Vec<T>,
    zeros: Vec<T>,
    /// Of each atom.
    places: Vec<u32>,
    /// The atoms of the rows, and the rows.
    atoms: Vec<u32>,
    entries: Vec<T>,
    /// An atom's values in the observed samples, times -1.
    values: Vec<T>,
}

impl<'a, T: Real, const W: usize> LazyRows<'a, T, W> {
    pub(super) fn new(columns: &'a [T], n: usize, padded: usize) -> Self {
        Self {
            columns,
            padded,
            samples: vec![],
            inverse: vec![],
            zeros: vec![T::zero(); padded],
            places: vec![ABSENT; n],
            atoms: vec![],
            entries: vec![],
            values: vec![],
        }
    }

    /// Begins with another signal.
    pub(super) fn start(&mut self, samples: &[u32], inverse: &[T]) {
        self.atoms.drain(..).for_each(|j| self.places[j as usize] = ABSENT);
        self.samples.clear();
        self.samples.extend(samples);
        self.inverse.clear();
        self.inverse.extend(inverse);
    }
}

impl<T: Real, const W: usize> Rows<T> for &mut LazyRows<'_, T, W> {
    fn place(&mut self, j: usize) -> usize {
        if self.places[j] != ABSENT {
            return self.places[j] as usize;
        }
        let place = self.atoms.len();
        self.places[j] = place as u32;
        self.atoms.push(j as u32);
        if self.entries.len() < (place + 1) * self.padded {
            self.entries.resize((place + 1) * self.padded, T::zero());
        }
        let LazyRows { columns, padded, samples, inverse, zeros, entries, values, .. } = &mut **self;
        let row = &mut entries[place * *padded..][..*padded];
        let by = inverse[j];
        values.clear();
        values.extend(samples.iter().map(|&t| -columns[t as usize * *padded + j]));
        subtract_rows::<T, W>(row, zeros, columns, *padded, samples, values);
        row.iter_mut().zip(inverse.iter()).for_each(|(g, &i)| *g *= by * i);
        if by > T::zero() {
            row[j] = T::one();
        }
        place
    }

    fn entries(&self) -> &[T] {
        &self.entries
    }

    fn stride(&self) -> usize {
        self.padded
    }
}
