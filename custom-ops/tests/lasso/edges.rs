//! Problems at the edges: alike, equal and zero atoms, penalties of 0 and above all correlations,
//! limits.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::codes::{LassoMethod, LassoOptions, lasso_reference};

fn largest(x: &Tensor) -> Result<f64> {
    x.abs()?.max_all()?.to_scalar::<f64>()
}

#[test]
fn every_signal_of_a_coherent_dictionary_meets_the_gap() -> Result<()> {
    let (signals, dictionary) = (alike(40, 48, 1)?, alike(150, 48, 2)?);
    let others = (dictionary.matmul(&dictionary.t()?)? - Tensor::eye(150, DType::F64, &Cpu)?)?;
    let coherence = largest(&others)?;
    assert!((0.99..1.0001).contains(&coherence), "{coherence}");
    for nonnegative in [false, true] {
        for fraction in [0.3, 0.01, 0.001] {
            let problem = Problem::new(signals.clone(), dictionary.clone(), fraction, nonnegative)?;
            for dtype in TYPES {
                for method in METHODS {
                    // It would need millions of updates.
                    if method == LassoMethod::CoordinateDescent && fraction < 0.01 {
                        continue;
                    }
                    let (a, report) = problem.solve(dtype, &problem.options(method, 1e-4))?;
                    let what = format!("{method:?}, {dtype:?}, {fraction}, {nonnegative}");
                    assert_at_most(&what, &gaps(&report)?, 1e-4);
                    // Energies of 1 and correlations are known to some eps.
                    let eps = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
                    for (gap, objective) in problem.true_gaps(&a)?.iter().zip(problem.objectives(&a)?) {
                        let limit = 1e-4 + 8. * eps / objective;
                        assert!(*gap <= limit, "{what}: {gap} is above {limit}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn equal_opposite_and_zero_atoms_do_no_harm() -> Result<()> {
    let (signals, unique) = (gaussian(30, 16, 3)?, gaussian(20, 16, 4)?);
    let zero = Tensor::zeros((5, 16), DType::F64, &Cpu)?;
    let all = Tensor::cat(&[&zero, &unique, &unique, &zero, &unique.neg()?, &unique.affine(2., 0.)?], 0)?;
    for nonnegative in [false, true] {
        let problem = Problem::new(signals.clone(), all.clone(), 0.05, nonnegative)?;
        let want = lasso_reference(&signals, &all, &problem.penalties, nonnegative)?;
        let want = problem.objectives(&want)?;
        for (dtype, method) in TYPES.into_iter().flat_map(|t| METHODS.map(|m| (t, m))) {
            // The start uses all atoms.
            for start in [None, Some(&gaussian(30, 90, 5)?)] {
                let (a, report) = problem.solve_from(start, dtype, &problem.options(method, 1e-4))?;
                let what = format!("{method:?}, {dtype:?}, {nonnegative}");
                assert_at_most(&what, &gaps(&report)?, 1e-4);
                for zeros in [0, 45] {
                    assert_eq!(largest(&a.narrow(1, zeros, 5)?)?, 0., "{what}: zero atoms are not used");
                }
                for (got, want) in problem.objectives(&a)?.iter().zip(&want) {
                    assert!(((got - want) / want).abs() <= 1.1e-4, "{what}: {got} for {want}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_zero_signal_and_a_large_penalty_give_zeros() -> Result<()> {
    for (dtype, method) in TYPES.into_iter().flat_map(|t| METHODS.map(|m| (t, m))) {
        for nonnegative in [false, true] {
            let dictionary = gaussian(33, 10, 6)?;
            let zero = Tensor::zeros((3, 10), DType::F64, &Cpu)?;
            let penalties = Tensor::full(0.5, 33, &Cpu)?;
            let empty = Problem { signals: zero, dictionary: dictionary.clone(), penalties, nonnegative };
            let above = Problem::new(gaussian(3, 10, 7)?, dictionary, 1.001, nonnegative)?;
            for problem in [empty, above] {
                let options = problem.options(method, 1e-4);
                let (a, report) = problem.solve(dtype, &options)?;
                assert_eq!(largest(&a)?, 0., "{method:?}, {dtype:?}");
                assert_eq!(report.updates.to_vec1::<u32>()?, [0; 3]);
                assert_at_most("a solution from the start", &gaps(&report)?, 1e-6);
                // From a start that is far away.
                let start = gaussian(3, 33, 8)?;
                let (a, report) = problem.solve_from(Some(&start), dtype, &options)?;
                assert_at_most("from afar", &gaps(&report)?, 1e-4);
                assert!(largest(&a)? <= 1e-3, "{method:?}, {dtype:?}: {}", largest(&a)?);
            }
        }
    }
    Ok(())
}

#[test]
fn without_penalties_the_solution_is_that_of_least_squares() -> Result<()> {
    for (dtype, limit) in [(DType::F32, 1e-4), (DType::F64, 1e-8)] {
        for method in METHODS {
            // Fewer atoms than features: r is orthogonal to all atoms. More: nothing is left.
            let few = Problem::new(gaussian(8, 30, 9)?, gaussian(12, 30, 10)?, 0., false)?;
            let (a, report) = few.solve(dtype, &few.options(method, limit))?;
            assert_at_most("gap", &gaps(&report)?, limit);
            let norms = |x: &Tensor| x.sqr()?.sum(1)?.sqrt()?.to_vec1::<f64>();
            let (lengths, atoms) = (norms(&few.signals)?, norms(&few.dictionary)?);
            for (q, length) in few.residual_correlations(&a)?.iter().zip(&lengths) {
                for (q, atom) in q.iter().zip(&atoms) {
                    assert!(q.abs() <= 2. * limit * length * atom, "{method:?}, {dtype:?}: {q}");
                }
            }
            let many = Problem::new(gaussian(8, 10, 11)?, gaussian(40, 10, 12)?, 0., false)?;
            let (a, _) = many.solve(dtype, &many.options(method, limit))?;
            for (left, length) in many.objectives(&a)?.iter().zip(norms(&many.signals)?) {
                assert!((2. * left).sqrt() <= 2. * limit * length * 10., "{method:?}, {dtype:?}: {left}");
            }
        }
    }
    Ok(())
}

#[test]
fn some_atoms_may_be_without_penalty() -> Result<()> {
    for nonnegative in [false, true] {
        let mut problem = Problem::new(gaussian(20, 24, 13)?, gaussian(40, 24, 14)?, 0.2, nonnegative)?;
        let weights: Vec<f64> = (0..40).map(|j| if j % 8 == 3 { 0. } else { 1. }).collect();
        problem.penalties = (problem.penalties * Tensor::new(weights, &Cpu)?)?;
        let want = lasso_reference(&problem.signals, &problem.dictionary, &problem.penalties, nonnegative)?;
        let want = problem.objectives(&want)?;
        for method in METHODS {
            let (a, report) = problem.solve(DType::F64, &problem.options(method, 1e-8))?;
            assert_at_most("gap", &gaps(&report)?, 1e-8);
            for (got, want) in problem.objectives(&a)?.iter().zip(&want) {
                assert!(((got - want) / want).abs() <= 1e-6, "{method:?}, {nonnegative}: {got} for {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_cap_on_updates_ends_early_and_the_gap_says_so() -> Result<()> {
    let problem = Problem::new(gaussian(6, 50, 15)?, gaussian(120, 50, 16)?, 0.01, false)?;
    for method in METHODS {
        let capped = LassoOptions { max_updates: 1, ..problem.options(method, 1e-6) };
        let (a, report) = problem.solve(DType::F64, &capped)?;
        let full = problem.solve(DType::F64, &problem.options(method, 1e-6))?.1;
        for (row, gap) in gaps(&report)?.into_iter().enumerate() {
            assert!(gap > 1e-6, "{method:?}: row {row} has {gap}");
            assert!((gap / problem.true_gaps(&a)?[row] - 1.).abs() < 1e-6, "{method:?}: row {row}: {gap}");
        }
        let counts = |x: &Tensor| x.to_vec1::<u32>();
        for (few, all) in counts(&report.updates)?.into_iter().zip(counts(&full.updates)?) {
            assert!((1..all).contains(&few), "{method:?}: {few} of {all}");
        }
    }
    Ok(())
}

#[test]
fn a_gap_that_rounding_hides_ends_a_signal() -> Result<()> {
    // No f32 solver reaches 0; it must not run to its cap.
    let problem = Problem::new(gaussian(10, 20, 17)?, gaussian(60, 20, 18)?, 0.05, false)?;
    for method in METHODS {
        let (a, report) = problem.solve(DType::F32, &problem.options(method, 0.))?;
        // q is known to some eps of correlations, which are 20 times the penalties.
        assert_at_most("gap", &problem.true_gaps(&a)?, 20. * 16. * f64::from(f32::EPSILON));
        let updates = report.updates.max_all()?.to_scalar::<u32>()?;
        assert!(updates < 100_000, "{method:?}: {updates}");
    }
    Ok(())
}

#[test]
fn no_signals_need_no_work() -> Result<()> {
    let problem = Problem {
        signals: Tensor::zeros((0, 4), DType::F64, &Cpu)?,
        dictionary: gaussian(6, 4, 19)?,
        penalties: Tensor::ones(6, DType::F64, &Cpu)?,
        nonnegative: false,
    };
    let none = Tensor::zeros((0, 6), DType::F32, &Cpu)?;
    let gram = problem.dictionary.matmul(&problem.dictionary.t()?)?.to_dtype(DType::F32)?;
    let (energies, penalties) =
        (Tensor::zeros(0, DType::F32, &Cpu)?, problem.penalties.to_dtype(DType::F32)?);
    let report = chandlery_ops::codes::lasso_(
        &none,
        &gram,
        &none.copy()?,
        &energies,
        &penalties,
        &LassoOptions::default(),
    )?;
    assert_eq!((report.gaps.dims(), report.updates.dims()), (&[0][..], &[0][..]));
    Ok(())
}

#[test]
fn powers_of_two_change_no_mantissa() -> Result<()> {
    // The objective scales by the square.
    let problem = Problem::new(gaussian(12, 20, 20)?, gaussian(50, 20, 21)?, 0.05, false)?;
    for (dtype, exponents) in [(DType::F32, [-40, 40]), (DType::F64, [-400, 400])] {
        for method in METHODS {
            let options = problem.options(method, 1e-4);
            let (plain, _) = problem.solve(dtype, &options)?;
            for exponent in exponents {
                let by = 2f64.powi(exponent);
                let scaled = Problem {
                    signals: (&problem.signals * by)?,
                    dictionary: problem.dictionary.clone(),
                    penalties: (&problem.penalties * by)?,
                    nonnegative: false,
                };
                let (a, _) = scaled.solve(dtype, &options)?;
                assert_eq!(
                    a.to_vec2::<f64>()?,
                    (&plain * by)?.to_vec2::<f64>()?,
                    "{method:?}, {dtype:?}, 2^{exponent}"
                );
            }
        }
    }
    Ok(())
}
