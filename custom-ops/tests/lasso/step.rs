//! One iteration of the coordinate-parallel algorithm.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::codes::{LassoStep, LineSearch, lasso_step_, lasso_step_reference};

/// The state of a solver: activations, q, d, figures, d G.
struct State {
    operands: [Tensor; 5],
    diagonal: Tensor,
    correlations: Tensor,
    energies: Tensor,
    penalties: Tensor,
    gram: Tensor,
}

impl State {
    /// From activations somewhere, without a direction yet.
    fn new(problem: &Problem, start: &Tensor, dtype: DType) -> Result<Self> {
        let of_type = |x: &Tensor| x.to_dtype(dtype)?.contiguous();
        let (signals, dictionary) = (of_type(&problem.signals)?, of_type(&problem.dictionary)?);
        let gram = dictionary.matmul(&dictionary.t()?)?;
        let correlations = signals.matmul(&dictionary.t()?)?;
        let a = of_type(start)?.copy()?;
        let q = (&correlations - a.matmul(&gram)?)?;
        let zeros = || a.zeros_like();
        let figures = Tensor::zeros((a.dim(0)?, 2), dtype, &Cpu)?;
        Ok(Self {
            diagonal: dictionary.sqr()?.sum(1)?,
            energies: signals.sqr()?.sum(1)?,
            penalties: of_type(&problem.penalties)?,
            operands: [a.clone(), q, zeros()?, figures, zeros()?],
            correlations,
            gram,
        })
    }

    fn step(&self, line_search: LineSearch, nonnegative: bool) -> LassoStep<'_> {
        let Self { diagonal, correlations, energies, penalties, .. } = self;
        LassoStep { diagonal, correlations, energies, penalties, line_search, nonnegative }
    }

    /// One iteration; the figures are f64.
    fn advance(&mut self, line_search: LineSearch, nonnegative: bool) -> Result<Vec<Vec<f64>>> {
        self.operands[4] = self.operands[2].matmul(&self.gram)?;
        let [a, q, d, figures, products] = &self.operands;
        lasso_step_(a, q, d, figures, products, &self.step(line_search, nonnegative))?;
        figures.to_dtype(DType::F64)?.to_vec2()
    }
}

fn problems() -> Result<Vec<(Problem, Tensor)>> {
    let mut problems = vec![];
    for nonnegative in [false, true] {
        for [m, n, p] in [[1, 1, 2], [9, 40, 12], [5, 17, 30]] {
            let problem = Problem::new(gaussian(m, p, 70)?, gaussian(n, p, 71)?, 0.1, nonnegative)?;
            let start = gaussian(m, n, 72)?;
            problems.push((problem, if nonnegative { start.relu()? } else { start }));
        }
    }
    Ok(problems)
}

#[test]
fn the_step_is_the_best_one_along_the_direction() -> Result<()> {
    for (problem, start) in problems()? {
        for line_search in [LineSearch::Exact, LineSearch::Steps] {
            let mut state = State::new(&problem, &start, DType::F64)?;
            state.advance(line_search, problem.nonnegative)?;
            for _ in 0..6 {
                let products = state.operands[2].matmul(&state.gram)?;
                let [a, q, d, ..] = &state.operands;
                let step = state.step(line_search, problem.nonnegative);
                let want = lasso_step_reference(a, q, d, &products, &step)?;
                state.advance(line_search, problem.nonnegative)?;
                let (got, want) = (problem.objectives(&state.operands[0])?, problem.objectives(&want)?);
                for (got, want) in got.iter().zip(&want) {
                    // The reference tries lengths 4e-5 apart.
                    let off = got - want;
                    let allowed = if line_search == LineSearch::Exact { 1e-6 } else { 1e-12 };
                    assert!(off <= allowed * want, "{line_search:?}: {got} is above {want}");
                    let is_lower = line_search == LineSearch::Exact && off >= -1e-6 * want;
                    assert!(is_lower || off.abs() <= 1e-12 * want, "{line_search:?}: {got} for {want}");
                }
            }
        }
    }
    Ok(())
}

/// By the optimality condition of one coordinate, from the residual: `q = c − a G` after its move
/// alone is `βⱼ sign(aⱼ)`, or between `−βⱼ` and `βⱼ` where the coefficient is 0.
#[test]
fn the_direction_leads_each_coordinate_to_its_minimiser() -> Result<()> {
    let (mut zeros, mut others) = (0, 0);
    for (problem, start) in problems()? {
        let squares = problem.dictionary.sqr()?.sum(1)?.to_vec1::<f64>()?;
        let penalties = problem.penalties.to_vec1::<f64>()?;
        let mut state = State::new(&problem, &start, DType::F64)?;
        for iteration in 0..6 {
            state.advance(LineSearch::Exact, problem.nonnegative)?;
            let [a, _, d, ..] = &state.operands;
            let (q, a, d) = (problem.residual_correlations(a)?, a.to_vec2::<f64>()?, d.to_vec2::<f64>()?);
            for (row, (a, d)) in a.iter().zip(&d).enumerate() {
                for (j, (&square, &beta)) in squares.iter().zip(&penalties).enumerate() {
                    let (minimiser, left) = (a[j] + d[j], q[row][j] - square * d[j]);
                    let rounding = 1e-10 * (q[row][j].abs() + square * a[j].abs() + beta);
                    let is_zero = minimiser.abs() <= rounding / square;
                    let off = match (is_zero, problem.nonnegative) {
                        (true, true) => left - beta,
                        (true, false) => left.abs() - beta,
                        (false, _) => (left - beta.copysign(minimiser)).abs(),
                    };
                    assert!(
                        off <= rounding && !(problem.nonnegative && minimiser < -rounding / square),
                        "iteration {iteration}, row {row}, atom {j}: at {minimiser} q is {left}, β {beta}: off by {off}"
                    );
                    if is_zero { zeros += 1 } else { others += 1 }
                }
            }
        }
    }
    assert!(zeros > 100 && others > 100, "{zeros} minimisers of 0, {others} others");
    Ok(())
}

#[test]
fn figures_are_the_objective_and_the_gap_and_the_objective_falls() -> Result<()> {
    for (problem, start) in problems()? {
        for line_search in [LineSearch::Exact, LineSearch::Steps] {
            for (dtype, eps) in [(DType::F32, 1e-4), (DType::F64, 1e-11)] {
                let mut state = State::new(&problem, &start, dtype)?;
                let mut last = vec![f64::INFINITY; start.dim(0)?];
                for _ in 0..20 {
                    let figures = state.advance(line_search, problem.nonnegative)?;
                    let a = state.operands[0].to_dtype(DType::F64)?;
                    let (objectives, gaps) = (problem.objectives(&a)?, problem.true_gaps(&a)?);
                    for row in 0..last.len() {
                        let [objective, gap] = figures[row][..] else { panic!("two figures") };
                        assert!((objective / objectives[row] - 1.).abs() < eps, "{line_search:?}, {dtype:?}");
                        assert!((gap - gaps[row]).abs() < eps, "{line_search:?}, {dtype:?}: {gap}");
                        assert!(objective <= last[row] * (1. + 0.01 * eps), "{line_search:?}, {dtype:?}");
                        last[row] = objective;
                    }
                    assert!(!problem.nonnegative || a.min_all()?.to_scalar::<f64>()? >= 0.);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_named() -> Result<()> {
    let (problem, start) = problems()?.remove(1);
    let State { operands, diagonal, correlations, energies, penalties, .. } =
        State::new(&problem, &start, DType::F32)?;
    let [a, q, d, figures, products] = &operands;
    let step = LassoStep {
        diagonal: &diagonal,
        correlations: &correlations,
        energies: &energies,
        penalties: &penalties,
        line_search: LineSearch::Exact,
        nonnegative: false,
    };
    let short = energies.narrow(0, 0, 3)?;
    let cases = [
        (
            lasso_step_(a, q, d, &q.copy()?, products, &step),
            "lasso_step_: figures must have shape [9, 2], got [9, 40]",
        ),
        (
            lasso_step_(a, q, d, figures, &diagonal, &step),
            "lasso_step_: products must have shape [9, 40], got [40]",
        ),
        (
            lasso_step_(a, q, d, figures, products, &LassoStep { energies: &short, ..step }),
            "lasso_step_: energies must have shape [9], got [3]",
        ),
    ];
    for (result, want) in cases {
        let message = result.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}
