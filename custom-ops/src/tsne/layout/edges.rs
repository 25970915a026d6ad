//! Edges of a point side by side.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use crate::core::fused::{fma, fused};
use crate::core::real::halves;
use multiversion::multiversion;

pub(super) const LANES: usize = 16;

/// The other ends of up to [`LANES`] edges of one point; short ones are filled up with edges of no
/// weight to itself.
pub(super) struct Edges<const D: usize> {
    /// From the other end to the point, by coordinate.
    pub differences: [[f32; LANES]; D],
    pub squares: [f32; LANES],
    pub values: [f32; LANES],
}

impl<const D: usize> Edges<D> {
    /// The edges from `own` to the points `columns`; an index beyond the points is taken for the
    /// last.
    #[inline(always)]
    pub(super) fn new<const FUSED: bool>(
        points: &[[f32; D]],
        own: [f32; D],
        columns: &[u32],
        values: &[f32],
    ) -> Self {
        let mut edges = Self { differences: [[0.; LANES]; D], squares: [0.; LANES], values: [0.; LANES] };
        match (columns.first_chunk::<LANES>(), values.first_chunk::<LANES>()) {
            (Some(columns), Some(values)) => {
                edges.values = *values;
                for l in 0..LANES {
                    edges.set(l, points, own, columns[l]);
                }
            }
            _ => {
                for (l, (&column, &value)) in columns.iter().zip(values).enumerate() {
                    edges.values[l] = value;
                    edges.set(l, points, own, column);
                }
            }
        }
        for difference in &edges.differences {
            for l in 0..LANES {
                edges.squares[l] = fma::<f32, FUSED>(difference[l], difference[l], edges.squares[l]);
            }
        }
        edges
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, points: &[[f32; D]], own: [f32; D], column: u32) {
        let other = points[(column as usize).min(points.len() - 1)];
        for k in 0..D {
            self.differences[k][lane] = own[k] - other[k];
        }
    }
}

/// `Σ p (own − point) / (1 + |own − point|² / α)` over the edges of a point, in lanes.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn attraction_of<const D: usize>(
    points: &[[f32; D]],
    own: [f32; D],
    columns: &[u32],
    values: &[f32],
    inverse_alpha: f32,
) -> [f32; D] {
    const FUSED: bool = fused!();
    let mut sums = [[0f32; LANES]; D];
    for (columns, values) in columns.chunks(LANES).zip(values.chunks(LANES)) {
        let edges = Edges::new::<FUSED>(points, own, columns, values);
        for l in 0..LANES {
            let pull = edges.values[l] / fma::<f32, FUSED>(edges.squares[l], inverse_alpha, 1.);
            for k in 0..D {
                sums[k][l] = fma::<f32, FUSED>(pull, edges.differences[k][l], sums[k][l]);
            }
        }
    }
    sums.map(halves)
}
