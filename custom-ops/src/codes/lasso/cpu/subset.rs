//! The problem restricted to few atoms, with their Gram matrix side by side in memory.
use super::Problem;
use super::eliminate::System;
use super::lanes::{Coordinates, Rows, descend, subtract_rows};
use super::line_search::{Along, minimise};
use super::rows::AllRows;
use crate::core::real::Real;

/// Times that Newton steps are followed by greedy descent.
const TURNS: usize = 2;
/// Newton steps in a row, of which all but the last end where coefficients become 0.
const NEWTON_STEPS: usize = 8;
/// The place of an atom that is no member.
const ABSENT: u32 = u32::MAX;

/// The members are the atoms that were ever in the support of the signal. Lanes beyond them hold
/// numbers of earlier signals, which move nothing: their penalty is infinite.
pub(super) struct Subset<T, const W: usize> {
    atoms: Vec<u32>,
    /// Of each atom, `[n]`
    places: Vec<u32>,
    /// Rows and columns that there is room for, a multiple of `W`.
    room: usize,
    /// `Ĝ` of the members, `[room, room]`
    gram: Vec<T>,
    /// `q̂`, `â` and `β̂`, `[room]`
    q: Vec<T>,
    a: Vec<T>,
    beta: Vec<T>,
    /// For Newton steps: places with `â ≠ 0`, the system, `−Ĝ d`, and zeros
    support: Vec<u32>,
    system: System<T, 16>,
    along: Vec<T>,
    zeros: Vec<T>,
    moved: Vec<u32>,
}

impl<T: Real, const W: usize> Subset<T, W> {
    pub(super) fn new(n: usize) -> Self {
        Self {
            atoms: vec![],
            places: vec![ABSENT; n],
            room: 0,
            gram: vec![],
            q: vec![],
            a: vec![],
            beta: vec![],
            support: vec![],
            system: System::new(),
            along: vec![],
            zeros: vec![],
            moved: vec![],
        }
    }

    pub(super) fn clear(&mut self) {
        self.atoms.drain(..).for_each(|j| self.places[j as usize] = ABSENT);
    }

    pub(super) fn len(&self) -> usize {
        self.atoms.len()
    }

    /// The members.
    pub(super) fn atoms(&self) -> impl Iterator<Item = u32> {
        self.atoms.iter().copied()
    }

    /// Makes atom `j` a member, if it is none.
    pub(super) fn add(&mut self, j: u32, gram: &mut impl Rows<T>) {
        if self.places[j as usize] != ABSENT {
            return;
        }
        let place = self.atoms.len();
        if place == self.room {
            self.grow();
        }
        self.places[j as usize] = place as u32;
        self.atoms.push(j);
        let row = gram.row(j as usize);
        for (other, &atom) in self.atoms.iter().enumerate() {
            let entry = row[atom as usize];
            self.gram[place * self.room + other] = entry;
            self.gram[other * self.room + place] = entry;
        }
    }

    fn grow(&mut self) {
        let room = (2 * self.room).max(2 * W);
        let mut gram = vec![T::zero(); room * room];
        if self.room > 0 {
            let rows = self.gram.chunks_exact(self.room);
            gram.chunks_exact_mut(room)
                .zip(rows)
                .for_each(|(new, old)| new[..self.room].copy_from_slice(old));
        }
        self.gram = gram;
        self.room = room;
    }

    /// The length of arrays over members.
    fn padded(&self) -> usize {
        self.atoms.len().next_multiple_of(W)
    }

    /// Takes over `q̂` and `â` of the members.
    pub(super) fn load(&mut self, q: &[T], a: &[T], problem: &Problem<T>) {
        let padded = self.padded();
        let fill = |to: &mut Vec<T>, from: &[T], rest: T| {
            to.clear();
            to.extend(self.atoms.iter().map(|&j| from[j as usize]));
            to.resize(padded, rest);
        };
        fill(&mut self.q, q, T::zero());
        fill(&mut self.a, a, T::zero());
        fill(&mut self.beta, &problem.beta, T::INFINITY);
    }

    /// Writes the coefficients of the members to `a`.
    pub(super) fn store(&self, a: &mut [T]) {
        self.atoms.iter().zip(&self.a).for_each(|(&j, &x)| a[j as usize] = x);
    }

    /// Newton steps and greedy descent in turn, until no step of a coordinate is above `least` or
    /// twice each. Returns the updates made.
    pub(super) fn solve<const POSITIVE: bool>(&mut self, least: T) -> usize {
        let mut updates = 0;
        for _ in 0..TURNS {
            for _ in 0..NEWTON_STEPS {
                let is_whole = self.newton::<POSITIVE>();
                updates += self.support.len();
                if is_whole {
                    break;
                }
            }
            let moves = self.descend::<POSITIVE>(self.len() / 2 + 4, least);
            updates += moves;
            if moves == 0 {
                break;
            }
        }
        updates
    }

    fn descend<const POSITIVE: bool>(&mut self, most: usize, least: T) -> usize {
        self.moved.clear();
        let Self { gram, room, q, a, beta, .. } = self;
        let on = Coordinates { q, a, beta };
        let mut rows = AllRows { entries: gram, stride: *room };
        descend::<T, _, POSITIVE, W>(&mut rows, on, most, least, &mut self.moved)
    }

    /// One Newton step on the support, as far as the objective falls. Returns whether it was a
    /// whole one.
    fn newton<const POSITIVE: bool>(&mut self) -> bool {
        self.support.clear();
        self.support.extend((0..self.atoms.len() as u32).filter(|&p| self.a[p as usize] != T::zero()));
        let k = self.support.len();
        if k == 0 {
            return true;
        }
        self.set_up();
        let direction = self.system.solve();
        let Self { support, q, a, beta, along, zeros, .. } = self;
        zeros.resize(q.len(), T::zero());
        along.resize(q.len(), T::zero());
        subtract_rows::<T, W>(along, zeros, &self.gram, self.room, support, direction);
        let step = minimise::<POSITIVE>(support.iter().zip(direction).map(|(&p, d)| {
            let (a, q, beta) = (a[p as usize].to_f64(), q[p as usize].to_f64(), beta[p as usize].to_f64());
            Along { a, d: d.to_f64(), gd: -along[p as usize].to_f64(), q, beta }
        }));
        if step.length == 0. {
            return true;
        }
        let length = T::from_f64(step.length);
        for (i, (&p, &d)) in support.iter().zip(direction).enumerate() {
            let a = &mut a[p as usize];
            let new = *a + length * d;
            let leaves = step.zero == Some(i) || POSITIVE && new < T::zero();
            *a = if leaves { T::zero() } else { new };
        }
        q.iter_mut().zip(along).for_each(|(q, &mut along)| *q += length * along);
        step.is_whole
    }

    /// The system of a Newton step: `Ĝ` of the support, and `q − β sign(a)`.
    fn set_up(&mut self) {
        let (rows, last) = self.system.rows_mut(self.support.len());
        for (r, row) in rows.enumerate() {
            let place = self.support[r] as usize;
            let gram = &self.gram[place * self.room..][..self.room];
            for (entry, &c) in row[r..].iter_mut().zip(&self.support[r..]) {
                *entry = gram[c as usize];
            }
            let (q, a, beta) = (self.q[place], self.a[place], self.beta[place]);
            row[last] = if a > T::zero() { q - beta } else { q + beta };
        }
    }
}
