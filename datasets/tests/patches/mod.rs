//! Embedded data, image sets, patches, and what is done to rows before a model reads them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod crops;
mod embedded;
mod image_sets;
mod normalize;
mod preparation;
mod sampler;
mod whitening;

use candle::{DType, Device, Tensor};
use chandlery_datasets::patches::{Image, ImageSet};
use chandlery_datasets::{ImageShape, Result};
use chandlery_ops::Philox;

/// The message of an error, or a failure if there is none.
#[track_caller]
fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(e) => e.to_string(),
    }
}

/// Values in [-1, 1), the same for the same seed.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let philox = Philox::new(seed, 0);
    (0..n as u64).map(|i| philox.bits(i) as f32 / (1u64 << 31) as f32 - 1.).collect()
}

/// Rows whose features are correlated and of different sizes: smoothed noise, `[n, n_features]`.
fn correlated(n: usize, n_features: usize, seed: u64) -> Tensor {
    let white = noise(n * (n_features + 2), seed);
    let rows = white.chunks_exact(n_features + 2).flat_map(|row| {
        let smooth = row.windows(3).enumerate();
        smooth.map(|(j, w)| (1. + 0.1 * j as f32) * (w[0] + w[1] + 0.5 * w[2]) + 0.3)
    });
    Tensor::from_vec(rows.collect(), (n, n_features), &Device::Cpu).unwrap()
}

/// An image whose pixel `i` is `first + i`, so that every value says where it is from.
fn numbered(name: &str, height: usize, width: usize, first: usize) -> Image {
    let pixels = (first..first + height * width).map(|i| i as f32);
    Image::from_f32(name, ImageShape::grey(height, width), pixels.collect()).unwrap()
}

/// Three numbered images, of sizes that differ pairwise.
fn three_images() -> ImageSet {
    let images = vec![numbered("a", 5, 7, 0), numbered("b", 11, 4, 1000), numbered("c", 6, 9, 2000)];
    ImageSet::new("three", images).unwrap()
}

/// All values as f64.
fn values(t: &Tensor) -> Vec<f64> {
    let flat = t.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
    flat.to_vec1().unwrap()
}

/// Fails unless `|got - want| <= tolerance` everywhere; NaN fails.
#[track_caller]
fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    let mut worst = (0, -1.);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (g - w).abs();
        if off > worst.1 || off.is_nan() {
            worst = (i, off);
        }
        if off.is_nan() {
            break;
        }
    }
    let (i, off) = worst;
    assert!(
        got.is_empty() || off <= tolerance,
        "{what}: worst at {i}: got {}, want {}, {:.2} times the tolerance {tolerance:e}",
        got[i],
        want[i],
        off / tolerance
    );
}
