//! Updates of the basis from statistics.
use super::{CPU, activations, bits, difference, first_line, random, unit_rows};
use candle::{DType, Result, Tensor};
use chandlery::sparse_coding::basis::{BasisMethod, BasisUpdate, Statistics};

/// Atoms, features and signals, pairwise different; in the last two there are fewer signals than
/// atoms, so that `A` is singular.
const CASES: [[usize; 3]; 5] = [[1, 3, 5], [6, 10, 40], [17, 9, 60], [20, 7, 13], [40, 16, 30]];

/// Statistics of signals such that some of the best atoms are shorter than 1 and some would be
/// longer.
fn statistics([n, p, m]: [usize; 3], dtype: DType) -> Result<Statistics> {
    let a = activations(m, n, 1)?;
    let lengths = Tensor::from_iter((0..n).map(|j| [0.1, 0.4, 4.][j % 3]), &CPU)?.reshape((n, 1))?;
    let atoms = unit_rows(&random(n, p, 2)?)?.broadcast_mul(&lengths)?;
    let x = (a.matmul(&atoms)? + (random(m, p, 3)? * 0.05)?)?;
    let none = Statistics::none(n, p, dtype, &CPU)?;
    none.after(&a.to_dtype(dtype)?, &x.to_dtype(dtype)?, 0.)
}

fn start([n, p, _]: [usize; 3], dtype: DType) -> Result<Tensor> {
    unit_rows(&random(n, p, 4)?)?.to_dtype(dtype)
}

fn lengths(basis: &Tensor) -> Result<Vec<f64>> {
    basis.to_dtype(DType::F64)?.sqr()?.sum(1)?.sqrt()?.to_vec1()
}

/// How far a basis is from the conditions of the best one, relative to the largest statistic:
/// `S − A B = diag λ B` with `λ ≥ 0`, and `λ_j = 0` for atoms shorter than 1.
fn off(basis: &Tensor, statistics: &Statistics) -> Result<f64> {
    let rest = (statistics.signals() - statistics.gram().matmul(basis)?)?;
    let scale = statistics.signals().abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
    let (rest, basis) = (rest.to_vec2::<f64>()?, basis.to_vec2::<f64>()?);
    let mut most = 0f64;
    for (rest, atom) in rest.iter().zip(&basis) {
        let square: f64 = atom.iter().map(|x| x * x).sum();
        let lambda = rest.iter().zip(atom).map(|(r, b)| r * b).sum::<f64>() / square.max(1e-300);
        most = most.max(-lambda).max(lambda.abs() * (1. - square)).max(square - 1.);
        for (r, b) in rest.iter().zip(atom) {
            most = most.max((r - lambda * b).abs());
        }
    }
    Ok(most / scale)
}

#[test]
fn the_lagrange_dual_meets_the_conditions_of_the_best_basis() -> Result<()> {
    let (mut full, mut shorter) = (0, 0);
    for case in CASES {
        let statistics = statistics(case, DType::F64)?;
        let update = BasisUpdate { method: BasisMethod::LagrangeDual, iterations: 1 };
        let basis = update.apply(&start(case, DType::F64)?, &statistics)?;
        let off = off(&basis, &statistics)?;
        assert!(off < 1e-8, "{case:?}: off by {off}");
        let lengths = lengths(&basis)?;
        assert!(lengths.iter().all(|&length| length <= 1. + 1e-12), "{case:?}: {lengths:?}");
        full += lengths.iter().filter(|&&length| length > 1. - 1e-9).count();
        shorter += lengths.iter().filter(|&&length| length < 1. - 1e-6).count();
    }
    assert!(full > 4 && shorter > 4, "atoms of both kinds are wanted, got {full} and {shorter}");
    Ok(())
}

#[test]
fn all_methods_come_to_the_same_objective() -> Result<()> {
    for case in CASES {
        let (statistics, start) = (statistics(case, DType::F64)?, start(case, DType::F64)?);
        let objective = |method, iterations| -> Result<f64> {
            statistics.objective(&BasisUpdate { method, iterations }.apply(&start, &statistics)?)
        };
        let best = objective(BasisMethod::LagrangeDual, 1)?;
        for method in [BasisMethod::SpectralGradient, BasisMethod::BlockCoordinate] {
            let got = objective(method, 5000)?;
            assert!(
                (got - best) / best.abs() < 1e-7 && got > best - 1e-9 * best.abs(),
                "{case:?} {method:?}: {got} in place of {best}"
            );
            // One iteration is not enough: the comparison says something.
            assert!(case[0] == 1 || objective(method, 1)? > best + 1e-4 * best.abs(), "{case:?} {method:?}");
        }
    }
    Ok(())
}

/// `max_j Σ_k |A_jk|`.
fn largest_sum(gram: &[Vec<f64>]) -> f64 {
    gram.iter().map(|row| row.iter().map(|x| x.abs()).sum()).fold(0., f64::max)
}

#[test]
fn projected_gradient_is_its_printed_steps() -> Result<()> {
    let (case, iterations) = ([6, 10, 40], 3);
    let (statistics, start) = (statistics(case, DType::F64)?, start(case, DType::F64)?);
    let (gram, signals) = (statistics.gram().to_vec2::<f64>()?, statistics.signals().to_vec2::<f64>()?);
    let (step, mut want) = (1. / largest_sum(&gram), start.to_vec2::<f64>()?);
    for _ in 0..iterations {
        let before = want.clone();
        for (j, atom) in want.iter_mut().enumerate() {
            for (c, x) in atom.iter_mut().enumerate() {
                let product: f64 = (0..case[0]).map(|k| gram[j][k] * before[k][c]).sum();
                *x -= step * (product - signals[j][c]);
            }
            let length = atom.iter().map(|x| x * x).sum::<f64>().sqrt();
            atom.iter_mut().for_each(|x| *x /= length.max(1.));
        }
    }
    let update = BasisUpdate { method: BasisMethod::ProjectedGradient, iterations };
    let off = difference(&update.apply(&start, &statistics)?, &Tensor::new(want, &CPU)?)?;
    assert!(off < 1e-13, "{off}");
    Ok(())
}

#[test]
fn projected_gradient_comes_as_near_the_best_basis_as_its_bound_says() -> Result<()> {
    for case in CASES {
        let (statistics, start) = (statistics(case, DType::F64)?, start(case, DType::F64)?);
        let basis = |method, iterations| BasisUpdate { method, iterations }.apply(&start, &statistics);
        let best = basis(BasisMethod::LagrangeDual, 1)?;
        let apart = (&start - &best)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
        let bound = largest_sum(&statistics.gram().to_vec2()?) * apart / 2.;
        let best = statistics.objective(&best)?;
        for k in [1, 10, 100, 1000] {
            let above = statistics.objective(&basis(BasisMethod::ProjectedGradient, k)?)? - best;
            assert!(
                above <= bound / k as f64 && above > -1e-9 * best.abs(),
                "{case:?}: {above} above the best after {k}, bound {}",
                bound / k as f64
            );
        }
    }
    Ok(())
}

#[test]
fn every_iteration_lowers_the_objective_and_keeps_lengths_in_both_types() -> Result<()> {
    for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-12)] {
        for case in CASES {
            let statistics = statistics(case, dtype)?;
            for method in BasisMethod::ALL {
                let mut basis = start(case, dtype)?;
                for iteration in 0..6 {
                    let before = bits(&basis)?;
                    let next = BasisUpdate { method, iterations: 1 }.apply(&basis, &statistics)?;
                    assert_eq!(bits(&basis)?, before, "the basis of before is left alone");
                    let (old, new) = (statistics.objective(&basis)?, statistics.objective(&next)?);
                    assert!(
                        new <= old + 10. * eps * old.abs(),
                        "{case:?} {dtype:?} {method:?} {iteration}: {old} to {new}"
                    );
                    let lengths = lengths(&next)?;
                    assert!(lengths.iter().all(|&length| length <= 1. + eps), "{method:?}: {lengths:?}");
                    basis = next;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn atoms_within_the_constraint_are_those_of_least_squares() -> Result<()> {
    // Small signals: no atom comes near length 1.
    let (a, x) = (activations(60, 5, 1)?, (random(60, 4, 9)? * 0.01)?);
    let statistics = Statistics::none(5, 4, DType::F64, &CPU)?.after(&a, &x, 0.)?;
    for method in BasisMethod::ALL {
        let basis =
            BasisUpdate { method, iterations: 300 }.apply(&unit_rows(&random(5, 4, 4)?)?, &statistics)?;
        let rest = (statistics.signals() - statistics.gram().matmul(&basis)?)?;
        let off = difference(&rest, &rest.zeros_like()?)?;
        assert!(off < 1e-9, "{method:?}: the normal equations are off by {off}");
    }
    Ok(())
}

#[test]
fn atoms_that_no_signal_uses_stay() -> Result<()> {
    let a = activations(30, 6, 1)?;
    a.slice_set(&Tensor::zeros((30, 1), DType::F64, &CPU)?, 1, 2)?;
    let statistics = Statistics::none(6, 4, DType::F64, &CPU)?.after(&a, &random(30, 4, 2)?, 0.)?;
    let start = unit_rows(&random(6, 4, 4)?)?;
    for method in BasisMethod::ALL {
        let basis = BasisUpdate { method, iterations: 3 }.apply(&start, &statistics)?;
        let moved = |j: usize| difference(&basis.narrow(0, j, 1)?, &start.narrow(0, j, 1)?);
        assert!(moved(2)? < 1e-15 && moved(1)? > 1e-3, "{method:?}");
    }
    Ok(())
}

#[test]
fn statistics_forget_and_add_up() -> Result<()> {
    let (a, x) = (activations(30, 6, 1)?, random(30, 4, 2)?);
    let first = Statistics::none(6, 4, DType::F64, &CPU)?.after(&a, &x, 0.)?;
    let both = first.after(&a, &x, 0.5)?;
    let want = a.t()?.matmul(&a)?;
    assert!(difference(first.gram(), &want)? < 1e-12);
    assert!(difference(both.gram(), &(want * 1.5)?)? < 1e-12);
    assert!(difference(both.signals(), &(a.t()?.matmul(&x)? * 1.5)?)? < 1e-12);
    // ½ Σ ‖x − aB‖² less ½ Σ ‖x‖².
    let basis = random(6, 4, 3)?;
    let error = (&x - a.matmul(&basis)?)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    let want = 0.5 * (error - x.sqr()?.sum_all()?.to_scalar::<f64>()?);
    assert!((first.objective(&basis)? / want - 1.).abs() < 1e-12);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let statistics = statistics([6, 4, 40], DType::F64)?;
    let message = |update: BasisUpdate, basis: &Tensor| {
        first_line(update.apply(basis, &statistics).map(drop).expect_err("refused"))
    };
    let none = message(BasisUpdate { iterations: 0, ..BasisUpdate::default() }, &random(6, 4, 1)?);
    assert_eq!(none, "BasisUpdate: iterations must be at least 1, got 0");
    let other = message(BasisUpdate::default(), &random(6, 5, 1)?);
    assert_eq!(other, "BasisUpdate::apply: basis must have shape [6, 4], that of the statistics, got [6, 5]");
    let nan = Statistics::none(2, 2, DType::F64, &CPU)?.after(
        &Tensor::full(f64::NAN, (1, 2), &CPU)?,
        &Tensor::ones((1, 2), DType::F64, &CPU)?,
        0.,
    )?;
    let update = BasisUpdate { method: BasisMethod::LagrangeDual, iterations: 1 };
    let message = first_line(update.apply(&random(2, 2, 1)?, &nan).map(drop).expect_err("refused"));
    assert!(message.ends_with("must be finite, got a NaN or infinity"), "{message}");
    Ok(())
}
