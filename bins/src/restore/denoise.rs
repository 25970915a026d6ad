//! The command `denoise`.
use super::task::{
    Codes, Compared, Finished, Task, Wanted, draws, each_plane, folder_for, image_of, learn, planes_of,
    read_like, streams, training,
};
use crate::args::restore::DenoiseArgs;
use crate::device::describe;
use crate::report::{Outcome, Report};
use anyhow::{Result, ensure};
use candle::Tensor;
use chandlery::Philox;
use chandlery::dictionary::image::{
    Denoise, ImageTrainer, denoise_with_progress as denoise_plane, estimate_sigma,
};
use chandlery_ops::core::normal;
use serde_json::json;
use std::time::Instant;

/// Removes noise from an image.
pub fn denoise(args: &DenoiseArgs, codes: Codes) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let wanted = Wanted {
        image: &args.image,
        dictionary: &args.dictionary,
        default_side: 8,
        step: args.step,
        out: &args.out,
        comparison: args.comparison.as_deref(),
        common: &args.common,
    };
    let Task { device, dictionary, side, image } = Task::open(&wanted)?;
    let (_, height, width) = image.dims3()?;
    let (noisy, clean) = match (&args.clean, args.sigma) {
        (None, Some(sigma)) if args.add_noise => {
            (with_noise(&image, sigma, args.dictionary.seed)?, Some(image))
        }
        (None, _) => (image, None),
        (Some(path), _) => (image.clone(), Some(read_like(path, "--clean", &image)?)),
    };
    let folder = folder_for(&args.dictionary)?;

    let started = Instant::now();
    let planes = planes_of(&noisy.to_device(&device)?)?;
    let sigma = match args.sigma {
        Some(sigma) => sigma,
        None => estimated(&planes[0], args)?,
    };
    let settings = Denoise {
        gain: args.gain,
        blend: args.blend,
        step: args.step,
        method: args.pursuit.into(),
        penalty: codes.penalty(),
        ..Denoise::with_side(sigma, side)
    };
    report.line(&format!(
        "{}: {width}x{height}, {}, noise of {sigma:.4} grey levels{}, on {}",
        args.image.display(),
        if planes.len() == 3 { "colour" } else { "grey" },
        if args.sigma.is_none() { " (estimated)" } else { "" },
        describe(&device)
    ))?;
    let epochs = args.dictionary.epochs;
    let learned = dictionary.is_none() && epochs > 0;
    let began = Instant::now();
    let of_image = match dictionary {
        Some(dictionary) => dictionary.into(),
        None => {
            let training = training(&args.dictionary);
            let trainer = ImageTrainer::noisy(&planes, &settings, &training, draws(&args.dictionary))?;
            learn(trainer, epochs, "learning the dictionary")?
        }
    };
    let dictionary = &of_image.dictionary;
    let learned_in = if learned { began.elapsed().as_secs_f64() } else { 0. };
    let (restored, mean_count) =
        each_plane(&planes, |plane, show| denoise_plane(plane, dictionary.atoms(), &settings, show))?;
    let restored = image_of(&restored)?.to_device(&candle::Device::Cpu)?;
    let finished = Finished {
        done: "denoised",
        codes,
        wanted: &wanted,
        device: &device,
        side,
        atoms: dictionary.atoms(),
        n_nonzero: settings.n_nonzero,
        mean_count,
        epochs,
        learned,
        training_seconds: learned_in,
        seconds: started.elapsed().as_secs_f64(),
        folder,
    };
    let compared =
        Compared { before: ("noisy", &noisy), after: ("denoised", &restored), clean: clean.as_ref() };
    let own = json!({ "sigma": sigma, "sigma_estimated": args.sigma.is_none() });
    finished.finish(&report, &compared, own, || Ok(of_image.clone()))
}

/// Adds white noise, which is not cut off at 0 and 255: as the literature has it.
fn with_noise(image: &Tensor, sigma: f64, seed: u64) -> Result<Tensor> {
    let noise = normal(image.shape(), image.device(), Philox::new(seed, streams::NOISE))?;
    Ok((image + (noise * sigma)?)?)
}

fn estimated(plane: &Tensor, args: &DenoiseArgs) -> Result<f64> {
    let sigma = estimate_sigma(plane)?;
    ensure!(
        sigma > 0.,
        "{}: cannot estimate the noise of this image; give its standard deviation with --sigma",
        args.image.display()
    );
    Ok(sigma)
}
