//! Models that give back other rows than they read.
use super::{VALUES, data, train};
use crate::common::{SPARSE_AUTOENCODER, has, number, weights};
use candle::{D, DType, Device::Cpu, Tensor};
use chandlery::sparse_autoencoder::sae::Sae;
use chandlery::{Decode, LoadOptions, Model, Philox};
use chandlery_ops::core::normal;
use std::path::Path;

/// What a linear map makes of the rows of a file.
fn write_targets(folder: &Path, from: &str, to: &str) {
    let rows = Tensor::read_npy(folder.join(from)).unwrap();
    let map = normal((VALUES, 5), &Cpu, Philox::new(8, 0)).unwrap();
    (rows.matmul(&map).unwrap() + 1.).unwrap().write_npy(folder.join(to)).unwrap();
}

#[test]
fn a_transcoder_learns_evaluates_and_goes_on_to_the_same_bits() {
    let folder = data();
    let at = |name: &str| folder.path().join(name);
    write_targets(folder.path(), "rows.npy", "targets.npy");
    write_targets(folder.path(), "others.npy", "other-targets.npy");
    let args = |more: &[&'static str]| {
        train("top-k", &[&["--active", "2", "--targets", "targets.npy", "--mix", "200"], more].concat())
    };
    for (skip, out, stopped) in [(&["--skip"][..], "skip", "skip-b"), (&[], "plain", "plain-b")] {
        let result = SPARSE_AUTOENCODER.json(folder.path(), &args(&[skip, &["--out", out]].concat()));
        assert_eq!(result["targets"].as_str(), Some("targets.npy"));
        assert!(number(&result, "fvu") < 0.5, "{out}: {result}");
        let words = if skip.is_empty() { "by 48 latents" } else { "by 48 latents and a skip connection" };
        has(&at(out).join("README.md"), &["TopK transcoder of 12 values to 5", words]);
        let first = args(&[skip, &["--out", stopped, "--stop-after-steps", "27"]].concat());
        SPARSE_AUTOENCODER.fail(folder.path(), &first, 130);
        SPARSE_AUTOENCODER.succeed(folder.path(), &["train", "--resume", stopped]);
        assert!(weights(&at(out)) == weights(&at(stopped)), "{out}: other weights");

        // By hand.
        let of_others = ["evaluate", out, "--data", "others.npy", "--targets", "other-targets.npy"];
        let result = SPARSE_AUTOENCODER.json(folder.path(), &of_others);
        let model = Sae::from_pretrained(at(out), &LoadOptions::default()).unwrap();
        let wide = |name: &str| Tensor::read_npy(at(name)).unwrap();
        let x = model.prepare(&wide("others.npy")).unwrap();
        let back = model.reconstruct_prepared(&x).unwrap().to_dtype(DType::F64).unwrap();
        let y = wide("other-targets.npy").to_dtype(DType::F64).unwrap();
        let sum = |t: &Tensor| t.sqr().unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
        let fvu = sum(&(&back - &y).unwrap()) / sum(&y.broadcast_sub(&y.mean_keepdim(0).unwrap()).unwrap());
        assert!((number(&result, "fvu") - fvu).abs() < 1e-5 * fvu, "{result}, {fvu}");
        let lengths = |t: &Tensor| t.sqr().unwrap().sum(D::Minus1).unwrap().sqrt().unwrap();
        let cosines = ((&y * &back).unwrap().sum(D::Minus1).unwrap()
            / (lengths(&y) * lengths(&back)).unwrap())
        .unwrap();
        let cosine = cosines.mean_all().unwrap().to_scalar::<f64>().unwrap();
        assert!((number(&result, "cosine") - cosine).abs() < 1e-5, "{result}, {cosine}");
        SPARSE_AUTOENCODER.succeed(folder.path(), &["top", out, "--data", "others.npy"]);
    }
    let fvu = |out| {
        let of = ["evaluate", out, "--data", "others.npy", "--targets", "other-targets.npy"];
        number(&SPARSE_AUTOENCODER.json(folder.path(), &of), "fvu")
    };
    // The map is linear, so that what skips the latents can be all of it.
    assert!(fvu("skip") < fvu("plain"), "{} and {}", fvu("skip"), fvu("plain"));

    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["evaluate", "plain", "--data", "others.npy"], 1);
    assert!(
        err.contains("--targets: this model is a transcoder; name the rows that it is to give back"),
        "{err}"
    );
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["reconstruct", "plain", "--data", "others.npy"], 1);
    assert!(err.contains("this model is a transcoder, which gives back other rows than it reads"), "{err}");
    let of = |targets: &'static str| ["evaluate", "plain", "--data", "others.npy", "--targets", targets];
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &of("targets.npy"), 1);
    assert!(
        err.contains(
            "--targets targets.npy: must have a row for each of the 200 rows of others.npy, got 600"
        ),
        "{err}"
    );
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &of("others.npy"), 1);
    assert!(err.contains("--targets: rows must have 5 values for this model, got 12"), "{err}");
    SPARSE_AUTOENCODER.refuse(folder.path(), &["train", "--kind", "topk", "--skip"], "--targets");
}
