//! The README.md of a fine-tuned network's folder: a model card.
use super::super::draw::Picture;
use super::measure::Measured;
use super::{RunInfo, noun, sizes};
use crate::report::seconds;
use chandlery::feedforward::{Activation, FeedforwardConfig, Task};
use std::fmt::Write;

/// What a model card is made from.
pub(super) struct Card<'a> {
    pub info: &'a RunInfo,
    pub network: &'a FeedforwardConfig,
    /// How many rows of what there were.
    pub data: &'a str,
    /// Rows learned from.
    pub n_train: usize,
    pub device: &'a str,
    pub seconds: f64,
    /// Epochs that were run, and the one whose weights these are, where that is not the last.
    pub epochs: usize,
    pub best_epoch: Option<usize>,
    pub measured: &'a Measured,
    pub pictures: &'a [Picture],
}

impl Card<'_> {
    /// The card as Markdown, with the header that the Hugging Face hub reads.
    pub fn text(&self) -> String {
        let kind = match self.network.task {
            Task::Classify => "image-classification",
            Task::Autoencode { .. } => "autoencoder",
        };
        let mut text = format!(
            "---\nlibrary_name: candle\ntags:\n- chandlery\n- deep-belief-network\n- fine-tuned\n- {kind}\n---\n\n"
        );
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut impl Write) -> std::fmt::Result {
        let Self { info, network, measured, .. } = self;
        let settings = &info.settings;
        let noun = noun(network);
        writeln!(out, "# Deep {noun} {}\n", sizes(network))?;
        match settings.from_scratch {
            true => writeln!(
                out,
                "Trained by backpropagation from random weights, in the shape of `{}`,",
                info.model
            )?,
            false => writeln!(
                out,
                "Pre-trained without labels (`{}`) and fine-tuned by backpropagation",
                info.model
            )?,
        }
        writeln!(out, "on {} rows of `{}`: {}.\n", self.n_train, info.data.data, self.data)?;
        writeln!(out, "```sh\n{}\n```\n", info.command)?;
        writeln!(
            out,
            "Chandlery {}, seed {}, {} epochs in minibatches of {}, on {}, {} in all.",
            info.version,
            settings.seed,
            self.epochs,
            settings.batch,
            self.device,
            seconds(self.seconds)
        )?;
        if let Some(best) = self.best_epoch {
            writeln!(out, "The weights are those after epoch {}, the best for held-out rows.", best + 1)?;
        }
        writeln!(out, "\n## Results\n\n| measured on {} test rows | |\n|---|---|", measured.n_test)?;
        if let (Some(error), Some(errors)) = (measured.test_error, measured.test_errors) {
            writeln!(out, "| rows misclassified | **{:.2} %** ({errors}) |", 100. * error)?;
        }
        if let Some(error) = measured.test_squared_error {
            writeln!(out, "| squared error of the reconstruction, summed over inputs | **{error:.3}** |")?;
        }
        if let (Some(error), Some(n)) = (measured.pca_squared_error, measured.pca_components) {
            writeln!(out, "| the same with {n} principal components | {error:.3} |")?;
        }
        writeln!(out, "\n| layer | inputs | outputs | activation |\n|---|---|---|---|")?;
        for (i, layer) in network.layers.iter().enumerate() {
            let activation = match layer.activation {
                Activation::Identity => "none",
                Activation::Sigmoid => "sigmoid",
                Activation::Relu => "rectified",
                Activation::Tanh => "tanh",
            };
            writeln!(out, "| {} | {} | {} | {activation} |", i + 1, layer.n_inputs, layer.n_outputs)?;
        }
        writeln!(out, "\n![learning curves](curves.svg)")?;
        for Picture { file, caption } in self.pictures {
            writeln!(out, "\n![{caption}]({file})\n\n*{file}*: {caption}.")?;
        }
        let (call, what) = match network.task {
            Task::Classify => ("predict", "classes"),
            Task::Autoencode { .. } => ("encode", "codes"),
        };
        let units = match network.visible.is_gaussian() {
            true => format!("stored values times {}", network.input_scale),
            false => "between 0 and 1".to_owned(),
        };
        writeln!(
            out,
            "\n## Use\n\n```rust\nlet network = chandlery::feedforward::Feedforward::from_pretrained(\"this/folder\", \
             &candle::Device::Cpu)?;\nlet {what} = network.{call}(&rows)?; // rows: [batch, {}] f32, {units}\n```\n\n\
             `layers.N.weight` and `layers.N.bias` in `model.safetensors` load as `candle_nn::Linear` and\n\
             `torch.nn.Linear`.",
            network.n_inputs()
        )
    }
}
