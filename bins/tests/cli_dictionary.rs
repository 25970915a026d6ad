//! The program `dictionary-learning` as a user runs it: the built binary, small images, real folders.
#![allow(clippy::unwrap_used)]
mod common;
use candle::Device::Cpu;
use chandlery::dictionary::Dictionary;
use common::{BENCH, DICTIONARY, has, metrics, number, picture_size, results, weights};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// A dictionary of 32 atoms for 4×4 patches, five iterations.
const TINY: [&str; 12] = [
    "--atoms",
    "32",
    "--nonzero",
    "3",
    "--side",
    "4",
    "--patches",
    "1500",
    "--iterations",
    "5",
    "--device",
    "cpu",
];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["train"].iter().chain(&TINY).copied().chain(more.iter().copied()).collect()
}

/// Asserts that the JSON of a command has what that of every command has, and no name of another for it.
#[track_caller]
fn is_summary(result: &Value, n_atoms: u64, unit: &str) {
    assert_eq!(result["n_atoms"].as_u64(), Some(n_atoms), "{result}");
    assert_eq!(result["unit"].as_str(), Some(unit), "{result}");
    assert!(result["device"].as_str().unwrap().starts_with("cpu") && result["out"].is_string(), "{result}");
    assert!(number(result, "mean_count") <= number(result, "n_nonzero"), "{result}");
    assert!(number(result, "n_features") > 0. && number(result, "seconds_total") > 0., "{result}");
    assert!(number(result, "seconds_total") >= result["seconds"].as_f64().unwrap_or(0.), "{result}");
    for other in ["atoms", "seconds_training", "seconds_learning"] {
        assert!(result[other].is_null(), "{other} in {result}");
    }
}

#[test]
fn every_command_calls_the_same_thing_by_the_same_name() {
    let folder = folder();
    let json = |args: &[&str]| DICTIONARY.json(folder.path(), &[args, &["--device", "cpu"]].concat());
    let train: Vec<&str> = tiny(&["--data", "grey.png", "--out", "run"]);
    is_summary(&DICTIONARY.json(folder.path(), &train), 32, "grey levels");
    is_summary(&json(&["encode", "run", "grey.png"]), 32, "grey levels");
    is_summary(&json(&["decode", "run", "codes.safetensors"]), 32, "grey levels");
    let small = ["--side", "6", "--atoms", "40", "--iterations", "1"];
    for command in
        [&["denoise", "grey.png", "--sigma", "9"][..], &["inpaint", "grey.png", "--missing", "0.5"]]
    {
        let learned = json(&[command, &small].concat());
        is_summary(&learned, 40, "grey levels");
        assert!(number(&learned, "seconds") > 0. && learned["learned"].as_bool() == Some(true), "{learned}");
        assert!(number(&learned, "sigma") >= 0., "{learned}");
        let given = json(&[command, &["--dictionary", "run"]].concat());
        is_summary(&given, 32, "grey levels");
        assert_eq!((number(&given, "seconds"), given["learned"].as_bool()), (0., Some(false)));
    }
}

/// Pictures to learn from: `grey.png` and `colour.png`, stripes of several directions with edges between.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let level = |x: u32, y: u32, phase: f32| {
        let (x, y) = (x as f32, y as f32);
        let stripes = match (x < 40., y < 32.) {
            (true, true) => (0.9 * x).sin(),
            (true, false) => (0.7 * (x + y)).sin(),
            (false, true) => (0.8 * y + phase).sin(),
            (false, false) => 0.5 * (x / 40. - 1.),
        };
        (128. + 70. * stripes + 10. * phase) as u8
    };
    let grey = image::GrayImage::from_fn(80, 64, |x, y| image::Luma([level(x, y, 0.)]));
    grey.save(folder.path().join("grey.png")).unwrap();
    let colour = image::RgbImage::from_fn(80, 64, |x, y| {
        image::Rgb([level(x, y, 0.), level(x, y, 1.), level(y, x % 64, 2.)])
    });
    colour.save(folder.path().join("colour.png")).unwrap();
    folder
}

#[test]
fn a_run_leaves_a_whole_folder_and_one_json_object() {
    let folder = folder();
    let result = DICTIONARY.json(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    assert_eq!((result["n_rows"].as_u64(), result["rule"].as_str()), (Some(1500), Some("ak-svd")));
    let (start, end) = (number(&result, "rmse_start"), number(&result, "rmse"));
    // Learning must be worth something against random patches; flat codes would leave the deviation, about 35.
    assert!(end > 0. && end < 0.8 * start, "{start} → {end}");
    let times = ["seconds", "seconds_total"].map(|name| number(&result, name));
    assert!(times[0] > 0. && times[0] < times[1], "{times:?}");

    let run = folder.path().join("run");
    let lines = metrics(&run);
    assert_eq!(lines.iter().map(|l| l["iteration"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let picture = image::open(run.join("dictionary.png")).unwrap().to_rgb8();
    // 32 tiles of 4 pixels in six columns and six lines, six times as large.
    assert_eq!(picture.dimensions(), (6 * 31, 6 * 31));
    let curves = std::fs::read_to_string(run.join("curves.svg")).unwrap();
    assert!(curves.contains("root mean square, grey levels") && curves.matches("<circle").count() == 10);
    let texts = ["--atoms 32", "1500 patches of 4x4 pixels without their means", "dictionary.png"];
    has(&run.join("README.md"), &texts);
    let model = Dictionary::from_pretrained(&run.display().to_string(), &Cpu).unwrap();
    assert_eq!(model.config().image, Some([4, 4, 1]));
    assert!(model.config().remove_mean);
    assert_eq!(model.atoms().dims(), [32, 16]);
    // The best of all iterations is what is kept.
    let best = lines.iter().map(|l| number(l, "rmse")).fold(f64::INFINITY, f64::min);
    assert!((end - best).abs() < 1e-3 * best, "{end} {best}");
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let ways: [(&str, &[&str]); 3] =
        [("a", &[]), ("n", &["--rule", "nsgk", "--replace", "random"]), ("o", &["--online", "100"])];
    for (name, how) in ways {
        let (whole, stopped) = (format!("{name}-whole"), format!("{name}-stopped"));
        let common = [&["--data", "grey.png"][..], how].concat();
        DICTIONARY.succeed(folder.path(), &tiny(&[&common[..], &["--out", &whole]].concat()));
        let args = [&common[..], &["--out", &stopped, "--stop-after", "2"]].concat();
        let err = DICTIONARY.fail(folder.path(), &tiny(&args), 130);
        assert_eq!(err, format!("interrupted; go on with: dictionary-learning train --resume {stopped}"));
        assert!(!at(&stopped).join("model.safetensors").exists());
        DICTIONARY.succeed(folder.path(), &["train", "--resume", &stopped, "--device", "cpu"]);
        assert!(weights(&at(&whole)) == weights(&at(&stopped)), "{how:?}: other atoms");
        assert_eq!(metrics(&at(&stopped)).len(), 5);
    }
}

#[test]
fn a_finished_run_goes_on_to_more_iterations_as_if_they_had_been_asked_for() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for (name, how) in [("a", &["--error", "4"][..]), ("o", &["--online", "100"])] {
        let (whole, short) = (format!("{name}-whole"), format!("{name}-short"));
        let longer: Vec<&str> = tiny(&[&["--data", "grey.png", "--out", &whole][..], how].concat())
            .into_iter()
            .map(|arg| if arg == "5" { "8" } else { arg })
            .collect();
        DICTIONARY.succeed(folder.path(), &longer);
        DICTIONARY
            .succeed(folder.path(), &tiny(&[&["--data", "grey.png", "--out", &short][..], how].concat()));
        let resume = ["train", "--resume", &short, "--device", "cpu", "--iterations"];
        let result = DICTIONARY.json(folder.path(), &[&resume[..], &["8"]].concat());
        assert_eq!(result["iterations"].as_u64(), Some(8));
        assert!(weights(&at(&whole)) == weights(&at(&short)), "{how:?}: other atoms");
        assert_eq!(metrics(&at(&short)).len(), 8);
        has(&at(&short).join("README.md"), &["--iterations 5", &format!("--resume {short}"), "8 iterations"]);
        let err = DICTIONARY.fail(folder.path(), &[&resume[..], &["8"]].concat(), 1);
        assert!(err.ends_with("--iterations: must be above the 8 that this run has made, got 8"), "{err}");
    }
}

#[test]
fn a_dictionary_is_the_start_of_another_even_once_it_is_gone() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let first = DICTIONARY.json(folder.path(), &tiny(&["--data", "grey.png", "--out", "first"]));
    // The same patches, and the number of atoms of the dictionary.
    let args = [
        "train",
        "--data",
        "grey.png",
        "--side",
        "4",
        "--patches",
        "1500",
        "--nonzero",
        "3",
        "--device",
        "cpu",
    ];
    let more = ["--init", "first", "--iterations", "3", "--out", "more"];
    let result = DICTIONARY.json(folder.path(), &[&args[..], &more].concat());
    assert_eq!(result["n_atoms"].as_u64(), Some(32));
    // But for a rounding, when atoms were made of length 1 once more.
    assert!((number(&result, "rmse_start") / number(&first, "rmse") - 1.).abs() < 1e-6, "{result} {first}");
    assert!(number(&result, "rmse") < number(&first, "rmse"), "{result}");

    let stopped = ["--init", "first", "--iterations", "3", "--out", "stopped", "--stop-after", "1"];
    DICTIONARY.fail(folder.path(), &[&args[..], &stopped].concat(), 130);
    std::fs::remove_dir_all(at("first")).unwrap();
    DICTIONARY.succeed(folder.path(), &["train", "--resume", "stopped", "--device", "cpu"]);
    assert!(weights(&at("more")) == weights(&at("stopped")), "other atoms");
    let err = DICTIONARY.fail(folder.path(), &[&args[..], &more].concat(), 1);
    assert!(err.contains("--init first: "), "{err}");
    let err = DICTIONARY.fail(
        folder.path(),
        &["train", "--data", "grey.png", "--init", "more", "--device", "cpu"],
        1,
    );
    assert!(err.contains("--init more: its atoms must have the 64 values of a row, got 16"), "{err}");
}

#[test]
fn a_constant_atom_stays_and_coefficients_stay_above_zero_from_the_command_line() {
    let folder = folder();
    let model = |out: &str| {
        Dictionary::from_pretrained(&folder.path().join(out).display().to_string(), &Cpu).unwrap()
    };
    for (out, how) in [
        ("a", &["--start", "random"][..]),
        ("d", &["--start", "dct"]),
        ("o", &["--online", "100", "--forgetting", "5", "--sweeps", "2", "--max-idle", "200"]),
    ] {
        let args = ["--data", "grey.png", "--fixed-dc", "--nonnegative", "--out", out];
        DICTIONARY.succeed(folder.path(), &tiny(&[&args[..], how].concat()));
        let model = model(out);
        assert!(model.config().nonnegative && !model.config().remove_mean, "{out}: {:?}", model.config());
        let atoms = model.atoms().to_vec2::<f32>().unwrap();
        assert!(atoms[0].iter().all(|x| (x - 0.25).abs() < 1e-6), "{out}: {:?}", atoms[0]);
        assert!(
            atoms[1..].iter().all(|atom| atom.iter().any(|x| (x - atom[0]).abs() > 0.01)),
            "{out}: another is constant"
        );
        DICTIONARY.succeed(folder.path(), &["encode", out, "grey.png", "--device", "cpu"]);
        let codes = candle::safetensors::load(folder.path().join("codes.safetensors"), &Cpu).unwrap();
        let values = codes["values"].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(values.iter().all(|&x| x >= 0.) && values.iter().any(|&x| x > 1.), "{out}");
    }
    // How fast the past is forgotten has its say.
    let args = [
        "--data",
        "grey.png",
        "--fixed-dc",
        "--nonnegative",
        "--out",
        "slow",
        "--online",
        "100",
        "--sweeps",
        "2",
        "--max-idle",
        "200",
    ];
    DICTIONARY.succeed(folder.path(), &tiny(&[&args[..], &["--forgetting", "0"]].concat()));
    assert!(weights(&folder.path().join("slow")) != weights(&folder.path().join("o")));
}

#[test]
fn options_that_would_have_no_say_are_refused_by_name() {
    let folder = folder();
    let cases: [(&[&str], &str); 8] = [
        (&["--replace", "none", "--max-coherence", "0.3"], "--max-coherence: has no say with --replace none"),
        (&["--replace", "none", "--min-uses", "3"], "--min-uses: has no say with --replace none"),
        (&["--replace", "none", "--online", "--max-idle", "3"], "--max-idle: has no say with --replace none"),
        (&["--group", "33"], "--group: must be at most --atoms, 32, got 33"),
        (&["--group", "3", "--rule", "mod"], "--group: has no say with --rule mod"),
        (&["--colour", "rgb"], "--colour rgb: patches are cut from grey images"),
        (&["--fixed-dc", "--remove-mean"], "--fixed-dc: no row would use a constant atom with --remove-mean"),
        (
            &["--nonnegative", "--pursuit", "projection-omp"],
            "--nonnegative: --pursuit must be omp or ols with it, got projection-omp",
        ),
    ];
    for (args, text) in cases {
        let args = [&["--data", "grey.png", "--out", "run"][..], args].concat();
        let err = DICTIONARY.fail(folder.path(), &tiny(&args), 1);
        assert!(err.starts_with(&format!("dictionary-learning: {text}")), "{args:?}: {err}");
        assert!(!folder.path().join("run").exists(), "{args:?} left a folder");
    }
    // Any cosine is allowed, while atoms that are hardly used are still replaced.
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "any", "--max-coherence", "1"]));
}

#[cfg(unix)]
#[test]
fn ctrl_c_finishes_the_iteration_writes_a_checkpoint_and_says_how_to_go_on() {
    let folder = folder();
    let args = ["--data", "grey.png", "--iterations", "1000000", "--out", "run", "--device", "cpu"];
    let command = DICTIONARY.command(folder.path(), &args);
    let stderr = common::interrupt(command, &folder.path().join("run"));
    assert!(stderr.contains("interrupted; go on with: dictionary-learning train --resume run"), "{stderr}");
}

#[test]
fn a_seed_decides_every_bit() {
    let folder = folder();
    let atoms = |out: &str, seed: &str| {
        DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", out, "--seed", seed]));
        weights(&folder.path().join(out))
    };
    let (a, b, c) = (atoms("a", "5"), atoms("b", "5"), atoms("c", "6"));
    assert!(a == b, "one seed, two dictionaries");
    assert!(a != c, "two seeds, one dictionary");
}

#[test]
fn encode_writes_codes_that_stand_for_the_patches() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let encode = ["encode", "run", "grey.png", "--device", "cpu", "--out"];
    let result = DICTIONARY.json(folder.path(), &[&encode[..], &["codes.safetensors"]].concat());
    // 80×64 in tiles of 4×4.
    assert_eq!(result["n_rows"].as_u64(), Some(20 * 16));
    let codes = candle::safetensors::load(at("codes.safetensors"), &Cpu).unwrap();
    let [indices, values, count, mean] =
        ["indices", "values", "count", "mean"].map(|name| codes[name].clone());
    assert_eq!((indices.dims(), values.dims(), count.dims()), (&[320, 3][..], &[320, 3][..], &[320][..]));
    // What the codes say, put together by hand, is the image but for the error that was reported.
    let model = Dictionary::from_pretrained(&at("run").display().to_string(), &Cpu).unwrap();
    let atoms = model.atoms().to_vec2::<f32>().unwrap();
    let (indices, values) = (indices.to_vec2::<u32>().unwrap(), values.to_vec2::<f32>().unwrap());
    let mean = mean.to_vec1::<f32>().unwrap();
    let image = image::open(at("grey.png")).unwrap().to_luma8();
    let pixel = |tile: usize, pixel: usize| {
        let code = indices[tile].iter().zip(&values[tile]);
        let got = mean[tile] + code.map(|(&i, x)| x * atoms[i as usize][pixel]).sum::<f32>();
        let (x, y) = (tile % 20 * 4 + pixel % 4, tile / 20 * 4 + pixel / 4);
        (f64::from(got), f64::from(image.get_pixel(x as u32, y as u32).0[0]))
    };
    let pairs = (0..320 * 16).map(|at| pixel(at / 16, at % 16));
    let squares: f64 = pairs.map(|(got, want)| (got - want).powi(2)).sum();
    let rmse = (squares / (80. * 64.)).sqrt();
    assert!((rmse - number(&result, "rmse")).abs() < 1e-3 * rmse, "{rmse} {result}");

    // Fewer atoms where a looser error is enough; the same arrays as .npz.
    let loose = DICTIONARY.json(folder.path(), &[&encode[..], &["codes.npz", "--error", "20"]].concat());
    assert!(number(&loose, "mean_count") < number(&result, "mean_count"), "{loose} {result}");
    let names: Vec<String> =
        candle::Tensor::read_npz(at("codes.npz")).unwrap().into_iter().map(|(n, _)| n).collect();
    for name in ["indices", "values", "count", "mean"] {
        assert!(names.iter().any(|n| n == name), "{name} is not in {names:?}");
    }
}

/// The size of noisy, denoised and clean side by side: letters are 7×16 pixels with 3 around them; the captions `noisy 22.11 dB` and `denoised 30.12 dB`
/// are wider than an image of 80 pixels; there is a gap of 4 between columns.
const COMPARISON: (u32, u32) = (14 * 7 + 6 + 4 + 17 * 7 + 6 + 4 + 80, 64 + 16 + 6);

/// Root mean square difference of two grey pictures.
fn difference(a: &Path, b: &Path) -> f64 {
    let [a, b] = [a, b].map(|path| image::open(path).unwrap().to_luma8());
    assert_eq!(a.dimensions(), b.dimensions());
    let squares = a.pixels().zip(b.pixels()).map(|(a, b)| (f64::from(a.0[0]) - f64::from(b.0[0])).powi(2));
    (squares.sum::<f64>() / f64::from(a.width() * a.height())).sqrt()
}

#[test]
fn codes_of_images_decode_to_the_images() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let on_cpu = |args: &[&str]| DICTIONARY.json(folder.path(), &[args, &["--device", "cpu"]].concat());
    // Tiles: the picture has the error of the codes, of which one atom leaves much, and that of rounding to bytes, 1/√12 a pixel.
    let tiles = on_cpu(&["encode", "run", "grey.png", "--nonzero", "1"]);
    let decoded = on_cpu(&["decode", "run", "codes.safetensors"]);
    assert_eq!((decoded["out"].as_str(), decoded["n_images"].as_u64()), (Some("decoded.png"), Some(1)));
    assert_eq!(decoded["mean_count"], tiles["mean_count"]);
    let (got, codes) = (difference(&at("decoded.png"), &at("grey.png")), number(&tiles, "rmse"));
    assert!(codes > 3. && (got - (codes * codes + 1. / 12.).sqrt()).abs() < 0.05, "{got} {codes}");
    // Patches that overlap are averaged, which takes away some of their errors.
    on_cpu(&["encode", "run", "grey.png", "--nonzero", "1", "--step", "1", "--out", "all.safetensors"]);
    on_cpu(&["decode", "run", "all.safetensors", "--out", "all.png"]);
    let overlapping = difference(&at("all.png"), &at("grey.png"));
    assert!(overlapping < 0.98 * got, "{overlapping} {got}");
    // The patches themselves.
    let rows = on_cpu(&["decode", "run", "codes.safetensors", "--out", "tiles.npy"]);
    assert_eq!((rows["n_rows"].as_u64(), rows["n_images"].as_u64()), (Some(320), Some(0)));

    // Several images, of several sizes, with names that would meet.
    std::fs::create_dir(at("images")).unwrap();
    std::fs::copy(at("grey.png"), at("images/a.png")).unwrap();
    image::open(at("grey.png")).unwrap().crop_imm(3, 5, 41, 29).save(at("images/a.bmp")).unwrap();
    on_cpu(&["encode", "run", "images", "--step", "3", "--out", "two.safetensors"]);
    let two = on_cpu(&["decode", "run", "two.safetensors"]);
    assert_eq!((two["out"].as_str(), two["n_images"].as_u64()), (Some("decoded"), Some(2)));
    assert_eq!(std::fs::read_dir(at("decoded")).unwrap().count(), 2);
    // The .bmp comes first, cut where no tile of training was.
    for (decoded, image) in [("decoded/a.png", "images/a.bmp"), ("decoded/a-2.png", "images/a.png")] {
        let off = difference(&at(decoded), &at(image));
        assert!(off < 10., "{decoded}: {off} levels of stripes of 50");
    }

    on_cpu(&["encode", "run", "grey.png", "--out", "codes.npz"]);
    let cases: [(&[&str], &str); 6] = [
        (&["two.safetensors", "--out", "x.png"], "--out: x.png: must name a folder for the 2 images"),
        (&["two.safetensors", "--out", "images"], "--out images: the folder is not empty; name another"),
        (
            &["two.safetensors", "--out", "x.jpg"],
            "--out: x.jpg: the name must be that of a folder or end in .png",
        ),
        (&["codes.npz", "--out", "x.png"], "--out: x.png: the name must end in .npy or .safetensors"),
        (&["codes.safetensors", "--out", "no/x.png"], "--out: no/x.png: must be in a folder that exists"),
        (&["none.safetensors"], "none.safetensors: cannot be read"),
    ];
    for (args, text) in cases {
        let err =
            DICTIONARY.fail(folder.path(), &[&["decode", "run"], args, &["--device", "cpu"]].concat(), 1);
        assert!(err.contains(text), "{args:?}: {err}");
    }
}

#[test]
fn to_an_error_the_dictionary_of_the_fewest_atoms_is_kept_and_encodes_so() {
    let folder = folder();
    let args = tiny(&["--data", "natural-images", "--out", "run", "--error", "5", "--nonzero", "16"]);
    // Without the --nonzero 3 of before.
    let args: Vec<&str> =
        args.iter().enumerate().filter(|&(i, _)| !(3..5).contains(&i)).map(|(_, &arg)| arg).collect();
    let result = DICTIONARY.json(folder.path(), &args);
    let run = folder.path().join("run");
    let counts: Vec<f64> = metrics(&run).iter().map(|line| number(line, "mean_count")).collect();
    let fewest = counts.iter().copied().fold(f64::INFINITY, f64::min);
    assert!((number(&result, "mean_count") - fewest).abs() < 1e-9, "{result} {counts:?}");
    let errors: Vec<f64> = metrics(&run).iter().map(|line| number(line, "rmse")).collect();
    let lowest = (0..5).min_by(|&a, &b| errors[a].total_cmp(&errors[b])).unwrap();
    assert!(counts[lowest] > fewest, "the lowest error would have kept the same: {errors:?} {counts:?}");
    has(&run.join("README.md"), &["to an error of 5 grey levels"]);
    has(&run.join("curves.svg"), &["atoms a code"]);

    // Every patch, as every signal of training, is coded to that error unless another is asked for.
    let encode = ["encode", "run", "grey.png", "--device", "cpu"];
    let as_trained = DICTIONARY.json(folder.path(), &encode);
    let told = DICTIONARY.json(folder.path(), &[&encode[..], &["--error", "5"]].concat());
    for name in ["rmse", "mean_count", "used"] {
        assert_eq!(as_trained[name], told[name], "{name}");
    }
    assert!(number(&as_trained, "rmse") <= 5. && number(&as_trained, "mean_count") < 12., "{as_trained}");
    let closer = DICTIONARY.json(folder.path(), &[&encode[..], &["--error", "2"]].concat());
    assert!(number(&closer, "mean_count") > number(&as_trained, "mean_count"), "{closer}");
}

#[test]
fn coefficients_stay_above_zero_where_the_dictionary_wants_that() {
    let folder = folder();
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let encode = ["encode", "run", "grey.png", "--device", "cpu"];
    let smallest = || {
        DICTIONARY.succeed(folder.path(), &encode);
        let codes = candle::safetensors::load(folder.path().join("codes.safetensors"), &Cpu).unwrap();
        codes["values"].flatten_all().unwrap().min(0).unwrap().to_scalar::<f32>().unwrap()
    };
    assert!(smallest() < 0.);
    let config = folder.path().join("run/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"nonnegative\": false", "\"nonnegative\": true")).unwrap();
    assert!(smallest() >= 0.);
    let other = [&encode[..], &["--pursuit", "subspace-pursuit"]].concat();
    let err = DICTIONARY.fail(folder.path(), &other, 1);
    assert!(err.contains("--pursuit: must be omp or ols") && err.ends_with("got subspace-pursuit"), "{err}");
}

/// Writes `x.npy`: 60 rows of three values along three directions, each of which has a row of its own size.
fn rows_along_three_directions(folder: &Path) {
    use npyz::WriterBuilder;
    let file = std::fs::File::create(folder.join("x.npy")).unwrap();
    let mut npy = npyz::WriteOptions::new().default_dtype().shape(&[60, 3]).writer(file).begin_nd().unwrap();
    npy.extend((0..180).map(|i| if i / 3 % 3 == i % 3 { 1. + (i / 9) as f32 } else { 0. })).unwrap();
    npy.finish().unwrap();
}

/// The matrix in a `.npy` file.
fn npy(path: &Path) -> Vec<f32> {
    npyz::NpyFile::new(std::fs::File::open(path).unwrap()).unwrap().into_vec().unwrap()
}

#[test]
fn rows_come_back_from_their_codes_with_their_means() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    rows_along_three_directions(folder.path());
    for (run, remove_mean) in [("with", "--remove-mean=false"), ("without", "--remove-mean=true")] {
        let train = ["train", "--data", "x.npy", "--atoms", "3", "--nonzero", "1", "--iterations", "8"];
        let run_args = [&train[..], &[remove_mean, "--out", run, "--device", "cpu"]].concat();
        DICTIONARY.succeed(folder.path(), &run_args);
        for codes in ["x.npz", "x.safetensors"] {
            let encode = ["encode", run, "x.npy", "--out", codes, "--device", "cpu"];
            assert!(number(&DICTIONARY.json(folder.path(), &encode), "rmse") < 1e-4);
            let decode = ["decode", run, codes, "--out", "back.npy", "--device", "cpu"];
            let result = DICTIONARY.json(folder.path(), &decode);
            assert_eq!((result["n_rows"].as_u64(), result["n_features"].as_u64()), (Some(60), Some(3)));
            for (got, want) in npy(&at("back.npy")).iter().zip(npy(&at("x.npy"))) {
                assert!((got - want).abs() < 1e-3, "{run} {codes}: {got} {want}");
            }
        }
    }
    // A dictionary that the codes do not speak of.
    let other = ["train", "--data", "x.npy", "--atoms", "2", "--nonzero", "1", "--iterations", "1"];
    DICTIONARY.succeed(folder.path(), &[&other[..], &["--out", "other", "--device", "cpu"]].concat());
    let err = DICTIONARY.fail(folder.path(), &["decode", "other", "x.safetensors", "--device", "cpu"], 1);
    assert!(err.contains("for a dictionary of 3 atoms, and this one has 2"), "{err}");
}

#[test]
fn rows_that_are_no_images_train_and_encode_as_well() {
    let folder = tempfile::tempdir().unwrap();
    // One atom for each direction is enough.
    rows_along_three_directions(folder.path());
    let args =
        ["train", "--data", "x.npy", "--atoms", "3", "--nonzero", "1", "--iterations", "8", "--out", "run"];
    let result = DICTIONARY.json(folder.path(), &[&args[..], &["--device", "cpu"]].concat());
    assert!(number(&result, "rmse") < 1e-4, "{result}");
    assert_eq!(result["unit"].as_str(), Some("units of the rows"));
    let codes = DICTIONARY.json(folder.path(), &["encode", "run", "x.npy", "--device", "cpu"]);
    assert_eq!((codes["n_rows"].as_u64(), number(&codes, "mean_count")), (Some(60), 1.));
}

#[test]
fn denoising_gains_with_a_learned_a_given_and_no_dictionary() {
    let folder = folder();
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let noisy = ["denoise", "grey.png", "--sigma", "20", "--add-noise", "--device", "cpu"];
    let learn = ["--side", "6", "--atoms", "64", "--save-dictionary", "kept", "--comparison", "both.png"];
    let learned = DICTIONARY.json(folder.path(), &[&noisy[..], &learn].concat());
    let (before, after) = (number(&learned, "psnr_noisy"), number(&learned, "psnr"));
    assert!((before - 22.1).abs() < 0.4, "noise of 20 levels is 22.1 dB, got {before}");
    assert!(after > before + 6., "{before} → {after}");
    assert_eq!(image::open(folder.path().join("denoised.png")).unwrap().to_luma8().dimensions(), (80, 64));
    assert_eq!(picture_size(&folder.path().join("both.png")), COMPARISON);

    let given = DICTIONARY.json(folder.path(), &[&noisy[..], &["--dictionary", "run"]].concat());
    assert!(number(&given, "psnr") > before + 4., "{given}");
    let cosines =
        DICTIONARY.json(folder.path(), &[&noisy[..], &["--iterations", "0", "--side", "6"]].concat());
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
    let small = ["--side", "6", "--atoms", "40", "--iterations", "2", "--device", "cpu", "--save-dictionary"];
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

    let load = |name: &str| Dictionary::from_pretrained(&at(name).display().to_string(), &Cpu).unwrap();
    let values = |d: &Dictionary| d.atoms().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let denoised = DICTIONARY.json(folder.path(), &[&denoise[..], &["run", "--overwrite"]].concat());
    assert_eq!(results(&at("run")), denoised);
    has(&at("run/README.md"), &["Learned by ak-svd from patches of `grey.png`", "--sigma 20", "PSNR "]);
    // 40 tiles of 6 pixels in seven columns and six lines, four times as large.
    assert_eq!(picture_size(&at("run/dictionary.png")), (4 * 50, 4 * 43));
    assert!(!at("run/curves.svg").exists() && !at("run/run.json").exists(), "left from the run before");
    let learned = load("run");
    assert_eq!((learned.config().n_atoms, learned.config().image), (40, Some([6, 6, 1])));

    // Nothing learned: the cosine transform is kept, and says so.
    DICTIONARY.json(folder.path(), &[&inpaint[..], &["learned"]].concat());
    let unlearned = DICTIONARY.json(folder.path(), &[&inpaint[..], &["cosines", "--rounds", "0"]].concat());
    assert_eq!(unlearned["learned"].as_bool(), Some(false));
    has(
        &at("cosines/README.md"),
        &["The overcomplete cosine transform, with which `grey.png` was filled in"],
    );
    let cosines = load("cosines");
    assert_eq!(cosines.config(), load("learned").config());
    assert!(values(&cosines) != values(&load("learned")));
    let none = ["--side", "6", "--atoms", "40", "--iterations", "0", "--save-dictionary", "same"];
    let none = [&["denoise", "grey.png", "--sigma", "20", "--device", "cpu"][..], &none].concat();
    let result = DICTIONARY.json(folder.path(), &none);
    assert_eq!(result["learned"].as_bool(), Some(false));
    assert_eq!(values(&load("same")), values(&cosines));
}

#[test]
fn colour_is_denoised_and_the_noise_estimated() {
    let folder = folder();
    let noisy = ["denoise", "colour.png", "--sigma", "20", "--add-noise", "--side", "6", "--device", "cpu"];
    let result =
        DICTIONARY.json(folder.path(), &[&noisy[..], &["--atoms", "64", "--comparison", "all.png"]].concat());
    assert!(number(&result, "psnr") > number(&result, "psnr_noisy") + 5., "{result}");
    let all = image::open(folder.path().join("all.png")).unwrap().to_rgb8();
    assert_eq!(all.dimensions(), COMPARISON);
    // The noisy image, by itself, with the deviation left to be found and the clean image to measure against.
    image::DynamicImage::from(all).crop_imm(12, 22, 80, 64).save(folder.path().join("noisy.png")).unwrap();
    let args = ["denoise", "noisy.png", "--clean", "colour.png", "--side", "6", "--device", "cpu"];
    let found = DICTIONARY.json(folder.path(), &args);
    assert!((number(&found, "sigma") / 20. - 1.).abs() < 0.25, "{found}");
    assert!(number(&found, "psnr") > number(&found, "psnr_noisy") + 4., "{found}");
}

#[test]
fn missing_pixels_are_filled_in_at_random_and_by_mask() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let common = ["--side", "6", "--atoms", "64", "--device", "cpu"];
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
fn errors_are_one_line_that_says_what_to_do() {
    let folder = folder();
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let cases: [(&[&str], &str); 17] = [
        (&["train", "--data", "none.npy"], "dictionary-learning: --data none.npy: "),
        (&["train", "--data", "grey.png", "--side", "65"], "smaller than a patch of 65x65"),
        (
            &["train", "--data", "grey.png", "--nonzero", "9", "--atoms", "8"],
            "--nonzero: must be at most --atoms, 8, got 9",
        ),
        (&["train", "--data", "grey.png", "--out", "run"], "--out run: the folder is not empty"),
        (&["train", "--resume", "none"], "--resume none"),
        (
            &["inpaint", "grey.png", "--missing", "0.4", "--pursuit", "look-ahead-ols"],
            "--pursuit: must be omp or ols, which know missing pixels, got look-ahead-ols",
        ),
        (
            &["encode", "run", "grey.png", "--out", "x.csv"],
            "x.csv: the name must end in .npz or .safetensors",
        ),
        (&["encode", "run", "grey.png", "--nonzero", "40"], "--nonzero: must be at most the 32 atoms"),
        (
            &["denoise", "grey.png", "--sigma", "9", "--clean", "colour.png"],
            "--clean colour.png: must be 64x80 with 1 planes",
        ),
        (&["denoise", "grey.png", "--sigma", "9", "--out", "x.jpg"], "x.jpg: the name must end in .png"),
        (&["denoise", "grey.png", "--out", "a/x.png"], "--out: a/x.png: must be in a folder that exists"),
        (
            &["inpaint", "grey.png", "--missing", "0.1", "--comparison", "a/x.png"],
            "--comparison: a/x.png: must be",
        ),
        (
            &["encode", "run", "grey.png", "--out", "a/x.npz"],
            "--out: a/x.npz: must be in a folder that exists",
        ),
        (&["denoise", "grey.png", "--step", "9"], "--step: must be at most the side of a patch, 8, got 9"),
        (
            &["denoise", "grey.png", "--dictionary", "run", "--step", "5"],
            "--step: must be at most the side of a patch, 4, got 5",
        ),
        (
            &["encode", "run", "grey.png", "--step", "5"],
            "--step: must be at most the side of a patch, 4, got 5",
        ),
        (
            &["encode", "run", "mnist-sample", "--step", "5"],
            "--step: is for patches of images, and mnist-sample holds rows",
        ),
    ];
    for (args, text) in cases {
        let err = DICTIONARY.fail(folder.path(), &[args, &["--device", "cpu"]].concat(), 1);
        assert!(err.starts_with("dictionary-learning: ") && err.contains(text), "{args:?}: {err}");
        assert!(!folder.path().join("denoised.png").exists(), "{args:?}: refused after the work");
    }
}

#[test]
fn the_benchmark_times_what_it_is_asked_for_beside_a_peer() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |args: &[&str]| -> Vec<Value> {
        let first = ["dictionary", "--device", "cpu", "--repeats", "1", "--json"];
        let stdout = BENCH.succeed(folder.path(), &[&first[..], args].concat());
        serde_json::from_str(&stdout).unwrap()
    };
    let rows = bench(&["--what", "pursuit", "--size", "500x32x16x3"]);
    let ran: Vec<_> =
        rows.iter().map(|r| (r["task"].as_str().unwrap(), r["device"].as_str().unwrap())).collect();
    assert_eq!(ran.len(), 4);
    assert_eq!((ran[0], ran[1]), (("bomp", "cpu, 1 thread"), ("ols", "cpu, 1 thread")));
    for row in &rows {
        assert!(number(row, "ms") > 0. && number(row, "error") < 1. && number(row, "floor_ms") > 0., "{row}");
    }
    // One thread and all: the same codes. OLS leaves less than OMP.
    assert_eq!(rows[0]["error"], rows[2]["error"]);
    assert!(number(&rows[1], "error") <= number(&rows[0], "error"), "{rows:?}");

    assert!(rows.iter().all(|row| row["error_ols"].is_null()), "{rows:?}");

    let rows = bench(&["--what", "training", "--no-single"]);
    assert_eq!(rows.len(), 5);
    for row in &rows {
        assert!(row["device"].as_str().unwrap().ends_with(" threads)"), "{row}");
        // OLS leaves less of most dictionaries, and hardly more of those that were learned by OMP.
        let (omp, ols) = (number(row, "error"), number(row, "error_ols"));
        assert!(ols > 0.9 * omp && ols < 1.01 * omp && ols != omp, "{row}");
        // An online pass has parts that no arithmetic bounds; an iteration has a floor.
        let online = row["task"].as_str().unwrap().starts_with("online");
        assert!(if online { row["floor_ms"].is_null() } else { number(row, "floor_ms") < number(row, "ms") });
    }

    let pictures = folder.path().join("pictures");
    let rows = bench(&["--what", "figure3", "--no-single", "--figures", pictures.to_str().unwrap()]);
    assert_eq!(rows.len(), 18);
    for row in &rows {
        assert!(
            row["device"].as_str().unwrap().ends_with(" threads)") && number(row, "floor_ms") > 0.,
            "{row}"
        );
    }
    picture_size(&pictures.join("figure3.png"));

    // A peer that prints the line of its kind.
    let script = "print('peer m=500 n=32 p=16 s=3: 1.25 ms, 0.4 Msignals/s')";
    std::fs::write(folder.path().join("peer.py"), script).unwrap();
    let rows = bench(&["--what", "pursuit", "--size", "500x32x16x3", "--no-single", "--peer", "peer.py"]);
    assert_eq!((rows[0]["peer_ms"].as_f64(), rows[1]["peer_ms"].as_f64()), (Some(1.25), None));
    let alone = ["dictionary", "--device", "cpu", "--what", "training", "--peer", "peer.py"];
    let err = BENCH.fail(folder.path(), &alone, 1);
    assert_eq!(err, "bench: --peer: goes with --what pursuit, which is left out");
}
