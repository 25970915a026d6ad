//! The command `predict`: the class of each row, and how probable each class is.
use super::args::PredictArgs;
use super::saved::Saved;
use crate::progress::Progress;
use crate::ranks;
use crate::report::{Outcome, Report, is_stdout, named, to_stdout};
use crate::rows::{Blocks, InTurn, Rows, agree, of_classes};
use crate::run_folder::check_writable;
use anyhow::{Context, Result, bail};
use candle::{D, DType, Device, Module, Tensor};
use candle_nn::ops::softmax;
use chandlery::io::save_tensors;
use chandlery_datasets::count;
use chandlery_datasets::whole::write_whole;
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// Where predictions go, told by the extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// A line for each row: its number, its class and the probability of each class.
    Csv,
    /// `probabilities` and `classes`; names of classes are in the header, as a list in JSON under
    /// `class_names`.
    Safetensors,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        if is_stdout(path) {
            return Ok(Self::Csv);
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Ok(Self::Csv),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => bail!("{}: the name must end in .csv or .safetensors, or be -", path.display()),
        }
    }
}

/// Writes the classes of every row of a split.
pub fn predict(args: &PredictArgs) -> Result<Outcome> {
    let report = Report::beside(args.of.common.json, &args.out)?;
    let format = Format::of(&args.out).context("--out")?;
    check_writable(&args.out).context("--out")?;
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let saved = Saved::load(&args.of.model.model, &device)?;
    let classes = match &saved {
        Saved::Classifier(network) => network.config().classes(),
        Saved::Labelled(dbn) => Some(dbn.config().classes()),
        Saved::Plain(_) | Saved::Autoencoder(_) => None,
    };
    let classes = classes.ok_or_else(|| saved.refused(&args.of.model.model, "predict"))?;
    let (n_classes, names) = (classes.n, classes.names);
    let dataset = of_classes(args.of.data.open(&args.of.model.model)?, Some(classes))?;
    let Rows { name: data, split, .. } = Rows::of(dataset, args.of.split)?;
    agree(&ranks, [&split])?;
    let n_samples = split.n_samples();
    let bar = Progress::rows(n_samples as u64, 0);
    let mut blocks = Blocks::of_rank(&ranks, &split, saved.reads(), &device)?;
    let mut made = InTurn::new(&ranks, &device, || {
        blocks.next()?.map(|rows| Ok(vec![of_rows(&saved, &rows)?])).transpose()
    })?;
    let mut probabilities = Vec::new();
    while let Some(block) = made.next()? {
        if ranks.is_first() {
            let block = Tensor::cat(&block, 0)?.to_device(&Device::Cpu)?;
            bar.advance(block.dim(0)? as u64);
            probabilities.push(block);
        }
    }
    bar.finish();
    ranks.first_goes_on();
    let probabilities = Tensor::cat(&probabilities, 0)?;
    let classes = probabilities.argmax(D::Minus1)?.to_vec1::<u32>()?;
    match format {
        Format::Csv => {
            let write = |out: &mut dyn Write| write_csv(out, &probabilities, &classes, names);
            match is_stdout(&args.out) {
                true => to_stdout(write)?,
                false => write_whole(&args.out, |file| write(file))?,
            }
        }
        Format::Safetensors => {
            let classes = Tensor::new(&classes[..], &Device::Cpu)?;
            let tensors = [("probabilities", probabilities), ("classes", classes)];
            let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
            let notes = names.map(|names| ("class_names".to_owned(), json!(names).to_string()));
            save_tensors(&args.out, tensors, notes.into_iter().collect())?;
        }
    }
    let errors =
        split.labels.as_deref().map(|labels| classes.iter().zip(labels).filter(|(a, b)| a != b).count());
    let right = errors.map_or(String::new(), |errors| {
        format!(
            "; {errors} differ from the labels of the data, {:.2} %",
            100. * errors as f64 / n_samples as f64
        )
    });
    report.line(&format!("classes of {} in {}{right}", count(n_samples, "row"), named(&args.out)))?;
    report.finish(json!({
        "out": args.out,
        "data": data,
        "n_samples": n_samples,
        "n_classes": n_classes,
        "class_names": names,
        "errors": errors,
        "error": errors.map(|errors| errors as f64 / n_samples as f64),
    }))?;
    Ok(Outcome::Done)
}

/// The probability of each class of raw rows, `[batch, n_classes]` f32.
fn of_rows(saved: &Saved, rows: &Tensor) -> Result<Tensor> {
    let probabilities = match saved {
        Saved::Classifier(network) => softmax(&network.forward(rows)?, D::Minus1)?,
        Saved::Labelled(dbn) => dbn.label_log_probabilities(rows)?.exp()?,
        Saved::Plain(_) | Saved::Autoencoder(_) => bail!("this model tells no classes apart"),
    };
    Ok(probabilities.to_dtype(DType::F32)?)
}

/// Writes a line for each row: its number, its class and the probability of each class.
fn write_csv(
    out: &mut dyn Write,
    probabilities: &Tensor,
    classes: &[u32],
    names: Option<&[String]>,
) -> Result<()> {
    let n_classes = probabilities.dim(1)?;
    let name = |class: usize| names.map_or_else(|| class.to_string(), |names| names[class].clone());
    let mut out = csv::Writer::from_writer(out);
    let columns = (0..n_classes).map(|class| format!("p({})", name(class)));
    out.write_record(["row".to_owned(), "class".to_owned()].into_iter().chain(columns))?;
    for (row, (class, of_row)) in classes.iter().zip(probabilities.to_vec2::<f32>()?).enumerate() {
        let values = of_row.iter().map(f32::to_string);
        out.write_record([row.to_string(), name(*class as usize)].into_iter().chain(values))?;
    }
    Ok(out.flush()?)
}
