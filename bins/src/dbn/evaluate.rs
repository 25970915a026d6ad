//! The command `evaluate`: how good a saved network is.
use super::args::EvaluateArgs;
use super::measure::{Evaluation, reconstruction_error};
use super::saved::Saved;
use super::up_down;
use crate::fine_tune::measure::Measured;
use crate::ranks::{self, Ranks};
use crate::readout::{self, Rows};
use crate::report::{Outcome, Report};
use crate::rows::{Data, agree};
use crate::sizes;
use anyhow::{Result, ensure};
use candle::Device;
use chandlery::dbn::Dbn;
use chandlery::feedforward::{Feedforward, Task};
use chandlery::labelled::LabelledDbn;
use serde_json::json;

/// The command `evaluate`.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let (ranks, device) = ranks::join(&args.ranks, &args.common)?;
    let saved = Saved::load(&args.model.model, &device)?;
    if !matches!(saved, Saved::Plain(_)) && args.likelihood.log_likelihood {
        return Err(saved.refused(&args.model.model, "evaluate --log-likelihood"));
    }
    match saved {
        Saved::Plain(dbn) => evaluate_plain(args, &ranks, &dbn, &device),
        Saved::Labelled(dbn) => evaluate_labelled(args, &ranks, &dbn),
        Saved::Classifier(network) | Saved::Autoencoder(network) => {
            evaluate_fine_tuned(args, &ranks, &network)
        }
    }
}

/// Of a fine-tuned network, what fine-tuning says at its end.
fn evaluate_fine_tuned(args: &EvaluateArgs, ranks: &Ranks, network: &Feedforward) -> Result<Outcome> {
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
    agree(ranks, [test.0])?;
    let measured = Measured::of(ranks, network, &train, test)?;
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

/// Of a network without labels: everything that its rows allow. Ranks share the reconstructions and
/// the chains of annealing; the other figures are those of rank 0.
fn evaluate_plain(args: &EvaluateArgs, ranks: &Ranks, dbn: &Dbn, device: &Device) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    args.likelihood.check(dbn)?;
    let (data, seed) = Data::of_model(&args.data, &args.model.model, None, args.seed)?;
    let (test, measured_on) = data.measured_on();
    let rows = Rows { train: data.not_measured(), test, measured_on, n_classes: data.n_classes };
    agree(ranks, data.not_measured().into_iter().chain([test]))?;
    let error = reconstruction_error(ranks, dbn, test, device)?;
    let of_first = || Evaluation::of(dbn, &rows, error, seed, device);
    let evaluation = ranks.is_first().then(of_first).transpose()?;
    for line in evaluation.iter().flat_map(Evaluation::lines) {
        report.line(&line)?;
    }
    let readout = evaluation.as_ref().and_then(|evaluation| evaluation.readout.as_ref());
    if let Some(warning) = readout.and_then(readout::warning) {
        report.note(&warning);
    }
    let measure = || args.likelihood.measure(&ranks.group(device)?, dbn, &rows, seed, device);
    let likelihood = args.likelihood.log_likelihood.then(measure).transpose()?;
    ranks.first_goes_on();
    for line in likelihood.iter().flat_map(|likelihood| likelihood.lines()) {
        report.line(&line)?;
    }
    report.finish(json!({
        "model": args.model.model,
        "data": data.name,
        "accuracy_features": readout.map(|r| r.accuracy_features),
        "accuracy_pixels": readout.map(|r| r.accuracy_pixels),
        "evaluation": evaluation,
        "log_likelihood": likelihood,
    }))?;
    Ok(Outcome::Done)
}

/// Of a network with labels, what up-down says at its end.
fn evaluate_labelled(args: &EvaluateArgs, ranks: &Ranks, dbn: &LabelledDbn) -> Result<Outcome> {
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
    agree(ranks, [test.0])?;
    let evaluation = up_down::Evaluation::of(ranks, dbn, test)?;
    ranks.first_goes_on();
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
