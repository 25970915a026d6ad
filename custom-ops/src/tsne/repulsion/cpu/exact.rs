//! Every pair: each group of points interacts with all points, whose sums are f32 over a block and
//! f64 over blocks.
use super::pairs::{Group, LANES, Sums, masses_for};
use crate::core::fused::fused;
use multiversion::multiversion;
use rayon::prelude::*;
use std::ops::Range;

/// Points whose pushes are added in f32.
const BLOCK: usize = 256;

/// Writes the forces on the points `own`, which begin with a group, and returns their total. There
/// is a weight for each point, or none at all.
pub(super) fn repulsion<const D: usize>(
    forces: &mut [[f32; D]],
    points: &[[f32; D]],
    weights: &[f32],
    alpha: f32,
    own: Range<usize>,
) -> f64 {
    let start = own.start;
    let groups = forces[own.clone()].par_chunks_mut(LANES).zip(points[own].par_chunks(LANES));
    let totals = groups.enumerate().map(|(g, (forces, group))| {
        let first = start + g * LANES;
        let (sums, totals) = match weights.is_empty() {
            true => sums_of::<D, false>(group, points, weights, Some(first), alpha),
            false => sums_of::<D, true>(group, points, weights, Some(first), alpha),
        };
        for (l, force) in forces.iter_mut().enumerate() {
            *force = std::array::from_fn(|k| sums[k][l] as f32);
        }
        let totals = &totals[..group.len()];
        match weights.get(first..first + group.len()) {
            Some(weights) => totals.iter().zip(weights).map(|(total, &w)| f64::from(w) * total).sum(),
            None => totals.iter().sum(),
        }
    });
    totals.collect::<Vec<f64>>().iter().sum()
}

/// The forces of all points on a group of at most [`LANES`], and the sums of `w`; `first` is the
/// place of the group among the points, if it is of them: then no point counts itself.
pub(in crate::tsne) fn interactions<const D: usize>(
    group: &[[f32; D]],
    points: &[[f32; D]],
    first: Option<usize>,
    alpha: f32,
) -> ([[f64; LANES]; D], [f64; LANES]) {
    sums_of::<D, false>(group, points, &[], first, alpha)
}

/// The same of points with weights, where `WEIGHTED` says that there are some.
fn sums_of<const D: usize, const WEIGHTED: bool>(
    group: &[[f32; D]],
    points: &[[f32; D]],
    weights: &[f32],
    first: Option<usize>,
    alpha: f32,
) -> ([[f64; LANES]; D], [f64; LANES]) {
    let (mut sums, mut totals) = ([[0f64; LANES]; D], [0f64; LANES]);
    let lanes = Group::new(group);
    for (b, block) in points.chunks(BLOCK).enumerate() {
        // Where in the block the group begins.
        let own = first.filter(|first| first / BLOCK == b).map(|first| first % BLOCK);
        let weights = if WEIGHTED { &weights[b * BLOCK..][..block.len()] } else { weights };
        let part = if alpha == 1. {
            interact::<D, true, WEIGHTED>(&lanes, block, weights, own, alpha)
        } else {
            interact::<D, false, WEIGHTED>(&lanes, block, weights, own, alpha)
        };
        for (sum, part) in sums.as_flattened_mut().iter_mut().zip(part.forces.as_flattened()) {
            *sum += f64::from(*part);
        }
        totals.iter_mut().zip(&part.totals).for_each(|(total, part)| *total += f64::from(*part));
    }
    (sums, totals)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn interact<const D: usize, const ONE: bool, const WEIGHTED: bool>(
    lanes: &Group<D>,
    points: &[[f32; D]],
    weights: &[f32],
    own: Option<usize>,
    alpha: f32,
) -> Sums<D> {
    const FUSED: bool = fused!();
    let mut sums = Sums::ZERO;
    let mut add = |point: &[f32; D], masses: &[f32; LANES]| {
        let (differences, squares) = lanes.differences::<FUSED>(point);
        sums.add::<ONE, FUSED>(&differences, &squares, masses, alpha);
    };
    let own = own.map_or(points.len()..points.len(), |own| own..points.len().min(own + LANES));
    if WEIGHTED {
        for (j, (point, &weight)) in points.iter().zip(weights).enumerate() {
            // A point has copies of its own: itself is one less.
            let is_own = own.contains(&j);
            add(point, &if is_own { masses_for(own.start, j..j + 1, weight) } else { [weight; LANES] });
        }
        return sums;
    }
    for point in points[..own.start].iter().chain(&points[own.end..]) {
        add(point, &[1.; LANES]);
    }
    for (j, point) in points[own].iter().enumerate() {
        add(point, &masses_for(0, j..j + 1, 1.));
    }
    sums
}
