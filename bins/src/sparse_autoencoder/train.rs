//! The command `train`: a sparse autoencoder from all rows, by L-BFGS.
use super::args::{Settings, TrainArgs};
use crate::patch_rows::{Family, Input, Usual, write_filters};
use crate::report::Outcome;
use crate::rows::{Reads, Rows, SplitArg};
use crate::run_folder::RunFolder;
use crate::session::card::scale_of;
use crate::session::{Asked, Card, Kind, Made, Nothing, Picture, Run, Trained, check_more};
use anyhow::Result;
use candle::Device;
use chandlery::pictures::curves::{self, Curve, Panel};
use chandlery::sparse_autoencoder::{
    CostParts, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainer,
};
use chandlery::{FullBatchTrainer, Model, Philox, Trainer};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Iterations from one line on the screen to the next.
const SAID_EVERY: usize = 20;
/// The place of the first weights in the random sequence of a run's seed.
pub const START: u64 = 1 << 32;

const TAGS: [&str; 3] = ["sparse-autoencoder", "feature-extraction", "unsupervised"];

impl Family for SparseAutoencoder {
    type Settings = Settings;
    const KIND: Kind = Train::KIND;
    const USUAL: Usual = Usual { side: 8, patches: 10_000, prepare: "rescale" };

    fn reads(&self) -> Reads {
        self.config().into()
    }

    fn width(&self) -> usize {
        self.config().n_hidden
    }
}

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

/// The command.
struct Train;

impl Run for Train {
    type Input = Input;
    type Settings = Settings;
    type Trainer = SparseAutoencoderLbfgsTrainer;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = Kind { command: "sparse-autoencoder train", folder: "sparse-autoencoder" };
}

/// The model that training starts from.
fn first_model(settings: &Settings, rows: &Rows, device: &Device) -> Result<SparseAutoencoder> {
    let usual = SparseAutoencoder::USUAL;
    let preparation = usual.preparation(rows, &settings.prepare, settings.seed)?;
    let n_visible = preparation.n_outputs(rows.split.n_features())?;
    let config = SparseAutoencoderConfig {
        decoder: settings.decoder.into(),
        preparation,
        image: rows.split.image,
        ..SparseAutoencoderConfig::new(n_visible, settings.hidden)
    };
    Ok(SparseAutoencoder::init(config, Philox::new(settings.seed, START), device)?)
}

/// Trains a model, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<Train>::new(&args.session, || {
        let iterations = args.iterations.unwrap_or(args.settings.iterations);
        Ok((Input { rows: args.input.clone() }, Settings { iterations, ..args.settings.clone() }))
    })?;
    asked.extend_iterations(args.iterations, |settings, all| settings.iterations = all);
    let usual = SparseAutoencoder::USUAL;
    let rows = usual.open(&asked.input.rows, Some(SplitArg::Train), asked.settings.seed)?;
    if asked.resumed().is_none() {
        asked.settings.cost.chunk = args.feed.chunk(&rows.split);
    }
    let home = if asked.settings.cost.chunk.is_some() { Device::Cpu } else { asked.device.clone() };
    let raw = rows.split.raw(&home)?;
    let begin = |settings: &Settings, device: &Device| {
        let first = first_model(settings, &rows, device)?;
        Ok(SparseAutoencoderLbfgsTrainer::new(&first, settings.cost.fit(settings.iterations), &raw)?)
    };
    let mut session = asked.open(rows.of_run()?, begin, |settings, path, device| {
        let (mut run, place) = SparseAutoencoderLbfgsTrainer::load(path, &raw, device)?;
        check_more(args.iterations, run.lbfgs().iterations(), "")?;
        run.set_iterations(settings.iterations)?;
        Ok((run, place))
    })?;
    let settings = session.info.settings.clone();
    let model = session.trainer.model()?;
    let (v, h) = (model.config().n_visible, model.config().n_hidden);
    let words = format!("sparse autoencoder {v}-{h}-{v} for {} ({})", rows.name, rows.words());
    session.announce(&words, settings.seed)?;
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
    let before = begin(&settings, &trained.device)?.parts()?;
    finish(&trained, &rows, &run.model()?, [&before, &run.parts()?])
}

/// An iteration in one line.
fn words_of(line: &Line, n: usize) -> String {
    let Line { iteration, evaluations, cost, gradient_norm } = line;
    let width = n.to_string().len();
    format!(
        "iteration {iteration:>width$}/{n}  cost {cost:>10.6}  gradient {gradient_norm:>9.2e}  {evaluations} evaluations"
    )
}

/// Draws the input of norm 1 that activates each feature most.
pub fn filters(model: &SparseAutoencoder, folder: &RunFolder) -> Result<Option<Picture>> {
    write_filters(&model.maximal_inputs()?, model.shape(), folder, |n| {
        format!("the inputs of norm 1 that activate {n} features most; mid-grey is 0")
    })
}

/// The model, pictures, curves and the model card.
fn finish(
    run: &Trained<Train>,
    rows: &Rows,
    model: &SparseAutoencoder,
    [before, after]: [&CostParts; 2],
) -> Result<Outcome> {
    let (settings, lines, config) = (&run.info.settings, &run.place.reports, model.config());
    model.save_pretrained(&run.folder.of_model("")?)?;
    let panel = |title: &str, y: fn(&Line) -> f64| {
        let points = lines.iter().map(|line| (line.iteration as f64, y(line)));
        Panel::new(title, "iteration", title, vec![Curve::new(title, points)]).log()
    };
    let panels = [panel("cost", |line| line.cost), panel("norm of the gradient", |line| line.gradient_norm)];
    run.folder.write("curves.svg", curves::draw(&panels)?.as_bytes())?;
    let pictures: Vec<_> = filters(model, &run.folder)?.into_iter().collect();
    let iterations = lines.last().map_or(0, |line| line.iteration);
    run.report.line(&format!(
        "cost {:.6} → {:.6}: half the squared error {:.6}, decay {:.6}, divergence {:.6}",
        before.cost, after.cost, after.squared_error, after.decay, after.divergence
    ))?;
    if iterations < settings.iterations {
        run.report.line(&format!("no step lowers the cost any more after {iterations} iterations"))?;
    }
    let (v, h) = (config.n_visible, config.n_hidden);
    let results = json!({
        "data": rows.name,
        "n_rows": run.info.n_rows,
        "n_visible": v,
        "n_hidden": h,
        "iterations": iterations,
        "evaluations": lines.last().map_or(0, |line| line.evaluations),
        "cost_start": before.cost,
        "cost": after.cost,
        "squared_error": after.squared_error,
        "decay": after.decay,
        "divergence": after.divergence,
    });
    let card = Card {
        tags: &TAGS,
        title: format!("Sparse autoencoder {v}-{h}-{v}"),
        learned: format!("Learned by L-BFGS on `{}`: {}.", rows.name, rows.words()),
        settings: format!(
            "{iterations} iterations, weight decay {}, sparsity weight {}, target {}",
            settings.cost.weight_decay, settings.cost.sparsity_weight, settings.cost.sparsity_target
        ),
        results: format!(
            "| over all rows | initial weights | this model |\n|---|---|---|\n\
             | cost | {:.4} | **{:.4}** |\n\
             | half the squared error | {:.4} | {:.4} |\n\
             | decay | {:.4} | {:.4} |\n\
             | divergence of the mean activations | {:.4} | {:.4} |\n\n\
             ![cost by iteration](curves.svg)",
            before.cost,
            after.cost,
            before.squared_error,
            after.squared_error,
            before.decay,
            after.decay,
            before.divergence,
            after.divergence
        ),
        pictures: &pictures,
        rust: format!(
            "use chandlery::{{Decode, Encode, Model}};\n\
             let model = chandlery::sparse_autoencoder::SparseAutoencoder::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let features = model.encode(&rows)?; // rows: [m, {}], {}",
            config.n_inputs(),
            scale_of(&rows.split, &config.preparation)?
        ),
        files: "`model.safetensors` holds `weight` `[n_hidden, n_visible]` and `bias` `[n_hidden]`, a linear layer as it stands, and \
                `decoder_weight` `[n_visible, n_hidden]` and `visible_bias` `[n_visible]`, another."
            .to_owned(),
    };
    run.finish(settings.seed, results, &card)
}
