//! Codes of many signals at once, and of one after the other.
#![allow(clippy::unwrap_used)]
use super::super::problem::{self, Fit, Problem};
use super::super::{look_ahead, projection, subspace};
use super::*;
use candle::Device::Cpu;
use chandlery_ops::Philox;
use chandlery_ops::codes::ErrorTarget;
use chandlery_ops::core::normal;

type Pursue = fn(&Problem) -> Fit;
const ALL: [(PursuitMethod, Pursue); 3] = [
    (PursuitMethod::SubspacePursuit, subspace::pursue),
    (PursuitMethod::ProjectionOmp, projection::pursue),
    (PursuitMethod::LookAheadOls, look_ahead::pursue),
];

fn gaussian(rows: usize, p: usize, stream: u64) -> Tensor {
    normal((rows, p), &Cpu, Philox::new(31, stream)).unwrap().to_dtype(DType::F64).unwrap()
}

/// Random walks, many of which are alike, of several lengths.
fn coherent(n: usize, p: usize) -> Tensor {
    let walk = gaussian(n, p, 1).cumsum(1).unwrap();
    let walk = walk.broadcast_sub(&walk.mean_keepdim(1).unwrap()).unwrap();
    let lengths = Tensor::arange(1f64, n as f64 + 1., &Cpu).unwrap().unsqueeze(1).unwrap();
    walk.broadcast_mul(&lengths).unwrap()
}

fn assert_same(what: &str, coder: &SparseCoder, signals: &Tensor, dictionary: &Tensor, pursue: Pursue) {
    let want = problem::encode(coder, signals, dictionary, pursue).unwrap();
    let got = encode(coder, signals, dictionary).unwrap();
    let counts = |codes: &SparseCodes| codes.count.to_vec1::<u32>().unwrap();
    assert_eq!(counts(&got), counts(&want), "{what}");
    // Rounding decides in which order subspace pursuit leaves a support that it found twice.
    let dense = |codes: &SparseCodes| codes.to_dense().unwrap();
    let atoms = |codes: &SparseCodes| dense(codes).ne(0f64).unwrap().to_vec2::<u8>().unwrap();
    assert_eq!(atoms(&got), atoms(&want), "{what}");
    let scale = want.values.abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
    let off = (dense(&got) - dense(&want)).unwrap().abs().unwrap().max_all().unwrap();
    // The same sums in another order, for supports whose condition is below 1e5.
    let off = off.to_scalar::<f64>().unwrap();
    assert!(off <= 1e-9 * scale.max(1e-300), "{what}: values are off by {off} of {scale}");
}

#[test]
fn codes_are_those_of_one_signal_after_the_other() {
    for (method, pursue) in ALL {
        for (m, n, p, s) in [(1, 1, 1, 1), (40, 12, 9, 3), (70, 60, 24, 6), (33, 100, 40, 12)] {
            let (signals, atoms) = (gaussian(m, p, 2), coherent(n, p));
            let coder = SparseCoder::new(method, s);
            let what = format!("{} {m}x{n}x{p}x{s}", method.name());
            if p > 1 {
                assert_same(&what, &coder, &signals, &atoms, pursue);
            }
            assert_same(&what, &coder, &signals, &gaussian(n, p, 3), pursue);
            let few = SparseCoder { chunk: Some(7), ..coder };
            assert_same(&what, &few, &signals, &gaussian(n, p, 3), pursue);
        }
    }
}

#[test]
fn error_targets_end_each_signal_by_itself() {
    let (signals, atoms) = (gaussian(60, 24, 4), gaussian(60, 24, 5));
    for (method, pursue) in ALL {
        // Of candidates that are more than the 24 values of a signal, rounding decides which
        // depend on others.
        for error in [0.9, 0.4, 0.2] {
            let coder =
                SparseCoder { error: Some(ErrorTarget::Relative(error)), ..SparseCoder::new(method, 10) };
            assert_same(&format!("{} to {error}", method.name()), &coder, &signals, &atoms, pursue);
        }
    }
}

#[test]
fn zero_signals_and_dependent_atoms_leave_slots_empty() {
    // The third atom is the sum of the first two, the fourth is zero, the fifth equals the
    // first.
    let atoms: [[f64; 3]; 5] = [[1., 0., 0.], [0., 1., 0.], [1., 1., 0.], [0., 0., 0.], [1., 0., 0.]];
    let atoms = Tensor::new(&atoms, &Cpu).unwrap();
    let signals = Tensor::new(&[[0f64, 0., 0.], [0., 3., 0.], [2., -5., 1.], [1., 1., 0.]], &Cpu).unwrap();
    for (method, pursue) in ALL {
        for s in 1..=5 {
            let what = format!("{} of {s}", method.name());
            assert_same(&what, &SparseCoder::new(method, s), &signals, &atoms, pursue);
        }
    }
}
