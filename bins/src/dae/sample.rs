//! The command `sample`: artificial views of rows, by corrupting and reconstructing them again and
//! again.
use super::apply::Task;
use super::args::SampleArgs;
use super::streams;
use crate::arrays;
use crate::progress::Progress;
use crate::reconstructions::shades;
use crate::report::{Outcome, Report};
use crate::rows::Blocks;
use anyhow::{Context, Result};
use candle::{D, Tensor};
use chandlery::dae::views;
use chandlery::pictures::{can_draw, mosaic, tile_zoom, write_png};
use chandlery::{Model, Philox};
use chandlery_datasets::count;
use serde_json::json;

/// The views, and a picture of some of them, in the folder of `--out`.
const VIEWS: &str = "views.safetensors";
const PICTURE: &str = "views.png";

/// Writes views of all rows of a split, those of a row one after the other, with its label, and
/// draws the first rows before their views.
pub fn sample(args: &SampleArgs) -> Result<Outcome> {
    let report = Report::new(args.of.used.common.json);
    let Task { device, stack, data, split, noise } =
        Task::open(&args.of, args.of.used.common.open_device()?)?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let preparation = stack.config().preparation.to_device(&device)?;
    let bar = Progress::rows(split.n_samples() as u64, 0);
    bar.label("sampling".to_owned());
    let mut blocks = Blocks::new(&split, stack.config(), &device)?;
    let mut draws = Philox::new(noise.seed, streams::VIEWS);
    let mut shown: Vec<Tensor> = Vec::new();
    let next = || -> Result<Option<Tensor>> {
        let Some(rows) = blocks.next()? else { return Ok(None) };
        bar.advance(rows.dim(0)? as u64);
        let x = stack.prepare(&rows)?.contiguous()?;
        let chain = views(&stack, &x, noise.corruption, args.views, draws)?;
        // Each step of the chain of a block has taken so many blocks of draws.
        draws = (0..args.views).fold(draws, |draws, _| draws.advanced(x.elem_count()));
        let raw = chain.iter().map(|view| preparation.inverse(view)).collect::<Result<Vec<_>, _>>()?;
        let left = args.n.saturating_sub(shown.iter().map(|t| t.dims()[0]).sum()).min(x.dim(0)?);
        if left > 0 {
            let parts = [preparation.inverse(&x)?];
            let parts = parts.iter().chain(&raw).map(|t| t.narrow(0, 0, left));
            shown.push(Tensor::stack(&parts.collect::<candle::Result<Vec<_>>>()?, 1)?);
        }
        let views = Tensor::stack(&raw, 1)?;
        Ok(Some(views.reshape(((), views.dim(D::Minus1)?))?))
    };
    let (n, n_features) = (split.n_samples() * args.views, split.n_features());
    let labels: Option<Vec<u32>> = split
        .labels
        .as_deref()
        .map(|labels| labels.iter().flat_map(|label| std::iter::repeat_n(*label, args.views)).collect());
    arrays::write(&args.out.join(VIEWS), (n, n_features), next, labels.as_deref())?;
    bar.finish();
    let shape = stack.config().image.or(split.image).filter(can_draw);
    let shape = shape.filter(|shape| shape.n_features() == n_features);
    if let Some(shape) = shape {
        let rows = Tensor::cat(&shown, 0)?.reshape(((), n_features))?;
        let picture = mosaic(&rows, shape, args.views + 1, shades(&stack.config().into()), tile_zoom(shape))?;
        write_png(&picture, &args.out.join(PICTURE))?;
    }
    report.line(&format!(
        "{} of each of {} of {data} with {} in {VIEWS}{}, in {}",
        count(args.views, "view"),
        count(split.n_samples(), "row"),
        noise.corruption,
        if shape.is_some() { format!(", some of them in {PICTURE}") } else { String::new() },
        args.out.display()
    ))?;
    report.finish(json!({
        "out": args.out,
        "data": data,
        "corruption": noise.corruption.to_string(),
        "seed": noise.seed,
        "n_samples": split.n_samples(),
        "views": args.views,
        "labels": labels.is_some(),
        "picture": shape.is_some(),
    }))?;
    Ok(Outcome::Done)
}
