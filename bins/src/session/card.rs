//! The README.md of a run folder: a model card, as the Hugging Face hub reads it.
use crate::report::seconds;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery_datasets::{Preparation, Split, count};
use std::fmt::Write;

/// A picture in a run folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Its name.
    pub file: String,
    /// What it shows.
    pub caption: String,
}

/// Rows whose range a card tells.
const SHOWN: usize = 1000;

/// How raw rows are handed to a model that learned from rows of `split`, so that it reads what it
/// read in training: the type, and the scale of its numbers.
///
/// # Errors
/// When a row cannot be read.
pub fn scale_of(split: &Split, preparation: &Preparation) -> Result<String> {
    scale_of_rows(&split.take(SHOWN)?.raw(&Device::Cpu)?, preparation)
}

/// The same of rows as they are stored, `[n, n_inputs]`.
///
/// # Errors
/// When the device fails.
pub fn scale_of_rows(raw: &Tensor, preparation: &Preparation) -> Result<String> {
    if raw.dtype() == DType::U8 {
        let scale = preparation.byte_scale();
        return Ok(match scale {
            1. => "raw: u8 as stored, or f32 of the same numbers".to_owned(),
            scale if (scale * 255. - 1.).abs() < 1e-6 => {
                "raw: u8 as stored, or f32 of the same numbers over 255".to_owned()
            }
            scale => format!("raw: u8 as stored, or f32 of the same numbers times {scale}"),
        });
    }
    let first = raw.narrow(0, 0, raw.dim(0)?.min(SHOWN))?.to_dtype(DType::F64)?;
    if first.elem_count() == 0 {
        return Ok("raw: f32, the numbers of the data, not scaled".to_owned());
    }
    let (least, most) = (first.min_all()?.to_scalar::<f64>()?, first.max_all()?.to_scalar::<f64>()?);
    Ok(format!(
        "raw: f32, the numbers of the data, not scaled ({} to {} in its first {})",
        least as f32,
        most as f32,
        count(first.dim(0)?, "row")
    ))
}

/// What a model card says of its own; how the model was made is the same for all.
#[derive(Debug, Clone, Default)]
pub struct Card<'a> {
    /// For the hub, beside `chandlery`.
    pub tags: &'a [&'a str],
    /// What the model is.
    pub title: String,
    /// What it was learned from, a paragraph.
    pub learned: String,
    /// How long, between the seed and the device: `60 epochs per layer in minibatches of 100`.
    pub settings: String,
    /// Markdown under the head `Results`, and what follows before the pictures.
    pub results: String,
    /// The pictures.
    pub pictures: &'a [Picture],
    /// Lines of Rust that use the model.
    pub rust: String,
    /// How its files are read elsewhere, a paragraph.
    pub files: String,
}

/// How a model was made.
#[derive(Debug, Clone, Copy)]
pub struct Made<'a> {
    /// Version of the program.
    pub version: &'a str,
    /// The command line.
    pub command: &'a str,
    /// Seed of its random draws.
    pub seed: u64,
    /// Where it was computed.
    pub device: &'a str,
    /// How long it took.
    pub seconds: f64,
}

impl Card<'_> {
    /// The card as Markdown.
    pub fn text(&self, made: &Made<'_>) -> String {
        let mut text = String::from("---\nlibrary_name: candle\ntags:\n- chandlery\n");
        // Writing to a String cannot fail.
        let _ = self.write(made, &mut text);
        text
    }

    fn write(&self, made: &Made<'_>, out: &mut impl Write) -> std::fmt::Result {
        for tag in self.tags {
            writeln!(out, "- {tag}")?;
        }
        writeln!(out, "---\n\n# {}\n\n{}\n\n```sh\n{}\n```\n", self.title, self.learned, made.command)?;
        let Made { version, seed, device, .. } = made;
        let seconds = seconds(made.seconds);
        writeln!(
            out,
            "Chandlery {version}, seed {seed}, {}, on {device}, {seconds} in all.\n",
            self.settings
        )?;
        writeln!(out, "## Results\n\n{}", self.results.trim_end())?;
        for Picture { file, caption } in self.pictures {
            writeln!(out, "\n![{caption}]({file})\n\n*{file}*: {caption}.")?;
        }
        writeln!(out, "\n## Use\n\n```rust\n{}\n```\n\n{}", self.rust, self.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_its_header_the_command_and_the_pictures() {
        let pictures = [Picture { file: "a.png".into(), caption: "an a".into() }];
        let card = Card {
            tags: &["x"],
            title: "T".into(),
            learned: "From rows.".into(),
            settings: "3 epochs".into(),
            results: "| a |\n".into(),
            pictures: &pictures,
            rust: "let a = 1;".into(),
            files: "Files.".into(),
        };
        let made = Made { version: "0.1.0", command: "x --y", seed: 7, device: "cpu", seconds: 2. };
        assert_eq!(
            card.text(&made),
            "---\nlibrary_name: candle\ntags:\n- chandlery\n- x\n---\n\n# T\n\nFrom rows.\n\n```sh\nx --y\n```\n\n\
             Chandlery 0.1.0, seed 7, 3 epochs, on cpu, 2.0 s in all.\n\n## Results\n\n| a |\n\n![an a](a.png)\n\n\
             *a.png*: an a.\n\n## Use\n\n```rust\nlet a = 1;\n```\n\nFiles.\n"
        );
    }
}
