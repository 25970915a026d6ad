//! The model card of a fine-tuned network.
use super::measure::Measured;
use crate::args::fine_tune::FineTuneSettings;
use crate::rows::{Data, OfModel};
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use crate::sizes;
use anyhow::Result;
use chandlery::feedforward::{Activation, Connections, FeedforwardConfig, Task};
use chandlery_datasets::count;
use std::fmt::Write;

/// What was learned from, and for how long.
pub struct Learned<'a> {
    pub data: &'a Data,
    pub n_rows: usize,
    pub epochs: usize,
    /// The epoch whose weights these are, counted from 0, where that is not the last.
    pub best_epoch: Option<usize>,
}

/// The card of a fine-tuned network.
pub fn of<'a>(
    tags: [&'static [&'static str]; 2],
    network: &FeedforwardConfig,
    input: &OfModel,
    settings: &FineTuneSettings,
    learned: &Learned<'_>,
    measured: &Measured,
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let [of_classifiers, of_autoencoders] = tags;
    let (tags, call, what) = match network.task {
        Task::Classify => (of_classifiers, "predict", "classes"),
        Task::Autoencode { .. } => (of_autoencoders, "encode", "codes"),
    };
    let how = match settings.from_scratch {
        true => format!("Trained by backpropagation from random weights, in the shape of `{}`,", input.model),
        false => {
            format!("Pre-trained without labels (`{}`) and fine-tuned by backpropagation", input.model)
        }
    };
    let mut results = String::new();
    // Writing to a String cannot fail.
    let _ = write_results(network, learned, measured, &mut results);
    let any = |kind: fn(&Connections) -> bool| network.layers.iter().any(|layer| kind(&layer.connections));
    let scale = scale_of(&learned.data.train, &network.preparation)?;
    Ok(Card {
        tags,
        title: format!("Deep {} {}", sizes::noun(network), sizes::of_fine_tuned(network)),
        learned: format!(
            "{how}\non {} of `{}`: {}.",
            count(learned.n_rows, "row"),
            input.data.data,
            learned.data.words()
        ),
        settings: format!("{} in minibatches of {}", count(learned.epochs, "epoch"), settings.n_batch()),
        results,
        pictures,
        rust: format!(
            "use chandlery::{{Encode, Model}};\n\
             let network = chandlery::feedforward::Feedforward::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let {what} = network.{call}(&rows)?; // rows: [batch, {}], {scale}",
            network.n_inputs()
        ),
        files: format!(
            "`layers.N.weight` and `layers.N.bias` in `model.safetensors` load as `candle_nn::Linear` and\n\
             `torch.nn.Linear`.{}",
            sizes::of_weights(
                any(|sees| matches!(sees, Connections::Patches(_) | Connections::FromPatches(_))),
                any(|sees| matches!(sees, Connections::Filters(_) | Connections::FromFilters(_)))
            )
        ),
    })
}

fn write_results(
    network: &FeedforwardConfig,
    learned: &Learned<'_>,
    measured: &Measured,
    out: &mut impl Write,
) -> std::fmt::Result {
    if let Some(best) = learned.best_epoch {
        writeln!(
            out,
            "The weights are those after epoch {}, which had the lowest error on held-out rows.\n",
            best + 1
        )?;
    }
    writeln!(
        out,
        "| measured on {} | |\n|---|---|",
        measured.measured_on.count_with_warning(measured.n_test)
    )?;
    if let (Some(error), Some(errors)) = (measured.test_error, measured.test_errors) {
        writeln!(out, "| rows misclassified | **{:.2} %** ({errors}) |", 100. * error)?;
    }
    if let Some(error) = measured.test_squared_error {
        writeln!(out, "| squared error of the reconstruction, summed over inputs | **{error:.3}** |")?;
    }
    if let (Some(error), Some(n)) = (measured.pca_squared_error, measured.pca_components) {
        writeln!(out, "| the same with {} | {error:.3} |", count(n, "principal component"))?;
    }
    writeln!(out, "\n| layer | inputs | outputs | sees | activation |\n|---|---|---|---|---|")?;
    for (i, layer) in network.layers.iter().enumerate() {
        let activation = match layer.activation {
            Activation::Identity => "none",
            Activation::Sigmoid => "sigmoid",
            Activation::Relu => "rectified",
            Activation::Tanh => "tanh",
        };
        let sees = sizes::of_connections(layer);
        writeln!(out, "| {} | {} | {} | {sees} | {activation} |", i + 1, layer.n_inputs, layer.n_outputs)?;
    }
    writeln!(out, "\n![learning curves](curves.svg)")
}
