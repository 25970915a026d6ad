//! The descent of new points on the CPU: each by itself on the grid, groups with exact sums.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use super::super::repulsion::{LANES, interactions, place};
use super::{Place, PlaceState, PlaceSteps};
use crate::core::fused::{fma, fused};
use crate::core::op::Io;
use candle::{CpuStorage, Result};
use multiversion::multiversion;
use rayon::prelude::*;

/// What the layout does, at the nodes of a grid.
struct Field<'a> {
    nodes: usize,
    potentials: &'a [[f32; 4]],
    middle: [f32; 2],
    distance: f32,
}

/// The neighbours of a point side by side; the last ones are filled up with edges of no weight.
#[derive(Default)]
struct Edges<const D: usize> {
    points: Vec<[[f32; LANES]; D]>,
    p: Vec<[f32; LANES]>,
    /// Coordinates and weights in their order, for the median.
    sorted: Vec<(f32, f32)>,
}

/// A point on its way.
#[derive(Clone, Copy)]
struct Moving<const D: usize> {
    point: [f32; D],
    velocity: [f32; D],
}

impl<const D: usize> Default for Moving<D> {
    fn default() -> Self {
        Self { point: [0.; D], velocity: [0.; D] }
    }
}

impl Place {
    pub(super) fn place(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.n_dims {
            2 => self.place_in::<2>(io),
            _ => self.place_in::<3>(io),
        }
    }

    fn place_in<const D: usize>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([points, velocities, outside], [neighbours, p, layout, potentials, at]) = io.parts()?;
        let points = points.elements::<f32>()?.as_chunks_mut::<D>().0;
        let velocities = velocities.elements::<f32>()?.as_chunks_mut::<D>().0;
        let outside = outside.elements::<u32>()?;
        let (neighbours, p) = (neighbours.elements::<u32>()?, p.elements::<f32>()?);
        let layout = layout.elements::<f32>()?.as_chunks::<D>().0;
        let field = match (potentials.maybe::<f32>()?, at.maybe::<f32>()?) {
            (Some(potentials), Some(&[x, y, distance, ..])) => Some(Field {
                nodes: self.nodes,
                potentials: potentials.as_chunks().0,
                middle: [x, y],
                distance,
            }),
            _ => None,
        };
        let groups = points.par_chunks_mut(LANES).zip(velocities.par_chunks_mut(LANES));
        let groups = groups.zip(outside.par_chunks_mut(LANES));
        let of_groups = neighbours.par_chunks(LANES * self.k).zip(p.par_chunks(LANES * self.k));
        groups.zip(of_groups).for_each_init(
            || (0..LANES).map(|_| (Edges::default(), Moving::default())).collect::<Vec<_>>(),
            |all, (((points, velocities), outside), (neighbours, p))| {
                let each = neighbours.chunks(self.k).zip(p.chunks(self.k));
                let each = each.zip(points.iter().zip(&*velocities));
                for ((edges, moving), ((neighbours, p), (&point, &velocity))) in all.iter_mut().zip(each) {
                    edges.set(layout, neighbours, p);
                    *moving = match self.is_first {
                        true => Moving { point: edges.median(), velocity: [0.; D] },
                        false => Moving { point, velocity },
                    };
                }
                let all = &mut all[..points.len()];
                match &field {
                    Some(field) => {
                        for ((edges, moving), outside) in all.iter_mut().zip(&mut *outside) {
                            if *outside == 0 && !descend(moving, edges, field, &self.steps) {
                                *outside = PlaceState::LEFT;
                            }
                        }
                    }
                    None => self.exact(all, layout),
                }
                for ((point, velocity), (_, moving)) in points.iter_mut().zip(velocities).zip(&*all) {
                    (*point, *velocity) = (moving.point, moving.velocity);
                }
            },
        );
        Ok(())
    }

    /// A group of points with sums over all of the layout.
    fn exact<const D: usize>(&self, all: &mut [(Edges<D>, Moving<D>)], layout: &[[f32; D]]) {
        for _ in 0..self.steps.iterations {
            let mut points = [[0f32; D]; LANES];
            points.iter_mut().zip(&*all).for_each(|(point, (_, moving))| *point = moving.point);
            let points = &points[..all.len()];
            let (forces, totals) = interactions(points, layout, None, self.steps.degrees_of_freedom);
            for (l, (edges, moving)) in all.iter_mut().enumerate() {
                let force = std::array::from_fn(|k| forces[k][l] as f32);
                step(moving, edges, force, totals[l] as f32, &self.steps);
            }
        }
    }
}

impl<const D: usize> Edges<D> {
    fn set(&mut self, layout: &[[f32; D]], neighbours: &[u32], p: &[f32]) {
        self.points.clear();
        self.p.clear();
        for (neighbours, p) in neighbours.chunks(LANES).zip(p.chunks(LANES)) {
            let at = |l: usize| layout[(neighbours[l.min(p.len() - 1)] as usize).min(layout.len() - 1)];
            self.points.push(std::array::from_fn(|k| std::array::from_fn(|l| at(l)[k])));
            self.p.push(std::array::from_fn(|l| p.get(l).copied().unwrap_or(0.)));
        }
    }

    /// In each coordinate the place with half of the weight to either side; the middle of several.
    fn median(&mut self) -> [f32; D] {
        std::array::from_fn(|k| {
            let Self { points, p, sorted } = self;
            sorted.clear();
            let lanes = points.iter().flat_map(|points| points[k]).zip(p.iter().flatten().copied());
            sorted.extend(lanes.filter(|&(_, p)| p > 0.));
            sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            let half: f32 = sorted.iter().map(|(_, p)| p).sum::<f32>() / 2.;
            let (mut upto, mut low) = (0f32, None);
            for &(x, p) in &*sorted {
                if let Some(low) = low {
                    return low + 0.5 * (x - low);
                }
                upto += p;
                if upto > half {
                    return x;
                }
                low = (upto == half).then_some(x);
            }
            sorted.last().map_or(points[0][k][0], |&(x, _)| x)
        })
    }
}

/// Moves a point by one step; its neighbours pull it, and the layout pushes it by `force` over
/// `total`.
#[inline(always)]
fn moved<const D: usize, const FUSED: bool>(
    moving: &mut Moving<D>,
    edges: &Edges<D>,
    force: [f32; D],
    total: f32,
    steps: &PlaceSteps,
) {
    let inverse = 1. / steps.degrees_of_freedom;
    let mut pulls = [[0f32; LANES]; D];
    for (points, p) in edges.points.iter().zip(&edges.p) {
        let (mut differences, mut squares) = ([[0f32; LANES]; D], [0f32; LANES]);
        for k in 0..D {
            for l in 0..LANES {
                differences[k][l] = moving.point[k] - points[k][l];
                squares[l] = fma::<f32, FUSED>(differences[k][l], differences[k][l], squares[l]);
            }
        }
        for l in 0..LANES {
            let pull = p[l] / fma::<f32, FUSED>(squares[l], inverse, 1.);
            for k in 0..D {
                pulls[k][l] = fma::<f32, FUSED>(pull, differences[k][l], pulls[k][l]);
            }
        }
    }
    // As in a step of the training, nothing repels a point whose total is 0.
    let scale = if total == 0. { 0. } else { 1. / total };
    let gradient: [f32; D] =
        std::array::from_fn(|k| 4. * (steps.exaggeration * pulls[k].iter().sum::<f32>() - force[k] * scale));
    let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
    let rate =
        steps.learning_rate * if norm > steps.largest_gradient { steps.largest_gradient / norm } else { 1. };
    for k in 0..D {
        moving.velocity[k] = steps.momentum * moving.velocity[k] - rate * gradient[k];
        moving.point[k] += moving.velocity[k];
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn step<const D: usize>(
    moving: &mut Moving<D>,
    edges: &Edges<D>,
    force: [f32; D],
    total: f32,
    steps: &PlaceSteps,
) {
    const FUSED: bool = fused!();
    moved::<D, FUSED>(moving, edges, force, total, steps);
}

/// All steps of a point of the plane on the grid; false where it leaves the box.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn descend<const D: usize>(
    moving: &mut Moving<D>,
    edges: &Edges<D>,
    field: &Field<'_>,
    steps: &PlaceSteps,
) -> bool {
    const FUSED: bool = fused!();
    let inverse = 1. / field.distance;
    // From the first node that has another one before it to the last that has one after it.
    let most = 0.5 * (field.nodes - 3) as f32;
    for _ in 0..steps.iterations {
        let [x, y] = std::array::from_fn(|k| (moving.point[k] - field.middle[k]) * inverse);
        if !(x.abs() <= most && y.abs() <= most) {
            return false;
        }
        let ((column, across), (row, down)) = (place(x, field.nodes), place(y, field.nodes));
        let mut gathered = [0f32; 4];
        for (row, weight) in (row..).zip(down) {
            let mut sum = [0f32; 4];
            for (node, weight) in field.potentials[row * field.nodes + column..][..4].iter().zip(across) {
                for c in 0..4 {
                    sum[c] = fma::<f32, FUSED>(weight, node[c], sum[c]);
                }
            }
            for c in 0..4 {
                gathered[c] = fma::<f32, FUSED>(weight, sum[c], gathered[c]);
            }
        }
        let in_nodes = [x * gathered[1] - gathered[2], y * gathered[1] - gathered[3]];
        let force = std::array::from_fn(|k| field.distance * in_nodes[k]);
        // Where the layout is far from a node, rounding of the transforms may leave less than 0.
        moved::<D, FUSED>(moving, edges, force, gathered[0].max(0.), steps);
    }
    true
}
