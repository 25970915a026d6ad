//! The command line of `dbn`.
use super::args::{EvaluateArgs, PredictArgs, ReconstructArgs, SampleArgs, TrainArgs};
use super::up_down::UpDownArgs;
use crate::args::fine_tune::FineTuneArgs;
use crate::args::used::EncodeArgs;
use crate::completions::CompletionsArgs;
use clap::{Parser, Subcommand};

/// Command lines of the program, at the end of its help.
const EXAMPLES: &str = "\
Examples:
  dbn --out runs/NET   # a 784-500-500 network of the built-in digits
  dbn evaluate runs/NET
  dbn encode runs/NET --layer all --out features.npy
  dbn fine-tune runs/NET --classify --out runs/CLASSIFIER";
/// The same of `train`.
const TRAIN: &str = "\
Examples:
  dbn train --data mnist --hidden 500,500,2000 --out runs/NET
  dbn train --layers conv:9x24/pool2,dense:50 --sparsity-target 0.05 --sparsity-weight 1
  dbn train --data FOLDER --patch 32 --visible gaussian --prepare row-mean
  dbn train --resume runs/NET --epochs 90";
/// The same of `encode`.
const ENCODE: &str = "\
Examples:
  dbn encode runs/NET --split test --out features.npy
  dbn encode runs/NET --layer all --out features.safetensors";
/// The same of `evaluate`.
const EVALUATE: &str = "\
Examples:
  dbn evaluate runs/NET
  dbn evaluate runs/NET --data mnist --log-likelihood";

/// Deep belief networks: train one layer by layer, then use it for features, reconstructions and
/// samples.
///
/// Without a sub-command it trains: `dbn --epochs 3` is `dbn train --epochs 3`.
#[derive(Debug, Parser)]
#[command(name = "dbn", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do; default: `train`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// The sub-commands of `dbn`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network and report the accuracy of a linear classifier on its features.
    #[command(after_help = TRAIN)]
    Train(Box<TrainArgs>),
    /// Write the features of a data set to a .npy, .csv or .safetensors file; for a deep
    /// autoencoder, its codes.
    #[command(after_help = ENCODE)]
    Encode(EncodeArgs),
    /// Write the class of each row and the probability of each class, by a classifier or a network
    /// with labels.
    Predict(PredictArgs),
    /// Reconstruct rows with a network or a deep autoencoder; report the squared error and draw a
    /// picture.
    Reconstruct(ReconstructArgs),
    /// Draw samples by Gibbs steps in the top layer and write a picture of them.
    Sample(SampleArgs),
    /// Evaluate a trained network on a data set. A network of `train` gets a linear classifier, the
    /// reconstruction error and free energies; a classifier or a network with labels its
    /// classification error; a deep autoencoder its squared error.
    #[command(after_help = EVALUATE)]
    Evaluate(EvaluateArgs),
    /// Fine-tune a trained network by backpropagation into a classifier or a deep autoencoder.
    FineTune(Box<FineTuneArgs>),
    /// Add labels and generative weights to a trained network and train it by the up-down
    /// algorithm.
    UpDown(Box<UpDownArgs>),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dbn::args::Settings;
    use crate::layer_arg::LayerArg;

    #[test]
    fn the_command_line_is_sound_and_every_flag_has_a_sentence() {
        crate::session::args::assert_sound::<Cli>();
    }

    #[test]
    fn without_a_sub_command_it_trains() {
        let flags = ["--epochs", "3", "--hidden", "30,20", "--device", "cpu"];
        let short = Cli::try_parse_from(["dbn"].iter().chain(&flags)).unwrap();
        let long = Cli::try_parse_from(["dbn", "train"].iter().chain(&flags)).unwrap();
        assert!(short.command.is_none());
        let Some(Command::Train(train)) = long.command else { unreachable!() };
        assert_eq!(short.train.settings(), train.settings());
        assert_eq!((train.settings().epochs, train.settings().hidden), (Some(3), vec![30, 20]));
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        let cases = [
            ("--epochs", "0", "must be a whole number of at least 1"),
            ("--hidden", "30,0", "must be a whole number of at least 1"),
            (
                "--layers",
                "30,patch:8/4",
                "must be dense:N, N, patch:WINDOW/STRIDExHIDDEN or conv:SIZExFILTERS",
            ),
            ("--learning-rate", "0", "must be a number above 0"),
            ("--learning-rate", "nan", "must be a number above 0"),
            ("--momentum", "1", "must be a number of at least 0 and below 1"),
            ("--weight-decay", "-1e-4", "must be a number of at least 0"),
            ("--weight-decay", "inf", "must be a number of at least 0"),
            ("--sparsity-target", "1", "must be a number above 0 and below 1"),
            ("--device", "gpu", "must be cpu, cuda or cuda:N"),
            ("--visible", "binary", "possible values: bernoulli, gaussian"),
            ("--precision", "f16", "precision must be f32, tf32, bf16 or bf16-stochastic, got f16"),
        ];
        for (flag, value, text) in cases {
            let err = Cli::try_parse_from(["dbn", &format!("{flag}={value}")]).unwrap_err();
            assert!(err.to_string().contains(text), "{flag} {value}: {err}");
            assert_eq!(err.exit_code(), 2);
        }
    }

    #[test]
    fn flags_that_belong_together_are_asked_for_together() {
        let parse = |flags: &[&str]| crate::session::args::parse::<Cli>(["dbn"].iter().chain(flags));
        assert!(parse(&["--sparsity-target", "0.1"]).is_err());
        assert!(parse(&["--sparsity-target", "0.1", "--sparsity-weight", "1"]).is_ok());
        assert!(parse(&["--resume", "runs/a"]).is_ok());
        assert!(parse(&["--resume", "runs/a", "--epochs", "9"]).is_ok());
        for flags in [["--batch", "9"], ["--data", "mnist"], ["--out", "b"]] {
            let err = parse(&[&["--resume", "runs/a"][..], &flags].concat()).unwrap_err();
            assert!(err.to_string().contains("cannot be used with"), "{flags:?}: {err}");
        }
    }

    #[test]
    fn settings_come_back_from_json_as_they_went() {
        let flags = ["dbn", "--l1", "1e-5", "--hidden-unit", "rectified", "--learning-rate", "0.003"];
        let settings = Cli::try_parse_from(flags).unwrap().train.settings();
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
        let flags = ["dbn", "--layers", "patch:8/4x16,30"];
        let settings = Cli::try_parse_from(flags).unwrap().train.settings();
        let text = serde_json::to_string(&settings).unwrap();
        assert!(
            text.contains(r#""layers":["patch:8/4x16","dense:30"]"#) && !text.contains("\"hidden\""),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }

    #[test]
    fn numbers_of_hidden_units_are_kept_as_they_were_given_and_are_dense_layers() {
        let settings = Cli::try_parse_from(["dbn", "--hidden", "7,5"]).unwrap().train.settings();
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains(r#""hidden":[7,5]"#) && !text.contains("\"layers\""), "{text}");
        assert_eq!(settings.all_layers(), [LayerArg::Dense(7), LayerArg::Dense(5)]);
    }
}
