//! The command `evaluate`: how good a saved network is.
use super::args::EvaluateArgs;
use super::measure::Evaluation;
use super::saved::Saved;
use super::up_down;
use crate::fine_tune::measure::Measured;
use crate::readout::{self, Rows};
use crate::report::{Outcome, Report};
use crate::rows::Data;
use crate::sizes;
use anyhow::{Result, ensure};
use candle::Device;
use chandlery::dbn::Dbn;
use chandlery::feedforward::{Feedforward, Task};
use chandlery::labelled::LabelledDbn;
use serde_json::json;

/// The command `evaluate`.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let device = args.common.open_device()?;
    let saved = Saved::load(&args.model.model, &device)?;
    if !matches!(saved, Saved::Plain(_)) && args.likelihood.log_likelihood {
        return Err(saved.refused(&args.model.model, "evaluate --log-likelihood"));
    }
    match saved {
        Saved::Plain(dbn) => evaluate_plain(args, &dbn, &device),
        Saved::Labelled(dbn) => evaluate_labelled(args, &dbn),
        Saved::Classifier(network) | Saved::Autoencoder(network) => evaluate_fine_tuned(args, &network),
    }
}

/// Of a fine-tuned network, what fine-tuning says at its end.
fn evaluate_fine_tuned(args: &EvaluateArgs, network: &Feedforward) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let (data, _) = Data::of_model(&args.data, &args.model.model, network.config().classes(), args.seed)?;
    let test = data.measured_on();
    ensure!(
        network.config().task != Task::Classify || test.0.labels.is_some(),
        "--data: rows must have labels for a classifier, got none in {}; {}",
        data.name,
        data.label_them()
    );
    let train: Vec<_> = data.not_measured().into_iter().chain(&data.held_out).collect();
    let measured = Measured::of(network, &train, test)?;
    report.line(&measured.words())?;
    report.finish(json!({
        "model": args.model.model,
        "data": data.name,
        "layers": sizes::of_fine_tuned(network.config()),
        "test_error": measured.test_error,
        "test_squared_error": measured.test_squared_error,
        "evaluation": measured,
    }))?;
    Ok(Outcome::Done)
}

/// Of a network without labels: everything that its rows allow.
fn evaluate_plain(args: &EvaluateArgs, dbn: &Dbn, device: &Device) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    args.likelihood.check(dbn)?;
    let (data, seed) = Data::of_model(&args.data, &args.model.model, None, args.seed)?;
    let (test, measured_on) = data.measured_on();
    let rows = Rows { train: data.not_measured(), test, measured_on, n_classes: data.n_classes };
    let evaluation = Evaluation::of(dbn, &rows, seed, device)?;
    for line in evaluation.lines() {
        report.line(&line)?;
    }
    if let Some(warning) = evaluation.readout.as_ref().and_then(readout::warning) {
        report.note(&warning);
    }
    let measure = || args.likelihood.measure(dbn, &rows, seed, device);
    let likelihood = args.likelihood.log_likelihood.then(measure).transpose()?;
    for line in likelihood.iter().flat_map(|likelihood| likelihood.lines()) {
        report.line(&line)?;
    }
    report.finish(json!({
        "model": args.model.model,
        "data": data.name,
        "accuracy_features": evaluation.readout.as_ref().map(|r| r.accuracy_features),
        "accuracy_pixels": evaluation.readout.as_ref().map(|r| r.accuracy_pixels),
        "evaluation": evaluation,
        "log_likelihood": likelihood,
    }))?;
    Ok(Outcome::Done)
}

/// Of a network with labels, what up-down says at its end.
fn evaluate_labelled(args: &EvaluateArgs, dbn: &LabelledDbn) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let classes = Some(dbn.config().classes());
    let (data, _) = Data::of_model(&args.data, &args.model.model, classes, args.seed)?;
    let test = data.measured_on();
    ensure!(
        test.0.labels.is_some(),
        "--data: rows must have labels for a network with labels, got none in {}; {}",
        data.name,
        data.label_them()
    );
    let evaluation = up_down::Evaluation::of(dbn, test)?;
    report.line(&evaluation.line())?;
    report.finish(json!({
        "model": args.model.model,
        "data": data.name,
        "layers": sizes::of_labelled(dbn.config()),
        "accuracy": evaluation.accuracy,
        "evaluation": evaluation,
    }))?;
    Ok(Outcome::Done)
}
