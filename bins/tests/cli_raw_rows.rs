//! Raw rows in: what is done to the rows of a run is done to the rows of every sub-command, however they are stored.
#![allow(clippy::unwrap_used)]
mod common;
use candle::Device::Cpu;
use chandlery::dictionary::Dictionary;
use chandlery_ops::{Philox, uniform};
use common::{DBN_ON_CPU, DICTIONARY, has, number, picture_size};
use std::path::Path;
use tempfile::TempDir;

/// A folder with 120 images of 4×4 bytes, and the same as floats: pixels that vary together, so that they can be learned.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let sums = uniform((120, 18), &Cpu, Philox::new(3, 0)).unwrap();
    let smooth = (0..3).map(|i| sums.narrow(1, i, 16).unwrap()).reduce(|a, b| (a + b).unwrap()).unwrap();
    let bytes = (smooth * 85.).unwrap().to_dtype(candle::DType::U8).unwrap();
    let floats = bytes.to_dtype(candle::DType::F32).unwrap().affine(1. / 255., 0.).unwrap();
    for (name, rows) in [("bytes", bytes), ("floats", floats)] {
        let rows = std::collections::HashMap::from([("x", rows.reshape((120, 4, 4)).unwrap())]);
        candle::safetensors::save(&rows, folder.path().join(format!("{name}.safetensors"))).unwrap();
    }
    folder
}

/// The largest difference of two files of arrays of one shape.
fn difference(folder: &Path, a: &str, b: &str) -> f32 {
    let read = |name: &str| {
        let path = folder.join(name).display().to_string();
        let data = chandlery_datasets::open(&path, &chandlery_datasets::DataOptions::default());
        data.unwrap().train.to_tensor(&Cpu).unwrap()
    };
    let [a, b] = [a, b].map(read);
    assert_eq!(a.dims(), b.dims());
    (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
}

#[test]
fn features_of_bytes_and_of_floats_are_the_same() {
    let folder = folder();
    let run = |args: &[&str]| DBN_ON_CPU.succeed(folder.path(), args);
    let quick = ["--epochs", "1", "--batch", "10"];
    let gaussian = ["--visible", "gaussian", "--hidden-unit", "bernoulli"];
    let prepared = ["--visible", "gaussian", "--prepare", "row-mean,zca=0.01"];
    let fewer = ["--visible", "gaussian", "--prepare", "pca=5"];
    for (name, units) in
        [("binary", &[][..]), ("real", &gaussian), ("white", &prepared), ("components", &fewer)]
    {
        run(&[&["train", "--data", "bytes.safetensors", "--hidden", "6", "--out", name], units, &quick]
            .concat());
        run(&[&["fine-tune", name, "--autoencode", "--out", &format!("{name}-auto")], &quick[..]].concat());
        for model in [name.to_owned(), format!("{name}-auto")] {
            for data in ["bytes", "floats"] {
                let rows = format!("{data}.safetensors");
                run(&["encode", &model, "--data", &rows, "--out", &format!("{model}-{data}.npy")]);
            }
            let off =
                difference(folder.path(), &format!("{model}-bytes.npy"), &format!("{model}-floats.npy"));
            assert!(off < 1e-4, "{model}: {off}");
            let errors = ["bytes.safetensors", "floats.safetensors"].map(|data| {
                let of = ["reconstruct", &model, "--data", data, "--n", "20", "--out", "r.png"];
                number(&DBN_ON_CPU.json(folder.path(), &of), "squared_error")
            });
            assert!((errors[0] - errors[1]).abs() < 1e-3 * errors[0], "{model}: {errors:?}");
            // Pictures are of raw rows, whatever the network reads: 20 images over 20, in two lines of ten.
            let (width, _) = picture_size(&folder.path().join("r.png"));
            assert_eq!(width, 10 * 4 * 14 + 11 * 14, "{model}");
        }
        picture_size(&folder.path().join(name).join("filters.png"));
        picture_size(&folder.path().join(name).join("samples.png"));
        has(&folder.path().join(name).join("README.md"), &["rows: [batch, 16] raw"]);
    }
    has(&folder.path().join("components/config.json"), &["\"step\": \"pca\"", "\"n_components\": 5"]);
}

#[test]
fn steps_that_cannot_be_fitted_say_why() {
    let folder = folder();
    let train = ["train", "--data", "bytes.safetensors", "--hidden", "6", "--out", "run"];
    let refuse = |steps: &str, text: &str| {
        DBN_ON_CPU.refuse(folder.path(), &[&train[..], &["--prepare", steps]].concat(), text);
    };
    refuse("row-mean,ica", "ica: no such step; give standardise, minmax, robust, log1p, scale=F");
    refuse("pca", "pca: give the number of components, as in pca=50");
    let err = DBN_ON_CPU.fail(folder.path(), &[&train[..], &["--prepare", "pca=17"]].concat(), 1);
    assert_eq!(err, "dbn: --prepare: Pca: n_components must be between 1 and n_features = 16, got 17");
    let err = DBN_ON_CPU.fail(folder.path(), &[&train[..], &["--prepare", "row-mean"]].concat(), 1);
    assert!(err.starts_with("dbn: --visible bernoulli: rows must lie between 0 and 1, got -"), "{err}");
}

#[test]
fn codes_of_bytes_and_of_floats_are_the_same() {
    let folder = folder();
    for mean in ["--remove-mean=true", "--remove-mean=false"] {
        let out = &format!("run{mean}");
        let train = [
            "train",
            "--data",
            "bytes.safetensors",
            "--atoms",
            "20",
            "--nonzero",
            "3",
            "--iterations",
            "2",
            mean,
        ];
        DICTIONARY.succeed(folder.path(), &[&train[..], &["--device", "cpu", "--out", out]].concat());
        let [bytes, floats] = ["bytes.safetensors", "floats.safetensors"].map(|data| {
            let encode = ["encode", out, data, "--device", "cpu", "--out", "codes.safetensors"];
            number(&DICTIONARY.json(folder.path(), &encode), "rmse")
        });
        assert!((bytes - floats).abs() < 1e-3 * bytes && bytes > 1., "{mean}: {bytes} {floats}");
    }
}

#[test]
fn patches_may_be_in_colour_and_of_any_shape() {
    let folder = tempfile::tempdir().unwrap();
    let image = image::RgbImage::from_fn(40, 30, |x, y| {
        image::Rgb([(6 * x) as u8, (8 * y) as u8, ((x * y) % 256) as u8])
    });
    image.save(folder.path().join("colour.png")).unwrap();
    let train = ["train", "--data", "colour.png", "--colour", "rgb", "--side", "3x5", "--patches", "600"];
    let quick = ["--atoms", "48", "--nonzero", "3", "--iterations", "2", "--device", "cpu", "--out", "run"];
    let said = DICTIONARY.succeed(folder.path(), &[&train[..], &quick].concat());
    assert!(said.contains("600 patches of 3x5 pixels in colour without their means"), "{said}");
    let model = Dictionary::from_pretrained(&folder.path().join("run").display().to_string(), &Cpu).unwrap();
    assert_eq!(model.config().image, Some([3, 5, 3].into()));
    // Seven columns and lines of tiles, four times as large as patches, with gaps of 1 between and around them.
    assert_eq!(picture_size(&folder.path().join("run/dictionary.png")), (4 * (7 * 6 + 1), 4 * (7 * 4 + 1)));
    let encode = ["encode", "run", "colour.png", "--device", "cpu", "--out", "codes.npz"];
    assert_eq!(
        DICTIONARY.fail(folder.path(), &encode, 1),
        "dictionary-learning: colour.png: the atoms of this dictionary are patches of 3x5x3; images are coded with square grey patches \
         only, others as rows of a file"
    );
}
