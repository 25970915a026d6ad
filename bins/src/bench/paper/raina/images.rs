//! Patches of whitened natural images.
//!
//! ```text
//! image ← F⁻¹(R(f) F(image)),   R(f) = |f| exp(−(|f|/f₀)⁴),   f₀ = 0.4 cycles a pixel
//! ```
//!
//! The spectrum of natural images falls as `1/|f|`; the filter makes it flat and takes away the
//! highest frequencies, which are mostly noise. Then all values are divided by their deviation.
//!
//! Source: Olshausen and Field, "Sparse coding with an overcomplete basis set: a strategy employed
//! by V1?", Vision Research 37, 1997.
use anyhow::Result;
use candle::{DType, Device};
use chandlery_datasets::patches::{Image, ImageSet, PatchSampler};
use chandlery_datasets::{Split, embedded};
use rayon::prelude::*;
use rustfft::num_complex::Complex32;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

/// `f₀`
const CUT: f32 = 0.4;

/// The embedded photographs, whitened.
pub(super) fn whitened() -> Result<ImageSet> {
    let images = embedded::natural_images()?;
    let mut made = Vec::new();
    for image in images.images() {
        let pixels = whiten(&image.to_f32(), image.height(), image.width());
        made.push(Image::from_f32(image.name(), image.shape(), pixels)?);
    }
    Ok(ImageSet::new("whitened natural images", made)?)
}

/// `n` patches of `side` × `side` pixels in host memory.
pub(super) fn patches(images: &Arc<ImageSet>, side: usize, n: usize) -> Result<Split> {
    let rows = PatchSampler::new(images.clone(), side, n, 24)?.into_split()?.raw(&Device::Cpu)?;
    let rows = rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(Split::from_f32(rows, side * side, None)?)
}

/// An image of mean 0 and deviation 1 with a flat spectrum.
fn whiten(pixels: &[f32], height: usize, width: usize) -> Vec<f32> {
    let mut planner = FftPlanner::new();
    let mut transform = |forward: bool, lines: &mut [Complex32], len: usize| {
        let fft = if forward { planner.plan_fft_forward(len) } else { planner.plan_fft_inverse(len) };
        each_line(fft.as_ref(), lines, len);
    };
    let mut grid: Vec<Complex32> = pixels.iter().map(|&x| Complex32::new(x, 0.)).collect();
    transform(true, &mut grid, width);
    let mut turned = transposed(&grid, width);
    transform(true, &mut turned, height);
    let frequency = |i: usize, n: usize| i.min(n - i) as f32 / n as f32;
    for (c, column) in turned.chunks_exact_mut(height).enumerate() {
        for (r, x) in column.iter_mut().enumerate() {
            let f = frequency(r, height).hypot(frequency(c, width));
            *x *= f * (-(f / CUT).powi(4)).exp();
        }
    }
    transform(false, &mut turned, height);
    let mut grid = transposed(&turned, height);
    transform(false, &mut grid, width);
    let square: f64 = grid.iter().map(|x| f64::from(x.re).powi(2)).sum::<f64>() / grid.len() as f64;
    let scale = if square > 0. { 1. / square.sqrt() as f32 } else { 1. };
    grid.iter().map(|x| x.re * scale).collect()
}

fn each_line(fft: &dyn Fft<f32>, lines: &mut [Complex32], len: usize) {
    lines.par_chunks_exact_mut(len).for_each(|line| fft.process(line));
}

/// Columns as lines.
fn transposed(lines: &[Complex32], len: usize) -> Vec<Complex32> {
    let n = lines.len() / len;
    (0..len).flat_map(|c| (0..n).map(move |r| lines[r * len + c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_less_alike_than_before() -> Result<()> {
        let alike = |pixels: &[f32], width: usize| {
            let n = pixels.len() as f32;
            let mean = pixels.iter().sum::<f32>() / n;
            let square = pixels.iter().map(|x| (x - mean).powi(2)).sum::<f32>();
            let pairs = pixels.chunks_exact(width).flat_map(|line| line.windows(2));
            pairs.map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum::<f32>() / square
        };
        let before = embedded::natural_images()?;
        for (raw, white) in before.images().iter().zip(whitened()?.images()) {
            let (raw, width, white) = (raw.to_f32(), raw.width(), white.to_f32());
            let mean = white.iter().map(|&x| f64::from(x)).sum::<f64>() / white.len() as f64;
            let square = white.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / white.len() as f64;
            assert!(mean.abs() < 1e-3 && (square - 1.).abs() < 1e-3, "{mean} {square}");
            let (raw, white) = (alike(&raw, width), alike(&white, width));
            // The spectra of some photographs fall faster than 1/f; those are not flat afterwards.
            assert!(raw - white > 0.1, "{raw} → {white}");
        }
        Ok(())
    }

    #[test]
    fn a_wave_is_scaled_and_stays_a_wave() {
        // Eight pixels a period: one frequency, which keeps its shape and gets deviation 1.
        let wave = |x: usize| (x as f32 * std::f32::consts::TAU / 8.).cos();
        let pixels: Vec<f32> = (0..16 * 24).map(|i| 3. + 0.2 * wave(i % 24)).collect();
        let got = whiten(&pixels, 16, 24);
        for (i, x) in got.iter().enumerate() {
            let want = std::f32::consts::SQRT_2 * wave(i % 24);
            assert!((x - want).abs() < 1e-4, "pixel {i} is {x}, want {want}");
        }
    }

    #[test]
    fn a_wave_is_multiplied_by_the_filter() {
        let n = 64;
        // 4 waves across, 12 down, as strong as each other.
        let wave = |waves: usize, at: usize| (std::f32::consts::TAU * (waves * at) as f32 / n as f32).cos();
        let pixels: Vec<f32> = (0..n * n).map(|i| wave(4, i % n) + wave(12, i / n)).collect();
        let white = whiten(&pixels, n, n);
        let strength =
            |of: &dyn Fn(usize) -> f32| -> f32 { white.iter().enumerate().map(|(i, x)| x * of(i)).sum() };
        let (across, down) = (strength(&|i| wave(4, i % n)), strength(&|i| wave(12, i / n)));
        let r = |f: f32| f * (-(f / CUT).powi(4)).exp();
        let want = r(4. / 64.) / r(12. / 64.);
        assert!((across / down / want - 1.).abs() < 1e-4, "{across} / {down}, {want}");
    }
}
