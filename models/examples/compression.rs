//! Compression: an image as a few atoms and rounded coefficients for each of its 8×8 blocks.
//!
//! A wall of bricks takes fewer bits with atoms that were learned from another part of it than with
//! cosines. (A photograph of a man takes a tenth more: cosines of low frequency are used most, so
//! that their numbers take fewer bits.)
//!
//! ```sh
//! cargo run -p chandlery --example compression
//! ```
use candle::{DType, Device, Result, Tensor};
use chandlery::Philox;
use chandlery::datasets::embedded::natural_images;
use chandlery::dictionary::image::{PatchGrid, psnr, random_patches};
use chandlery::dictionary::{
    CodeError, Dictionary, DictionaryConfig, DictionaryTrainConfig, SparseCodes, overcomplete_dct,
};
use std::collections::BTreeMap;

const SIDE: usize = 8;
const ATOMS: usize = 256;
/// Coefficients are rounded to multiples of this, in grey levels.
const STEP: f64 = 16.;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let images = natural_images()?;
    let image = images.images().iter().find(|image| image.name() == "brick").ok_or("no bricks")?;
    let levels: Vec<f32> = image.to_f32().into_iter().map(|x| 255. * x).collect();
    let plane = Tensor::from_vec(levels, (image.height(), image.width()), &Device::Cpu)?;
    // Learned from the upper half, which whoever decodes must have too; the lower half is coded.
    let half = |first| plane.narrow(0, first, 256)?.contiguous();
    let (upper, lower) = (half(0)?, half(256)?);
    // Blocks may keep a root mean square error of 6 grey levels.
    let config = DictionaryConfig {
        error: Some(CodeError::Absolute(6. * SIDE as f64)),
        ..DictionaryConfig::new(ATOMS, SIDE * SIDE, 24)
    };
    let patches = random_patches(&[upper], SIDE, 10_000, Philox::new(0, 0))?;
    let patches = patches.broadcast_sub(&patches.mean_keepdim(1)?)?;
    let training = DictionaryTrainConfig { iterations: 10, ..DictionaryTrainConfig::default() };
    let learned = Dictionary::fit(config.clone(), &patches, training, Philox::new(0, 1))?;
    let cosines = Dictionary::from_tensor(config, overcomplete_dct(ATOMS, SIDE)?.to_dtype(DType::F32)?)?;

    let mut made = vec![];
    for (name, dictionary) in [("cosines", &cosines), ("learned", &learned)] {
        let (bits_per_pixel, decibels) = compressed(&lower, dictionary)?;
        println!("{name}: {bits_per_pixel:.3} bits a pixel, {decibels:.2} dB");
        made.push((bits_per_pixel, decibels));
    }
    let ((cosines, worse), (learned, better)) = (made[0], made[1]);
    println!(
        "8 bits a pixel before; learned atoms save {:.0} % of the cosines'",
        100. * (1. - learned / cosines)
    );
    assert!(learned < 0.9 * cosines && better > worse && better > 35.);
    Ok(())
}

/// Bits a pixel that an arithmetic coder would take, and the quality of what is decoded.
fn compressed(plane: &Tensor, dictionary: &Dictionary) -> Result<(f64, f64)> {
    let (height, width) = plane.dims2()?;
    let grid = PatchGrid::new(height, width, SIDE, SIDE)?;
    let blocks = grid.rows(plane, 0..grid.tops().len())?;
    let means = blocks.mean_keepdim(1)?.round()?;
    let codes = dictionary.config().coder().encode(&blocks.broadcast_sub(&means)?, dictionary.atoms())?;
    let steps = (&codes.values / STEP)?.round()?;

    let (atoms, values) = (codes.indices.to_vec2::<u32>()?, steps.to_vec2::<f32>()?);
    let counts = codes.count.to_vec1::<u32>()?;
    let used = |i: usize| counts[i] as usize;
    let atoms = atoms.iter().enumerate().flat_map(|(i, row)| row[..used(i)].iter().map(|&a| i64::from(a)));
    let values = values.iter().enumerate().flat_map(|(i, row)| row[..used(i)].iter().map(|&x| x as i64));
    let means_of = means.flatten_all()?.to_vec1::<f32>()?;
    let bits = entropy(atoms)
        + entropy(values)
        + entropy(counts.iter().map(|&count| i64::from(count)))
        + entropy(means_of.iter().map(|&mean| mean as i64));

    let rounded = SparseCodes { values: (steps * STEP)?, ..codes };
    let decoded = rounded.reconstruct(dictionary.atoms())?.broadcast_add(&means)?;
    let image = grid.sum(&decoded, 0..grid.tops().len())?; // blocks do not overlap
    Ok((bits / (height * width) as f64, psnr(&image, plane, 255.)?))
}

/// Bits for all symbols, each by its share.
fn entropy(symbols: impl Iterator<Item = i64>) -> f64 {
    let mut counts = BTreeMap::<i64, f64>::new();
    symbols.for_each(|symbol| *counts.entry(symbol).or_default() += 1.);
    let n: f64 = counts.values().sum();
    counts.values().map(|count| count * (n / count).log2()).sum()
}
