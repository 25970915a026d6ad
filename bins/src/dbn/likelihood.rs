//! Log-likelihood of rows under a network: `evaluate --log-likelihood`.
use super::streams;
use crate::data::MeasuredOn;
use crate::options::{at_least_one, whole_number};
use crate::progress::{Progress, Spinner};
use crate::readout::{Rows, some};
use crate::report::seconds;
use crate::rows;
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::dbn::Dbn;
use chandlery::rbm::likelihood::{Ais, AisConfig, Estimate};
use chandlery::rbm::{HiddenUnit, Rbm};
use chandlery_datasets::Split;
use chandlery_datasets::count;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::time::Instant;

/// Largest number of test rows, and of training rows.
const ROWS: usize = 10_000;

/// Arguments of `evaluate` that say how a likelihood is measured.
#[derive(Debug, Clone, Args)]
pub struct LikelihoodArgs {
    /// Also measure the average log-likelihood of at most 10,000 test rows and as many training rows, in nats per row.
    /// For networks of `train` with bernoulli hidden units and one or two layers. With two layers the result is a lower bound, estimated
    /// from --draws.
    #[arg(long)]
    pub log_likelihood: bool,
    /// How the partition function of the top RBM is computed: exact (a sum over all states, for at most 25 binary visible or hidden
    /// units), or ais (annealed importance sampling, AIS: forward AIS estimates it from below, reverse AIS from above). Default: exact where
    /// possible.
    #[arg(long, value_enum, value_name = "exact|ais", requires = "log_likelihood")]
    pub log_z: Option<LogZArg>,
    /// Chains of AIS, at least 2; the error bounds shrink with the square root of their number. Default: 500 to 5000 by the size of the top
    /// RBM, 5000 from 784 visible and 500 hidden units on.
    #[arg(long, value_name = "N", value_parser = at_least_two, requires = "log_likelihood")]
    pub chains: Option<usize>,
    /// Temperatures of AIS, at least 3. Default: 1000 to 14,500 by the size of the top RBM; 14,500, that of Salakhutdinov and Murray (2008),
    /// from the size of theirs on, 784 visible and 500 hidden units.
    #[arg(long, value_name = "N", value_parser = at_least_three, requires = "log_likelihood")]
    pub temperatures: Option<usize>,
    /// Where the chains of reverse AIS start: rows (training rows) or samples (end states of forward AIS). The samples have the RBM's
    /// proportions of modes, but miss modes that forward AIS never reached.
    #[arg(long, value_enum, value_name = "rows|samples", default_value_t = BackFrom::Rows, requires = "log_likelihood")]
    pub back_from: BackFrom,
    /// Gibbs steps of the RBM from these states before reverse AIS.
    #[arg(long, value_name = "STEPS", default_value_t = 1000, requires = "log_likelihood", value_parser = whole_number)]
    pub burn_in: usize,
    /// How grey levels become 0 or 1: draw (with the grey level as the probability of 1) or threshold (1 from one half on); default: draw.
    #[arg(long, value_enum, value_name = "draw|threshold", requires = "log_likelihood")]
    pub binarize_by: Option<BinarizeArg>,
    /// Draws of the middle layer per row, at least 2, for the lower bound of a network with two layers.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_two, requires = "log_likelihood")]
    pub draws: usize,
}

/// How the partition function is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogZArg {
    /// By a sum over all states of the smaller side.
    Exact,
    /// By annealed importance sampling.
    Ais,
}

/// Start of reverse annealing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackFrom {
    /// Training rows.
    Rows,
    /// Samples of forward annealing.
    Samples,
}

/// How grey levels are binarized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BinarizeArg {
    /// Drawn with the grey level as probability.
    Draw,
    /// 1 for grey levels of at least one half, else 0.
    Threshold,
}

fn at_least_two(text: &str) -> Result<usize, String> {
    at_least(2, text)
}

fn at_least_three(text: &str) -> Result<usize, String> {
    at_least(3, text)
}

fn at_least(least: usize, text: &str) -> Result<usize, String> {
    match at_least_one(text) {
        Ok(n) if n >= least => Ok(n),
        _ => Err(format!("must be a whole number of at least {least}")),
    }
}

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
    /// Which rows `test` is of.
    pub measured_on: MeasuredOn,
    /// Partition function of the top RBM.
    pub partition_function: LogZ,
    /// Average log-likelihood of test rows, or a lower bound on it, with `ln Z` from forward annealing or exact.
    pub test: Estimate,
    /// The same with `ln Z` from reverse annealing; none if `ln Z` is exact.
    pub test_reverse: Option<Estimate>,
    /// The same as `test` for as many training rows; a much higher value means overfitting. None without training rows.
    pub train: Option<Estimate>,
    /// Standard error of `test` and of `train` from the draws of the middle layer; only for two layers, where both are lower
    /// bounds.
    pub bound_standard_errors: Option<[f64; 2]>,
    /// How grey levels were binarized: `drawn`, `thresholded`, or `as they are` for real-valued units.
    pub rows: &'static str,
    /// Test rows.
    pub n_test: usize,
    /// Training rows.
    pub n_train: usize,
    /// Time for all of it.
    pub seconds: f64,
}

impl LikelihoodArgs {
    /// Refuses a network whose likelihood cannot be measured, before anything is computed.
    pub fn check(&self, dbn: &Dbn) -> Result<()> {
        let n = dbn.layers().len();
        ensure!(
            !self.log_likelihood || n <= 2,
            "--log-likelihood: the network must have one layer, or two for a lower bound, got {n}"
        );
        ensure!(
            !self.log_likelihood || dbn.layers().iter().all(|rbm| rbm.config().convolution.is_none()),
            "--log-likelihood: no layer may be of filters (a convolution); evaluate without it"
        );
        let other = |rbm: &&Rbm| rbm.config().hidden != HiddenUnit::Bernoulli;
        if let Some(other) = dbn.layers().iter().find(other)
            && self.log_likelihood
        {
            bail!("--log-likelihood: hidden units must be bernoulli, got {}", other.config().hidden)
        }
        let real = dbn.layers()[0].config().visible.is_gaussian();
        ensure!(
            !real || self.binarize_by.is_none(),
            "--binarize-by: rows must be of binary units, got {}; leave it out",
            dbn.layers()[0].config().visible
        );
        Ok(())
    }

    /// Measures the likelihood of the first rows of both splits.
    pub fn measure(&self, dbn: &Dbn, rows: &Rows<'_>, seed: u64, device: &Device) -> Result<Likelihood> {
        let started = Instant::now();
        let test = self.read(dbn, rows.test, ROWS, Philox::new(seed, streams::BINARIZE), device)?;
        let n_test = test.dim(0)?;
        let draws = Philox::new(seed, streams::BINARIZE + 1);
        let train = rows.train.map(|train| self.read(dbn, train, n_test, draws, device)).transpose()?;
        let (top, below) = match dbn.layers() {
            [only] => (only, None),
            [below, top] => (top, Some(below)),
            layers => bail!("--log-likelihood: there must be one or two layers, got {}", layers.len()),
        };
        // Rows of the top RBM: forward annealing starts at their mean, reverse annealing at the rows themselves.
        let start = train.as_ref().unwrap_or(&test);
        let read_by_top = match below {
            Some(below) => below.sample_hidden(start, Philox::new(seed, streams::BINARIZE + 2))?,
            None => start.clone(),
        };
        let found = self.partition_function(top, &read_by_top, seed)?;
        let (log_z, reverse) = match &found {
            LogZ::Exact { log_z } => (Estimate::exact(*log_z), None),
            LogZ::Ais { forward, reverse, .. } => (*forward, Some(*reverse)),
        };
        let mut errors = [0.; 2];
        let mut of = |rows: &Tensor, log_z: &Estimate, side: usize| -> Result<Estimate> {
            if below.is_none() {
                return Ok(top.log_likelihood(rows, log_z)?);
            }
            let philox = Philox::new(seed, streams::BINARIZE + 3 + side as u64);
            let bound = dbn.log_likelihood_bound(rows, log_z, self.draws, philox)?;
            errors[side] = bound.standard_error;
            Ok(bound.estimate)
        };
        let spinner = Spinner::new("likelihood of the rows");
        let on_test = of(&test, &log_z, 0)?;
        let on_train = train.as_ref().map(|train| of(train, &log_z, 1)).transpose()?;
        drop(spinner);
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
            rows: match (dbn.layers()[0].config().visible.is_gaussian(), self.binarize_by) {
                (true, _) => "as they are",
                (false, Some(BinarizeArg::Threshold)) => "thresholded",
                (false, _) => "drawn",
            },
            measured_on: rows.measured_on,
            n_test,
            n_train: train.map_or(Ok(0), |train| train.dim(0))?,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// The first rows of a split, binarized if the visible units are binary.
    fn read(&self, dbn: &Dbn, split: &Split, n: usize, philox: Philox, device: &Device) -> Result<Tensor> {
        let grey = dbn.prepare(&rows::all(&some(split, n, split.n_features())?, dbn.config(), device)?)?;
        if dbn.layers()[0].config().visible.is_gaussian() {
            return Ok(grey);
        }
        Ok(match self.binarize_by {
            Some(BinarizeArg::Threshold) => grey.ge(0.5)?.to_dtype(DType::F32)?,
            Some(BinarizeArg::Draw) | None => chandlery_ops::core::bernoulli(&grey.contiguous()?, philox)?,
        })
    }

    fn partition_function(&self, top: &Rbm, rows: &Tensor, seed: u64) -> Result<LogZ> {
        let by = match (self.log_z, top.has_exact_log_z()) {
            (Some(by), _) => by,
            (None, true) => LogZArg::Exact,
            (None, false) => LogZArg::Ais,
        };
        if by == LogZArg::Exact {
            let bar = bar_of("summing states");
            let log_z = top.exact_log_z(&mut |done, total| bar.show(done, total)).context("--log-z exact")?;
            return Ok(LogZ::Exact { log_z });
        }
        let of_size = AisConfig::for_rbm(top);
        let config = AisConfig {
            n_chains: self.chains.unwrap_or(of_size.n_chains),
            stages: self.temperatures.map_or(of_size.stages, AisConfig::stages),
            burn_in: self.burn_in,
        };
        let mean = rows.to_dtype(DType::F64)?.mean(0)?.to_dtype(rows.dtype())?;
        let ais = Ais::new(top, &top.base_rate_bias(&mean)?, config).context("--log-likelihood")?;
        let place = |way: u64| Philox::new(seed, streams::ANNEALING + way);
        let bar = bar_of("annealing");
        let forward = ais.forward(place(0), &mut |done, total| bar.show(done, total))?;
        drop(bar);
        let bar = bar_of("annealing back");
        let start = match self.back_from {
            BackFrom::Rows => rows,
            BackFrom::Samples => &forward.states,
        };
        let reverse = ais.reverse(start, place(1), &mut |done, total| bar.show(done, total))?;
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

/// A bar over steps of which the computation says how many there are.
fn bar_of(text: &str) -> Progress {
    let bar = Progress::steps(0);
    bar.label(text.to_owned());
    bar
}

impl Likelihood {
    /// The results as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let words = |e: &Estimate| match e.lower == e.upper {
            true => format!("{:.2}", e.value),
            false => format!("{:.2} ({:.2} to {:.2})", e.value, e.lower, e.upper),
        };
        let mut lines = vec![match &self.partition_function {
            LogZ::Exact { log_z } => format!("ln Z = {log_z:.4}, summed over all states"),
            LogZ::Ais { forward, reverse, agree, n_chains, n_temperatures, .. } => format!(
                "ln Z = {} from below, {} from above, by {} over {}; {}",
                words(forward),
                words(reverse),
                count(*n_chains, "chain"),
                count(*n_temperatures, "temperature"),
                match agree {
                    true => "they agree",
                    false => "they disagree: give more --temperatures or --chains",
                }
            ),
        }];
        let (what, errors) = match self.bound_standard_errors {
            None => ("average log-likelihood", [String::new(), String::new()]),
            Some(errors) => {
                ("lower bound on the average log-likelihood", errors.map(|e| format!(" ± {e:.2}")))
            }
        };
        let above = self
            .test_reverse
            .as_ref()
            .map_or(String::new(), |e| format!(", {} by ln Z from above", words(e)));
        let [error, error_of_train] = errors;
        let of_train = self.train.as_ref().map_or(String::new(), |train| {
            format!("; {}: {}{error_of_train} nats", count(self.n_train, "training row"), words(train))
        });
        lines.push(format!(
            "{what}, {} ({}): {}{error} nats{above}{of_train}; {}",
            self.measured_on.count(self.n_test),
            self.rows,
            words(&self.test),
            seconds(self.seconds)
        ));
        lines
    }
}
