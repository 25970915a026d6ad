//! `denoise` and `inpaint`.
use super::{folder, tiny};
use crate::common::{DICTIONARY, has, number, picture_size, results, weights};
use chandlery::dictionary::Dictionary;
use chandlery::{LoadOptions, Model};

/// The size of noisy, denoised and clean side by side: letters are 7×16 pixels with 3 around them;
/// the captions `noisy 22.11 dB` and `denoised 30.12 dB` are wider than an image of 80 pixels;
/// there is a gap of 4 between columns.
const COMPARISON: (u32, u32) = (14 * 7 + 6 + 4 + 17 * 7 + 6 + 4 + 80, 64 + 16 + 6);

#[test]
fn denoising_gains_with_a_learned_a_given_and_no_dictionary() {
    let folder = folder();
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let noisy = ["denoise", "grey.png", "--sigma", "20", "--add-noise", "--device", "cpu"];
    let learn = ["--patch", "6", "--atoms", "64", "--save-dictionary", "kept", "--comparison", "both.png"];
    let learned = DICTIONARY.json(folder.path(), &[&noisy[..], &learn].concat());
    let (before, after) = (number(&learned, "psnr_noisy"), number(&learned, "psnr"));
    assert!((before - 22.1).abs() < 0.4, "noise of 20 levels is 22.1 dB, got {before}");
    assert!(after > before + 6., "{before} → {after}");
    assert_eq!(image::open(folder.path().join("denoised.png")).unwrap().to_luma8().dimensions(), (80, 64));
    assert_eq!(picture_size(&folder.path().join("both.png")), COMPARISON);

    // All atoms at once is the default; in smaller groups atoms are others, and as good.
    let in_groups = |n: &str| {
        DICTIONARY.json(folder.path(), &[&noisy[..], &learn, &["--overwrite", "--group", n]].concat())
    };
    assert_eq!(in_groups("64")["psnr"], learned["psnr"]);
    let few = number(&in_groups("5"), "psnr");
    assert!(few != after && (few - after).abs() < 1., "{few} {after}");

    let given = DICTIONARY.json(folder.path(), &[&noisy[..], &["--dictionary", "run"]].concat());
    assert!(number(&given, "psnr") > before + 4., "{given}");
    let cosines = DICTIONARY.json(folder.path(), &[&noisy[..], &["--epochs", "0", "--patch", "6"]].concat());
    assert!(number(&cosines, "psnr") < after, "{cosines} {learned}");
    // The same seed, the same noise and the same result.
    let again = DICTIONARY.json(folder.path(), &[&noisy[..], &learn, &["--overwrite"]].concat());
    assert_eq!(again["psnr"], learned["psnr"]);
}

#[test]
fn the_dictionary_of_an_image_is_kept_whole_and_never_in_the_place_of_a_run() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let before = weights(&at("run"));
    let small = ["--patch", "6", "--atoms", "40", "--epochs", "2", "--device", "cpu", "--save-dictionary"];
    let denoise = [&["denoise", "grey.png", "--sigma", "20", "--add-noise"][..], &small].concat();
    let inpaint = [&["inpaint", "grey.png", "--missing", "0.5"][..], &small].concat();
    for command in [&denoise, &inpaint] {
        let err = DICTIONARY.fail(folder.path(), &[&command[..], &["run"]].concat(), 1);
        let text = "--save-dictionary run: the folder is not empty; name another or add --overwrite";
        assert_eq!(err, format!("dictionary-learning: {text}"));
        assert!(
            weights(&at("run")) == before && !at("denoised.png").exists() && !at("inpainted.png").exists()
        );
    }

    let load = |name: &str| Dictionary::from_pretrained(at(name), &LoadOptions::default()).unwrap();
    let values = |d: &Dictionary| d.atoms().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let denoised = DICTIONARY.json(folder.path(), &[&denoise[..], &["run", "--overwrite"]].concat());
    assert_eq!(results(&at("run")), denoised);
    has(&at("run/README.md"), &["Learned by ak-svd from patches of `grey.png`", "--sigma 20", "PSNR "]);
    // 40 tiles of 6 pixels in seven columns and six lines, four times as large.
    assert_eq!(picture_size(&at("run/dictionary.png")), (4 * 50, 4 * 43));
    assert!(!at("run/curves.svg").exists() && !at("run/run.json").exists(), "left from the run before");
    let learned = load("run");
    assert_eq!((learned.config().n_atoms, learned.config().image), (40, Some([6, 6, 1].into())));

    // Nothing learned: the cosine transform is kept, and says so.
    DICTIONARY.json(folder.path(), &[&inpaint[..], &["learned"]].concat());
    let unlearned = DICTIONARY.json(folder.path(), &[&inpaint[..], &["cosines", "--rounds", "0"]].concat());
    assert_eq!(unlearned["learned"].as_bool(), Some(false));
    has(&at("cosines/README.md"), &["The overcomplete cosine transform. `grey.png` was filled in with it"]);
    let cosines = load("cosines");
    assert_eq!(cosines.config(), load("learned").config());
    assert!(values(&cosines) != values(&load("learned")));
    let none = ["--patch", "6", "--atoms", "40", "--epochs", "0", "--save-dictionary", "same"];
    let none = [&["denoise", "grey.png", "--sigma", "20", "--device", "cpu"][..], &none].concat();
    let result = DICTIONARY.json(folder.path(), &none);
    assert_eq!(result["learned"].as_bool(), Some(false));
    assert_eq!(values(&load("same")), values(&cosines));
}

#[test]
fn colour_is_denoised_and_the_noise_estimated() {
    let folder = folder();
    let noisy = ["denoise", "colour.png", "--sigma", "20", "--add-noise", "--patch", "6", "--device", "cpu"];
    let result =
        DICTIONARY.json(folder.path(), &[&noisy[..], &["--atoms", "64", "--comparison", "all.png"]].concat());
    assert!(number(&result, "psnr") > number(&result, "psnr_noisy") + 5., "{result}");
    let all = image::open(folder.path().join("all.png")).unwrap().to_rgb8();
    assert_eq!(all.dimensions(), COMPARISON);
    // The noisy image, by itself, with the deviation left to be found and the clean image to
    // measure against.
    image::DynamicImage::from(all).crop_imm(12, 22, 80, 64).save(folder.path().join("noisy.png")).unwrap();
    let args = ["denoise", "noisy.png", "--clean", "colour.png", "--patch", "6", "--device", "cpu"];
    let found = DICTIONARY.json(folder.path(), &args);
    assert!((number(&found, "sigma") / 20. - 1.).abs() < 0.25, "{found}");
    assert!(number(&found, "psnr") > number(&found, "psnr_noisy") + 4., "{found}");
}

#[test]
fn missing_pixels_are_filled_in_at_random_and_by_mask() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let common = ["--patch", "6", "--atoms", "64", "--device", "cpu"];
    let random =
        DICTIONARY.json(folder.path(), &[&["inpaint", "grey.png", "--missing", "0.4"][..], &common].concat());
    assert!((number(&random, "missing") - 0.4).abs() < 0.03, "{random}");
    assert!(number(&random, "psnr") > 25. && number(&random, "psnr_noisy") < 12., "{random}");

    let ols = [&["inpaint", "grey.png", "--missing", "0.4", "--pursuit", "ols"][..], &common].concat();
    let ols = DICTIONARY.json(folder.path(), &ols);
    assert!(number(&ols, "psnr") > 25. && ols["psnr"] != random["psnr"], "{ols}");

    // A scratch of three pixels, white in the mask.
    let mask =
        image::GrayImage::from_fn(80, 64, |x, _| image::Luma([if (30..33).contains(&x) { 255 } else { 0 }]));
    mask.save(at("mask.png")).unwrap();
    let scratch = ["inpaint", "grey.png", "--mask", "mask.png", "--clean", "grey.png", "--out", "whole.png"];
    let result = DICTIONARY.json(folder.path(), &[&scratch[..], &common].concat());
    assert!((number(&result, "missing") - 3. / 80.).abs() < 1e-6);
    assert!(number(&result, "psnr") > number(&result, "psnr_noisy") + 8., "{result}");
    let (whole, grey) =
        (image::open(at("whole.png")).unwrap().to_luma8(), image::open(at("grey.png")).unwrap().to_luma8());
    for (x, y, pixel) in whole.enumerate_pixels() {
        assert!((30..33).contains(&x) || pixel == grey.get_pixel(x, y), "a known pixel changed at {x}, {y}");
    }
    let inverted = DICTIONARY.json(folder.path(), &[&scratch[..], &common, &["--invert-mask"]].concat());
    assert!((number(&inverted, "missing") - 77. / 80.).abs() < 1e-6);
}

#[test]
fn the_ratio_that_is_told_is_that_of_the_file() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    // Levels near both ends, so that much of the result is cut off there.
    let steep = image::GrayImage::from_fn(80, 64, |x, y| {
        image::Luma([if (x / 5 + y / 7) % 2 == 0 { 0 } else { 255 }])
    });
    steep.save(at("steep.png")).unwrap();
    let levels = |path: &str| {
        let picture = image::open(at(path)).unwrap().to_luma8();
        picture.into_raw().into_iter().map(f64::from).collect::<Vec<_>>()
    };
    let learn = ["--patch", "6", "--atoms", "64", "--epochs", "2", "--device", "cpu"];
    for out in ["x.png", "x.jpg"] {
        let ways: [&[&str]; 2] = [
            &["denoise", "steep.png", "--sigma", "30", "--add-noise"],
            &["inpaint", "steep.png", "--missing", "0.4"],
        ];
        for way in ways {
            let result = DICTIONARY.json(folder.path(), &[way, &learn, &["--out", out]].concat());
            let (got, want) = (levels(out), levels("steep.png"));
            let squares: f64 = got.iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum();
            let psnr = 10. * (255f64.powi(2) * got.len() as f64 / squares).log10();
            assert!((number(&result, "psnr") - psnr).abs() < 1e-3, "{psnr} {result}");
        }
    }
}
