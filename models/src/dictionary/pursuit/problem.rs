//! The shared parts of the CPU pursuits: checked operands, the Gram matrix, and a loop over signals
//! with one signal at a time per core.
use super::SparseCoder;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::codes::{ErrorTarget, SparseCodes};
use rayon::prelude::*;

/// Signals whose correlations are computed at a time, where nothing else is asked for.
const CHUNK: usize = 2048;

/// Below this a pivot `ρ²`, of atoms of norm 1, is rounding: the atom depends on those chosen.
pub(super) const PIVOT: f64 = 64. * f64::EPSILON;
/// Below this, times `‖y‖`, a correlation is rounding.
pub(super) const CORRELATION: f64 = 16. * f64::EPSILON;
/// Below this, times `‖y‖²`, a difference of two errors is rounding: the same atoms in another order
/// leave the same.
pub(super) const ERROR: f64 = 4096. * f64::EPSILON;

/// `D̂ D̂ᵀ` of the atoms scaled to norm 1.
pub(super) struct Gram {
    pub n: usize,
    entries: Vec<f64>,
}

impl Gram {
    pub(super) fn row(&self, i: usize) -> &[f64] {
        &self.entries[i * self.n..][..self.n]
    }

    pub(super) fn at(&self, i: usize, j: usize) -> f64 {
        self.entries[i * self.n + j]
    }
}

/// One signal over the dictionary.
pub(super) struct Problem<'a> {
    pub gram: &'a Gram,
    /// `α⁰ⱼ = d̂ⱼ · y`
    pub corr: &'a [f64],
    /// `‖y‖²`
    pub energy: f64,
    /// `ε²`; below every error where there is no target.
    pub target: f64,
    /// The most atoms.
    pub s: usize,
}

impl Problem<'_> {
    /// The `count` atoms not in `taken` that `corr` is largest for, the best first; of equal ones
    /// the first. None whose correlation is rounding.
    pub(super) fn most_correlated(&self, corr: &[f64], taken: &[usize], count: usize) -> Vec<usize> {
        let least = CORRELATION * self.energy.sqrt();
        let mut atoms: Vec<usize> =
            (0..corr.len()).filter(|j| corr[*j].abs() > least && !taken.contains(j)).collect();
        let order = |a: &usize, b: &usize| corr[*b].abs().total_cmp(&corr[*a].abs()).then(a.cmp(b));
        if atoms.len() > count {
            atoms.select_nth_unstable_by(count, order);
            atoms.truncate(count);
        }
        atoms.sort_unstable_by(order);
        atoms
    }

    /// The atoms of `set` with the coefficients that leave least, and `‖r‖²`; atoms that depend on
    /// earlier ones are left out.
    pub(super) fn fit(&self, set: &[usize]) -> Fit {
        let mut atoms: Vec<usize> = Vec::with_capacity(set.len());
        // Cholesky's factor row by row, and z in L z = α⁰.
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(set.len());
        let mut z: Vec<f64> = Vec::with_capacity(set.len());
        for &i in set {
            let mut row: Vec<f64> = Vec::with_capacity(atoms.len() + 1);
            for (l, &j) in atoms.iter().enumerate() {
                let inner: f64 = row.iter().zip(&rows[l]).map(|(a, b)| a * b).sum();
                row.push((self.gram.at(i, j) - inner) / rows[l][l]);
            }
            let pivot = 1. - row.iter().map(|w| w * w).sum::<f64>();
            if pivot > PIVOT {
                let known: f64 = row.iter().zip(&z).map(|(w, z)| w * z).sum();
                z.push((self.corr[i] - known) / pivot.sqrt());
                row.push(pivot.sqrt());
                rows.push(row);
                atoms.push(i);
            }
        }
        let error = self.energy - z.iter().map(|z| z * z).sum::<f64>();
        Fit { x: back_substitute(&rows, z), atoms, error }
    }

    /// `D̂ r` for the residual of a fit.
    pub(super) fn correlations(&self, fit: &Fit) -> Vec<f64> {
        let mut corr = self.corr.to_vec();
        for (&i, &x) in fit.atoms.iter().zip(&fit.x) {
            corr.iter_mut().zip(self.gram.row(i)).for_each(|(corr, g)| *corr -= x * g);
        }
        corr
    }
}

/// `x` in `Lᵀ x = z`.
pub(super) fn back_substitute(rows: &[Vec<f64>], mut z: Vec<f64>) -> Vec<f64> {
    for k in (0..z.len()).rev() {
        z[k] /= rows[k][k];
        let x = z[k];
        z[..k].iter_mut().zip(&rows[k]).for_each(|(earlier, w)| *earlier -= w * x);
    }
    z
}

/// A support with its coefficients, for atoms of norm 1.
#[derive(Debug, Clone, Default)]
pub(super) struct Fit {
    pub atoms: Vec<usize>,
    pub x: Vec<f64>,
    /// `‖r‖²`
    pub error: f64,
}

/// Checked operands in f64 on one device.
pub(super) struct Operands {
    /// `Y`, `[m, p]`
    pub rows: Tensor,
    /// `D̂`, `[n, p]`
    pub unit: Tensor,
    /// `‖d‖`, 1 where it is 0
    pub lengths: Vec<f64>,
    /// `‖y‖²` and `ε²` of each signal
    pub energies: Vec<f64>,
    pub targets: Vec<f64>,
    pub m: usize,
    pub n: usize,
}

/// Checks the operands, and moves them to `device`.
pub(super) fn operands(
    coder: &SparseCoder,
    signals: &Tensor,
    dictionary: &Tensor,
    device: &Device,
) -> Result<Operands> {
    let op = coder.method.name();
    if coder.nonnegative {
        candle::bail!(
            "{op}: coefficients of at least 0 are for omp and ols, got nonnegative; choose one of the two"
        )
    }
    let (m, n) = check(op, coder, signals, dictionary)?;
    let wide = |x: &Tensor| x.to_device(device)?.to_dtype(DType::F64)?.contiguous();
    let (rows, atoms) = (wide(signals)?, wide(dictionary)?);
    let norms = row_norms(op, "dictionary", "atom", &atoms)?;
    let lengths: Vec<f64> = norms.iter().map(|&norm| if norm > 0. { norm } else { 1. }).collect();
    let unit = atoms.broadcast_div(&Tensor::new(lengths.as_slice(), device)?.unsqueeze(1)?)?;
    let of_signal = row_norms(op, "signals", "row", &rows)?;
    let targets = targets(op, coder.error.as_ref(), &of_signal)?;
    let energies = of_signal.iter().map(|norm| norm * norm).collect();
    Ok(Operands { rows, unit, lengths, energies, targets, m, n })
}

/// Codes every signal by `pursue`, each on its own, on the CPU.
pub(super) fn encode(
    coder: &SparseCoder,
    signals: &Tensor,
    dictionary: &Tensor,
    pursue: fn(&Problem) -> Fit,
) -> Result<SparseCodes> {
    let Operands { rows, unit, lengths, energies, targets, m, n } =
        operands(coder, signals, dictionary, &Device::Cpu)?;
    let turned = unit.t()?;
    let gram = Gram { n, entries: unit.matmul(&turned)?.flatten_all()?.to_vec1()? };
    let s = coder.n_nonzero;
    let at_once = coder.chunk.unwrap_or(CHUNK);
    let (mut indices, mut values, mut count) = (vec![0u32; m * s], vec![0f64; m * s], vec![0u32; m]);
    for start in (0..m).step_by(at_once) {
        let end = m.min(start + at_once);
        let corr: Vec<f64> = rows.narrow(0, start, end - start)?.matmul(&turned)?.flatten_all()?.to_vec1()?;
        let out = indices[start * s..end * s].par_chunks_mut(s);
        let out = out.zip(values[start * s..end * s].par_chunks_mut(s)).zip(&mut count[start..end]);
        out.zip(corr.par_chunks(n)).enumerate().for_each(|(row, (((indices, values), count), corr))| {
            let energy = energies[start + row];
            let problem = Problem { gram: &gram, corr, energy, target: targets[start + row], s };
            // A signal that is small enough already needs no atoms.
            let fit = if energy <= problem.target { Fit::default() } else { pursue(&problem) };
            for (at, (&i, &x)) in fit.atoms.iter().zip(&fit.x).enumerate().take(s) {
                (indices[at], values[at]) = (i as u32, x / lengths[i]);
                *count = at as u32 + 1;
            }
        });
    }
    let device = signals.device();
    Ok(SparseCodes {
        indices: Tensor::from_vec(indices, (m, s), device)?,
        values: Tensor::from_vec(values, (m, s), &Device::Cpu)?
            .to_dtype(signals.dtype())?
            .to_device(device)?,
        count: Tensor::from_vec(count, m, device)?,
        n_atoms: n,
    })
}

fn check(op: &str, coder: &SparseCoder, signals: &Tensor, dictionary: &Tensor) -> Result<(usize, usize)> {
    let (m, p) = match signals.dims() {
        &[m, p] => (m, p),
        shape => candle::bail!("{op}: signals must be [n_samples, n_features], got {shape:?}"),
    };
    let n = match dictionary.dims() {
        &[n, features] if features == p => n,
        shape => {
            candle::bail!("{op}: dictionary must be [n_atoms, {p}] to go with the signals, got {shape:?}")
        }
    };
    let (dtype, of_atoms) = (signals.dtype(), dictionary.dtype());
    if !matches!(dtype, DType::F32 | DType::F64) || of_atoms != dtype {
        candle::bail!(
            "{op}: signals and dictionary must both be f32 or both f64, got {dtype:?} and {of_atoms:?}"
        )
    }
    if coder.n_nonzero == 0 || coder.n_nonzero > n {
        candle::bail!("{op}: n_nonzero must be in 1..={n}, the number of atoms, got {}", coder.n_nonzero)
    }
    if coder.chunk == Some(0) {
        candle::bail!("{op}: chunk must be at least 1, got 0")
    }
    Ok((m, n))
}

/// The norms of the rows, which must be finite.
fn row_norms(op: &str, what: &str, row: &str, x: &Tensor) -> Result<Vec<f64>> {
    let norms = x.sqr()?.sum(1)?.sqrt()?.to_vec1::<f64>()?;
    match norms.iter().position(|norm| !norm.is_finite()) {
        Some(i) => candle::bail!("{op}: {what} must be finite, got NaN or infinity in {row} {i}"),
        None => Ok(norms),
    }
}

/// `ε²` of each signal.
fn targets(op: &str, error: Option<&ErrorTarget>, norms: &[f64]) -> Result<Vec<f64>> {
    let targets: Vec<f64> = match error {
        None => return Ok(vec![f64::NEG_INFINITY; norms.len()]),
        Some(ErrorTarget::Absolute(epsilon)) => vec![*epsilon; norms.len()],
        Some(ErrorTarget::Relative(epsilon)) => norms.iter().map(|norm| epsilon * norm).collect(),
        Some(ErrorTarget::PerSignal(epsilon)) => {
            if epsilon.dims() != [norms.len()] {
                let (m, got) = (norms.len(), epsilon.dims());
                candle::bail!("{op}: error targets must have shape [{m}], one for each signal, got {got:?}")
            }
            epsilon.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()?
        }
    };
    match targets.iter().find(|target| !target.is_finite() || **target < 0.) {
        Some(bad) => candle::bail!("{op}: error targets must be finite numbers of at least 0, got {bad}"),
        None => Ok(targets.into_iter().map(|target| target * target).collect()),
    }
}
