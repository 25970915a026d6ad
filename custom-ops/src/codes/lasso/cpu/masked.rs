//! Signals with missing samples: each a problem with the Gram matrix of the samples that it has, of
//! which only the rows of atoms that come into its support are made.
use super::lanes::subtract_rows;
use super::rows::LazyRows;
use super::signal::Signal;
use super::subset::Subset;
use super::{CHUNK, Problem, Row};
use crate::codes::lasso::LassoOptions;
use crate::core::op::{Io, Kernel};
use crate::core::real::{Real, peak};
use candle::{CpuStorage, DType, Result};
use rayon::prelude::*;

pub(in crate::codes::lasso) const OP: &str = "lasso_masked_";

/// Problems whose operands were checked.
#[derive(Debug)]
pub(in crate::codes::lasso) struct Masked {
    pub n: usize,
    pub p: usize,
    pub ridge: f64,
    pub dtype: DType,
    pub options: LassoOptions,
}

impl Kernel for Masked {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.dtype {
            DType::F64 => run::<f64, 32>(self, io),
            _ => run::<f32, 64>(self, io),
        }
    }
}

/// What a thread keeps from signal to signal.
struct Worker<'a, T, const W: usize> {
    rows: LazyRows<'a, T, W>,
    subset: Subset<T, W>,
    /// The observed samples, the values there times -1, and as many times -1.
    samples: Vec<u32>,
    values: Vec<T>,
    ones: Vec<T>,
    /// `c` and the squares of the atoms' lengths, `[padded]`
    c: Vec<T>,
    squares: Vec<T>,
}

/// Solves the problems; `W` is the width of a block of atoms.
fn run<T: Real, const W: usize>(masked: &Masked, io: Io<'_, CpuStorage>) -> Result<()> {
    let ([activations, gaps, updates], [dictionary, signals, mask, penalties]) = io.parts()?;
    let (n, p, options) = (masked.n, masked.p, &masked.options);
    let (dictionary, penalties) = (dictionary.elements::<T>()?, penalties.elements::<T>()?);
    if !peak(dictionary).1 {
        candle::bail!("{OP}: dictionary must be finite, got NaN or infinity")
    }
    let padded = n.next_multiple_of(W);
    let (mut columns, mut squared) = (vec![T::zero(); p * padded], vec![T::zero(); p * padded]);
    for (j, atom) in dictionary.chunks_exact(p).enumerate() {
        for (t, &x) in atom.iter().enumerate() {
            (columns[t * padded + j], squared[t * padded + j]) = (x, x * x);
        }
    }
    let ridge = T::from_f64(masked.ridge);
    let zeros = vec![T::zero(); padded];
    let (activations, gaps) = (activations.elements::<T>()?, gaps.elements::<T>()?);
    let rows = activations.par_chunks_exact_mut(n).zip(signals.elements::<T>()?.par_chunks_exact(p));
    let rows = rows.zip(mask.elements::<u8>()?.par_chunks_exact(p)).zip(gaps);
    let rows = rows.zip(updates.elements::<u32>()?).enumerate().with_min_len(CHUNK);
    let worker = || Worker::<T, W> {
        rows: LazyRows::new(&columns, n, padded),
        subset: Subset::new(n),
        samples: vec![],
        values: vec![],
        ones: vec![],
        c: vec![T::zero(); padded],
        squares: vec![T::zero(); padded],
    };
    rows.try_for_each_init(worker, |worker, (row, ((((a, x), mask), gap), updates))| {
        let Worker { rows, subset, samples, values, ones, c, squares } = worker;
        samples.clear();
        samples.extend((0u32..).zip(mask).filter(|(_, m)| **m != 0).map(|(t, _)| t));
        values.clear();
        values.extend(samples.iter().map(|&t| -x[t as usize]));
        ones.clear();
        ones.resize(samples.len(), -T::one());
        subtract_rows::<T, W>(c, &zeros, &columns, padded, samples, values);
        subtract_rows::<T, W>(squares, &zeros, &squared, padded, samples, ones);
        let energy = values.iter().map(|x| x.to_f64() * x.to_f64()).sum();
        // An atom that shows nothing in the observed samples is a zero atom, whatever the ridge.
        let square = |j: usize| if squares[j] > T::zero() { squares[j] + ridge } else { T::zero() };
        let problem = Problem::of_squares::<W>(square, penalties)?;
        rows.start(samples, &problem.inverse);
        let row = Row { row, a, c: &c[..n], energy, gap, updates };
        row.solve::<_, W>(&mut Signal::new(&problem, &mut *rows), subset, options, 0)
    })
}
