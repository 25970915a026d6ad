//! All patches of an image as rows, and the image from such rows.
//!
//! ```text
//! (R_ij y)[b·u + v] = y[t_i + u, l_j + v]         the patch at line t_i, pixel l_j;  u, v = 0 … b − 1
//! t_i = min(i·step, H − b),  l_j = min(j·step, W − b)      so that the last patches end at the border of the image
//! s = Σ_ij R_ijᵀ z_ij                             sum of the rows, each at the place of its patch
//! c = Σ_ij R_ijᵀ 1                                number of patches that contain a pixel
//! ```
//!
//! | symbol | name | shape |
//! |---|---|---|
//! | `y`, `s`, `c` | `image`, `sum`, `cover` | `[height, width]` |
//! | `R_ij y`, `z_ij` | `rows` | `[n_tops · n_lefts, side²]`, line by line of the image |
//! | `t`, `l` | `tops`, `lefts` | |
//! | `b` | `side` | |
//!
//! Rows of a large image need `side²` times its memory, so all functions work on bands, which are
//! ranges of `tops`. The CPU copies and sums a band line by line on all cores; other devices use
//! candle's own gathers. Both have a fixed order of summation, so results on one device are
//! reproducible.
use candle::{DType, Device, Result, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// The places of the patches of an image; see the [module](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchGrid {
    height: usize,
    width: usize,
    side: usize,
    tops: Vec<usize>,
    lefts: Vec<usize>,
}

impl PatchGrid {
    /// Patches of `side`×`side` pixels every `step` pixels of an image of `height`×`width`; the
    /// last patches of lines and columns end at the border of the image.
    ///
    /// # Errors
    /// When `side` is 0 or more than the height or the width, or `step` is 0 or more than `side`,
    /// so that some pixels would be in no patch.
    pub fn new(height: usize, width: usize, side: usize, step: usize) -> Result<Self> {
        if side == 0 || side > height.min(width) {
            candle::bail!(
                "PatchGrid: side must be between 1 and the image's {height}x{width}, got {side}; take smaller patches"
            )
        }
        if step == 0 || step > side {
            candle::bail!("PatchGrid: step must be between 1 and side = {side}, got {step}")
        }
        Ok(Self { height, width, side, tops: starts(height, side, step), lefts: starts(width, side, step) })
    }

    /// Height and width of a patch.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Values of a patch: `side²`.
    pub fn n_features(&self) -> usize {
        self.side * self.side
    }

    /// Total number of patches.
    pub fn n_patches(&self) -> usize {
        self.tops.len() * self.lefts.len()
    }

    /// First lines of the patches, ascending.
    pub fn tops(&self) -> &[usize] {
        &self.tops
    }

    /// First pixels of the patches in a line, ascending.
    pub fn lefts(&self) -> &[usize] {
        &self.lefts
    }

    /// `tops` cut into ranges of about `n_patches` patches each, with at least one line of patches.
    pub fn bands(&self, n_patches: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (n_tops, lines) = (self.tops.len(), (n_patches / self.lefts.len()).max(1));
        (0..n_tops).step_by(lines).map(move |first| first..(first + lines).min(n_tops))
    }

    /// The lines of the image that the patches of a band cover.
    pub fn lines_of(&self, band: &Range<usize>) -> Range<usize> {
        match (self.tops.get(band.start), band.end.checked_sub(1).and_then(|last| self.tops.get(last))) {
            (Some(&first), Some(&last)) if first <= last => first..last + self.side,
            _ => 0..0,
        }
    }

    /// The patches of a band: `[band.len() · n_lefts, side²]`, on the image's device.
    ///
    /// `image` is `[height, width]` f32.
    ///
    /// # Errors
    /// When `image` has another shape or type, or the band is empty or ends beyond `tops`.
    pub fn rows(&self, image: &Tensor, band: Range<usize>) -> Result<Tensor> {
        self.check("PatchGrid::rows", "image", image, &[self.height, self.width], &band)?;
        if !image.device().is_cpu() {
            return self.rows_by_gathers(image, &band);
        }
        let (side, n_features) = (self.side, self.n_features());
        let pixels = image.flatten_all()?.to_vec1::<f32>()?;
        let mut rows = vec![0f32; band.len() * self.lefts.len() * n_features];
        rows.par_chunks_mut(self.lefts.len() * n_features).zip(&self.tops[band.clone()]).for_each(
            |(rows, &top)| {
                for (row, &left) in rows.chunks_exact_mut(n_features).zip(&self.lefts) {
                    for (u, line) in row.chunks_exact_mut(side).enumerate() {
                        let start = (top + u) * self.width + left;
                        line.copy_from_slice(&pixels[start..start + side]);
                    }
                }
            },
        );
        Tensor::from_vec(rows, (band.len() * self.lefts.len(), n_features), &Device::Cpu)
    }

    /// The sum of the rows of a band, each at the place of its patch: `[lines, width]`, the lines
    /// of [`lines_of`](Self::lines_of).
    ///
    /// `rows` is `[band.len() · n_lefts, side²]` f32.
    ///
    /// # Errors
    /// When `rows` has another shape or type, or the band is empty or ends beyond `tops`.
    pub fn sum(&self, rows: &Tensor, band: Range<usize>) -> Result<Tensor> {
        let n_rows = band.len() * self.lefts.len();
        self.check("PatchGrid::sum", "rows", rows, &[n_rows, self.n_features()], &band)?;
        if !rows.device().is_cpu() {
            return self.sum_by_gathers(rows, &band);
        }
        let (side, n_features, lines) = (self.side, self.n_features(), self.lines_of(&band));
        let values = rows.flatten_all()?.to_vec1::<f32>()?;
        let mut sum = vec![0f32; lines.len() * self.width];
        // Each line of a patch belongs to one line of the image: lines share nothing, and read all
        // values once.
        sum.par_chunks_mut(self.width).enumerate().for_each(|(y, sum)| {
            let y = lines.start + y;
            for (i, &top) in self.tops[band.clone()].iter().enumerate() {
                if !(top..top + side).contains(&y) {
                    continue;
                }
                let rows = values[i * self.lefts.len() * n_features..].chunks_exact(n_features);
                for (row, &left) in rows.zip(&self.lefts) {
                    let line = &row[(y - top) * side..][..side];
                    for (sum, value) in sum[left..left + side].iter_mut().zip(line) {
                        *sum += value;
                    }
                }
            }
        });
        Tensor::from_vec(sum, (lines.len(), self.width), &Device::Cpu)
    }

    /// The number of patches that contain each pixel, `[height, width]` f32, at least 1.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn cover(&self, device: &Device) -> Result<Tensor> {
        let count = |starts: &[usize], length: usize| {
            let mut count = vec![0f32; length];
            for &start in starts {
                count[start..start + self.side].iter_mut().for_each(|c| *c += 1.);
            }
            count
        };
        let down = Tensor::from_vec(count(&self.tops, self.height), (self.height, 1), device)?;
        let across = Tensor::from_vec(count(&self.lefts, self.width), (1, self.width), device)?;
        down.broadcast_mul(&across)
    }

    /// [`rows`](Self::rows) by candle's gathers, one for each pixel of a patch. Tests also use it
    /// as the reference for the copying form.
    ///
    /// # Errors
    /// When candle refuses, as when memory is short.
    pub fn rows_by_gathers(&self, image: &Tensor, band: &Range<usize>) -> Result<Tensor> {
        let device = image.device();
        let lines = (0..self.side)
            .map(|u| image.index_select(&shifted(&self.tops[band.clone()], u, device)?, 0))
            .collect::<Result<Vec<_>>>()?;
        let columns = (0..self.side).map(|v| shifted(&self.lefts, v, device)).collect::<Result<Vec<_>>>()?;
        let mut pixels = Vec::with_capacity(self.n_features());
        for line in &lines {
            for column in &columns {
                pixels.push(line.index_select(column, 1)?);
            }
        }
        Tensor::stack(&pixels, 2)?.reshape((band.len() * self.lefts.len(), self.n_features()))
    }

    /// [`sum`](Self::sum) by candle's indexed additions. Tests also use it as the reference.
    ///
    /// # Errors
    /// When candle refuses, as when memory is short.
    pub fn sum_by_gathers(&self, rows: &Tensor, band: &Range<usize>) -> Result<Tensor> {
        let (device, lines) = (rows.device(), self.lines_of(band));
        let values = rows.reshape((band.len(), self.lefts.len(), self.n_features()))?;
        let tops: Vec<usize> = self.tops[band.clone()].iter().map(|top| top - lines.start).collect();
        let mut sum = Tensor::zeros((lines.len(), self.width), DType::F32, device)?;
        for u in 0..self.side {
            let mut line = Tensor::zeros((band.len(), self.width), DType::F32, device)?;
            for v in 0..self.side {
                let value = values.narrow(2, u * self.side + v, 1)?.squeeze(2)?.contiguous()?;
                line = line.index_add(&shifted(&self.lefts, v, device)?, &value, 1)?;
            }
            sum = sum.index_add(&shifted(&tops, u, device)?, &line, 0)?;
        }
        Ok(sum)
    }

    fn check(&self, op: &str, name: &str, t: &Tensor, want: &[usize], band: &Range<usize>) -> Result<()> {
        if band.is_empty() || band.end > self.tops.len() {
            candle::bail!(
                "{op}: band must not be empty and lie in 0..{}, got {band:?}; take one of `bands`",
                self.tops.len()
            )
        }
        if t.dims() != want || t.dtype() != DType::F32 {
            candle::bail!("{op}: {name} must be F32 of shape {want:?}, got {:?} of {:?}", t.dtype(), t.dims())
        }
        Ok(())
    }
}

/// Accumulates an image from the sums of its bands, in order; see [`PatchGrid::sum`].
///
/// Neighbouring bands share up to `side − 1` lines, which are kept here until the second band is
/// added; so each line is written once, whatever the height of the image.
#[derive(Debug, Default)]
pub struct BandSum {
    finished: Vec<Tensor>,
    waiting: Option<Tensor>,
}

impl BandSum {
    /// Adds the sum of the next band of `grid`.
    ///
    /// # Errors
    /// When candle refuses, as when memory is short.
    pub fn add(&mut self, grid: &PatchGrid, band: &Range<usize>, sum: Tensor) -> Result<()> {
        let lines = grid.lines_of(band);
        let sum = match self.waiting.take() {
            Some(waiting) if waiting.dim(0)? > 0 => {
                let shared = waiting.dim(0)?;
                let first = (sum.narrow(0, 0, shared)? + waiting)?;
                Tensor::cat(&[first, sum.narrow(0, shared, lines.len() - shared)?], 0)?
            }
            _ => sum,
        };
        // The next band begins at its first top; what lies above is whole.
        let whole = grid.tops.get(band.end).map_or(lines.len(), |&next| next - lines.start);
        self.finished.push(sum.narrow(0, 0, whole)?);
        self.waiting = Some(sum.narrow(0, whole, lines.len() - whole)?);
        Ok(())
    }

    /// The image, after all bands were added: `[height, width]`.
    ///
    /// # Errors
    /// When there was no band.
    pub fn image(self) -> Result<Tensor> {
        Tensor::cat(&self.finished, 0)
    }
}

/// First positions of patches along one axis.
fn starts(length: usize, side: usize, step: usize) -> Vec<usize> {
    let last = length - side;
    (0..last).step_by(step).chain([last]).collect()
}

fn shifted(starts: &[usize], by: usize, device: &Device) -> Result<Tensor> {
    let indices: Vec<u32> = starts.iter().map(|start| (start + by) as u32).collect();
    Tensor::new(indices, device)
}
