//! The pursuits beyond OMP: what each promises, and where each finds what OMP misses.
#![allow(missing_docs, clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery::Philox;
use chandlery::dictionary::pursuit::{PursuitMethod, SparseCoder};
use chandlery_ops::{ErrorTarget, SparseCodes, normal, uniform};
use std::collections::BTreeSet;

const OTHERS: [PursuitMethod; 3] =
    [PursuitMethod::SubspacePursuit, PursuitMethod::ProjectionOmp, PursuitMethod::LookAheadOls];

fn coder(method: PursuitMethod, n_nonzero: usize) -> SparseCoder {
    SparseCoder { method, n_nonzero, error: None, nonnegative: false }
}

fn gaussian(rows: usize, cols: usize, stream: u64) -> Result<Tensor> {
    normal((rows, cols), &Cpu, Philox::new(21, stream))?.to_dtype(DType::F64)
}

fn unit_rows(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&x.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// Independent atoms of norm 1.
fn incoherent(n: usize, p: usize) -> Result<Tensor> {
    unit_rows(&gaussian(n, p, 1)?)
}

/// Atoms that are moving averages of noise, neighbours alike: `|cos|` of two of them is up to about .9.
fn coherent(n: usize, p: usize) -> Result<Tensor> {
    let mut rows = vec![];
    let noise = gaussian(n + 4, p, 2)?;
    for j in 0..n {
        rows.push(noise.narrow(0, j, 5)?.sum(0)?);
    }
    unit_rows(&Tensor::stack(&rows, 0)?)
}

#[derive(Clone, Copy)]
enum Size {
    /// ±1: no atom stands out.
    Equal,
    /// Normal: few atoms matter most.
    Normal,
}

/// `m` signals of `s` random atoms each, and their supports.
fn sparse_signals(
    dictionary: &Tensor,
    m: usize,
    s: usize,
    size: Size,
) -> Result<(Tensor, Vec<BTreeSet<u32>>)> {
    let n = dictionary.dim(0)?;
    let keys = uniform((m, n), &Cpu, Philox::new(22, 0))?.to_vec2::<f32>()?;
    let values = gaussian(m, n, 3)?.to_vec2::<f64>()?;
    let mut dense = vec![0f64; m * n];
    let mut supports = vec![];
    for row in 0..m {
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by(|a, b| keys[row][*a as usize].total_cmp(&keys[row][*b as usize]));
        for &j in &order[..s] {
            let x = values[row][j as usize];
            dense[row * n + j as usize] = match size {
                Size::Equal => x.signum(),
                Size::Normal => x,
            };
        }
        supports.push(order[..s].iter().copied().collect());
    }
    Ok((Tensor::from_vec(dense, (m, n), &Cpu)?.matmul(dictionary)?, supports))
}

fn supports(codes: &SparseCodes) -> Result<Vec<BTreeSet<u32>>> {
    let (indices, count) = (codes.indices.to_vec2::<u32>()?, codes.count.to_vec1::<u32>()?);
    Ok(indices
        .iter()
        .zip(count)
        .map(|(row, count)| row[..count as usize].iter().copied().collect())
        .collect())
}

/// `‖r‖²` of each signal.
fn errors(codes: &SparseCodes, signals: &Tensor, dictionary: &Tensor) -> Result<Vec<f64>> {
    codes.residual(signals, dictionary)?.sqr()?.sum(1)?.to_vec1()
}

/// The share of signals whose support is found, by OMP, OLS and the others in the order of [`PursuitMethod::ALL`].
fn recovered(dictionary: &Tensor, m: usize, s: usize, size: Size) -> Result<[f64; 5]> {
    let (signals, truth) = sparse_signals(dictionary, m, s, size)?;
    let mut shares = [0.; 5];
    for (share, method) in shares.iter_mut().zip(PursuitMethod::ALL) {
        let found = supports(&coder(method, s).encode(&signals, dictionary)?)?;
        *share = found.iter().zip(&truth).filter(|(a, b)| a == b).count() as f64 / m as f64;
    }
    Ok(shares)
}

#[test]
fn equal_coefficients_are_where_exchanging_atoms_beats_omp() -> Result<()> {
    let shares = recovered(&incoherent(128, 64)?, 300, 16, Size::Equal)?;
    let [omp, ols, subspace, projection, ahead] = shares;
    println!(
        "equal: omp {omp:.3} ols {ols:.3} subspace {subspace:.3} projection {projection:.3} ahead {ahead:.3}"
    );
    Ok(())
}

#[test]
fn normal_coefficients() -> Result<()> {
    let shares = recovered(&incoherent(128, 64)?, 300, 20, Size::Normal)?;
    let [omp, ols, subspace, projection, ahead] = shares;
    println!(
        "normal: omp {omp:.3} ols {ols:.3} subspace {subspace:.3} projection {projection:.3} ahead {ahead:.3}"
    );
    Ok(())
}

#[test]
fn coherent_atoms() -> Result<()> {
    for size in [Size::Equal, Size::Normal] {
        let shares = recovered(&coherent(128, 64)?, 300, 6, size)?;
        let [omp, ols, subspace, projection, ahead] = shares;
        println!(
            "coherent: omp {omp:.3} ols {ols:.3} subspace {subspace:.3} projection {projection:.3} ahead {ahead:.3}"
        );
    }
    Ok(())
}
