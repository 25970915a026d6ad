//! The model card of a dictionary that was learned from an image.
use crate::args::restore::ImageDictionaryArgs;
use crate::atoms::card::dictionary;
use crate::choices::name_of;
use crate::session::{Card, Picture};
use chandlery::dictionary::DictionaryConfig;
use chandlery_datasets::count;
use std::path::Path;

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
pub fn of<'a>(
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
