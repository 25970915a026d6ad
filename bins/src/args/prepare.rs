//! The option `--prepare`.
use crate::help::PREPARE;
use chandlery_datasets::preparation::StepConfig;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// How rows are prepared.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
pub struct PrepareArgs {
    /// Steps that prepare rows, in this order, separated by commas, such as log1p,pca=50; or none.
    /// The default depends on the program and the rows (see --help).
    #[arg(long, value_name = "STEP,…", long_help = PREPARE)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Steps>,
}

impl PrepareArgs {
    /// The steps that were asked for; none where nothing was said.
    pub fn steps(&self) -> &[StepConfig] {
        self.prepare.as_ref().map_or(&[], |steps| &steps.0)
    }

    /// Chooses steps where nothing was said.
    pub fn choose(&mut self, steps: impl Into<Vec<StepConfig>>) {
        self.prepare.get_or_insert(Steps(steps.into()));
    }
}

/// A list of steps, as text `none` or their names with commas between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Steps(pub Vec<StepConfig>);

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(Vec::new())),
            list => list.split(',').map(str::parse).collect::<Result<_, _>>().map(Self),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn steps_are_a_list_or_none_which_is_not_the_same_as_nothing() {
        let args = |text: &str| PrepareArgs { prepare: Some(text.parse().unwrap()) };
        assert_eq!(args("row-mean,zca=0.1").steps().len(), 2);
        let mut none = args("none");
        assert!(none.steps().is_empty());
        none.choose([StepConfig::MinMax]);
        assert!(none.steps().is_empty());
        let mut nothing = PrepareArgs::default();
        nothing.choose([StepConfig::MinMax]);
        assert_eq!(nothing.steps(), [StepConfig::MinMax]);
        assert!("".parse::<Steps>().is_err() && "none,minmax".parse::<Steps>().is_err());
        for args in [args("none"), args("scale=2,zca"), PrepareArgs::default()] {
            let text = serde_json::to_string(&args).unwrap();
            assert_eq!(serde_json::from_str::<PrepareArgs>(&text).unwrap(), args, "{text}");
        }
    }
}
