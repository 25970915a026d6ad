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
//! feels no other one, so each goes its way of all iterations by itself, in one launch on a GPU.
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
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands, same_device};
use candle::{CpuStorage, DType, Result, Tensor};
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
    let (n, n_dims) = matrix(OP, "layout", "[n, n_dims]", layout, &[DType::F32])?;
    let (m, k) = matrix(OP, "neighbours", "[m, k]", neighbours, &[DType::U32])?;
    expect(OP, "p", p, &[DType::F32], &[m, k])?;
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
    for (name, tensor) in [("neighbours", neighbours), ("p", p)] {
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
        return new_tensor(OP, (m, n_dims), DType::F32, layout.device());
    }
    let largest = neighbours.max(1)?.max(0)?.to_scalar::<u32>()?;
    if largest as usize >= n {
        candle::bail!("{OP}: neighbours must be below {n}, got {largest}")
    }
    let layout = &aligned_points(layout)?;
    let place = Place { m, k, n, n_dims, nodes: 0, steps: *steps };
    let Some(field) = field else { return place.exactly(neighbours, p, layout) };
    let points = new_tensor(OP, (m, n_dims), DType::F32, layout.device())?;
    let outside = new_tensor(OP, m, DType::U32, layout.device())?;
    let io = operands(OP).write("points", &points).write("outside", &outside);
    let io = io.read("neighbours", neighbours).read("p", p).read("layout", layout);
    let io = io.maybe("potentials", Some(&field.potentials)).maybe("place", Some(&field.place));
    io.run(&Place { nodes: field.nodes, ..place })?;
    let outside = outside.to_vec1::<u32>()?;
    let rows: Vec<u32> = (0..).zip(&outside).filter(|(_, left)| **left != 0).map(|(i, _)| i).collect();
    if rows.is_empty() {
        return Ok(points);
    }
    let some = Place { m: rows.len(), ..place };
    let exact = some.exactly(&gather_rows(neighbours, &rows)?, &gather_rows(p, &rows)?, layout)?;
    let mut from: Vec<u32> = (0..m as u32).collect();
    rows.iter().zip(m as u32..).for_each(|(&row, at)| from[row as usize] = at);
    let all = contiguous(&Tensor::cat(&[points, exact], 0)?)?;
    gather_rows_by(&all, &Tensor::new(from, layout.device())?)
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
    steps: PlaceSteps,
}

impl Place {
    /// All points with sums over all pairs.
    fn exactly(&self, neighbours: &Tensor, p: &Tensor, layout: &Tensor) -> Result<Tensor> {
        let points = new_tensor(OP, (self.m, self.n_dims), DType::F32, layout.device())?;
        let outside = new_tensor(OP, self.m, DType::U32, layout.device())?;
        let io = operands(OP).write("points", &points).write("outside", &outside);
        let io = io.read("neighbours", neighbours).read("p", p).read("layout", layout);
        io.maybe("potentials", None).maybe("place", None).run(self)?;
        Ok(points)
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
