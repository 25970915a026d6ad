//! Convolution by the fast Fourier transform, for large filters on the CPU.
//!
//! ```text
//! x₁ ∗ w + i x₂ ∗ w = F⁻¹(F(x₁ + i x₂) · conj F(w))       two images at once; w is real
//! ```
//!
//! Images and filters lie at the upper left of a grid of zeros whose sides are products of 2, 3 and
//! 5; positions at which a filter stays within an image do not wrap around. Spectra of filters are
//! made once for all images. Spectra lie column by column, so that a filter's map takes
//! `width` transforms of a column and one of each of its lines.
//!
//! The cost hardly depends on the size of filters: about `10 · n log₂ n` FLOP for each pair of
//! images with each filter, and `8 · n · channels` for the products, over grids of `n` places.
use super::{ConvolutionShape, Padding, Sizes, check};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;
use rustfft::num_complex::Complex32;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

const OP: &str = "convolution_by_fft_";

/// Writes the same as [`convolution_`](super::convolution_) to `maps` by fast Fourier transforms:
/// for f32 on the CPU, without padding and with stride 1. Faster for large filters, see
/// `bench convolution`.
///
/// Errors are some `2⁻²⁴ log₂ n` of the product of the lengths of filter and images, of two images
/// together, whatever the result is. A NaN or an infinity reaches all maps of its image and of the
/// one beside it. Memory: `8 n` bytes for each channel of each filter, and for each filter of each
/// thread.
///
/// # Errors
/// When the shape is none, has padding or a stride, or shapes, types or devices do not fit.
pub fn convolution_by_fft_(maps: &Tensor, x: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<()> {
    let batch = check(OP, maps, shape, [("x", x, Sizes::Images), ("w", w, Sizes::Weights)])?;
    expect(OP, "maps", maps, &[DType::F32], &[batch, shape.n_hidden()])?;
    expect(OP, "x", x, &[DType::F32], &[batch, shape.n_visible()])?;
    if !maps.device().is_cpu() {
        candle::bail!("{OP}: tensors must be on the CPU, got some on a GPU; use convolution_")
    }
    if shape.padding != Padding::Valid || shape.stride != 1 {
        candle::bail!(
            "{OP}: filters must stay within the image and lie at every pixel, got {:?} with stride {}",
            shape.padding,
            shape.stride
        )
    }
    if batch == 0 {
        return Ok(());
    }
    operands(OP).write("maps", maps).read("x", x).read("w", w).run(&ByFft { shape })
}

struct ByFft {
    shape: ConvolutionShape,
}

impl Kernel for ByFft {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([maps], [x, w]) = io.parts()?;
        Transforms::new(self.shape).run(maps.elements()?, x.elements()?, w.elements()?);
        Ok(())
    }
}

/// The least product of 2, 3 and 5 that is at least `n`.
fn fast_length(n: usize) -> usize {
    let smooth = |mut m: usize| {
        for factor in [2, 3, 5] {
            while m.is_multiple_of(factor) {
                m /= factor;
            }
        }
        m == 1
    };
    (n.max(1)..).find(|&m| smooth(m)).unwrap_or(n)
}

/// Transforms of the lines and columns of a grid.
struct Transforms {
    shape: ConvolutionShape,
    height: usize,
    width: usize,
    lines: [Arc<dyn Fft<f32>>; 2],
    columns: [Arc<dyn Fft<f32>>; 2],
}

impl Transforms {
    fn new(shape: ConvolutionShape) -> Self {
        let mut planner = FftPlanner::new();
        let (height, width) = (fast_length(shape.height), fast_length(shape.width));
        let mut both = |n| [planner.plan_fft_forward(n), planner.plan_fft_inverse(n)];
        Self { shape, height, width, lines: both(width), columns: both(height) }
    }

    fn run(&self, maps: &mut [f32], x: &[f32], w: &[f32]) {
        let ConvolutionShape { channels, n_filters, size, .. } = self.shape;
        let (n, of_image) = (self.height * self.width, self.shape.n_visible());
        let mut filters = vec![Complex32::default(); n_filters * channels * n];
        let scale = 1. / n as f32;
        filters.par_chunks_exact_mut(n).enumerate().for_each(|(i, spectrum)| {
            let filter = &w[i / channels * self.shape.filter_len()..][..self.shape.filter_len()];
            let value =
                |y: usize, x: usize| Complex32::new(filter[(y * size + x) * channels + i % channels], 0.);
            self.spectrum(spectrum, [size, size], value);
            spectrum.iter_mut().for_each(|x| *x = x.conj() * scale);
        });
        let pairs = maps.par_chunks_mut(2 * self.shape.n_hidden()).zip(x.par_chunks(2 * of_image));
        pairs.for_each(|(maps, images)| self.pair(maps, images, &filters));
    }

    /// Maps of one image or two.
    fn pair(&self, maps: &mut [f32], images: &[f32], filters: &[Complex32]) {
        let ConvolutionShape { height, width, channels, n_filters, .. } = self.shape;
        let (n, of_image) = (self.height * self.width, self.shape.n_visible());
        let mut spectra = vec![Complex32::default(); channels * n];
        spectra.par_chunks_exact_mut(n).enumerate().for_each(|(c, spectrum)| {
            let value = |y: usize, x: usize| {
                let at = (y * width + x) * channels + c;
                Complex32::new(images[at], images.get(of_image + at).copied().unwrap_or(0.))
            };
            self.spectrum(spectrum, [height, width], value);
        });
        let each: Vec<Vec<Complex32>> =
            filters.par_chunks_exact(channels * n).map(|filter| self.map(&spectra, filter)).collect();
        let (first, second) = maps.split_at_mut(self.shape.n_hidden());
        let lines = first.par_chunks_exact_mut(n_filters).enumerate();
        lines.for_each(|(place, line)| line.iter_mut().zip(&each).for_each(|(y, map)| *y = map[place].re));
        let lines = second.par_chunks_exact_mut(n_filters).enumerate();
        lines.for_each(|(place, line)| line.iter_mut().zip(&each).for_each(|(y, map)| *y = map[place].im));
    }

    /// The spectrum, column by column, of `value(y, x)` within some sides and zeros beyond.
    fn spectrum(
        &self,
        spectrum: &mut [Complex32],
        [height, width]: [usize; 2],
        value: impl Fn(usize, usize) -> Complex32,
    ) {
        let mut line = vec![Complex32::default(); self.width];
        let mut scratch = vec![Complex32::default(); self.scratch()];
        spectrum.fill(Complex32::default());
        for y in 0..height {
            line.fill(Complex32::default());
            line[..width].iter_mut().enumerate().for_each(|(x, to)| *to = value(y, x));
            self.lines[0].process_with_scratch(&mut line, &mut scratch);
            line.iter().enumerate().for_each(|(x, from)| spectrum[x * self.height + y] = *from);
        }
        self.columns[0].process_with_scratch(spectrum, &mut scratch);
    }

    /// The map of one filter, `[out_height · out_width]`.
    fn map(&self, spectra: &[Complex32], filter: &[Complex32]) -> Vec<Complex32> {
        let n = self.height * self.width;
        let (down, across) = (self.shape.out_height(), self.shape.out_width());
        let mut product = vec![Complex32::default(); n];
        for (x, w) in spectra.chunks_exact(n).zip(filter.chunks_exact(n)) {
            product.iter_mut().zip(x).zip(w).for_each(|((to, x), w)| *to += x * w);
        }
        let mut scratch = vec![Complex32::default(); self.scratch()];
        self.columns[1].process_with_scratch(&mut product, &mut scratch);
        let (mut line, mut map) = (vec![Complex32::default(); self.width], Vec::with_capacity(down * across));
        for y in 0..down {
            line.iter_mut().enumerate().for_each(|(x, to)| *to = product[x * self.height + y]);
            self.lines[1].process_with_scratch(&mut line, &mut scratch);
            map.extend_from_slice(&line[..across]);
        }
        map
    }

    fn scratch(&self) -> usize {
        let all = self.lines.iter().chain(&self.columns);
        all.map(|fft| fft.get_inplace_scratch_len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_products_of_small_numbers() {
        let lengths: Vec<usize> = [1, 7, 11, 97, 128, 129, 211].map(fast_length).to_vec();
        assert_eq!(lengths, [1, 8, 12, 100, 128, 135, 216]);
    }
}
