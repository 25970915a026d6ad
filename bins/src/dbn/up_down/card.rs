//! The README.md of a run folder of `up-down`: a model card.
use super::apply::Evaluation;
use super::{RunInfo, sizes};
use crate::dbn::draw::Picture;
use crate::report::seconds;
use chandlery::labelled::LabelledDbnConfig;
use std::fmt::Write;

/// What a model card is made from.
pub struct Card<'a> {
    pub info: &'a RunInfo,
    pub config: &'a LabelledDbnConfig,
    /// How many rows of what there were.
    pub data: &'a str,
    pub device: &'a str,
    pub seconds: f64,
    pub evaluation: &'a Evaluation,
    pub picture: Option<&'a Picture>,
}

impl Card<'_> {
    /// The card as Markdown, with the header that the Hugging Face hub reads.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "---\nlibrary_name: candle\ntags:\n- chandlery\n- deep-belief-network\n- generative\n---\n\n",
        );
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut impl Write) -> std::fmt::Result {
        let Self { info, config, data, device, evaluation, .. } = self;
        let settings = &info.up_down;
        writeln!(out, "# Deep belief network with labels, {}\n", sizes(config))?;
        writeln!(
            out,
            "Begun from `{}`, given {} label units, and trained on `{}` ({data}): the top layer with the labels, then all \
             weights by the up-down algorithm.\n",
            info.model, config.n_classes, info.data.data
        )?;
        writeln!(out, "```sh\n{}\n```\n", info.command)?;
        writeln!(
            out,
            "Chandlery {}, seed {}, {} epochs of the top layer and {} of all, in minibatches of {}, on {device}, {} in all.\n",
            info.version,
            settings.seed,
            settings.top_epochs,
            settings.epochs,
            settings.batch,
            seconds(self.seconds)
        )?;
        writeln!(
            out,
            "## Results\n\n| measured on {} test rows | |\n|---|---|\n\
             | classified by the lowest free energy of the top layer | **{:.2} %** |\n\
             | squared error of recognition up and generation down, summed over inputs | {:.3} |",
            evaluation.n_rows,
            100. * evaluation.accuracy,
            evaluation.reconstruction_error
        )?;
        if let Some(Picture { file, caption }) = self.picture {
            writeln!(out, "\n![{caption}]({file})\n\n*{file}*: {caption}.")?;
        }
        writeln!(
            out,
            "\n## Use\n\n```rust\nlet dbn = chandlery::labelled::LabelledDbn::from_pretrained(\"this/folder\", &candle::Device::Cpu)?;\n\
             let classes = dbn.predict(&rows)?; // rows: [batch, {}] f32, between 0 and 1\n\
             let sevens = dbn.sample(&labels, 1000, chandlery::Philox::new(0, 0))?; // labels: [n] u32, below {}\n```\n\n\
             `recognition.N` and `generative.N` in `model.safetensors` load as `candle_nn::Linear` and `torch.nn.Linear`,\n\
             upwards and downwards; units are the sigmoid of what they give.",
            config.sizes[0], config.n_classes
        )
    }
}
