//! The pursuits beyond OMP: what each promises, and where each finds what OMP misses.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery::Philox;
use chandlery::dictionary::pursuit::{PursuitMethod, SparseCoder};
use chandlery_ops::codes::{ErrorTarget, SparseCodes};
use chandlery_ops::core::{normal, uniform};
use std::collections::BTreeSet;

const OTHERS: [PursuitMethod; 3] =
    [PursuitMethod::SubspacePursuit, PursuitMethod::ProjectionOmp, PursuitMethod::LookAheadOls];

fn coder(method: PursuitMethod, n_nonzero: usize) -> SparseCoder {
    SparseCoder::new(method, n_nonzero)
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

/// Atoms that are moving sums of noise, neighbours alike: cosines of about .8, .6, .4 and .2.
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

/// The share of signals whose support is found, by OMP, OLS and the others in the order of
/// [`PursuitMethod::ALL`].
fn recovered(dictionary: &Tensor, m: usize, s: usize, size: Size) -> Result<[f64; 5]> {
    let (signals, truth) = sparse_signals(dictionary, m, s, size)?;
    let mut shares = [0.; 5];
    for (share, method) in shares.iter_mut().zip(PursuitMethod::ALL) {
        let found = supports(&coder(method, s).encode(&signals, dictionary)?)?;
        *share = found.iter().zip(&truth).filter(|(a, b)| a == b).count() as f64 / m as f64;
    }
    Ok(shares)
}

fn report(what: &str, shares: [f64; 5]) {
    for (method, share) in PursuitMethod::ALL.into_iter().zip(shares) {
        println!("{what}: {} finds {:.1} % of the supports", method.name(), 100. * share);
    }
}

// What separates two methods below is asserted with a margin of .1, over five deviations of the
// difference of two shares of the same 300 signals.

#[test]
fn coefficients_of_one_size_are_where_exchanging_atoms_beats_omp() -> Result<()> {
    // No atom stands out, so that OMP errs at first choices, which it cannot take back (Dai and
    // Milenkovic 2009, figure 2).
    let shares = recovered(&incoherent(128, 64)?, 300, 16, Size::Equal)?;
    report("equal coefficients", shares);
    let [omp, ols, subspace, projection, ahead] = shares;
    assert!(
        subspace > omp + 0.1 && subspace > ols + 0.1,
        "subspace pursuit {subspace}, OMP {omp}, OLS {ols}"
    );
    assert!(projection > omp + 0.1, "projection {projection}, OMP {omp}");
    assert!(ahead > omp + 0.1, "look-ahead {ahead}, OMP {omp}");
    Ok(())
}

#[test]
fn many_atoms_are_where_candidates_in_company_beat_omp() -> Result<()> {
    // Twenty atoms in 64 dimensions: correlations alone mislead.
    let shares = recovered(&incoherent(128, 64)?, 300, 20, Size::Normal)?;
    report("normal coefficients", shares);
    let [omp, _, subspace, projection, ahead] = shares;
    for (name, share) in [("subspace", subspace), ("projection", projection), ("look-ahead", ahead)] {
        assert!(share > omp + 0.1, "{name} {share}, OMP {omp}");
    }
    Ok(())
}

#[test]
fn coherent_atoms_are_where_taking_back_beats_omp() -> Result<()> {
    // Five neighbours of an atom have cosines of .8, .6, .4 and .2 with it.
    let shares = recovered(&coherent(128, 64)?, 300, 6, Size::Equal)?;
    report("coherent atoms", shares);
    let [omp, _, subspace, projection, ahead] = shares;
    for (name, share) in [("subspace", subspace), ("projection", projection), ("look-ahead", ahead)] {
        assert!(share > omp + 0.1, "{name} {share}, OMP {omp}");
    }
    Ok(())
}

#[test]
fn signals_that_no_few_atoms_give_are_where_least_squares_leaves_less() -> Result<()> {
    let dictionary = coherent(128, 32)?;
    let signals = gaussian(300, 32, 4)?;
    let total = |method| -> Result<f64> {
        Ok(errors(&coder(method, 8).encode(&signals, &dictionary)?, &signals, &dictionary)?.iter().sum())
    };
    let (omp, ols, ahead) =
        (total(PursuitMethod::Omp)?, total(PursuitMethod::Ols)?, total(PursuitMethod::LookAheadOls)?);
    println!("energy left: omp {omp:.1}, ols {ols:.1}, look-ahead {ahead:.1}");
    assert!(ols < 0.97 * omp, "OLS leaves {ols}, OMP {omp}");
    assert!(ahead < 0.9 * ols, "look-ahead leaves {ahead}, OLS {ols}");
    Ok(())
}

#[test]
fn looking_ahead_is_never_worse_than_least_squares() -> Result<()> {
    // Signals that no few atoms give exactly.
    for (dictionary, s) in [(coherent(60, 24)?, 5), (incoherent(40, 16)?, 4), (coherent(50, 8)?, 6)] {
        let signals = gaussian(200, dictionary.dim(1)?, 5)?;
        let left = |method| errors(&coder(method, s).encode(&signals, &dictionary)?, &signals, &dictionary);
        let (ols, ahead) = (left(PursuitMethod::Ols)?, left(PursuitMethod::LookAheadOls)?);
        for (row, (ahead, ols)) in ahead.iter().zip(&ols).enumerate() {
            // 1e-9: the two compute the same residual on different ways.
            assert!(ahead <= &(ols * (1. + 1e-9)), "row {row}: {ahead} looking ahead, {ols} without");
        }
        let better = ahead.iter().zip(&ols).filter(|(ahead, ols)| **ahead < 0.999 * **ols).count();
        assert!(better > 50, "only {better} of 200 signals gain");
    }
    Ok(())
}

#[test]
fn every_fit_is_the_best_for_its_atoms() -> Result<()> {
    let (dictionary, signals) = (coherent(60, 24)?, gaussian(100, 24, 6)?);
    // Atoms need not be normalised.
    let lengths: Vec<f64> = (0..60).map(|j| 0.1 + j as f64).collect();
    let dictionary = dictionary.broadcast_mul(&Tensor::new(lengths.as_slice(), &Cpu)?.unsqueeze(1)?)?;
    for method in PursuitMethod::ALL {
        let codes = coder(method, 6).encode(&signals, &dictionary)?;
        assert_eq!((codes.indices.dims(), codes.n_atoms), ([100usize, 6].as_slice(), 60), "{method:?}");
        let correlations =
            codes.residual(&signals, &dictionary)?.matmul(&dictionary.t()?)?.to_vec2::<f64>()?;
        let found = supports(&codes)?;
        assert!(found.iter().all(|support| support.len() == 6), "{method:?}: an atom twice, or too few");
        for (row, support) in found.into_iter().enumerate() {
            for i in support {
                // ‖y‖ is about 5.
                let cosine = correlations[row][i as usize] / (5. * lengths[i as usize]);
                assert!(cosine.abs() < 1e-9, "{method:?}: row {row}, atom {i}: {cosine}");
            }
        }
    }
    Ok(())
}

#[test]
fn error_targets_are_met_by_as_few_atoms_as_it_takes() -> Result<()> {
    let (dictionary, signals) = (incoherent(60, 24)?, gaussian(100, 24, 7)?);
    let norms = signals.sqr()?.sum(1)?.sqrt()?;
    let targets = (&norms * 0.4)?;
    for method in OTHERS {
        let all =
            |error| SparseCoder { error: Some(error), ..coder(method, 20) }.encode(&signals, &dictionary);
        let (relative, each) =
            (all(ErrorTarget::Relative(0.4))?, all(ErrorTarget::PerSignal(targets.clone()))?);
        assert_eq!(supports(&relative)?, supports(&each)?, "{method:?}");
        let left = errors(&relative, &signals, &dictionary)?;
        let limits = targets.to_vec1::<f64>()?;
        let count = relative.count.to_vec1::<u32>()?;
        for row in 0..100 {
            assert!(
                left[row].sqrt() <= limits[row] * (1. + 1e-9),
                "{method:?}: row {row} keeps {}",
                left[row].sqrt()
            );
        }
        let total = count.iter().sum::<u32>();
        match method {
            // It has tried every smaller number.
            PursuitMethod::SubspacePursuit => {
                for (row, &count) in count.iter().enumerate().filter(|(_, count)| **count > 1) {
                    let one = signals.narrow(0, row, 1)?;
                    let fewer = coder(method, count as usize - 1).encode(&one, &dictionary)?;
                    let left = errors(&fewer, &one, &dictionary)?[0].sqrt();
                    assert!(left > limits[row], "row {row} took {count} atoms where one fewer leaves {left}");
                }
            }
            _ => println!("{}: {total} atoms", method.name()),
        }
        if method == PursuitMethod::LookAheadOls {
            let by_ols = SparseCoder {
                method: PursuitMethod::Ols,
                error: Some(ErrorTarget::Relative(0.4)),
                ..coder(method, 20)
            };
            let by_ols = by_ols.encode(&signals, &dictionary)?.count.to_vec1::<u32>()?;
            let worse = count.iter().zip(&by_ols).filter(|(ahead, ols)| ahead > ols).count();
            assert_eq!(worse, 0, "signals for which looking ahead takes more atoms than OLS");
            assert!(total < by_ols.iter().sum(), "looking ahead saves nothing");
        }
    }
    Ok(())
}

#[test]
fn zero_signals_dependent_atoms_and_exact_codes_end_early() -> Result<()> {
    // The third atom is the sum of the first two, the fourth is zero.
    let dictionary = Tensor::new(&[[1f64, 0., 0.], [0., 1., 0.], [1., 1., 0.], [0., 0., 0.]], &Cpu)?;
    let signals = Tensor::new(&[[0f64, 0., 0.], [0., 3., 0.], [2., -5., 1.]], &Cpu)?;
    for dtype in [DType::F32, DType::F64] {
        for method in PursuitMethod::ALL {
            let codes = coder(method, 4).encode(&signals.to_dtype(dtype)?, &dictionary.to_dtype(dtype)?)?;
            assert_eq!(codes.count.to_vec1::<u32>()?, [0, 1, 2], "{method:?} {dtype:?}");
            let sum =
                codes.reconstruct(&dictionary.to_dtype(dtype)?)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
            for (got, want) in sum.iter().flatten().zip([0., 0., 0., 0., 3., 0., 2., -5., 0.]) {
                assert!((got - want).abs() < 1e-5, "{method:?} {dtype:?}: {sum:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn names_are_read_and_written() {
    for method in PursuitMethod::ALL {
        assert_eq!(method.name().parse(), Ok(method));
        assert_eq!(serde_json::to_string(&method).unwrap(), format!("\"{}\"", method.name()));
    }
    let error = "mp".parse::<PursuitMethod>().unwrap_err();
    assert_eq!(
        error,
        "the pursuit must be one of omp, ols, subspace-pursuit, projection-omp, look-ahead-ols, got mp"
    );
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let (signals, dictionary) = (gaussian(4, 3, 8)?, gaussian(5, 3, 9)?);
    let message = |r: Result<SparseCodes>| r.err().map(|e| e.to_string()).unwrap_or_default();
    let mut nan = signals.to_vec2::<f64>()?;
    nan[2][1] = f64::NAN;
    let nan = Tensor::new(nan, &Cpu)?;
    let plain = coder(PursuitMethod::SubspacePursuit, 2);
    let cases = [
        (
            SparseCoder { nonnegative: true, ..plain.clone() }.encode(&signals, &dictionary),
            "subspace-pursuit: coefficients of at least 0 are for omp and ols, got nonnegative; choose one of the two",
        ),
        (
            coder(PursuitMethod::ProjectionOmp, 6).encode(&signals, &dictionary),
            "projection-omp: n_nonzero must be in 1..=5, the number of atoms, got 6",
        ),
        (
            plain.encode(&nan, &dictionary),
            "subspace-pursuit: signals must be finite, got NaN or infinity in row 2",
        ),
        (
            coder(PursuitMethod::LookAheadOls, 2).encode(&signals, &gaussian(5, 4, 1)?),
            "look-ahead-ols: dictionary must be [n_atoms, 3] to go with the signals, got [5, 4]",
        ),
        (
            SparseCoder { error: Some(ErrorTarget::Absolute(-1.)), ..plain.clone() }
                .encode(&signals, &dictionary),
            "subspace-pursuit: error targets must be finite numbers of at least 0, got -1",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(message(result).lines().next(), Some(want));
    }
    Ok(())
}
