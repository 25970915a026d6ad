//! The lasso of users: every solver reaches the reference, and what the results say of themselves
//! is true.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery::Philox;
use chandlery::sparse_coding::lasso::{Lasso, LineSearch, Solver, Status, Stop};
use chandlery_ops::codes::{lasso_gaps_reference, lasso_reference};
use chandlery_ops::core::{normal, uniform};

const SOLVERS: [Solver; 7] = [
    Solver::ActiveSet,
    Solver::CoordinateDescent,
    Solver::CoordinateParallel { line_search: LineSearch::Exact, stop: Stop::Gap },
    Solver::CoordinateParallel { line_search: LineSearch::Steps, stop: Stop::Gap },
    Solver::CoordinateBlocks { block: 16 },
    Solver::CoordinateBlocks { block: 1000 },
    Solver::Fista,
];

fn gaussian(rows: usize, p: usize, stream: u64) -> Result<Tensor> {
    normal((rows, p), &Cpu, Philox::new(3, stream))?.to_dtype(DType::F64)
}

/// Signals and a dictionary with a zero atom and two equal ones.
fn problem() -> Result<(Tensor, Tensor)> {
    let atoms = gaussian(40, 16, 1)?;
    let zero = Tensor::zeros((1, 16), DType::F64, &Cpu)?;
    Ok((gaussian(23, 16, 0)?, Tensor::cat(&[&atoms, &zero, &atoms.narrow(0, 3, 1)?], 0)?))
}

fn gaps(lasso: &Lasso, a: &Tensor, signals: &Tensor, dictionary: &Tensor) -> Result<Vec<f64>> {
    let penalties = Tensor::full(lasso.beta, dictionary.dim(0)?, &Cpu)?;
    lasso_gaps_reference(a, signals, dictionary, &penalties, lasso.nonnegative)?.to_vec1()
}

fn objectives(beta: f64, a: &Tensor, signals: &Tensor, dictionary: &Tensor) -> Result<Vec<f64>> {
    let left = (signals - a.matmul(dictionary)?)?.sqr()?.sum(1)?;
    ((left * 0.5)? + (a.abs()?.sum(1)? * beta)?)?.to_vec1()
}

#[test]
fn every_solver_reaches_the_minimum_of_the_reference() -> Result<()> {
    let (signals, dictionary) = problem()?;
    let beta = 0.1 * Lasso::new(0.).lambda_max(&signals, &dictionary)?;
    let penalties = Tensor::full(beta, 42, &Cpu)?;
    for nonnegative in [false, true] {
        let want = lasso_reference(&signals, &dictionary, &penalties, nonnegative)?;
        let want = objectives(beta, &want, &signals, &dictionary)?;
        for (solver, dtype) in SOLVERS.into_iter().flat_map(|s| [(s, DType::F32), (s, DType::F64)]) {
            let lasso = Lasso { solver, nonnegative, max_iterations: 5000, ..Lasso::new(beta) };
            let start = gaussian(23, 42, 9)?.to_dtype(dtype)?;
            for start in [None, Some(&start)] {
                let got = lasso.solve(&signals.to_dtype(dtype)?, &dictionary.to_dtype(dtype)?, start)?;
                assert_eq!(got.status()?, [Status::Converged; 23], "{solver:?}, {dtype:?}");
                let a = got.dense.to_dtype(DType::F64)?;
                for (got, want) in objectives(beta, &a, &signals, &dictionary)?.iter().zip(&want) {
                    let above = (got - want) / want;
                    assert!((-1e-9..1.1e-4).contains(&above), "{solver:?}, {dtype:?}: {got} for {want}");
                }
                assert_eq!(a.narrow(1, 40, 1)?.abs()?.max_all()?.to_scalar::<f64>()?, 0., "the zero atom");
            }
        }
    }
    Ok(())
}

#[test]
fn reported_gaps_are_true_and_the_cap_is_a_status() -> Result<()> {
    let (signals, dictionary) = problem()?;
    for solver in SOLVERS {
        let lasso = Lasso { solver, max_iterations: 1, tolerance: 1e-7, ..Lasso::new(0.5) };
        let got = lasso.solve(&signals, &dictionary, None)?;
        let truth = gaps(&lasso, &got.dense, &signals, &dictionary)?;
        let status = got.status()?;
        assert!(status.contains(&Status::Stopped), "{solver:?}");
        for (row, gap) in got.gaps.to_vec1::<f64>()?.into_iter().enumerate() {
            assert!((gap - truth[row]).abs() < 1e-9, "{solver:?}: {gap} for {}", truth[row]);
            assert_eq!(status[row] == Status::Converged, gap <= 1e-7, "{solver:?}");
        }
    }
    Ok(())
}

#[test]
fn the_stop_of_the_paper_looks_at_the_objective_and_not_at_the_gap() -> Result<()> {
    let (signals, dictionary) = problem()?;
    let solve = |stop| {
        let solver = Solver::CoordinateParallel { line_search: LineSearch::Exact, stop };
        let lasso = Lasso { solver, tolerance: 0., max_iterations: 100_000, ..Lasso::new(0.5) };
        lasso.solve(&signals, &dictionary, None)
    };
    // The most iterations that a solve to no tolerance makes would take minutes: that it ends is
    // the first claim.
    let got = solve(Stop::Fall)?;
    let reference = lasso_reference(&signals, &dictionary, &Tensor::full(0.5, 42, &Cpu)?, false)?;
    let want = objectives(0.5, &reference, &signals, &dictionary)?;
    for (got, want) in objectives(0.5, &got.dense, &signals, &dictionary)?.iter().zip(&want) {
        // A fall below 1e-6 of the objective: ten of these, and what comes after, are at most 1e-3
        // of it here.
        assert!((-1e-9..1e-3).contains(&((got - want) / want)), "{got} for {want}");
    }
    assert!(got.gaps.max(0)?.to_scalar::<f64>()? > 1e-12, "some gap is above the tolerance");
    Ok(())
}

#[test]
fn blocks_take_fewer_iterations_than_all_coordinates_at_once() -> Result<()> {
    // Atoms that are much alike.
    let common = gaussian(1, 30, 5)?;
    let dictionary = gaussian(60, 30, 6)?.broadcast_add(&common)?;
    let signals = gaussian(20, 30, 7)?.broadcast_add(&common)?;
    let beta = 0.05 * Lasso::new(0.).lambda_max(&signals, &dictionary)?;
    let converged = |solver, max_iterations| -> Result<usize> {
        let got = Lasso { solver, max_iterations, ..Lasso::new(beta) }.solve(&signals, &dictionary, None)?;
        Ok(got.status()?.into_iter().filter(|&status| status == Status::Converged).count())
    };
    let parallel = Solver::CoordinateParallel { line_search: LineSearch::Exact, stop: Stop::Gap };
    let blocks = Solver::CoordinateBlocks { block: 10 };
    let mut cap = 20;
    while converged(blocks, cap)? < 20 {
        cap *= 2;
        assert!(cap < 10_000, "blocks do not converge");
    }
    let at_once = converged(parallel, cap)?;
    assert!(at_once < 20, "{at_once} of 20 signals at once within {cap} iterations, as by blocks");
    Ok(())
}

#[test]
fn lambda_max_is_where_activations_begin() -> Result<()> {
    let (signals, dictionary) = problem()?;
    let weights: Vec<f64> = (0..42).map(|j| f64::from(j % 3)).collect();
    for nonnegative in [false, true] {
        let lasso = Lasso { nonnegative, ..Lasso::new(0.) };
        let largest = lasso.lambda_max(&signals, &dictionary)?;
        let at =
            |beta: f64| Lasso { beta, tolerance: 1e-9, ..lasso.clone() }.solve(&signals, &dictionary, None);
        assert_eq!(at(1.0001 * largest)?.counts()?.sum_all()?.to_scalar::<u32>()?, 0);
        assert!(at(0.99 * largest)?.counts()?.sum_all()?.to_scalar::<u32>()? > 0);
        // A weight of 2 halves the β that an atom needs; atoms of weight 0 do not count.
        let weighted = Lasso { weights: Some(Tensor::new(weights.as_slice(), &Cpu)?), ..lasso.clone() };
        let correlations = signals.matmul(&dictionary.t()?)?.to_vec2::<f64>()?;
        let of = |c: &[f64]| {
            let sizes = c.iter().zip(&weights).filter(|(_, w)| **w > 0.);
            sizes.map(|(c, w)| if nonnegative { c / w } else { c.abs() / w }).fold(0., f64::max)
        };
        let want = correlations.iter().map(|c| of(c)).fold(0., f64::max);
        assert!((weighted.lambda_max(&signals, &dictionary)? / want - 1.).abs() < 1e-12);
    }
    Ok(())
}

#[test]
fn a_path_is_the_solutions_for_each_beta() -> Result<()> {
    let (signals, dictionary) = problem()?;
    let lasso = Lasso { tolerance: 1e-9, ..Lasso::new(1.) };
    let largest = lasso.lambda_max(&signals, &dictionary)?;
    let betas: Vec<f64> = (0..8).map(|k| largest * 0.7f64.powi(k)).collect();
    let path = lasso.path(&signals, &dictionary, &betas)?;
    let mut last = 0;
    for (&beta, got) in betas.iter().zip(&path) {
        let alone = Lasso { beta, ..lasso.clone() }.solve(&signals, &dictionary, None)?;
        let (got_of, want_of) = (
            objectives(beta, &got.dense, &signals, &dictionary)?,
            objectives(beta, &alone.dense, &signals, &dictionary)?,
        );
        assert!(got_of.iter().zip(&want_of).all(|(got, want)| (got / want - 1.).abs() < 1e-8), "{beta}");
        let count = got.counts()?.sum_all()?.to_scalar::<u32>()?;
        assert!(count >= last, "{beta}: {count} after {last}");
        last = count;
    }
    assert!(last > 100, "{last}");
    Ok(())
}

#[test]
fn an_elastic_net_is_the_lasso_of_longer_signals() -> Result<()> {
    let (signals, dictionary) = problem()?;
    let ridge = 2f64;
    let longer = Tensor::cat(&[&dictionary, &(Tensor::eye(42, DType::F64, &Cpu)? * ridge.sqrt())?], 1)?;
    let padded = Tensor::cat(&[&signals, &Tensor::zeros((23, 42), DType::F64, &Cpu)?], 1)?;
    for solver in SOLVERS {
        let lasso = Lasso { solver, tolerance: 1e-10, max_iterations: 5000, ..Lasso::new(0.5) };
        let net = Lasso { ridge, ..lasso.clone() }.solve(&signals, &dictionary, None)?;
        let want = Lasso { solver: Solver::ActiveSet, ..lasso }.solve(&padded, &longer, None)?;
        let off = (net.dense - want.dense)?.abs()?.max_all()?.to_scalar::<f64>()?;
        // The ridge makes the objective 2-strongly convex: off² ≤ 2 · gap · P, with P below 50.
        assert!(off < 2e-4, "{solver:?}: {off}");
    }
    Ok(())
}

#[test]
fn sparse_codes_are_the_activations() -> Result<()> {
    let (signals, dictionary) = problem()?;
    for beta in [0.5, 1e6] {
        let got = Lasso::new(beta).solve(&signals, &dictionary, None)?;
        let codes = got.to_sparse()?;
        assert_eq!(codes.to_dense()?.to_vec2::<f64>()?, got.dense.to_vec2::<f64>()?);
        assert_eq!(codes.count.to_vec1::<u32>()?, got.counts()?.to_vec1::<u32>()?);
        assert_eq!(codes.width(), codes.count.max_all()?.to_scalar::<u32>()?.max(1) as usize);
    }
    Ok(())
}

#[test]
fn no_signals_give_no_activations() -> Result<()> {
    let (signals, dictionary) = problem()?;
    for solver in SOLVERS {
        let got = Lasso { solver, ..Lasso::new(1.) }.solve(&signals.narrow(0, 0, 0)?, &dictionary, None)?;
        assert_eq!((got.dense.dims(), got.gaps.dims()), (&[0, 42][..], &[0][..]));
        assert_eq!(got.status()?, []);
    }
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let (signals, dictionary) = problem()?;
    let solve = |lasso: Lasso| lasso.solve(&signals, &dictionary, None);
    let one = Lasso::new(1.);
    let cases = [
        (solve(Lasso::new(-1.)), "Lasso: beta must be at least 0, got -1"),
        (solve(Lasso { ridge: f64::NAN, ..one.clone() }), "Lasso: ridge must be at least 0, got NaN"),
        (solve(Lasso { tolerance: -1., ..one.clone() }), "Lasso: tolerance must be at least 0, got -1"),
        (
            solve(Lasso { max_iterations: 0, ..one.clone() }),
            "Lasso: max_iterations must be at least 1, got 0",
        ),
        (
            solve(Lasso { weights: Some(Tensor::ones(3, DType::F64, &Cpu)?), ..one.clone() }),
            "Lasso: weights must have shape [42], got [3]",
        ),
        (
            one.solve(&signals.narrow(1, 0, 5)?, &dictionary, None),
            "Lasso: signals must be [n_samples, n_features] and dictionary [n_atoms, n_features], got [23, 5] and [42, 16]",
        ),
        (
            one.solve(&signals, &dictionary.to_dtype(DType::F32)?, None),
            "Lasso: signals and dictionary must both be f32 or both f64, got F64 and F32",
        ),
        (
            one.solve(&signals, &dictionary, Some(&signals)),
            "Lasso: start must be [23, 42] F64, got [23, 16] F64",
        ),
    ];
    for (result, want) in cases {
        let message = result.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}

#[test]
fn signals_with_missing_samples_have_the_minimum_over_the_others() -> Result<()> {
    let (_, dictionary) = problem()?;
    let signals = gaussian(70, 16, 20)?;
    // Twenty signals miss the same samples, one has none, and the others miss samples of their own.
    let own = uniform((50, 16), &Cpu, Philox::new(3, 21))?.ge(0.4)?;
    let same = own.narrow(0, 0, 1)?.broadcast_as((20, 16))?.contiguous()?;
    let mask = Tensor::cat(&[&same.narrow(0, 0, 9)?, &own.narrow(0, 1, 49)?, &same.narrow(0, 9, 11)?], 0)?;
    let mask = Tensor::cat(&[&mask, &mask.narrow(0, 0, 1)?.zeros_like()?], 0)?;
    let nothing = Tensor::full(f64::NAN, (70, 16), &Cpu)?;
    let holes = mask.where_cond(&signals, &nothing)?;
    let penalties = Tensor::full(0.4, 42, &Cpu)?;
    for (nonnegative, ridge) in [(false, 0.), (true, 0.), (false, 0.3)] {
        let lasso = Lasso { nonnegative, ridge, ..Lasso::new(0.4) };
        // A ridge is as many more samples, of 0.
        let extend = |x: &Tensor, by: &Tensor| Tensor::cat(&[x, &(by * ridge.sqrt())?], 1);
        let got = lasso.solve_masked(&holes, &mask, &dictionary)?;
        assert_eq!(got.status()?, [Status::Converged; 70]);
        for row in 0..70 {
            let shown = mask.narrow(0, row, 1)?.to_dtype(DType::F64)?;
            let x = (signals.narrow(0, row, 1)? * &shown)?;
            let x = extend(&x, &Tensor::zeros((1, 42), DType::F64, &Cpu)?)?;
            let atoms = extend(&dictionary.broadcast_mul(&shown)?, &Tensor::eye(42, DType::F64, &Cpu)?)?;
            let a = got.dense.narrow(0, row, 1)?;
            let gap = lasso_gaps_reference(&a, &x, &atoms, &penalties, nonnegative)?.get(0)?;
            let gap = gap.to_scalar::<f64>()?;
            assert!(gap <= 1e-4 + 1e-9, "row {row}, nonnegative {nonnegative}, ridge {ridge}: {gap}");
        }
        assert_eq!(got.dense.get(69)?.abs()?.max(0)?.to_scalar::<f64>()?, 0., "no samples, no activations");
    }
    let none = Lasso::new(0.4).solve_masked(&holes.narrow(0, 0, 0)?, &mask.narrow(0, 0, 0)?, &dictionary)?;
    assert_eq!(none.dense.dims(), [0, 42]);
    Ok(())
}

#[test]
fn masks_that_do_not_fit_are_refused() -> Result<()> {
    let (signals, dictionary) = problem()?;
    let mask = Tensor::ones((23, 16), DType::U8, &Cpu)?;
    let error = |lasso: &Lasso, mask: &Tensor| {
        lasso.solve_masked(&signals, mask, &dictionary).map(drop).unwrap_err().to_string()
    };
    let lasso = Lasso::new(0.4);
    let narrow = error(&lasso, &mask.narrow(1, 0, 15)?.contiguous()?);
    assert!(
        narrow.contains("mask must be u8 of the shape of the signals, [23, 16], got U8 [23, 15]"),
        "{narrow}"
    );
    let floats = error(&lasso, &mask.to_dtype(DType::F64)?);
    assert!(floats.contains("got F64 [23, 16]"), "{floats}");
    let solver = error(&Lasso { solver: Solver::Fista, ..lasso }, &mask);
    assert!(
        solver.contains("missing samples are for the solvers ActiveSet and CoordinateDescent, got Fista"),
        "{solver}"
    );
    Ok(())
}
