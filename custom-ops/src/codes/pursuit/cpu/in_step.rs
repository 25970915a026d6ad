//! Pursuit of all signals of a chunk in step: each step computes the Gram rows that they need as
//! one product.
//!
//! With missing samples every signal has its own dictionary, restricted to its observed samples
//! `o`:
//!
//! ```text
//! gⱼ = Σ_o d̂ⱼ²     αⱼ = Σ_o d̂ⱼ y / √gⱼ     G_ij = Σ_o d̂_i d̂ⱼ / √(g_i gⱼ)
//! ```
use super::lanes::{Kind, Real};
use super::track::Track;
use super::{Input, Output};
use candle::Result;
use rayon::prelude::*;

/// Bytes that the signals of a chunk keep, all together.
const CACHE_BYTES: usize = 1 << 20;

/// Codes the signals from `first` on that `output` has room for.
pub(super) fn run<T: Real, K: Kind, const W: usize>(
    input: &Input<T>,
    first: usize,
    output: Output<T>,
) -> Result<()> {
    let (m, s) = (output.count.len(), input.job.s);
    let n = input.atoms.padded;
    // Its basis, and α, e, 1/√g and a row of G.
    let bytes = n * (s + 3) * size_of::<T>();
    let shared = m.div_ceil(rayon::current_num_threads());
    let len = (CACHE_BYTES / bytes).clamp(4, 64).min(shared).max(1);
    let squares: Vec<T> = match input.mask {
        Some(_) => input.atoms.unit.iter().map(|&d| d * d).collect(),
        None => vec![],
    };
    let worker = || Chunk::<T, W>::new::<K>(input, len);
    output.par_chunks(len, s).enumerate().try_for_each_init(worker, |chunk, (c, mut out)| {
        chunk.run::<K>(input, &squares, first + c * len, &mut out)
    })
}

/// The memory of a thread.
struct Chunk<T, const W: usize> {
    tracks: Vec<Track<T, W>>,
    /// `[len, n]` each: correlations, rows of G, and `1/√g` where samples miss
    corr: Vec<T>,
    rows: Vec<T>,
    inverse: Vec<T>,
    /// `[len, p]`: what a product reads
    operand: Vec<T>,
}

impl<T: Real, const W: usize> Chunk<T, W> {
    fn new<K: Kind>(input: &Input<T>, len: usize) -> Self {
        let (n, p) = (input.atoms.padded, input.atoms.p);
        let zeros = |n: usize| vec![T::zero(); n];
        let track = || Track::new::<K>(n, input.job.s, input.job.nonnegative);
        Self {
            tracks: (0..len).map(|_| track()).collect(),
            corr: zeros(len * n),
            rows: zeros(len * n),
            inverse: zeros(if input.mask.is_some() { len * n } else { 0 }),
            operand: zeros(len * p),
        }
    }

    /// Codes the signals from `first` on that `out` has room for.
    fn run<K: Kind>(
        &mut self,
        input: &Input<T>,
        squares: &[T],
        first: usize,
        out: &mut Output<T>,
    ) -> Result<()> {
        let (atoms, s) = (input.atoms, input.job.s);
        let (n, p, len) = (atoms.padded, atoms.p, out.count.len());
        let observed = |row: usize| input.mask.map(|mask| &mask[row * p..][..p]);
        if input.mask.is_some() {
            for b in 0..len {
                let seen = observed(first + b).unwrap_or_default();
                let operand = self.operand[b * p..][..p].iter_mut();
                operand.zip(seen).for_each(|(o, &seen)| *o = if seen != 0 { T::one() } else { T::zero() });
            }
            atoms.multiply(&mut self.inverse[..len * n], &self.operand[..len * p], squares);
            for inverse in &mut self.inverse[..len * n] {
                *inverse = if *inverse > T::zero() { T::one() / inverse.root() } else { T::zero() };
            }
        }
        for b in 0..len {
            let y = &input.signals[(first + b) * p..][..p];
            copy_observed(&mut self.operand[b * p..][..p], y.iter().copied(), observed(first + b));
        }
        atoms.correlate(&mut self.corr[..len * n], &self.operand[..len * p]);

        let mut scales = Vec::with_capacity(len);
        for b in 0..len {
            let (scale, energy, target) = input.measure(first + b, &self.operand[b * p..][..p])?;
            let corr = &mut self.corr[b * n..][..n];
            if let Some(inverse) = self.inverse.get(b * n..(b + 1) * n) {
                corr.iter_mut().zip(inverse).for_each(|(corr, &inverse)| *corr *= inverse);
            }
            self.tracks[b].start::<K>(corr, T::from_f64(scale), energy, target);
            scales.push(scale);
        }

        let mut going: Vec<usize> = (0..len).collect();
        while !going.is_empty() {
            let mut wanted = Vec::with_capacity(going.len());
            for b in going.drain(..) {
                if let Some(i) = self.tracks[b].choose(&mut self.corr[b * n..][..n]) {
                    let operand = &mut self.operand[wanted.len() * p..][..p];
                    copy_observed(operand, atoms.unit_atom(i), observed(first + b));
                    wanted.push((b, i));
                }
            }
            atoms.correlate(&mut self.rows[..wanted.len() * n], &self.operand[..wanted.len() * p]);
            for (&(b, i), row) in wanted.iter().zip(self.rows.chunks_exact_mut(n)) {
                if let Some(inverse) = self.inverse.get(b * n..(b + 1) * n) {
                    let of_i = inverse[i];
                    row.iter_mut().zip(inverse).for_each(|(row, &inverse)| *row *= of_i * inverse);
                }
                self.tracks[b].absorb::<K>(row, &mut self.corr[b * n..][..n]);
            }
            going.extend(wanted.into_iter().map(|(b, _)| b));
        }
        for (b, scale) in scales.into_iter().enumerate() {
            let inverse = self.inverse.get(b * n..(b + 1) * n);
            let of = |i: usize| inverse.map_or(1., |inverse| inverse[i].to_f64());
            out.write(b, s, self.tracks[b].code().map(|(i, x)| (i, x * of(i) / (scale * atoms.norm[i]))));
        }
        Ok(())
    }
}

/// Copies what the mask lets through; the rest is 0, whatever it was.
fn copy_observed<T: Real>(to: &mut [T], from: impl Iterator<Item = T>, observed: Option<&[u8]>) {
    match observed {
        None => to.iter_mut().zip(from).for_each(|(to, from)| *to = from),
        Some(observed) => to.iter_mut().zip(from).zip(observed).for_each(|((to, from), &observed)| {
            *to = if observed != 0 { from } else { T::zero() };
        }),
    }
}
