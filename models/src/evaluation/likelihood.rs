//! The log-likelihood of rows under a network of one RBM, or a lower bound on it under a network of
//! two.
//!
//! | step | what |
//! |---|---|
//! | rows | prepared; grey levels are drawn or cut to 0 and 1 where the visible units are binary |
//! | `ln Z` | of the top RBM: [exact](Rbm::exact_log_z) where that is possible, else annealed [from below](Ais::forward) and [from above](Ais::reverse) |
//! | start | forward annealing begins at the mean of the rows, reverse annealing at the rows themselves or at the ends of forward annealing |
//! | likelihood | of [test and training rows](Rbm::log_likelihood), or [the bound](Dbn::log_likelihood_bound) of two layers |
//!
//! A much higher value on training rows means overfitting; intervals of the two annealings that do
//! not overlap mean that neither is to be believed. Source: Salakhutdinov and Murray, "On the
//! quantitative analysis of deep belief networks", ICML 2008.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::Philox;
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery::evaluation::likelihood::{Draws, LikelihoodConfig};
//! # fn main() -> candle::Result<()> {
//! let dbn = Dbn::init(DbnConfig::new(&[3, 2]), Philox::new(0, 0), &Cpu)?;
//! let rows = Tensor::new(&[[0f32, 1., 1.], [1., 0., 0.]], &Cpu)?;
//! let draws = Draws { rows: Philox::new(0, 1 << 32), annealing: Philox::new(0, 2 << 32) };
//! let likelihood = LikelihoodConfig::default().measure(&dbn, &rows, None, draws, &mut |_, _, _| {})?;
//! // With weights near 0 each of the 8 rows is about as likely.
//! assert!((likelihood.test.value - (1f64 / 8.).ln()).abs() < 0.1);
//! # Ok(()) }
//! ```
use crate::dbn::Dbn;
use crate::model::Model;
use crate::rbm::likelihood::{Ais, AisConfig, Estimate};
use crate::rbm::{HiddenUnit, Rbm};
use candle::{DType, Result, Tensor};
use chandlery_ops::core::bernoulli;
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};

/// How `ln Z` of the top RBM is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A sum over all states of the smaller side.
    Exact,
    /// Annealed importance sampling, from below and from above.
    Ais,
}

/// Where reverse annealing starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackFrom {
    /// At training rows, or test rows where there are none.
    #[default]
    Rows,
    /// At the ends of forward annealing: they have the RBM's proportions of modes, but miss modes
    /// that forward annealing never reached.
    Samples,
}

/// What the rows are whose likelihood is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    /// 1 with the grey level as the probability.
    #[serde(rename = "drawn")]
    Drawn,
    /// 1 from one half on.
    #[serde(rename = "thresholded")]
    Thresholded,
    /// The prepared rows, of real-valued units.
    #[serde(rename = "as they are")]
    AsTheyAre,
}

impl std::fmt::Display for Binary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Drawn => "drawn",
            Self::Thresholded => "thresholded",
            Self::AsTheyAre => "as they are",
        })
    }
}

/// How a likelihood is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LikelihoodConfig {
    /// How `ln Z` is computed. None, the default: exactly where one side has at most 25 binary
    /// units, else by annealing.
    pub method: Option<Method>,
    /// Chains of annealing, at least 2; the error bounds shrink with the square root of their
    /// number. Default: by the size of the RBM.
    pub chains: Option<usize>,
    /// Temperatures of annealing, at least 3. Default: by the size of the RBM.
    pub temperatures: Option<usize>,
    /// Where reverse annealing starts.
    pub back_from: BackFrom,
    /// Gibbs steps from there before reverse annealing. Default 1000.
    pub burn_in: usize,
    /// Whether grey levels are cut at one half for binary units, in place of being drawn. Default
    /// false.
    pub threshold: bool,
    /// Draws of the middle layer of two for each row, at least 2. Default 20.
    pub draws: usize,
}

impl Default for LikelihoodConfig {
    fn default() -> Self {
        Self {
            method: None,
            chains: None,
            temperatures: None,
            back_from: BackFrom::Rows,
            burn_in: 1000,
            threshold: false,
            draws: 20,
        }
    }
}

/// Places in the random sequence.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    /// Binary rows, and the units above them: this stream and the four after it.
    pub rows: Philox,
    /// Chains of forward annealing, and of reverse annealing in the stream after it.
    pub annealing: Philox,
}

/// The stream `n` after a place.
fn after(philox: Philox, n: u64) -> Philox {
    Philox { stream: philox.stream + n, ..philox }
}

/// What is computed, of which a progress callback is told steps done and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The sum over all states.
    States,
    /// Forward annealing.
    Annealing,
    /// Reverse annealing.
    AnnealingBack,
    /// The likelihood of the rows, in one step.
    Rows,
}

/// Told the stage, and how many of how many steps are done.
pub type Progress<'a> = &'a mut dyn FnMut(Stage, usize, usize);

/// How `ln Z` was computed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub enum LogZ {
    /// By a sum over all states.
    Exact {
        /// `ln Z`
        log_z: f64,
    },
    /// By forward and reverse annealing.
    Ais {
        /// Estimate from below, by forward annealing.
        forward: Estimate,
        /// Estimate from above, by reverse annealing.
        reverse: Estimate,
        /// Whether the two intervals overlap.
        agree: bool,
        /// Effective number of chains of forward and of reverse annealing.
        effective_chains: [f64; 2],
        /// Chains.
        n_chains: usize,
        /// Inverse temperatures after 0.
        n_temperatures: usize,
    },
}

/// Log-likelihoods of rows under a network, in nats per row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Likelihood {
    /// Partition function of the top RBM.
    pub partition_function: LogZ,
    /// Average log-likelihood of test rows, or a lower bound on it, with `ln Z` from forward
    /// annealing or exact.
    pub test: Estimate,
    /// The same with `ln Z` from reverse annealing; none if `ln Z` is exact.
    pub test_reverse: Option<Estimate>,
    /// The same as `test` for training rows. None without training rows.
    pub train: Option<Estimate>,
    /// Standard error of `test` and of `train` from the draws of the middle layer; only for two
    /// layers, where both are lower bounds.
    pub bound_standard_errors: Option<[f64; 2]>,
    /// How grey levels became 0 or 1.
    pub rows: Binary,
    /// Test rows.
    pub n_test: usize,
    /// Training rows.
    pub n_train: usize,
}

impl LikelihoodConfig {
    /// Refuses a network whose likelihood cannot be measured, before anything is computed.
    ///
    /// # Errors
    /// When it has more than two layers, filters, or hidden units that are not binary.
    pub fn check(dbn: &Dbn) -> Result<()> {
        let n = dbn.layers().len();
        ensure!(n <= 2, "Likelihood: the network must have one layer, or two for a lower bound, got {n}");
        ensure!(
            dbn.layers().iter().all(|rbm| rbm.config().filter_grid().is_none()),
            "Likelihood: no layer may be of filters (a convolution); evaluate without it"
        );
        let other = |rbm: &&Rbm| rbm.config().hidden != HiddenUnit::Bernoulli;
        if let Some(other) = dbn.layers().iter().find(other) {
            candle::bail!("Likelihood: hidden units must be bernoulli, got {}", other.config().hidden)
        }
        Ok(())
    }

    /// Measures the likelihood of raw rows, `[n_test, n_inputs]` and `[n_train, n_inputs]` on the
    /// device of the network.
    ///
    /// Cost: annealing takes chains × temperatures × weights of the top RBM, twice; an exact sum
    /// `2^units` of its smaller side.
    ///
    /// # Errors
    /// As [`check`](Self::check), when shapes or options are out of range, or an exact sum has too
    /// many states.
    pub fn measure(
        &self,
        dbn: &Dbn,
        test: &Tensor,
        train: Option<&Tensor>,
        draws: Draws,
        progress: Progress<'_>,
    ) -> Result<Likelihood> {
        self.measure_in_group(&Group::single(), dbn, test, train, draws, progress)
    }

    /// The same on every rank of a group, which divide the chains of annealing among them,
    /// [`Ais::in_group`]; all make the same call.
    ///
    /// # Errors
    /// As [`measure`](Self::measure), and when there are too few chains to give each rank some.
    pub fn measure_in_group(
        &self,
        group: &Group,
        dbn: &Dbn,
        test: &Tensor,
        train: Option<&Tensor>,
        draws: Draws,
        progress: Progress<'_>,
    ) -> Result<Likelihood> {
        Self::check(dbn)?;
        let (top, below) = match dbn.layers() {
            [only] => (only, None),
            [below, top] => (top, Some(below)),
            layers => candle::bail!("Likelihood: there must be one or two layers, got {}", layers.len()),
        };
        let test = self.binary(dbn, test, draws.rows)?;
        let train = train.map(|train| self.binary(dbn, train, after(draws.rows, 1))).transpose()?;
        // Rows of the top RBM: forward annealing starts at their mean, reverse annealing at the
        // rows themselves.
        let start = train.as_ref().unwrap_or(&test);
        let read_by_top = match below {
            Some(below) => below.sample_hidden(start, after(draws.rows, 2))?,
            None => start.clone(),
        };
        let found = self.partition_function(group, top, &read_by_top, draws.annealing, progress)?;
        let (log_z, reverse) = match &found {
            LogZ::Exact { log_z } => (Estimate::exact(*log_z), None),
            LogZ::Ais { forward, reverse, .. } => (*forward, Some(*reverse)),
        };
        let mut errors = [0.; 2];
        let mut of = |rows: &Tensor, log_z: &Estimate, side: usize| -> Result<Estimate> {
            if below.is_none() {
                return top.log_likelihood(rows, log_z);
            }
            let philox = after(draws.rows, 3 + side as u64);
            let bound = dbn.log_likelihood_bound(rows, log_z, self.draws, philox)?;
            errors[side] = bound.standard_error;
            Ok(bound.estimate)
        };
        progress(Stage::Rows, 0, 1);
        let on_test = of(&test, &log_z, 0)?;
        let on_train = train.as_ref().map(|train| of(train, &log_z, 1)).transpose()?;
        // The same rows and draws: only ln Z differs.
        let turned = |reverse: Estimate| Estimate {
            value: on_test.value + log_z.value - reverse.value,
            lower: on_test.value + log_z.value - reverse.upper,
            upper: on_test.value + log_z.value - reverse.lower,
        };
        Ok(Likelihood {
            test: on_test,
            test_reverse: reverse.map(turned),
            train: on_train,
            partition_function: found,
            bound_standard_errors: below.map(|_| errors),
            rows: self.rows_of(dbn),
            n_test: test.dim(0)?,
            n_train: train.map_or(Ok(0), |train| train.dim(0))?,
        })
    }

    /// What becomes of rows of this network.
    fn rows_of(&self, dbn: &Dbn) -> Binary {
        let real = dbn.layers().first().is_some_and(|lowest| lowest.config().visible.is_gaussian());
        match (real, self.threshold) {
            (true, _) => Binary::AsTheyAre,
            (false, true) => Binary::Thresholded,
            (false, false) => Binary::Drawn,
        }
    }

    /// Prepared rows, 0 and 1 if the visible units are binary.
    fn binary(&self, dbn: &Dbn, rows: &Tensor, philox: Philox) -> Result<Tensor> {
        let grey = dbn.prepare(rows)?;
        match self.rows_of(dbn) {
            Binary::AsTheyAre => Ok(grey),
            Binary::Thresholded => grey.ge(0.5)?.to_dtype(DType::F32),
            Binary::Drawn => bernoulli(&grey.contiguous()?, philox),
        }
    }

    fn partition_function(
        &self,
        group: &Group,
        top: &Rbm,
        rows: &Tensor,
        annealing: Philox,
        progress: Progress<'_>,
    ) -> Result<LogZ> {
        let usual = if top.has_exact_log_z() { Method::Exact } else { Method::Ais };
        if self.method.unwrap_or(usual) == Method::Exact {
            let log_z = top.exact_log_z(&mut |done, total| progress(Stage::States, done, total))?;
            return Ok(LogZ::Exact { log_z });
        }
        let of_size = AisConfig::for_rbm(top);
        let config = AisConfig {
            n_chains: self.chains.unwrap_or(of_size.n_chains),
            stages: self.temperatures.map_or(of_size.stages, AisConfig::stages),
            burn_in: self.burn_in,
        };
        let mean = rows.to_dtype(DType::F64)?.mean(0)?.to_dtype(rows.dtype())?;
        let ais = Ais::new(top, &top.base_rate_bias(&mean)?, config)?.in_group(group)?;
        let forward = ais.forward(annealing, &mut |done, total| progress(Stage::Annealing, done, total))?;
        let start = match self.back_from {
            BackFrom::Rows => rows,
            BackFrom::Samples => &forward.states,
        };
        let mut back = |done, total| progress(Stage::AnnealingBack, done, total);
        let reverse = ais.reverse(start, after(annealing, 1), &mut back)?;
        Ok(LogZ::Ais {
            forward: forward.log_z,
            reverse: reverse.log_z,
            agree: forward.log_z.agrees_with(&reverse.log_z),
            effective_chains: [forward.effective_chains, reverse.effective_chains],
            n_chains: ais.config().n_chains,
            n_temperatures: ais.config().n_temperatures(),
        })
    }
}
