//! Patches of images, denoising and filling in.
#![allow(clippy::unwrap_used)]
use candle::{DType, Device::Cpu, Tensor};
use chandlery::Philox;
use chandlery::dictionary::image::colour::{from_opponent, to_opponent};
use chandlery::dictionary::image::{
    BandSum, Denoise, ImageTrainer, ImageTraining, Inpaint, PatchGrid, cosines, denoise,
    denoise_with_progress, estimate_sigma, inpaint, inpaint_with_progress, psnr, random_patches,
};
use chandlery_ops::core::{normal, uniform};

fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// Random grey levels of a byte: sums of them are exact in f32.
fn bytes(height: usize, width: usize) -> Tensor {
    let u = uniform((height, width), &Cpu, Philox::new(3, 0)).unwrap();
    (u * 256.).unwrap().floor().unwrap()
}

/// A motif of 6×6 random levels, repeated: any 8×8 patch is one of 36, none of which is sparse in
/// cosines.
fn motif(side: usize) -> Tensor {
    let levels = values(&(bytes(6, 6) * 0.5).unwrap());
    let pixels: Vec<f32> = (0..side * side).map(|i| 60. + levels[i / side % 6 * 6 + i % side % 6]).collect();
    Tensor::from_vec(pixels, (side, side), &Cpu).unwrap()
}

fn with_noise(image: &Tensor, sigma: f64) -> Tensor {
    let noise = normal(image.shape(), &Cpu, Philox::new(5, 0)).unwrap();
    (image + (noise * sigma).unwrap()).unwrap()
}

/// A band of all patches, rows and back.
fn whole(grid: &PatchGrid) -> std::ops::Range<usize> {
    0..grid.tops().len()
}

#[test]
fn a_row_is_the_patch_at_its_place() {
    let image = Tensor::arange(0f32, 42., &Cpu).unwrap().reshape((6, 7)).unwrap();
    let grid = PatchGrid::new(6, 7, 3, 2).unwrap();
    // The last patch of a line and of a column ends with the image.
    assert_eq!((grid.tops(), grid.lefts()), (&[0, 2, 3][..], &[0, 2, 4][..]));
    let rows = grid.rows(&image, 1..3).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!((rows.len(), grid.n_patches()), (6, 9));
    assert_eq!(rows[1], [16., 17., 18., 23., 24., 25., 30., 31., 32.]);
    assert_eq!(rows[5], [25., 26., 27., 32., 33., 34., 39., 40., 41.]);
}

#[test]
fn the_average_of_all_patches_is_the_image_bit_for_bit() {
    // Sides and steps where patches abut, overlap, and end unevenly; bands that cut them anywhere.
    for (height, width, side, step, band) in
        [(8, 8, 8, 1, 9), (23, 17, 8, 1, 30), (23, 17, 5, 5, 1), (40, 33, 8, 3, 25), (9, 30, 2, 1, 1000)]
    {
        let image = bytes(height, width);
        let grid = PatchGrid::new(height, width, side, step).unwrap();
        let mut sum = BandSum::default();
        for band in grid.bands(band) {
            let rows = grid.rows(&image, band.clone()).unwrap();
            sum.add(&grid, &band, grid.sum(&rows, band.clone()).unwrap()).unwrap();
        }
        let average = (sum.image().unwrap() / grid.cover(&Cpu).unwrap()).unwrap();
        assert_eq!(values(&average), values(&image), "{height}x{width}, side {side}, step {step}");
    }
}

#[test]
fn copies_of_lines_are_what_gathers_give() {
    for (height, width, side, step) in [(8, 9, 8, 1), (30, 21, 7, 1), (30, 21, 4, 3), (11, 50, 2, 2)] {
        let grid = PatchGrid::new(height, width, side, step).unwrap();
        for band in [whole(&grid), grid.tops().len() / 2..grid.tops().len()] {
            let image = normal((height, width), &Cpu, Philox::new(1, 0)).unwrap();
            let rows = grid.rows(&image, band.clone()).unwrap();
            let reference = grid.rows_by_gathers(&image, &band).unwrap();
            assert_eq!(values(&rows), values(&reference));
            // Levels of a byte: both orders of summation are exact.
            let levels = (rows * 64.).unwrap().round().unwrap();
            let sum = grid.sum(&levels, band.clone()).unwrap();
            assert_eq!(values(&sum), values(&grid.sum_by_gathers(&levels, &band).unwrap()));
        }
    }
}

#[test]
fn patches_back_are_the_adjoint_of_patches() {
    // ⟨R y, z⟩ = ⟨y, Rᵀ z⟩ for any image y and rows z.
    let grid = PatchGrid::new(19, 14, 5, 2).unwrap();
    let y = normal((19, 14), &Cpu, Philox::new(1, 0)).unwrap();
    let rows = grid.rows(&y, whole(&grid)).unwrap();
    let z = normal(rows.shape(), &Cpu, Philox::new(2, 0)).unwrap();
    let dot = |a: &Tensor, b: &Tensor| {
        values(a).iter().zip(values(b)).map(|(a, b)| f64::from(*a) * f64::from(b)).sum::<f64>()
    };
    let (left, right) = (dot(&rows, &z), dot(&y, &grid.sum(&z, whole(&grid)).unwrap()));
    // 700 products of size 1, sums of up to nine in f32.
    assert!((left - right).abs() < 1e-4, "{left} {right}");
}

#[test]
fn drawn_patches_are_patches_each_at_most_once_and_by_seed() {
    let planes = [bytes(20, 13), bytes(9, 31)];
    let all = random_patches(&planes, 4, usize::MAX, Philox::new(0, 0)).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(all.len(), 17 * 10 + 6 * 28);
    let draw = |seed| random_patches(&planes, 4, 50, Philox::new(seed, 0)).unwrap().to_vec2::<f32>().unwrap();
    let some = draw(1);
    assert_eq!(some.len(), 50);
    for (i, row) in some.iter().enumerate() {
        assert!(all.contains(row), "row {i} is no patch");
        assert!(!some[..i].contains(row), "row {i} was drawn before");
    }
    assert_eq!(some, draw(1));
    assert_ne!(some, draw(2));
}

#[test]
fn opponent_planes_keep_noise_what_it_was_and_come_back() {
    let rgb = normal((3, 60, 60), &Cpu, Philox::new(1, 0)).unwrap();
    let planes = to_opponent(&rgb).unwrap();
    for c in 0..3 {
        let variance = planes.get(c).unwrap().sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
        // 3600 draws: the standard error of a variance of 1 is √(2/3600) = .024.
        assert!((variance - 1.).abs() < 0.1, "plane {c}: {variance}");
    }
    let back = from_opponent(&planes).unwrap();
    let worst = values(&back).iter().zip(values(&rgb)).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
    assert!(worst < 1e-5, "{worst}");
    let grey = to_opponent(&Tensor::full(100f32, (3, 1, 1), &Cpu).unwrap()).unwrap();
    let want = [100. * 3f32.sqrt(), 0., 0.];
    assert!(values(&grey).iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-4), "{:?}", values(&grey));
}

#[test]
fn the_noise_of_a_smooth_image_is_found() {
    let ramp =
        Tensor::arange(0f32, 128., &Cpu).unwrap().broadcast_as((128, 128)).unwrap().contiguous().unwrap();
    for sigma in [2., 25.] {
        let found = estimate_sigma(&with_noise(&ramp, sigma)).unwrap();
        // 4096 blocks: the median is known to about 1.2 σ / √4096 = 2 %.
        assert!((found / sigma - 1.).abs() < 0.08, "{found} for {sigma}");
    }
}

#[test]
fn denoising_gains_and_a_learned_dictionary_gains_more_than_cosines() {
    let (clean, sigma) = (motif(96), 20.);
    let noisy = with_noise(&clean, sigma);
    let settings = Denoise::new(sigma);
    let training = ImageTraining { n_atoms: 64, iterations: 8, n_patches: 5000, ..ImageTraining::default() };
    let mut trainer =
        ImageTrainer::noisy(std::slice::from_ref(&noisy), &settings, &training, Philox::new(0, 0)).unwrap();
    let mut made = 0;
    while trainer.step().unwrap().is_some() {
        made += 1;
    }
    assert_eq!(made, 8);
    let quality = |image: &Tensor| psnr(image, &clean, 255.).unwrap();
    let by = |atoms: &Tensor| quality(&denoise(&noisy, atoms, &settings).unwrap().image);
    let before = quality(&noisy);
    let (cosine, learned) = (by(&cosines(64, 8, &Cpu).unwrap()), by(trainer.dictionary().atoms()));
    // 36 patches, each seen 200 times: an atom each takes nearly all noise away. Cosines need most
    // of theirs for one.
    assert!(before < 22.5, "{before}");
    assert!(learned > before + 10., "{before} → {learned}");
    assert!(cosine < learned - 4., "cosines {cosine}, learned {learned}");
}

#[test]
fn an_image_that_is_flat_stays_flat() {
    let flat = Tensor::full(77f32, (12, 15), &Cpu).unwrap();
    let restored = denoise(&flat, &cosines(64, 8, &Cpu).unwrap(), &Denoise::new(10.)).unwrap();
    assert_eq!(restored.mean_count, 0.);
    assert!(values(&restored.image).iter().all(|x| (x - 77.).abs() < 1e-3), "{:?}", restored.image);
}

#[test]
fn filling_in_keeps_what_is_known_and_finds_what_is_not() {
    let clean = motif(64);
    let known = uniform((64, 64), &Cpu, Philox::new(9, 0)).unwrap().ge(0.4).unwrap();
    let nothing = Tensor::full(f32::NAN, (64, 64), &Cpu).unwrap();
    let holes = known.where_cond(&clean, &nothing).unwrap();
    let settings = Inpaint { side: 8, n_nonzero: 6, ..Inpaint::default() };
    let training = ImageTraining { n_atoms: 64, iterations: 8, n_patches: 5000, ..ImageTraining::default() };
    let mut atoms = cosines(64, 8, &Cpu).unwrap();
    let fill = |atoms: &Tensor| inpaint(&holes, &known, atoms, &settings).unwrap().image;
    let first = fill(&atoms);
    let mut filled = first.clone();
    for _ in 0..3 {
        let mut trainer =
            ImageTrainer::filled(&[filled], &atoms, &settings, &training, Philox::new(0, 0)).unwrap();
        while trainer.step().unwrap().is_some() {}
        atoms = trainer.dictionary().atoms().clone();
        filled = fill(&atoms);
    }
    for ((got, want), known) in
        values(&filled).iter().zip(values(&clean)).zip(known.flatten_all().unwrap().to_vec1::<u8>().unwrap())
    {
        assert!(got.is_finite() && (known == 0 || *got == want), "{got} {want}");
    }
    let quality = |image: &Tensor| psnr(image, &clean, 255.).unwrap();
    let mean = Tensor::full(values(&clean).iter().sum::<f32>() / 4096., (64, 64), &Cpu).unwrap();
    let (by_mean, by_cosines, learned) =
        (quality(&known.where_cond(&clean, &mean).unwrap()), quality(&first), quality(&filled));
    assert!(learned > by_mean + 5. && learned > by_cosines + 3., "{by_mean} {by_cosines} {learned}");
}

#[test]
fn progress_comes_to_the_number_of_patches_and_changes_nothing() {
    let (image, atoms) = (bytes(90, 80), cosines(64, 8, &Cpu).unwrap());
    let n = PatchGrid::new(90, 80, 8, 1).unwrap().n_patches();
    let known = uniform((90, 80), &Cpu, Philox::new(9, 0)).unwrap().ge(0.4).unwrap();
    for penalty in [None, Some(3.)] {
        let (mut seen, settings) = (Vec::new(), Denoise { penalty, ..Denoise::new(30.) });
        let with = denoise_with_progress(&image, &atoms, &settings, &mut |done, of| seen.push((done, of)));
        assert_eq!(values(&with.unwrap().image), values(&denoise(&image, &atoms, &settings).unwrap().image));
        assert!(seen.iter().all(|&(_, of)| of == n) && seen.is_sorted() && seen.last() == Some(&(n, n)));
        // A lasso takes long for each.
        assert_eq!(seen.len() > 1, penalty.is_some(), "{seen:?}");
        seen.clear();
        let settings = Inpaint { side: 8, n_nonzero: 3, penalty, ..Inpaint::default() };
        inpaint_with_progress(&image, &known, &atoms, &settings, &mut |done, of| seen.push((done, of)))
            .unwrap();
        assert_eq!(seen.last(), Some(&(n, n)));
    }
}

#[test]
fn a_hole_larger_than_a_patch_is_filled_from_its_rim() {
    let ramp: Vec<f32> = (0..40 * 40).map(|i| (i / 40 + 2 * (i % 40)) as f32).collect();
    let ramp = Tensor::from_vec(ramp, (40, 40), &Cpu).unwrap();
    let known: Vec<u8> = (0..40 * 40)
        .map(|i| u8::from(!((10..30).contains(&(i / 40)) && (10..30).contains(&(i % 40)))))
        .collect();
    let known = Tensor::from_vec(known, (40, 40), &Cpu).unwrap();
    let hollow = known.where_cond(&ramp, &ramp.zeros_like().unwrap()).unwrap();
    let settings = Inpaint { side: 8, tolerance: 1., ..Inpaint::default() };
    let filled = inpaint(&hollow, &known, &cosines(64, 8, &Cpu).unwrap(), &settings).unwrap().image;
    // Filled by its mean the hole has an error of 13 levels; by zeros, which is where it starts, of
    // 60.
    let error: f32 =
        values(&filled).iter().zip(values(&ramp)).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / 400.;
    assert!(error.sqrt() < 13., "{}", error.sqrt());
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let image = bytes(20, 20);
    let atoms = cosines(64, 8, &Cpu).unwrap();
    let message = |r: candle::Result<()>| r.unwrap_err().to_string().lines().next().unwrap().to_owned();
    let cases = [
        (
            PatchGrid::new(7, 20, 8, 1).map(drop),
            "PatchGrid: side must be between 1 and the image's 7x20, got 8; take smaller patches",
        ),
        (PatchGrid::new(20, 20, 8, 9).map(drop), "PatchGrid: step must be between 1 and side = 8, got 9"),
        (denoise(&image, &atoms, &Denoise::new(0.)).map(drop), "Denoise: sigma must be above 0, got 0"),
        (
            denoise(&image, &atoms.narrow(1, 0, 63).unwrap(), &Denoise::new(9.)).map(drop),
            "denoise: dictionary must be [n_atoms, 64] for these patches, got [64, 63]",
        ),
        (
            denoise(&image.to_dtype(DType::F64).unwrap(), &atoms, &Denoise::new(9.)).map(drop),
            "denoise: image must be F32 of shape [height, width], got F64 of [20, 20]; give the planes of a colour \
             image one by one",
        ),
        (
            inpaint(&image, &image, &atoms, &Inpaint { side: 8, ..Inpaint::default() }).map(drop),
            "inpaint: mask must be U8 of the image's shape [20, 20], got F32 of [20, 20]",
        ),
        (
            inpaint(
                &image,
                &Tensor::zeros((20, 20), DType::U8, &Cpu).unwrap(),
                &atoms,
                &Inpaint { side: 8, ..Inpaint::default() },
            )
            .map(drop),
            "inpaint: at least 1 pixel must be known, got none; 0 in the mask means missing",
        ),
        (
            random_patches(&[], 8, 9, Philox::new(0, 0)).map(drop),
            "random_patches: there must be at least 1 plane, got none",
        ),
        (
            psnr(&image, &atoms, 255.).map(drop),
            "psnr: a and b must have one shape and a pixel, got [20, 20] and [64, 64]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(message(result), want);
    }
}

#[test]
fn penalised_coefficients_denoise_too_and_a_large_penalty_leaves_the_means_of_patches() {
    // A wave, which few cosines represent.
    let wave = |i: usize| 128. + 80. * (i as f32 / 5.).sin();
    let pixels: Vec<f32> = (0..64 * 64).map(|i| 0.5 * (wave(i / 64) + wave(i % 64))).collect();
    let clean = Tensor::from_vec(pixels, (64, 64), &Cpu).unwrap();
    let (noisy, atoms) = (with_noise(&clean, 20.), cosines(100, 8, &Cpu).unwrap());
    let by = |penalty: Option<f64>| {
        let settings = Denoise { penalty, ..Denoise::new(20.) };
        let restored = denoise(&noisy, &atoms, &settings).unwrap();
        (psnr(&restored.image, &clean, 255.).unwrap(), restored.mean_count)
    };
    let ((pursuit, _), (penalised, count), (means, none)) = (by(None), by(Some(1.5)), by(Some(1e4)));
    let before = psnr(&noisy, &clean, 255.).unwrap();
    assert!(penalised > before + 6. && penalised > pursuit - 1.5, "{before}, {pursuit}, {penalised} dB");
    assert!(none == 0. && count > 0.5 && means < penalised, "{count} atoms, {means} dB without any");
    let settings = Denoise { penalty: Some(-1.), ..Denoise::new(20.) };
    let message = denoise(&noisy, &atoms, &settings).map(drop).unwrap_err().to_string();
    assert!(message.starts_with("Denoise: penalty must be at least 0, got -1"), "{message}");
}

#[test]
fn penalised_coefficients_fill_in_as_pursuits_do_and_a_large_penalty_leaves_the_means_of_patches() {
    // A wave, which few cosines represent.
    let wave = |i: usize| 128. + 80. * (i as f32 / 5.).sin();
    let pixels: Vec<f32> = (0..64 * 64).map(|i| 0.5 * (wave(i / 64) + wave(i % 64))).collect();
    let clean = Tensor::from_vec(pixels, (64, 64), &Cpu).unwrap();
    let known = uniform((64, 64), &Cpu, Philox::new(9, 0)).unwrap().ge(0.5).unwrap();
    let nothing = Tensor::full(f32::NAN, (64, 64), &Cpu).unwrap();
    let atoms = cosines(100, 8, &Cpu).unwrap();
    let quality = |image: &Tensor| psnr(image, &clean, 255.).unwrap();
    let holes = known.where_cond(&clean, &nothing).unwrap();
    let by = |penalty: Option<f64>| {
        let restored = inpaint(&holes, &known, &atoms, &Inpaint { side: 8, penalty, ..Inpaint::default() });
        let image = restored.unwrap().image;
        let kept = known.where_cond(&image, &clean).unwrap();
        assert_eq!(values(&kept), values(&clean), "a known pixel changed");
        quality(&image)
    };
    let (pursuit, penalised, means) = (by(None), by(Some(0.5)), by(Some(1e5)));
    let mean = Tensor::full(128f32, (64, 64), &Cpu).unwrap();
    let by_mean = quality(&known.where_cond(&clean, &mean).unwrap());
    assert!(penalised > by_mean + 15. && penalised > pursuit - 3., "{by_mean}, {pursuit}, {penalised} dB");
    assert!(means > by_mean && means < penalised - 5., "{by_mean}, {means}, {penalised} dB");

    // With noise, known pixels are coded too, and those of whole patches by one Gram matrix.
    let noisy = with_noise(&clean, 10.);
    let settings = Inpaint { side: 8, sigma: 10., penalty: Some(1.), ..Inpaint::default() };
    let hole: Vec<u8> = (0..64 * 64).map(|i| u8::from(!(20..24).contains(&(i / 64)))).collect();
    let whole = Tensor::from_vec(hole, (64, 64), &Cpu).unwrap();
    let restored = inpaint(&noisy, &whole, &atoms, &settings).unwrap().image;
    let before = quality(&whole.where_cond(&noisy, &mean).unwrap());
    assert!(quality(&restored) > before + 5., "{before} → {} dB", quality(&restored));
    let message = inpaint(&noisy, &whole, &atoms, &Inpaint { penalty: Some(-1.), ..settings });
    let message = message.map(drop).unwrap_err().to_string();
    assert!(message.starts_with("Inpaint: penalty must be at least 0, got -1"), "{message}");
}
