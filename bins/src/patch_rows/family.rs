//! What a family says of itself, and the commands `encode` and `reconstruct` of all of them.
use super::{EncodeArgs, ReconstructArgs, UseArgs, Usual};
use crate::features::{Encoding, report_beside};
use crate::ranks;
use crate::report::{Outcome, Report};
use crate::rows::{Reads, Rows, agree};
use crate::run_folder::{RunFolder, check_writable};
use crate::session::info::check_finished;
use crate::session::{Kind, Picture};
use crate::stages::{self, Stage};
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::pictures::{Shades, can_draw, mosaic, originals_over_reconstructions, tile_zoom, write_png};
use chandlery::{Decode, LoadOptions};
use chandlery_datasets::{ImageShape, count};
use serde::de::DeserializeOwned;
use serde_json::json;

/// A family of models that read patches of images or rows, and make features of them.
pub trait Family: Decode {
    /// The settings of its runs.
    type Settings: DeserializeOwned;
    /// The names of its training command.
    const KIND: Kind;
    /// What its program does when it is not told.
    const USUAL: Usual;

    /// What it says of the rows that it is for.
    fn reads(&self) -> Reads;

    /// How many features it makes of a row.
    fn width(&self) -> usize;

    /// Refuses a model that gives back other rows than it reads.
    ///
    /// # Errors
    /// Of such a model.
    fn check_gives_back(&self) -> Result<()> {
        Ok(())
    }

    /// The shape of what the model reads, where it is an image that can be drawn.
    fn shape(&self) -> Option<ImageShape> {
        let Reads { image, n_inputs, preparation, .. } = self.reads();
        let n_read = preparation.n_outputs(n_inputs).ok();
        image.filter(|shape| can_draw(shape) && Some(shape.n_features()) == n_read)
    }
}

/// The model and the rows that a command is asked for.
///
/// # Errors
/// When one of them cannot be opened, or they do not fit.
pub fn open<M: Family>(args: &UseArgs, device: &Device) -> Result<(M, Rows)> {
    check_finished(&args.model.model)?;
    let model = M::from_pretrained(&args.model.model, &LoadOptions::on(device))?;
    let rows = M::USUAL.open_to_use::<M::Settings>(args, &M::KIND, &model.reads())?;
    Ok((model, rows))
}

/// Writes the features that a model, after `change`, makes of every row.
///
/// # Errors
/// As [`open`], when a row is not what the model reads, or the disk refuses.
pub fn encode<M: Family + Decode<Codes = Tensor>>(
    args: &EncodeArgs,
    change: impl FnOnce(M) -> Result<M>,
) -> Result<Outcome> {
    let report = report_beside(args.of.common.json, &args.out)?;
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let (model, rows) = open(&args.of, &device)?;
    let model = change(model)?;
    let encoding = Encoding {
        out: &args.out,
        ranks: &ranks,
        rows: &rows,
        reads: model.reads(),
        layers: (1..=1, 1),
        width: model.width(),
    };
    encoding.write(&report, &device, |rows, _| model.encode(rows))
}

/// Prints the squared error of reconstructed rows, and draws the first ones.
///
/// # Errors
/// As [`open`], when a row is not finite, or the disk refuses.
pub fn reconstruct<M: Family>(args: &ReconstructArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    check_writable(&args.picture.out).context("--out")?;
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let (model, rows) = open::<M>(&args.of, &device)?;
    model.check_gives_back()?;
    agree(&ranks, [&rows.split])?;
    let preparation = model.reads().preparation;
    let mut squares = 0.;
    rows.each(&ranks, &device, |rows| {
        squares += model.reconstruction_error(rows)? * rows.dim(0)? as f64;
        Ok(())
    })?;
    let [squares] = ranks.sums([squares])?;
    ranks.first_goes_on();
    let n = rows.split.n_samples();
    let error = squares / n as f64;
    let per_input = error / preparation.n_outputs(rows.split.n_features())? as f64;
    report.line(&format!(
        "mean squared error of {} of {}: {error:.6} summed over the inputs, {per_input:.8} per input",
        count(n, "row"),
        rows.name
    ))?;
    let shape = model.shape();
    if let Some(shape) = shape {
        let raw = rows.split.take(args.picture.n)?.raw(&device)?;
        let originals = model.prepare(&raw)?;
        let back = model.reconstruct_prepared(&originals)?;
        let shades = if preparation.is_default() { Shades::Unit } else { Shades::MinMax };
        let picture = originals_over_reconstructions(&originals, &back, shape, 10, shades, tile_zoom(shape))?;
        write_png(&picture, &args.picture.out)?;
        report.line(&format!("{}", args.picture.out.display()))?;
    }
    report.finish(json!({
        "out": shape.map(|_| &args.picture.out),
        "data": rows.name,
        "n_samples": n,
        "squared_error": error,
        "squared_error_per_input": per_input,
    }))?;
    Ok(Outcome::Done)
}

/// Filters beyond these are left out: the picture stays one that can be looked at.
const MOST: usize = 400;

/// Draws filters, `[n, n_features]`, into a run folder, where they are images; `caption` is told
/// how many.
///
/// # Errors
/// When the disk refuses.
pub fn write_filters(
    filters: &Tensor,
    shape: Option<ImageShape>,
    folder: &RunFolder,
    caption: impl FnOnce(usize) -> String,
) -> Result<Option<Picture>> {
    let Some(shape) = shape else { return Ok(None) };
    let _stage = stages::enter(Stage::Pictures);
    let n = filters.dim(0)?.min(MOST);
    let columns = (n as f64).sqrt().ceil() as usize;
    let picture = mosaic(&filters.narrow(0, 0, n)?, shape, columns, Shades::Symmetric, tile_zoom(shape))?;
    let file = "filters.png".to_owned();
    write_png(&picture, &folder.file(&file)?)?;
    Ok(Some(Picture { file, caption: caption(n) }))
}
