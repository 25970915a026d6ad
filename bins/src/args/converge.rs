//! The options `--tolerance` and `--patience`: training ends when its loss has converged.
use crate::options::{at_least_one, not_negative};
use chandlery::Convergence;
use chandlery_datasets::count;
use clap::Args;
use serde::{Deserialize, Serialize};

/// When training ends before its last epoch; settings of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct ConvergeArgs {
    /// Stop when the training loss has converged: when it improved by less than this share of the
    /// lowest so far in each of --patience epochs in a row. At least 0; 0.001 is a tenth of a per
    /// cent. The loss is the one that the line of an epoch shows; each layer or stage stops by
    /// itself. Default: all epochs are made.
    #[arg(long, value_name = "SHARE", value_parser = not_negative)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// Stop after this many epochs in a row without an improvement. Needs --tolerance, which says
    /// what is one. Default: 3.
    #[arg(long, value_name = "EPOCHS", requires = "tolerance", value_parser = at_least_one)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<usize>,
}

impl ConvergeArgs {
    /// The rule, where there is one.
    pub fn rule(&self) -> Option<Convergence> {
        let usual = Convergence::default();
        let patience = self.patience.unwrap_or(usual.patience);
        self.tolerance.map(|tolerance| Convergence { tolerance, patience })
    }

    /// What follows a number of epochs in a model card; nothing where all are made.
    pub fn words(&self) -> String {
        self.rule().map_or_else(String::new, |rule| format!(" at most, until {}", words(rule)))
    }
}

/// What it means that a loss has converged.
pub fn words(Convergence { tolerance, patience }: Convergence) -> String {
    let epochs = match patience {
        1 => "an epoch".to_owned(),
        n => format!("each of {} in a row", count(n, "epoch")),
    };
    format!("the loss improved by less than {tolerance} of itself in {epochs}")
}
