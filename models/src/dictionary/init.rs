//! Initial dictionaries.
use super::replace_atoms;
use super::scaling::unit_rows;
use crate::check::room_for;
use crate::share::Share;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::core::normal;
use chandlery_ops::{Group, Philox};
use std::f64::consts::PI;

/// The initial atoms.
#[derive(Debug, Clone)]
pub enum Init {
    /// Signals drawn at random, non-zero and distinct (`|cos|` of two is at most 0.99); random
    /// directions if there are too few such signals.
    RandomSignals,
    /// [`overcomplete_dct`] of square patches.
    Dct,
    /// These, `[n_atoms, n_features]`.
    Given(Tensor),
}

/// How alike two signals of a start may be.
const MAX_COHERENCE: f64 = 0.99;

/// Initial atoms of length 1, `[n_atoms, n_features]`, of the type and on the device of `signals`,
/// `[n_samples, n_features]`.
///
/// The draws of [`Init::RandomSignals`] start at `philox`; the other starts draw nothing. A given
/// atom of zeros stays zero: no signal uses it, and the trainers replace it.
///
/// # Errors
/// When `signals` are not a matrix of at least one feature, given atoms have another shape, or
/// `n_features` is not a square for [`Init::Dct`].
pub fn init(from: &Init, n_atoms: usize, signals: &Tensor, philox: Philox) -> Result<Tensor> {
    const OP: &str = "init";
    let (_, p) = shape_of(OP, signals)?;
    // Atoms and their products with each other, in f64 for the cosine transform.
    let values = n_atoms as f64 * (n_atoms as f64 + 4. * p as f64);
    room_for(OP, &format!("{n_atoms} atoms of {p} values"), values, signals.device())?;
    let atoms = match from {
        Init::RandomSignals => {
            let chosen = distinct_signals(signals, n_atoms, philox)?;
            // A stream of their own: a permutation takes as many words as it likes.
            let rest = Philox { stream: philox.stream ^ (1 << 63), ..philox };
            let rest = normal((n_atoms - chosen.dim(0)?, p), signals.device(), rest)?;
            Tensor::cat(&[chosen, rest.to_dtype(signals.dtype())?], 0)?
        }
        Init::Dct => {
            let side = p.isqrt();
            if side * side != p {
                candle::bail!(
                    "{OP}: n_features must be a square for a DCT of square patches, got {p}; take another start"
                )
            }
            overcomplete_dct(n_atoms, side)?.to_dtype(signals.dtype())?.to_device(signals.device())?
        }
        Init::Given(atoms) => {
            if atoms.dims() != [n_atoms, p] {
                candle::bail!("{OP}: given atoms must have shape [{n_atoms}, {p}], got {:?}", atoms.dims())
            }
            atoms.to_dtype(signals.dtype())?.to_device(signals.device())?
        }
    };
    unit_rows(&atoms)
}

/// Random directions as atoms of length 1, f32 `[n_atoms, n_features]`.
pub(crate) fn random(n_atoms: usize, n_features: usize, philox: Philox, device: &Device) -> Result<Tensor> {
    let none = Tensor::zeros((0, n_features), DType::F32, device)?;
    init(&Init::RandomSignals, n_atoms, &none, philox)
}

/// The distribution of atoms that candle draws: they have length 1 on average.
pub(crate) fn drawn(n_features: usize) -> candle_nn::Init {
    candle_nn::Init::Randn { mean: 0., stdev: (n_features as f64).sqrt().recip() }
}

/// At most `n` of the `signals`, `[n_samples, n_features]`, drawn at random as atoms of length 1,
/// `[≤ n, n_features]`: non-zero and distinct (`|cos|` of two is at most 0.99). Fewer than `n` if
/// there are not enough such signals.
///
/// They are the signals that [`init`] draws for [`Init::RandomSignals`] with the same `philox`.
/// Cost: about `2 n² n_features` FLOP if few signals are similar; at worst as much for every `n`
/// signals.
///
/// # Errors
/// When `signals` are not a matrix of at least one feature.
pub fn distinct_signals(signals: &Tensor, n: usize, philox: Philox) -> Result<Tensor> {
    let (m, _) = shape_of("distinct_signals", signals)?;
    let all = Share::new(&Group::single(), m);
    replace_atoms::distinct(&all, signals, &philox.permutation(m), n, MAX_COHERENCE, false)
}

fn shape_of(op: &str, signals: &Tensor) -> Result<(usize, usize)> {
    match signals.dims() {
        &[m, p] if p > 0 => Ok((m, p)),
        shape => candle::bail!("{op}: signals must be [n_samples, n_features], got shape {shape:?}"),
    }
}

/// The overcomplete discrete cosine dictionary of square patches, `[n_atoms, side²]`, f64 on the
/// CPU.
///
/// Products of one-dimensional waves `cos(π k i / K)`, `k < K = ⌈√n_atoms⌉`, `i < side`, each of
/// mean 0 except the first, scaled to length 1: the start of Elad and Aharon, "Image denoising via
/// sparse and redundant representations over learned dictionaries", IEEE Trans. Image Processing
/// 15(12), 2006. The first atom is constant. If `n_atoms` is not a square, the waves of highest
/// frequency (`k + l`) are dropped.
///
/// # Errors
/// When a size is 0.
pub fn overcomplete_dct(n_atoms: usize, side: usize) -> Result<Tensor> {
    crate::check::at_least_one("overcomplete_dct", "n_atoms", n_atoms)?;
    crate::check::at_least_one("overcomplete_dct", "side", side)?;
    let k_all = (n_atoms - 1).isqrt() + 1; // ⌈√n_atoms⌉
    let waves: Vec<Vec<f64>> = (0..k_all)
        .map(|k| {
            let at = |i: usize| (PI * k as f64 * i as f64 / k_all as f64).cos();
            let mut wave: Vec<f64> = (0..side).map(at).collect();
            let mean = if k == 0 { 0. } else { wave.iter().sum::<f64>() / side as f64 };
            wave.iter_mut().for_each(|x| *x -= mean);
            wave
        })
        .collect();
    let mut pairs: Vec<(usize, usize)> = (0..k_all * k_all).map(|e| (e / k_all, e % k_all)).collect();
    pairs.sort_by_key(|&(k, l)| k + l);
    pairs.truncate(n_atoms);
    pairs.sort_unstable();
    let product = |(k, l): (usize, usize)| {
        let column: &[f64] = &waves[l];
        waves[k].iter().flat_map(move |y| column.iter().map(move |x| x * y))
    };
    let atoms: Vec<f64> = pairs.into_iter().flat_map(product).collect();
    unit_rows(&Tensor::from_vec(atoms, (n_atoms, side * side), &Device::Cpu)?.to_dtype(DType::F64)?)
}
