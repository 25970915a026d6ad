//! Rows in shards, read in pieces.
use super::{data, train};
use crate::common::{SPARSE_AUTOENCODER, metrics, number, weights};
use candle::{DType, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// The rows of a file as shards of bf16, and those as one file of f32.
fn shard(folder: &Path, from: &str) {
    let rows = Tensor::read_npy(folder.join(from)).unwrap().to_dtype(DType::BF16).unwrap();
    std::fs::create_dir(folder.join("shards")).unwrap();
    for (i, [start, n]) in [[0, 250], [250, 1], [251, 349]].into_iter().enumerate() {
        let part = HashMap::from([("activations", rows.narrow(0, start, n).unwrap())]);
        candle::safetensors::save(&part, folder.join(format!("shards/{i}.safetensors"))).unwrap();
    }
    rows.to_dtype(DType::F32).unwrap().write_npy(folder.join("rounded.npy")).unwrap();
}

#[test]
fn a_stream_of_shards_in_a_buffer_gives_the_bits_of_one_file() {
    let folder = data();
    shard(folder.path(), "rows.npy");
    let at = |name: &str| folder.path().join(name);
    let on = |data: &'static str, more: &[&'static str]| -> Vec<&str> {
        let mut args = train("batch-top-k", &[&["--active", "2", "--mix", "128"], more].concat());
        args[2] = data;
        args
    };
    let stream = ["--resident-bytes", "0", "--chunk-bytes", "1000"];
    let result =
        SPARSE_AUTOENCODER.json(folder.path(), &on("shards", &[&stream[..], &["--out", "a"]].concat()));
    assert_eq!(result["n_rows"].as_u64(), Some(600));
    SPARSE_AUTOENCODER.succeed(folder.path(), &on("rounded.npy", &["--out", "b"]));
    assert!(weights(&at("a")) == weights(&at("b")), "other weights");
    // Another buffer, another order.
    let other = on("rounded.npy", &["--out", "c"]).into_iter();
    let other: Vec<&str> = other.map(|arg| if arg == "128" { "64" } else { arg }).collect();
    SPARSE_AUTOENCODER.succeed(folder.path(), &other);
    assert!(weights(&at("a")) != weights(&at("c")), "the order does not depend on the buffer");
    // All commands read the shards, in the order of their names.
    let of =
        |data| number(&SPARSE_AUTOENCODER.json(folder.path(), &["evaluate", "a", "--data", data]), "fvu");
    assert_eq!(of("shards"), of("rounded.npy"));

    // One pass has a line of metrics every few steps, and the same bits after a stop.
    let once: Vec<&str> =
        on("shards", &stream).into_iter().map(|arg| if arg == "12" { "1" } else { arg }).collect();
    let result = SPARSE_AUTOENCODER.json(folder.path(), &[&once[..], &["--out", "once"]].concat());
    let lines = metrics(&at("once"));
    let rows: Vec<f64> = lines.iter().map(|line| number(line, "rows")).collect();
    assert_eq!(rows, [64., 128., 192., 256., 320., 384., 448., 512., 576., 600.]);
    assert_eq!((number(&result, "fvu"), result["epochs"].as_u64()), (number(&lines[9], "fvu"), Some(1)));
    let stopped = [&once[..], &["--out", "stopped", "--stop-after-steps", "4"]].concat();
    SPARSE_AUTOENCODER.fail(folder.path(), &stopped, 130);
    SPARSE_AUTOENCODER.succeed(folder.path(), &["train", "--resume", "stopped"]);
    assert!(weights(&at("once")) == weights(&at("stopped")), "other weights after a stop");
    assert_eq!(
        metrics(&at("stopped")).iter().map(|line| number(line, "loss")).collect::<Vec<_>>(),
        lines.iter().map(|line| number(line, "loss")).collect::<Vec<_>>()
    );
}

#[test]
fn shards_that_make_no_sense_end_a_run_in_one_line_with_the_name_of_the_file() {
    let folder = data();
    let save = |name: &str, rows: &Tensor| {
        candle::safetensors::save(&HashMap::from([("x", rows.clone())]), folder.path().join(name)).unwrap();
    };
    let rows = Tensor::read_npy(folder.path().join("rows.npy")).unwrap();
    let refused = |out: &str| {
        let mut args =
            train("top-k", &["--active", "2", "--mix", "128", "--resident-bytes", "0", "--out", out]);
        args[2] = "shards";
        SPARSE_AUTOENCODER.fail(folder.path(), &args, 1)
    };
    std::fs::create_dir(folder.path().join("shards")).unwrap();
    save("shards/0.safetensors", &rows);
    save("shards/1.safetensors", &rows.narrow(1, 0, 11).unwrap());
    let said = refused("a");
    assert!(
        said.ends_with(
            "shards/1.safetensors: has rows of 11 values, the first shard of 12; give shards of one width"
        ),
        "{said}"
    );
    save("shards/1.safetensors", &rows.narrow(0, 0, 0).unwrap());
    let said = refused("a");
    assert!(said.contains("shards/1.safetensors, tensor 'x': holds 0 rows of 12 values"), "{said}");
    let whole = std::fs::read(folder.path().join("shards/0.safetensors")).unwrap();
    std::fs::write(folder.path().join("shards/1.safetensors"), &whole[..900]).unwrap();
    let said = refused("a");
    assert!(said.contains("shards/1.safetensors: not a whole .safetensors file"), "{said}");
    assert!(!folder.path().join("a").exists());
    let mut bad = whole;
    let end = bad.len();
    bad[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(folder.path().join("shards/1.safetensors"), bad).unwrap();
    let said = refused("b");
    assert!(
        said.contains("shards/1.safetensors, tensor 'x': row 599, column 11 is NaN; replace or drop"),
        "{said}"
    );
}
