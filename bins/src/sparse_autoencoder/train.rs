//! The command `train`: a sparse autoencoder from all rows at once, or from minibatches.
use super::args::{OptimizerArg, Settings, TrainArgs};
use super::finish::{Made as Training, finish};
use super::latents;
use super::minibatches::{self, Own, Said, panel};
use super::start::{Given, first_model, keep};
use crate::patch_rows::{Family, Input, Usual};
use crate::report::Outcome;
use crate::rows::{Reads, Rows, SplitArg};
use crate::run_folder::RunFolder;
use crate::session::{Asked, Kind, Made, Nothing, Pace, Run, Session, check_more};
use anyhow::{Result, ensure};
use candle::{DType, Device, Tensor};
use chandlery::sparse_autoencoder::sae::Sae;
use chandlery::sparse_autoencoder::{
    Cost, CostParts, FullBatchOptimizer, Metrics, SparseAutoencoder, SparseAutoencoderLbfgsTrainer,
    SparseAutoencoderTrainer,
};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Trainer};
use chandlery_datasets::count;
use chandlery_ops::Group;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// Iterations from one line on the screen to the next.
const SAID_EVERY: usize = 20;

const KIND: Kind = Kind { command: "sparse-autoencoder train", folder: "sparse-autoencoder" };

impl Family for SparseAutoencoder {
    type Settings = Settings;
    const KIND: Kind = KIND;
    const USUAL: Usual = Usual { side: 8, patches: 10_000, prepare: "rescale", stay: false };

    fn reads(&self) -> Reads {
        self.config().into()
    }

    fn width(&self) -> usize {
        self.config().n_hidden
    }
}

/// An iteration over all rows: a line of `metrics.jsonl`.
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

/// An epoch of minibatches: a line of `metrics.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EpochLine {
    /// Counted from 1.
    pub epoch: usize,
    /// The mean cost of its minibatches.
    pub cost: f64,
    /// Time of the epoch.
    pub seconds: f64,
}

/// The command over all rows at once.
struct AllRows;
/// The command by minibatches.
struct Minibatches;

impl Run for AllRows {
    type Input = Input;
    type Settings = Settings;
    type Trainer = SparseAutoencoderLbfgsTrainer;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = KIND;
}

impl Run for Minibatches {
    type Input = Input;
    type Settings = Settings;
    type Trainer = SparseAutoencoderTrainer;
    type Line = EpochLine;
    type Extra = Nothing;
    const KIND: Kind = KIND;
}

/// Trains a model, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<AllRows>::new(&args.session, || given(args))?;
    let usual = SparseAutoencoder::USUAL;
    if asked.settings.latents.kind.is_some() {
        ensure!(args.iterations.is_none(), "--iterations: --kind learns in epochs; give --epochs");
        let rows = Sae::USUAL.open(&asked.input.rows, Some(SplitArg::Train), asked.settings.seed)?;
        return latents::train(asked.by(), args, &rows);
    }
    let optimizer = asked.settings.optimizer;
    let of_all_rows = optimizer.of_all_rows();
    ensure!(
        args.iterations.is_none() || of_all_rows.is_some(),
        "--iterations: {} learns in epochs; give --epochs",
        optimizer.words()
    );
    ensure!(
        args.epochs.is_none() || of_all_rows.is_none(),
        "--epochs: {} makes iterations over all rows; give --iterations",
        optimizer.words()
    );
    let rows = usual.open(&asked.input.rows, Some(SplitArg::Train), asked.settings.seed)?;
    if asked.resumed().is_none() {
        asked.settings.cost.chunk = args.feed.chunk(&rows.split);
    }
    match of_all_rows {
        Some(optimizer) => from_all(asked, args, optimizer, &rows),
        None => from_minibatches(asked.by(), args, &rows),
    }
}

/// What the command line asks for.
fn given(args: &TrainArgs) -> Result<(Input, Settings)> {
    let mut settings = args.settings.clone();
    settings.iterations = args.iterations.unwrap_or(settings.iterations);
    let epochs = settings.latents.kind.map_or(settings.epochs, |_| latents::args::EPOCHS);
    settings.epochs = args.epochs.unwrap_or(epochs);
    settings.check()?;
    if let Some(name) = &settings.start_from {
        settings.hidden = Given::open(name)?.n_hidden();
    }
    Ok((Input { rows: args.input.clone() }, settings))
}

/// The rows, where the cost over all of them reads them.
fn raw(settings: &Settings, rows: &Rows, device: &Device) -> Result<Tensor> {
    let home = if settings.cost.chunk.is_some() { &Device::Cpu } else { device };
    rows.raw(home)
}

/// Keeps what a run begins with, and says what is trained on what.
fn begin<R: Run<Input = Input, Settings = Settings>>(session: &Session<R>, rows: &Rows) -> Result<()>
where
    R::Trainer: Trainer<Model = SparseAutoencoder>,
{
    let settings = &session.info.settings;
    keep(settings, rows, &session.device, &session.folder)?;
    let model = session.trainer.model()?;
    let (v, h) = (model.config().n_visible, model.config().n_hidden);
    let by = match settings.optimizer {
        OptimizerArg::Lbfgs => String::new(),
        optimizer => format!(", by {}", optimizer.words()),
    };
    let words = format!("sparse autoencoder {v}-{h}-{v} for {} ({}){by}", rows.name, rows.words());
    session.announce(&words, settings.seed)
}

/// Learns from all rows in every iteration.
fn from_all(
    mut asked: Asked<AllRows>,
    args: &TrainArgs,
    optimizer: FullBatchOptimizer,
    rows: &Rows,
) -> Result<Outcome> {
    asked.extend_iterations(args.iterations, |settings, all| settings.iterations = all);
    let raw = raw(&asked.settings, rows, &asked.device)?;
    let begins = |settings: &Settings,
                  device: &Device,
                  folder: Option<&RunFolder>|
     -> Result<SparseAutoencoderLbfgsTrainer> {
        let first = first_model(settings, rows, device, folder)?;
        Ok(SparseAutoencoderLbfgsTrainer::new(&first, settings.fit(optimizer), &raw)?)
    };
    let new = |settings: &Settings, device: &Device, _: &Group| begins(settings, device, None);
    let mut session = asked.open(rows.of_run()?, new, |settings, path, device, _| {
        let (mut run, place) = SparseAutoencoderLbfgsTrainer::load(path, &raw, device)?;
        check_more(args.iterations, run.descent().iterations(), "")?;
        run.set_iterations(settings.iterations)?;
        Ok((run, place))
    })?;
    let settings = session.info.settings.clone();
    begin(&session, rows)?;
    let n = settings.iterations;
    let ended = session.iterations(n, None, |run, _| {
        let Some(made) = run.step()? else { return Ok(None) };
        let line = Line {
            iteration: made.iteration,
            evaluations: made.evaluations,
            cost: made.value,
            gradient_norm: made.gradient_norm,
        };
        let is_said = made.iteration % SAID_EVERY == 0 || made.iteration == 1 || made.iteration == n;
        let words = if is_said { words_of(&line, n) } else { String::new() };
        Ok(Some(Made { iterations: 1, line, words, loss: None }))
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    let (run, trained) = session.trained();
    let before = begins(&settings, &trained.device, Some(&trained.folder))?.parts()?;
    let lines = &trained.place.reports;
    let iterations = lines.last().map_or(0, |line| line.iteration);
    let figures = json!({
        "iterations": iterations,
        "evaluations": lines.last().map_or(0, |line| line.evaluations),
    });
    let training = Training {
        length: format!("{iterations} iterations"),
        figures: fields(figures),
        panels: vec![
            panel(lines, "cost", "iteration", |line| (line.iteration as f64, line.cost)).log(),
            panel(lines, "norm of the gradient", "iteration", |line| {
                (line.iteration as f64, line.gradient_norm)
            })
            .log(),
        ],
        note: (iterations < n)
            .then(|| format!("no step lowers the cost any more after {iterations} iterations")),
    };
    finish(&trained, rows, &run.model()?, [&before, &run.parts()?], training)
}

/// Learns from minibatches in a seeded order.
fn from_minibatches(asked: Asked<Minibatches>, args: &TrainArgs, rows: &Rows) -> Result<Outcome> {
    let batch = asked.settings.minibatches().batch;
    let own = Own {
        new: |settings: &Settings, _, device: &Device, _: &Group| {
            let first = first_model(settings, rows, device, None)?;
            Ok(SparseAutoencoderTrainer::new(&first, settings.minibatches())?)
        },
        load: |_: &Settings, _, path: &Path, device: &Device, _: &Group| {
            Ok(SparseAutoencoderTrainer::load(path, device)?)
        },
        begin: |session: &Session<Minibatches>| begin(session, rows),
        say: |metrics: Metrics, pace: Pace| Said {
            line: EpochLine { epoch: pace.epoch + 1, cost: metrics.cost, seconds: pace.seconds },
            loss: metrics.cost,
            words: format!("cost {:>10.6}", metrics.cost),
        },
    };
    let Some((trainer, trained)) = minibatches::train(asked, args, rows, batch, own)? else {
        return Ok(Outcome::Interrupted);
    };
    let settings = &trained.info.settings;
    let model = trainer.model()?;
    drop(trainer);
    let raw = raw(settings, rows, &trained.device)?;
    let parts = |model: &SparseAutoencoder| -> Result<CostParts> {
        let (config, cost) = (model.config().clone(), settings.minibatches().cost);
        let cost = Cost::new(config, cost, &raw, settings.cost.chunk, DType::F32, &trained.device)?;
        Ok(cost.parts(&model.flat()?)?)
    };
    let first = first_model(settings, rows, &trained.device, Some(&trained.folder))?;
    let [before, after] = [parts(&first)?, parts(&model)?];
    let lines = &trained.place.reports;
    let training = Training {
        length: format!(
            "{} in minibatches of {}",
            count(lines.len(), "epoch"),
            batch.min(rows.split.n_samples())
        ),
        figures: fields(json!({"epochs": lines.len(), "batch": settings.batch})),
        panels: vec![panel(lines, "cost", "epoch", |line| (line.epoch as f64, line.cost)).log()],
        note: None,
    };
    finish(&trained, rows, &model, [&before, &after], training)
}

/// The fields of an object.
fn fields(of: Value) -> serde_json::Map<String, Value> {
    match of {
        Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    }
}

/// An iteration in one line.
fn words_of(line: &Line, n: usize) -> String {
    let Line { iteration, evaluations, cost, gradient_norm } = line;
    let width = n.to_string().len();
    format!(
        "iteration {iteration:>width$}/{n}  cost {cost:>10.6}  gradient {gradient_norm:>9.2e}  {evaluations} evaluations"
    )
}
