//! How near the centres of cells are to rows of one cell.
use crate::layers::gemm::Order;
use crate::layers::gemm::cpu::{Operands, product_alone};
use rayon::prelude::*;

/// Centres, times a power of two that brings the largest entry of what is compared near 1.
pub(in super::super) struct Scores {
    d: usize,
    n_cells: usize,
    pub scale: f32,
    /// `[n_cells, d]`
    pub centres: Vec<f32>,
}

impl Scores {
    /// `centres` are `[n_cells, d]`, `points` what is compared with them.
    pub(in super::super) fn new(centres: &[f32], d: usize, n_cells: usize, points: &[f32]) -> Self {
        let largest = |x: &[f32]| x.par_iter().map(|x| x.abs()).reduce(|| 0., f32::max);
        let largest = largest(centres).max(largest(points));
        let scale = match largest > 0. {
            true => (-f64::from(largest).log2().ceil().clamp(-126., 126.)).exp2() as f32,
            false => 1.,
        };
        Self { d, n_cells, scale, centres: centres.iter().map(|x| x * scale).collect() }
    }

    /// For each of `count` queries, `[count, d]`, half of the square of the distance of each
    /// centre, less what all centres have in common: `[count, n_cells]`. That of their `own` cell
    /// is below all others.
    ///
    /// Centres and queries are taken about the centre of their own cell, so that near ones are told
    /// apart however far from the origin they are.
    pub(in super::super) fn of(&self, scores: &mut Vec<f32>, queries: &[f32], count: usize, own: usize) {
        let (d, n_cells) = (self.d, self.n_cells);
        let about = &self.centres[own * d..(own + 1) * d];
        let mut centres = self.centres.clone();
        for centre in centres.chunks_exact_mut(d.max(1)) {
            centre.iter_mut().zip(about).for_each(|(x, about)| *x -= about);
        }
        let mut moved = Vec::with_capacity(count * d);
        for query in queries.chunks_exact(d.max(1)) {
            moved.extend(query.iter().zip(about).map(|(x, about)| x * self.scale - about));
        }
        scores.clear();
        scores.resize(count * n_cells, 0.);
        if d > 0 {
            let operands = Operands::of(
                (&moved, Order::RowMajor { line: d }),
                (&centres, Order::ColumnMajor { line: d }),
                [count, n_cells, d],
            );
            product_alone(scores, operands);
        }
        let half = |cell: usize| 0.5 * centres[cell * d..(cell + 1) * d].iter().map(|x| x * x).sum::<f32>();
        let halves: Vec<f32> = (0..n_cells).map(half).collect();
        for scores in scores.chunks_exact_mut(n_cells) {
            scores.iter_mut().zip(&halves).for_each(|(score, half)| *score = half - *score);
            scores[own] = f32::NEG_INFINITY;
        }
    }
}
