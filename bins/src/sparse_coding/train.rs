//! The command `train`: a basis from minibatches of rows.
use super::args::{Settings, TrainArgs};
use crate::atoms::draw;
use crate::patch_rows::{Family, Input, Usual};
use crate::ranks::Ranks;
use crate::report::{Outcome, figure, seconds};
use crate::rows::{Reads, Rows, SplitArg};
use crate::run_folder::RunFolder;
use crate::session::card::scale_of;
use crate::session::{Asked, Card, Ended, Epochs, Kind, Nothing, Picture, Run, Trained};
use crate::stages::{self, Stage};
use anyhow::Result;
use candle::{DType, Device};
use chandlery::dictionary::{Init, distinct_signals};
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::sparse_coding::{Figures, SparseCoding, SparseCodingConfig, SparseCodingTrainer};
use chandlery::{Encode, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_datasets::{Split, count};
use chandlery_ops::arrays::elementwise::sqr;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Places in the random sequence of a run's seed: the first basis, and what a trainer draws.
const START: u64 = 1 << 32;
pub const TRAINER: u64 = 2 << 32;

const TAGS: [&str; 4] = ["sparse-coding", "lasso", "feature-extraction", "unsupervised"];

impl Family for SparseCoding {
    type Settings = Settings;
    const KIND: Kind = Train::KIND;
    const USUAL: Usual = Usual { side: 12, patches: 20_000, prepare: "row-mean,zca=0.1", stay: false };

    fn reads(&self) -> Reads {
        self.config().into()
    }

    fn width(&self) -> usize {
        self.config().n_atoms
    }
}

/// A pass over the rows: a line of `metrics.jsonl`. Activations are those over the basis from
/// before each minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean over the rows of half the squared error plus beta times the sum of the magnitudes of
    /// activations.
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

impl Run for Train {
    type Input = Input;
    type Settings = Settings;
    type Trainer = SparseCodingTrainer;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = Kind { command: "sparse-coding train", folder: "sparse-coding" };
}

/// Rows that first atoms are drawn from, at least: many a row is flat, or like others.
const CANDIDATES: usize = 1024;

/// The model that training starts from: atoms are distinct rows, or random directions where there
/// are too few.
pub fn first_model(
    config: SparseCodingConfig,
    split: &Split,
    seed: u64,
    device: &Device,
) -> Result<SparseCoding> {
    let (philox, all) = (Philox::new(seed, START), split.n_samples());
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

/// Learns a basis, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<Train>::new(&args.session, || {
        let epochs = args.epochs.unwrap_or(args.settings.epochs);
        Ok((Input { rows: args.input.clone() }, Settings { epochs, ..args.settings.clone() }))
    })?;
    asked.extend_epochs(args.epochs, |settings| settings.epochs, |settings, all| settings.epochs = all)?;
    let usual = SparseCoding::USUAL;
    let rows = usual.open(&asked.input.rows, Some(SplitArg::Train), asked.settings.seed)?;
    let mut feed =
        asked.feed(args.feed, &rows.split, ("--batch", asked.settings.learn.batch), asked.settings.seed)?;
    let mut session = asked.open(
        rows.of_run()?,
        |settings, device, _| {
            let preparation = usual.preparation(&rows, &settings.prepare, settings.seed)?;
            let n_features = preparation.n_outputs(rows.split.n_features())?;
            let config = SparseCodingConfig {
                nonnegative: settings.nonnegative.unwrap_or(false),
                tolerance: settings.learn.gap,
                solver: settings.learn.solver.into(),
                preparation,
                image: rows.split.image,
                ..SparseCodingConfig::new(settings.atoms, n_features, settings.penalty)
            };
            let first = first_model(config, &rows.split, settings.seed, device)?;
            let philox = Philox::new(settings.seed, TRAINER);
            Ok(SparseCodingTrainer::new(&first, settings.learn.config(), philox)?)
        },
        |_, path, device, _| Ok(SparseCodingTrainer::load(path, device)?),
    )?;
    let settings = session.info.settings.clone();
    let atoms = count(settings.atoms, "atom");
    session.announce(&format!("basis of {atoms} for {} ({})", rows.name, rows.words()), settings.seed)?;
    let n = settings.epochs;
    let until = settings.converge.rule();
    let epochs = Epochs {
        feed: &mut feed,
        n,
        earlier: 0,
        report_every: None,
        until,
        label: &|epoch| format!("epoch {}/{n}", epoch + 1),
    };
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
        Ok(Ended { words: words_of(&line, n), line, loss: objective, stop: false })
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

/// Rows that are enough to tell which atoms do most of the work.
const SOME: usize = 1024;

/// Draws the atoms, those with the largest energy (sum of squared activations of some rows of
/// `split`) first.
pub fn draw_basis(model: &SparseCoding, split: &Split, folder: &RunFolder) -> Result<Option<Picture>> {
    let _stage = stages::enter(Stage::Pictures);
    let Some(tile) = model.shape() else { return Ok(None) };
    let activations = model.encode(&split.take(SOME)?.raw(model.basis().device())?)?;
    let energy = sqr(&activations)?.sum(0)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let file = "basis.png".to_owned();
    let n = draw::atoms(model.basis(), &energy, tile, &folder.file(&file)?)?;
    let caption = format!(
        "the {n} atoms with the largest energy (sum of squared activations), the largest at the top left; mid-grey is 0"
    );
    Ok(Some(Picture { file, caption }))
}

/// The model, its measure, pictures, curves and the model card.
fn finish(run: &Trained<Train>, rows: &Rows, model: &SparseCoding) -> Result<Outcome> {
    let (settings, lines, config) = (&run.info.settings, &run.place.reports, model.config());
    run.folder.save_model("", |path| model.save_pretrained(path))?;
    let panel = |title: &str, y_label: &str, y: fn(&Line) -> f64| {
        let points = lines.iter().map(|line| (line.epoch as f64, y(line)));
        Panel::new(title, "epoch", y_label, vec![Curve::new(title, points)])
    };
    run.draw_curves(&[
        panel("objective", "mean over the rows", |line| line.objective),
        panel("nonzero activations", "% of all", |line| 100. * line.nonzero_fraction),
    ])?;
    let mut measure = model.measure();
    rows.each(&Ranks::default(), &run.device, |rows| Ok(measure.add(rows)?))?;
    let figures = measure.figures()?;
    let pictures: Vec<_> = draw_basis(model, &rows.split, &run.folder)?.into_iter().collect();
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
        "n_features": config.n_features,
        "n_atoms": settings.atoms,
        "penalty": settings.penalty,
        "epochs": settings.epochs,
        "objective_first_epoch": before,
        "rmse": figures.rmse,
        "objective": figures.objective,
        "nonzero_fraction": figures.nonzero_fraction,
        "max_relative_gap": figures.max_relative_gap,
    });
    let (n, p) = (count(config.n_atoms, "atom"), count(config.n_features, "value"));
    let epochs = count(settings.epochs, "epoch") + &settings.converge.words();
    let card = Card {
        tags: &TAGS,
        title: format!("Basis of {n} for sparse coding of {p}"),
        learned: format!("Learned in minibatches of `{}`: {}.", rows.name, rows.words()),
        settings: format!("{epochs} in minibatches of {}, penalty {}", settings.learn.batch, settings.penalty),
        results: format!(
            "| mean over all rows | first epoch | this model |\n|---|---|---|\n\
             | objective | {} | **{}** |\n\
             | nonzero activations | | {:.2} % |\n\
             | largest relative duality gap | | {:.1e} |\n\n\
             ![objective and sparsity by epoch](curves.svg)",
            figure(before, 5),
            figure(figures.objective, 5),
            100. * figures.nonzero_fraction,
            figures.max_relative_gap
        ),
        pictures: &pictures,
        rust: format!(
            "use chandlery::{{Decode, Encode, Model}};\n\
             let model = chandlery::sparse_coding::SparseCoding::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let activations = model.encode(&rows)?; // rows: [m, {}], {}",
            config.n_inputs(),
            scale_of(&rows.split, &config.preparation)?
        ),
        files: "`model.safetensors` holds `basis` `[n_atoms, n_features]`, an atom in each row; `config.json` has the penalty `beta`. \
                Activations minimise `½‖x − aB‖² + beta Σ|a|` for a prepared row `x`."
            .to_owned(),
    };
    run.finish(settings.seed, results, &card)
}
