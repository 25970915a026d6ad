//! The repulsion of a layout that stays, at any place.
use super::{OP, Repulsion, RepulsionMethod, grid_sides};
use crate::core::check::matrix;
use crate::core::op::not_recording;
use candle::{DType, Result, Tensor};

/// What all points of a layout in the plane do to a point beside them, as values at the nodes of a
/// grid, from which it is interpolated anywhere in the grid's box.
#[derive(Debug, Clone)]
pub struct RepulsionField {
    pub(in crate::tsne) nodes: usize,
    /// `K1 ∗ 1`, `K2 ∗ 1` and `K2 ∗` the coordinates in nodes from the middle, f32 `[nodes, nodes,
    /// 4]`: see the grid of [`RepulsionMethod::Grid`].
    pub(in crate::tsne) potentials: Tensor,
    /// The middle, and the distance of nodes: f32, 3 numbers or more.
    pub(in crate::tsne) place: Tensor,
    pub(in crate::tsne) degrees_of_freedom: f32,
}

impl RepulsionField {
    /// The field of a contiguous finite f32 `layout`, `[n, 2]`, in its box and `margin` units
    /// around that. Nodes are at most `distance` units apart where the largest of [`grid_sides`] is
    /// enough for that, and as near as it allows elsewhere.
    ///
    /// Cost: that of one call of [`Repulsion::repulsion_`], and memory for 16 bytes a node that
    /// stay.
    ///
    /// # Errors
    /// When `layout` is no such matrix or has no rows, a number is out of range, memory is short, or
    /// a step is being recorded.
    pub fn new(layout: &Tensor, distance: f64, margin: f64, degrees_of_freedom: f32) -> Result<Self> {
        let (n, n_dims) = matrix(OP, "layout", "[n, 2]", layout, &[DType::F32])?;
        not_recording(OP, layout.device())?;
        if n == 0 || n_dims != 2 {
            candle::bail!("{OP}: a field is of a layout [n, 2] with n above 0, got [{n}, {n_dims}]")
        }
        if !(distance > 0. && margin >= 0. && margin.is_finite()) {
            candle::bail!("{OP}: distance must be above 0 and margin at least 0, got {distance} and {margin}")
        }
        let (low, high) = corners(&layout.flatten_all()?.to_vec1::<f32>()?)?;
        let span = (0..2).map(|k| f64::from(high[k]) - f64::from(low[k])).fold(0., f64::max) + 2. * margin;
        // Four nodes are around the box, which is up to a twentieth wider.
        let wanted = 1.05 * span / distance + 5.;
        let device = layout.device();
        let enough = grid_sides(device).find(|&side| side as f64 >= wanted);
        let Some(nodes) = enough.or_else(|| grid_sides(device).last()) else {
            candle::bail!("{OP}: a grid has no sides on this device")
        };
        let mut grid = Repulsion::new(RepulsionMethod::Grid { nodes }, n, 2, degrees_of_freedom, device)?;
        let margin = margin as f32;
        grid.frame = Some([low.map(|x| x - margin), high.map(|x| x + margin)]);
        let (potentials, place) = grid.potentials_of(layout)?;
        Ok(Self { nodes, potentials, place, degrees_of_freedom })
    }

    /// Nodes of a side.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

/// The least and the largest coordinates of points in the plane.
fn corners(layout: &[f32]) -> Result<([f32; 2], [f32; 2])> {
    let (mut low, mut high) = ([f32::INFINITY; 2], [f32::NEG_INFINITY; 2]);
    for (i, point) in layout.as_chunks::<2>().0.iter().enumerate() {
        for k in 0..2 {
            if !point[k].is_finite() {
                candle::bail!("{OP}: layout must be finite, got {} in row {i}, column {k}", point[k])
            }
            (low[k], high[k]) = (low[k].min(point[k]), high[k].max(point[k]));
        }
    }
    Ok((low, high))
}

impl Repulsion {
    /// The potentials of a layout at the nodes of a grid, and where they are.
    fn potentials_of(&mut self, layout: &Tensor) -> Result<(Tensor, Tensor)> {
        let device = layout.device();
        #[cfg(feature = "cuda")]
        if let (Some(work), Some(frame)) = (&mut self.work, self.frame) {
            work.cover(Tensor::new(&frame, device)?);
        }
        let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, device)?);
        self.repulsion_(&forces, &total, &crate::core::check::aligned_points(layout)?)?;
        #[cfg(feature = "cuda")]
        if let Some(found) = self.work.as_ref().and_then(super::cuda::Work::potentials) {
            return Ok(found);
        }
        // A panic elsewhere leaves nothing that the call did not overwrite.
        let grid = self.grid.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(grid) = grid else { candle::bail!("{OP}: the grid is missing") };
        let (potentials, place) = grid.potentials();
        Ok((Tensor::from_slice(potentials, potentials.len(), device)?, Tensor::new(&place, device)?))
    }
}
