//! The pursuits on the CPU: signals in chunks over all cores, atoms over the lanes of the vector
//! unit.
//!
//! If a Gram matrix is worth its cost, the correlations of a chunk are one product that stays in
//! the cache, and each signal is then coded to the end ([`with_gram`]). If it is not (few signals,
//! or a separate Gram matrix for each signal because samples are missing), all signals of a chunk
//! advance in step, and each step computes the rows that they need as one product ([`in_step`]).
mod atoms;
pub(super) mod cholesky;
mod combine;
mod factor;
mod in_step;
mod lanes;
mod track;

pub(super) use combine::{add_rows, to_dense};

use super::SparseCodes;
use super::job::{Job, Rule, Target};
use crate::core::op::Io;
use atoms::Atoms;
use candle::{CpuStorage, DType, Device, Result, Tensor};
use lanes::{Kind, Of, Real, scale_and_energy};
use rayon::prelude::*;
use track::Track;

/// The codes of a job whose operands are on the CPU.
pub(super) fn run(job: &Job, io: Io<'_, CpuStorage>) -> Result<SparseCodes> {
    match job.signals.dtype() {
        // Four registers of 64 bytes.
        DType::F64 => run_as::<f64, 32>(job, io),
        _ => run_as::<f32, 64>(job, io),
    }
}

fn run_as<T: Real, const W: usize>(job: &Job, io: Io<'_, CpuStorage>) -> Result<SparseCodes> {
    match (job.rule, job.nonnegative) {
        (Rule::Omp, false) => run_kind::<T, Of<false, false>, W>(job, io),
        (Rule::Omp, true) => run_kind::<T, Of<false, true>, W>(job, io),
        (Rule::Ols, false) => run_kind::<T, Of<true, false>, W>(job, io),
        (Rule::Ols, true) => run_kind::<T, Of<true, true>, W>(job, io),
    }
}

fn run_kind<T: Real, K: Kind, const W: usize>(job: &Job, io: Io<'_, CpuStorage>) -> Result<SparseCodes> {
    let &Job { m, n, p, s, .. } = job;
    let ([], [signals, dictionary, mask, targets]) = io.parts()?;
    let atoms = Atoms::new(job.op, dictionary.elements::<T>()?, n, p, W)?;
    let input = Input::<T> {
        signals: signals.elements()?,
        mask: mask.maybe()?,
        targets: targets.maybe()?,
        job,
        atoms: &atoms,
    };
    let mut indices = vec![0u32; m * s];
    let mut values = vec![T::zero(); m * s];
    let mut count = vec![0u32; m];
    // A row of the Gram matrix costs as much as a correlation, and each signal wants s - 1 of them.
    let in_step = job.mask.is_some() || m * (s - 1) < n;
    let gram = if in_step { Vec::new() } else { atoms.gram() };
    let at_once = job.chunk.unwrap_or(m).clamp(1, m.max(1));
    for first in (0..m).step_by(at_once) {
        let end = m.min(first + at_once);
        let output = Output {
            indices: &mut indices[first * s..end * s],
            values: &mut values[first * s..end * s],
            count: &mut count[first..end],
        };
        match in_step {
            true => in_step::run::<T, K, W>(&input, first, output)?,
            false => with_gram::<T, K, W>(&input, &gram, first, output)?,
        }
    }
    Ok(SparseCodes {
        indices: Tensor::from_vec(indices, (m, s), &Device::Cpu)?,
        values: Tensor::from_vec(values, (m, s), &Device::Cpu)?,
        count: Tensor::from_vec(count, m, &Device::Cpu)?,
        n_atoms: n,
    })
}

/// What every thread reads.
struct Input<'a, T> {
    job: &'a Job,
    atoms: &'a Atoms<T>,
    signals: &'a [T],
    mask: Option<&'a [u8]>,
    targets: Option<&'a [T]>,
}

impl<T: Real> Input<'_, T> {
    /// The scale, energy and squared error target of signal `row`, whose observed samples are `y`.
    fn measure(&self, row: usize, y: &[T]) -> Result<(f64, f64, f64)> {
        let Some((scale, energy)) = scale_and_energy(y) else {
            candle::bail!("{}: signals must be finite, got NaN or infinity in row {row}", self.job.op)
        };
        let square = |x: f64| x * x;
        let target = match (&self.job.target, self.targets) {
            (Target::Absolute(epsilon), _) => square(epsilon * scale),
            (Target::Relative(epsilon), _) => square(*epsilon) * energy,
            (Target::PerSignal(_), Some(targets)) => {
                let epsilon = targets[row].to_f64();
                if !epsilon.is_finite() || epsilon < 0. {
                    candle::bail!(
                        "{}: error targets must be finite numbers of at least 0, got {epsilon} for row {row}",
                        self.job.op
                    )
                }
                square(epsilon * scale)
            }
            _ => f64::NEG_INFINITY,
        };
        Ok((scale, energy, target))
    }
}

/// Where codes go; chunks of it go to the threads.
struct Output<'a, T> {
    indices: &'a mut [u32],
    values: &'a mut [T],
    count: &'a mut [u32],
}

impl<'a, T: Real> Output<'a, T> {
    /// The codes of `len` signals at a time.
    fn par_chunks(self, len: usize, s: usize) -> impl IndexedParallelIterator<Item = Output<'a, T>> {
        let indices = self.indices.par_chunks_mut(len * s);
        let values = self.values.par_chunks_mut(len * s);
        let count = self.count.par_chunks_mut(len);
        indices.zip(values).zip(count).map(|((indices, values), count)| Output { indices, values, count })
    }

    /// Writes the code of signal `b` of the chunk; the rest of its row is zero already.
    fn write(&mut self, b: usize, s: usize, code: impl Iterator<Item = (usize, f64)>) {
        let mut len = 0;
        for (at, (atom, x)) in (b * s..).zip(code) {
            self.indices[at] = atom as u32;
            self.values[at] = T::from_f64(x);
            len += 1;
        }
        self.count[b] = len;
    }
}

/// Signals of a chunk: enough for the product of matrices to be fast, few enough for its result to
/// stay in the cache, and chunks for every thread.
fn chunk(m: usize, bytes_a_signal: usize) -> usize {
    const CACHE_BYTES: usize = 256 * 1024;
    let fits = CACHE_BYTES / bytes_a_signal.max(1);
    let shared = m.div_ceil(4 * rayon::current_num_threads());
    fits.clamp(8, 64).min(shared).max(1)
}

/// Codes the signals from `first` on that `output` has room for.
fn with_gram<T: Real, K: Kind, const W: usize>(
    input: &Input<T>,
    gram: &[T],
    first: usize,
    output: Output<T>,
) -> Result<()> {
    let &Input { atoms, signals, .. } = input;
    let &Job { p, s, nonnegative, .. } = input.job;
    let n = atoms.padded;
    let len = chunk(output.count.len(), n * size_of::<T>());
    let worker = || (Track::<T, W>::new::<K>(n, s, nonnegative), vec![T::zero(); len * n]);
    output.par_chunks(len, s).enumerate().try_for_each_init(worker, |(track, corr), (c, mut out)| {
        let start = first + c * len;
        let rows = start..start + out.count.len();
        let corr = &mut corr[..rows.len() * n];
        atoms.correlate(corr, &signals[rows.start * p..rows.end * p]);
        for (b, (row, corr)) in rows.zip(corr.chunks_exact_mut(n)).enumerate() {
            let (scale, energy, target) = input.measure(row, &signals[row * p..][..p])?;
            track.start::<K>(corr, T::from_f64(scale), energy, target);
            while let Some(i) = track.choose(corr) {
                track.absorb::<K>(&gram[i * n..][..n], corr);
            }
            out.write(b, s, track.code().map(|(i, x)| (i, x / (scale * atoms.norm[i]))));
        }
        Ok(())
    })
}
