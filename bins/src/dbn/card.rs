//! The model card of a deep belief network.
use super::args::{Hidden, Settings};
use super::measure::Evaluation;
use crate::options::DataArgs;
use crate::rows::Data;
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use crate::sizes;
use anyhow::Result;
use chandlery::dbn::DbnConfig;
use chandlery::rbm::RbmConfig;
use chandlery_datasets::count;
use std::fmt::Write;

/// The card of a network that was trained on `data`.
pub fn of<'a>(
    dbn: &DbnConfig,
    input: &DataArgs,
    data: &Data,
    settings: &Settings,
    evaluation: &Evaluation,
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let mut results = String::new();
    // Writing to a String cannot fail.
    let _ = write_results(dbn, evaluation, &mut results);
    Ok(Card {
        tags: &["deep-belief-network", "unsupervised"],
        title: format!("Deep belief network {}", sizes::of_network(dbn)),
        learned: format!(
            "Trained without labels, layer by layer, by contrastive divergence on `{}`: {}.",
            input.data,
            data.words()
        ),
        settings: format!(
            "{}, {} per layer{} in minibatches of {}",
            count(sizes::n_parameters_of(dbn), "parameter"),
            count(settings.n_epochs(), "epoch"),
            settings.converge.words(),
            settings.n_batch()
        ),
        results,
        pictures,
        rust: format!(
            "use chandlery::{{Encode, Model}};\n\
             let dbn = chandlery::dbn::Dbn::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let features = dbn.encode(&rows)?; // rows: [batch, {}], {}",
            dbn.n_inputs(),
            scale_of(&data.train, &dbn.preparation)?
        ),
        files: files(dbn, settings),
    })
}

fn write_results(dbn: &DbnConfig, evaluation: &Evaluation, out: &mut impl Write) -> std::fmt::Result {
    writeln!(out, "| measured on {} | |\n|---|---|", evaluation.measured_on)?;
    if let Some(readout) = &evaluation.readout {
        writeln!(
            out,
            "| linear classifier on the hidden means of all layers ({}) | **{:.2} %** |\n\
             | linear classifier on the top layer alone | {:.2} % |\n\
             | linear classifier on raw inputs ({}) | {:.2} % |",
            readout.n_features,
            100. * readout.accuracy_features,
            100. * readout.accuracy_top,
            readout.n_pixels,
            100. * readout.accuracy_pixels
        )?;
    }
    writeln!(
        out,
        "| squared error of the reconstruction, summed over inputs | {:.3} |",
        evaluation.reconstruction_error
    )?;
    if let Some(gap) = evaluation.free_energy_gap {
        let rows = evaluation.measured_on.rows();
        writeln!(out, "| free energy of the lowest layer, {rows} minus training rows | {gap:.2} nats |")?;
    }
    if let Some(likelihood) = evaluation.pseudo_likelihood {
        writeln!(out, "| pseudo-log-likelihood of the lowest layer | {likelihood:.1} nats per row |")?;
    }
    if let Some(readout) = &evaluation.readout {
        writeln!(
            out,
            "\nThe classifier is multinomial logistic regression. It was fitted in the same way to the features and to the raw \
             inputs of {}, and measured on {}.",
            count(readout.n_train, "training row"),
            evaluation.measured_on.count(readout.n_test)
        )?;
    }
    writeln!(
        out,
        "\n| layer | visible units | hidden units | what it is | read by each hidden unit | parameters |\n|---|---|---|---|---|---|"
    )?;
    for (i, layer) in dbn.layers.iter().enumerate() {
        writeln!(
            out,
            "| {} | {} {:?} | {} {:?} | {} | {} | {} |",
            i + 1,
            layer.n_visible,
            layer.visible,
            layer.n_hidden,
            layer.hidden,
            sizes::of_layer(layer),
            count(seen(layer), "input"),
            layer.n_parameters()
        )?;
    }
    writeln!(out, "\n![learning curves](curves.svg)")
}

/// Values that one hidden unit sees: as many as it has weights.
fn seen(layer: &RbmConfig) -> usize {
    layer.weight_shape().last().copied().unwrap_or_default()
}

/// What the tensors of the model's file are.
fn files(dbn: &DbnConfig, settings: &Settings) -> String {
    let mean = match settings.hidden_unit {
        Hidden::Bernoulli => "the sigmoid of its output",
        Hidden::Rectified => "the positive part of its output",
        Hidden::Gaussian => "its output",
    };
    let others = sizes::of_weights(
        dbn.layers.iter().any(|layer| layer.patch_grid().is_some()),
        dbn.layers.iter().any(|layer| layer.filter_grid().is_some()),
    );
    format!(
        "`layers.N.weight` and `layers.N.bias` in `model.safetensors` load as `candle_nn::Linear` and\n\
         `torch.nn.Linear`; the hidden means are {mean}.{others}"
    )
}
