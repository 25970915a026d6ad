//! Lasso solves on every device: to the gap that was asked for, to the optimum of the reference,
//! the same bits in every run.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{
    LassoMethod, LassoOptions, LassoReport, LassoStep, LineSearch, lasso_, lasso_gaps_reference, lasso_step_,
};
use chandlery_ops::core::{normal, uniform};
use chandlery_tests::{assert_close, assert_same_bits, devices};

const CPU: Device = Device::Cpu;

/// Signals and atoms, and what the op takes of them.
struct Problem {
    signals: Tensor,
    atoms: Tensor,
    gram: Tensor,
    correlations: Tensor,
    energies: Tensor,
    penalties: Tensor,
}

impl Problem {
    /// `m` signals and `n` atoms of `p` samples, atoms alike by a share `common` of them all,
    /// penalties that are this part of the largest correlation of the first signal.
    fn new(m: usize, n: usize, p: usize, common: f64, part: f64) -> Result<Self> {
        let shared = normal((1, p), &CPU, Philox::new(80, 0))?;
        let atoms = normal((n, p), &CPU, Philox::new(80, 1))?.broadcast_add(&(shared * common)?)?;
        let mixed = normal((m, n), &CPU, Philox::new(80, 2))?;
        let used = uniform((m, n), &CPU, Philox::new(80, 3))?.lt(8. / n as f64)?.to_dtype(DType::F32)?;
        let noise = (normal((m, p), &CPU, Philox::new(80, 4))? * 0.05)?;
        let signals = ((mixed * used)?.matmul(&atoms)? + noise)?.to_dtype(DType::F64)?;
        let atoms = atoms.to_dtype(DType::F64)?;
        let steepest =
            signals.get(0)?.unsqueeze(0)?.matmul(&atoms.t()?)?.abs()?.max_all()?.to_scalar::<f64>()?;
        Self::of(signals, atoms, part * steepest)
    }

    fn of(signals: Tensor, atoms: Tensor, penalty: f64) -> Result<Self> {
        Ok(Self {
            gram: atoms.matmul(&atoms.t()?)?,
            correlations: signals.matmul(&atoms.t()?)?,
            energies: signals.sqr()?.sum(1)?,
            penalties: Tensor::full(penalty, atoms.dim(0)?, &CPU)?,
            signals,
            atoms,
        })
    }

    fn solve(&self, device: &Device, dtype: DType, options: &LassoOptions) -> Result<(Tensor, LassoReport)> {
        let there = |t: &Tensor| t.to_dtype(dtype)?.to_device(device);
        let correlations = there(&self.correlations)?;
        let activations = correlations.zeros_like()?;
        let report = lasso_(
            &activations,
            &there(&self.gram)?,
            &correlations,
            &there(&self.energies)?,
            &there(&self.penalties)?,
            options,
        )?;
        Ok((activations, report))
    }

    /// The largest gap of activations, in f64.
    fn gap(&self, activations: &Tensor, nonnegative: bool) -> Result<f64> {
        let a = activations.to_device(&CPU)?.to_dtype(DType::F64)?;
        let gaps = lasso_gaps_reference(&a, &self.signals, &self.atoms, &self.penalties, nonnegative)?;
        gaps.max(0)?.to_scalar()
    }
}

/// Signals, atoms, samples, likeness, penalty: around the sizes of each form, more atoms than
/// samples, atoms nearly alike, supports beyond shared memory, n that is no multiple of four, and
/// more signals than those of which each has a wide block.
const PROBLEMS: [(usize, usize, usize, f64, f64); 10] = [
    (1, 1, 3, 0., 0.1),
    (5, 3, 2, 0., 0.2),
    (40, 130, 50, 0., 0.05),
    (33, 512, 64, 0.5, 0.02),
    (20, 513, 200, 0., 0.02),
    (50, 1024, 300, 1., 0.01),
    (4, 1500, 400, 0., 0.01),
    (3, 4200, 100, 0., 0.05),
    (30, 100, 40, 3., 0.01),
    (2500, 514, 300, 0.1, 0.05),
];

#[test]
fn every_signal_reaches_the_gap_in_both_types_by_both_methods() -> Result<()> {
    for device in devices()? {
        for (m, n, p, common, part) in PROBLEMS {
            let problem = Problem::new(m, n, p, common, part)?;
            for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F64, 1e-9)] {
                for method in [LassoMethod::ActiveSet, LassoMethod::CoordinateDescent] {
                    // Sweeps over atoms that are nearly alike take very long.
                    if method == LassoMethod::CoordinateDescent && (common > 0. || n > 1024) {
                        continue;
                    }
                    for nonnegative in [false, true] {
                        let options =
                            LassoOptions { method, tolerance, nonnegative, ..LassoOptions::default() };
                        let what =
                            format!("{m}×{n}×{p} {common} {dtype:?} {options:?} on {:?}", device.location());
                        let (activations, report) = problem.solve(&device, dtype, &options)?;
                        let said = report.gaps.to_dtype(DType::F64)?.max(0)?.to_scalar::<f64>()?;
                        assert!(said <= tolerance, "{what}: says {said:e}");
                        let gap = problem.gap(&activations, nonnegative)?;
                        // What f32 makes of the problem itself.
                        let rounding = if dtype == DType::F32 { 3e-5 } else { 1e-12 };
                        assert!(gap <= tolerance + rounding, "{what}: {gap:e}");
                        if nonnegative {
                            let least = activations.min_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
                            assert!(least >= 0., "{what}: {least}");
                        }
                        let (again, _) = problem.solve(&device, dtype, &options)?;
                        assert_same_bits(&what, &again, &activations)?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn signals_with_gram_matrices_of_their_own_reach_the_gap_in_both_types() -> Result<()> {
    // Also more signals than blocks of a launch, and supports beyond shared memory.
    for (m, n, p) in [(3, 1, 4), (40, 130, 50), (1500, 33, 60), (7, 257, 100), (5, 513, 300), (3, 1100, 500)]
    {
        let problem = Problem::new(m, n, p, 0.2, 0.02)?;
        // The last signal has no samples.
        let mask = uniform((m, p), &CPU, Philox::new(80, 5))?.ge(0.4)?.to_dtype(DType::F64)?;
        let mask = Tensor::cat(&[&mask.narrow(0, 0, m - 1)?, &Tensor::zeros((1, p), DType::F64, &CPU)?], 0)?;
        let signals = (&problem.signals * &mask)?;
        let shown = problem.atoms.unsqueeze(0)?.broadcast_mul(&mask.unsqueeze(1)?)?;
        let gram = shown.matmul(&shown.transpose(1, 2)?.contiguous()?)?;
        let correlations = signals.matmul(&problem.atoms.t()?)?;
        let energies = signals.sqr()?.sum(1)?;
        for device in devices()? {
            for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F64, 1e-9)] {
                for nonnegative in [false, true] {
                    let what = format!("{m}×{n}×{p} {dtype:?} {nonnegative} on {:?}", device.location());
                    let options = LassoOptions { tolerance, nonnegative, ..LassoOptions::default() };
                    let there = |t: &Tensor| t.to_dtype(dtype)?.to_device(&device);
                    let (gram, correlations) = (there(&gram)?, there(&correlations)?);
                    let (energies, penalties) = (there(&energies)?, there(&problem.penalties)?);
                    let solve = || -> Result<(Tensor, LassoReport)> {
                        let a = correlations.zeros_like()?;
                        let report = lasso_(&a, &gram, &correlations, &energies, &penalties, &options)?;
                        Ok((a, report))
                    };
                    let (activations, report) = solve()?;
                    let said = report.gaps.to_dtype(DType::F64)?.max(0)?.to_scalar::<f64>()?;
                    assert!(said <= tolerance, "{what}: says {said:e}");
                    let a = activations.to_device(&CPU)?.to_dtype(DType::F64)?;
                    assert_eq!(a.get(m - 1)?.abs()?.max(0)?.to_scalar::<f64>()?, 0., "{what}: no samples");
                    // What f32 makes of the problem itself.
                    let rounding = if dtype == DType::F32 { 3e-5 } else { 1e-12 };
                    for row in (0..m).step_by(m.div_ceil(40)) {
                        let one = |t: &Tensor| t.narrow(0, row, 1);
                        let (a, x, atoms) = (one(&a)?, one(&signals)?, shown.get(row)?);
                        let gap = lasso_gaps_reference(&a, &x, &atoms, &problem.penalties, nonnegative)?;
                        let gap = gap.get(0)?.to_scalar::<f64>()?;
                        assert!(gap <= tolerance + rounding, "{what}: signal {row}: {gap:e}");
                    }
                    assert_same_bits(&what, &solve()?.0, &activations)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_warm_start_at_the_solution_moves_nothing() -> Result<()> {
    let problem = Problem::new(30, 200, 80, 0., 0.05)?;
    for device in devices()? {
        let options = LassoOptions { tolerance: 1e-5, ..LassoOptions::default() };
        let (activations, _) = problem.solve(&device, DType::F32, &options)?;
        let there = |t: &Tensor| t.to_dtype(DType::F32)?.to_device(&device);
        let (gram, correlations) = (there(&problem.gram)?, there(&problem.correlations)?);
        let (energies, penalties) = (there(&problem.energies)?, there(&problem.penalties)?);
        let warm = activations.copy()?;
        let options = LassoOptions { tolerance: 1e-4, ..options };
        let report = lasso_(&warm, &gram, &correlations, &energies, &penalties, &options)?;
        assert_eq!(report.updates.to_vec1::<u32>()?, vec![0; 30], "{:?}", device.location());
        let off = (warm - activations)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(off < 1e-6, "{:?}: {off}", device.location());
    }
    Ok(())
}

#[test]
fn zeros_duplicates_and_extreme_penalties_behave_on_every_device() -> Result<()> {
    for device in devices()? {
        // Atom 1 is atom 0 again, atom 2 is zeros, signal 1 is zeros.
        let atoms = Tensor::new(&[[1f64, 0., 0.], [1., 0., 0.], [0., 0., 0.], [0., 2., 0.]], &CPU)?;
        let signals = Tensor::new(&[[3f64, 4., 0.], [0., 0., 0.], [0.1, -4., 0.2]], &CPU)?;
        for beta in [0., 0.5, 100.] {
            let problem = Problem::of(signals.clone(), atoms.clone(), beta)?;
            for dtype in [DType::F32, DType::F64] {
                let (a, report) = problem.solve(&device, dtype, &LassoOptions::default())?;
                let a = a.to_dtype(DType::F64)?.to_vec2::<f64>()?;
                let what = format!("β {beta} {dtype:?} on {:?}: {a:?}", device.location());
                let soft = |x: f64, square: f64| x.signum() * (x.abs() - beta).max(0.) / square;
                for (a, x) in a.iter().zip(signals.to_vec2::<f64>()?) {
                    assert!((a[0] + a[1] - soft(x[0], 1.)).abs() < 1e-3, "{what}");
                    assert!(a[2] == 0. && (a[3] - soft(2. * x[1], 4.)).abs() < 1e-3, "{what}");
                }
                let gap = report.gaps.to_dtype(DType::F64)?.max(0)?.to_scalar::<f64>()?;
                assert!(gap <= 1e-4 || beta == 0., "{what}: {gap}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_newton_step_counts_as_many_updates_as_it_has_coefficients() -> Result<()> {
    for device in devices()? {
        // Orthogonal atoms, three of them used: a move each, then a Newton step on all three.
        let atoms = Tensor::eye(5, DType::F64, &CPU)?;
        let problem = Problem::of(Tensor::new(&[[3f64, -4., 0., 5., 0.1]], &CPU)?, atoms, 0.5)?;
        let options = LassoOptions { tolerance: 0., ..LassoOptions::default() };
        let (a, report) = problem.solve(&device, DType::F64, &options)?;
        assert_eq!(a.to_vec2::<f64>()?, [[2.5, -3.5, 0., 4.5, 0.]], "{:?}", device.location());
        assert!(report.updates.to_vec1::<u32>()?[0] >= 6, "{:?}: {:?}", device.location(), report.updates);
    }
    Ok(())
}

#[test]
fn numbers_that_are_not_finite_are_refused() -> Result<()> {
    for device in devices()? {
        let mut problem = Problem::new(4, 20, 10, 0., 0.1)?;
        let poison = Tensor::new(&[[1f64], [1.], [f64::NAN], [1.]], &CPU)?;
        problem.correlations = problem.correlations.broadcast_mul(&poison)?;
        match problem.solve(&device, DType::F32, &LassoOptions::default()) {
            Ok(_) => panic!("NaN was taken on {:?}", device.location()),
            Err(refused) => assert!(refused.to_string().contains("finite"), "{refused}"),
        }
    }
    Ok(())
}

#[test]
fn iterations_of_all_coordinates_at_once_are_those_of_the_cpu() -> Result<()> {
    let mut finals: Vec<Tensor> = Vec::new();
    for device in devices()? {
        for (m, n, p) in [(1, 1, 2), (7, 130, 40), (5, 700, 200)] {
            let problem = Problem::new(m, n, p, 0.3, 0.05)?;
            for (line_search, nonnegative) in
                [(LineSearch::Exact, false), (LineSearch::Exact, true), (LineSearch::Steps, false)]
            {
                let there = |t: &Tensor| t.to_device(&device);
                let (gram, correlations) = (there(&problem.gram)?, there(&problem.correlations)?);
                let diagonal: Vec<f64> =
                    problem.gram.to_vec2::<f64>()?.iter().enumerate().map(|(i, row)| row[i]).collect();
                let diagonal = Tensor::new(diagonal, &device)?;
                let step = LassoStep {
                    diagonal: &diagonal,
                    correlations: &correlations,
                    energies: &there(&problem.energies)?,
                    penalties: &there(&problem.penalties)?,
                    line_search,
                    nonnegative,
                };
                let a = correlations.zeros_like()?;
                let (q, d) = (correlations.copy()?, a.zeros_like()?);
                let figures = Tensor::zeros((m, 2), DType::F64, &device)?;
                for _ in 0..30 {
                    lasso_step_(&a, &q, &d, &figures, &d.matmul(&gram)?, &step)?;
                }
                let what = format!("{m}×{n}×{p} {line_search:?} {nonnegative} on {:?}", device.location());
                let (all, figures) = (a.to_device(&CPU)?, figures.to_device(&CPU)?);
                let gap = figures.narrow(1, 1, 1)?.max_all()?.to_scalar::<f64>()?;
                let own = problem.gap(&all, nonnegative)?;
                assert!((gap - own).abs() <= 1e-9 + 1e-6 * own, "{what}: says {gap:e}, is {own:e}");
                finals.push(Tensor::cat(&[&all, &figures], 1)?);
            }
        }
    }
    // Choices at a crossing may differ by rounding, and later iterations take that back.
    let per_device = 9;
    for (i, got) in finals.iter().enumerate().skip(per_device) {
        assert_close(&format!("case {i}"), got, &finals[i % per_device], 1e-6, 1e-6)?;
    }
    Ok(())
}

#[test]
fn signals_with_missing_samples_reach_the_gap_with_pairs_of_atoms_and_without_room_for_them() -> Result<()> {
    use chandlery::sparse_coding::lasso::Lasso;
    // 60² · 20 products of pairs are few, and 800² · 120 more than a GPU holds.
    for (m, n, p) in [(70, 60, 20), (40, 800, 120)] {
        let problem = Problem::new(m, n, p, 0.5, 0.1)?;
        let beta = problem.penalties.get(0)?.to_scalar::<f64>()?;
        let mask = uniform((m, p), &CPU, Philox::new(81, 0))?.lt(0.6)?;
        for device in devices()? {
            for ridge in [0., 0.3] {
                let lasso = Lasso { ridge, ..Lasso::new(beta) };
                let there = |t: &Tensor| t.to_device(&device);
                let got =
                    lasso.solve_masked(&there(&problem.signals)?, &there(&mask)?, &there(&problem.atoms)?)?;
                let dense = got.dense.to_device(&CPU)?;
                for row in 0..m {
                    let shown = mask.narrow(0, row, 1)?.to_dtype(DType::F64)?;
                    // A ridge is as many more samples, of 0.
                    let extend = |x: &Tensor, by: &Tensor| Tensor::cat(&[x, &(by * ridge.sqrt())?], 1);
                    let x = (problem.signals.narrow(0, row, 1)? * &shown)?;
                    let x = extend(&x, &Tensor::zeros((1, n), DType::F64, &CPU)?)?;
                    let atoms = problem.atoms.broadcast_mul(&shown)?;
                    let atoms = extend(&atoms, &Tensor::eye(n, DType::F64, &CPU)?)?;
                    let a = dense.narrow(0, row, 1)?;
                    let gap = lasso_gaps_reference(&a, &x, &atoms, &problem.penalties, false)?;
                    let gap = gap.get(0)?.to_scalar::<f64>()?;
                    assert!(gap <= 1e-4 + 1e-9, "row {row} of {n} atoms, ridge {ridge}: {gap}");
                }
            }
        }
    }
    Ok(())
}
