//! The commands `encode` and `evaluate` of models with latents.
use super::targets::{self, behind};
use crate::patch_rows::{EncodeArgs, open};
use crate::progress::Progress;
use crate::ranks::{self, Ranks};
use crate::report::{Outcome, Report, of_data};
use crate::rows::{InTurn, Rows, agree};
use crate::run_folder::check_writable;
use crate::sparse_autoencoder::args::EvaluateArgs;
use anyhow::{Context, Result, bail, ensure};
use candle::{D, DType, Device, Tensor};
use chandlery::codes::{CodesFile, Format, Notes, fingerprint};
use chandlery::pictures::curves::{self, Curve, Panel};
use chandlery::sparse_autoencoder::sae::{Sae, TopRows};
use chandlery::{Decode, Encode, Model};
use chandlery_datasets::whole::write_whole;
use chandlery_datasets::{Feed, count};
use chandlery_ops::codes::SparseCodes;
use serde_json::json;
use std::io::Write;

/// A block of rows on its way through a model.
pub(super) struct Block {
    /// Prepared rows.
    pub x: Tensor,
    /// What is to be given back: the same, or the targets that lie behind the rows.
    pub y: Tensor,
    /// Their codes.
    pub codes: SparseCodes,
}

impl Block {
    /// Of raw rows; those of a transcoder may have targets behind them.
    fn of(model: &Sae, raw: &Tensor) -> Result<Self> {
        let n_inputs = model.config().n_inputs();
        let n_targets = raw.dim(1)? - n_inputs;
        let x = model.prepare(&raw.narrow(1, 0, n_inputs)?.contiguous()?)?;
        let y = match n_targets {
            0 => x.clone(),
            n => raw.narrow(1, n_inputs, n)?.contiguous()?.to_dtype(model.dtype())?,
        };
        let codes = model.encode_prepared(&x)?;
        Ok(Self { x, y, codes })
    }
}

/// Calls `f` with all rows of this rank, a block at a time.
pub(super) fn each(
    model: &Sae,
    rows: &Rows,
    (ranks, device): (&Ranks, &Device),
    mut f: impl FnMut(Block) -> Result<()>,
) -> Result<()> {
    rows.each(ranks, device, |raw| f(Block::of(model, raw)?))
}

/// Writes the active latents of every row and their values.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    Format::of(&args.out).context("--out: codes of latents are sparse")?;
    check_writable(&args.out).context("--out")?;
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let (model, rows) = open::<Sae>(&args.of, &device)?;
    agree(&ranks, [&rows.split])?;
    let bar = Progress::rows(rows.split.n_samples() as u64, 0);
    bar.label("encoding".to_owned());
    let mut blocks = rows.feed(&ranks, &device)?;
    let mut made = InTurn::new(&ranks, &device, || {
        let Some(minibatch) = blocks.as_mut().map_or(Ok(None), Feed::next)? else { return Ok(None) };
        let codes = of_data(&rows.name, Block::of(&model, &minibatch.rows))?.codes;
        Ok(Some(vec![codes.indices, codes.values.to_dtype(DType::F32)?, codes.count]))
    })?;
    let mut parts = vec![];
    while let Some(block) = made.next()? {
        if !ranks.is_first() {
            continue;
        }
        let host = block.iter().map(|t| t.to_device(&Device::Cpu)).collect::<candle::Result<Vec<_>>>()?;
        if let [indices, values, count] = &host[..] {
            let [indices, values, count] = [indices, values, count].map(Tensor::clone);
            bar.advance(count.elem_count() as u64);
            parts.push(SparseCodes { indices, values, count, n_atoms: model.config().n_latents });
        }
    }
    bar.finish();
    ranks.first_goes_on();
    let codes = SparseCodes::stacked(&parts)?;
    let config = model.config();
    let n_rows = codes.count.elem_count();
    let l0 = codes.count.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()?;
    let notes = Notes {
        n_atoms: config.n_latents,
        n_features: config.n_outputs(),
        unit: "prepared values less b_dec".to_owned(),
        cut: None,
    };
    let file = CodesFile {
        dictionary: Some(fingerprint(model.decoder())?),
        mean: Tensor::zeros(n_rows, DType::F32, &Device::Cpu)?,
        codes,
        notes: Some(notes),
    };
    file.write(&args.out)?;
    report.line(&format!(
        "{} of {l0:.2} latents on average in {}",
        count(n_rows, "code"),
        args.out.display()
    ))?;
    report.finish(json!({
        "out": args.out,
        "data": rows.name,
        "n_samples": n_rows,
        "n_latents": config.n_latents,
        "l0": l0,
    }))?;
    Ok(Outcome::Done)
}

/// Decades of densities that are counted, from 1 down: those below the last are in it too.
const DECADES: usize = 6;
/// Intervals of the histogram of densities.
const INTERVALS: usize = 40;

/// Prints how well rows are given back, and how many latents are active how often.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    if let Some(path) = &args.picture {
        check_writable(path).context("--picture")?;
    }
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let (model, rows) = open::<Sae>(&args.of, &device)?;
    let config = model.config();
    let rows = match (&args.targets, config.n_targets) {
        (None, None) => rows,
        (Some(name), Some(_)) => behind(&rows, &targets::open(name, &args.of.input, &rows, args.of.split)?)?,
        (None, Some(_)) => {
            bail!("--targets: this model is a transcoder; name the rows that it is to give back")
        }
        (Some(_), None) => bail!("--targets: this model gives back the rows themselves; leave it out"),
    };
    let [want, got] = [config.n_targets.unwrap_or(0), rows.split.n_features() - config.n_inputs()];
    ensure!(got == want, "--targets: rows must have {want} values for this model, got {got}");
    agree(&ranks, [&rows.split])?;
    let wide = |t: Tensor| t.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>();
    let (mut error, mut cosine, mut squares) = (0., 0., 0.);
    let mut sums = Tensor::zeros(config.n_outputs(), DType::F64, &device)?;
    let mut uses = TopRows::new(config.n_latents, 0)?;
    each(&model, &rows, (&ranks, &device), |Block { x, y, codes }| {
        let back = model.reconstruct_prepared(&x)?.to_dtype(DType::F64)?;
        let y = y.to_dtype(DType::F64)?;
        error += wide((&back - &y)?.sqr()?)?;
        let lengths = (y.sqr()?.sum(D::Minus1)?.sqrt()? * back.sqr()?.sum(D::Minus1)?.sqrt()?)?;
        cosine += wide(((&y * &back)?.sum(D::Minus1)? / lengths.maximum(f64::MIN_POSITIVE)?)?)?;
        squares += wide(y.sqr()?)?;
        sums = (&sums + y.sum(0)?)?;
        Ok(uses.add(&codes)?)
    })?;
    let [error, cosine, squares] = ranks.sums([error, cosine, squares])?;
    let group = ranks.group(&device)?;
    group.all_reduce_(&sums)?;
    let uses = uses.joined(&group, &device)?;
    ranks.first_goes_on();
    let n = rows.split.n_samples() as f64;
    let fvu = error / (squares - wide(sums.sqr()?)? / n);
    let (cosine, l0, dead) = (cosine / n, uses.l0(), uses.n_dead());
    let logs: Vec<f64> =
        uses.densities().iter().filter(|&&density| density > 0.).map(|x| x.log10()).collect();
    let mut decades = [0usize; DECADES];
    for log in &logs {
        if let Some(count) = decades.get_mut(((-log).floor().max(0.) as usize).min(DECADES - 1)) {
            *count += 1;
        }
    }
    if let Some(path) = &args.picture {
        let curve = Curve::histogram(count(logs.len(), "latent"), &logs, INTERVALS);
        let title = format!("densities; {} never active", count(dead, "latent"));
        let panel = Panel::new(title, "log10 of the share of rows", "latents", vec![curve]);
        write_whole::<std::io::Error>(path, |file| {
            file.write_all(curves::draw(&[panel]).map_err(std::io::Error::other)?.as_bytes())
        })?;
    }
    report.line(&format!(
        "FVU {fvu:.4}, cosine {cosine:.4}, L0 {l0:.2} over {} of {}; {dead} of {} latents never active",
        rows.words(),
        rows.name,
        config.n_latents
    ))?;
    report.finish(json!({
        "model": args.of.model.model,
        "data": rows.name,
        "n_samples": rows.split.n_samples(),
        "squared_error": error / n,
        "fvu": fvu,
        "cosine": cosine,
        "l0": l0,
        "dead_latents": dead,
        "dead": dead as f64 / config.n_latents as f64,
        "density_decades": decades,
        "picture": args.picture,
    }))?;
    Ok(Outcome::Done)
}
