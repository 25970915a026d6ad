//! Log-likelihood of rows under a network: `evaluate --log-likelihood`, by
//! [`chandlery::evaluation::likelihood`].
use super::streams;
use crate::options::{at_least_one, whole_number};
use crate::progress::Progress;
use crate::readout::{Rows, some};
use crate::report::seconds;
use crate::rows::{self, MeasuredOn};
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::dbn::Dbn;
use chandlery::evaluation::likelihood::{BackFrom, Draws, Likelihood, LikelihoodConfig, LogZ, Method, Stage};
use chandlery::rbm::likelihood::Estimate;
use chandlery::{Group, Philox};
use chandlery_datasets::{Split, count};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::time::Instant;

/// Largest number of test rows, and of training rows.
const ROWS: usize = 10_000;

/// Arguments of `evaluate` that say how a likelihood is measured.
#[derive(Debug, Clone, Args)]
pub struct LikelihoodArgs {
    /// Also measure the average log-likelihood of at most 10,000 test rows and as many training
    /// rows, in nats per row. For networks of `train` with bernoulli hidden units and one or two
    /// layers. With two layers the result is a lower bound, estimated from --draws.
    #[arg(long)]
    pub log_likelihood: bool,
    /// How the partition function of the top RBM is computed: exact (a sum over all states, for at
    /// most 25 binary visible or hidden units), or ais (annealed importance sampling, AIS: forward
    /// AIS estimates it from below, reverse AIS from above). Default: exact where possible.
    #[arg(long, value_enum, value_name = "exact|ais", requires = "log_likelihood")]
    pub log_z: Option<LogZArg>,
    /// Chains of AIS, at least 2; the error bounds shrink with the square root of their number.
    /// Default: 500 to 5000 by the size of the top RBM, 5000 from 784 visible and 500 hidden units
    /// on.
    #[arg(long, value_name = "N", value_parser = at_least_two, requires = "log_likelihood")]
    pub chains: Option<usize>,
    /// Temperatures of AIS, at least 3. Default: 1000 to 14,500 by the size of the top RBM; 14,500,
    /// that of Salakhutdinov and Murray (2008), from the size of theirs on, 784 visible and 500
    /// hidden units.
    #[arg(long, value_name = "N", value_parser = at_least_three, requires = "log_likelihood")]
    pub temperatures: Option<usize>,
    /// Where the chains of reverse AIS start: rows (training rows) or samples (end states of
    /// forward AIS). The samples have the RBM's proportions of modes, but miss modes that forward
    /// AIS never reached.
    #[arg(long, value_enum, value_name = "rows|samples", default_value_t = BackFromArg::Rows, requires = "log_likelihood")]
    pub back_from: BackFromArg,
    /// Gibbs steps of the RBM from these states before reverse AIS.
    #[arg(long, value_name = "STEPS", default_value_t = 1000, requires = "log_likelihood", value_parser = whole_number)]
    pub burn_in: usize,
    /// How grey levels become 0 or 1: draw (with the grey level as the probability of 1) or
    /// threshold (1 from one half on); default: draw.
    #[arg(long, value_enum, value_name = "draw|threshold", requires = "log_likelihood")]
    pub binarize_by: Option<BinarizeArg>,
    /// Draws of the middle layer per row, at least 2, for the lower bound of a network with two
    /// layers.
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
pub enum BackFromArg {
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

/// Log-likelihoods of rows under a network, and what they are of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Which rows `test` is of.
    pub measured_on: MeasuredOn,
    /// In nats per row.
    #[serde(flatten)]
    pub likelihood: Likelihood,
    /// Time for all of it.
    pub seconds: f64,
}

impl LikelihoodArgs {
    /// The same as the library takes it.
    fn config(&self) -> LikelihoodConfig {
        LikelihoodConfig {
            method: self.log_z.map(|by| match by {
                LogZArg::Exact => Method::Exact,
                LogZArg::Ais => Method::Ais,
            }),
            chains: self.chains,
            temperatures: self.temperatures,
            back_from: match self.back_from {
                BackFromArg::Rows => BackFrom::Rows,
                BackFromArg::Samples => BackFrom::Samples,
            },
            burn_in: self.burn_in,
            threshold: self.binarize_by == Some(BinarizeArg::Threshold),
            draws: self.draws,
        }
    }

    /// Refuses a network whose likelihood cannot be measured, before anything is computed.
    pub fn check(&self, dbn: &Dbn) -> Result<()> {
        if self.log_likelihood {
            LikelihoodConfig::check(dbn).context("--log-likelihood")?;
        }
        let visible = dbn.layers()[0].config().visible;
        ensure!(
            !visible.is_gaussian() || self.binarize_by.is_none(),
            "--binarize-by: rows must be of binary units, got {visible}; leave it out"
        );
        Ok(())
    }

    /// Measures the likelihood of the first rows of both splits; ranks divide chains of annealing.
    pub fn measure(
        &self,
        group: &Group,
        dbn: &Dbn,
        rows: &Rows<'_>,
        seed: u64,
        device: &Device,
    ) -> Result<Measured> {
        let started = Instant::now();
        let read = |split: &Split, n| rows::all(&some(split, n, split.n_features())?, dbn.config(), device);
        let test = read(rows.test, ROWS)?;
        let train = rows.train.map(|train| read(train, test.dim(0)?)).transpose()?;
        let draws = Draws {
            rows: Philox::new(seed, streams::BINARIZE),
            annealing: Philox::new(seed, streams::ANNEALING),
        };
        let mut bar: Option<(Stage, Progress)> = None;
        let mut show = |stage: Stage, done, total| {
            if bar.as_ref().is_none_or(|(shown, _)| *shown != stage) {
                let new = Progress::steps(0);
                new.label(
                    match stage {
                        Stage::States => "summing states",
                        Stage::Annealing => "annealing",
                        Stage::AnnealingBack => "annealing back",
                        Stage::Rows => "likelihood of the rows",
                    }
                    .to_owned(),
                );
                bar = Some((stage, new));
            }
            bar.iter().for_each(|(_, bar)| bar.show(done, total));
        };
        let config = self.config();
        let likelihood = config.measure_in_group(group, dbn, &test, train.as_ref(), draws, &mut show);
        let likelihood = likelihood.context(match self.log_z {
            Some(LogZArg::Exact) => "--log-z exact",
            _ => "--log-likelihood",
        })?;
        let measured_on = rows.measured_on;
        Ok(Measured { measured_on, likelihood, seconds: started.elapsed().as_secs_f64() })
    }
}

impl Measured {
    /// The results as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let words = |e: &Estimate| match e.lower == e.upper {
            true => format!("{:.2}", e.value),
            false => format!("{:.2} ({:.2} to {:.2})", e.value, e.lower, e.upper),
        };
        let Likelihood { partition_function, test, test_reverse, train, bound_standard_errors, rows, .. } =
            &self.likelihood;
        let mut lines = vec![match partition_function {
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
        let (what, errors) = match bound_standard_errors {
            None => ("average log-likelihood", [String::new(), String::new()]),
            Some(errors) => {
                ("lower bound on the average log-likelihood", errors.map(|e| format!(" ± {e:.2}")))
            }
        };
        let above =
            test_reverse.as_ref().map_or(String::new(), |e| format!(", {} by ln Z from above", words(e)));
        let [error, error_of_train] = errors;
        let of_train = train.as_ref().map_or(String::new(), |train| {
            format!(
                "; {}: {}{error_of_train} nats",
                count(self.likelihood.n_train, "training row"),
                words(train)
            )
        });
        lines.push(format!(
            "{what}, {} ({rows}): {}{error} nats{above}{of_train}; {}",
            self.measured_on.count(self.likelihood.n_test),
            words(test),
            seconds(self.seconds)
        ));
        lines
    }
}
