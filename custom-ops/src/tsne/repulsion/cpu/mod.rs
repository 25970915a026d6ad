//! The methods on the CPU.
mod exact;
mod grid;
mod pairs;
mod tree;

use super::{Repulsion, RepulsionMethod};
pub(in crate::tsne) use exact::interactions;
pub(super) use grid::Grid;
pub(in crate::tsne) use grid::place;
pub(in crate::tsne) use pairs::LANES;
use rayon::prelude::*;

/// Points of one task.
const CHUNK: usize = 1024;

impl Repulsion {
    /// Writes the forces and returns the total. There is a weight for each point, or none at all.
    pub(super) fn compute(&self, forces: &mut [f32], layout: &[f32], weights: &[f32]) -> f64 {
        match self.n_dims {
            2 => self.compute_in(forces.as_chunks_mut::<2>().0, layout.as_chunks::<2>().0, weights),
            _ => self.compute_in(forces.as_chunks_mut::<3>().0, layout.as_chunks::<3>().0, weights),
        }
    }

    fn compute_in<const D: usize>(
        &self,
        forces: &mut [[f32; D]],
        points: &[[f32; D]],
        weights: &[f32],
    ) -> f64 {
        let alpha = self.degrees_of_freedom;
        let Some(bounds) = Bounds::of(points) else {
            forces.fill([f32::NAN; D]);
            return f64::NAN;
        };
        let bounds = self.frame.map_or(bounds, Bounds::framed);
        let ended = |stage| self.ended(stage);
        match self.method {
            RepulsionMethod::Exact => {
                let total = exact::repulsion(forces, points, weights, alpha, self.own.clone());
                ended("pairs");
                total
            }
            RepulsionMethod::Tree { theta } => {
                let points = (points, weights);
                tree::repulsion(forces, points, &bounds, [theta, alpha], self.own.clone(), ended)
            }
            RepulsionMethod::Grid { nodes } => {
                // A panic elsewhere leaves nothing that the next call would not overwrite.
                let mut grid = self.grid.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let grid = grid.get_or_insert_with(|| Grid::new(nodes, alpha));
                grid.repulsion(forces, (points, weights), &bounds, self.own.clone(), ended)
            }
        }
    }
}

/// The box that all points lie in.
struct Bounds<const D: usize> {
    low: [f32; D],
    high: [f32; D],
}

impl<const D: usize> Bounds<D> {
    /// None where a coordinate is not finite.
    fn of(points: &[[f32; D]]) -> Option<Self> {
        let parts = points.par_chunks(16 * CHUNK).map(|points| {
            let (mut low, mut high, mut sum) = ([f32::INFINITY; D], [f32::NEG_INFINITY; D], 0.);
            for point in points {
                for k in 0..D {
                    low[k] = low[k].min(point[k]);
                    high[k] = high[k].max(point[k]);
                    // 0, or NaN for a coordinate that is not finite.
                    sum += point[k] * 0.;
                }
            }
            (sum == 0.).then_some(Self { low, high })
        });
        let join = |a: Self, b: Self| Self {
            low: std::array::from_fn(|k| a.low[k].min(b.low[k])),
            high: std::array::from_fn(|k| a.high[k].max(b.high[k])),
        };
        let none = || Some(Self { low: [f32::INFINITY; D], high: [f32::NEG_INFINITY; D] });
        parts.reduce(none, |a, b| Some(join(a?, b?)))
    }

    /// The box of a grid, whose points are in the plane.
    fn framed([low, high]: [[f32; 2]; 2]) -> Self {
        Self { low: std::array::from_fn(|k| low[k]), high: std::array::from_fn(|k| high[k]) }
    }

    /// The longest side.
    fn span(&self) -> f64 {
        self.low
            .iter()
            .zip(&self.high)
            .map(|(&low, &high)| f64::from(high) - f64::from(low))
            .fold(0., f64::max)
    }

    fn centre(&self) -> [f32; D] {
        std::array::from_fn(|k| f64::midpoint(self.low[k].into(), self.high[k].into()) as f32)
    }
}
