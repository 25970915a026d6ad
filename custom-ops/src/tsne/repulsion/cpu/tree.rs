//! Barnes-Hut: points in Morton order, a tree of cells over them, and groups of neighbours that
//! walk it together.
//!
//! Keys interleave the coordinates' bits, so that a cell is a stretch of the sorted points. Cells
//! with one child are passed over. The tree lies depth first, and each cell knows how many follow
//! it below: the walk needs no stack. A cell stands for its points where its side is less than θ
//! times its distance from every point of the group, and none of the group is in it. Groups and
//! cells depend on the layout alone, and so do all sums.
use super::Bounds;
use super::pairs::{Group, LANES, Sums, masses_for};
use crate::core::fused::fused;
use multiversion::multiversion;
use rayon::prelude::*;
use std::ops::Range;

/// Points of a leaf at most, unless they lie on each other.
const LEAF: usize = 8;
/// Points below which a cell's children are built on one thread.
const GRAIN: usize = 4096;

/// Writes the forces on the points at the places `own`, which begin with a group, and 0 on others,
/// and returns the total of those; `ended` hears of the end of each stage. There is a weight for
/// each point, or none at all.
pub(super) fn repulsion<const D: usize>(
    forces: &mut [[f32; D]],
    (points, weights): (&[[f32; D]], &[f32]),
    bounds: &Bounds<D>,
    [theta, alpha]: [f32; 2],
    own: Range<usize>,
    ended: impl Fn(&'static str),
) -> f64 {
    let tree = Tree::new(points, weights, bounds, &ended);
    ended("tree and summary");
    let walk = Walk { tree: &tree, theta_square: theta * theta, alpha };
    let mut sorted = vec![[0f32; D]; own.len()];
    let first = own.start / LANES;
    let totals: Vec<f64> = sorted
        .par_chunks_mut(LANES)
        .enumerate()
        .with_min_len(4)
        .map(|(g, forces)| {
            let g = first + g;
            match (alpha == 1., weights.is_empty()) {
                (true, true) => go::<D, true, false>(&walk, g, forces),
                (false, true) => go::<D, false, false>(&walk, g, forces),
                (true, false) => go::<D, true, true>(&walk, g, forces),
                (false, false) => go::<D, false, true>(&walk, g, forces),
            }
        })
        .collect();
    let mut places = vec![0u32; points.len()];
    tree.order.iter().zip(0..).for_each(|(&i, place)| places[i as usize] = place);
    forces.par_iter_mut().zip(&places).with_min_len(super::CHUNK).for_each(|(force, &place)| {
        let at = (place as usize).wrapping_sub(own.start);
        *force = sorted.get(at).copied().unwrap_or([0.; D]);
    });
    ended("traversal");
    totals.iter().sum()
}

/// A cell of the tree.
#[derive(Clone, Copy)]
struct Cell<const D: usize> {
    centre: [f32; D],
    mass: f32,
    /// Of its side; negative where all points lie on each other, so that it always stands for them.
    square: f32,
    /// Cells below it, which follow it.
    below: u32,
    /// Its points in sorted order.
    start: u32,
    end: u32,
}

struct Tree<const D: usize> {
    cells: Vec<Cell<D>>,
    /// The points in Morton order.
    points: Vec<[f32; D]>,
    /// Their weights; none where all are 1.
    weights: Vec<f32>,
    /// Their indices.
    order: Vec<u32>,
}

/// Bits of a coordinate in a key.
const fn bits<const D: usize>() -> u32 {
    if D == 2 { 32 } else { 21 }
}

impl<const D: usize> Tree<D> {
    fn new(points: &[[f32; D]], weights: &[f32], bounds: &Bounds<D>, ended: impl Fn(&'static str)) -> Self {
        let side = bounds.span().max(f64::from(f32::MIN_POSITIVE));
        let scale = (1u64 << bits::<D>()) as f64 / side;
        let mut keys: Vec<(u64, u32)> = vec![(0, 0); points.len()];
        keys.par_iter_mut().zip(points).enumerate().with_min_len(super::CHUNK).for_each(
            |(i, (key, point))| {
                *key = (morton_key(point, &bounds.low, scale), i as u32);
            },
        );
        keys.par_sort_unstable();
        let order: Vec<u32> = keys.iter().map(|&(_, i)| i).collect();
        let points = order.iter().map(|&i| points[i as usize]).collect();
        let weights: Vec<f32> = match weights.is_empty() {
            true => vec![],
            false => order.iter().map(|&i| weights[i as usize]).collect(),
        };
        let keys = keys.into_iter().map(|(key, _)| key).collect();
        ended("sorting");
        let builder = Builder { keys, points, weights, side };
        let cells = builder.cell(0..order.len()).0;
        Self { cells, points: builder.points, weights: builder.weights, order }
    }
}

/// The bits of the coordinates in turn, the highest first.
fn morton_key<const D: usize>(point: &[f32; D], low: &[f32; D], scale: f64) -> u64 {
    let most = ((1u64 << bits::<D>()) - 1) as f64;
    let at = |k: usize| ((f64::from(point[k]) - f64::from(low[k])) * scale).min(most) as u64;
    (0..D).map(|k| if D == 2 { spread_by_two(at(k)) << k } else { spread_by_three(at(k)) << k }).sum()
}

/// A zero bit after each of 32 bits.
fn spread_by_two(x: u64) -> u64 {
    let x = (x | (x << 16)) & 0x0000_ffff_0000_ffff;
    let x = (x | (x << 8)) & 0x00ff_00ff_00ff_00ff;
    let x = (x | (x << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    let x = (x | (x << 2)) & 0x3333_3333_3333_3333;
    (x | (x << 1)) & 0x5555_5555_5555_5555
}

/// Two zero bits after each of 21 bits.
fn spread_by_three(x: u64) -> u64 {
    let x = (x | (x << 32)) & 0x001f_0000_0000_ffff;
    let x = (x | (x << 16)) & 0x001f_0000_ff00_00ff;
    let x = (x | (x << 8)) & 0x100f_00f0_0f00_f00f;
    let x = (x | (x << 4)) & 0x10c3_0c30_c30c_30c3;
    (x | (x << 2)) & 0x1249_2492_4924_9249
}

/// Sorted points and what is known of them.
struct Builder<const D: usize> {
    keys: Vec<u64>,
    points: Vec<[f32; D]>,
    weights: Vec<f32>,
    side: f64,
}

impl<const D: usize> Builder<D> {
    /// The cells of a stretch of points, the one that holds them all first, and the sums of their
    /// coordinates and weights.
    fn cell(&self, range: Range<usize>) -> (Vec<Cell<D>>, ([f64; D], f64)) {
        // Bits of a level that all points of the stretch have in common are passed over.
        let differing = self.keys[range.start] ^ self.keys[range.end - 1];
        let level = (64 - differing.leading_zeros()).div_ceil(D as u32);
        let children =
            if range.len() <= LEAF || level == 0 { vec![] } else { self.children(&range, level - 1) };
        let (below, (sum, mass)) = self.cells_of(children, &range);
        let points = &self.points[range.clone()];
        let one_place = points.iter().all(|point| point == &points[0]);
        let side = self.side * (f64::from(level) - f64::from(bits::<D>())).exp2();
        let cell = Cell {
            centre: if one_place { points[0] } else { sum.map(|sum| (sum / mass) as f32) },
            mass: mass as f32,
            square: if one_place { -1. } else { (side * side) as f32 },
            below: below.len() as u32,
            start: range.start as u32,
            end: range.end as u32,
        };
        (std::iter::once(cell).chain(below).collect(), (sum, mass))
    }

    /// The stretches whose keys agree down to a level, counted from the lowest bits.
    fn children(&self, range: &Range<usize>, level: u32) -> Vec<Range<usize>> {
        let (mut start, mut children) = (range.start, Vec::with_capacity(1 << D));
        while start < range.end {
            let digit = self.keys[start] >> (level * D as u32);
            let rest = &self.keys[start..range.end];
            let end = start + rest.partition_point(|key| key >> (level * D as u32) <= digit);
            children.push(start..end);
            start = end;
        }
        children
    }

    /// All cells of the children, and the sums of the coordinates and weights; of a leaf, whose
    /// points are added, there are none.
    fn cells_of(&self, children: Vec<Range<usize>>, range: &Range<usize>) -> (Vec<Cell<D>>, ([f64; D], f64)) {
        let add = |(mut sum, mass): ([f64; D], f64), (by, of): ([f64; D], f64)| {
            sum.iter_mut().zip(by).for_each(|(sum, by)| *sum += by);
            (sum, mass + of)
        };
        let none = ([0.; D], 0.);
        if children.is_empty() {
            let weighted = |i: usize| {
                let weight = self.weights.get(i).map_or(1., |&weight| f64::from(weight));
                (self.points[i].map(|x| weight * f64::from(x)), weight)
            };
            return (vec![], range.clone().map(weighted).fold(none, add));
        }
        let parts: Vec<_> = if range.len() < GRAIN {
            children.into_iter().map(|child| self.cell(child)).collect()
        } else {
            children.into_par_iter().map(|child| self.cell(child)).collect()
        };
        let sum = parts.iter().map(|(_, sum)| *sum).fold(none, add);
        (parts.into_iter().flat_map(|(cells, _)| cells).collect(), sum)
    }
}

struct Walk<'a, const D: usize> {
    tree: &'a Tree<D>,
    theta_square: f32,
    alpha: f32,
}

/// Writes the forces on group `g` and returns the sum of its totals.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn go<const D: usize, const ONE: bool, const WEIGHTED: bool>(
    walk: &Walk<'_, D>,
    g: usize,
    forces: &mut [[f32; D]],
) -> f64 {
    const FUSED: bool = fused!();
    let Walk { tree, theta_square, alpha } = *walk;
    let (start, len) = (g * LANES, forces.len());
    let group = Group::new(&tree.points[start..start + len]);
    let mut sums = Sums::<D>::ZERO;
    let mut at = 0;
    while let Some(cell) = tree.cells.get(at) {
        let (differences, squares) = group.differences::<FUSED>(&cell.centre);
        // No short cut: the comparisons are made side by side.
        let far = squares.iter().fold(true, |far, square| far & (cell.square < theta_square * square));
        let (first, end) = (cell.start as usize, cell.end as usize);
        let apart = end <= start || first >= start + len;
        if cell.square < 0. || (far && apart) {
            sums.add::<ONE, FUSED>(&differences, &squares, &masses_for(start, first..end, cell.mass), alpha);
            at += 1 + cell.below as usize;
        } else if cell.below > 0 {
            at += 1;
        } else {
            for (j, point) in (first..).zip(&tree.points[first..end]) {
                let (differences, squares) = group.differences::<FUSED>(point);
                let mass = if WEIGHTED { tree.weights[j] } else { 1. };
                sums.add::<ONE, FUSED>(&differences, &squares, &masses_for(start, j..j + 1, mass), alpha);
            }
            at += 1;
        }
    }
    for (l, force) in forces.iter_mut().enumerate() {
        *force = std::array::from_fn(|k| sums.forces[k][l]);
    }
    match WEIGHTED {
        true => sums.weighted_total(&tree.weights[start..start + len]),
        false => sums.total(len),
    }
}
