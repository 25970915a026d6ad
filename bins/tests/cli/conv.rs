//! Convolutional layers and crops of images as a user runs them: the built binaries, tiny networks,
//! real folders.
use crate::common::{DBN_ON_CPU as DBN, has, metrics, number, picture_size, results, side, weights};
use chandlery::dbn::Dbn;
use chandlery::{LoadOptions, Model};
use std::path::Path;

/// 784-1176-400-30 units on digits: filters of 15x15 leave 14x14 places, pooled to 7x7; then 6x6
/// places, and a dense layer.
const LAYERS: &str = "conv:15x24/pool2,conv:2x11,dense:30";

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["--max-rows", "200", "--layers", LAYERS, "--epochs", "1", "--batch", "10"], more].concat()
}

/// The message of a command that ends with exit code 1.
fn fails(folder: &Path, args: &[&str], text: &str) {
    let stderr = DBN.fail(folder, args, 1);
    assert!(stderr.contains(text), "{stderr}");
}

fn files(folder: &Path, names: &[&str]) {
    for name in names {
        assert!(folder.join(name).exists(), "{name}");
    }
}

#[test]
fn a_run_says_what_its_layers_are_and_leaves_a_whole_folder() {
    let folder = tempfile::tempdir().unwrap();
    let stdout = DBN.succeed(folder.path(), &tiny(&["--out", "run"]));
    for line in [
        "dbn 784-1176-396-30",
        "layer 1: 24 filters of 15x15, maps of 14x14, pooled in blocks of 2x2, 5425 parameters\n",
        "layer 2: 11 filters of 2x2, maps of 6x6, 1091 parameters\n",
        "layer 3: 30 hidden units, dense, 12306 parameters\n",
    ] {
        assert!(stdout.contains(line), "{line}\n{stdout}");
    }
    let run = folder.path().join("run");
    assert_eq!(results(&run)["n_parameters"].as_u64(), Some(5425 + 1091 + 12306));
    assert_eq!(metrics(&run).len(), 3);
    files(&run, &["filters.png", "filters-2.png", "filters-3.png", "reconstructions.png", "samples.png"]);
    // 24 filters of 15 pixels, three times as large; the patterns of 11 units that see 17 pixels;
    // 30 that see all 28.
    assert_eq!(picture_size(&run.join("filters.png")), (3 * 10 * 16 + 3, 3 * 3 * 16 + 3));
    assert_eq!(picture_size(&run.join("filters-2.png")), (3 * 10 * 18 + 3, 3 * 2 * 18 + 3));
    assert_eq!(picture_size(&run.join("filters-3.png")), (side(10), side(3)));
    let card = [
        "| 1 | 784 Bernoulli | 1176 Bernoulli | 24 filters of 15x15, maps of 14x14, pooled in blocks of 2x2 | 225 inputs | 5425 |",
        "weights of 24 filters of the lowest layer, those with the largest norm of 24; each sees a window of 15x15; mid-grey is 0",
        "patterns in the pixels, through the layers below, of layer 2: 11 filters those with the largest norm of 11",
        "[filters, values of a filter]",
    ];
    has(&run.join("README.md"), &card);
    let model = Dbn::from_pretrained(&run, &LoadOptions::default()).unwrap();
    let shapes: Vec<_> = model.layers().iter().map(|rbm| rbm.weight().dims().to_vec()).collect();
    assert_eq!(shapes, [vec![24, 225], vec![11, 96], vec![30, 396]]);
}

#[test]
fn filters_may_lie_apart_and_must_end_at_the_border() {
    let folder = tempfile::tempdir().unwrap();
    let few = ["--max-rows", "60", "--epochs", "1", "--batch", "10", "--out", "run"];
    let layers = |layers| [&few[..], &["--layers", layers]].concat();
    let stdout = DBN.succeed(folder.path(), &layers("conv:8x6/stride4/pool2,dense:9"));
    let line = "layer 1: 6 filters of 8x8 every 4, maps of 6x6, pooled in blocks of 2x2, 391 parameters\n";
    assert!(stdout.contains(line), "{stdout}");
    let model = Dbn::from_pretrained(folder.path().join("run"), &LoadOptions::default()).unwrap();
    let grid = model.layers()[0].config().filter_grid().unwrap();
    assert_eq!((grid.stride, grid.n_pooled()), (4, 9 * 6));
    let refused =
        "layer 1: filters of 9x9 every 4 must end with the grid: its height must be 25 or 29, got 28";
    fails(folder.path(), &[&layers("conv:9x6/stride4")[..], &["--overwrite"]].concat(), refused);
}

#[test]
fn a_run_that_was_stopped_in_any_layer_ends_in_the_same_bits_and_is_used_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    DBN.succeed(at, &tiny(&["--out", "whole"]));
    for steps in ["7", "30", "45"] {
        let out = format!("stopped-{steps}");
        DBN.fail(at, &tiny(&["--out", &out, "--stop-after-steps", steps]), 130);
        DBN.succeed(at, &["train", "--resume", &out]);
        assert!(
            weights(&at.join(&out)) == weights(&at.join("whole")),
            "stopped after {steps} steps: other weights"
        );
    }
    for (layer, width) in [("1", 1176), ("2", 396), ("3", 30)] {
        DBN.succeed(at, &["encode", "whole", "--split", "test", "--layer", layer, "--out", "features.npy"]);
        let bytes = std::fs::read(at.join("features.npy")).unwrap();
        assert_eq!(npyz::NpyFile::new(&bytes[..]).unwrap().shape(), [200, width]);
    }
    let evaluated = DBN.json(at, &["evaluate", "whole"]);
    assert_eq!(
        number(&evaluated, "accuracy_features"),
        number(&results(&at.join("whole")), "accuracy_features")
    );
    assert!(number(&DBN.json(at, &["reconstruct", "whole"]), "squared_error") > 0.);
    DBN.succeed(at, &["sample", "whole", "--n", "20", "--steps", "5"]);
    fails(at, &["up-down", "whole"], "every hidden unit must see every visible one, got 24 filters");
}

#[test]
fn layers_that_do_not_fit_are_refused_with_what_does() {
    let folder = tempfile::tempdir().unwrap();
    let refuse = |layers: &str, text: &str| {
        fails(folder.path(), &["--max-rows", "100", "--layers", layers], text);
    };
    refuse(
        "conv:12x24/pool2",
        "--layers: layer 1: blocks of 2x2 must tile the maps of 17x17 that filters of 12x12 give; sizes of the grid that fit: \
         height 27 or 29 instead of 28, width 27 or 29 instead of 28",
    );
    refuse("conv:29x24", "--layers: layer 1: convolution: size must be at most 28");
    refuse(
        "20,conv:2x2",
        "--layers: layer 2: conv:2x2 must not lie on a dense layer; put dense layers on top",
    );
    DBN.refuse(
        folder.path(),
        &["--layers", "conv:9x4/2"],
        "must be dense:N, N, patch:WINDOW/STRIDExHIDDEN or conv:SIZExFILTERS[/strideN][/same][/poolN]",
    );
    let args = ["--max-rows", "100", "--layers", "conv:9x4", "--hidden-unit", "rectified"];
    fails(folder.path(), &args, "hidden units of a convolution must be bernoulli, got rectified");
}

#[test]
fn patches_of_images_are_learned_from_and_kept_in_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let layers = ["--layers", "conv:5x6/pool2,patch:3/2x4", "--visible", "gaussian", "--prepare", "row-mean"];
    let data = ["--data", "natural-images", "--patch", "22x22", "--patches", "300"];
    let rest = ["--epochs", "1", "--batch", "20", "--out", "run"];
    let stdout = DBN.succeed(at, &[&layers[..], &data, &rest].concat());
    assert!(stdout.contains("dbn 484-486-64"), "{stdout}");
    let kept = std::fs::read_to_string(at.join("run/run.json")).unwrap();
    assert!(kept.contains("\"patch\": 22") && kept.contains("\"patches\": 300"), "{kept}");
    // A sub-command cuts the same patches.
    let evaluated = DBN.json(at, &["reconstruct", "run"]);
    assert!(number(&evaluated, "squared_error") > 0.);
    fails(at, &["--patches", "300"], "--patches: give the size of the patches, too, such as --patch 64");
    fails(
        at,
        &["--data", "natural-images", "--patch", "9999"],
        "no image is as large as a patch of 9999x9999; the largest of",
    );
}

#[test]
fn images_smaller_than_a_patch_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("images")).unwrap();
    for i in 0..14u32 {
        let side = if i < 3 { 9 } else { 12 + i };
        let picture =
            image::GrayImage::from_fn(side, side + 2, |x, y| image::Luma([(17 * x + 5 * y + i) as u8]));
        picture.save(at.join(format!("images/{i:02}.png"))).unwrap();
    }
    let args =
        ["train", "--data", "images", "--patch", "12", "--patches", "60", "--hidden", "5", "--epochs", "1"];
    let output = DBN.command(at, &[&args[..], &["--batch", "10", "--out", "run"]].concat()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("--data images: 3 images smaller than a patch of 12x12 left out, 11 used"),
        "{stderr}"
    );
}
