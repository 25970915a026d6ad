//! The launches of `kernels/images/convolution_spectra.cu`.
use super::super::plan::spectra::{Of, Spectra, WARP, pairs};
use super::super::{Convolution, ConvolutionShape};
use super::{begins_on, product};
use crate::core::cuda::Gpu;
use crate::core::op::{In, Out};
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut, DeviceRepr};
use candle::{CudaStorage, Result};

const FILE: &str = "convolution_spectra";

numbers!(Squares { height, width, channels, down, across, step, offset, first, extent, rows, pairs, wide });
numbers!(Products {
    m,
    n,
    terms,
    columns,
    a_lines,
    a_line,
    b_lines,
    b_line,
    turns_a,
    turns_b,
    blocks_down,
    adds,
});

/// An operand or a result, and whether it begins on an even number of its storage.
pub(super) struct Operand<V> {
    values: V,
    even: bool,
}

impl<'a> Operand<CudaView<'a, f32>> {
    pub(super) fn read(from: &In<'a, CudaStorage>) -> Result<Self> {
        Ok(Self { values: from.elements()?, even: begins_on(2, from.layout()?) })
    }
}

impl<'a> Operand<CudaViewMut<'a, f32>> {
    pub(super) fn write(to: Out<'a, CudaStorage>) -> Result<Self> {
        let even = begins_on(2, to.layout());
        Ok(Self { values: to.elements()?, even })
    }
}

/// The factors of a result and of what was there.
pub(super) struct Scales<'a> {
    pub alpha: f32,
    pub beta: f32,
    pub factors: Option<CudaView<'a, f32>>,
}

impl Scales<'_> {
    pub(super) const OVERWRITE: Self = Self { alpha: 1., beta: 0., factors: None };
}

/// One op of one shape.
pub(super) struct BySpectra<'a> {
    pub gpu: &'a Gpu,
    pub op: &'static str,
    pub of: Of,
    pub sizes: Convolution,
    pub plan: Spectra,
}

impl BySpectra<'_> {
    /// Writes the result from the two operands: images or maps, and then filters; for the weights
    /// maps, and then images.
    pub(super) fn run(
        &self,
        out: &mut Operand<CudaViewMut<'_, f32>>,
        first: &Operand<CudaView<'_, f32>>,
        second: &Operand<CudaView<'_, f32>>,
        scales: &Scales<'_>,
    ) -> Result<()> {
        let Self { of, sizes: Convolution { shape, batch, .. }, plan, .. } = *self;
        let (of_x, of_h) = (shape.n_visible(), shape.n_hidden());
        self.gpu.with_room(self.op, |room| {
            let [a, b, c] = plan.starts.map(|start| room + start as u64);
            if of != Of::Weights {
                self.transform(b, &second.values, self.filters(second.even))?;
            }
            for (i, start) in (0..batch).step_by(plan.images).enumerate() {
                let images = plan.images.min(batch - start);
                let rows = images * plan.tiles.count();
                let part = |of_image: usize| start * of_image..(start + images) * of_image;
                let (x, h) = (self.of_images(rows), self.of_maps(rows));
                match of {
                    Of::Maps => self.transform(a, &first.values.slice(part(of_x)), x.even(first.even))?,
                    Of::Images => self.transform(a, &first.values.slice(part(of_h)), h.even(first.even))?,
                    Of::Weights => {
                        self.transform(a, &first.values.slice(part(of_h)), h.even(first.even))?;
                        self.transform(b, &second.values.slice(part(of_x)), x.even(second.even))?;
                    }
                }
                self.multiply([a, b, c], rows, i > 0)?;
                match of {
                    Of::Maps => {
                        self.results(&mut out.values.slice_mut(part(of_h)), c, h.even(out.even), scales)?
                    }
                    Of::Images => {
                        self.results(&mut out.values.slice_mut(part(of_x)), c, x.even(out.even), scales)?
                    }
                    Of::Weights => {}
                }
            }
            match of {
                Of::Weights => self.results(&mut out.values, c, self.filters(out.even), scales),
                Of::Maps | Of::Images => Ok(()),
            }
        })
    }

    /// Squares of the images, and of the maps: see tiles.rs.
    fn of_images(&self, rows: usize) -> Squares {
        let (ConvolutionShape { height, width, channels, size, .. }, tiles) =
            (self.sizes.shape, self.plan.tiles);
        let (offset, first, extent) = match self.of {
            Of::Images => (1 - size as i32, size - 1, tiles.step),
            Of::Maps | Of::Weights => (-(self.sizes.shape.pad() as i32), 0, tiles.side),
        };
        self.squares([height, width, channels], rows, offset, first, extent)
    }

    fn of_maps(&self, rows: usize) -> Squares {
        let (shape, tiles) = (self.sizes.shape, self.plan.tiles);
        let (offset, extent) = match self.of {
            Of::Images => (shape.pad() as i32 + 1 - shape.size as i32, tiles.side),
            Of::Maps | Of::Weights => (0, tiles.step),
        };
        self.squares([shape.out_height(), shape.out_width(), shape.n_filters], rows, offset, 0, extent)
    }

    fn filters(&self, even: bool) -> Squares {
        let ConvolutionShape { size, channels, n_filters, .. } = self.sizes.shape;
        let squares = self.squares([size, size, channels], n_filters, 0, 0, size);
        Squares { down: 1, across: 1, ..squares }.even(even)
    }

    fn squares(
        &self,
        [height, width, channels]: [usize; 3],
        rows: usize,
        offset: i32,
        first: usize,
        extent: usize,
    ) -> Squares {
        let tiles = self.plan.tiles;
        Squares {
            height: height as i32,
            width: width as i32,
            channels: channels as i32,
            down: tiles.down as i32,
            across: tiles.across as i32,
            step: tiles.step as i32,
            offset,
            first: first as i32,
            extent: extent as i32,
            rows: rows as i32,
            pairs: pairs(channels) as i32,
            wide: 0,
        }
    }

    fn transform(&self, spectra: u64, values: &CudaView<'_, f32>, squares: Squares) -> Result<()> {
        let (blocks, shared) = self.plan.transforms(self.items(squares)?);
        let launch = self.gpu.launch(self.op, FILE, &format!("spectra_{}", self.plan.tiles.side))?;
        let launch =
            launch.num(spectra).read(values).num(squares).blocks(blocks, 256).shared(shared).overlapped();
        // SAFETY: (float4*, const float*, Squares). The op checked that the array has the sizes of
        // the shape; the plan that the room holds the spectra of so many rows.
        unsafe { launch.go() }
    }

    fn results(
        &self,
        values: &mut CudaViewMut<'_, f32>,
        spectra: u64,
        squares: Squares,
        scales: &Scales<'_>,
    ) -> Result<()> {
        let (blocks, shared) = self.plan.transforms(self.items(squares)?);
        let launch = self.gpu.launch(self.op, FILE, &format!("results_{}", self.plan.tiles.side))?;
        let launch = launch.write(values).num(spectra).maybe(&scales.factors).num(self.plan.splits as u32);
        let launch = launch
            .num(scales.alpha)
            .num(scales.beta)
            .num(squares)
            .blocks(blocks, 256)
            .shared(shared)
            .overlapped();
        // SAFETY: (float*, const float4*, const float* or null, int, 2 × float, Squares), as above;
        // two factors, checked by the op.
        unsafe { launch.go() }
    }

    /// The products of a chunk of so many rows, added to those before it.
    fn multiply(&self, [a, b, c]: [u64; 3], rows: usize, adds: bool) -> Result<()> {
        let Self { of, sizes: Convolution { shape, .. }, plan, .. } = *self;
        let (channels, filters) = (2 * pairs(shape.channels), 2 * pairs(shape.n_filters));
        let (name, [m, n, columns, terms], [a_line, b_lines]) = match of {
            Of::Maps => {
                ("maps", [rows, filters, shape.n_filters, shape.channels], [channels, shape.n_filters])
            }
            Of::Images => ("images", [rows, channels, channels, shape.n_filters], [filters, shape.n_filters]),
            Of::Weights => ("weights", [shape.n_filters, channels, channels, rows], [filters, rows]),
        };
        let (blocks_down, blocks_across) = (m.div_ceil(WARP * plan.down), n.div_ceil(WARP * plan.across));
        let numbers = Products {
            m: m as i32,
            n: n as i32,
            terms: terms as i32,
            columns: columns as i32,
            a_lines: rows as i32,
            a_line: a_line as i32,
            b_lines: b_lines as i32,
            b_line: channels as i32,
            turns_a: (of == Of::Weights).into(),
            turns_b: (of == Of::Maps).into(),
            blocks_down: blocks_down as i32,
            adds: (of == Of::Weights && adds).into(),
        };
        let kernel = format!("spectral_{name}_{}x{}", plan.down, plan.across);
        let launch = self.gpu.launch(self.op, FILE, &kernel)?.num(c).num(a).num(b).num(numbers);
        let grid = [product(self.op, &[blocks_down, blocks_across])?, plan.frequencies(), plan.splits];
        // SAFETY: (float4*, 2 × const float4*, Products): spectra of the room, where the plan
        // has room for those of so many rows; the kernel before wrote them.
        unsafe { launch.grid(grid, ((32 * plan.down * plan.across) as u32, 1, 1)).overlapped().go() }
    }

    /// Pairs of all rows.
    fn items(&self, squares: Squares) -> Result<usize> {
        product(self.op, &[squares.rows as usize, squares.pairs as usize])
    }
}

impl Squares {
    /// With pairs at once, where they begin on even numbers.
    fn even(self, begins: bool) -> Self {
        Self { wide: (begins && self.channels % 2 == 0).into(), ..self }
    }
}
