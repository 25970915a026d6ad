//! Gains, momentum and recentring: [`layout_move_`] moves points, [`layout_centre_`] takes their
//! mean from all. Several ranks that divide the points exchange what they moved in between.
use super::edges::attraction_of;
use crate::core::check::{expect, expect_points, matrix};
use crate::core::op::{Io, Kernel, operands, same_device};
use crate::tsne::affinities::Affinities;
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;
use std::ops::Range;

pub(super) const OP: &str = "layout_step_";
/// Entries of [`LayoutState::figures`].
pub(super) const FIGURES: usize = 7;
/// Rows whose figures are added in one go.
pub(super) const ROWS: usize = 256;

/// The settings of a descent that do not change from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayoutStep {
    /// `α` of the kernel, above 0.
    pub degrees_of_freedom: f32,
    /// Gains stay in this range.
    pub smallest_gain: f32,
    /// See [`smallest_gain`](Self::smallest_gain).
    pub largest_gain: f32,
    /// The longest move of a point in a step, in units of the layout; infinite: no limit.
    pub largest_step: f32,
    /// A coordinate of the new layout beyond this, to either side, is put back to it, and its
    /// velocity becomes 0 and its gain 1; infinite: none is.
    pub largest_coordinate: f32,
}

impl Default for LayoutStep {
    fn default() -> Self {
        Self {
            degrees_of_freedom: 1.,
            smallest_gain: 0.01,
            largest_gain: 100.,
            largest_step: 5.,
            largest_coordinate: f32::INFINITY,
        }
    }
}

/// What a step reads and writes.
#[derive(Debug, Clone)]
pub struct LayoutState {
    /// `y`: f32 `[n, n_dims]`, 2 or 3 dimensions.
    pub layout: Tensor,
    /// f32 `[n, n_dims]`
    pub velocity: Tensor,
    /// f32 `[n, n_dims]`
    pub gains: Tensor,
    /// Room for the next layout: f32 `[n, n_dims]`.
    pub room: Tensor,
    /// Of the last step: the sum of the squares of the gradient, then the smallest coordinate of
    /// the new layout in up to three dimensions, then the largest: f64 `[7]`.
    pub figures: Tensor,
    /// Learning rate, momentum and exaggeration: f32 `[3]`.
    pub rates: Tensor,
    /// Room for parts of sums, of the size that [`new`](Self::new) makes: f64.
    pub work: Tensor,
    /// How many each point stands for: f32 `[n]`, at least 1; none where all stand for one.
    pub weights: Option<Tensor>,
}

/// Of kernels/tsne/layout.cu: the most blocks that move points, and rows of a block that centres
/// them.
pub(super) const BLOCKS: usize = 2048;
pub(super) const STRETCH: usize = 1024;
/// Of the squares of the gradient and of each coordinate, a part for each block; on the CPU the
/// first has all.
pub(super) const SUMS: usize = 4 * BLOCKS;
/// The same with those of weights, which a GPU adds up where points have any.
pub(super) const SUMS_AND_WEIGHTS: usize = SUMS + BLOCKS;

/// The sums, and six floats for each stretch.
fn work(n: usize) -> usize {
    SUMS_AND_WEIGHTS + 3 * n.div_ceil(STRETCH)
}

/// [`LayoutState::figures`] read back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayoutFigures {
    /// The Euclidean norm of the gradient of the last step; NaN where the layout is not finite.
    pub gradient_norm: f64,
    /// The longest side of the box that the layout fits in.
    pub span: f64,
}

impl LayoutState {
    /// A descent that begins at a contiguous f32 `layout`, `[n, n_dims]`, at rest.
    ///
    /// # Errors
    /// When `layout` is not such a matrix, or memory is short.
    pub fn new(layout: &Tensor) -> Result<Self> {
        let (n, n_dims) = matrix(OP, "layout", "[n, n_dims]", layout, &[DType::F32])?;
        if n_dims != 2 && n_dims != 3 {
            candle::bail!("{OP}: layout must have 2 or 3 dimensions, got {n_dims}")
        }
        let device = layout.device();
        Ok(Self {
            layout: layout.force_contiguous()?,
            velocity: layout.zeros_like()?,
            gains: layout.ones_like()?,
            room: layout.zeros_like()?,
            figures: Tensor::zeros(FIGURES, DType::F64, device)?,
            rates: Tensor::zeros(3, DType::F32, device)?,
            work: Tensor::zeros(work(n), DType::F64, device)?,
            weights: None,
        })
    }

    /// What [`layout_move_`] adds up over its points, and [`layout_centre_`] needs the sums of over
    /// all: a view of [`work`](Self::work), f64.
    ///
    /// # Errors
    /// When `work` has another size.
    pub fn sums(&self) -> Result<Tensor> {
        self.work.narrow(0, 0, SUMS)
    }

    /// Reads the figures of the last step; waits for the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn figures(&self) -> Result<LayoutFigures> {
        let figures = self.figures.to_vec1::<f64>()?;
        let side = |k: usize| figures[4 + k] - figures[1 + k];
        Ok(LayoutFigures { gradient_norm: figures[0].sqrt(), span: side(0).max(side(1)).max(side(2)) })
    }
}

/// `[n, n_dims]` of a graph and a layout that fit each other.
pub(super) fn graph(op: &'static str, affinities: &Affinities, layout: &Tensor) -> Result<(usize, usize)> {
    let (n, n_dims) = matrix(op, "layout", "[n, n_dims]", layout, &[DType::F32])?;
    if n_dims != 2 && n_dims != 3 {
        candle::bail!("{op}: layout must have 2 or 3 dimensions, got {n_dims}")
    }
    let n_edges = affinities.columns.elem_count();
    expect(op, "offsets", &affinities.offsets, &[DType::U32], &[n + 1])?;
    expect(op, "columns", &affinities.columns, &[DType::U32], &[n_edges])?;
    expect(op, "values", &affinities.values, &[DType::F32], &[n_edges])?;
    for (name, tensor) in
        [("offsets", &affinities.offsets), ("columns", &affinities.columns), ("values", &affinities.values)]
    {
        same_device(op, name, tensor, layout.device())?;
    }
    Ok((n, n_dims))
}

/// One step of the descent along `4 (exaggeration · attraction − forces / total)`, with momentum
/// and a gain for each coordinate: [`layout_move_`] of all points, and [`layout_centre_`].
/// `affinities` is a symmetric graph as of [`symmetrize`](crate::tsne::symmetrize); `forces` and
/// `total` are those of [`Repulsion::repulsion_`](crate::tsne::Repulsion::repulsion_) for
/// `state.layout`.
///
/// Can be recorded ([`Replay`](crate::core::Replay)). The same bits in every run on one device.
///
/// # Errors
/// When a tensor has another shape, type or device, or shares its storage with one that is written,
/// or the layout, in 2 dimensions, is a view at an odd entry of its storage.
pub fn layout_step_(
    state: &LayoutState,
    affinities: &Affinities,
    forces: &Tensor,
    total: &Tensor,
    step: &LayoutStep,
) -> Result<()> {
    layout_move_(state, affinities, forces, total, step, 0..affinities.n())?;
    layout_centre_(state, &state.room, step)
}

/// The first part of a step, of the points `own`: their velocities and gains, where they come to,
/// in `state.room`, and [`sums`](LayoutState::sums). What others have stays.
///
/// # Errors
/// As [`layout_step_`], and when there are no such points.
pub fn layout_move_(
    state: &LayoutState,
    affinities: &Affinities,
    forces: &Tensor,
    total: &Tensor,
    step: &LayoutStep,
    own: Range<usize>,
) -> Result<()> {
    let (n, n_dims) = graph(OP, affinities, &state.layout)?;
    check_state(state, n, n_dims)?;
    expect(OP, "forces", forces, &[DType::F32], &[n, n_dims])?;
    expect(OP, "rates", &state.rates, &[DType::F32], &[3])?;
    expect(OP, "total", total, &[DType::F64], &[1])?;
    if own.start > own.end || own.end > n {
        candle::bail!("{OP}: own must be a range of {n} points, got {own:?}")
    }
    if n == 0 {
        return Ok(());
    }
    let io = operands(OP).write("velocity", &state.velocity).write("gains", &state.gains);
    let io = io.write("room", &state.room).write("work", &state.work).read("layout", &state.layout);
    let io = io.read("rates", &state.rates).read("offsets", &affinities.offsets);
    let io = io.read("columns", &affinities.columns).read("values", &affinities.values);
    let io = io.read("forces", forces).read("total", total).maybe("weights", state.weights.as_ref());
    io.run(&Move { n, n_dims, step: *step, own })
}

/// The second part: `state.layout` becomes `moved`, where all points came to, f32 `[n, n_dims]`,
/// less its mean, by the [`sums`](LayoutState::sums) over all points; and the figures.
///
/// # Errors
/// As [`layout_step_`].
pub fn layout_centre_(state: &LayoutState, moved: &Tensor, step: &LayoutStep) -> Result<()> {
    let (n, n_dims) = matrix(OP, "layout", "[n, n_dims]", &state.layout, &[DType::F32])?;
    check_state(state, n, n_dims)?;
    expect(OP, "moved", moved, &[DType::F32], &[n, n_dims])?;
    expect(OP, "figures", &state.figures, &[DType::F64], &[FIGURES])?;
    if n == 0 {
        return Ok(());
    }
    let io = operands(OP).write("layout", &state.layout).write("velocity", &state.velocity);
    let io = io.write("gains", &state.gains).write("figures", &state.figures).write("work", &state.work);
    io.read("moved", moved).maybe("weights", state.weights.as_ref()).run(&Centre { n, n_dims, step: *step })
}

/// Refuses a state that is not one of so many points.
fn check_state(state: &LayoutState, n: usize, n_dims: usize) -> Result<()> {
    for (name, tensor) in [("velocity", &state.velocity), ("gains", &state.gains), ("room", &state.room)] {
        expect(OP, name, tensor, &[DType::F32], &[n, n_dims])?;
    }
    if let Some(weights) = &state.weights {
        expect(OP, "weights", weights, &[DType::F32], &[n])?;
    }
    expect_points(OP, "layout", &state.layout)?;
    expect(OP, "work", &state.work, &[DType::F64], &[work(n)])
}

/// A checked call of [`layout_move_`].
#[derive(Debug, Clone)]
pub(super) struct Move {
    pub n: usize,
    pub n_dims: usize,
    pub step: LayoutStep,
    pub own: Range<usize>,
}

/// A checked call of [`layout_centre_`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Centre {
    pub n: usize,
    pub n_dims: usize,
    pub step: LayoutStep,
}

/// `1 / total`; no pair repels another where it is 0.
fn inverse(total: f64) -> f32 {
    if total == 0. { 0. } else { (1. / total) as f32 }
}

/// The operands on the CPU.
struct Rows<'a> {
    rates: [f32; 3],
    offsets: &'a [u32],
    columns: &'a [u32],
    values: &'a [f32],
    scale: f32,
    weights: Option<&'a [f32]>,
}

impl Kernel for Move {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([velocity, gains, room, work], read) = io.parts()?;
        let [layout, rates, offsets, columns, values, forces, total, weights] = read;
        let rates = rates.elements::<f32>()?;
        let rows = Rows {
            rates: [rates[0], rates[1], rates[2]],
            offsets: offsets.elements()?,
            columns: columns.elements()?,
            values: values.elements()?,
            scale: inverse(total.elements::<f64>()?[0]),
            weights: weights.maybe()?,
        };
        let out = [velocity.elements()?, gains.elements()?, room.elements()?];
        let (layout, forces, work) = (layout.elements()?, forces.elements()?, work.elements()?);
        match self.n_dims {
            2 => self.descend::<2>(layout, out, work, forces, &rows),
            _ => self.descend::<3>(layout, out, work, forces, &rows),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

impl Kernel for Centre {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([layout, velocity, gains, figures, work], [moved, weights]) = io.parts()?;
        let out = [layout.elements()?, velocity.elements()?, gains.elements()?];
        let (figures, work, moved) = (figures.elements()?, work.elements()?, moved.elements()?);
        let count = match weights.maybe::<f32>()? {
            Some(weights) => weights.iter().map(|&weight| f64::from(weight)).sum(),
            None => self.n as f64,
        };
        match self.n_dims {
            2 => self.centre::<2>(out, figures, work, moved, count),
            _ => self.centre::<3>(out, figures, work, moved, count),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

impl Move {
    fn descend<const D: usize>(
        &self,
        layout: &[f32],
        [velocity, gains, room]: [&mut [f32]; 3],
        work: &mut [f64],
        forces: &[f32],
        rows: &Rows<'_>,
    ) {
        let ((points, _), (forces, _)) = (layout.as_chunks::<D>(), forces.as_chunks::<D>());
        let [velocity, gains, room] =
            [velocity, gains, room].map(|all| &mut all.as_chunks_mut::<D>().0[self.own.clone()]);
        let parts = velocity.par_chunks_mut(ROWS).zip(gains.par_chunks_mut(ROWS));
        let parts: Vec<(f64, [f64; D])> = parts
            .zip(room.par_chunks_mut(ROWS))
            .enumerate()
            .map(|(c, ((velocity, gains), room))| {
                let (mut squares, mut sums) = (0., [0f64; D]);
                for (i, ((velocity, gains), room)) in velocity.iter_mut().zip(gains).zip(room).enumerate() {
                    let i = self.own.start + c * ROWS + i;
                    let gradient = self.gradient(i, points, &forces[i], rows);
                    let weight = rows.weights.map_or(1., |weights| f64::from(weights[i]));
                    squares += weight * gradient.iter().map(|g| f64::from(g * g)).sum::<f64>();
                    self.move_by(velocity, gains, &gradient, rows.rates);
                    for k in 0..D {
                        room[k] = points[i][k] + velocity[k];
                        sums[k] += weight * f64::from(room[k]);
                    }
                }
                (squares, sums)
            })
            .collect();
        let mut all = [0f64; 4];
        for (squares, sums) in &parts {
            all[0] += squares;
            all[1..].iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
        work.iter_mut().step_by(BLOCKS).zip(all).for_each(|(work, all)| *work = all);
    }

    fn gradient<const D: usize>(
        &self,
        i: usize,
        points: &[[f32; D]],
        force: &[f32; D],
        rows: &Rows<'_>,
    ) -> [f32; D] {
        let edges = rows.offsets[i] as usize..rows.offsets[i + 1] as usize;
        let (columns, values) = (&rows.columns[edges.clone()], &rows.values[edges]);
        let attraction = attraction_of(points, points[i], columns, values, 1. / self.step.degrees_of_freedom);
        let pull = rows.weights.map_or(rows.rates[2], |weights| rows.rates[2] / weights[i]);
        std::array::from_fn(|k| 4. * (pull * attraction[k] - force[k] * rows.scale))
    }

    fn move_by<const D: usize>(
        &self,
        velocity: &mut [f32; D],
        gains: &mut [f32; D],
        gradient: &[f32; D],
        [learning_rate, momentum, _]: [f32; 3],
    ) {
        let step = &self.step;
        for k in 0..D {
            let gain = if gradient[k] * velocity[k] > 0. { 0.8 * gains[k] } else { gains[k] + 0.2 };
            gains[k] = gain.clamp(step.smallest_gain, step.largest_gain);
            velocity[k] = momentum * velocity[k] - learning_rate * gains[k] * gradient[k];
        }
        let length = velocity.iter().map(|v| v * v).sum::<f32>().sqrt();
        if length > step.largest_step {
            velocity.iter_mut().for_each(|v| *v *= step.largest_step / length);
        }
    }
}

impl Centre {
    fn centre<const D: usize>(
        &self,
        [layout, velocity, gains]: [&mut [f32]; 3],
        figures: &mut [f64],
        work: &[f64],
        moved: &[f32],
        count: f64,
    ) {
        let [layout, velocity, gains] = [layout, velocity, gains].map(|all| all.as_chunks_mut::<D>().0);
        let mean: [f32; D] = std::array::from_fn(|k| (work[(k + 1) * BLOCKS] / count) as f32);
        figures.fill(0.);
        figures[0] = work[0];
        for k in 0..D {
            (figures[1 + k], figures[4 + k]) = (f64::INFINITY, f64::NEG_INFINITY);
        }
        let most = self.step.largest_coordinate;
        let moving = velocity.iter_mut().zip(gains);
        let points = layout.iter_mut().zip(moved.as_chunks::<D>().0);
        for ((point, moved), (velocity, gains)) in points.zip(moving) {
            for k in 0..D {
                point[k] = moved[k] - mean[k];
                if point[k].abs() > most {
                    point[k] = most.copysign(point[k]);
                    (velocity[k], gains[k]) = (0., 1.);
                }
                figures[1 + k] = figures[1 + k].min(point[k].into());
                figures[4 + k] = figures[4 + k].max(point[k].into());
            }
        }
    }
}
