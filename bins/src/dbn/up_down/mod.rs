//! The command `up-down`: a trained network is given labels and generative weights, and all of it
//! is trained.
//!
//! | module  | what                                                       |
//! |---------|------------------------------------------------------------|
//! | `args`  | the command line                                           |
//! | `plan`  | the network with labels, and how it learns in each stage   |
//! | `measure` | accuracy, and a picture of samples                       |
//! | `card`  | the model card                                             |
mod args;
mod card;
pub(super) mod measure;
mod plan;

pub use args::{UpDownArgs, UpDownSettings};
pub use measure::Evaluation;

use crate::ranks::Ranks;
use crate::report::{Outcome, seconds};
use crate::rows::{self, Data, OfModel};
use crate::session::{Asked, Ended, Epochs, Kind, Run, RunInfo, Session};
use crate::sizes;
use anyhow::{Context, Result};
use candle::Tensor;
use chandlery::labelled::{LabelledDbn, LabelledDbnMetrics, LabelledDbnTrainer};
use chandlery::{Decode, MinibatchTrainer, Model, Trainer};
use chandlery_datasets::{Feed, Split};
use plan::{STAGES, name};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Rows of each side that are classified after an epoch, at most.
const PROBE_ROWS: usize = 1000;

/// What an epoch came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// `top` or `up-down`.
    pub stage: String,
    /// Counted from 1 in each stage.
    pub epoch: usize,
    /// Share of training rows that free energies classify rightly.
    pub accuracy: f64,
    /// The same of held-out rows; none where no rows are held out.
    pub held_out_accuracy: Option<f64>,
    /// Mean over training rows of the squared error of recognition up and generation down, summed
    /// over the inputs.
    pub reconstruction_error: f64,
    /// What the steps of the epoch gathered.
    #[serde(flatten)]
    pub gathered: LabelledDbnMetrics,
    /// Step size.
    pub learning_rate: f64,
    /// Gibbs steps in the top layer.
    pub k: usize,
    /// Training rows a second.
    pub rows_per_second: f64,
    /// Training time.
    pub seconds: f64,
}

/// What checkpoints hold beside the place in the epochs.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stages {
    /// Stages that are done.
    stage: usize,
}

struct UpDown;

impl Run for UpDown {
    type Input = OfModel;
    type Settings = UpDownSettings;
    type Trainer = LabelledDbnTrainer;
    type Line = EpochReport;
    type Extra = Stages;
    const KIND: Kind = Kind { command: "dbn up-down", folder: "dbn-up-down" };
}

/// Trains a network with labels, or resumes that, and leaves a run folder.
pub fn up_down(args: &UpDownArgs) -> Result<Outcome> {
    let mut asked = Asked::<UpDown>::new(&args.session, || {
        let model = args.model.clone().context("MODEL: name the folder of a run of `dbn train`")?;
        let data = args.data.of(&model)?;
        Ok((OfModel { model, data }, args.settings()))
    })?;
    let extended =
        asked.extend_epochs(args.epochs, |settings| settings.epochs, |settings, n| settings.epochs = n)?;
    let data = Data::open(&asked.input.data, asked.settings.seed)?;
    let mut feed =
        asked.feed(args.feed, &data.train, ("--batch", asked.settings.batch), asked.settings.seed)?;
    asked.settings.batch = feed.config().batch;
    let model = asked.input.model.clone();
    let mut session = asked.open(
        data.of_run()?,
        |settings, device, _| plan::trainer(&plan::with_labels(&model, &data, device)?, settings, 0),
        |settings, path, device, _| {
            let (mut trainer, place) = LabelledDbnTrainer::load(path, device)?;
            if extended {
                trainer.set_schedules(&plan::training(settings, trainer.config().stage)?)?;
            }
            Ok((trainer, place))
        },
    )?;
    let layers = sizes::of_labelled(session.trainer.model_config());
    let seed = session.info.settings.seed;
    session.announce(&format!("dbn up-down {layers} on {}: {}", data.name, data.words()), seed)?;
    let probe = Probe::of(&session.trainer, &data)?;
    loop {
        if stage(&mut session, &probe, &mut feed)? == Outcome::Interrupted {
            return session.interrupted();
        }
        if session.place.extra.stage + 1 == STAGES.len() {
            break;
        }
        session.place.extra.stage += 1;
        session.place.begin_stage();
        let next = session.place.extra.stage;
        session.go_on_with(plan::trainer(&session.trainer.model()?, &session.info.settings, next)?)?;
        session.save()?;
    }
    finish(session, &data)
}

/// Trains the epochs that are left of the stage under way.
fn stage(session: &mut Session<UpDown>, probe: &Probe, feed: &mut Feed) -> Result<Outcome> {
    let settings = &session.info.settings;
    let stage = session.place.extra.stage;
    let (name, n) = (name(STAGES[stage]), plan::epochs(settings, STAGES[stage]));
    let earlier = STAGES[..stage].iter().map(|&stage| plan::epochs(settings, stage)).sum();
    let until = settings.converge.rule();
    let epochs = Epochs {
        feed,
        n,
        earlier,
        report_every: None,
        until,
        label: &|epoch| format!("{name} epoch {}/{n}", epoch + 1),
    };
    let ended = session.epochs(epochs, |trainer, metrics, pace, _| {
        let dbn = trainer.model()?;
        let accuracy = |(rows, labels): &(Tensor, Tensor)| dbn.accuracy(rows, labels);
        let config = trainer.config();
        let line = EpochReport {
            stage: name.to_owned(),
            epoch: pace.epoch + 1,
            accuracy: accuracy(&probe.train)?,
            held_out_accuracy: probe.held_out.as_ref().map(accuracy).transpose()?,
            reconstruction_error: dbn.reconstruction_error(&probe.train.0)?,
            gathered: metrics,
            learning_rate: config.learning_rate.at(pace.epoch),
            k: config.k_at(pace.epoch),
            rows_per_second: pace.rows_per_second,
            seconds: pace.seconds,
        };
        let words = words(&line, n);
        Ok(Ended { loss: line.reconstruction_error, line, words, stop: false })
    });
    ended.with_context(|| name.to_owned())
}

/// Rows and labels that the network is measured on: training rows, and as many held-out ones.
struct Probe {
    train: (Tensor, Tensor),
    held_out: Option<(Tensor, Tensor)>,
}

impl Probe {
    fn of(trainer: &LabelledDbnTrainer, data: &Data) -> Result<Self> {
        let dbn = trainer.model()?;
        let held_out = data.held_out.as_ref();
        let n = held_out.map_or(PROBE_ROWS, |rows| rows.n_samples().min(PROBE_ROWS));
        let read = |split: &Split| labelled_rows(&split.take(n)?, &dbn);
        Ok(Self { train: read(&data.train)?, held_out: held_out.map(read).transpose()? })
    }
}

/// All rows of a split as the network reads them, and their labels.
fn labelled_rows(split: &Split, dbn: &LabelledDbn) -> Result<(Tensor, Tensor)> {
    let labels = split.labels_tensor(dbn.device())?.context("--data: rows must have labels, got none")?;
    Ok((rows::all(split, dbn.config(), dbn.device())?, labels))
}

/// An epoch in one line.
fn words(line: &EpochReport, epochs: usize) -> String {
    let EpochReport { stage, epoch, accuracy, held_out_accuracy, reconstruction_error, .. } = line;
    let width = epochs.to_string().len();
    let percent = |share: f64| format!("{:.2} %", 100. * share);
    format!(
        "{stage:<7}  epoch {epoch:>width$}/{epochs}  accuracy {}, held-out {}  reconstruction error {reconstruction_error:>7.3}  \
         k {}  {:>8.0} rows/s  {}",
        percent(*accuracy),
        held_out_accuracy.map_or("–".to_owned(), percent),
        line.k,
        line.rows_per_second,
        seconds(line.seconds)
    )
}

/// Weights, picture, accuracy, and the model card.
fn finish(session: Session<UpDown>, data: &Data) -> Result<Outcome> {
    let (trainer, run) = session.trained();
    let dbn = trainer.model()?;
    // Memory of the training goes before the evaluation comes.
    drop(trainer);
    let RunInfo { input, settings, .. } = &run.info;
    run.folder.save_model("", |path| dbn.save_pretrained(path))?;
    let picture = measure::run_picture(&dbn, settings.seed, &run.folder)?;
    let evaluation = Evaluation::of(&Ranks::default(), &dbn, data.measured_on())?;
    run.report.line(&evaluation.line())?;
    let results = json!({
        "model": input.model,
        "data": data.name,
        "layers": sizes::of_labelled(dbn.config()),
        "accuracy": evaluation.accuracy,
        "evaluation": evaluation,
    });
    let card = card::of(dbn.config(), input, data, settings, &evaluation, picture.as_slice())?;
    run.finish(settings.seed, results, &card)
}
