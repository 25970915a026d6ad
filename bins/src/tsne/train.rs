//! The command `train`: a layout of all rows.
use super::args::{Settings, TrainArgs};
use super::choices::{perplexity_of, words_of_affinity};
use super::figures::{Truth, divergence, fields, figures_of, measured, words_of_recall};
use super::given::Given;
use super::history::History;
use super::output::{Drawn, Shown, both};
use super::rows::{Rows, read_layout};
use super::{card, output, streams};
use crate::out_folder::OutFolder;
use crate::progress::Spinner;
use crate::report::{Outcome, figure, of_data, rank, seconds};
use crate::rows::OfRows;
use crate::session::{self, Asked, Kind, Made, Nothing, Picture, Run, Session, Trained, check_more};
use crate::stages::{self, Stage};
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::evaluation::layout::Measures;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::pictures::scatter::Classes;
use chandlery::tsne::measure::Estimate;
use chandlery::tsne::{Embedding, Progress, StageSeconds, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Group, Model, Philox, Trainer};
use chandlery_datasets::{Centre, Preparation, count};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::thread;

/// A check: a line of `metrics.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What the run looked like.
    #[serde(flatten)]
    pub progress: Progress,
    /// Seconds of each stage so far.
    pub seconds: StageSeconds,
}

/// The command.
struct Train;

impl Run for Train {
    type Input = OfRows;
    type Settings = Settings;
    type Trainer = TsneTrainer;
    type Line = Line;
    type Extra = Nothing;
    const KIND: Kind = Kind { command: "tsne train", folder: "tsne" };
}

/// Lays rows out, or goes on with that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<Train>::new(&args.session, || {
        let iterations = args.iterations.unwrap_or(args.settings.iterations);
        let settings = Settings { iterations, ..args.settings.clone() };
        settings.check()?;
        Ok((OfRows { data: args.data.clone() }, settings))
    })?;
    asked.extend_iterations(args.iterations, |settings, all| settings.iterations = all);
    let centre = asked.settings.takes_centre().then(Centre::default);
    let (settings, device) = (&asked.settings, &asked.device);
    // Rows that are compared take memory, neighbours from elsewhere do not.
    let config = settings.given().is_none().then(|| settings.config(Preparation::default(), None));
    let rows = match &config {
        Some(config) => Rows::open_for(config, &asked.input.data, settings.split, centre.as_ref(), device)?,
        None => Rows::open(&asked.input.data, settings.split, centre.as_ref(), device)?,
    };
    output::check_thumbnails(&asked.settings.pictures, &rows.name, Some(&rows))?;
    let classes = Classes::new(rows.n(), rows.labels.as_deref(), rows.class_names.as_deref());
    let mut session = asked.open(
        session::Rows { data: &rows.name, n: rows.n(), fingerprint: rows.fingerprint.clone() },
        |settings, device, group| of_data(&rows.name, begin(settings, &rows, device, group)),
        |settings, path, device, _| {
            let of_run = rows.raw().filter(|_| settings.given().is_none());
            let (mut run, place) = TsneTrainer::restored(path, of_run, device)?;
            if rows.raw().is_none() && settings.given().is_none() {
                let read = rows.read(&run.config().preparation).map_err(candle::Error::msg)?;
                run = run.with_prepared_rows(&read)?;
            }
            let made = run.iteration().saturating_sub(settings.descent.early_iterations);
            check_more(args.iterations, made, " after the early ones")?;
            run.set_iterations(settings.iterations)?;
            Ok((run, place))
        },
    )?;
    let seed = session.info.settings.seed;
    let what = format!("t-SNE of {}: {}", rows.name, rows.words());
    session.announce(&what, seed)?;
    for note in session.trainer.notes() {
        session.report.line(&format!("note: {note}"))?;
    }
    if rows.raw().is_some_and(|raw| !raw.device().same_device(&session.device)) {
        session.report.line("note: rows stay in host memory, since the GPU has no room for them")?;
    }
    if session.info.settings.unique {
        let distinct = session.trainer.n_points();
        session.report.line(&format!("{distinct} of {} are distinct", count(rows.n(), "row")))?;
    }
    if descend(&mut session, &classes)? == Outcome::Interrupted {
        return session.interrupted();
    }
    // Rank 0 writes the last checkpoint alone.
    session.trainer.gather()?;
    let (run, trained) = session.trained();
    finish(&trained, &rows, &classes, &run)
}

/// A run before its first iteration.
fn begin(settings: &Settings, rows: &Rows, device: &Device, group: &Group) -> Result<TsneTrainer> {
    // What the layout is made of is learned before the first iteration.
    let _stage = stages::enter(Stage::Training);
    let _spinner = Spinner::new("finding neighbours");
    let philox = Philox::new(settings.seed, streams::START);
    let run = match settings.given() {
        Some(given) => {
            // What is done to rows matters to rows alone.
            let config = settings.config(Preparation::default(), None);
            given.read(&config, rows.n())?.run(config, philox, device)?
        }
        None => {
            let preparation = rows.preparation(settings.prepare.steps(), settings.seed)?;
            let config = settings.config(preparation, rows.image);
            let config = TsneConfig { centre: rows.centre.clone(), ..config };
            match rows.raw() {
                Some(raw) if raw.device().same_device(device) => {
                    TsneTrainer::new_in_group(group, config, philox, raw)?
                }
                Some(raw) => {
                    ensure!(group.is_single(), "--data: rows that do not fit one GPU are for one process");
                    TsneTrainer::new_streamed(config, philox, raw, device, None)?
                }
                None => {
                    let read = rows.read(&config.preparation)?;
                    TsneTrainer::of_prepared_in_group(group, config, philox, &read)?
                }
            }
        }
    };
    match &settings.start_from {
        None => Ok(run),
        Some(path) => {
            let layout = read_layout(path, "--start-from", rows.n(), device)?;
            run.start_at(&layout).with_context(|| format!("--start-from {}", path.display()))
        }
    }
}

/// Makes the iterations that are left.
fn descend(session: &mut Session<Train>, classes: &Classes) -> Result<Outcome> {
    let config = session.trainer.config().clone();
    // Of several processes rank 0 draws.
    let history = match session.info.settings.animation && rank() == 0 {
        true => Some(History::new(&session.folder, classes)?),
        false => None,
    };
    if let Some(history) = history.as_ref().filter(|_| session.trainer.iteration() == 0) {
        history.draw(0, &session.trainer.layout()?, "iteration 0")?;
    }
    let n = config.iterations_in_all();
    session.iterations_unsaved(n, |run, done| {
        let Some(progress) = run.step()? else { return Ok(None) };
        if let Some(history) = &history {
            let words = format!("iteration {}  KL {:.2}", progress.iteration, progress.kl);
            history.draw(progress.iteration, &run.layout()?, &words)?;
        }
        let line = Line { progress, seconds: run.seconds() };
        let iterations = progress.iteration - done;
        Ok(Some(Made { iterations, line, words: words_of(&progress), loss: None }))
    })
}

/// A check in one line.
fn words_of(progress: &Progress) -> String {
    let Progress { iteration, iterations, kl, gradient_norm, span, fall: _ } = progress;
    let width = iterations.to_string().len();
    format!(
        "iteration {iteration:>width$}/{iterations}  KL {kl:>7.4}  gradient {gradient_norm:>8.2e}  span {:>7}",
        figure(*span, 2)
    )
}

/// The layout, its measures, pictures, page and the model card.
fn finish(run: &Trained<Train>, rows: &Rows, classes: &Classes, made: &TsneTrainer) -> Result<Outcome> {
    let (settings, lines) = (&run.info.settings, &run.place.reports);
    let embedding = embedding_of(made, rows, settings)?;
    let last = lines.last().copied();
    let measured = || match settings.skip_measures {
        true => Ok((last.map(|line| Estimate::exact(line.progress.kl)), Measures::default())),
        false => measure(made, &embedding, rows, settings).map(|(kl, measures)| (Some(kl), measures)),
    };
    let ((kl, measures), drawn) = beside((run, made), rows, classes, &embedding, measured)?;
    let training = made.seconds();
    let layout_seconds = training.total();
    let mut figures = figures_of(kl, &measures);
    // All neighbours are the nearest where all rows were searched.
    let recall = made.recall().filter(|recall| recall.interval[0] < 1.);
    figures.extend(recall.map(|recall| ("nearest rows found".to_owned(), words_of_recall(&recall))));
    figures.push(("layout in".to_owned(), seconds(layout_seconds)));
    let words: Vec<String> = figures.iter().map(|(name, value)| format!("{name} {value}")).collect();
    run.report.line(&words.join(", "))?;
    let affinities = words_of_affinity(embedding.config(), made.n_points());
    let distinct = settings.unique.then(|| ("distinct rows", made.n_points().to_string()));
    let of_data = [("rows", rows.n().to_string())].into_iter().chain(distinct);
    let of_data = of_data.chain([("affinities", affinities)]);
    figures.splice(0..0, of_data.map(|(name, value)| (name.to_owned(), value)));
    let pictures = draw(run, classes, drawn, &figures)?;
    let iterations = last.map_or(0, |line| line.progress.iteration);
    let mut results = json!({
        "data": rows.name,
        "n_rows": rows.n(),
        "n_points": made.n_points(),
        "n_dims": settings.descent.dims,
        "affinity": embedding.config().affinity,
        "perplexity": perplexity_of(embedding.config()),
        "method": embedding.config().method_for(made.n_points(), run.device.is_cuda()),
        "iterations": iterations,
        "span": last.map(|line| line.progress.span),
        "search_recall": made.recall(),
        "layout_seconds": layout_seconds,
        "training_stage_seconds": training,
    });
    results.as_object_mut().into_iter().for_each(|results| results.extend(fields(kl, &measures)));
    let of_run = (settings, made.n_points(), iterations);
    let card = card::of(&embedding, rows, of_run, &figures, &pictures)?;
    run.finish(settings.seed, results, &card)
}

/// The embedding with its rows. A run over neighbours from elsewhere has none, but new rows are
/// placed by them all the same; nothing tells how far they are from others of a matrix of distances.
fn embedding_of(made: &TsneTrainer, rows: &Rows, settings: &Settings) -> Result<Embedding> {
    if !matches!(settings.given(), Some(Given::Neighbours(_))) {
        return Ok(made.model()?);
    }
    let config =
        TsneConfig { image: rows.image, centre: rows.centre.clone(), ..made.model()?.config().clone() };
    Ok(Embedding::from_tensors(config, made.layout()?, rows.raw().cloned())?)
}

/// The divergence with its sum over all pairs, and the other measures.
fn measure(
    made: &TsneTrainer,
    embedding: &Embedding,
    rows: &Rows,
    settings: &Settings,
) -> Result<(Estimate, Measures)> {
    let layout = embedding.layout();
    let truth = || {
        if let Some(matrix) = settings.given().map(|given| given.distances(rows.n())).transpose()?.flatten() {
            return Ok(Truth::Matrix(Arc::new(matrix)));
        }
        let config = embedding.config();
        let read = embedding.prepared_rows()?;
        Ok(Truth::Rows(read.map_or_else(|| rows.read(&config.preparation), Ok)?, config.metric))
    };
    let kl = || {
        let kl = divergence(layout, |sample| made.kl_estimate(layout, sample))?;
        Ok((kl, made.nearest().cloned()))
    };
    measured(kl, truth, rows.labels.as_deref(), layout)
}

/// What `measured` gives, and what is drawn beside it; files of the layout and the last checkpoint are
/// written meanwhile.
fn beside<T>(
    (run, made): (&Trained<Train>, &TsneTrainer),
    rows: &Rows,
    classes: &Classes,
    embedding: &Embedding,
    measured: impl FnOnce() -> Result<T>,
) -> Result<(T, Drawn)> {
    let (settings, folder) = (&run.info.settings, &run.folder);
    let on_host = match run.device.is_cpu() {
        true => embedding.clone(),
        false => embedding.to_device(&Device::Cpu)?,
    };
    let raw = match on_host.rows() {
        Some(raw) => Some(raw.clone()),
        None => rows.raw().map(|raw| raw.to_device(&Device::Cpu)).transpose()?,
    };
    let files = || {
        folder.save_model("", |path| on_host.save_pretrained(path))?;
        output::write_arrays(folder, on_host.layout(), rows.labels.as_deref())
    };
    let shown = Shown {
        name: &rows.name,
        layout: on_host.layout(),
        classes,
        has_labels: rows.labels.is_some(),
        rows: Some(rows),
        raw: raw.as_ref(),
    };
    let pictures = || Drawn::new(&OutFolder::Run(folder.clone()), shown, &settings.pictures);
    thread::scope(|scope| {
        let files = thread::Builder::new().spawn_scoped(scope, files)?;
        let pictures = thread::Builder::new().spawn_scoped(scope, pictures)?;
        let checkpoint = thread::Builder::new().spawn_scoped(scope, || run.save(made))?;
        let measured = measured();
        let _stage = stages::enter(Stage::Pictures);
        let _spinner = Spinner::new("drawing");
        let others = both(both(joined(files), joined(checkpoint)), joined(pictures));
        let (measured, (_, drawn)) = both(measured, others)?;
        Ok((measured, drawn))
    })
}

/// What a thread gives.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Curves, page, and the animation where it was asked for.
fn draw(
    run: &Trained<Train>,
    classes: &Classes,
    drawn: Drawn,
    figures: &[(String, String)],
) -> Result<Vec<Picture>> {
    let (settings, lines, folder) = (&run.info.settings, &run.place.reports, &run.folder);
    let _stage = stages::enter(Stage::Pictures);
    run.draw_curves(&learning_curves(lines))?;
    let mut pictures = drawn.finish(&OutFolder::Run(folder.clone()), classes, figures)?;
    if settings.animation {
        let checks = lines.iter().map(|line| line.progress.iteration);
        let iterations: Vec<usize> = std::iter::once(0).chain(checks).collect();
        pictures.push(History::new(folder, classes)?.animate(&iterations)?);
    }
    Ok(pictures)
}

/// Divergence and norm of the gradient by iteration.
fn learning_curves(lines: &[Line]) -> [Panel; 2] {
    let panel = |title: &str, y: fn(&Progress) -> f64| {
        let points = lines.iter().map(|line| (line.progress.iteration as f64, y(&line.progress)));
        Panel::new(title, "iteration", title, vec![Curve::new(title, points)])
    };
    [
        panel("divergence (KL, nats)", |progress| progress.kl),
        panel("norm of the gradient", |progress| progress.gradient_norm).log(),
    ]
}
