//! `bench plots`: tables of BENCHMARKS.md that have a trend, drawn from the page itself, so that
//! the two cannot disagree.
//!
//! | module   | what                                             |
//! |----------|--------------------------------------------------|
//! | `models` | what is drawn of each section of the page        |
//! | `tsne`   | that of t-SNE, whose tables have several forms   |
mod models;
mod tsne;

use super::page::{PageArgs, Row, Table};
use super::paper::write;
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use chandlery::pictures::curves::{Curve, Panel, draw_in};
use clap::Args;
use std::path::PathBuf;

/// Options of `bench plots`.
#[derive(Debug, Args)]
pub struct PlotsArgs {
    #[command(flatten)]
    page: PageArgs,
    /// Folder of the pictures.
    #[arg(long, value_name = "DIR", default_value = "plots")]
    out: PathBuf,
}

/// A picture: its file, and what makes its panels of a page.
type Plot = (&'static str, fn(&str) -> Result<Vec<Panel>>);

const PLOTS: [Plot; 10] = [
    ("rbm.svg", models::rbm),
    ("minibatches-2304x16000.svg", |page| models::minibatches(page, "2304×16000")),
    ("minibatches-784x504.svg", |page| models::minibatches(page, "784×504")),
    ("minibatches-4096x4096.svg", |page| models::minibatches(page, "4096×4096")),
    ("pursuits.svg", models::pursuits),
    ("dae.svg", models::dae),
    ("sparse-autoencoder.svg", models::sparse_autoencoder),
    ("latents.svg", models::latents),
    ("sparse-coding.svg", models::sparse_coding),
    ("tsne.svg", tsne::panels),
];

/// Panels beside each other: as wide as a page shows them without making them smaller.
const COLUMNS: usize = 2;

pub(super) fn run(args: &PlotsArgs) -> Result<()> {
    let page = args.page.read()?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let report = Report::new(false);
    for (file, panels) in PLOTS {
        let panels = panels(&page)?;
        let path = args.out.join(file);
        write(&path, &draw_in(&panels, panels.len().min(COLUMNS))?)?;
        report.line(&path.display().to_string())?;
    }
    Ok(())
}

/// A line through the points that `point` reads from the rows which have one, from left to right.
fn curve(name: &str, table: &Table, point: impl Fn(Row<'_>) -> Option<(f64, f64)>) -> Result<Curve> {
    let mut points: Vec<_> = table.rows().filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    line(name, points)
}

/// A line through points, of which there must be some.
fn line(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Result<Curve> {
    let curve = Curve::new(name, points);
    ensure!(!curve.points.is_empty(), "--page: {name}: a table has no figures of it");
    Ok(curve)
}

/// A panel with logarithmic axes and names at the lines.
fn panel(title: &str, x: &str, y: &str, curves: impl IntoIterator<Item = Result<Curve>>) -> Result<Panel> {
    Ok(Panel::new(title, x, y, curves.into_iter().collect::<Result<_>>()?).log().log_x().labelled())
}
