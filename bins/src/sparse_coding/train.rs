//! The command `train`: a basis from minibatches of rows.
use super::args::{Settings, TrainArgs};
use super::{card, draw, streams};
use crate::curves::{self, Curve, Panel};
use crate::patch_rows::{Input, Rows, Usual};
use crate::report::{Outcome, figure, seconds};
use crate::rows::SplitArg;
use crate::session::{self, Asked, Ended, Epochs, Kind, Nothing, PlaceOf, Run, Trained};
use anyhow::Result;
use candle::Device;
use chandlery::dictionary::{Init, distinct_signals};
use chandlery::sparse_coding::{Figures, SparseCoding, SparseCodingConfig, SparseCodingTrainer};
use chandlery::{Philox, Preparation, Trainer};
use chandlery_datasets::{Split, count};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;

/// A pass over the rows: a line of `metrics.jsonl`. Activations are those over the basis from before each minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean over the rows of half the squared error plus beta times the sum of the magnitudes of activations.
    pub objective: f64,
    /// Root mean square error, in the unit of prepared rows.
    pub rmse: f64,
    /// Share of the activations that are not 0.
    pub nonzero_fraction: f64,
    /// Largest relative duality gap.
    pub max_relative_gap: f64,
    /// Atoms that were replaced.
    pub replaced: u64,
    /// Time of the pass.
    pub seconds: f64,
}

/// The command.
struct Train;

/// Its names.
pub const KIND: Kind = Kind { command: "sparse-coding train", folder: "sparse-coding" };

/// What is done with patches when nothing is said.
pub const USUAL: Usual = Usual { side: 12, patches: 20_000, prepare: "row-mean,zca=0.1" };

impl Run for Train {
    type Input = Input;
    type Settings = Settings;
    type Trainer = SparseCodingTrainer;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = KIND;

    fn save(trainer: &SparseCodingTrainer, path: &Path, place: &PlaceOf<Self>) -> candle::Result<()> {
        trainer.save_checkpoint(path, place)
    }
}

/// Rows that first atoms are drawn from, at least: many a row is flat, or like others.
const CANDIDATES: usize = 1024;

/// The model that training starts from: atoms are distinct rows, or random directions where there are too few.
pub fn first_model(
    config: SparseCodingConfig,
    split: &Split,
    seed: u64,
    device: &Device,
) -> Result<SparseCoding> {
    let (philox, all) = (Philox::new(seed, streams::START), split.n_samples());
    let mut n = 16 * config.n_atoms + CANDIDATES;
    loop {
        let some = if n < all { split.hold_out(n, seed)?.1 } else { split.clone() };
        let signals = config.preparation.to_device(device)?.apply(&some.raw(device)?)?;
        if n >= all || distinct_signals(&signals, config.n_atoms, philox)?.dim(0)? == config.n_atoms {
            return Ok(SparseCoding::start(config, &Init::RandomSignals, &signals, philox)?);
        }
        n = n.saturating_mul(8);
    }
}

fn config(settings: &Settings, preparation: Preparation, split: &Split) -> Result<SparseCodingConfig> {
    let n_features = preparation.n_outputs(split.n_features())?;
    Ok(SparseCodingConfig {
        nonnegative: settings.nonnegative.unwrap_or(false),
        tolerance: settings.learn.gap,
        preparation,
        image: split.image,
        ..SparseCodingConfig::new(settings.atoms, n_features, settings.penalty)
    })
}

/// Learns a basis, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<Train>::new(&args.session, || {
        let epochs = args.epochs.unwrap_or(args.settings.epochs);
        Ok((Input { rows: args.input.clone() }, Settings { epochs, ..args.settings.clone() }))
    })?;
    asked.extend_epochs(args.epochs, |settings| settings.epochs, |settings, all| settings.epochs = all)?;
    let rows = Rows::open(&asked.input.rows, USUAL, Some(SplitArg::Train), asked.settings.seed)?;
    let mut feed =
        asked.feed(args.feed, &rows.split, ("--batch", asked.settings.learn.batch), asked.settings.seed)?;
    let of_run = session::Rows::of(&rows.name, &rows.split)?;
    let mut session = asked.open(
        of_run,
        |settings, device| {
            let preparation = rows.preparation(&settings.prepare, settings.seed)?;
            let config = config(settings, preparation, &rows.split)?;
            let first = first_model(config, &rows.split, settings.seed, device)?;
            let philox = Philox::new(settings.seed, streams::TRAINER);
            Ok(SparseCodingTrainer::new(&first, settings.learn.config(), philox)?)
        },
        |_, path, device| Ok(SparseCodingTrainer::load_checkpoint(path, device)?),
    )?;
    let settings = session.info.settings.clone();
    let atoms = count(settings.atoms, "atom");
    session.announce(&format!("basis of {atoms} for {} ({})", rows.name, rows.words()), settings.seed)?;
    let n = settings.epochs;
    let epochs =
        Epochs { feed: &mut feed, n, earlier: 0, label: &|epoch| format!("epoch {}/{n}", epoch + 1) };
    let ended = session.epochs(epochs, |_, metrics, pace, _| {
        let Figures { objective, rmse, nonzero_fraction, max_relative_gap } = metrics.figures;
        let line = Line {
            epoch: pace.epoch + 1,
            objective,
            rmse,
            nonzero_fraction,
            max_relative_gap,
            replaced: metrics.replaced,
            seconds: pace.seconds,
        };
        Ok(Ended { words: words_of(&line, n), line, stop: false })
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    let (trainer, run) = session.trained();
    let model = trainer.model()?;
    drop(trainer);
    finish(&run, &rows, &model)
}

/// A pass in one line.
fn words_of(line: &Line, n: usize) -> String {
    let Line { epoch, objective, nonzero_fraction, max_relative_gap, replaced, .. } = line;
    let width = n.to_string().len();
    format!(
        "epoch {epoch:>width$}/{n}  objective {:>9}  nonzero {:>5.2} %  gap {max_relative_gap:.1e}  {replaced:>3} atoms replaced  {}",
        figure(*objective, 5),
        100. * nonzero_fraction,
        seconds(line.seconds)
    )
}

/// The model, its measure, pictures, curves and the model card.
fn finish(run: &Trained<Train>, rows: &Rows, model: &SparseCoding) -> Result<Outcome> {
    let (settings, lines) = (&run.info.settings, &run.place.reports);
    model.save_pretrained(&run.folder.of_model("")?)?;
    run.folder.write("curves.svg", learning_curves(lines)?.as_bytes())?;
    let mut measure = model.measure();
    rows.each(&run.device, |rows| Ok(measure.add(rows)?))?;
    let figures = measure.figures()?;
    let picture = draw::basis(model, &rows.split, &run.device, &run.folder)?;
    let pictures: Vec<_> = picture.into_iter().collect();
    let before = lines.first().map_or(figures.objective, |line| line.objective);
    run.report.line(&format!(
        "objective {} → {}, {:.2} % of the activations nonzero, largest relative gap {:.1e}",
        figure(before, 5),
        figure(figures.objective, 5),
        100. * figures.nonzero_fraction,
        figures.max_relative_gap
    ))?;
    let results = json!({
        "data": rows.name,
        "n_rows": run.info.n_rows,
        "n_features": model.config().n_features,
        "n_atoms": settings.atoms,
        "penalty": settings.penalty,
        "epochs": settings.epochs,
        "objective_first_epoch": before,
        "rmse": figures.rmse,
        "objective": figures.objective,
        "nonzero_fraction": figures.nonzero_fraction,
        "max_relative_gap": figures.max_relative_gap,
    });
    let card = card::of(model.config(), rows, settings, before, &figures, &pictures)?;
    run.finish(settings.seed, results, &card)
}

/// Objective and sparsity by epoch, as SVG.
fn learning_curves(lines: &[Line]) -> Result<String> {
    let panel = |title: &str, y_label: &str, y: fn(&Line) -> f64| Panel {
        title: title.to_owned(),
        x_label: "epoch".to_owned(),
        y_label: y_label.to_owned(),
        log_y: false,
        curves: vec![Curve {
            name: title.to_owned(),
            points: lines.iter().map(|line| (line.epoch as f64, y(line))).collect(),
        }],
    };
    curves::draw(&[
        panel("objective", "mean over the rows", |line| line.objective),
        panel("nonzero activations", "% of all", |line| 100. * line.nonzero_fraction),
    ])
}
