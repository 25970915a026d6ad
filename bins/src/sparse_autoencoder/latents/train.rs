//! The command `train` of models with latents: minibatches in a seeded order.
use crate::patch_rows::{Family, Input, Usual, write_filters};
use crate::report::Outcome;
use crate::rows::{Reads, Rows};
use crate::session::card::scale_of;
use crate::session::{Asked, Card, Ended, Epochs, Kind, Nothing, Run};
use crate::sparse_autoencoder::args::{Settings, TrainArgs};
use anyhow::Result;
use candle::Device;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::sparse_autoencoder::SparseAutoencoder;
use chandlery::sparse_autoencoder::sae::{Sae, SaeConfig, SaeTrainConfig, SaeTrainer};
use chandlery::{MinibatchTrainer, Model, Philox, Trainer};
use chandlery_datasets::count;
use chandlery_datasets::preparation::StepConfig;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Places of the first weights and of resampled rows in the random sequence of a run's seed.
const START: u64 = 1 << 32;
const RESAMPLED: u64 = START + 1;

const TAGS: [&str; 4] =
    ["sparse-autoencoder", "dictionary-learning", "feature-extraction", "interpretability"];

impl Family for Sae {
    type Settings = Settings;
    const KIND: Kind = SparseAutoencoder::KIND;
    const USUAL: Usual = SparseAutoencoder::USUAL;

    fn reads(&self) -> Reads {
        self.config().into()
    }

    fn width(&self) -> usize {
        self.config().n_latents
    }
}

/// An epoch: a line of `metrics.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Counted from 1.
    pub epoch: usize,
    /// The mean loss of its minibatches.
    pub loss: f64,
    /// Fraction of variance unexplained.
    pub fvu: f64,
    /// Mean number of active latents of a row.
    pub l0: f64,
    /// Share of latents that are dead.
    pub dead: f64,
    /// Time of the epoch.
    pub seconds: f64,
}

/// The command.
pub struct Latents;

impl Run for Latents {
    type Input = Input;
    type Settings = Settings;
    type Trainer = SaeTrainer;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = SparseAutoencoder::KIND;
}

/// The model that training starts from.
fn first_model(settings: &Settings, rows: &Rows, device: &Device) -> Result<Sae> {
    let mut prepare = settings.prepare.clone();
    if !rows.patches {
        prepare.choose([StepConfig::MeanNorm]);
    }
    let preparation = Sae::USUAL.preparation(rows, &prepare, settings.seed)?;
    let n_visible = preparation.n_outputs(rows.split.n_features())?;
    let n = settings.latents.n_latents(n_visible);
    let config = SaeConfig {
        preparation,
        image: rows.split.image,
        ..SaeConfig::new(n_visible, n, settings.latents.kind(n))
    };
    Ok(Sae::init(config, Philox::new(settings.seed, START), device)?)
}

/// Trains a model, or resumes that, and leaves a run folder.
pub fn train(mut asked: Asked<Latents>, args: &TrainArgs, rows: &Rows) -> Result<Outcome> {
    asked.extend_epochs(args.epochs, |settings| settings.epochs, |settings, all| settings.epochs = all)?;
    let batch = asked.settings.batch.unwrap_or(SaeTrainConfig::default().batch);
    let seed = asked.settings.seed;
    let mut feed = asked.feed(args.feed, &rows.split, ("--batch", batch), seed)?;
    let batch = feed.config().batch;
    asked.settings.batch = Some(batch);
    let steps = |settings: &Settings| (settings.epochs * rows.split.n_samples().div_ceil(batch)) as u64;
    let mut session = asked.open(
        rows.of_run()?,
        |settings, device| {
            let training = settings.latents.training(batch, settings.learning_rate, steps(settings));
            let first = first_model(settings, rows, device)?;
            Ok(SaeTrainer::new(&first, training, Philox::new(settings.seed, RESAMPLED))?)
        },
        |settings, path, device| {
            let (mut trainer, place) = SaeTrainer::load(path, device)?;
            trainer.set_planned_steps(steps(settings))?;
            Ok((trainer, place))
        },
    )?;
    let settings = session.info.settings.clone();
    let kind = settings.latents.kind.map_or("", |kind| kind.words());
    let SaeConfig { n_visible, n_latents, .. } = session.trainer.model_config().clone();
    let title = format!("{kind} sparse autoencoder of {n_visible} values and {n_latents} latents");
    session.announce(&format!("{title} for {} ({})", rows.name, rows.words()), settings.seed)?;

    let n = settings.epochs;
    let width = n.to_string().len();
    let until = settings.converge.rule();
    let epochs =
        Epochs { feed: &mut feed, n, earlier: 0, until, label: &|epoch| format!("epoch {}/{n}", epoch + 1) };
    let ended = session.epochs(epochs, |_, metrics, pace, _| {
        let line = Line {
            epoch: pace.epoch + 1,
            loss: metrics.loss,
            fvu: metrics.fvu,
            l0: metrics.l0,
            dead: metrics.dead,
            seconds: pace.seconds,
        };
        let words = format!(
            "epoch {:>width$}/{n}  FVU {:.4}  L0 {:>6.2}  {:>5.1} % dead  {:.0} rows/s",
            line.epoch,
            line.fvu,
            line.l0,
            100. * line.dead,
            pace.rows_per_second
        );
        Ok(Ended { loss: line.loss, line, words, stop: false })
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    let (trainer, trained) = session.trained();
    let model = trainer.model()?;
    drop(trainer);
    let lines = &trained.place.reports;
    trained.folder.save_model("", |path| model.save_pretrained(path))?;
    let panel = |title: &str, y: fn(&Line) -> f64| {
        let points = lines.iter().map(|line| (line.epoch as f64, y(line)));
        Panel::new(title, "epoch", title, vec![Curve::new(title, points)])
    };
    trained.draw_curves(&[
        panel("fraction of variance unexplained", |line| line.fvu).log(),
        panel("active latents of a row", |line| line.l0),
        panel("share of dead latents", |line| line.dead),
    ])?;
    let filters = write_filters(model.decoder(), model.shape(), &trained.folder, |n| {
        format!("what the first {n} latents stand for; mid-grey is 0")
    })?;
    let pictures: Vec<_> = filters.into_iter().collect();
    let last = lines.last();
    let [fvu, l0, dead] =
        [last.map_or(f64::NAN, |l| l.fvu), last.map_or(0., |l| l.l0), last.map_or(0., |l| l.dead)];
    let results = json!({
        "data": rows.name,
        "n_rows": trained.info.n_rows,
        "kind": settings.latents.kind,
        "n_visible": n_visible,
        "n_latents": n_latents,
        "epochs": lines.len(),
        "batch": batch,
        "fvu": fvu,
        "l0": l0,
        "dead": dead,
    });
    let card = Card {
        tags: &TAGS,
        title,
        learned: format!("Learned by Adam on `{}`: {}.", rows.name, rows.words()),
        settings: format!("{} in minibatches of {batch}", count(lines.len(), "epoch")),
        results: format!(
            "| in the last epoch | |\n|---|---|\n| fraction of variance unexplained | **{fvu:.4}** |\n\
             | active latents of a row | {l0:.2} |\n| share of dead latents | {dead:.4} |\n\n\
             ![while it learned](curves.svg)"
        ),
        pictures: &pictures,
        rust: format!(
            "use chandlery::{{Decode, Encode, Model}};\n\
             let sae = chandlery::sparse_autoencoder::sae::Sae::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let codes = sae.encode(&rows)?; // rows: [m, {}], {}",
            model.config().n_inputs(),
            scale_of(&rows.split, &model.config().preparation)?
        ),
        files: "`model.safetensors` holds `encoder.weight` `[n_latents, n_visible]` and `encoder.bias` `[n_latents]`, a linear layer as it \
                stands, `W_dec` `[n_latents, n_visible]`, `b_dec` `[n_visible]`, and what the kind has besides."
            .to_owned(),
    };
    trained.finish(settings.seed, results, &card)
}
