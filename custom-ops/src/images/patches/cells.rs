//! Stored rows of a grid to the numbers that a layer of patches reads, cell by cell.
use super::grid::PatchGrid;
use crate::arrays::scale::{check_parts, parts_of, scale_into_reference};
use crate::core::check::expect_layout;
use crate::core::op::{In, Io, Kernel, Out, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;

const OP: &str = "cells_into_";

/// `out ← scale · x` with the values of each row cell by cell: cells of `stride × stride` places,
/// in lines, and in a cell the planes, lines and places with their depth.
///
/// `x` is `[batch, n_values]` u8 or f32, `out` f32, bf16 or f16 of the same shape, or f16
/// `[2, batch, n_values]`: a number is then the sum of two, as in
/// [`split_into_`](crate::arrays::split_into_). `scale` as in
/// [`scale_into_`](crate::arrays::scale_into_).
///
/// # Errors
/// When the height or the width of the grid is not a multiple of the stride, or shapes, types or
/// devices do not fit.
pub fn cells_into_(out: &Tensor, x: &Tensor, grid: &PatchGrid, scale: f32) -> Result<()> {
    grid.validate(OP)?;
    if !(grid.height.is_multiple_of(grid.stride) && grid.width.is_multiple_of(grid.stride)) {
        candle::bail!(
            "{OP}: height and width must be multiples of the stride {}, got {} and {}",
            grid.stride,
            grid.height,
            grid.width
        )
    }
    expect_layout(OP, "x", x, &[DType::U8, DType::F32])?;
    if x.rank() != 2 || x.dims()[1] != grid.n_values() {
        candle::bail!("{OP}: x must have shape [batch, {}], got {:?}", grid.n_values(), x.dims())
    }
    let split = out.rank() == 3;
    if split {
        check_parts(OP, out, x.dims())?;
    } else {
        expect_layout(OP, "out", out, &[DType::F32, DType::BF16, DType::F16])?;
        if out.dims() != x.dims() {
            candle::bail!("{OP}: out must have the shape of x {:?}, got {:?}", x.dims(), out.dims())
        }
    }
    let n = x.elem_count();
    if u32::try_from(n).is_err() {
        candle::bail!("{OP}: x must have fewer than 2^32 entries, got {n}")
    }
    let part = if split { out.stride()[0] } else { 0 };
    let op = Cells { grid: *grid, scale, split, part, from: x.dtype(), to: out.dtype(), n };
    operands(OP).write("out", out).read("x", x).run(&op)
}

/// The same computed with candle's own ops; returns a new f32 tensor.
///
/// # Errors
/// When candle cannot convert `x`.
pub fn cells_into_reference(x: &Tensor, grid: &PatchGrid, scale: f32) -> Result<Tensor> {
    let PatchGrid { planes, height, width, depth, stride, .. } = *grid;
    let lines = (x.dim(0)?, planes, height / stride, stride, width / stride, stride * depth);
    let cells = scale_into_reference(x, scale)?.reshape(lines)?.permute((0, 2, 4, 1, 3, 5))?;
    cells.contiguous()?.reshape(x.shape())
}

struct Cells {
    grid: PatchGrid,
    scale: f32,
    split: bool,
    /// How far on the second part begins.
    part: usize,
    from: DType,
    to: DType,
    n: usize,
}

impl Cells {
    /// Where run `run` of a row in cells lies in a row in lines.
    fn place(&self, run: usize) -> usize {
        let PatchGrid { planes, height, width, depth, stride, .. } = self.grid;
        let (line, plane, cell) = (run % stride, run / stride % planes, run / (stride * planes));
        let (y, x) = (cell / (width / stride) * stride + line, cell % (width / stride) * stride);
        ((plane * height + y) * width + x) * depth
    }

    fn run_cpu<T: candle::WithDType>(
        &self,
        out: Out<'_, CpuStorage>,
        x: In<'_, CpuStorage>,
        wide: impl Fn(T) -> f32 + Sync,
    ) -> Result<()> {
        let x = x.elements::<T>()?;
        let scaled = |x| wide(x) * self.scale;
        match self.to {
            _ if self.split => {
                let [high, low] = parts_of(OP, out, self.part, self.n)?;
                self.each(high, x, |x| f16::from_f32(scaled(x)));
                self.each(low, x, |x| f16::from_f32(scaled(x) - f16::from_f32(scaled(x)).to_f32()));
            }
            DType::BF16 => self.each(out.elements()?, x, |x| bf16::from_f32(scaled(x))),
            DType::F16 => self.each(out.elements()?, x, |x| f16::from_f32(scaled(x))),
            _ => self.each(out.elements()?, x, scaled),
        }
        Ok(())
    }

    fn each<T: Copy + Sync, U: Send>(&self, out: &mut [U], x: &[T], f: impl Fn(T) -> U + Sync) {
        let (n, run) = (self.grid.n_values(), self.grid.stride * self.grid.depth);
        out.par_chunks_mut(n).zip(x.par_chunks(n)).for_each(|(out, x)| {
            for (i, out) in out.chunks_mut(run).enumerate() {
                let from = &x[self.place(i)..][..run];
                out.iter_mut().zip(from).for_each(|(out, &x)| *out = f(x));
            }
        });
    }
}

impl Kernel for Cells {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [x]) = io.parts()?;
        match self.from {
            DType::U8 => self.run_cpu::<u8>(out, x, f32::from),
            _ => self.run_cpu::<f32>(out, x, |x| x),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        // Threads for all entries of a row, if each takes eight, and down the rows one for every
        // eight.
        const THREADS: usize = 256;
        let (of_row, rows) = (self.grid.n_values(), self.n / self.grid.n_values());
        let blocks = [of_row.div_ceil(8 * THREADS), rows.div_ceil(8).clamp(1, 65_535), 1];
        let parts = if self.split { "x2" } else { "" };
        let kernel = format!("cells_{}_{}{parts}", self.from.as_str(), self.to.as_str());
        let grid = crate::core::cuda::Grid::from(&self.grid);
        let ([out], [x]) = io.parts()?;
        for_type!(self.from, [U8: u8; f32], |T| for_type!(self.to, [F32: f32, BF16: bf16; f16], |U| {
            let (mut out, x) = (out.span::<U>(self.part + self.n)?, x.elements::<T>()?);
            let launch = gpu.launch(OP, "cells", &kernel)?.read(&x).write(&mut out);
            let launch = launch.num(self.part as u64).num(grid).num(self.scale).num(rows as u32);
            // SAFETY: (const In*, Out*, unsigned long long, Grid, float, unsigned) of the types
            // named; `cells_into_` checked that x and out have n entries, below 2³², of whole rows
            // of the grid, which has whole cells, and out reaches to the end of its last part.
            unsafe { launch.grid(blocks, (THREADS as u32, 1, 1)).go() }
        }))
    }
}
