//! The attraction of a layout by itself: from each end of an edge, and for both ends at once.
use super::edges::attraction_of;
use crate::core::atomic::{add, atomics};
use crate::core::check::aligned_points;
use crate::core::op::{Io, Kernel, not_recording, operands};
use crate::tsne::affinities::Affinities;
use candle::{CpuStorage, DType, Device, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "attraction";
/// Rows of a task.
const ROWS: usize = 256;

/// How often an edge is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttractionForm {
    /// From each of its ends: the graph has both directions, and a point adds up its own edges. The
    /// same bits in every run.
    EachEnd,
    /// Once: the graph has one direction of each edge, as of [`one_direction`], and what a point
    /// pulls another by is taken from the other. Additions are atomic on a GPU and on several
    /// threads, and their order is not the same in every run.
    BothEnds,
}

/// `Σ_j p_ij (y_i − y_j) / (1 + |y_i − y_j|² / α)` over the edges: f32 `[n, n_dims]`.
///
/// `affinities` has both directions of each edge, or one where `form` says so; `layout` is f32
/// `[n, n_dims]` with 2 or 3 dimensions. A descent has the same sums in
/// [`layout_step_`](super::layout_step_).
///
/// # Errors
/// When a tensor has another shape, type or device, or a step is being recorded.
pub fn attraction(
    affinities: &Affinities,
    layout: &Tensor,
    degrees_of_freedom: f32,
    form: AttractionForm,
) -> Result<Tensor> {
    let (n, n_dims) = super::step::graph(OP, affinities, layout)?;
    if !(degrees_of_freedom > 0. && degrees_of_freedom.is_finite()) {
        candle::bail!("{OP}: degrees of freedom must be above 0, got {degrees_of_freedom}")
    }
    not_recording(OP, layout.device())?;
    let forces = Tensor::zeros((n, n_dims), DType::F32, layout.device())?;
    if n > 0 {
        let io = operands(OP).write("forces", &forces).read("offsets", &affinities.offsets);
        let io = io.read("columns", &affinities.columns).read("values", &affinities.values);
        io.read("layout", &aligned_points(layout)?).run(&Attraction {
            n,
            n_dims,
            degrees_of_freedom,
            form,
        })?;
    }
    Ok(forces)
}

/// Each edge of a symmetric graph from its lower end alone, on the graph's device; the host picks
/// them.
///
/// # Errors
/// When the graph is none, or memory is short.
pub fn one_direction(affinities: &Affinities) -> Result<Affinities> {
    let device = affinities.offsets.device();
    let host = |t: &Tensor| t.to_device(&Device::Cpu);
    let offsets = host(&affinities.offsets)?.to_vec1::<u32>()?;
    let columns = host(&affinities.columns)?.to_vec1::<u32>()?;
    let values = host(&affinities.values)?.to_vec1::<f32>()?;
    let (mut starts, mut to, mut p) = (vec![0u32], vec![], vec![]);
    for (i, row) in offsets.windows(2).enumerate() {
        let edges = row[0] as usize..row[1] as usize;
        let (Some(columns), Some(values)) = (columns.get(edges.clone()), values.get(edges)) else {
            candle::bail!(
                "one_direction: offsets must ascend to {}, the number of edges, got {row:?}",
                columns.len()
            )
        };
        for (&j, &value) in columns.iter().zip(values).filter(|&(&j, _)| j as usize > i) {
            to.push(j);
            p.push(value);
        }
        starts.push(to.len() as u32);
    }
    Ok(Affinities {
        offsets: Tensor::new(starts, device)?,
        columns: Tensor::from_vec(to.clone(), to.len(), device)?,
        values: Tensor::from_vec(p, to.len(), device)?,
    })
}

/// [`attraction`] of a graph with both directions by plain loops in f64.
///
/// # Errors
/// When candle cannot read the operands.
pub fn attraction_reference(
    affinities: &Affinities,
    layout: &Tensor,
    degrees_of_freedom: f64,
) -> Result<Tensor> {
    let y = layout.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let (offsets, columns) = (affinities.offsets.to_vec1::<u32>()?, affinities.columns.to_vec1::<u32>()?);
    let values = affinities.values.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let mut forces = Vec::with_capacity(y.len());
    for (i, a) in y.iter().enumerate() {
        let mut force = vec![0.; a.len()];
        for e in offsets[i] as usize..offsets[i + 1] as usize {
            let b = &y[columns[e] as usize];
            let square: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
            for k in 0..a.len() {
                force[k] += values[e] * (a[k] - b[k]) / (1. + square / degrees_of_freedom);
            }
        }
        forces.push(force);
    }
    Tensor::new(forces, layout.device())
}

/// A checked call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attraction {
    pub n: usize,
    pub n_dims: usize,
    pub degrees_of_freedom: f32,
    pub form: AttractionForm,
}

/// The operands on the CPU, without the layout.
struct Graph<'a> {
    offsets: &'a [u32],
    columns: &'a [u32],
    values: &'a [f32],
}

impl Kernel for Attraction {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([forces], [offsets, columns, values, layout]) = io.parts()?;
        let graph =
            Graph { offsets: offsets.elements()?, columns: columns.elements()?, values: values.elements()? };
        let (forces, layout) = (forces.elements::<f32>()?, layout.elements::<f32>()?);
        match self.n_dims {
            2 => self.attract(forces.as_chunks_mut::<2>().0, layout.as_chunks().0, &graph),
            _ => self.attract(forces.as_chunks_mut::<3>().0, layout.as_chunks().0, &graph),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

impl Attraction {
    fn attract<const D: usize>(&self, forces: &mut [[f32; D]], points: &[[f32; D]], graph: &Graph<'_>) {
        match self.form {
            AttractionForm::EachEnd => {
                let inverse = 1. / self.degrees_of_freedom;
                forces.par_iter_mut().enumerate().with_min_len(ROWS).for_each(|(i, force)| {
                    let edges = graph.offsets[i] as usize..graph.offsets[i + 1] as usize;
                    let (columns, values) = (&graph.columns[edges.clone()], &graph.values[edges]);
                    *force = attraction_of(points, points[i], columns, values, inverse);
                });
            }
            AttractionForm::BothEnds if rayon::current_num_threads() == 1 => {
                for i in 0..points.len() {
                    self.pulls(i, points, graph, |at, k, by| forces[at][k] += by);
                }
            }
            AttractionForm::BothEnds => {
                let sums = atomics(forces.as_flattened_mut());
                let add = |at: usize, k: usize, by: f32| add(&sums[D * at + k], by);
                (0..points.len())
                    .into_par_iter()
                    .with_min_len(ROWS)
                    .for_each(|i| self.pulls(i, points, graph, add));
            }
        }
    }

    /// Tells `add` by how much the edges of point `i` pull it and their other ends: point,
    /// coordinate and force.
    fn pulls<const D: usize>(
        &self,
        i: usize,
        points: &[[f32; D]],
        graph: &Graph<'_>,
        mut add: impl FnMut(usize, usize, f32),
    ) {
        let mut own = [0f32; D];
        for e in graph.offsets[i] as usize..graph.offsets[i + 1] as usize {
            let j = (graph.columns[e] as usize).min(points.len() - 1);
            let difference: [f32; D] = std::array::from_fn(|k| points[i][k] - points[j][k]);
            let square: f32 = difference.iter().map(|d| d * d).sum();
            let pull = graph.values[e] / (1. + square / self.degrees_of_freedom);
            for k in 0..D {
                own[k] += pull * difference[k];
                add(j, k, -pull * difference[k]);
            }
        }
        (0..D).for_each(|k| add(i, k, own[k]));
    }
}
