//! The command `reconstruct`: the error of reconstructed rows, and some of them as a picture.
use super::{ReconstructArgs, Rows};
use crate::pictures::{Shades, can_draw, originals_over_reconstructions, tile_zoom, write_png};
use crate::report::{Outcome, Report};
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery_datasets::{ImageShape, Preparation, count};
use serde_json::json;

/// A model that gives rows back.
pub struct Reconstructing<'a> {
    /// What is done to raw rows before the model reads them.
    pub preparation: &'a Preparation,
    /// Values that it reads of a row.
    pub n_features: usize,
    /// How the values of a raw row make an image.
    pub image: Option<ImageShape>,
    /// What comes back of raw rows, as the model reads them.
    pub back: &'a dyn Fn(&Tensor) -> candle::Result<Tensor>,
}

impl Reconstructing<'_> {
    /// The shape of what the model reads, where it is an image that can be drawn.
    pub fn shape(&self) -> Option<ImageShape> {
        self.image.filter(|shape| can_draw(shape) && shape.n_features() == self.n_features)
    }

    /// Prints the squared error of all rows, and draws the first ones.
    ///
    /// # Errors
    /// When a row is not finite, or the disk refuses.
    pub fn run(
        &self,
        args: &ReconstructArgs,
        rows: &Rows,
        device: &Device,
        report: &Report,
    ) -> Result<Outcome> {
        let mut squares = 0.;
        rows.each(device, |rows| {
            let apart = ((self.back)(rows)? - self.preparation.apply(rows)?)?.to_dtype(DType::F64)?;
            squares += apart.sqr()?.sum_all()?.to_scalar::<f64>()?;
            Ok(())
        })?;
        let n = rows.split.n_samples();
        let error = squares / n as f64;
        let per_input = error / self.n_features as f64;
        report.line(&format!(
            "mean squared error of {} of {}: {error:.6} summed over the inputs, {per_input:.8} per input",
            count(n, "row"),
            rows.name
        ))?;
        let drawn = self.draw(args, rows, device)?;
        if drawn {
            report.line(&format!("{}", args.picture.out.display()))?;
        }
        report.finish(&json!({
            "out": drawn.then_some(&args.picture.out),
            "data": rows.name,
            "n_samples": n,
            "squared_error": error,
            "squared_error_per_input": per_input,
        }))?;
        Ok(Outcome::Done)
    }

    /// Draws the first rows, as the model reads them, over what comes back.
    fn draw(&self, args: &ReconstructArgs, rows: &Rows, device: &Device) -> Result<bool> {
        let Some(shape) = self.shape() else { return Ok(false) };
        let raw = rows.split.take(args.picture.n)?.raw(device)?;
        let (originals, back) = (self.preparation.apply(&raw)?, (self.back)(&raw)?);
        let shades = if self.preparation.is_default() { Shades::Unit } else { Shades::MinMax };
        let picture = originals_over_reconstructions(&originals, &back, shape, 10, shades, tile_zoom(shape))?;
        write_png(&picture, &args.picture.out)?;
        Ok(true)
    }
}
