//! A noisy photograph denoised with a dictionary that is learned from it, by rule and `ñ`.
use crate::bench::paper::{Cell, Paper, Table};
use crate::bench::place::Place;
use anyhow::{Context, Result};
use candle::Tensor;
use chandlery::Philox;
use chandlery::dictionary::UpdateRule;
use chandlery::dictionary::image::{Denoise, ImageTrainer, ImageTraining, denoise, psnr};
use chandlery_datasets::embedded::natural_images;
use chandlery_ops::core::normal;
use std::time::Instant;

/// Deviation of the noise, in grey levels.
const SIGMA: f64 = 25.;
/// The largest value of a pixel.
const PEAK: f64 = 255.;

/// The rules of the paper, and those that it compares itself with.
const RULES: [(&str, UpdateRule); 5] = [
    ("AK-SVD", UpdateRule::AkSvd),
    ("SGK", UpdateRule::Sgk),
    ("NSGK", UpdateRule::Nsgk),
    ("K-SVD", UpdateRule::Ksvd),
    ("MOD", UpdateRule::Mod),
];

pub fn make(paper: &mut Paper) -> Result<()> {
    let place = Place::whole(paper.device());
    // The camera man's head and camera, and on a GPU all of him.
    let (side, iterations) = match (paper.quick(), place.device.is_cpu()) {
        (true, _) => (96, 3),
        (false, true) => (192, 10),
        (false, false) => (512, 10),
    };
    let images = natural_images()?;
    let image = images.images().first().context("no photograph")?;
    let levels: Vec<f32> = image.to_f32().into_iter().map(|x| 255. * x).collect();
    let plane = Tensor::from_vec(levels, (image.height(), image.width()), &place.device)?;
    let corner = |length: usize| (length - side) / 2;
    let clean = plane
        .narrow(0, corner(image.height()), side)?
        .narrow(1, corner(image.width()), side)?
        .contiguous()?;
    let noise = normal(clean.shape(), &place.device, Philox::new(16, 9))?;
    let noisy = (&clean + (noise * SIGMA)?)?;
    let training = |rule, group| ImageTraining {
        rule,
        group,
        iterations,
        n_patches: 40_000,
        ..ImageTraining::default()
    };
    let n = ImageTraining::default().n_atoms;
    let groups: &[usize] = if paper.quick() { &[1, n] } else { &[1, 4, 16, 64, n] };

    let title = format!(
        "Denoising: {side}×{side} pixels of `{}`, noise of {SIGMA} grey levels, {n} atoms",
        image.name()
    );
    let mut table = Table::new(title, &["rule", "ñ", "learning", "PSNR, dB", "atoms of a patch"]);
    table.row(vec![
        Cell::text("the noisy image"),
        Cell::none(),
        Cell::none(),
        Cell::number(psnr(&noisy, &clean, PEAK)?, 2),
        Cell::none(),
    ]);
    let settings = Denoise::new(SIGMA);
    let mut denoised = |name: &str, group: Option<usize>, training: &ImageTraining| -> Result<()> {
        let began = Instant::now();
        let mut trainer =
            ImageTrainer::noisy(std::slice::from_ref(&noisy), &settings, training, Philox::new(16, 10))?;
        while trainer.step()?.is_some() {}
        place.device.synchronize()?;
        let seconds = began.elapsed().as_secs_f64();
        let restored = denoise(&noisy, trainer.dictionary().atoms(), &settings)?;
        let group = Cell::or_none(group, |group| Cell::number(group as f64, 0));
        let decibels = Cell::number(psnr(&restored.image, &clean, PEAK)?, 2);
        let count = Cell::number(restored.mean_count, 2);
        table.row(vec![Cell::text(name), group, Cell::seconds(seconds), decibels, count]);
        Ok(())
    };
    denoised(
        "no learning: cosines",
        None,
        &ImageTraining { iterations: 0, ..training(UpdateRule::AkSvd, n) },
    )?;
    for (name, rule) in RULES {
        // MOD solves for all at once.
        let groups = if rule == UpdateRule::Mod { &[n][..] } else { groups };
        for &group in groups {
            let name = if group == n && n > 1 { format!("P-{name}") } else { name.to_owned() };
            denoised(&name, Some(group), &training(rule, group))?;
        }
    }
    table.note(format!(
        "on {}; {iterations} iterations over up to 40,000 patches of 8×8 from one start, `--rule` and `--group` of `dictionary-learning denoise`; names with P- update all atoms at once",
        place.name()
    ));
    table.note("the paper gives no figures; it names noise removal as a use of such dictionaries");
    paper.table(table)
}
