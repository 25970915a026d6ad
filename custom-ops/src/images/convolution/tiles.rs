//! The tiles in which a convolution by Fourier transforms is made.
//!
//! ```text
//! maps             Y(f) = Σ_c X(f) · conj W(f)         results 0..step of a tile
//! to the images    V(f) = Σ_o H(f) · W(f)              results size − 1..side
//! to the weights   G(f) = Σ_{b, tiles} conj H(f) · X(f)     results 0..size
//! ```
//!
//! `X`, `H` and `W` are the transforms of squares of `side` places: of the images or maps under a
//! tile, zeros beside them, and of a filter, zeros beyond it. Products of transforms are sums that
//! wrap around the square; a tile keeps the results that do not, `step = side − size + 1` a side,
//! so that tiles lie `step` apart (overlap-save).
use super::ConvolutionShape;

/// The tiles over the maps, or over the images for their gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Side of a tile, with the places that wrap around.
    pub side: usize,
    /// Results of a tile in each direction.
    pub step: usize,
    /// Tiles below and beside each other.
    pub down: usize,
    pub across: usize,
}

impl Tiles {
    /// Those of the maps, also for the gradient to the weights; none for filters as large as a tile.
    pub(super) fn of_maps(shape: ConvolutionShape, side: usize) -> Option<Self> {
        Self::over(shape.out_height(), shape.out_width(), shape.size, side)
    }

    /// Those of the images.
    pub(super) fn of_images(shape: ConvolutionShape, side: usize) -> Option<Self> {
        Self::over(shape.height, shape.width, shape.size, side)
    }

    fn over(height: usize, width: usize, size: usize, side: usize) -> Option<Self> {
        let step = (side + 1).checked_sub(size).filter(|&step| step > 0)?;
        Some(Self { side, step, down: height.div_ceil(step), across: width.div_ceil(step) })
    }

    /// Tiles of an image.
    pub(super) fn count(self) -> usize {
        self.down * self.across
    }

    /// Numbers of the transform of real places: `side` lines of half a line and one.
    pub(super) fn frequencies(self) -> usize {
        self.side * (self.side / 2 + 1)
    }
}
