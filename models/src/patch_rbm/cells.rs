//! The order in which a step holds the values of a grid and the entries of its windows.
//!
//! Windows that are whole cells of `stride × stride` places are windows of a grid of cells, one
//! cell apart, with the values of a cell as its depth: the same network, with its units in another
//! order. Then the values of a window lie together in long runs, which products read several times
//! as fast as runs of `window · depth` values (see `is_straight` in the ops).
use super::PatchGrid;
use crate::rbm::{Rbm, RbmConfig, RbmConnections};
use candle::{Result, Tensor};

/// Values that must lie together.
const RUN: usize = 64;

/// From the values of a grid, in lines of places, to those of the same grid in cells, and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cells {
    lines: PatchGrid,
    cells: PatchGrid,
}

impl Cells {
    /// The cells of a grid whose windows gain by them; none for others.
    pub(crate) fn of(grid: &PatchGrid) -> Option<Self> {
        let PatchGrid { planes, height, width, depth, window, stride } = *grid;
        let whole = [height, width, window].iter().all(|n| n.is_multiple_of(stride));
        let of_cell = planes * stride * stride * depth;
        let gains = !(stride * depth).is_multiple_of(RUN) && of_cell.is_multiple_of(RUN);
        let cells = PatchGrid {
            planes: 1,
            height: height / stride,
            width: width / stride,
            depth: of_cell,
            window: window / stride,
            stride: 1,
        };
        (whole && gains).then_some(Self { lines: *grid, cells })
    }

    /// The same of so many lines of cells.
    pub(crate) fn of_lines(&self, height: usize) -> Self {
        Self {
            lines: PatchGrid { height: height * self.lines.stride, ..self.lines },
            cells: PatchGrid { height, ..self.cells },
        }
    }

    /// The grid in lines of places.
    pub(crate) fn lines(&self) -> &PatchGrid {
        &self.lines
    }

    /// Rows of the grid, `[.., n_values]`, with their values cell by cell.
    pub(crate) fn rows(&self, t: &Tensor) -> Result<Tensor> {
        self.in_cells(t, self.lines.height, self.lines.width)
    }

    /// The opposite of [`rows`](Self::rows).
    pub(crate) fn rows_back(&self, t: &Tensor) -> Result<Tensor> {
        self.in_lines(t, self.lines.height, self.lines.width)
    }

    /// Weights of windows, `[.., window_len]`, with the entries of a window cell by cell.
    pub(crate) fn windows(&self, t: &Tensor) -> Result<Tensor> {
        self.in_cells(t, self.lines.window, self.lines.window)
    }

    /// The opposite of [`windows`](Self::windows).
    pub(crate) fn windows_back(&self, t: &Tensor) -> Result<Tensor> {
        self.in_lines(t, self.lines.window, self.lines.window)
    }

    fn in_cells(&self, t: &Tensor, height: usize, width: usize) -> Result<Tensor> {
        let (PatchGrid { planes, stride, depth, .. }, n) = (self.lines, t.elem_count());
        let of_one = planes * height * width * depth;
        let folded =
            t.reshape((n / of_one, planes, height / stride, stride, width / stride, stride * depth))?;
        folded.permute((0, 2, 4, 1, 3, 5))?.contiguous()?.reshape(t.shape())
    }

    fn in_lines(&self, t: &Tensor, height: usize, width: usize) -> Result<Tensor> {
        let (PatchGrid { planes, stride, depth, .. }, n) = (self.lines, t.elem_count());
        let of_one = planes * height * width * depth;
        let folded =
            t.reshape((n / of_one, height / stride, width / stride, planes, stride, stride * depth))?;
        folded.permute((0, 3, 1, 4, 2, 5))?.contiguous()?.reshape(t.shape())
    }

    /// The same network with its visible units in the order of cells.
    pub(crate) fn rbm(&self, rbm: &Rbm) -> Result<Rbm> {
        let config = RbmConfig { connections: RbmConnections::Patches(self.cells), ..rbm.config().clone() };
        self.reordered(rbm, config, Self::windows, Self::rows)
    }

    /// The opposite of [`rbm`](Self::rbm).
    pub(crate) fn rbm_back(&self, rbm: &Rbm) -> Result<Rbm> {
        let config = RbmConfig { connections: RbmConnections::Patches(self.lines), ..rbm.config().clone() };
        self.reordered(rbm, config, Self::windows_back, Self::rows_back)
    }

    fn reordered(
        &self,
        rbm: &Rbm,
        config: RbmConfig,
        windows: impl Fn(&Self, &Tensor) -> Result<Tensor>,
        rows: impl Fn(&Self, &Tensor) -> Result<Tensor>,
    ) -> Result<Rbm> {
        Rbm::from_tensors(
            config,
            windows(self, rbm.weight())?,
            rbm.bias().clone(),
            rows(self, rbm.visible_bias())?,
            rbm.log_variance().map(|v| rows(self, v)).transpose()?,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device;
    use chandlery_ops::Philox;
    use chandlery_ops::core::normal;
    use chandlery_ops::images::{PatchDirection, patch_product_reference};

    fn grid([planes, height, width, depth]: [usize; 4], window: usize, stride: usize) -> PatchGrid {
        PatchGrid { planes, height, width, depth, window, stride }
    }

    #[test]
    fn a_network_in_cells_is_the_same_network() -> Result<()> {
        for grid in [grid([1, 24, 40, 1], 24, 8), grid([3, 16, 8, 4], 8, 4), grid([2, 12, 16, 8], 8, 4)] {
            let Some(cells) = Cells::of(&grid) else { candle::bail!("{grid:?} has no cells") };
            let of = |shape: &[usize], stream| normal(shape, &Device::Cpu, Philox::new(80, stream));
            let (rows, hidden) = (of(&[5, grid.n_values()], 0)?, of(&[5, grid.n_patches() * 6], 1)?);
            let weight = of(&[grid.n_patches(), 6, grid.window_len()], 2)?;
            assert_eq!(cells.rows_back(&cells.rows(&rows)?)?.to_vec2::<f32>()?, rows.to_vec2::<f32>()?);
            let there = cells.windows(&weight)?;
            assert_eq!(cells.windows_back(&there)?.to_vec3::<f32>()?, weight.to_vec3::<f32>()?);
            let close = |a: Tensor, b: Tensor| -> Result<()> {
                let most = (a - b)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(most < 1e-3, "{grid:?}: {most}");
                Ok(())
            };
            let up =
                |x: &Tensor, w: &Tensor, g: &PatchGrid| patch_product_reference(x, w, g, PatchDirection::Up);
            close(up(&cells.rows(&rows)?, &there, &cells.cells)?, up(&rows, &weight, &grid)?)?;
            let down = |h: &Tensor, w: &Tensor, g: &PatchGrid| {
                patch_product_reference(h, w, g, PatchDirection::Down)
            };
            close(down(&hidden, &there, &cells.cells)?, cells.rows(&down(&hidden, &weight, &grid)?)?)?;
        }
        Ok(())
    }

    #[test]
    fn only_windows_of_whole_cells_with_short_runs_have_cells() {
        assert!(Cells::of(&grid([1, 24, 24, 1], 20, 8)).is_none(), "windows of half cells");
        assert!(Cells::of(&grid([1, 12, 12, 1], 8, 4)).is_none(), "cells of 16 values");
        assert!(Cells::of(&grid([1, 18, 18, 256], 4, 2)).is_none(), "runs that are long already");
        assert!(Cells::of(&grid([1, 18, 18, 64], 3, 1)).is_none(), "cells of one place");
    }
}
