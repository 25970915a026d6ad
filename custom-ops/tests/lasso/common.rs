//! Problems, and what the tests compare.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{LassoMethod, LassoOptions, LassoReport, lasso_, lasso_gaps_reference};
use chandlery_ops::core::normal;

pub const METHODS: [LassoMethod; 2] = [LassoMethod::ActiveSet, LassoMethod::CoordinateDescent];
pub const TYPES: [DType; 2] = [DType::F32, DType::F64];

/// A lasso in terms of signals and dictionary, f64 with the values of f32.
pub struct Problem {
    pub signals: Tensor,
    pub dictionary: Tensor,
    pub penalties: Tensor,
    pub nonnegative: bool,
}

/// Independent normal entries.
pub fn gaussian(rows: usize, p: usize, stream: u64) -> Result<Tensor> {
    normal((rows, p), &Cpu, Philox::new(14, stream))?.to_dtype(DType::F64)
}

/// Random walks of length 1 around a common direction: neighbours are alike, and so are all rows.
pub fn alike(rows: usize, p: usize, stream: u64) -> Result<Tensor> {
    let walk = (gaussian(rows, p, stream)?.cumsum(1)? + 12.)?;
    let walk = walk.broadcast_div(&walk.sqr()?.sum_keepdim(1)?.sqrt()?)?;
    walk.to_dtype(DType::F32)?.to_dtype(DType::F64)
}

impl Problem {
    /// All atoms with the same penalty, `fraction` of the largest correlation.
    pub fn new(signals: Tensor, dictionary: Tensor, fraction: f64, nonnegative: bool) -> Result<Self> {
        let largest = signals.matmul(&dictionary.t()?)?.abs()?.max_all()?.to_scalar::<f64>()?;
        let beta = f64::from((fraction * largest) as f32);
        let penalties = Tensor::full(beta, dictionary.dim(0)?, &Cpu)?;
        Ok(Self { signals, dictionary, penalties, nonnegative })
    }

    pub fn options(&self, method: LassoMethod, tolerance: f64) -> LassoOptions {
        LassoOptions { method, tolerance, nonnegative: self.nonnegative, ..LassoOptions::default() }
    }

    /// Solves from `start`, or from zeros; the activations are f64.
    pub fn solve_from(
        &self,
        start: Option<&Tensor>,
        dtype: DType,
        options: &LassoOptions,
    ) -> Result<(Tensor, LassoReport)> {
        let of_type = |x: &Tensor| x.to_dtype(dtype)?.contiguous();
        let (signals, dictionary) = (of_type(&self.signals)?, of_type(&self.dictionary)?);
        let (gram, turned) = (dictionary.matmul(&dictionary.t()?)?, dictionary.t()?);
        let (correlations, energies) = (signals.matmul(&turned)?, signals.sqr()?.sum(1)?);
        let activations = match start {
            Some(start) => of_type(start)?.copy()?,
            None => correlations.zeros_like()?,
        };
        let penalties = of_type(&self.penalties)?;
        let report = lasso_(&activations, &gram, &correlations, &energies, &penalties, options)?;
        Ok((activations.to_dtype(DType::F64)?, report))
    }

    pub fn solve(&self, dtype: DType, options: &LassoOptions) -> Result<(Tensor, LassoReport)> {
        self.solve_from(None, dtype, options)
    }

    /// `½ ‖x − a B‖² + Σ βⱼ |aⱼ|` of each signal.
    pub fn objectives(&self, activations: &Tensor) -> Result<Vec<f64>> {
        let left = (&self.signals - activations.matmul(&self.dictionary)?)?;
        let absolute = activations.abs()?.broadcast_mul(&self.penalties)?.sum(1)?;
        ((left.sqr()?.sum(1)? * 0.5)? + absolute)?.to_vec1()
    }

    /// The gaps, from the residuals in f64.
    pub fn true_gaps(&self, activations: &Tensor) -> Result<Vec<f64>> {
        let Self { signals, dictionary, penalties, nonnegative } = self;
        lasso_gaps_reference(activations, signals, dictionary, penalties, *nonnegative)?.to_vec1()
    }

    /// `q`, the correlations with the residual.
    pub fn residual_correlations(&self, activations: &Tensor) -> Result<Vec<Vec<f64>>> {
        let left = (&self.signals - activations.matmul(&self.dictionary)?)?;
        left.matmul(&self.dictionary.t()?)?.to_vec2()
    }
}

pub fn gaps(report: &LassoReport) -> Result<Vec<f64>> {
    report.gaps.to_dtype(DType::F64)?.to_vec1()
}

/// Asserts that every number is at most `limit`; a NaN is not.
pub fn assert_at_most(what: &str, numbers: &[f64], limit: f64) {
    for (row, &number) in numbers.iter().enumerate() {
        assert!(number <= limit, "{what}: row {row}: {number} is above {limit}");
    }
}

/// The problems of the signals by themselves, each with the samples where its row of `mask`, f64
/// `[m, p]` of 0 and 1, is 1: dictionaries have zeros in the place of the others.
pub fn by_signal(problem: &Problem, mask: &Tensor) -> Result<Vec<Problem>> {
    let one = |row: usize| {
        let mask = mask.narrow(0, row, 1)?;
        Ok(Problem {
            signals: (problem.signals.narrow(0, row, 1)? * &mask)?,
            dictionary: problem.dictionary.broadcast_mul(&mask)?,
            penalties: problem.penalties.clone(),
            nonnegative: problem.nonnegative,
        })
    };
    (0..mask.dim(0)?).map(one).collect()
}
