//! The command `denoise`: image files of the size that the autoencoder reads.
use super::args::DenoiseArgs;
use super::draw::Restored;
use super::measure::Noise;
use super::saved;
use crate::report::{Outcome, Report};
use crate::run_folder::RunFolder;
use anyhow::{Context, Result, anyhow, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery::dae::StackedDae;
use chandlery::pictures::can_draw;
use chandlery::pictures::planes::{read_planes, write_planes};
use chandlery_datasets::{ImageShape, count};
use chandlery_ops::layers::Corruption;
use serde_json::json;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The picture of originals and restored images.
const COMPARISON: &str = "comparison.png";

/// Restores image files.
pub fn denoise(args: &DenoiseArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let model = &args.model.model;
    let stack = saved::load(model, &device)?;
    let Some(shape) = stack.config().image.filter(can_draw) else {
        bail!("{model}: this model must be one of images, and it does not say what images its rows are")
    };
    let names = names(&args.images, &args.out)?;
    let raw = read(&args.images, shape, &stack, &device)?;
    let corruption = match &args.corruption {
        Some(name) => name.parse().map_err(|err| anyhow!("--corruption: {err}"))?,
        None => Corruption::None,
    };
    let made = Restored::of(&stack, &raw, Noise { corruption, seed: args.seed })?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let folder = RunFolder::open(&args.out).context("--out")?;
    let levels = (&made.restored / byte_scale(&stack))?.to_device(&Device::Cpu)?;
    for (i, name) in names.iter().enumerate() {
        let planes = levels.get(i)?.reshape((shape.channels, shape.height, shape.width))?;
        write_planes(&planes, &folder.join(name))?;
    }
    made.draw(&stack, corruption, shape, &folder.join(COMPARISON))?;
    let rmse = |a: &Tensor| -> Result<f64> {
        let apart = (a - &made.original)?.sqr()?.to_dtype(DType::F64)?;
        Ok(apart.mean_all()?.to_scalar::<f64>()?.sqrt())
    };
    let errors = match corruption {
        Corruption::None => None,
        _ => Some((rmse(&made.corrupted)?, rmse(&made.restored)?)),
    };
    if let Some((before, after)) = errors {
        report.line(&format!("RMSE {before:.4} with {corruption}, {after:.4} restored"))?;
    }
    report.line(&format!("{} and {COMPARISON} in {}", count(names.len(), "image"), args.out.display()))?;
    report.finish(json!({
        "out": args.out,
        "images": names,
        "corruption": args.corruption,
        "seed": args.seed,
        "rmse_corrupted": errors.map(|(before, _)| before),
        "rmse": errors.map(|(_, after)| after),
    }))?;
    Ok(Outcome::Done)
}

/// The name of each restored image; no two may be one, and none may replace an image that is read.
fn names(images: &[PathBuf], out: &Path) -> Result<Vec<String>> {
    let mut seen = HashSet::from([COMPARISON.to_owned()]);
    let originals: HashSet<PathBuf> = images.iter().filter_map(|image| image.canonicalize().ok()).collect();
    let name = |image: &PathBuf| {
        let stem = image.file_stem().with_context(|| format!("{}: this is no file", image.display()))?;
        let name = format!("{}.png", stem.to_string_lossy());
        ensure!(
            seen.insert(name.clone()),
            "{}: the name {name} must be free in the folder of --out, and another picture has it; rename the image",
            image.display()
        );
        let path = out.join(&name);
        ensure!(
            !path.canonicalize().is_ok_and(|path| originals.contains(&path)),
            "--out: must not be the folder of {}, which would be written over; name another",
            path.display()
        );
        Ok(name)
    };
    images.iter().map(name).collect()
}

/// What grey levels from 0 to 255 are multiplied by to be raw float rows.
fn byte_scale(stack: &StackedDae) -> f64 {
    stack.config().preparation.byte_scale()
}

/// Images as raw float rows, `[n, n_inputs]`.
fn read(images: &[PathBuf], shape: ImageShape, stack: &StackedDae, device: &Device) -> Result<Tensor> {
    let row = |image: &PathBuf| {
        let planes = as_stored(read_planes(image)?, shape)?;
        let (channels, height, width) = planes.dims3()?;
        let got = ImageShape { height, width, channels };
        ensure!(
            got == shape,
            "{}: this model restores images of {}, got {}",
            image.display(),
            words(shape),
            words(got)
        );
        Ok(planes.flatten_all()?)
    };
    let rows = images.iter().map(row).collect::<Result<Vec<_>>>()?;
    Ok((Tensor::stack(&rows, 0)?.to_device(device)? * byte_scale(stack))?)
}

/// Of an image of three equal planes one, for a model of grey images: some formats store grey as
/// colour.
fn as_stored(planes: Tensor, shape: ImageShape) -> Result<Tensor> {
    if shape.channels != 1 || planes.dim(0)? != 3 {
        return Ok(planes);
    }
    let first = planes.narrow(0, 0, 1)?;
    let apart = planes.broadcast_sub(&first)?.abs()?.max_all()?.to_scalar::<f32>()?;
    Ok(if apart == 0. { first } else { planes })
}

/// `28x28 pixels in grey`
fn words(shape: ImageShape) -> String {
    let colour = if shape.channels == 1 { "grey" } else { "colour" };
    format!("{}x{} pixels in {colour} (height x width)", shape.height, shape.width)
}
