//! The command `train`: a sparse autoencoder from all rows, by L-BFGS.
use super::args::{Settings, TrainArgs};
use super::{card, draw, streams};
use crate::curves::{self, Curve, Panel};
use crate::patch_rows::{Input, Rows, Usual};
use crate::report::Outcome;
use crate::rows::SplitArg;
use crate::session::{self, Asked, Kind, Made, Nothing, PlaceOf, Run, Trained};
use anyhow::{Result, ensure};
use candle::Device;
use chandlery::Philox;
use chandlery::sparse_autoencoder::{
    CostParts, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderRun,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;

/// Iterations from one line on the screen to the next.
const SAID_EVERY: usize = 20;

/// An iteration: a line of `metrics.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Counted from 1.
    pub iteration: usize,
    /// Evaluations of the cost since the run began.
    pub evaluations: u64,
    /// The cost.
    pub cost: f64,
    /// The norm of its gradient.
    pub gradient_norm: f64,
}

/// What is done with patches when nothing is said.
pub const USUAL: Usual = Usual { side: 8, patches: 10_000, prepare: "rescale" };

/// The command.
struct Train;

/// Its names.
pub const KIND: Kind = Kind { command: "sparse-autoencoder train", folder: "sparse-autoencoder" };

impl Run for Train {
    type Input = Input;
    type Settings = Settings;
    type Trainer = SparseAutoencoderRun;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = KIND;

    fn save(trainer: &SparseAutoencoderRun, path: &Path, place: &PlaceOf<Self>) -> candle::Result<()> {
        trainer.save_checkpoint(path, place)
    }
}

/// The model that training starts from.
fn first_model(settings: &Settings, rows: &Rows, device: &Device) -> Result<SparseAutoencoder> {
    let preparation = rows.preparation(&settings.prepare, settings.seed)?;
    let n_visible = preparation.n_outputs(rows.split.n_features())?;
    let config = SparseAutoencoderConfig {
        decoder: settings.decoder.into(),
        preparation,
        image: rows.split.image,
        ..SparseAutoencoderConfig::new(n_visible, settings.hidden)
    };
    Ok(SparseAutoencoder::init(config, Philox::new(settings.seed, streams::START), device)?)
}

/// Trains a model, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<Train>::new(&args.session, || {
        let iterations = args.iterations.unwrap_or(args.settings.iterations);
        Ok((Input { rows: args.input.clone() }, Settings { iterations, ..args.settings.clone() }))
    })?;
    if let Some(all) = args.iterations {
        asked.extend(|settings| settings.iterations = all);
    }
    let rows = Rows::open(&asked.input.rows, USUAL, Some(SplitArg::Train), asked.settings.seed)?;
    if asked.resumed().is_none() {
        asked.settings.cost.chunk = args.feed.chunk(&rows.split);
    }
    let home = if asked.settings.cost.chunk.is_some() { Device::Cpu } else { asked.device.clone() };
    let raw = rows.split.raw(&home)?;
    let of_run = session::Rows::of(&rows.name, &rows.split)?;
    let mut session = asked.open(
        of_run,
        |settings, device| {
            let first = first_model(settings, &rows, device)?;
            Ok(SparseAutoencoderRun::new(&first, settings.cost.fit(settings.iterations), &raw)?)
        },
        |settings, path, device| {
            let (mut run, place) = SparseAutoencoderRun::load_checkpoint(path, &raw, device)?;
            let made = run.lbfgs().iterations();
            if let Some(all) = args.iterations {
                ensure!(
                    all > made,
                    "--iterations: must be above the {made} that this run has made, got {all}"
                );
            }
            run.set_iterations(settings.iterations)?;
            Ok((run, place))
        },
    )?;
    let settings = session.info.settings.clone();
    let model = session.trainer.model()?;
    let (v, h) = (model.config().n_visible, model.config().n_hidden);
    let words = format!("sparse autoencoder {v}-{h}-{v} for {} ({})", rows.name, rows.words());
    session.announce(&words, settings.seed)?;
    let n = settings.iterations;
    let ended = session.iterations(n, |run, _| {
        let mut made = None;
        run.run(|_, iteration| {
            made = Some(*iteration);
            Ok(ControlFlow::Break(()))
        })?;
        let Some(made) = made else { return Ok(None) };
        let line = Line {
            iteration: made.iteration,
            evaluations: made.evaluations,
            cost: made.value,
            gradient_norm: made.gradient_norm,
        };
        let is_said = made.iteration % SAID_EVERY == 0 || made.iteration == 1 || made.iteration == n;
        let words = if is_said { words_of(&line, n) } else { String::new() };
        Ok(Some(Made { iterations: 1, line, words }))
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    let (run, trained) = session.trained();
    let first = SparseAutoencoderRun::new(
        &first_model(&settings, &rows, &trained.device)?,
        settings.cost.fit(settings.iterations),
        &raw,
    )?;
    finish(&trained, &rows, &run.model()?, [&first.parts()?, &run.parts()?])
}

/// An iteration in one line.
fn words_of(line: &Line, n: usize) -> String {
    let Line { iteration, evaluations, cost, gradient_norm } = line;
    let width = n.to_string().len();
    format!(
        "iteration {iteration:>width$}/{n}  cost {cost:>10.6}  gradient {gradient_norm:>9.2e}  {evaluations} evaluations"
    )
}

/// The model, pictures, curves and the model card.
fn finish(
    run: &Trained<Train>,
    rows: &Rows,
    model: &SparseAutoencoder,
    parts: [&CostParts; 2],
) -> Result<Outcome> {
    let (settings, lines) = (&run.info.settings, &run.place.reports);
    model.save_pretrained(&run.folder.of_model("")?)?;
    run.folder.write("curves.svg", learning_curves(lines)?.as_bytes())?;
    let pictures: Vec<_> = draw::filters(model, &run.folder)?.into_iter().collect();
    let [before, after] = parts;
    let iterations = lines.last().map_or(0, |line| line.iteration);
    run.report.line(&format!(
        "cost {:.6} → {:.6}: half the squared error {:.6}, decay {:.6}, divergence {:.6}",
        before.cost, after.cost, after.squared_error, after.decay, after.divergence
    ))?;
    if iterations < settings.iterations {
        run.report.line(&format!("no step lowers the cost any more after {iterations} iterations"))?;
    }
    let results = json!({
        "data": rows.name,
        "n_rows": run.info.n_rows,
        "n_visible": model.config().n_visible,
        "n_hidden": model.config().n_hidden,
        "iterations": iterations,
        "evaluations": lines.last().map_or(0, |line| line.evaluations),
        "cost_start": before.cost,
        "cost": after.cost,
        "squared_error": after.squared_error,
        "decay": after.decay,
        "divergence": after.divergence,
    });
    let card = card::of(model.config(), rows, settings, iterations, parts, &pictures)?;
    run.finish(settings.seed, results, &card)
}

/// Cost and gradient by iteration, as SVG.
fn learning_curves(lines: &[Line]) -> Result<String> {
    let panel = |title: &str, y: fn(&Line) -> f64| Panel {
        title: title.to_owned(),
        x_label: "iteration".to_owned(),
        y_label: title.to_owned(),
        log_y: true,
        curves: vec![Curve {
            name: title.to_owned(),
            points: lines.iter().map(|line| (line.iteration as f64, y(line))).collect(),
        }],
    };
    curves::draw(&[panel("cost", |line| line.cost), panel("norm of the gradient", |line| line.gradient_norm)])
}
