//! The difference of two images, and the noise of an image.
use candle::{DType, Device, Result, Tensor};

/// Peak signal-to-noise ratio in dB: `10 log₁₀(peak² / mean((a − b)²))`, summed in f64; infinite
/// for equal images.
///
/// `a` and `b` have one shape; `peak` is the largest value a pixel can have, 255 for grey levels of
/// a byte.
///
/// ```
/// use candle::{Device::Cpu, Tensor};
/// use chandlery::dictionary::image::psnr;
/// # fn main() -> candle::Result<()> {
/// let a = Tensor::new(&[[0f32, 255.], [10., 20.]], &Cpu)?;
/// let b = Tensor::new(&[[0f32, 253.], [10., 20.]], &Cpu)?;
/// // The mean square is 4/4 = 1: 20 log₁₀ 255 = 48.13 dB.
/// assert!((psnr(&a, &b, 255.)? - 48.1308).abs() < 1e-4);
/// # Ok(()) }
/// ```
///
/// # Errors
/// When the shapes differ, an image is empty, or `peak` is not a finite number above 0.
pub fn psnr(a: &Tensor, b: &Tensor, peak: f64) -> Result<f64> {
    crate::check::range("psnr", "peak", peak, "a finite number above 0", |x| x > 0.)?;
    if a.dims() != b.dims() || a.elem_count() == 0 {
        candle::bail!("psnr: a and b must have one shape and a pixel, got {:?} and {:?}", a.dims(), b.dims())
    }
    let values =
        |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let squares: f64 = values(a)?.iter().zip(values(b)?).map(|(a, b)| (a - b).powi(2)).sum();
    Ok(10. * (peak * peak / (squares / a.elem_count() as f64)).log10())
}

/// The standard deviation of white noise in a plane, from its finest diagonal detail:
/// `median |a − b − c + d| / 2 / 0.6745` over all 2×2 blocks `a b / c d` that do not overlap.
///
/// `plane` is `[height, width]` f32, at least 2×2. Image structure of the finest scale counts as
/// noise, so the estimate is a few per cent too high on photographs, and more for images with much
/// fine texture and little noise.
///
/// Source: Donoho and Johnstone, "Ideal spatial adaptation by wavelet shrinkage", Biometrika 81(3),
/// 1994; with the Haar wavelet.
///
/// # Errors
/// When `plane` has another shape or type.
pub fn estimate_sigma(plane: &Tensor) -> Result<f64> {
    /// The median of |x| for normal x.
    const NORMAL_MEDIAN: f64 = 0.674_489_750_196_081_7;
    let width = match *plane.dims() {
        [height, width] if height >= 2 && width >= 2 && plane.dtype() == DType::F32 => width,
        _ => candle::bail!(
            "estimate_sigma: plane must be F32 of shape [height, width] from 2x2 on, got {:?} of {:?}",
            plane.dtype(),
            plane.dims()
        ),
    };
    let pixels = plane.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    let mut details: Vec<f32> = pixels
        .chunks_exact(2 * width)
        .flat_map(|lines| {
            let (upper, lower) = lines.split_at(width);
            upper
                .chunks_exact(2)
                .zip(lower.chunks_exact(2))
                .map(|(u, l)| (u[0] - u[1] - l[0] + l[1]).abs() / 2.)
        })
        .collect();
    let middle = details.len() / 2;
    let (_, median, _) = details.select_nth_unstable_by(middle, f32::total_cmp);
    Ok(f64::from(*median) / NORMAL_MEDIAN)
}
