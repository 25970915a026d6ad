//! Solutions of random problems.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{LassoMethod, LassoOptions, lasso_, lasso_reference};
use chandlery_ops::core::uniform;

/// Around the blocks of the vector loops, which are 64 and 32 atoms wide, and of fewer and more
/// atoms than features.
const SIZES: [[usize; 3]; 6] = [[1, 1, 3], [5, 7, 4], [9, 31, 40], [20, 64, 16], [12, 65, 33], [7, 200, 20]];

fn problems() -> Result<Vec<(String, Problem)>> {
    let mut problems = vec![];
    for (seed, [m, n, p]) in (0..).zip(SIZES) {
        for fraction in [0.02, 0.3] {
            for nonnegative in [false, true] {
                let (signals, dictionary) = (gaussian(m, p, 2 * seed)?, gaussian(n, p, 2 * seed + 1)?);
                let name = format!("{m}x{n}x{p}, fraction {fraction}, nonnegative {nonnegative}");
                problems.push((name, Problem::new(signals, dictionary, fraction, nonnegative)?));
            }
        }
    }
    Ok(problems)
}

/// The atoms whose coefficient is above 1e-3 of the largest of the row.
fn support(row: &[f64]) -> Vec<usize> {
    let largest = row.iter().fold(0f64, |a, b| a.max(b.abs()));
    (0..row.len()).filter(|&j| row[j].abs() > 1e-3 * largest).collect()
}

fn assert_objectives(what: &str, problem: &Problem, got: &Tensor, want: &Tensor, share: f64) -> Result<()> {
    for (row, (got, want)) in problem.objectives(got)?.into_iter().zip(problem.objectives(want)?).enumerate()
    {
        let above = (got - want) / want;
        assert!((-1e-9..=share).contains(&above), "{what}: row {row}: {got} is {above} above {want}");
    }
    Ok(())
}

#[test]
fn objectives_are_those_of_the_reference() -> Result<()> {
    for (name, problem) in problems()? {
        let Problem { signals, dictionary, penalties, nonnegative } = &problem;
        let want = lasso_reference(signals, dictionary, penalties, *nonnegative)?;
        for method in METHODS {
            for dtype in TYPES {
                let (got, report) = problem.solve(dtype, &problem.options(method, 1e-4))?;
                assert_at_most(&name, &gaps(&report)?, 1e-4);
                assert_objectives(&format!("{name}, {method:?}, {dtype:?}"), &problem, &got, &want, 1e-4)?;
            }
            let (got, _) = problem.solve(DType::F64, &problem.options(method, 1e-9))?;
            assert_objectives(&format!("{name}, {method:?}"), &problem, &got, &want, 1e-8)?;
        }
    }
    Ok(())
}

#[test]
fn supports_are_those_of_the_reference() -> Result<()> {
    let mut sizes = vec![];
    for (name, problem) in problems()? {
        let Problem { signals, dictionary, penalties, nonnegative } = &problem;
        let want = lasso_reference(signals, dictionary, penalties, *nonnegative)?.to_vec2::<f64>()?;
        for method in METHODS {
            let (got, _) = problem.solve(DType::F64, &problem.options(method, 1e-11))?;
            for (row, (got, want)) in got.to_vec2::<f64>()?.iter().zip(&want).enumerate() {
                assert_eq!(support(got), support(want), "{name}, {method:?}: row {row}");
                sizes.push(support(want).len());
            }
        }
    }
    assert!(sizes.iter().any(|&s| s > 16) && sizes.contains(&1), "supports of many sizes: {sizes:?}");
    Ok(())
}

/// A coordinate that is moved to its minimiser `a*` lowers the objective by at least
/// `½ Gⱼⱼ (a* − a)²`, which cannot be more than the gap; at a gap of 0 this is the optimality
/// condition `|qⱼ| ≤ β`, `qⱼ = β sign(aⱼ)`.
#[test]
fn no_coordinate_is_further_from_its_minimiser_than_the_gap_allows() -> Result<()> {
    for (name, problem) in problems()? {
        let squares = problem.dictionary.sqr()?.sum(1)?.to_vec1::<f64>()?;
        let penalties = problem.penalties.to_vec1::<f64>()?;
        for (method, tolerance) in METHODS.into_iter().flat_map(|m| [(m, 1e-2), (m, 1e-10)]) {
            let (a, report) = problem.solve(DType::F64, &problem.options(method, tolerance))?;
            let (q, reported) = (problem.residual_correlations(&a)?, gaps(&report)?);
            assert_at_most(&name, &reported, tolerance);
            let (objectives, a) = (problem.objectives(&a)?, a.to_vec2::<f64>()?);
            for row in 0..a.len() {
                let allowed = reported[row] * objectives[row] + 1e-13 * objectives[row];
                for (j, (&square, &beta)) in squares.iter().zip(&penalties).enumerate() {
                    let z = q[row][j] + square * a[row][j];
                    let best = match problem.nonnegative {
                        true => (z - beta).max(0.) / square,
                        false => (z.abs() - beta).max(0.).copysign(z) / square,
                    };
                    let gain = 0.5 * square * (best - a[row][j]).powi(2);
                    assert!(
                        gain <= allowed,
                        "{name}, {method:?}: row {row}, atom {j}: {gain}, {} of the gap",
                        gain / allowed
                    );
                    assert!(!problem.nonnegative || a[row][j] >= 0., "{name}: {}", a[row][j]);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn reported_gaps_are_the_true_ones() -> Result<()> {
    for (name, problem) in problems()? {
        for method in METHODS {
            for (dtype, eps) in [(DType::F32, f64::from(f32::EPSILON)), (DType::F64, f64::EPSILON)] {
                let (a, report) = problem.solve(dtype, &problem.options(method, 1e-3))?;
                let energies = problem.signals.sqr()?.sum(1)?.to_vec1::<f64>()?;
                let (objectives, truth) = (problem.objectives(&a)?, problem.true_gaps(&a)?);
                for (row, gap) in gaps(&report)?.into_iter().enumerate() {
                    // Energies, correlations and q are sums of up to 200 rounded terms.
                    let allowed = 64. * eps * energies[row] / objectives[row];
                    let off = (gap - truth[row]).abs();
                    assert!(
                        off <= allowed,
                        "{name}, {method:?}, {dtype:?}: row {row}: {gap} for {}, off by {off} of {allowed}",
                        truth[row]
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_start_at_the_solution_stays_and_any_start_gets_there() -> Result<()> {
    for (name, problem) in problems()? {
        for method in METHODS {
            let options = problem.options(method, 1e-9);
            let (solution, _) = problem.solve(DType::F64, &options)?;
            let (again, report) = problem.solve_from(Some(&solution), DType::F64, &options)?;
            assert_eq!(report.updates.to_vec1::<u32>()?, vec![0; solution.dim(0)?], "{name}, {method:?}");
            // Scaled to atoms of length 1 and back: within one rounding.
            let moved = (&again - &solution)?.abs()?.max_all()?.to_scalar::<f64>()?;
            let largest = solution.abs()?.max_all()?.to_scalar::<f64>()?;
            assert!(moved <= 4. * f64::EPSILON * largest, "{name}, {method:?}: {moved}");

            let anywhere = gaussian(solution.dim(0)?, solution.dim(1)?, 99)?;
            let (got, _) = problem.solve_from(Some(&anywhere), DType::F64, &options)?;
            assert_objectives(&format!("{name}, {method:?}"), &problem, &got, &solution, 1e-8)?;
        }
    }
    Ok(())
}

#[test]
fn weights_and_an_elastic_net_are_problems_of_the_same_form() -> Result<()> {
    let (signals, dictionary) = (gaussian(15, 12, 40)?, gaussian(30, 12, 41)?);
    let mut problem = Problem::new(signals, dictionary, 0.2, false)?;
    let weights: Vec<f64> = (0..30).map(|j| 0.25 * f64::from(1 + j % 7)).collect();
    problem.penalties = (problem.penalties * Tensor::new(weights, &Cpu)?)?;
    // ½ λ ‖a‖² is the error of signals that go on with zeros, by atoms that go on with √λ times a
    // unit matrix.
    let lambda = 3f64;
    let wide = Problem {
        signals: Tensor::cat(&[&problem.signals, &Tensor::zeros((15, 30), DType::F64, &Cpu)?], 1)?,
        dictionary: Tensor::cat(
            &[&problem.dictionary, &(Tensor::eye(30, DType::F64, &Cpu)? * lambda.sqrt())?],
            1,
        )?,
        penalties: problem.penalties.clone(),
        nonnegative: false,
    };
    for problem in [&problem, &wide] {
        let want = lasso_reference(&problem.signals, &problem.dictionary, &problem.penalties, false)?;
        for method in METHODS {
            let (got, _) = problem.solve(DType::F64, &problem.options(method, 1e-9))?;
            assert_objectives(&format!("{method:?}"), problem, &got, &want, 1e-8)?;
        }
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() -> Result<()> {
    let problem = Problem::new(gaussian(70, 24, 50)?, gaussian(90, 24, 51)?, 0.05, false)?;
    for method in METHODS {
        for dtype in TYPES {
            let options = LassoOptions { method, ..LassoOptions::default() };
            let with = |threads: usize| -> Result<(Vec<Vec<f64>>, Vec<u32>)> {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let (a, report) = pool.install(|| problem.solve(dtype, &options))?;
                Ok((a.to_vec2()?, report.updates.to_vec1()?))
            };
            let one = with(1)?;
            for threads in [2, 5] {
                assert!(with(threads)? == one, "{method:?}, {dtype:?}: {threads} threads");
            }
        }
    }
    Ok(())
}

#[test]
fn the_active_set_needs_fewer_updates_than_cyclic_descent() -> Result<()> {
    let problem = Problem::new(alike(20, 40, 60)?, alike(80, 40, 61)?, 0.01, false)?;
    let updates = |method: LassoMethod| -> Result<u32> {
        let (_, report) = problem.solve(DType::F64, &problem.options(method, 1e-4))?;
        report.updates.sum_all()?.to_scalar::<u32>()
    };
    let (few, many) = (updates(LassoMethod::ActiveSet)?, updates(LassoMethod::CoordinateDescent)?);
    assert!(4 * few < many, "{few} against {many}");
    Ok(())
}

#[test]
fn signals_with_gram_matrices_of_their_own_reach_the_minimum_of_each() -> Result<()> {
    for (seed, [m, n, p]) in (0..).zip(SIZES) {
        // A third of the samples is missing; the first signal has none.
        let mask = uniform((m, p), &Cpu, Philox::new(15, seed))?.ge(0.33)?.to_dtype(DType::F64)?;
        let mask = Tensor::cat(&[&mask.narrow(0, 0, 1)?.zeros_like()?, &mask.narrow(0, 1, m - 1)?], 0)?;
        for nonnegative in [false, true] {
            let (signals, dictionary) = (gaussian(m, p, 2 * seed)?, gaussian(n, p, 2 * seed + 1)?);
            let all = Problem::new(signals, dictionary, 0.1, nonnegative)?;
            let each = by_signal(&all, &mask)?;
            for (method, dtype) in METHODS.into_iter().flat_map(|method| TYPES.map(|dtype| (method, dtype))) {
                let of = |of: &dyn Fn(&Problem) -> Result<Tensor>| {
                    let all = each.iter().map(of).collect::<Result<Vec<_>>>()?;
                    Tensor::stack(&all, 0)?.to_dtype(dtype)
                };
                let gram = of(&|one| one.dictionary.matmul(&one.dictionary.t()?))?;
                let correlations = of(&|one| one.signals.matmul(&one.dictionary.t()?)?.squeeze(0))?;
                let energies = of(&|one| one.signals.sqr()?.sum_all())?;
                let activations = correlations.zeros_like()?;
                let (penalties, options) = (all.penalties.to_dtype(dtype)?, all.options(method, 1e-4));
                let report = lasso_(&activations, &gram, &correlations, &energies, &penalties, &options)?;
                let name = format!("{m}x{n}x{p}, nonnegative {nonnegative}, {method:?}, {dtype:?}");
                assert_at_most(&name, &gaps(&report)?, 1e-4);
                let activations = activations.to_dtype(DType::F64)?;
                for (row, one) in each.iter().enumerate() {
                    let want = lasso_reference(&one.signals, &one.dictionary, &one.penalties, nonnegative)?;
                    let got = activations.narrow(0, row, 1)?;
                    if one.signals.sqr()?.sum_all()?.to_scalar::<f64>()? == 0. {
                        assert_eq!(got.abs()?.sum_all()?.to_scalar::<f64>()?, 0., "{name}: no samples");
                        continue;
                    }
                    assert_objectives(&format!("{name}, signal {row}"), one, &got, &want, 1e-4)?;
                }
            }
        }
    }
    Ok(())
}
