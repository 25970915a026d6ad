//! Training of dictionaries: every rule against plain loops, care of atoms, resuming, files,
//! errors.
#![allow(clippy::expect_used)]
mod care;
mod files;
mod nonnegative;
mod online;
mod resume;
mod rules;
mod starts;
mod units;

use candle::{DType, Device, Result, Tensor};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, Init, PursuitMethod, SparseCoder, UpdateRule, init,
};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;

const CPU: Device = Device::Cpu;
const RULES: [UpdateRule; 5] =
    [UpdateRule::Ksvd, UpdateRule::AkSvd, UpdateRule::Sgk, UpdateRule::Nsgk, UpdateRule::Mod];
/// Signals.
const M: usize = 400;
/// Atoms.
const N: usize = 12;
/// Features.
const P: usize = 9;
/// Atoms of a signal.
const S: usize = 3;

fn unit_rows(rows: &Tensor) -> Result<Tensor> {
    rows.broadcast_div(&rows.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// Signals that are combinations of few atoms of a dictionary, with some noise. f64.
fn signals() -> Result<Tensor> {
    let truth = unit_rows(&normal((N, P), &CPU, Philox::new(1, 0))?)?;
    let x = normal((M, N), &CPU, Philox::new(1, 1))?;
    let kept: Vec<f32> = (0..M)
        .flat_map(|i| {
            let order = Philox::new(1, 10 + i as u64).permutation(N);
            (0..N as u32).map(move |j| if order[..S].contains(&j) { 1. } else { 0. })
        })
        .collect();
    let x = (x * Tensor::from_vec(kept, (M, N), &CPU)?)?;
    (x.matmul(&truth)? + (normal((M, P), &CPU, Philox::new(1, 2))? * 0.05)?)?.to_dtype(DType::F64)
}

fn dictionary(atoms: Tensor) -> Result<Dictionary> {
    let (n, p) = atoms.dims2()?;
    Dictionary::from_tensor(DictionaryConfig::new(n, p, S), atoms)
}

fn beginning(y: &Tensor) -> Result<Dictionary> {
    dictionary(init(&Init::RandomSignals, N, y, Philox::new(2, 0))?)
}

fn coder() -> SparseCoder {
    SparseCoder::new(PursuitMethod::Omp, S)
}

fn config(rule: UpdateRule) -> DictionaryTrainConfig {
    DictionaryTrainConfig { rule, coder: Some(coder()), ..DictionaryTrainConfig::default() }
}

fn bits(t: &Tensor) -> Result<Vec<u64>> {
    Ok(t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
}

fn difference(got: &Tensor, want: &Tensor) -> Result<f64> {
    (got - want)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()
}

fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}
