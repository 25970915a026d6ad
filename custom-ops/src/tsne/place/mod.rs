//! New points in a layout that stays.
//!
//! ```text
//! y_i          begins at the median of the points y_j of its neighbours, weighted by p_j|i, in each coordinate
//! gradient_i = 4 (exaggeration Σ_j p_j|i (y_i − y_j)/(1 + |y_i − y_j|²/α) − Σ_j w_ij^(1+1/α) (y_i − y_j) / Σ_j w_ij)
//! v_i        ← momentum v_i − rate gradient_i min(1, largest / |gradient_i|)
//! y_i        ← y_i + v_i
//! ```
//!
//! The sums of the attraction are over the neighbours, those of the repulsion over the whole
//! layout, with `w_ij = (1 + |y_i − y_j|²/α)^−α`. As the layout stays, so does what it does to a
//! point at any place: a [`RepulsionField`] is made once, and a point interpolates it. A new point
//! feels no other one, so each goes its way of many iterations by itself, in one launch on a GPU.
//!
//! Poličar, Stražar and Zupan, "Embedding to reference t-SNE space addresses batch effects in
//! single-cell classification", 2021.
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;

use super::repulsion::RepulsionField;
use crate::arrays::elementwise::contiguous;
use crate::arrays::{gather_rows, gather_rows_by};
use crate::core::check::{aligned_points, expect, matrix};
use crate::core::op::{Io, Kernel, not_recording, operands, same_device};
use candle::{CpuStorage, DType, Device, Result, Tensor};
pub use reference::place_points_reference;

const OP: &str = "place_points";

/// How new points descend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlaceSteps {
    /// `α` of the kernel, above 0.
    pub degrees_of_freedom: f32,
    /// Steps of each point.
    pub iterations: usize,
    /// The factor on the attraction.
    pub exaggeration: f32,
    /// The rate of a step.
    pub learning_rate: f32,
    /// What a point keeps of its velocity, in `[0, 1)`.
    pub momentum: f32,
    /// The gradient of a point is shortened to this norm, above 0.
    pub largest_gradient: f32,
}

/// New points on their way.
#[derive(Debug, Clone)]
pub struct PlaceState {
    /// f32 `[m, n_dims]`
    pub points: Tensor,
    /// f32 `[m, n_dims]`
    pub velocity: Tensor,
    /// u32 `[m]`: [`EXACTLY`](Self::EXACTLY) where a point left the box of the field, 0 elsewhere.
    pub outside: Tensor,
    /// Whether points have a place: none does before the first call.
    pub placed: bool,
    /// Steps made.
    pub made: usize,
}

impl PlaceState {
    /// Of a point that goes its way with exact sums.
    pub const EXACTLY: u32 = 2;
    /// Of a point that has left the box just now.
    const LEFT: u32 = 1;

    /// That of `m` points before the first step.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(m: usize, n_dims: usize, device: &Device) -> Result<Self> {
        let zeros = || Tensor::zeros((m, n_dims), DType::F32, device);
        let outside = Tensor::zeros(m, DType::U32, device)?;
        Ok(Self { points: zeros()?, velocity: zeros()?, outside, placed: false, made: 0 })
    }

    /// Some points of it.
    fn of(&self, rows: &[u32]) -> Result<Self> {
        let each = |t: &Tensor| gather_rows(t, rows);
        let (points, velocity) = (each(&self.points)?, each(&self.velocity)?);
        Ok(Self { points, velocity, outside: each(&self.outside)?, ..*self })
    }

    /// The same with other points, each in the place of one of `rows`.
    fn with(&self, rows: &[u32], others: &Self) -> Result<Self> {
        let m = self.points.dim(0)? as u32;
        let mut from: Vec<u32> = (0..m).collect();
        rows.iter().zip(m..).for_each(|(&row, at)| from[row as usize] = at);
        let from = Tensor::new(from, self.points.device())?;
        let put =
            |all: &Tensor, some: &Tensor| gather_rows_by(&contiguous(&Tensor::cat(&[all, some], 0)?)?, &from);
        Ok(Self {
            points: put(&self.points, &others.points)?,
            velocity: put(&self.velocity, &others.velocity)?,
            outside: put(&self.outside, &others.outside)?,
            ..*self
        })
    }
}

/// The places, f32 `[m, n_dims]`, of points with these `neighbours` in `layout`, u32 `[m, k]`, and
/// affinities `p` to them, f32 `[m, k]`; `layout` is f32 `[n, n_dims]` of 2 or 3 dimensions. All
/// are contiguous.
///
/// Repulsion is interpolated from `field`, which is of this layout; a point that leaves the box of
/// the field goes its way again from the start with exact sums. Without a field all do.
///
/// The same bits in every run on one device, and for a point whatever others are placed with it.
///
/// Cost: of a step of a point `k` edges and 16 nodes, or `n` pairs; memory as the operands.
///
/// # Errors
/// When shapes, types or devices differ from these, an index is not below `n`, `field` is of
/// another device, kernel or number of dimensions, or a step is being recorded.
pub fn place_points(
    neighbours: &Tensor,
    p: &Tensor,
    layout: &Tensor,
    field: Option<&RepulsionField>,
    steps: &PlaceSteps,
) -> Result<Tensor> {
    let (m, _) = matrix(OP, "neighbours", "[m, k]", neighbours, &[DType::U32])?;
    let (_, n_dims) = matrix(OP, "layout", "[n, n_dims]", layout, &[DType::F32])?;
    let mut state = PlaceState::new(m, n_dims, layout.device())?;
    place_points_(&mut state, neighbours, p, layout, field, steps)?;
    Ok(state.points)
}

/// So many steps more from where points have come to. Steps that are made in several calls come to
/// the same bits as all of them in one.
///
/// # Errors
/// As [`place_points`], and when the state is of other points.
pub fn place_points_(
    state: &mut PlaceState,
    neighbours: &Tensor,
    p: &Tensor,
    layout: &Tensor,
    field: Option<&RepulsionField>,
    steps: &PlaceSteps,
) -> Result<()> {
    let (n, n_dims) = matrix(OP, "layout", "[n, n_dims]", layout, &[DType::F32])?;
    let (m, k) = matrix(OP, "neighbours", "[m, k]", neighbours, &[DType::U32])?;
    expect(OP, "p", p, &[DType::F32], &[m, k])?;
    expect(OP, "points", &state.points, &[DType::F32], &[m, n_dims])?;
    expect(OP, "velocity", &state.velocity, &[DType::F32], &[m, n_dims])?;
    expect(OP, "outside", &state.outside, &[DType::U32], &[m])?;
    if !(2..=3).contains(&n_dims) {
        candle::bail!("{OP}: layout must have 2 or 3 dimensions, got {n_dims}")
    }
    for (name, x) in
        [("degrees_of_freedom", steps.degrees_of_freedom), ("largest_gradient", steps.largest_gradient)]
    {
        if !(x > 0. && x.is_finite()) {
            candle::bail!("{OP}: {name} must be above 0, got {x}")
        }
    }
    for (name, tensor) in [("neighbours", neighbours), ("p", p), ("points", &state.points)] {
        same_device(OP, name, tensor, layout.device())?;
    }
    if let Some(field) = field {
        same_device(OP, "field", &field.potentials, layout.device())?;
        if n_dims != 2 || field.degrees_of_freedom != steps.degrees_of_freedom {
            candle::bail!(
                "{OP}: the field must be of a layout in 2 dimensions with {} degrees of freedom, got {n_dims} and {}",
                steps.degrees_of_freedom,
                field.degrees_of_freedom
            )
        }
    }
    not_recording(OP, layout.device())?;
    if m == 0 || k == 0 || n == 0 {
        if m > 0 {
            candle::bail!("{OP}: a point must have a neighbour, got {k} of {n} points")
        }
        state.made += steps.iterations;
        return Ok(());
    }
    let largest = neighbours.max(1)?.max(0)?.to_scalar::<u32>()?;
    if largest as usize >= n {
        candle::bail!("{OP}: neighbours must be below {n}, got {largest}")
    }
    let layout = &aligned_points(layout)?;
    let place = Place { m, k, n, n_dims, nodes: 0, is_first: !state.placed, steps: *steps };
    let Some(field) = field else {
        place.run(state, neighbours, p, layout, None)?;
        (state.placed, state.made) = (true, state.made + steps.iterations);
        return Ok(());
    };
    let begun = state.made;
    Place { nodes: field.nodes, ..place }.run(state, neighbours, p, layout, Some(field))?;
    let outside = state.outside.to_vec1::<u32>()?;
    let rows = |what: u32| -> Vec<u32> {
        (0..).zip(&outside).filter(|(_, outside)| **outside == what).map(|(i, _)| i).collect()
    };
    // Those that left just now go their way again from the start, the others from where they are.
    for (what, made) in [(PlaceState::LEFT, 0), (PlaceState::EXACTLY, begun)] {
        let rows = rows(what);
        if rows.is_empty() {
            continue;
        }
        let iterations = begun - made + steps.iterations;
        let steps = PlaceSteps { iterations, ..*steps };
        let some = Place { m: rows.len(), is_first: made == 0, steps, ..place };
        let exactly = Tensor::full(PlaceState::EXACTLY, rows.len(), layout.device())?;
        let part = PlaceState { outside: exactly, ..state.of(&rows)? };
        some.run(&part, &gather_rows(neighbours, &rows)?, &gather_rows(p, &rows)?, layout, None)?;
        *state = state.with(&rows, &part)?;
    }
    (state.placed, state.made) = (true, begun + steps.iterations);
    Ok(())
}

/// A checked call.
#[derive(Debug, Clone, Copy)]
struct Place {
    m: usize,
    k: usize,
    n: usize,
    n_dims: usize,
    /// Of a side of the field; 0 without one.
    nodes: usize,
    /// Whether points begin at their medians.
    is_first: bool,
    steps: PlaceSteps,
}

impl Place {
    /// Moves all points but those that have left a field.
    fn run(
        &self,
        state: &PlaceState,
        neighbours: &Tensor,
        p: &Tensor,
        layout: &Tensor,
        field: Option<&RepulsionField>,
    ) -> Result<()> {
        let io = operands(OP).write("points", &state.points).write("velocity", &state.velocity);
        let io = io.write("outside", &state.outside).read("neighbours", neighbours).read("p", p);
        let io = io.read("layout", layout).maybe("potentials", field.map(|field| &field.potentials));
        io.maybe("place", field.map(|field| &field.place)).run(self)
    }
}

impl Kernel for Place {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        self.place(io)
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}
