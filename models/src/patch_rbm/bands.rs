//! Lines of windows that one rank of a group has, of a layer in training and of those below it.
//!
//! The windows of a rank are those of a smaller grid: some lines of the whole one. So what a rank
//! trains is an RBM of its own, on top of RBMs of the lines that these windows see. Ranks next to each
//! other share the values that windows of both cover, and sum what goes into them.
use super::{Cells, PatchGrid};
use crate::rbm::{Rbm, RbmConfig, RbmConnections};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::columns_into_;
use chandlery_ops::core::Draws;
use chandlery_ops::{Group, Philox};
use std::ops::Range;

/// Bands begin at multiples of the first of these by which draws come in blocks of four.
const BLOCKS: [usize; 3] = [1, 2, 4];

/// Some lines of a grid, the same in each of its planes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lines {
    planes: usize,
    /// Of the values of a plane.
    values: Range<usize>,
    of: usize,
}

impl Lines {
    fn of(grid: &PatchGrid, lines: Range<usize>) -> Self {
        let line = grid.width * grid.depth;
        let values = lines.start * line..lines.end * line;
        Self { planes: grid.planes, values, of: grid.height * line }
    }

    /// Planes of the grid.
    pub fn planes(&self) -> usize {
        self.planes
    }

    /// Values of all lines, of a row.
    pub fn n_of_all(&self) -> usize {
        self.planes * self.of
    }

    /// The values of these lines of a tensor `[.., n_of_all]`.
    pub fn own(&self, all: &Tensor) -> Result<Tensor> {
        let mut shape = all.dims().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.planes * self.values.len();
        }
        let by_plane = all.reshape(((), self.planes, self.of))?;
        by_plane.narrow(2, self.values.start, self.values.len())?.contiguous()?.reshape(shape)
    }

    /// The same of rows, `[rows, n_of_all]` f32 or u8, in one launch.
    pub fn own_rows(&self, rows: &Tensor) -> Result<Tensor> {
        let n = rows.dim(0)?;
        let own = Tensor::zeros((n * self.planes, self.values.len()), rows.dtype(), rows.device())?;
        let all = rows.reshape((n * self.planes, self.of))?;
        columns_into_(&own, &all.narrow(1, self.values.start, self.values.len())?)?;
        own.reshape((n, self.planes * self.values.len()))
    }

    /// Puts some of these lines to where they lie in `[rows, n_of_all]`: of `own`, the lines of `part`,
    /// which are some of these.
    fn put(&self, all: &Tensor, own: &Tensor, part: &Self) -> Result<()> {
        let by_plane = |t: &Tensor, n: usize| t.reshape(((), n));
        let own = by_plane(own, self.values.len())?;
        let n = part.values.len();
        let from = own.narrow(1, part.values.start - self.values.start, n)?;
        columns_into_(&by_plane(all, self.of)?.narrow(1, part.values.start, n)?, &from)
    }

    /// Where the values of these lines take their draws, as a matrix `[rows · planes, values]`.
    pub fn draws<'a>(&self, philox: Philox, counter: &'a Tensor) -> Draws<'a> {
        Draws::Columns { philox, counter, first: self.values.start, of: self.of }
    }

    /// A tensor of rows as that matrix; a view of contiguous ones.
    pub fn by_plane(&self, rows: &Tensor) -> Result<Tensor> {
        rows.reshape(((), self.values.len()))
    }
}

/// The lines of windows of a rank in one layer.
#[derive(Debug, Clone)]
struct LayerBand {
    whole: PatchGrid,
    windows: Range<usize>,
}

impl LayerBand {
    fn new(whole: PatchGrid, windows: Range<usize>) -> Self {
        Self { whole, windows }
    }

    /// Lines of places that the windows cover.
    fn places(&self) -> Range<usize> {
        let PatchGrid { window, stride, .. } = self.whole;
        self.windows.start * stride..self.windows.end.saturating_sub(1) * stride + window
    }

    fn grid(&self) -> PatchGrid {
        PatchGrid { height: self.places().len(), ..self.whole }
    }

    fn patches(&self) -> Range<usize> {
        let across = self.whole.across();
        self.windows.start * across..self.windows.end * across
    }

    fn config(&self, whole: &RbmConfig) -> RbmConfig {
        let (grid, per_patch) = (self.grid(), whole.n_hidden / self.whole.n_patches());
        RbmConfig {
            n_visible: grid.n_values(),
            n_hidden: grid.n_patches() * per_patch,
            connections: RbmConnections::Patches(grid),
            ..whole.clone()
        }
    }

    /// The RBM of these windows.
    fn rbm(&self, whole: &Rbm) -> Result<Rbm> {
        let (patches, per_patch) = (self.patches(), whole.config().n_hidden / self.whole.n_patches());
        let of_windows =
            |t: &Tensor, per: usize| t.narrow(0, patches.start * per, patches.len() * per)?.contiguous();
        Rbm::from_tensors(
            self.config(whole.config()),
            of_windows(whole.weight(), 1)?,
            of_windows(whole.bias(), per_patch)?,
            Lines::of(&self.whole, self.places()).own(whole.visible_bias())?,
            None,
        )
    }
}

/// The lines of windows of a rank, in the layer in training and in each below it.
#[derive(Debug, Clone)]
pub(crate) struct Band {
    own: LayerBand,
    /// Lowest first.
    below: Vec<LayerBand>,
    /// Of the lowest, where that has its values in cells.
    cells: Option<Cells>,
    /// Lines of places of the layer in training that several ranks have.
    seams: Vec<Range<usize>>,
    /// Lines of places that count for this rank, of those that several have.
    counted: Range<usize>,
}

impl Band {
    /// Those of this rank, of `rbm` above `lower`, the lowest first; with `cells`, the lowest has its
    /// values in cells.
    ///
    /// # Errors
    /// When windows or draws do not divide so, or a layer below has no patches.
    pub fn of(group: &Group, lower: &[Rbm], rbm: &RbmConfig, cells: Option<Cells>) -> Result<Self> {
        let Some(whole) = rbm.patch_grid() else { candle::bail!("RbmTrainer: the layer must have patches") };
        let block = Self::block(group.world(), &whole, rbm.n_hidden / whole.n_patches())?;
        let windows = |rank: usize| {
            let blocks = group.part_of(rank, whole.down().div_ceil(block));
            block * blocks.start..(block * blocks.end).min(whole.down())
        };
        let of_rank = |rank: usize| LayerBand::new(whole, windows(rank));
        let mut seams: Vec<Range<usize>> = vec![];
        for rank in 1..group.world() {
            let shared = of_rank(rank).places().start..of_rank(rank - 1).places().end;
            match seams.last_mut().filter(|last| last.end >= shared.start) {
                Some(last) => last.end = shared.end,
                None if shared.is_empty() => {}
                None => seams.push(shared),
            }
        }
        let own = of_rank(group.rank());
        let is_last = group.rank() + 1 == group.world();
        let end = if is_last { whole.height } else { own.windows.end * whole.stride };
        let counted = own.places().start..end;
        let mut below: Vec<LayerBand> = vec![];
        let (mut seen, mut of) = (own.places(), rbm.clone());
        for layer in lower.iter().rev() {
            let config = layer.config();
            match (config.patch_grid(), of.patch_grid()) {
                (Some(grid), Some(above))
                    if config.hidden_grid(above.window, above.stride) == Some(above) =>
                {
                    let band = LayerBand::new(grid, seen);
                    seen = band.places();
                    below.push(band);
                }
                _ => candle::bail!(
                    "RbmTrainer: of a layer of patches on several ranks, the layers below must have patches whose units are its grid; train this one on one rank"
                ),
            }
            of = config.clone();
        }
        below.reverse();
        Ok(Self { own, below, cells, seams, counted })
    }

    /// Lines of windows that a band is made of.
    fn block(world: usize, grid: &PatchGrid, per_patch: usize) -> Result<usize> {
        let PatchGrid { height, width, depth, window, stride, .. } = *grid;
        let (line, units) = (width * depth, grid.across() * per_patch);
        let fours = |n: usize| n.is_multiple_of(4);
        let whole = fours(height * line) && fours((window - stride) * line) && fours(grid.down() * units);
        let fits = |block: &usize| {
            fours(block * stride * line) && fours(block * units) && grid.down().div_ceil(*block) >= world
        };
        match BLOCKS.into_iter().find(fits) {
            Some(block) if whole => Ok(block),
            _ => candle::bail!(
                "RbmTrainer: of patches, each of {world} ranks must have a line of windows, of units and of values by fours, \
                 got {} lines of {units} units each, on lines of {line} values",
                grid.down()
            ),
        }
    }

    /// The RBM in training, of this rank.
    pub fn config(&self, whole: &RbmConfig) -> RbmConfig {
        self.own.config(whole)
    }

    /// The RBMs below of what this rank sees, of those of all.
    pub fn below(&self, whole: &[Rbm]) -> Result<Vec<Rbm>> {
        self.below.iter().zip(whole).map(|(band, rbm)| band.rbm(rbm)).collect()
    }

    /// Which patches this rank has.
    pub fn patches(&self) -> Range<usize> {
        self.own.patches()
    }

    /// The visible units of this rank.
    pub fn visible(&self) -> Lines {
        Lines::of(&self.own.whole, self.own.places())
    }

    fn lowest(&self) -> &LayerBand {
        self.below.first().unwrap_or(&self.own)
    }

    /// The visible units of the lowest RBM that this rank reads.
    pub fn input(&self) -> Lines {
        Lines::of(&self.lowest().whole, self.lowest().places())
    }

    /// The same as raw rows have them.
    pub fn raw(&self) -> Lines {
        let Some(cells) = &self.cells else { return self.input() };
        let (lines, Range { start, end }) = (cells.lines(), self.lowest().places());
        Lines::of(lines, start * lines.stride..end * lines.stride)
    }

    /// The cells of the lowest RBM, of this rank.
    pub fn cells(&self) -> Option<Cells> {
        self.cells.map(|cells| cells.of_lines(self.lowest().places().len()))
    }

    /// The values of visible units that count for this rank, of a tensor `[.., n]` of those it has.
    pub fn counted(&self, own: &Tensor) -> Result<Tensor> {
        let (first, line) = (self.own.places().start, self.own.whole.width * self.own.whole.depth);
        let lines = Lines {
            values: (self.counted.start - first) * line..(self.counted.end - first) * line,
            of: self.own.places().len() * line,
            planes: self.own.whole.planes,
        };
        lines.own(own)
    }

    /// The visible units of all ranks, `[rows, n]`, of those of this rank; all make the call.
    pub fn gathered(&self, group: &Group, own: &Tensor) -> Result<Tensor> {
        let (visible, counted) = (self.visible(), Lines::of(&self.own.whole, self.counted.clone()));
        let all = Tensor::zeros((own.dim(0)?, visible.n_of_all()), own.dtype(), own.device())?;
        visible.put(&all, own, &counted)?;
        group.all_reduce_(&all)?;
        Ok(all)
    }

    /// Memory for the sums over ranks of `batch` rows.
    pub fn seams(&self, batch: usize, device: &Device) -> Result<Seams> {
        let PatchGrid { planes, width, depth, .. } = self.own.whole;
        let (line, own) = (width * depth, self.own.places());
        let (mut parts, mut at, mut covered) = (vec![], 0, 0);
        for seam in &self.seams {
            let mine = seam.start.max(own.start)..seam.end.min(own.end);
            if !mine.is_empty() {
                parts.push(SeamPart {
                    own: (mine.start - own.start) * line,
                    all: (at + mine.start - seam.start) * line,
                    n: mine.len() * line,
                });
                covered += mine.len();
            }
            at += seam.len();
        }
        let zeros = || Tensor::zeros((batch * planes, at * line), DType::F32, device);
        let none = if covered < at { Some(zeros()?) } else { None };
        Ok(Seams { all: zeros()?, none, parts, of: own.len() * line })
    }
}

/// Where a part of a rank's lines lies, of its own values and of those of all seams.
#[derive(Debug, Clone)]
struct SeamPart {
    own: usize,
    all: usize,
    n: usize,
}

/// The values that several ranks have, as they exchange them.
#[derive(Debug, Clone)]
pub(crate) struct Seams {
    /// `[rows · planes, values]`
    all: Tensor,
    /// Zeros of that shape, where this rank does not have all of them.
    none: Option<Tensor>,
    parts: Vec<SeamPart>,
    /// Values of a plane of this rank.
    of: usize,
}

impl Seams {
    /// Sums `pre`, `[batch, n]` of this rank's visible units, over the ranks that have them; all make the
    /// call.
    pub fn sum_(&self, group: &Group, pre: &Tensor) -> Result<()> {
        if self.all.elem_count() == 0 {
            return Ok(());
        }
        self.none.as_ref().map_or(Ok(()), |none| columns_into_(&self.all, none))?;
        let pre = pre.reshape(((), self.of))?;
        let views = |part: &SeamPart| {
            Ok::<_, candle::Error>((pre.narrow(1, part.own, part.n)?, self.all.narrow(1, part.all, part.n)?))
        };
        for part in &self.parts {
            let (own, all) = views(part)?;
            columns_into_(&all, &own)?;
        }
        group.all_reduce_(&self.all)?;
        for part in &self.parts {
            let (own, all) = views(part)?;
            columns_into_(&own, &all)?;
        }
        Ok(())
    }
}
