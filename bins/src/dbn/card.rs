//! The README.md of a run folder: a model card.
use super::draw::Picture;
use super::evaluate::Evaluation;
use super::sizes;
use super::train::RunInfo;
use crate::report::seconds;
use chandlery::dbn::DbnConfig;
use std::fmt::Write;

/// What a model card is made from.
pub struct Card<'a> {
    pub info: &'a RunInfo,
    pub dbn: &'a DbnConfig,
    /// How many rows of what there were.
    pub data: &'a str,
    pub device: &'a str,
    pub seconds: f64,
    pub evaluation: &'a Evaluation,
    pub pictures: &'a [Picture],
}

impl Card<'_> {
    /// The card as Markdown, with the header that the Hugging Face hub reads.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "---\nlibrary_name: candle\ntags:\n- chandlery\n- deep-belief-network\n- unsupervised\n---\n\n",
        );
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut impl Write) -> std::fmt::Result {
        let Self { info, dbn, data, device, evaluation, .. } = self;
        let settings = &info.settings;
        writeln!(out, "# Deep belief network {}\n", sizes(dbn))?;
        writeln!(
            out,
            "Trained without labels, layer by layer, by contrastive divergence on `{}`: {data}.\n",
            info.data.data
        )?;
        writeln!(out, "```sh\n{}\n```\n", info.command)?;
        writeln!(
            out,
            "Chandlery {}, seed {}, {} epochs a layer in minibatches of {}, on {device}, {} in all.\n",
            info.version,
            settings.seed,
            settings.epochs,
            settings.batch,
            seconds(self.seconds)
        )?;
        writeln!(out, "| layer | visible units | hidden units | mean of |\n|---|---|---|---|")?;
        for (i, layer) in dbn.layers.iter().enumerate() {
            writeln!(
                out,
                "| {} | {} {:?} | {} {:?} | {} inputs |",
                i + 1,
                layer.n_visible,
                layer.visible,
                layer.n_hidden,
                layer.hidden,
                layer.n_visible
            )?;
        }
        writeln!(out, "\n## Results\n\n| measured on test rows | |\n|---|---|")?;
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
            "| squared error of the way up and down again, summed over inputs | {:.3} |\n\
             | free energy of the lowest layer, test minus training rows | {:.2} nats |",
            evaluation.reconstruction_error, evaluation.free_energy_gap
        )?;
        if let Some(likelihood) = evaluation.pseudo_likelihood {
            writeln!(out, "| pseudo-log-likelihood of the lowest layer | {likelihood:.1} nats a row |")?;
        }
        if let Some(readout) = &evaluation.readout {
            writeln!(
                out,
                "\nThe classifier is multinomial logistic regression, fitted alike to features and inputs of {} \
                 training rows and measured on {} others.",
                readout.n_train, readout.n_test
            )?;
        }
        writeln!(out, "\n![learning curves](curves.svg)")?;
        for Picture { file, caption } in self.pictures {
            writeln!(out, "\n![{caption}]({file})\n\n*{file}*: {caption}.")?;
        }
        writeln!(
            out,
            "\n## Use\n\n```rust\nlet dbn = chandlery::dbn::Dbn::from_pretrained(\"this/folder\", &candle::Device::Cpu)?;\n\
             let features = dbn.forward(&rows)?; // rows: [batch, {}] f32, {}\n```\n\n\
             `layers.N.weight` and `layers.N.bias` in `model.safetensors` load as `candle_nn::Linear` and\n\
             `torch.nn.Linear`; the hidden means are the {} of what it gives.",
            dbn.layers.first().map_or(0, |layer| layer.n_visible),
            self.units(),
            match settings.hidden_unit {
                super::args::Hidden::Bernoulli => "sigmoid",
                super::args::Hidden::Rectified => "positive part",
                super::args::Hidden::Gaussian => "values",
            }
        )
    }

    fn units(&self) -> String {
        match self.dbn.layers.first() {
            Some(layer) if layer.visible.is_gaussian() => {
                format!("stored values times {}", self.dbn.input_scale)
            }
            _ => "between 0 and 1".to_owned(),
        }
    }
}
