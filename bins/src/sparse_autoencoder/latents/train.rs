//! The command `train` of models with latents: minibatches in a seeded order.
use super::targets::{self, behind};
use crate::patch_rows::{Family, Input, Usual, write_filters};
use crate::report::Outcome;
use crate::rows::{Reads, Rows, SplitArg};
use crate::session::card::scale_of;
use crate::session::checkpoints::CHECKPOINT;
use crate::session::{Asked, Card, Kind, Nothing, Pace, Run, Session, Trained};
use crate::sparse_autoencoder::args::{Settings, TrainArgs};
use crate::sparse_autoencoder::minibatches::{self, Own, Said, panel};
use anyhow::{Result, ensure};
use candle::Device;
use chandlery::sparse_autoencoder::SparseAutoencoder;
use chandlery::sparse_autoencoder::sae::{Metrics, PairTrainer, Sae, SaeConfig, SaeTrainConfig, SaeTrainer};
use chandlery::{LoadOptions, Model, Philox, Trainer};
use chandlery_datasets::count;
use chandlery_datasets::preparation::StepConfig;
use chandlery_ops::Group;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;

/// Places of the first weights and of resampled rows in the random sequence of a run's seed.
const START: u64 = 1 << 32;
const RESAMPLED: u64 = START + 1;

const TAGS: [&str; 4] =
    ["sparse-autoencoder", "dictionary-learning", "feature-extraction", "interpretability"];

impl Family for Sae {
    type Settings = Settings;
    const KIND: Kind = SparseAutoencoder::KIND;
    const USUAL: Usual = Usual { stay: true, ..SparseAutoencoder::USUAL };

    fn reads(&self) -> Reads {
        self.config().into()
    }

    fn width(&self) -> usize {
        self.config().n_latents
    }

    fn check_gives_back(&self) -> Result<()> {
        ensure!(
            self.config().n_targets.is_none(),
            "this model is a transcoder, which gives back other rows than it reads; `evaluate` compares them with --targets"
        );
        Ok(())
    }
}

/// An epoch, or what went before in it and was not reported: a line of `metrics.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Counted from 1.
    pub epoch: usize,
    /// Rows that were trained on, those of earlier epochs too.
    #[serde(default)]
    pub rows: u64,
    /// The mean loss of its minibatches.
    pub loss: f64,
    /// Fraction of variance unexplained.
    pub fvu: f64,
    /// Mean number of active latents of a row.
    pub l0: f64,
    /// Share of latents that are dead.
    pub dead: f64,
    /// Time of the epoch up to here.
    pub seconds: f64,
}

/// What is trained, in words.
fn title(settings: &Settings, config: &SaeConfig) -> String {
    let kind = settings.latents.kind.map_or("", |kind| kind.words());
    let SaeConfig { n_visible, n_latents, n_targets, skip, .. } = config;
    match n_targets {
        None => format!("{kind} sparse autoencoder of {n_visible} values and {n_latents} latents"),
        Some(n_targets) => {
            let skipped = if *skip { " and a skip connection" } else { "" };
            format!("{kind} transcoder of {n_visible} values to {n_targets} by {n_latents} latents{skipped}")
        }
    }
}

/// The command.
pub struct Latents;

impl Run for Latents {
    type Input = Input;
    type Settings = Settings;
    type Trainer = PairTrainer;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = SparseAutoencoder::KIND;
}

/// What is trained, with so many targets where it is a transcoder.
fn config(settings: &Settings, rows: &Rows, n_targets: Option<usize>) -> Result<SaeConfig> {
    let mut prepare = settings.prepare.clone();
    if !rows.patches {
        prepare.choose([StepConfig::MeanNorm]);
    }
    let preparation = Sae::USUAL.preparation(rows, &prepare, settings.seed)?;
    let n_visible = preparation.n_outputs(rows.split.n_features())?;
    let n = settings.latents.n_latents(n_visible);
    let kind = settings.latents.kind(n);
    let config = match n_targets {
        Some(n_targets) => {
            SaeConfig { skip: settings.latents.skip, ..SaeConfig::transcoder(n_visible, n, n_targets, kind) }
        }
        None => SaeConfig::new(n_visible, n, kind),
    };
    Ok(SaeConfig { preparation, image: rows.split.image, ..config })
}

/// Writes the model, and gives it where pictures are made of it. One whose latents were divided may
/// fit no device: it is copied from the last checkpoint a piece at a time.
fn save(trainer: PairTrainer, trained: &Trained<Latents>) -> Result<Option<Sae>> {
    let folder = &trained.folder;
    if !trained.info.settings.latents.by_latents() {
        let model = trainer.model()?;
        folder.save_model("", |path| model.save_pretrained(path))?;
        return Ok(Some(model));
    }
    let is_shown = trainer.model_config().image.is_some();
    drop(trainer);
    folder.save_model("", |path| SaeTrainer::save_model_of(&folder.join(CHECKPOINT), path))?;
    let path = folder.path().display().to_string();
    Ok(if is_shown { Some(Sae::from_pretrained(&path, &LoadOptions::default())?) } else { None })
}

/// Trains a model, or resumes that, and leaves a run folder.
pub fn train(asked: Asked<Latents>, args: &TrainArgs, rows: &Rows) -> Result<Outcome> {
    let batch = asked.settings.batch.unwrap_or(SaeTrainConfig::default().batch);
    let a_pass = rows.split.n_samples();
    let targets = match &asked.settings.latents.targets {
        Some(name) => Some(targets::open(name, &asked.input.rows, rows, Some(SplitArg::Train))?),
        None => None,
    };
    let pairs = targets.as_ref().map(|targets| behind(rows, targets)).transpose()?;
    let n_targets = targets.map(|targets| targets.n_features());
    let own = Own {
        new: |settings: &Settings, steps, device: &Device, group: &Group| {
            let batch = settings.batch.unwrap_or(batch);
            let precision = settings.cost.fit(1).cost.precision;
            let training = settings.latents.training(batch, settings.learning_rate, precision, steps);
            let streams = [START, RESAMPLED].map(|stream| Philox::new(settings.seed, stream));
            let model = config(settings, rows, n_targets)?;
            Ok(SaeTrainer::init(model, training, streams, group, device)?.into())
        },
        load: |_: &Settings, steps, path: &Path, device: &Device, group: &Group| {
            let (mut trainer, place) = PairTrainer::read(path, device, group)?;
            trainer.set_planned_steps(steps)?;
            Ok((trainer, place))
        },
        begin: |session: &Session<Latents>| {
            let title = title(&session.info.settings, session.trainer.model_config());
            session.announce(
                &format!("{title} for {} ({})", rows.name, rows.words()),
                session.info.settings.seed,
            )
        },
        say: |Metrics { loss, fvu, l0, dead, .. }: Metrics, pace: Pace| Said {
            line: Line {
                epoch: pace.epoch + 1,
                rows: (pace.epoch * a_pass + pace.rows) as u64,
                loss,
                fvu,
                l0,
                dead,
                seconds: pace.seconds,
            },
            loss,
            words: format!(
                "FVU {fvu:.4}  L0 {l0:>6.2}  {:>5.1} % dead  {:.0} rows/s",
                100. * dead,
                pace.rows_per_second
            ),
        },
    };
    let Some((trainer, trained)) =
        minibatches::train(asked, args, pairs.as_ref().unwrap_or(rows), batch, own)?
    else {
        return Ok(Outcome::Interrupted);
    };
    let settings = &trained.info.settings;
    let config = trainer.model_config().clone();
    let model = save(trainer, &trained)?;
    let lines = &trained.place.reports;
    trained.draw_curves(&[
        panel(lines, "fraction of variance unexplained", "rows", |line| (line.rows as f64, line.fvu)).log(),
        panel(lines, "active latents of a row", "rows", |line| (line.rows as f64, line.l0)),
        panel(lines, "share of dead latents", "rows", |line| (line.rows as f64, line.dead)),
    ])?;
    let filters = model.filter(|_| n_targets.is_none()).map(|model| {
        write_filters(model.decoder(), model.shape(), &trained.folder, |n| {
            format!("what the first {n} latents stand for; mid-grey is 0")
        })
    });
    let pictures: Vec<_> = filters.transpose()?.flatten().into_iter().collect();
    let last = lines.last();
    let SaeConfig { n_visible, n_latents, .. } = config;
    let (epochs, batch) = (last.map_or(0, |line| line.epoch), settings.batch.unwrap_or(batch));
    let [fvu, l0, dead] =
        [last.map_or(f64::NAN, |l| l.fvu), last.map_or(0., |l| l.l0), last.map_or(0., |l| l.dead)];
    let results = json!({
        "data": rows.name,
        "n_rows": trained.info.n_rows,
        "kind": settings.latents.kind,
        "n_visible": n_visible,
        "n_latents": n_latents,
        "targets": settings.latents.targets,
        "epochs": epochs,
        "batch": batch,
        "fvu": fvu,
        "l0": l0,
        "dead": dead,
    });
    let card = Card {
        tags: &TAGS,
        title: title(settings, &config),
        learned: format!("Learned by Adam on `{}`: {}.", rows.name, rows.words()),
        settings: format!("{} in minibatches of {batch}", count(epochs, "epoch")),
        results: format!(
            "| at the end | |\n|---|---|\n| fraction of variance unexplained | **{fvu:.4}** |\n\
             | active latents of a row | {l0:.2} |\n| share of dead latents | {dead:.4} |\n\n\
             ![while it learned](curves.svg)"
        ),
        pictures: &pictures,
        rust: format!(
            "use chandlery::{{Decode, Encode, Model}};\n\
             let sae = chandlery::sparse_autoencoder::sae::Sae::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let codes = sae.encode(&rows)?; // rows: [m, {}], {}",
            config.n_inputs(),
            scale_of(&rows.split, &config.preparation)?
        ),
        files: "`model.safetensors` holds `encoder.weight` `[n_latents, n_visible]` and `encoder.bias` `[n_latents]`, a linear layer as it \
                stands, `W_dec` `[n_latents, n_visible]`, `b_dec` `[n_visible]`, and what the kind has besides."
            .to_owned(),
    };
    trained.finish(settings.seed, results, &card)
}
