//! Raw rows in: what is done to the rows of a run is done to the rows of every sub-command, however
//! they are stored.
use crate::common::{DBN_ON_CPU, DICTIONARY, SPARSE_CODING, has, number, picture_size, write_npy};
use candle::{Device::Cpu, Tensor};
use chandlery::dictionary::Dictionary;
use chandlery::sparse_coding::SparseCoding;
use chandlery::{Encode, LoadOptions, Model};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use std::path::Path;
use tempfile::TempDir;

/// A folder with 120 images of 4×4 bytes, and the same as floats: pixels that vary together, so
/// that they can be learned.
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
            // Pictures are of raw rows, whatever the network reads: 20 images over 20, in two lines
            // of ten.
            let (width, _) = picture_size(&folder.path().join("r.png"));
            assert_eq!(width, 10 * 4 * 14 + 11 * 14, "{model}");
        }
        picture_size(&folder.path().join(name).join("filters.png"));
        picture_size(&folder.path().join(name).join("samples.png"));
        has(
            &folder.path().join(name).join("README.md"),
            &["rows: [batch, 16], raw: u8 as stored, or f32 of the same numbers over 255"],
        );
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
    assert_eq!(err, "dbn: --prepare: n_components must be between 1 and n_features = 16, got 17");
    let err = DBN_ON_CPU.fail(folder.path(), &[&train[..], &["--prepare", "row-mean"]].concat(), 1);
    assert!(err.starts_with("dbn: --visible bernoulli: rows must lie between 0 and 1, got -"), "{err}");
}

#[test]
fn codes_of_bytes_and_of_floats_are_the_same() {
    let folder = folder();
    for mean in ["--prepare=row-mean", "--prepare=none"] {
        let out = &format!("run{mean}");
        let train = [
            "train",
            "--data",
            "bytes.safetensors",
            "--atoms",
            "20",
            "--nonzero",
            "3",
            "--epochs",
            "2",
            mean,
        ];
        DICTIONARY.succeed(folder.path(), &[&train[..], &["--device", "cpu", "--out", out]].concat());
        let [bytes, floats] = ["bytes.safetensors", "floats.safetensors"].map(|data| {
            let encode = ["encode", out, "--data", data, "--device", "cpu", "--out", "codes.safetensors"];
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
    let train = ["train", "--data", "colour.png", "--colour", "rgb", "--patch", "3x5", "--patches", "600"];
    let quick = ["--atoms", "48", "--nonzero", "3", "--epochs", "2", "--device", "cpu", "--out", "run"];
    let said = DICTIONARY.succeed(folder.path(), &[&train[..], &quick].concat());
    assert!(said.contains("600 patches of 3x5 pixels in colour without their means"), "{said}");
    let model = Dictionary::from_pretrained(folder.path().join("run"), &LoadOptions::default()).unwrap();
    assert_eq!(model.config().image, Some([3, 5, 3].into()));
    // Seven columns and lines of tiles, four times as large as patches, with gaps of 1 between and
    // around them.
    assert_eq!(picture_size(&folder.path().join("run/dictionary.png")), (4 * (7 * 6 + 1), 4 * (7 * 4 + 1)));
    let encode = ["encode", "run", "--data", "colour.png", "--device", "cpu", "--out", "codes.npz"];
    assert_eq!(
        DICTIONARY.fail(folder.path(), &encode, 1),
        "dictionary-learning: --data colour.png: the atoms of this dictionary are patches of 3x5x3; images are coded with square grey patches \
         only, others as rows of a file"
    );
}

#[test]
fn rows_made_as_the_card_says_give_the_features_of_encode() {
    let folder = folder();
    // Grey levels as floats: not to be divided by anything.
    let levels: Vec<f32> = (0..80 * 6).map(|i| ((i * 37) % 200) as f32).collect();
    write_npy(&folder.path().join("levels.npy"), [80, 6], &levels);
    let bytes =
        candle::safetensors::load(folder.path().join("bytes.safetensors"), &Cpu).unwrap()["x"].clone();
    let bytes = bytes.reshape((120, 16)).unwrap();
    let levels = Tensor::from_vec(levels, (80, 6), &Cpu).unwrap();
    let over_255 = (bytes.to_dtype(candle::DType::F32).unwrap() / 255.).unwrap();
    let cases = [
        (
            "levels.npy",
            "raw: f32, the numbers of the data, not scaled (0 to 199 in its first 80 rows)",
            vec![levels],
        ),
        (
            "bytes.safetensors",
            "raw: u8 as stored, or f32 of the same numbers over 255",
            vec![bytes, over_255],
        ),
    ];
    for (data, said, rows) in cases {
        let run = format!("of-{data}");
        let train =
            ["train", "--data", data, "--atoms", "5", "--penalty", "0.01", "--epochs", "2", "--out", &run];
        SPARSE_CODING.succeed(folder.path(), &train);
        has(&folder.path().join(&run).join("README.md"), &[said]);
        SPARSE_CODING
            .succeed(folder.path(), &["encode", &run, "--data", data, "--out", "features.safetensors"]);
        let file = candle::safetensors::load(folder.path().join("features.safetensors"), &Cpu).unwrap();
        let want = file["features"].clone();
        let model = SparseCoding::from_pretrained(folder.path().join(run), &LoadOptions::default()).unwrap();
        for rows in rows {
            let got = model.encode(&rows).unwrap();
            let largest = want.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            let off = (&got - &want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(largest > 0. && off <= 1e-4 * largest, "{data}: {off} of {largest}");
        }
    }
}

#[test]
fn a_penalty_at_encoding_may_differ_from_that_of_training() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let train =
        ["train", "--data", "bytes.safetensors", "--atoms", "20", "--penalty", "0.3", "--epochs", "2"];
    SPARSE_CODING.succeed(folder.path(), &[&train[..], &["--out", "run"]].concat());
    let encoded = |more: &[&str]| {
        let args = [&["encode", "run", "--out", "x.safetensors"], more].concat();
        SPARSE_CODING.succeed(folder.path(), &args);
        candle::safetensors::load(at("x.safetensors"), &Cpu).unwrap()["features"].to_vec2::<f32>().unwrap()
    };
    let nonzero = |rows: &[Vec<f32>]| rows.iter().flatten().filter(|&&x| x != 0.).count();
    let trained = encoded(&[]);
    assert_eq!(encoded(&["--penalty", "0.3"]), trained);
    let (loose, none) = (encoded(&["--penalty", "0.03"]), encoded(&["--penalty", "1e6"]));
    assert!(nonzero(&loose) > nonzero(&trained) && nonzero(&trained) > 0 && nonzero(&none) == 0);
    SPARSE_CODING.refuse(folder.path(), &["encode", "run", "--penalty=-1"], "must be a number of at least 0");
}
