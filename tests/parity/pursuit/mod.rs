//! The pursuits: the same atoms as a textbook's in f64, whatever form of the kernel a size gets, on
//! every device.
#![allow(clippy::expect_used)]
mod codes;
mod constrained;
mod forms;
mod many;
mod rules;

use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{Pursuit, SparseCodes, bomp, ols, ols_reference, omp_reference};
use chandlery_ops::core::{normal, uniform};

/// Two candidates may change places where their scores are this close, in units of the rounding of
/// the type relative to `‖y‖`: a correlation is a sum of up to 4096 products and of as many steps
/// as there are atoms, each rounded once.
const GAP: f64 = 64.;
/// A coefficient may differ by this many roundings of `‖y‖ / ‖d‖`: those of its correlation times
/// the condition of the chosen atoms, which for random ones of twice as many samples as atoms is
/// below 10.
pub(crate) const VALUE: f64 = 512.;
/// `‖y − x D‖` does not depend on the condition.
const FIT: f64 = 64.;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rule {
    Omp,
    Ols,
}

impl Rule {
    pub(crate) fn run(self, signals: &Tensor, dictionary: &Tensor, pursuit: &Pursuit) -> Result<SparseCodes> {
        match self {
            Rule::Omp => bomp(signals, dictionary, pursuit),
            Rule::Ols => ols(signals, dictionary, pursuit),
        }
    }

    pub(crate) fn reference(
        self,
        signals: &Tensor,
        dictionary: &Tensor,
        pursuit: &Pursuit,
    ) -> Result<SparseCodes> {
        match self {
            Rule::Omp => omp_reference(signals, dictionary, pursuit),
            Rule::Ols => ols_reference(signals, dictionary, pursuit),
        }
    }
}

pub(crate) fn eps(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// Random signals and atoms whose norms spread over a decade, as a view that starts inside a larger
/// tensor.
pub(crate) fn problem(m: usize, n: usize, p: usize, dtype: DType) -> Result<(Tensor, Tensor)> {
    let seed = (m * 31 + n * 7 + p) as u64;
    let signals = normal((m + 1, p), &Device::Cpu, Philox::new(seed, 0))?;
    let atoms = normal((n, p), &Device::Cpu, Philox::new(seed, 1))?;
    let lengths = uniform((n, 1), &Device::Cpu, Philox::new(seed, 2))?.affine(2., 0.2)?;
    Ok((signals.to_dtype(dtype)?.narrow(0, 1, m)?, atoms.broadcast_mul(&lengths)?.to_dtype(dtype)?))
}

/// The same view on another device.
pub(crate) fn moved(x: &Tensor, device: &Device) -> Result<Tensor> {
    let padded = Tensor::cat(&[&x.narrow(0, 0, 1)?, x], 0)?.to_device(device)?;
    padded.narrow(0, 1, x.dim(0)?)
}

/// Codes as rows of `(atom, coefficient)`.
pub(crate) fn rows(codes: &SparseCodes) -> Result<Vec<Vec<(usize, f64)>>> {
    let indices = codes.indices.to_vec2::<u32>()?;
    let values = codes.values.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let count = codes.count.to_vec1::<u32>()?;
    let mut out = vec![];
    for ((indices, values), count) in indices.iter().zip(&values).zip(count) {
        let entries: Vec<_> = indices.iter().map(|&i| i as usize).zip(values.iter().copied()).collect();
        let (code, padding) = entries.split_at(count as usize);
        assert!(padding.iter().all(|&entry| entry == (0, 0.)), "padding is not empty: {padding:?}");
        out.push(code.to_vec());
    }
    Ok(out)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// What an orthonormal basis leaves of a vector; twice, so that it is orthogonal to rounding.
fn left_of(x: &[f64], basis: &[Vec<f64>]) -> Vec<f64> {
    let mut left = x.to_vec();
    for q in basis.iter().chain(basis) {
        let along = dot(q, &left);
        left.iter_mut().zip(q).for_each(|(l, q)| *l -= along * q);
    }
    left
}

/// The score of an atom once those of `chosen` are taken.
fn score(rule: Rule, y: &[f64], atoms: &[Vec<f64>], chosen: &[usize], atom: usize) -> f64 {
    let mut basis: Vec<Vec<f64>> = vec![];
    for &i in chosen {
        let left = left_of(&atoms[i], &basis);
        let norm = dot(&left, &left).sqrt();
        basis.push(left.iter().map(|l| l / norm).collect());
    }
    let left = if rule == Rule::Omp { atoms[atom].clone() } else { left_of(&atoms[atom], &basis) };
    dot(&left_of(y, &basis), &atoms[atom]).abs() / dot(&left, &left).sqrt()
}

/// Panics unless `got` names the atoms of `want`, or others where their scores are level, with the
/// coefficients of `want`. Returns the number of signals that took another way.
#[track_caller]
pub(crate) fn assert_codes(
    what: &str,
    rule: Rule,
    signals: &Tensor,
    dictionary: &Tensor,
    got: &SparseCodes,
    want: &SparseCodes,
) -> Result<usize> {
    let to_f64 = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (signals, atoms, eps) = (to_f64(signals)?, to_f64(dictionary)?, eps(got.values.dtype()));
    let norms: Vec<f64> = atoms.iter().map(|d| dot(d, d).sqrt()).collect();
    let mut others = 0;
    for (row, (got, want)) in rows(got)?.iter().zip(&rows(want)?).enumerate() {
        let y = &signals[row];
        let size = dot(y, y).sqrt();
        let before = others;
        match (0..got.len().max(want.len())).find(|&k| got.get(k).map(|e| e.0) != want.get(k).map(|e| e.0)) {
            Some(k) => {
                others += 1;
                let (Some(g), Some(w)) = (got.get(k), want.get(k)) else {
                    panic!("{what}, row {row}: {} atoms, want {}", got.len(), want.len())
                };
                let chosen: Vec<usize> = want[..k].iter().map(|e| e.0).collect();
                let scores = [w.0, g.0].map(|atom| score(rule, y, &atoms, &chosen, atom));
                let gap = (scores[0] - scores[1]) / (eps * size);
                assert!(
                    gap.abs() <= GAP && !chosen.contains(&g.0),
                    "{what}, row {row}, step {k}: atom {} of score {}, want {} of {}: {gap:.1} roundings apart",
                    g.0,
                    scores[1],
                    w.0,
                    scores[0]
                );
            }
            None => {
                for (g, w) in got.iter().zip(want) {
                    let error = (g.1 - w.1).abs() * norms[g.0] / (eps * size);
                    assert!(
                        error <= VALUE,
                        "{what}, row {row}: {g:?}, want {w:?}: {error:.1} roundings apart"
                    );
                }
            }
        }
        let missed = |code: &[(usize, f64)]| {
            let mut residual = y.clone();
            for &(atom, x) in code {
                residual.iter_mut().zip(&atoms[atom]).for_each(|(r, d)| *r -= x * d);
            }
            dot(&residual, &residual).sqrt()
        };
        if others == before {
            let error = (missed(got) - missed(want)).abs() / (eps * size);
            assert!(error <= FIT, "{what}, row {row}: the residuals' norms are {error:.1} roundings apart");
        }
    }
    Ok(others)
}
