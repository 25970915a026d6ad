//! Where the windows of a grid lie.
use candle::Result;
use serde::{Deserialize, Serialize};

/// Square windows at equal distances on a grid of values.
///
/// A row of the grid is `[planes, height, width, depth]`. An image has a plane for each channel and
/// depth 1; the hidden units of a layer of patches are one plane whose depth is the number of units
/// of a patch. An entry of a window has the index
/// `((plane · window + y) · window + x) · depth + d`, so that an image's window is a smaller image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PatchGrid {
    /// Planes, at least 1: the channels of an image.
    pub planes: usize,
    /// Lines of a plane.
    pub height: usize,
    /// Places in a line.
    pub width: usize,
    /// Values at a place, at least 1: the hidden units of a patch of the layer below.
    pub depth: usize,
    /// Side of a window, in places: 1 to `height` and to `width`.
    pub window: usize,
    /// Distance between neighbouring windows, in places, 1 to `window`: every value lies in at
    /// least one window.
    pub stride: usize,
}

impl PatchGrid {
    /// Windows of `window` pixels every `stride` pixels on images, whose channels are planes one
    /// after the other.
    pub fn of_image(shape: impl Into<[usize; 3]>, window: usize, stride: usize) -> Self {
        let [height, width, planes] = shape.into();
        Self { planes, height, width, depth: 1, window, stride }
    }

    /// # Errors
    /// When a size is 0, the window is larger than the grid, the stride is larger than the window,
    /// or windows do not end with the grid. Then the message names the nearest sizes that fit.
    pub fn validate(&self, op: &str) -> Result<()> {
        let Self { planes, height, width, depth, window, stride } = *self;
        for (name, size) in [("planes", planes), ("depth", depth), ("window", window), ("stride", stride)] {
            if size == 0 {
                candle::bail!("{op}: {name} must be at least 1, got 0")
            }
        }
        if stride > window {
            candle::bail!(
                "{op}: stride must be at most the window of {window}, so that no value is left out, got {stride}"
            )
        }
        for (name, side) in [("height", height), ("width", width)] {
            if window > side {
                candle::bail!("{op}: window must be at most the {name} of the grid, {side}, got {window}")
            }
            let rest = (side - window) % stride;
            if rest != 0 {
                let (below, above) = (side - rest, side - rest + stride);
                candle::bail!(
                    "{op}: windows of {window} every {stride} must end with the grid: its {name} must be {below} or {above}, got {side}"
                )
            }
        }
        let values = [planes, height, width, depth].iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        match values.filter(|&n| i32::try_from(n).is_ok()) {
            Some(_) => Ok(()),
            None => candle::bail!("{op}: a row of the grid must have fewer than 2^31 values, got {self:?}"),
        }
    }

    /// Windows from top to bottom.
    pub fn down(&self) -> usize {
        (self.height - self.window) / self.stride + 1
    }

    /// Windows from left to right.
    pub fn across(&self) -> usize {
        (self.width - self.window) / self.stride + 1
    }

    /// All windows; they are counted by rows.
    pub fn n_patches(&self) -> usize {
        self.down() * self.across()
    }

    /// Values in a window.
    pub fn window_len(&self) -> usize {
        self.planes * self.window * self.window * self.depth
    }

    /// Values in a row of the grid.
    pub fn n_values(&self) -> usize {
        self.planes * self.height * self.width * self.depth
    }

    /// Values that lie next to each other in a window and in a row.
    pub(crate) fn run(&self) -> usize {
        self.window * self.depth
    }

    /// Where the window of patch `patch` begins in a row.
    pub(crate) fn origin(&self, patch: usize) -> usize {
        let (y, x) = (patch / self.across(), patch % self.across());
        (y * self.width + x) * self.stride * self.depth
    }

    /// Where run `run` of a window begins, from the window's origin on.
    pub(crate) fn run_start(&self, run: usize) -> usize {
        let (plane, y) = (run / self.window, run % self.window);
        (plane * self.height + y) * self.width * self.depth
    }

    /// The place in a row of entry `entry` of the window of patch `patch`.
    pub fn place(&self, patch: usize, entry: usize) -> usize {
        self.origin(patch) + self.run_start(entry / self.run()) + entry % self.run()
    }

    /// Windows across which a value may lie, in one direction.
    pub(crate) fn overlap(&self) -> usize {
        self.window.div_ceil(self.stride)
    }

    /// Whether 64 values that follow each other in a window, from a multiple of 64 on, do so in a
    /// row too, and windows are whole cells: then the products of warpgroups read them as they lie.
    pub(crate) fn has_boxed_windows(&self) -> bool {
        (self.stride * self.depth).is_multiple_of(64) && self.window.is_multiple_of(self.stride)
    }

    /// The grid cut into cells of `stride × stride` places, in which the same windows meet: lines
    /// of cells in all planes, cells of a line, and values of a cell. Cells at the ends may reach
    /// beyond the grid.
    pub(crate) fn cell_lines(&self) -> usize {
        self.planes * self.height.div_ceil(self.stride)
    }

    pub(crate) fn cells_across(&self) -> usize {
        self.width.div_ceil(self.stride)
    }

    pub(crate) fn cell_len(&self) -> usize {
        self.stride * self.stride * self.depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLOUR: PatchGrid = PatchGrid { planes: 3, height: 7, width: 9, depth: 2, window: 3, stride: 2 };

    #[test]
    fn places_of_windows_are_those_of_a_loop() -> Result<()> {
        COLOUR.validate("test")?;
        assert_eq!((COLOUR.down(), COLOUR.across(), COLOUR.window_len()), (3, 4, 54));
        for patch in 0..COLOUR.n_patches() {
            let (top, left) = (patch / 4 * 2, patch % 4 * 2);
            let mut entry = 0;
            for plane in 0..3 {
                for y in 0..3 {
                    for x in 0..3 {
                        for d in 0..2 {
                            let want = ((plane * 7 + top + y) * 9 + left + x) * 2 + d;
                            assert_eq!(COLOUR.place(patch, entry), want);
                            entry += 1;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_grid_that_windows_do_not_tile_is_refused_with_the_nearest_sizes() {
        let refused = |grid: PatchGrid| {
            let text = grid.validate("op").err().map(|e| e.to_string()).unwrap_or_default();
            text.lines().next().unwrap_or_default().to_owned()
        };
        assert_eq!(
            refused(PatchGrid { height: 8, ..COLOUR }),
            "op: windows of 3 every 2 must end with the grid: its height must be 7 or 9, got 8"
        );
        assert_eq!(
            refused(PatchGrid { stride: 4, ..COLOUR }),
            "op: stride must be at most the window of 3, so that no value is left out, got 4"
        );
        assert_eq!(
            refused(PatchGrid { width: 2, ..COLOUR }),
            "op: window must be at most the width of the grid, 2, got 3"
        );
        assert_eq!(refused(PatchGrid { depth: 0, ..COLOUR }), "op: depth must be at least 1, got 0");
    }
}
