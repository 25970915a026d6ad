//! The README.md of a run folder: a model card.
use super::draw;
use super::measure::Measure;
use super::restore_args::ImageDictionaryArgs;
use super::train::RunInfo;
use crate::report::seconds;
use chandlery::dictionary::DictionaryConfig;
use std::fmt::Write;
use std::path::Path;

/// What the Hugging Face hub reads.
const HEADER: &str = "---\nlibrary_name: candle\ntags:\n- chandlery\n- dictionary-learning\n- sparse-coding\n- unsupervised\n---\n\n";

/// What a model card is made from.
pub struct Card<'a> {
    pub info: &'a RunInfo,
    pub config: &'a DictionaryConfig,
    /// How many signals of what there were, and the unit of their errors.
    pub data: &'a str,
    pub unit: &'a str,
    pub device: &'a str,
    pub seconds: f64,
    pub before: &'a Measure,
    pub after: &'a Measure,
    pub coherence: f64,
    /// Atoms in the picture, where there is one.
    pub pictured: Option<usize>,
}

impl Card<'_> {
    /// The card as Markdown, with the header that the Hugging Face hub reads.
    pub fn text(&self) -> String {
        let mut text = HEADER.to_owned();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut impl Write) -> std::fmt::Result {
        let Self { info, config, data, unit, device, before, after, .. } = self;
        let settings = &info.settings;
        let how = match settings.online {
            Some(batch) => format!("online, in minibatches of {batch}"),
            None => format!("by {}", name_of(&settings.rule)),
        };
        let end = settings.error.map_or_else(String::new, |rms| format!(" to an error of {rms} {unit}"));
        writeln!(out, "# Dictionary of {} atoms, {} values each\n", config.n_atoms, config.n_features)?;
        writeln!(out, "Learned {how} on `{}`: {data}.\n", info.signals.data)?;
        writeln!(out, "```sh\n{}\n```\n", info.command)?;
        writeln!(
            out,
            "Chandlery {}, seed {}, {} iterations, codes of up to {} atoms by {}{end}, on {device}, {} in all.\n",
            info.version,
            settings.seed,
            settings.iterations,
            settings.nonzero,
            name_of(&settings.method()),
            seconds(self.seconds)
        )?;
        writeln!(out, "## Results\n\n| on all signals | first dictionary | this one |\n|---|---|---|")?;
        writeln!(out, "| root mean square error, {unit} | {:.4} | **{:.4}** |", before.rmse, after.rmse)?;
        writeln!(out, "| atoms a code | {:.2} | {:.2} |", before.mean_count, after.mean_count)?;
        writeln!(out, "| atoms used | {} | {} of {} |", before.used, after.used, config.n_atoms)?;
        writeln!(out, "| largest cosine of two atoms | | {:.3} |", self.coherence)?;
        writeln!(out, "\n![root mean square error by iteration](curves.svg)")?;
        if let Some(n) = self.pictured {
            write_picture(out, n)?;
        }
        write_use(out, config)
    }
}

/// What the model card of an image's dictionary is made from.
pub struct ImageCard<'a> {
    /// The command line.
    pub command: &'a str,
    /// What was done to the image: `denoised`, `filled in`.
    pub done: &'a str,
    pub image: &'a Path,
    pub args: &'a ImageDictionaryArgs,
    /// Iterations that were made; without any the atoms are still those of the cosine transform.
    pub iterations: usize,
    pub config: &'a DictionaryConfig,
    pub device: &'a str,
    pub seconds: f64,
    /// PSNR before and after, where there was something to measure against.
    pub psnr: Option<[f64; 2]>,
    pub mean_count: f64,
    /// Atoms in the picture.
    pub pictured: usize,
}

impl ImageCard<'_> {
    /// The card as Markdown, with the header that the Hugging Face hub reads.
    pub fn text(&self) -> String {
        let mut text = HEADER.to_owned();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut impl Write) -> std::fmt::Result {
        let Self { args, config, image, done, .. } = self;
        writeln!(out, "# Dictionary of {} atoms, {} values each\n", config.n_atoms, config.n_features)?;
        match self.iterations {
            0 => writeln!(
                out,
                "The overcomplete cosine transform, with which `{}` was {done}.\n",
                image.display()
            )?,
            _ => writeln!(
                out,
                "Learned by {} from patches of `{}`, which was {done} with it.\n",
                name_of(&args.rule),
                image.display()
            )?,
        }
        writeln!(out, "```sh\n{}\n```\n", self.command)?;
        writeln!(
            out,
            "Chandlery {}, seed {}, {} iterations over up to {} patches, on {}, {} in all.\n",
            env!("CARGO_PKG_VERSION"),
            args.seed,
            self.iterations,
            args.patches,
            self.device,
            seconds(self.seconds)
        )?;
        writeln!(out, "## Results\n")?;
        if let Some([before, after]) = self.psnr {
            writeln!(out, "PSNR {before:.2} dB → {after:.2} dB, {:.2} atoms a patch.", self.mean_count)?;
        } else {
            writeln!(out, "{:.2} atoms a patch.", self.mean_count)?;
        }
        write_picture(out, self.pictured)?;
        write_use(out, config)
    }
}

/// The picture of `n` atoms.
fn write_picture(out: &mut impl Write, n: usize) -> std::fmt::Result {
    let caption = draw::caption(n);
    writeln!(out, "\n![{caption}](dictionary.png)\n\n*dictionary.png*: {caption}.")
}

/// How the dictionary is used.
fn write_use(out: &mut impl Write, config: &DictionaryConfig) -> std::fmt::Result {
    let mean = if config.remove_mean { ", each without its mean" } else { "" };
    writeln!(
        out,
        "\n## Use\n\n```rust\nlet dictionary = chandlery::dictionary::Dictionary::from_pretrained(\"this/folder\", &candle::Device::Cpu)?;\n\
         let codes = dictionary.encode(&rows)?; // rows: [m, {}] f32{mean}\nlet back = dictionary.decode(&codes)?;\n```\n\n\
         `model.safetensors` holds `dictionary`, `[n_atoms, n_features]`, rows of norm 1.",
        config.n_features
    )
}

/// A choice as the command line has it.
pub fn name_of(choice: &impl clap::ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
