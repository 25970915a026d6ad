//! The commands `encode` and `evaluate` of models with latents.
use crate::patch_rows::{EncodeArgs, UseArgs, open};
use crate::progress::Progress;
use crate::report::{Outcome, Report, of_data};
use crate::rows::Rows;
use crate::run_folder::check_writable;
use anyhow::{Context, Result};
use candle::{D, DType, Device, Tensor};
use chandlery::codes::{CodesFile, Format, Notes, fingerprint};
use chandlery::sparse_autoencoder::sae::Sae;
use chandlery::{Decode, Encode, Model};
use chandlery_datasets::count;
use chandlery_ops::codes::SparseCodes;
use serde_json::json;

/// Prepared rows and their codes, a block at a time.
fn each(
    model: &Sae,
    rows: &Rows,
    device: &Device,
    label: &str,
    mut f: impl FnMut(&Tensor, SparseCodes) -> Result<()>,
) -> Result<()> {
    let mut feed = rows.feed(device)?;
    let bar = Progress::rows(rows.split.n_samples() as u64, 0);
    bar.label(label.to_owned());
    while let Some(minibatch) = feed.next()? {
        let x = model.prepare(&minibatch.rows)?;
        let codes = model.encode_prepared(&x)?;
        of_data(&rows.name, f(&x, codes))?;
        bar.advance(minibatch.rows.dim(0)? as u64);
    }
    bar.finish();
    Ok(())
}

/// Writes the active latents of every row and their values.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    Format::of(&args.out).context("--out: codes of latents are sparse")?;
    check_writable(&args.out).context("--out")?;
    let (device, model, rows) = open::<Sae>(&args.of)?;
    let mut parts = vec![];
    each(&model, &rows, &device, "encoding", |_, codes| {
        let host = |t: &Tensor| t.to_device(&Device::Cpu);
        let SparseCodes { indices, values, count, n_atoms } = &codes;
        let (indices, values, count) = (host(indices)?, host(values)?.to_dtype(DType::F32)?, host(count)?);
        parts.push(SparseCodes { indices, values, count, n_atoms: *n_atoms });
        Ok(())
    })?;
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

/// Prints how well rows are given back, and how many latents are active how often.
pub fn evaluate(args: &UseArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let (device, model, rows) = open::<Sae>(args)?;
    let config = model.config();
    let wide = |t: Tensor| t.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>();
    let (mut error, mut cosine, mut active, mut squares) = (0., 0., 0., 0.);
    let mut sums = Tensor::zeros(config.n_visible, DType::F64, &device)?;
    let mut uses = vec![0u64; config.n_latents];
    each(&model, &rows, &device, "measuring", |x, codes| {
        let x = x.to_dtype(DType::F64)?;
        let back = model.reconstruct_prepared(&x.to_dtype(model.dtype())?)?.to_dtype(DType::F64)?;
        error += wide((&back - &x)?.sqr()?)?;
        let lengths = (x.sqr()?.sum(D::Minus1)?.sqrt()? * back.sqr()?.sum(D::Minus1)?.sqrt()?)?;
        cosine += wide(((&x * &back)?.sum(D::Minus1)? / lengths.maximum(f64::MIN_POSITIVE)?)?)?;
        squares += wide(x.sqr()?)?;
        sums = (&sums + x.sum(0)?)?;
        let is_active = codes.values.gt(0f64)?.flatten_all()?.to_vec1::<u8>()?;
        for (&j, on) in codes.indices.flatten_all()?.to_vec1::<u32>()?.iter().zip(is_active) {
            if on > 0
                && let Some(uses) = uses.get_mut(j as usize)
            {
                *uses += 1;
                active += 1.;
            }
        }
        Ok(())
    })?;
    let n = rows.split.n_samples() as f64;
    let fvu = error / (squares - wide(sums.sqr()?)? / n);
    let (cosine, l0) = (cosine / n, active / n);
    let dead = uses.iter().filter(|&&uses| uses == 0).count();
    let mut decades = [0usize; DECADES];
    for &uses in uses.iter().filter(|&&uses| uses > 0) {
        let decade = (-(uses as f64 / n).log10()).floor().max(0.) as usize;
        if let Some(count) = decades.get_mut(decade.min(DECADES - 1)) {
            *count += 1;
        }
    }
    report.line(&format!(
        "FVU {fvu:.4}, cosine {cosine:.4}, L0 {l0:.2} over {} of {}; {dead} of {} latents never active",
        rows.words(),
        rows.name,
        config.n_latents
    ))?;
    report.finish(json!({
        "model": args.model.model,
        "data": rows.name,
        "n_samples": rows.split.n_samples(),
        "squared_error": error / n,
        "fvu": fvu,
        "cosine": cosine,
        "l0": l0,
        "dead_latents": dead,
        "dead": dead as f64 / config.n_latents as f64,
        "density_decades": decades,
    }))?;
    Ok(Outcome::Done)
}
