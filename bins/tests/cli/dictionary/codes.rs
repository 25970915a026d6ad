//! `encode` and `decode`: codes in files and back.
use super::{folder, tiny};
use crate::common::{DICTIONARY, has, metrics, number, write_npy};
use candle::Device::Cpu;
use chandlery::dictionary::Dictionary;
use chandlery::{LoadOptions, Model};
use std::path::Path;

#[test]
fn encode_writes_codes_that_stand_for_the_patches() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let encode = ["encode", "run", "--data", "grey.png", "--device", "cpu", "--out"];
    let result = DICTIONARY.json(folder.path(), &[&encode[..], &["codes.safetensors"]].concat());
    // 80×64 in tiles of 4×4.
    assert_eq!(result["n_rows"].as_u64(), Some(20 * 16));
    let codes = candle::safetensors::load(at("codes.safetensors"), &Cpu).unwrap();
    let [indices, values, count, mean] =
        ["indices", "values", "count", "mean"].map(|name| codes[name].clone());
    assert_eq!((indices.dims(), values.dims(), count.dims()), (&[320, 3][..], &[320, 3][..], &[320][..]));
    // What the codes say, put together by hand, is the image but for the error that was reported.
    let model = Dictionary::from_pretrained(at("run"), &LoadOptions::default()).unwrap();
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

/// An array of an archive.
fn array<T: npyz::Deserialize>(path: &Path, name: &str) -> Vec<T> {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let file = zip.by_name(&format!("{name}.npy")).unwrap();
    npyz::NpyFile::new(file).unwrap().into_vec().unwrap()
}

#[test]
fn csr_codes_are_the_padded_ones_and_need_an_npz_file() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let encode = ["encode", "run", "--data", "grey.png", "--error", "15", "--device", "cpu", "--out"];
    DICTIONARY.succeed(folder.path(), &[&encode[..], &["padded.npz"]].concat());
    DICTIONARY.succeed(folder.path(), &[&encode[..], &["csr.npz", "--sparse-format", "csr"]].concat());
    let [indices, count] = ["indices", "count"].map(|name| array::<u32>(&at("padded.npz"), name));
    let values = array::<f32>(&at("padded.npz"), "values");
    let width = indices.len() / count.len();
    let csr = at("csr.npz");
    let (data, columns) = (array::<f32>(&csr, "data"), array::<i32>(&csr, "indices"));
    let starts = array::<i32>(&csr, "indptr");
    assert_eq!((array::<i64>(&csr, "shape"), starts.len()), (vec![320, 32], 321));
    let counts: std::collections::BTreeSet<u32> = count.iter().copied().collect();
    assert!(counts.len() > 1, "rows of several lengths were to be seen, got {counts:?}");
    for (row, &count) in count.iter().enumerate() {
        let mut want: Vec<(i32, f32)> =
            (row * width..row * width + count as usize).map(|k| (indices[k] as i32, values[k])).collect();
        want.sort_by_key(|(atom, _)| *atom);
        let of_row = starts[row] as usize..starts[row + 1] as usize;
        let got: Vec<(i32, f32)> = of_row.map(|k| (columns[k], data[k])).collect();
        assert_eq!(got, want, "row {row}");
    }
    let err = DICTIONARY.fail(
        folder.path(),
        &[&encode[..], &["x.safetensors", "--sparse-format", "csr"]].concat(),
        1,
    );
    assert!(err.ends_with("--sparse-format csr: --out must end in .npz, got x.safetensors"), "{err}");
}

#[test]
fn a_picture_in_colour_is_said_to_be_turned_grey() {
    let folder = folder();
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    for (picture, is_said) in [("grey.png", false), ("colour.png", true), (".", true)] {
        let args = ["encode", "run", "--data", picture, "--device", "cpu", "--out", "x.npz"];
        let output = DICTIONARY.command(folder.path(), &args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        let said = stderr.contains("note: colour.png is in colour, and was turned grey");
        assert_eq!(said, is_said, "{picture}: {stderr}");
    }
}

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
    // Tiles: the picture has the error of the codes, of which one atom leaves much, and that of
    // rounding to bytes, 1/√12 a pixel.
    let tiles = on_cpu(&["encode", "run", "--data", "grey.png", "--nonzero", "1"]);
    let decoded = on_cpu(&["decode", "run", "codes.safetensors"]);
    assert_eq!((decoded["out"].as_str(), decoded["n_images"].as_u64()), (Some("decoded.png"), Some(1)));
    assert_eq!(decoded["mean_count"], tiles["mean_count"]);
    let (got, codes) = (difference(&at("decoded.png"), &at("grey.png")), number(&tiles, "rmse"));
    assert!(codes > 3. && (got - (codes * codes + 1. / 12.).sqrt()).abs() < 0.05, "{got} {codes}");
    // Patches that overlap are averaged, which takes away some of their errors.
    on_cpu(&[
        "encode",
        "run",
        "--data",
        "grey.png",
        "--nonzero",
        "1",
        "--step",
        "1",
        "--out",
        "all.safetensors",
    ]);
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
    on_cpu(&["encode", "run", "--data", "images", "--step", "3", "--out", "two.safetensors"]);
    let two = on_cpu(&["decode", "run", "two.safetensors"]);
    assert_eq!((two["out"].as_str(), two["n_images"].as_u64()), (Some("decoded"), Some(2)));
    assert_eq!(std::fs::read_dir(at("decoded")).unwrap().count(), 2);
    // The .bmp comes first, cut where no tile of training was.
    for (decoded, image) in [("decoded/a.png", "images/a.bmp"), ("decoded/a-2.png", "images/a.png")] {
        let off = difference(&at(decoded), &at(image));
        assert!(off < 10., "{decoded}: {off} levels of stripes of 50");
    }

    on_cpu(&["encode", "run", "--data", "grey.png", "--out", "codes.npz"]);
    let cases: [(&[&str], &str); 6] = [
        (&["two.safetensors", "--out", "x.png"], "--out: x.png: must name a folder for the 2 images"),
        (&["two.safetensors", "--out", "images"], "--out images: the folder is not empty; name another"),
        (
            &["two.safetensors", "--out", "x.gif"],
            "--out: x.gif: the name must be that of a folder or end in .png",
        ),
        (&["codes.npz", "--out", "x.png"], "--out: x.png: the name must end in .npy, .csv or .safetensors"),
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
    has(&run.join("README.md"), &["stopping at an error of 5 grey levels"]);
    has(&run.join("curves.svg"), &["atoms per code"]);

    // Every patch, as every signal of training, is coded to that error unless another is asked for.
    let encode = ["encode", "run", "--data", "grey.png", "--device", "cpu"];
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
    let encode = ["encode", "run", "--data", "grey.png", "--device", "cpu"];
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

/// Writes `x.npy`: 60 rows of three values along three directions, each of which has a row of its
/// own size.
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
    for (run, remove_mean) in [("with", "--prepare=none"), ("without", "--prepare=row-mean")] {
        let train = ["train", "--data", "x.npy", "--atoms", "3", "--nonzero", "1", "--epochs", "8"];
        let run_args = [&train[..], &[remove_mean, "--out", run, "--device", "cpu"]].concat();
        DICTIONARY.succeed(folder.path(), &run_args);
        for codes in ["x.npz", "x.safetensors"] {
            let encode = ["encode", run, "--data", "x.npy", "--out", codes, "--device", "cpu"];
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
    let other = ["train", "--data", "x.npy", "--atoms", "2", "--nonzero", "1", "--epochs", "1"];
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
        ["train", "--data", "x.npy", "--atoms", "3", "--nonzero", "1", "--epochs", "8", "--out", "run"];
    let result = DICTIONARY.json(folder.path(), &[&args[..], &["--device", "cpu"]].concat());
    assert!(number(&result, "rmse") < 1e-4, "{result}");
    assert_eq!(result["unit"].as_str(), Some("units of the rows"));
    let codes = DICTIONARY.json(folder.path(), &["encode", "run", "--data", "x.npy", "--device", "cpu"]);
    assert_eq!((codes["n_rows"].as_u64(), number(&codes, "mean_count")), (Some(60), 1.));
}

#[test]
fn the_split_that_is_asked_for_is_encoded_and_the_test_rows_else() {
    let folder = tempfile::tempdir().unwrap();
    let atom: Vec<f32> = (0..784).map(|i| (i % 7) as f32).collect();
    write_npy(&folder.path().join("atom.npy"), [1, 784], &atom);
    let encode = [
        "encode",
        "atom.npy",
        "--data",
        "mnist-sample",
        "--max-rows",
        "1200",
        "--nonzero",
        "1",
        "--device",
        "cpu",
    ];
    let n_rows =
        |more: &[&str]| DICTIONARY.json(folder.path(), &[&encode[..], more].concat())["n_rows"].as_u64();
    assert_eq!((n_rows(&[]), n_rows(&["--split", "train"])), (Some(1000), Some(1200)));
}
