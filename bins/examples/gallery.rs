//! Makes the pictures of `bins/gallery` anew, from the built-in data alone, by the programs.
//!
//! ```text
//! cargo build --bin chandlery && cargo run --example gallery [-- --only dbn]
//! ```
//!
//! Seeds are fixed; pictures are cut or made smaller, so that a page loads at once.
use anyhow::{Context, Result, ensure};
use chandlery_datasets::embedded::natural_images;
use clap::Parser;
use image::imageops::{FilterType, crop_imm, resize};
use image::{DynamicImage, GrayImage};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is done to a picture of a run.
#[derive(Clone, Copy)]
enum Fit {
    Whole,
    /// The part of this width and height from the upper left corner on.
    Corner(u32, u32),
    /// All of it, this wide.
    Width(u32),
}
use Fit::{Corner, Whole, Width};

/// Arguments of `chandlery`, and pictures of the run: the file, its name in the gallery, and how
/// much of it.
type Run = (&'static [&'static str], &'static [(&'static str, &'static str, Fit)]);

const RUNS: [Run; 9] = [
    (
        &["dbn", "--out", "run"],
        &[
            ("run/filters.png", "dbn-filters.png", Corner(292, 292)),
            ("run/filters-2.png", "dbn-filters-2.png", Corner(292, 292)),
            ("run/samples.png", "dbn-samples.png", Corner(292, 292)),
        ],
    ),
    (
        &["dae", "--out", "run"],
        &[
            ("run/filters.png", "dae-filters.png", Corner(292, 292)),
            ("run/reconstructions.png", "dae-reconstructions.png", Whole),
        ],
    ),
    (&["dictionary-learning", "--out", "run"], &[("run/dictionary.png", "dictionary-atoms.png", Whole)]),
    (
        &[
            "dictionary-learning",
            "denoise",
            "camera.png",
            "--sigma",
            "25",
            "--add-noise",
            "--comparison",
            "comparison.png",
        ],
        &[("comparison.png", "dictionary-denoised.jpg", Width(768))],
    ),
    (
        &[
            "dictionary-learning",
            "inpaint",
            "camera.png",
            "--missing",
            "0.5",
            "--comparison",
            "comparison.png",
        ],
        &[("comparison.png", "dictionary-inpainted.jpg", Width(768))],
    ),
    (&["sparse-coding", "--out", "run"], &[("run/basis.png", "sparse-coding-basis.png", Whole)]),
    (
        &["sparse-autoencoder", "--out", "run"],
        &[("run/filters.png", "sparse-autoencoder-patches.png", Whole)],
    ),
    (
        &[
            "sparse-autoencoder",
            "--data",
            "mnist-sample",
            "--hidden",
            "196",
            "--sparsity-target",
            "0.1",
            "--weight-decay",
            "3e-3",
            "--out",
            "run",
        ],
        &[("run/filters.png", "sparse-autoencoder-digits.png", Corner(292, 292))],
    ),
    (
        &["tsne", "--thumbnails", "--out", "run"],
        &[
            ("run/scatter.png", "tsne-scatter.png", Width(480)),
            ("run/thumbnails.png", "tsne-thumbnails.jpg", Width(800)),
        ],
    ),
];

#[derive(Debug, Parser)]
struct Args {
    /// The program whose pictures are made; default: all.
    #[arg(long)]
    only: Option<String>,
    /// Folder of the pictures.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/gallery"))]
    out: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let here = std::env::current_exe()?;
    let program = here.ancestors().nth(2).context("no folder of programs")?.join("chandlery");
    for (arguments, pictures) in RUNS {
        if args.only.as_ref().is_some_and(|only| only != arguments[0]) {
            continue;
        }
        let folder = tempfile::tempdir()?;
        write_camera(&folder.path().join("camera.png"))?;
        println!("chandlery {}", arguments.join(" "));
        let status = Command::new(&program).args(arguments).current_dir(folder.path()).status();
        let status = status.with_context(|| format!("{}: build it first", program.display()))?;
        ensure!(status.success(), "chandlery {arguments:?}: {status}");
        for (from, to, fit) in pictures {
            let picture = image::open(folder.path().join(from)).with_context(|| (*from).to_owned())?;
            fitted(picture, *fit).save(args.out.join(to))?;
        }
    }
    Ok(())
}

/// The built-in photograph of a man with a camera.
fn write_camera(path: &Path) -> Result<()> {
    let photographs = natural_images()?;
    let camera = photographs.images().first().context("no photograph")?;
    let pixels = camera.to_f32().iter().map(|x| (x * 255.).round() as u8).collect();
    let picture = GrayImage::from_vec(camera.width() as u32, camera.height() as u32, pixels);
    Ok(picture.context("a plane of bytes")?.save(path)?)
}

fn fitted(picture: DynamicImage, fit: Fit) -> DynamicImage {
    let picture = picture.to_rgb8();
    match fit {
        Whole => picture,
        Corner(width, height) => crop_imm(&picture, 0, 0, width, height).to_image(),
        Width(width) => {
            let height = (width * picture.height()).div_ceil(picture.width());
            resize(&picture, width, height, FilterType::Lanczos3)
        }
    }
    .into()
}
