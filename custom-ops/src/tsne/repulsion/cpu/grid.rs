//! FFT interpolation in the plane.
//!
//! ```text
//! u_i = (y_i − centre) / h            from the middle of the grid, in nodes; h the distance of nodes
//! q(node) = Σ_i weight_i(node) · (1, u_i)           cubic Lagrange on the 4 × 4 nodes around a point
//! φ = K1 ∗ q[1],  K2 ∗ q[1],  K2 ∗ q[u]             K1 = w, K2 = w^(1 + 1/α), by FFT of twice the nodes
//! forces_i = h (u_i φ_K2[1](i) − φ_K2[u](i))        total = Σ_i max(0, φ_K1[1](i) − 1)
//! ```
//!
//! One complex array carries `K1 ∗ q[1]` and `K2 ∗ q[1]`, as the kernels are even and so their
//! spectra real; another the two coordinates of `q[u]`. Points are sorted by row of the grid, and a
//! node adds its charges in that order, on any number of threads. A point of a weight spreads so
//! many charges.
mod convolution;

use super::{Bounds, CHUNK};
use crate::core::fused::{fma, fused};
use convolution::Convolution;
use multiversion::multiversion;
use rayon::prelude::*;
use std::ops::Range;

/// Rows of nodes of one task.
const BAND: usize = 16;
/// Ratio of one side of the grid to the next smaller: the distance of nodes is a function of the
/// layout alone, and yet seldom new.
const RATIO: f64 = 1.05;
/// Sides below are taken for this one, so that coordinates in nodes are finite.
const SMALLEST_SIDE: f64 = 1e-30;

/// What a node holds: charges 1 and the two coordinates, or potentials `K1 ∗ 1`, `K2 ∗ 1` and
/// `K2 ∗` the coordinates.
type Node = [f32; 4];

/// Memory of calls and the spectra of the last one.
#[derive(Debug)]
pub(in super::super) struct Grid {
    nodes: usize,
    convolution: Convolution,
    grid: Vec<Node>,
    /// Points in nodes from the middle of the grid, in the order of their rows.
    sorted: Vec<[f32; 2]>,
    /// Their weights; none where all are 1.
    weights: Vec<f32>,
    /// The place of each point there.
    places: Vec<u32>,
    /// Points before each row: those of a row have it as the first of their four.
    starts: Vec<u32>,
    /// The middle of the grid in the layout, and the distance of nodes.
    place: [f32; 3],
}

/// The side that the grid takes for a layout: the next value of a geometric series.
fn side_of(span: f64) -> f64 {
    RATIO.powi((span.max(SMALLEST_SIDE).ln() / RATIO.ln()).ceil() as i32)
}

impl Grid {
    pub(super) fn new(nodes: usize, alpha: f32) -> Self {
        Self {
            nodes,
            convolution: Convolution::new(nodes, alpha),
            grid: vec![[0.; 4]; nodes * nodes],
            sorted: vec![],
            weights: vec![],
            places: vec![],
            starts: vec![],
            place: [0.; 3],
        }
    }

    /// The potentials of the last call, `[nodes, nodes, 4]`, and where they are.
    pub(in super::super) fn potentials(&self) -> (&[f32], [f32; 3]) {
        (self.grid.as_flattened(), self.place)
    }

    /// Writes the forces on the points `own` of those within the bounds and returns their total;
    /// `ended` hears of the end of each stage. The points are in the plane; there is a weight for
    /// each, or none at all.
    pub(super) fn repulsion<const D: usize>(
        &mut self,
        forces: &mut [[f32; D]],
        (points, weights): (&[[f32; D]], &[f32]),
        bounds: &Bounds<D>,
        own: Range<usize>,
        ended: impl Fn(&'static str),
    ) -> f64 {
        let h = side_of(bounds.span()) / (self.nodes - 4) as f64;
        let centre = bounds.centre();
        let inverse = (1. / h) as f32;
        self.place = [centre[0], centre[1], h as f32];
        self.sort(|i| std::array::from_fn(|k| (points[i][k] - centre[k]) * inverse), points.len());
        self.weights.resize(weights.len(), 0.);
        for (&weight, &place) in weights.iter().zip(&self.places) {
            self.weights[place as usize] = weight;
        }
        ended("sorting");
        self.spread();
        ended("spreading");
        let filled = self.filled_rows();
        self.convolution.run(&mut self.grid, h, &filled);
        ended("FFT");
        let h = h as f32;
        let by = |push: [f32; 2]| std::array::from_fn(|k| h * push[k]);
        let total = match own.len() == points.len() {
            true => {
                let (pushes, total) = self.collect(&self.sorted, &self.weights);
                let each = forces.par_iter_mut().zip(&self.places).with_min_len(CHUNK);
                each.for_each(|(force, &place)| *force = by(pushes[place as usize]));
                total
            }
            // Those of a part lie anywhere in the order of rows.
            false => {
                let places = self.places[own.clone()].iter();
                let points: Vec<_> = places.map(|&place| self.sorted[place as usize]).collect();
                let weights = if weights.is_empty() { weights } else { &weights[own.clone()] };
                let (pushes, total) = self.collect(&points, weights);
                forces[own].iter_mut().zip(pushes).for_each(|(force, push)| *force = by(push));
                total
            }
        };
        ended("interpolation");
        total
    }

    /// Sorts points by row, those of a row by index.
    fn sort(&mut self, point: impl Fn(usize) -> [f32; 2] + Sync, n: usize) {
        let nodes = self.nodes;
        self.places.resize(n, 0);
        let row_of = |[_, y]: [f32; 2]| place(y, nodes).0;
        self.places
            .par_iter_mut()
            .enumerate()
            .with_min_len(CHUNK)
            .for_each(|(i, row)| *row = row_of(point(i)) as u32);
        self.starts.clear();
        self.starts.resize(nodes + 1, 0);
        self.places.iter().for_each(|&row| self.starts[row as usize + 1] += 1);
        for row in 0..nodes {
            self.starts[row + 1] += self.starts[row];
        }
        let mut next = self.starts.clone();
        self.sorted.resize(n, [0.; 2]);
        for (i, place) in self.places.iter_mut().enumerate() {
            let at = &mut next[*place as usize];
            (self.sorted[*at as usize], *place) = (point(i), *at);
            *at += 1;
        }
    }

    /// Which rows of nodes have charges.
    fn filled_rows(&self) -> Vec<bool> {
        (0..self.nodes).map(|row| self.starts[row + 1] > self.starts[row.saturating_sub(3)]).collect()
    }

    /// Writes the charges of the nodes.
    fn spread(&mut self) {
        let (nodes, starts, sorted) = (self.nodes, &self.starts, &self.sorted);
        self.grid.par_chunks_mut(BAND * nodes).enumerate().for_each(|(b, band)| {
            let (first, end) = ((b * BAND).saturating_sub(3), (b + 1) * BAND);
            let points = starts[first] as usize..starts[end.min(nodes)] as usize;
            match self.weights.get(points.clone()) {
                Some(weights) if !weights.is_empty() => {
                    spread::<true>(band, &sorted[points], weights, b * BAND, nodes);
                }
                _ => spread::<false>(band, &sorted[points], &[], b * BAND, nodes),
            }
        });
    }

    /// The force on each of these points, in nodes, and the sum of `φ_K1`, times weights where
    /// there are any.
    fn collect(&self, points: &[[f32; 2]], weights: &[f32]) -> (Vec<[f32; 2]>, f64) {
        let mut pushes = vec![[0.; 2]; points.len()];
        let parts = pushes.par_chunks_mut(CHUNK).zip(points.par_chunks(CHUNK)).enumerate();
        let totals = parts.map(|(part, (pushes, points))| {
            match weights.get(part * CHUNK..part * CHUNK + points.len()) {
                Some(weights) => collect::<true>(pushes, points, weights, &self.grid, self.nodes),
                None => collect::<false>(pushes, points, &[], &self.grid, self.nodes),
            }
        });
        let totals: Vec<f64> = totals.collect();
        (pushes, totals.iter().sum())
    }
}

/// The first of the four nodes around a coordinate, and the weights of all.
#[inline(always)]
pub(in crate::tsne) fn place(u: f32, nodes: usize) -> (usize, [f32; 4]) {
    let at = u + 0.5 * (nodes - 1) as f32;
    // Rounding may carry a point on the edge over it; the weights still fit then.
    let cell = at.floor().clamp(1., (nodes - 3) as f32);
    let t = at - cell;
    let (before, after, last) = (t + 1., t - 1., t - 2.);
    let outer = t * after * (1. / 6.);
    let inner = before * last * 0.5;
    (cell as usize - 1, [-outer * last, inner * after, -inner * t, outer * before])
}

/// Writes the charges of a band of rows that begins at `first`. Points may reach out of it.
/// `WEIGHTED` says that they have weights.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn spread<const WEIGHTED: bool>(
    band: &mut [Node],
    points: &[[f32; 2]],
    weights: &[f32],
    first: usize,
    nodes: usize,
) {
    const FUSED: bool = fused!();
    band.fill([0.; 4]);
    let rows = band.len() / nodes;
    for (i, &[x, y]) in points.iter().enumerate() {
        let ((column, across), (row, mut down)) = (place(x, nodes), place(y, nodes));
        if WEIGHTED {
            down = down.map(|by| by * weights[i]);
        }
        for (row, weight) in (row..).zip(down) {
            let row = row.wrapping_sub(first);
            if row < rows {
                let charge = [weight, weight * x, weight * y, 0.];
                for (node, weight) in band[row * nodes + column..][..4].iter_mut().zip(across) {
                    for c in 0..4 {
                        node[c] = fma::<f32, FUSED>(weight, charge[c], node[c]);
                    }
                }
            }
        }
    }
}

/// Writes `u_i φ_K2[1] − φ_K2[u]` and returns the sum of `φ_K1`, times weights where `WEIGHTED`
/// says that there are any.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn collect<const WEIGHTED: bool>(
    pushes: &mut [[f32; 2]],
    points: &[[f32; 2]],
    weights: &[f32],
    grid: &[Node],
    nodes: usize,
) -> f64 {
    const FUSED: bool = fused!();
    let mut total = 0f64;
    for (i, (push, &[x, y])) in pushes.iter_mut().zip(points).enumerate() {
        let ((column, across), (row, down)) = (place(x, nodes), place(y, nodes));
        let mut gathered = [0f32; 4];
        for (row, weight) in (row..).zip(down) {
            let mut sum = [0f32; 4];
            for (node, weight) in grid[row * nodes + column..][..4].iter().zip(across) {
                for c in 0..4 {
                    sum[c] = fma::<f32, FUSED>(weight, node[c], sum[c]);
                }
            }
            for c in 0..4 {
                gathered[c] = fma::<f32, FUSED>(weight, sum[c], gathered[c]);
            }
        }
        *push = [x * gathered[1] - gathered[2], y * gathered[1] - gathered[3]];
        // Where nodes are far apart, interpolation makes less of a point's own charge than 1.
        // Others never add less than nothing.
        let others = (f64::from(gathered[0]) - 1.).max(0.);
        total += if WEIGHTED { f64::from(weights[i]) * others } else { others };
    }
    total
}
