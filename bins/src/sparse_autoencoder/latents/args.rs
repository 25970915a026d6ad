//! Options of models with latents.
use crate::options::{above_zero, at_least_one, not_negative, whole_number};
use crate::patch_rows::UseArgs;
use anyhow::{Result, ensure};
use chandlery::Precision;
use chandlery::sparse_autoencoder::sae::{Division, Kind, LossConfig, Resampling, SaeTrainConfig};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Epochs where none are asked for.
pub const EPOCHS: usize = 10;
/// Latents for each value of a row, where none are asked for.
const LATENTS: usize = 8;
/// Active latents where none are asked for.
const ACTIVE: usize = 32;
/// Lines of metrics of a run with fewer epochs than `FEW_EPOCHS`.
const LINES: usize = 20;
const FEW_EPOCHS: usize = 10;

/// Which latents are active.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KindArg {
    /// Those above 0, with a penalty on their sum.
    Relu,
    /// The largest of each row.
    #[value(alias = "topk")]
    TopK,
    /// The largest of a minibatch.
    #[value(alias = "batchtopk")]
    BatchTopK,
    /// Those above a threshold that each learns, with a penalty on their number.
    #[value(alias = "jumprelu")]
    JumpRelu,
    /// Those that a gate lets through, with a penalty on its sum.
    Gated,
    /// The largest of a minibatch, where the first latents reconstruct by themselves.
    Matryoshka,
}

impl KindArg {
    /// As people call it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Relu => "ReLU",
            Self::TopK => "TopK",
            Self::BatchTopK => "BatchTopK",
            Self::JumpRelu => "JumpReLU",
            Self::Gated => "gated",
            Self::Matryoshka => "Matryoshka",
        }
    }

    /// Whether it takes so many active latents; the others have a penalty.
    fn has_active(self) -> bool {
        matches!(self, Self::TopK | Self::BatchTopK | Self::Matryoshka)
    }
}

/// Models with many latents, of which few are active in a row. The run folder keeps these options.
#[derive(Debug, Clone, PartialEq, Default, Args, Serialize, Deserialize)]
pub struct LatentArgs {
    /// A model with many latents of which few are active, of this kind, in place of hidden units
    /// with a sparsity penalty.
    #[arg(long, value_enum, conflicts_with = "hidden")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<KindArg>,
    /// Number of latents. Default: 8 for each value of a row.
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latents: Option<usize>,
    /// Active latents of a row, in the mean for batch-top-k and matryoshka. Default: 32.
    #[arg(long, value_name = "K", value_parser = at_least_one, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<usize>,
    /// Weight of the penalty of relu, jump-relu and gated, at least 0: the squared error of a
    /// prepared row that one active latent is worth. Default: 1.
    #[arg(long, value_name = "WEIGHT", value_parser = not_negative, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_penalty: Option<f64>,
    /// Dead latents that reconstruct what is left of a row (AuxK); 0 for none. Default: 512, of relu
    /// 0.
    #[arg(long, value_name = "K", value_parser = whole_number, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aux_active: Option<usize>,
    /// Rows without it being active after which a latent is dead. Default: 10,000,000.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_rows: Option<usize>,
    /// Steps over which the learning rate rises. Default: 1000, at most a twentieth of all steps.
    #[arg(long, value_name = "STEPS", value_parser = whole_number, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<usize>,
    /// Length that gradients are cut to. Default: they are not.
    #[arg(long, value_name = "LENGTH", value_parser = above_zero, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Rows that a transcoder gives back in place of those of --data: named as these are, a row for
    /// each of them in the same order. They are not prepared.
    #[arg(long, value_name = "DATA", requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<String>,
    /// Whether a linear map of the rows is added to what the latents give back.
    #[arg(long, requires = "targets")]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip: bool,
    /// Rows of a buffer in memory from which minibatches are drawn, for rows in files larger than
    /// memory: they are read in pieces of a sixteenth of it, each from front to back. Default: an
    /// order over all rows, which takes 4 bytes of memory a row and reads rows from anywhere.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<usize>,
    /// Steps from one line of metrics within an epoch to the next. Default: there is a line after
    /// each epoch, and in runs of fewer than 10 epochs 20 lines or more.
    #[arg(long, value_name = "STEPS", value_parser = at_least_one, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_every: Option<usize>,
    /// Steps from one time to the next that dead latents start anew from rows with large errors.
    /// Default: they do not.
    #[arg(long, value_name = "STEPS", value_parser = at_least_one, requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resample_every: Option<usize>,
    /// What several GPUs divide. Default: rows; latents are for models that no single GPU holds.
    #[arg(long, value_enum, value_name = "DIVIDE", requires = "kind")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divide: Option<DivideArg>,
}

/// What ranks divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DivideArg {
    /// The rows of each minibatch.
    Rows,
    /// Encoder, decoder and moments by latents; not for matryoshka and --resample-every.
    Latents,
}

impl LatentArgs {
    /// Whether ranks have some of the latents each.
    pub fn by_latents(&self) -> bool {
        self.divide == Some(DivideArg::Latents)
    }

    /// Refuses options that the kind has no use for.
    ///
    /// # Errors
    /// When there are some; the message names them.
    pub fn check(&self) -> Result<()> {
        let Some(kind) = self.kind else { return Ok(()) };
        let words = kind.words();
        ensure!(
            self.active.is_none() || kind.has_active(),
            "--active: {words} has a penalty in place of a number; give --active-penalty"
        );
        ensure!(
            self.active_penalty.is_none() || !kind.has_active(),
            "--active-penalty: {words} has a number of active latents; give --active"
        );
        ensure!(
            !(self.by_latents() && kind == KindArg::Matryoshka),
            "--divide latents: {words} is divided by rows; leave the option out"
        );
        ensure!(
            !(self.by_latents() && self.resample_every.is_some()),
            "--divide latents: latents start anew where rows are divided; leave out one of it and --resample-every"
        );
        Ok(())
    }

    /// Steps from one report within an epoch to the next, in so many epochs of so many steps.
    pub fn report_every(&self, epochs: usize, a_pass: usize) -> Option<usize> {
        let few = self.kind.is_some() && epochs < FEW_EPOCHS;
        self.report_every.or(few.then(|| (a_pass / LINES.div_ceil(epochs.max(1))).max(1)))
    }

    /// Latents of a model that reads so many values.
    pub fn n_latents(&self, n_visible: usize) -> usize {
        self.latents.unwrap_or(LATENTS * n_visible)
    }

    /// The kind for so many latents.
    pub fn kind(&self, n_latents: usize) -> Kind {
        let k = self.active.unwrap_or(ACTIVE.min(n_latents));
        match self.kind.unwrap_or(KindArg::TopK) {
            KindArg::Relu => Kind::Relu,
            KindArg::TopK => Kind::TopK { k },
            KindArg::BatchTopK => Kind::BatchTopK { k },
            KindArg::JumpRelu => Kind::JumpRelu,
            KindArg::Gated => Kind::Gated,
            KindArg::Matryoshka => Kind::matryoshka(k, n_latents),
        }
    }

    /// How the library trains in `steps` minibatches of `batch` rows, with products of this precision.
    pub fn training(
        &self,
        batch: usize,
        learning_rate: Option<f64>,
        precision: Precision,
        steps: u64,
    ) -> SaeTrainConfig {
        let usual = SaeTrainConfig::default();
        let usual_aux = if self.kind == Some(KindArg::Relu) { 0 } else { usual.loss.aux_k };
        SaeTrainConfig {
            loss: LossConfig {
                sparsity: self.active_penalty.unwrap_or(usual.loss.sparsity),
                aux_k: self.aux_active.unwrap_or(usual_aux),
                // The decoder of a transcoder starts at 0.
                unit_atoms: usual.loss.unit_atoms && self.targets.is_none(),
                ..usual.loss
            },
            batch,
            steps: Some(steps),
            learning_rate,
            precision,
            warm_up: self.warm_up.map_or(usual.warm_up.min(steps / 20), |steps| steps as u64),
            sparsity_warm_up: usual.sparsity_warm_up.min(steps / 4),
            clip: self.clip,
            dead_rows: self.dead_rows.map_or(usual.dead_rows, |rows| rows as u64),
            // Late, what starts anew has no time to learn.
            resampling: self.resample_every.map(|every| Resampling { every: every as u64, until: steps / 2 }),
            division: if self.by_latents() { Division::Latents } else { Division::Rows },
            // A share of the first minibatch by all latents, of which each rank has some.
            start_share: if self.by_latents() { 0. } else { usual.start_share },
            ..usual
        }
    }
}

/// Arguments of `sparse-autoencoder top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// Rows to keep of each latent.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub rows: usize,
    /// Latents on the page: those that are active most often. The file has all.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = at_least_one)]
    pub page_latents: usize,
    /// File with a text for each row, a line each, in the order of the rows; the page shows them.
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    /// Leave the pictures of rows out of the page if they take more MiB than this.
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = at_least_one)]
    pub page_limit: usize,
    /// Folder to write top.safetensors and top.html to; default: that of MODEL.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
