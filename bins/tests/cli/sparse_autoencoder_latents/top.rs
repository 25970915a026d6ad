//! The command `top`, and the picture of `evaluate`.
use super::{data, train};
use crate::common::{SPARSE_AUTOENCODER, has, number};
use candle::{Device::Cpu, Tensor};
use chandlery::sparse_autoencoder::sae::Sae;
use chandlery::{Encode, LoadOptions, Model};
use serde_json::Value;
use std::path::Path;

/// The data of a page.
fn page(path: &Path) -> Value {
    let html = std::fs::read_to_string(path).unwrap();
    let (_, after) = html.split_once(r#"<script id="data" type="application/json">"#).unwrap();
    serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_rows_that_excite_latents_most_are_those_of_dense_codes_in_a_file_and_on_a_page() {
    let folder = data();
    let at = |name: &str| folder.path().join(name);
    SPARSE_AUTOENCODER.succeed(folder.path(), &train("top-k", &["--active", "2", "--out", "run"]));
    let texts: String = (0..200).map(|i| format!("text {i} <b>\n")).collect();
    std::fs::write(at("texts.txt"), texts).unwrap();
    let args = ["top", "run", "--data", "others.npy", "--rows", "5", "--texts", "texts.txt"];
    let result = SPARSE_AUTOENCODER.json(folder.path(), &args);
    assert_eq!(
        (result["out"].as_str(), result["page"].as_str()),
        (Some("run/top.safetensors"), Some("run/top.html"))
    );
    has(&at("run/files.txt"), &["top.safetensors", "top.html"]);

    // By hand, over dense codes.
    let model = Sae::from_pretrained(at("run"), &LoadOptions::default()).unwrap();
    let raw = Tensor::read_npy(at("others.npy")).unwrap();
    let dense = model.encode(&raw).unwrap().to_dense().unwrap().t().unwrap().to_vec2::<f32>().unwrap();
    let file = candle::safetensors::load(at("run/top.safetensors"), &Cpu).unwrap();
    let (indices, values) =
        (file["indices"].to_vec2::<u32>().unwrap(), file["values"].to_vec2::<f32>().unwrap());
    let (count, uses) = (file["count"].to_vec1::<u32>().unwrap(), file["uses"].to_vec1::<i64>().unwrap());
    let sorted = |latent: usize| {
        let mut all: Vec<(u32, f32)> =
            (0..).zip(dense[latent].iter().copied()).filter(|(_, v)| *v > 0.).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        all
    };
    for latent in 0..48 {
        let mut want = sorted(latent);
        assert_eq!(uses[latent] as usize, want.len());
        want.truncate(5);
        let got = indices[latent].iter().copied().zip(values[latent].iter().copied());
        // Rows that are encoded in other blocks may differ in their last bits.
        for (got, want) in got.take(count[latent] as usize).zip(&want) {
            assert!((got.1 - want.1).abs() <= 1e-5 * want.1, "latent {latent}: {got:?}, {want:?}");
        }
        assert_eq!(count[latent] as usize, want.len());
    }
    assert_eq!(number(&result, "l0"), uses.iter().sum::<i64>() as f64 / 200.);

    let data = page(&at("run/top.html"));
    let latents = data["latents"].as_array().unwrap();
    assert_eq!((latents.len(), data["n_rows"].as_u64()), (48, Some(200)));
    let densities: Vec<f64> = latents.iter().map(|latent| number(latent, "density")).collect();
    assert!(densities.is_sorted_by(|a, b| a >= b), "{densities:?}");
    for latent in latents {
        let number = latent["number"].as_u64().unwrap() as usize;
        assert_eq!(latent["uses"].as_i64(), Some(uses[number]));
        for (shown, row) in latent["top"].as_array().unwrap().iter().zip(&indices[number]) {
            let place = shown[0].as_u64().unwrap() as usize;
            assert_eq!(data["rows"][place].as_u64(), Some(u64::from(*row)));
            assert_eq!(data["texts"][place].as_str(), Some(&format!("text {row} <b>")[..]));
        }
    }
    assert!(latents.iter().all(|latent| latent["neighbours"].as_array().unwrap().len() <= 8));

    // Fewer latents elsewhere; the same rows again.
    let few =
        ["top", "run", "--data", "others.npy", "--rows", "5", "--page-latents", "3", "--out", "elsewhere"];
    SPARSE_AUTOENCODER.succeed(folder.path(), &few);
    let data = page(&at("elsewhere/top.html"));
    assert_eq!((data["latents"].as_array().map(Vec::len), data["texts"].is_null()), (Some(3), true));
    assert!(data["notes"].to_string().contains("Of 48 latents the 3 that are most often active are here"));
    let again = candle::safetensors::load(at("elsewhere/top.safetensors"), &Cpu).unwrap();
    assert_eq!(again["indices"].to_vec2::<u32>().unwrap(), indices);
    assert!(!at("elsewhere/files.txt").exists(), "the folder is not that of a run");

    std::fs::write(at("texts.txt"), "one\ntwo").unwrap();
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &args, 1);
    assert!(
        err.ends_with("--texts texts.txt: must have a line for each of the 200 rows, got 2 lines"),
        "{err}"
    );
}

#[test]
fn rows_that_are_images_are_shown_as_such() {
    let folder = data();
    // Rows of a .npy file of three dimensions are images.
    let images: Vec<f32> = (0..40 * 16).map(|i| (i * 7 % 13) as f32 / 13.).collect();
    let tensor = Tensor::from_vec(images, (40, 4, 4), &Cpu).unwrap();
    tensor.write_npy(folder.path().join("images.npy")).unwrap();
    let mut args = train("top-k", &["--active", "2", "--out", "run"]);
    args[2] = "images.npy";
    SPARSE_AUTOENCODER.succeed(folder.path(), &args);
    SPARSE_AUTOENCODER.succeed(folder.path(), &["top", "run"]);
    let data = page(&folder.path().join("run/top.html"));
    assert_eq!(
        (data["sprites"]["width"].as_u64(), data["sprites"]["atlases"].as_array().map(Vec::len)),
        (Some(4), Some(1))
    );
}

#[test]
fn densities_are_drawn_where_a_picture_is_asked_for() {
    let folder = data();
    SPARSE_AUTOENCODER
        .succeed(folder.path(), &train("jump-relu", &["--active-penalty", "0.1", "--out", "run"]));
    let args = ["evaluate", "run", "--data", "others.npy", "--picture", "densities.svg"];
    let result = SPARSE_AUTOENCODER.json(folder.path(), &args);
    assert_eq!(result["picture"].as_str(), Some("densities.svg"));
    has(&folder.path().join("densities.svg"), &["log10 of the share of rows", "never active", "</svg>"]);
    SPARSE_AUTOENCODER.succeed(
        folder.path(),
        &[
            "train",
            "--hidden",
            "4",
            "--iterations",
            "2",
            "--data",
            "mnist-sample",
            "--max-rows",
            "50",
            "--out",
            "other",
        ],
    );
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["evaluate", "other", "--picture", "x.svg"], 1);
    assert!(err.ends_with("--picture: this model has no latents of --kind; leave it out"), "{err}");
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["top", "other"], 1);
    assert!(err.contains("model of type sparse_autoencoder") || err.contains("sparse_autoencoder"), "{err}");
}
