//! Images are decoded a few at a time: by their bytes, not by their number.
#![cfg(feature = "image")]
mod common;
#[allow(dead_code)] // The largest allocation is asked for elsewhere.
#[path = "common/gauge.rs"]
mod gauge;
use chandlery_datasets::{DataOptions, open};
use common::*;

#[global_allocator]
static GAUGE: gauge::Gauge = gauge::Gauge;

#[test]
fn a_folder_of_photographs_takes_no_more_memory_than_a_few_of_them() -> TestResult {
    // Of 16 million pixels, 48 MB, each; rows go to a temporary file.
    let (side, n) = (4000, 60);
    let dir = tempfile::tempdir()?;
    let first = dir.path().join("0.png");
    let photograph =
        image::RgbImage::from_fn(side, side, |x, y| image::Rgb([(x / 16) as u8, (y / 16) as u8, 7]));
    photograph.save(&first)?;
    drop(photograph);
    for i in 1..n {
        std::fs::hard_link(&first, dir.path().join(format!("{i}.png")))?;
    }
    gauge::Gauge::reset();
    // A shape that differs is found before any is decoded: no image of 48 MB is held.
    std::fs::write(dir.path().join("other.png"), png(2, 3, &[0; 6])?)?;
    let text = message(open_path(dir.path()), dir.path());
    assert!(text.starts_with("DIR/other.png: is 2x3x1 but DIR/0.png is 4000x4000x3"), "{text}");
    assert!(gauge::Gauge::peak() < 40 << 20, "{} bytes", gauge::Gauge::peak());
    std::fs::remove_file(dir.path().join("other.png"))?;
    gauge::Gauge::reset();
    let options = DataOptions { memory_bytes: Some(1 << 20), max_rows: Some(24), ..DataOptions::default() };
    let data = open(&dir.path().display().to_string(), &options)?;
    assert_eq!(data.train.n_samples(), 24);
    // 256 MiB of pixels as planes and as they were decoded, and those of the image in hand; 1.1 GiB
    // if all were decoded at once.
    assert!(gauge::Gauge::peak() < 500 << 20, "{} bytes", gauge::Gauge::peak());
    Ok(())
}
