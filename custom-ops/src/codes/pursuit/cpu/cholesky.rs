//! Batch-OMP as algorithm 1 of Irofti 2016 prints it, one signal at a time, in the type of the
//! signals.
//!
//! ```text
//! α⁰ = D̂ y,  G = D̂ D̂ᵀ,  α = α⁰,  I = ∅,  L = (1)
//! for k = 1 … s
//!     i = argmax |αⱼ|;  I ← I ∪ {i}
//!     k > 1:  L w = G_{I,i};  L ← [L 0; wᵀ √(1 − wᵀw)]
//!     L Lᵀ x_I = α⁰_I
//!     α ← α⁰ − G_I x_I
//! ```
//!
//! Departures: it ends early where [`Rounding`] says so, as every pursuit here does, and chooses no
//! atom twice; atoms of any length are scaled to length 1 first; signals are scaled by a power of
//! two, so that no square leaves the range of the type.
use super::atoms::Atoms;
use super::lanes::{Real, scale_and_energy};
use super::{Output, chunk};
use crate::codes::pursuit::SparseCodes;
use crate::codes::pursuit::job::{Job, Rounding};
use crate::core::op::Io;
use candle::{CpuStorage, DType, Device, Result, Tensor};
use rayon::prelude::*;

/// The codes of a job without a mask, an error target or a bound on the coefficients.
pub(in crate::codes::pursuit) fn run(job: &Job, io: Io<'_, CpuStorage>) -> Result<SparseCodes> {
    match job.signals.dtype() {
        DType::F64 => run_as::<f64>(job, io),
        _ => run_as::<f32>(job, io),
    }
}

fn run_as<T: Real>(job: &Job, io: Io<'_, CpuStorage>) -> Result<SparseCodes> {
    let &Job { m, n, p, s, .. } = job;
    let ([], [signals, dictionary, ..]) = io.parts::<0, 4>()?;
    let signals = signals.elements::<T>()?;
    // Without padding: the loops are the printed ones.
    let atoms = Atoms::new(job.op, dictionary.elements::<T>()?, n, p, 1)?;
    let gram = atoms.gram();
    let rounding = Rounding::of(job.rule, T::DTYPE);
    let mut indices = vec![0u32; m * s];
    let mut values = vec![T::zero(); m * s];
    let mut count = vec![0u32; m];
    let output = Output { indices: &mut indices, values: &mut values, count: &mut count };
    let len = chunk(m, n * size_of::<T>());
    let worker = || (Printed::<T>::new(n, s), vec![T::zero(); len * n]);
    output.par_chunks(len, s).enumerate().try_for_each_init(worker, |(state, corr), (c, mut out)| {
        let rows = c * len..c * len + out.count.len();
        let corr = &mut corr[..rows.len() * n];
        atoms.correlate(corr, &signals[rows.start * p..rows.end * p]);
        for (b, (row, first)) in rows.zip(corr.chunks_exact_mut(n)).enumerate() {
            let Some((scale, energy)) = scale_and_energy(&signals[row * p..][..p]) else {
                candle::bail!("{}: signals must be finite, got NaN or infinity in row {row}", job.op)
            };
            first.iter_mut().for_each(|corr| *corr *= T::from_f64(scale));
            state.pursue(first, &gram, s, rounding.correlation * energy.sqrt(), rounding.pivot);
            let code = state.support.iter().zip(&state.x);
            out.write(b, s, code.map(|(&i, x)| (i, x.to_f64() / (scale * atoms.norm[i]))));
        }
        Ok::<_, candle::Error>(())
    })?;
    Ok(SparseCodes {
        indices: Tensor::from_vec(indices, (m, s), &Device::Cpu)?,
        values: Tensor::from_vec(values, (m, s), &Device::Cpu)?,
        count: Tensor::from_vec(count, m, &Device::Cpu)?,
        n_atoms: n,
    })
}

/// What algorithm 1 keeps of a signal.
struct Printed<T> {
    /// `I`
    support: Vec<usize>,
    /// `L`, of which row `k` starts at `k (k + 1) / 2`
    factor: Vec<T>,
    /// `x_I`
    x: Vec<T>,
    /// `α`, `[n]`
    corr: Vec<T>,
    /// `w`
    w: Vec<T>,
}

impl<T: Real> Printed<T> {
    fn new(n: usize, s: usize) -> Self {
        Self {
            support: Vec::with_capacity(s),
            factor: Vec::with_capacity(s * (s + 1) / 2),
            x: Vec::with_capacity(s),
            corr: vec![T::zero(); n],
            w: Vec::with_capacity(s),
        }
    }

    /// `first` is `α⁰`, `gram` is `G`, `[n, n]`; ends early at a correlation of at most `least` and
    /// at a pivot of at most `pivot`.
    fn pursue(&mut self, first: &[T], gram: &[T], s: usize, least: f64, pivot: f64) {
        let n = first.len();
        self.support.clear();
        self.factor.clear();
        self.x.clear();
        self.corr.copy_from_slice(first);
        for k in 0..s {
            let mut best: Option<(usize, T)> = None;
            for (j, corr) in self.corr.iter().enumerate() {
                let weight = corr.magnitude();
                if best.is_none_or(|(_, most)| weight > most) && !self.support.contains(&j) {
                    best = Some((j, weight));
                }
            }
            let Some((i, _)) = best.filter(|(_, weight)| weight.to_f64() > least) else { return };
            if k == 0 {
                self.factor.push(T::one());
            } else {
                // L w = G_{I,i}
                self.w.clear();
                for (l, &j) in self.support.iter().enumerate() {
                    let row = &self.factor[start_of(l)..start_of(l + 1)];
                    let known = dot(&self.w, row);
                    self.w.push((gram[i * n + j] - known) / row[l]);
                }
                let left = T::one() - dot(&self.w, &self.w);
                if left.to_f64() <= pivot {
                    return;
                }
                self.factor.extend_from_slice(&self.w);
                self.factor.push(left.root());
            }
            self.support.push(i);
            // L Lᵀ x = α⁰_I
            self.x.clear();
            for l in 0..=k {
                let row = &self.factor[start_of(l)..start_of(l + 1)];
                let known = dot(&self.x, row);
                self.x.push((first[self.support[l]] - known) / row[l]);
            }
            for l in (0..=k).rev() {
                let row = &self.factor[start_of(l)..start_of(l + 1)];
                let x = self.x[l] / row[l];
                self.x[l] = x;
                self.x[..l].iter_mut().zip(row).for_each(|(earlier, &w)| *earlier -= w * x);
            }
            if k + 1 == s {
                return;
            }
            // α = α⁰ − G_I x_I
            self.corr.copy_from_slice(first);
            for (&i, &x) in self.support.iter().zip(&self.x) {
                self.corr.iter_mut().zip(&gram[i * n..][..n]).for_each(|(corr, &g)| *corr -= x * g);
            }
        }
    }
}

fn start_of(row: usize) -> usize {
    row * (row + 1) / 2
}

/// Of as many entries as the shorter has.
fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).fold(T::zero(), |sum, (&a, &b)| sum + a * b)
}
