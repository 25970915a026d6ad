//! Model cards of dictionaries: of a run, and of one that was learned from an image.
use super::args::Settings;
use super::draw;
use super::measure::Measure;
use super::signals::Signals;
use crate::args::choices::name_of;
use crate::args::restore::ImageDictionaryArgs;
use crate::report::figure;
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use anyhow::Result;
use chandlery::dictionary::DictionaryConfig;
use chandlery_datasets::count;
use std::path::Path;

const TAGS: [&str; 3] = ["dictionary-learning", "sparse-coding", "unsupervised"];

/// How well dictionaries represent the signals.
pub struct Measured<'a> {
    /// The first one.
    pub before: &'a Measure,
    /// The one that was learned.
    pub after: &'a Measure,
    pub coherence: f64,
}

/// The card of a dictionary that was learned from `signals`.
pub fn of<'a>(
    config: &DictionaryConfig,
    signals: &Signals,
    settings: &Settings,
    measured: &Measured<'_>,
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let how = match settings.online {
        true => format!("online, in minibatches of {}", settings.batch),
        false => format!("by {}", name_of(&settings.rule())),
    };
    let unit = signals.unit();
    let end =
        settings.error.map_or_else(String::new, |rms| format!(", stopping at an error of {rms} {unit}"));
    let Measured { before, after, coherence } = measured;
    let scale = scale_of(&signals.split, &config.preparation)?;
    Ok(Card {
        learned: format!("Learned {how} on `{}`: {}.", signals.name, signals.words()),
        settings: format!(
            "{}{}, codes of up to {} by {}{end}",
            count(settings.epochs, "epoch"),
            match (settings.nonnegative_atoms, settings.is_nonnegative()) {
                (true, true) => ", atoms and coefficients of at least 0 (a nonnegative matrix factorisation)",
                (true, false) => ", atoms of at least 0",
                (false, true) => ", coefficients of at least 0",
                (false, false) => "",
            },
            count(settings.nonzero, "atom"),
            name_of(&settings.method())
        ),
        results: format!(
            "| on all signals | initial dictionary | this dictionary |\n|---|---|---|\n\
             | root mean square error, {unit} | {} | **{}** |\n\
             | atoms per code | {:.2} | {:.2} |\n\
             | atoms used | {} | {} of {} |\n\
             | largest cosine of two atoms | | {coherence:.3} |\n\n\
             ![root mean square error by epoch](curves.svg)",
            figure(before.rmse, 4),
            figure(after.rmse, 4),
            before.mean_count,
            after.mean_count,
            before.used,
            after.used,
            config.n_atoms
        ),
        ..dictionary(config, &scale, pictures)
    })
}

/// The restoration of an image with a dictionary.
pub struct RestoredImage<'a> {
    /// `denoised`, `filled in`.
    pub done: &'a str,
    pub image: &'a Path,
    /// Epochs of learning; after 0 the atoms are those of the cosine transform.
    pub epochs: usize,
    /// PSNR before and after, if the true image is known.
    pub psnr: Option<[f64; 2]>,
    pub mean_count: f64,
}

/// The card of a dictionary that was learned from an image.
pub fn of_image<'a>(
    config: &DictionaryConfig,
    args: &ImageDictionaryArgs,
    restored: &RestoredImage<'_>,
    pictures: &'a [Picture],
) -> Card<'a> {
    let RestoredImage { done, image, epochs, psnr, mean_count } = restored;
    let image = image.display();
    Card {
        learned: match epochs {
            0 => format!("The overcomplete cosine transform. `{image}` was {done} with it."),
            _ => format!(
                "Learned by {} from patches of `{image}`, which was {done} with it.",
                name_of(&args.rule)
            ),
        },
        settings: format!("{} over up to {}", count(*epochs, "epoch"), count(args.patches, "patch")),
        results: match psnr {
            Some([before, after]) => {
                format!("PSNR {before:.2} dB → {after:.2} dB, {mean_count:.2} atoms per patch.")
            }
            None => format!("{mean_count:.2} atoms per patch."),
        },
        // Patches are of grey levels, as bytes have them.
        ..dictionary(config, "raw: u8 grey levels, or f32 grey levels over 255", pictures)
    }
}

/// The picture of `n` atoms.
pub fn picture(n: usize) -> Picture {
    Picture { file: "dictionary.png".to_owned(), caption: draw::caption(n) }
}

/// What the cards of all dictionaries say.
fn dictionary<'a>(config: &DictionaryConfig, scale: &str, pictures: &'a [Picture]) -> Card<'a> {
    Card {
        tags: &TAGS,
        title: format!(
            "Dictionary of {}, {} each",
            count(config.n_atoms, "atom"),
            count(config.n_features, "value")
        ),
        pictures,
        rust: format!(
            "let dictionary = chandlery::dictionary::Dictionary::from_pretrained(\"this/folder\", &candle::Device::Cpu)?;\n\
             let codes = dictionary.encode(&rows)?; // rows: [m, {}], {scale}\nlet back = dictionary.decode(&codes)?; // as signals",
            config.n_inputs()
        ),
        files: "`model.safetensors` holds `dictionary`, `[n_atoms, n_features]`, rows of norm 1.".to_owned(),
        ..Card::default()
    }
}
