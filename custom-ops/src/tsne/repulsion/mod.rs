//! The repulsion between all points of a t-SNE layout.
//!
//! ```text
//! w_ij = (1 + |y_i − y_j|² / α)^−α
//! forces[i] = Σ_j≠i w_ij^(1 + 1/α) (y_i − y_j)      total = Σ_i Σ_j≠i w_ij
//! ```
//!
//! `α` is the number of degrees of freedom; 1 is t-SNE's own (Kobak et al., "Heavy-tailed kernels
//! reveal a finer cluster structure in t-SNE visualisations", 2019). The repulsive part of the
//! gradient is `−4 forces / total`. A point may stand for several that lie on each other.
//!
//! | method | cost of a call | error |
//! |---|---|---|
//! | [`Exact`](RepulsionMethod::Exact) | `n²` pairs | rounding |
//! | [`Tree`](RepulsionMethod::Tree) (Barnes-Hut; 2 and 3 dimensions) | `n log n`, more for a small `theta` | falls with `theta` |
//! | [`Grid`](RepulsionMethod::Grid) (FFT interpolation; 2 dimensions) | `n` and `nodes² log nodes` | falls with the distance of the nodes |
//!
//! van der Maaten, "Accelerating t-SNE using tree-based algorithms", 2014; Linderman et al., "Fast
//! interpolation-based t-SNE for improved visualization of single-cell RNA-seq data", 2019.
mod at;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod field;
mod reference;
mod stages;

use crate::core::check::{expect, expect_points};
use crate::core::op::{Io, Kernel, operands};
pub use at::repulsion_at;
use candle::{CpuStorage, DType, Device, Result, Tensor};
pub(super) use cpu::{LANES, interactions, place};
pub use field::RepulsionField;
pub use reference::repulsion_reference;
use std::ops::Range;
use std::sync::Mutex;

const OP: &str = "repulsion";
/// Points whose number parts of a layout are multiples of, see [`Repulsion::of_part`].
pub const PART: usize = 128;

/// How the sums over all pairs are found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RepulsionMethod {
    /// Every pair.
    Exact,
    /// Barnes-Hut: a cell of a quadtree or octree stands for its points where its side is less than
    /// `theta` times its distance.
    Tree {
        /// 0 (every pair) to 1; .5 is usual.
        theta: f32,
    },
    /// Points spread their charges to a grid by cubic interpolation, the grid is convolved with the
    /// kernel by FFT, and points interpolate the forces.
    Grid {
        /// Nodes of a side of the grid, which covers the layout: one of [`grid_sides`]. The error
        /// falls with the fourth power of their distance; a distance of .5 or less is good.
        nodes: usize,
    },
}

/// The sides that a grid can have on a device, in nodes, ascending: on a GPU powers of two in
/// `64..=2048` and from 256 on those and a half, elsewhere all multiples of 16 in `64..=2048` with
/// no prime factor above 5.
pub fn grid_sides(device: &Device) -> impl Iterator<Item = usize> + use<> {
    let on_gpu = device.is_cuda();
    let is_smooth = |nodes: usize| [2, 3, 5].into_iter().fold(nodes, without) == 1;
    (64..=2048)
        .step_by(16)
        .filter(move |nodes| if on_gpu { GPU_SIDES.contains(nodes) } else { is_smooth(*nodes) })
}

/// Those of `kernels/tsne/repulsion_grid.cu`.
const GPU_SIDES: [usize; 9] = [64, 128, 256, 384, 512, 768, 1024, 1536, 2048];

/// `n` without its factors `factor`.
fn without(n: usize, factor: usize) -> usize {
    if n.is_multiple_of(factor) { without(n / factor, factor) } else { n }
}

/// Computes the repulsion in layouts of one size, again and again, in memory of its own.
#[derive(Debug)]
pub struct Repulsion {
    method: RepulsionMethod,
    n: usize,
    n_dims: usize,
    degrees_of_freedom: f32,
    device: Device,
    /// The places whose forces a call writes.
    own: Range<usize>,
    /// The least and the largest corner of the box that a grid covers, in place of the layout's own.
    frame: Option<[[f32; 2]; 2]>,
    /// Made by the first call on the CPU that needs it.
    grid: Mutex<Option<cpu::Grid>>,
    /// Of a call whose stages are timed.
    stages: Mutex<Option<stages::Stages>>,
    #[cfg(feature = "cuda")]
    work: Option<cuda::Work>,
}

impl Repulsion {
    /// Room for layouts of `n` points in `n_dims` (2 or 3) dimensions.
    ///
    /// # Errors
    /// When `n_dims` or a setting is out of range, a grid is asked for in 3 dimensions, or memory
    /// is short.
    pub fn new(
        method: RepulsionMethod,
        n: usize,
        n_dims: usize,
        degrees_of_freedom: f32,
        device: &Device,
    ) -> Result<Self> {
        if n_dims != 2 && n_dims != 3 {
            candle::bail!("{OP}: layouts must have 2 or 3 dimensions, got {n_dims}")
        }
        if !(degrees_of_freedom > 0. && degrees_of_freedom.is_finite()) {
            candle::bail!("{OP}: degrees of freedom must be above 0, got {degrees_of_freedom}")
        }
        match method {
            RepulsionMethod::Tree { theta } if !(0. ..=1.).contains(&theta) => {
                candle::bail!("{OP}: theta must be in 0..=1, got {theta}")
            }
            RepulsionMethod::Grid { .. } if n_dims != 2 => {
                candle::bail!("{OP}: a grid is for 2 dimensions, got {n_dims}; use a tree")
            }
            RepulsionMethod::Grid { nodes } if grid_sides(device).all(|side| side != nodes) => {
                let rule = match device.is_cuda() {
                    true => format!("one of {GPU_SIDES:?} on a GPU"),
                    false => "16 times factors of 2, 3 and 5 in 64..=2048".to_owned(),
                };
                candle::bail!("{OP}: nodes must be {rule}, got {nodes}")
            }
            _ => {}
        }
        Ok(Self {
            method,
            n,
            n_dims,
            degrees_of_freedom,
            device: device.clone(),
            own: 0..n,
            frame: None,
            grid: Mutex::new(None),
            stages: Mutex::new(None),
            #[cfg(feature = "cuda")]
            work: match device {
                Device::Cuda(_) => Some(cuda::Work::new(method, n, n_dims, device)?),
                _ => None,
            },
        })
    }

    /// The same for a part of the points: of the forces on all, and of the total, it writes what
    /// this part has, so that the sums over parts are those of all. Forces on others become 0 with
    /// a tree, whose parts are of its own order ([`has_order`](Self::has_order)), and stay with
    /// other methods, whose parts are of the points as they are.
    ///
    /// Cost: sums over pairs, interpolation and walks are those of the part; grid and tree are made
    /// of all points.
    ///
    /// # Errors
    /// When `own` does not begin and end at multiples of [`PART`], or at the end of the points.
    pub fn of_part(self, own: Range<usize>) -> Result<Self> {
        let is_end = |at: usize| at == self.n || (at < self.n && at.is_multiple_of(PART));
        if own.start > own.end || !is_end(own.start) || !is_end(own.end) {
            candle::bail!(
                "{OP}: a part of {} points must begin and end at multiples of {PART}, got {own:?}",
                self.n
            )
        }
        Ok(Self { own, ..self })
    }

    /// Whether parts are of an order of its own, and not of the points as they are.
    pub fn has_order(&self) -> bool {
        matches!(self.method, RepulsionMethod::Tree { .. })
    }

    /// The method it was made for.
    pub fn method(&self) -> RepulsionMethod {
        self.method
    }

    /// Writes `forces[i] = Σ_j≠i w_ij^(1 + 1/α) (y_i − y_j)` and `total = Σ_i Σ_j≠i w_ij` of
    /// `layout`, with `w_ij = (1 + |y_i − y_j|²/α)^−α`. `forces` and `layout` are f32
    /// `[n, n_dims]`, `total` is one f64. The same bits in every run on one device. Points that lie
    /// on each other do not push each other, but count in `total`.
    ///
    /// Can be recorded ([`Replay`](crate::core::Replay)).
    ///
    /// # Errors
    /// When a tensor has another shape, type or device, shares its storage with one that is
    /// written, or the layout, in 2 dimensions, is a view at an odd entry of its storage.
    pub fn repulsion_(&self, forces: &Tensor, total: &Tensor, layout: &Tensor) -> Result<()> {
        self.repulsion_of_(forces, total, layout, None)
    }

    /// The same for points that stand for several each, `weights`, f32 `[n]` of at least 1:
    /// `forces[i] = Σ_j≠i c_j w_ij^(1 + 1/α) (y_i − y_j)`, the force on one of the points that are
    /// at `i`, and `total = Σ_i c_i (c_i − 1 + Σ_j≠i c_j w_ij)`, those of all points. Without
    /// weights all are 1. On a GPU the weights of a grid must add up to less than 2³¹, which is not
    /// looked at: charges are whole numbers there.
    ///
    /// # Errors
    /// As [`repulsion_`](Self::repulsion_), and when weights have another shape, type or device.
    pub fn repulsion_of_(
        &self,
        forces: &Tensor,
        total: &Tensor,
        layout: &Tensor,
        weights: Option<&Tensor>,
    ) -> Result<()> {
        if let Some(weights) = weights {
            expect(OP, "weights", weights, &[DType::F32], &[self.n])?;
            crate::core::op::same_device(OP, "weights", weights, &self.device)?;
        }
        expect(OP, "layout", layout, &[DType::F32], &[self.n, self.n_dims])?;
        expect(OP, "forces", forces, &[DType::F32], &[self.n, self.n_dims])?;
        expect(OP, "total", total, &[DType::F64], &[1])?;
        expect_points(OP, "layout", layout)?;
        crate::core::op::same_device(OP, "layout", layout, &self.device)?;
        if self.n == 0 {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if self.work.is_some() {
            return self.run_cuda(forces, total, layout, weights);
        }
        let io = operands(OP).write("forces", forces).write("total", total).read("layout", layout);
        io.maybe("weights", weights).run(self)
    }

    /// Sorts the points of a tree along a curve, which keeps its boxes small: call it every few
    /// tens of steps. It changes how long [`repulsion_`](Self::repulsion_) takes, and its error
    /// within what `theta` allows. Nothing happens for other methods, and on the CPU, which sorts
    /// in each call.
    ///
    /// # Errors
    /// When `layout` has another shape or device, is such a view, or a step is being recorded.
    pub fn arrange(&self, layout: &Tensor) -> Result<()> {
        expect(OP, "layout", layout, &[DType::F32], &[self.n, self.n_dims])?;
        expect_points(OP, "layout", layout)?;
        crate::core::op::same_device(OP, "layout", layout, &self.device)?;
        #[cfg(feature = "cuda")]
        if self.work.is_some() && self.n > 0 {
            return self.sort(layout);
        }
        Ok(())
    }
}

impl Kernel for Repulsion {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([forces, total], [layout, weights]) = io.parts()?;
        let (forces, total) = (forces.elements::<f32>()?, total.elements::<f64>()?);
        let weights = weights.maybe::<f32>()?.unwrap_or_default();
        total[0] = self.compute(forces, layout.elements::<f32>()?, weights);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}
