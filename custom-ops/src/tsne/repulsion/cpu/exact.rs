//! Every pair: each group of points interacts with all points, whose sums are f32 over a block and
//! f64 over blocks.
use super::pairs::{Group, LANES, Sums, masses_for};
use crate::core::fused::fused;
use multiversion::multiversion;
use rayon::prelude::*;
use std::ops::Range;

/// Points whose pushes are added in f32.
const BLOCK: usize = 256;

/// Writes the forces on the points `own`, which begin with a group, and returns their total.
pub(super) fn repulsion<const D: usize>(
    forces: &mut [[f32; D]],
    points: &[[f32; D]],
    alpha: f32,
    own: Range<usize>,
) -> f64 {
    let start = own.start;
    let groups = forces[own.clone()].par_chunks_mut(LANES).zip(points[own].par_chunks(LANES));
    let groups = groups.enumerate();
    let totals: Vec<f64> = groups
        .map(|(g, (forces, group))| one_group(forces, group, points, start + g * LANES, alpha))
        .collect();
    totals.iter().sum()
}

fn one_group<const D: usize>(
    forces: &mut [[f32; D]],
    group: &[[f32; D]],
    points: &[[f32; D]],
    first: usize,
    alpha: f32,
) -> f64 {
    let (sums, totals) = interactions(group, points, Some(first), alpha);
    for (l, force) in forces.iter_mut().enumerate() {
        *force = std::array::from_fn(|k| sums[k][l] as f32);
    }
    totals[..group.len()].iter().sum()
}

/// The forces of all points on a group of at most [`LANES`], and the sums of `w`; `first` is the
/// place of the group among the points, if it is of them: then no point counts itself.
pub(in crate::tsne) fn interactions<const D: usize>(
    group: &[[f32; D]],
    points: &[[f32; D]],
    first: Option<usize>,
    alpha: f32,
) -> ([[f64; LANES]; D], [f64; LANES]) {
    let (mut sums, mut totals) = ([[0f64; LANES]; D], [0f64; LANES]);
    let lanes = Group::new(group);
    for (b, block) in points.chunks(BLOCK).enumerate() {
        // Where in the block the group begins.
        let own = first.filter(|first| first / BLOCK == b).map(|first| first % BLOCK);
        let part = if alpha == 1. {
            interact::<D, true>(&lanes, block, own, alpha)
        } else {
            interact::<D, false>(&lanes, block, own, alpha)
        };
        for (sum, part) in sums.as_flattened_mut().iter_mut().zip(part.forces.as_flattened()) {
            *sum += f64::from(*part);
        }
        totals.iter_mut().zip(&part.totals).for_each(|(total, part)| *total += f64::from(*part));
    }
    (sums, totals)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn interact<const D: usize, const ONE: bool>(
    lanes: &Group<D>,
    points: &[[f32; D]],
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
    for point in points[..own.start].iter().chain(&points[own.end..]) {
        add(point, &[1.; LANES]);
    }
    for (j, point) in points[own].iter().enumerate() {
        add(point, &masses_for(0, j..j + 1, 1.));
    }
    sums
}
