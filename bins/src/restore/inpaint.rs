//! The command `inpaint`.
use super::task::{
    Codes, Compared, Finished, Task, Wanted, draws, each_plane, folder_for, image_of, learn, planes_of,
    read_like, streams, training,
};
use crate::args::restore::InpaintArgs;
use crate::device::describe;
use crate::report::{Outcome, Report};
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::dictionary::image::{
    ImageTrainer, ImageTraining, Inpaint, cosines, inpaint_with_progress as inpaint_plane,
};
use chandlery::pictures::planes;
use chandlery_ops::core::uniform;
use serde_json::json;
use std::time::Instant;

/// Shade of what is missing in the comparison.
const HOLE: f64 = 0.;

/// Fills in the missing pixels of an image.
pub fn inpaint(args: &InpaintArgs, codes: Codes) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let wanted = Wanted {
        image: &args.image,
        dictionary: &args.dictionary,
        default_side: 10,
        step: args.step,
        out: &args.out,
        comparison: args.comparison.as_deref(),
        common: &args.common,
    };
    let Task { device, dictionary, side, image } = Task::open(&wanted)?;
    let (_, height, width) = image.dims3()?;
    let mask = mask(args, &image)?;
    let clean = match (&args.clean, args.missing) {
        (Some(path), _) => Some(read_like(path, "--clean", &image)?),
        (None, Some(_)) => Some(image.clone()),
        (None, None) => None,
    };
    let folder = folder_for(&args.dictionary)?;
    let missing = 1. - mask.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()?;
    report.line(&format!(
        "{}: {width}x{height}, {:.1} % of the pixels missing, on {}",
        args.image.display(),
        100. * missing,
        describe(&device)
    ))?;

    let started = Instant::now();
    let settings = Inpaint {
        side,
        step: args.step,
        tolerance: args.error,
        sigma: args.sigma,
        n_nonzero: args.nonzero,
        method: args.pursuit.into(),
        ..Inpaint::default()
    };
    let planes = planes_of(&image.to_device(&device)?)?;
    let known = mask.to_device(&device)?;
    let rounds = if dictionary.is_none() && args.dictionary.epochs > 0 { args.rounds } else { 0 };
    let fill = |atoms: &Tensor, round: usize| {
        // What is learned from is filled in by the pursuit that it is learned for.
        let penalty = codes.penalty().filter(|_| round == rounds);
        let settings = Inpaint { penalty, ..settings.clone() };
        each_plane(&planes, |plane, show| inpaint_plane(plane, &known, atoms, &settings, show))
    };
    let training = training(&args.dictionary);
    let mut atoms = match &dictionary {
        Some(dictionary) => dictionary.atoms().clone(),
        None => cosines(training.n_atoms, side, &device)?,
    };
    let (mut filled, mut mean_count) = fill(&atoms, 0)?;
    let from = |planes: &[Tensor], atoms: &Tensor, training: &ImageTraining| {
        ImageTrainer::filled(planes, atoms, &settings, training, draws(&args.dictionary))
    };
    let (mut of_image, mut learned_in) = (None, 0.);
    for round in 1..=rounds {
        let began = Instant::now();
        let trainer = from(&filled, &atoms, &training)?;
        let learned = learn(trainer, training.iterations, &format!("learning, round {round}/{rounds}"))?;
        learned_in += began.elapsed().as_secs_f64();
        atoms = learned.dictionary.atoms().clone();
        of_image = Some(learned);
        (filled, mean_count) = fill(&atoms, round)?;
    }
    let restored = image_of(&filled)?.to_device(&Device::Cpu)?;
    let finished = Finished {
        done: "filled in",
        codes,
        wanted: &wanted,
        device: &device,
        side,
        atoms: &atoms,
        n_nonzero: args.nonzero,
        mean_count,
        epochs: rounds * args.dictionary.epochs,
        learned: rounds > 0,
        training_seconds: learned_in,
        seconds: started.elapsed().as_secs_f64(),
        folder,
    };
    let holes = mask.broadcast_as(image.shape())?;
    let hollow = holes.where_cond(&image, &(image.ones_like()? * HOLE)?)?;
    let compared =
        Compared { before: ("known", &hollow), after: ("filled in", &restored), clean: clean.as_ref() };
    let own = json!({ "sigma": args.sigma, "missing": missing });
    finished.finish(&report, &compared, own, || match of_image {
        Some(learned) => Ok(learned),
        None => learn(from(&filled, &atoms, &ImageTraining { iterations: 0, ..training })?, 0, ""),
    })
}

/// Known pixels as 1, missing ones as 0: `[height, width]` u8.
fn mask(args: &InpaintArgs, image: &Tensor) -> Result<Tensor> {
    let (_, height, width) = image.dims3()?;
    let Some(path) = &args.mask else {
        let share = args.missing.unwrap_or(0.);
        let draws =
            uniform((height, width), &Device::Cpu, Philox::new(args.dictionary.seed, streams::HOLES))?;
        return Ok(draws.ge(share)?);
    };
    let planes = planes::read_planes(path).context("--mask")?;
    let (_, h, w) = planes.dims3()?;
    if (h, w) != (height, width) {
        bail!("--mask {}: must be {height}x{width} like the image, got {h}x{w}", path.display())
    }
    let white = planes.mean(0)?.gt(127f32)?;
    let known = if args.invert_mask { white } else { white.eq(0u8)? };
    let n_known = known.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    ensure!(
        n_known > 0.,
        "--mask {}: every pixel is marked as missing; a mask is white where pixels are to be filled in, see --invert-mask",
        path.display()
    );
    Ok(known)
}
