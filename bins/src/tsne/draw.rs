//! The command `draw`: pictures of a layout, made by this or any other program.
use super::args::DrawArgs;
use super::output::{Drawn, Shown, check_thumbnails, mib, page_bytes};
use super::rows::{Rows, layout_file, of_run, points_of};
use crate::options::DataArgs;
use crate::out_folder::OutFolder;
use crate::progress::Spinner;
use crate::report::{Outcome, Report, seconds};
use crate::stages::{self, Stage};
use anyhow::{Result, bail};
use candle::Device;
use chandlery::pictures::scatter::Classes;
use chandlery_datasets::{Centre, count};
use serde_json::json;
use std::time::Instant;

/// Writes the pictures.
pub fn draw(args: &DrawArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    args.common.threads.start()?;
    let of_run = of_run(&args.layout, &args.data)?;
    let out = match &args.out {
        Some(out) => OutFolder::asked(out)?,
        None if of_run.is_some() => OutFolder::at(&args.layout)?,
        None => bail!("--out: name a folder for the pictures of {}", args.layout.display()),
    };
    // Nothing is computed of rows.
    let device = Device::Cpu;
    let split = args.split.or(of_run.as_ref().map(|(_, settings)| settings.split)).unwrap_or_default();
    let rows = match of_run.is_some() || args.data.data.is_some() {
        false => None,
        true => {
            let centre = Centre::default();
            let mut data: DataArgs = args.data.or_those_of(of_run.map(|(data, _)| data));
            data.read.centre = Some(centre.clone());
            let dataset = args.data.named(&args.layout.display().to_string(), data.open())?;
            Some(Rows::of(dataset, split, Some(&centre), &device)?)
        }
    };
    let name = rows.as_ref().map_or_else(|| args.layout.display().to_string(), |rows| rows.name.clone());
    check_thumbnails(&args.pictures, &name, rows.as_ref())?;
    let reading = stages::enter(Stage::Data);
    let file = layout_file(&args.layout, "LAYOUT")?;
    let n = rows.as_ref().map_or(file.train.n_samples(), Rows::n);
    let layout = points_of(&file, &format!("LAYOUT {}", args.layout.display()), n, &device)?;
    let n_dims = layout.dim(1)?;
    drop(reading);
    let (labels, class_names) = match &rows {
        Some(rows) => (rows.labels.as_deref(), rows.class_names.as_deref()),
        None => (file.train.labels.as_deref(), file.class_names.as_deref()),
    };
    let started = Instant::now();
    let _stage = stages::enter(Stage::Pictures);
    let spinner = Spinner::new("drawing");
    let classes = Classes::new(n, labels, class_names);
    let shown = Shown {
        name: &name,
        layout: &layout,
        classes: &classes,
        has_labels: labels.is_some(),
        rows: rows.as_ref(),
        raw: rows.as_ref().and_then(Rows::raw),
    };
    let drawn = Drawn::new(&out, shown, &args.pictures)?;
    let pictures = drawn.finish(&out, &classes, &[("rows".to_owned(), n.to_string())])?;
    drop(spinner);
    let took = started.elapsed().as_secs_f64();
    let page = page_bytes(&out)?;
    report.line(&format!(
        "{} in {n_dims} dimensions: {} and a page of {} in {}, in {}",
        count(n, "row"),
        pictures.iter().map(|picture| picture.file.as_str()).collect::<Vec<_>>().join(", "),
        mib(page),
        out.path("").display(),
        seconds(took)
    ))?;
    report.finish(json!({
        "layout": args.layout,
        "data": rows.as_ref().map(|rows| &rows.name),
        "out": out.path(""),
        "n_samples": n,
        "n_dims": n_dims,
        "labels": labels.is_some(),
        "page_bytes": page,
        "seconds": took,
    }))?;
    Ok(Outcome::Done)
}
