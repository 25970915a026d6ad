//! The command `evaluate`: measures of a layout, made by this or any other program.
use super::args::{EvaluateArgs, Settings, check_affinity, takes_centre};
use super::choices::{AffinityArg, perplexity_of, words_of_affinity};
use super::figures::{Truth, divergence, fields, figures_of, measured, words_of_list};
use super::given::Read;
use super::rows::{Rows, of_run, read_layout};
use super::streams;
use crate::choices::MetricArg;
use crate::options::{DataArgs, located};
use crate::report::{Outcome, Report};
use anyhow::{Context, Result, bail};
use candle::{Device, Tensor};
use chandlery::tsne::measure::{Estimate, Searched};
use chandlery::tsne::{Affinity, Embedding, Neighbours, TsneConfig};
use chandlery::{LoadOptions, Model, Philox};
use chandlery_datasets::{Centre, count};
use serde_json::json;
use std::path::Path;

/// Prints the measures.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let perplexity = Some(&args.perplexity).filter(|perplexity| !perplexity.is_empty());
    check_affinity(perplexity, args.affinity.unwrap_or_default())?;
    let device = args.common.open_device()?;
    let of_run = of_run(&args.layout, &args.data)?;
    let made = made(args)?;
    let rows = rows(args, of_run.as_ref(), &made, &device)?;
    let layout = read_layout(&args.layout, "LAYOUT", rows.n(), &device)?;
    let settings = of_run.as_ref().map(|(_, settings)| settings);
    let asked = config(args, &rows, made, settings)?;
    let config = asked.lowered(rows.n());
    let philox = Philox::new(settings.map_or(0, |settings| settings.seed), streams::START);
    // What compares rows in another way has other neighbours.
    let is_as_made = args.metric.is_none() && args.neighbours.is_none() && args.prepare.prepare.is_none();
    let run = of_run.as_ref().filter(|_| is_as_made);
    let given = run.map(|run| given(run, &config, rows.n())).transpose()?.flatten();
    let truth = match &given {
        Some(Read::Distances(matrix)) => Truth::Matrix(matrix.clone()),
        _ => Truth::Rows(rows.read(&config.preparation)?, config.metric),
    };
    let metric = matches!(truth, Truth::Rows(..)).then_some(MetricArg(config.metric));
    // All rows, or those that differ.
    let mut n_points = rows.n();
    let kl = || {
        let found = kl(&truth, given.as_ref(), &layout, &config, philox)?;
        n_points = found.n_points;
        anyhow::Ok((found.kl, found.nearest))
    };
    let (kl, measures) = measured(kl, || Ok(truth.clone()), rows.labels.as_deref(), &layout)?;
    if config.perplexities() != asked.perplexities() {
        let (asked, perplexity) =
            (words_of_list(&asked.perplexities()), words_of_list(&config.perplexities()));
        let rows = count(rows.n(), "row");
        report.line(&format!("note: perplexity {asked} was lowered to {perplexity} for {rows}"))?;
    }
    report.line(&format!("{} at {}", count(rows.n(), "row"), words_of_affinity(&config, n_points)))?;
    for (name, value) in figures_of(Some(kl), &measures) {
        report.line(&format!("{name} {value}"))?;
    }
    let mut results = json!({
        "data": rows.name,
        "layout": args.layout,
        "n_samples": rows.n(),
        "n_dims": layout.dim(1)?,
        "metric": metric,
        "affinity": config.affinity,
        "perplexity": perplexity_of(&config),
    });
    results.as_object_mut().into_iter().for_each(|results| results.extend(fields(Some(kl), &measures)));
    report.finish(results)?;
    Ok(Outcome::Done)
}

/// How the layout was made, if it is a folder with an embedding.
fn made(args: &EvaluateArgs) -> Result<Option<TsneConfig>> {
    if !args.layout.join("config.json").is_file() {
        return Ok(None);
    }
    let folder = args.layout.display().to_string();
    let config = Embedding::from_pretrained(&folder, &LoadOptions::default())?.config().clone();
    Ok(Some(TsneConfig { image: None, ..config }))
}

/// The rows that the layout is of, as asked for; what is not said is as in the run.
fn rows(
    args: &EvaluateArgs,
    of_run: Option<&(DataArgs, Settings)>,
    made: &Option<TsneConfig>,
    device: &Device,
) -> Result<Rows> {
    let split = args.split.or(of_run.map(|(_, settings)| settings.split)).unwrap_or_default();
    let metric = args.metric.map(|metric| metric.0);
    let metric = metric.or(made.as_ref().map(|made| made.metric)).unwrap_or_default();
    let centre = match made {
        // The steps of a run were fitted to rows without what its rows lost.
        Some(made) if args.prepare.prepare.is_none() && args.metric.is_none() => {
            Centre::new(made.centre.clone())
        }
        _ if takes_centre(metric, args.prepare.steps()) => Centre::default(),
        _ => Centre::new(vec![]),
    };
    let mut data = args.data.or_those_of(of_run.map(|(data, _)| data.clone()));
    data.read.centre = Some(centre.clone());
    let dataset = args.data.named(&args.layout.display().to_string(), data.open())?;
    Rows::of(dataset, split, Some(&centre), device)
}

/// How the layout is measured: as it was made, but for what was asked for.
fn config(
    args: &EvaluateArgs,
    rows: &Rows,
    made: Option<TsneConfig>,
    settings: Option<&Settings>,
) -> Result<TsneConfig> {
    let mut config = made.unwrap_or_default();
    if let Some(metric) = args.metric {
        config.metric = metric.0;
    }
    if let Some(AffinityArg(affinity)) = args.affinity {
        config.affinity = affinity;
    }
    if let Some((first, further)) = args.perplexity.split_first() {
        config.affinity = Affinity::Perplexity;
        (config.perplexity, config.further_perplexities) = (*first, further.to_vec());
        // Those of the run belong to its perplexities.
        (config.neighbours, config.changes) = (None, vec![]);
    }
    if args.neighbours.is_some() {
        config.neighbours = args.neighbours;
    }
    if let Some(alpha) = args.degrees_of_freedom {
        config.degrees_of_freedom = alpha as f32;
    }
    if args.prepare.prepare.is_some() {
        config.preparation = rows.preparation(args.prepare.steps(), settings.map_or(0, |of| of.seed))?;
    }
    Ok(config)
}

/// What the run was given in place of rows.
fn given((data, settings): &(DataArgs, Settings), config: &TsneConfig, n: usize) -> Result<Option<Read>> {
    let at = |path: &Path| located(&path.display().to_string(), data.base.as_deref()).into();
    let read = settings.given().map(|given| given.at(at).read(config, n)).transpose();
    read.context("what this run was given; compare rows with --metric or --neighbours")
}

/// The divergence, over what was given to the run or the neighbours of a search.
struct Divergence {
    kl: Estimate,
    /// The nearest rows, where the search looked at all.
    nearest: Option<Neighbours>,
    n_points: usize,
}

fn kl(
    truth: &Truth,
    given: Option<&Read>,
    layout: &Tensor,
    config: &TsneConfig,
    philox: Philox,
) -> Result<Divergence> {
    if let Some(given) = given {
        let config = TsneConfig { preparation: Default::default(), ..config.clone() };
        let run = given.run(config, philox, layout.device());
        let run = run.context("what this run was given; compare rows with --metric or --neighbours")?;
        let kl = divergence(layout, |sample| run.kl_estimate(layout, sample))?;
        return Ok(Divergence { kl, nearest: None, n_points: run.n_points() });
    }
    let Truth::Rows(read, _) = truth else { bail!("the divergence: there are no rows to search in") };
    let searched = Searched::new(read, config, philox).context("the divergence")?;
    let alpha = config.degrees_of_freedom;
    let kl = divergence(layout, |sample| searched.kl_estimate(layout, alpha, sample));
    let n_points = searched.affinities.n();
    Ok(Divergence { kl: kl.context("the divergence")?, nearest: searched.nearest, n_points })
}
