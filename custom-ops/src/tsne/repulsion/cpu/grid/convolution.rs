//! Convolution of the charges with both kernels.
//!
//! Rows are transformed first, then each column is transformed, multiplied and transformed back,
//! and rows are transformed back last. What is zero at the start, or not wanted at the end, is
//! neither kept nor transformed: half of the rows, and half of each.
use super::Node;
use rayon::prelude::*;
use rustfft::num_complex::Complex32;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

/// Rows, or columns, of one task: what a cache line holds of complex numbers.
const BLOCK: usize = 8;
/// Arrays side by side: charge 1, and the coordinates.
const ARRAYS: usize = 2;

/// Transforms, spectra and memory of a grid.
pub(super) struct Convolution {
    nodes: usize,
    alpha: f64,
    forward: Arc<dyn Fft<f32>>,
    inverse: Arc<dyn Fft<f32>>,
    /// `K̂1 + i K̂2` of the first `nodes + 1` columns, `[nodes + 1, 2 nodes]`, over the square of
    /// `2 nodes`; the others mirror them.
    spectra: Vec<Complex32>,
    /// The distance of nodes of the spectra.
    distance: f64,
    /// Spectra of rows, `[nodes, ARRAYS, 2 nodes]`.
    rows: Vec<Complex32>,
    /// Convolved columns, still spectra along rows, `[2 nodes, ARRAYS, nodes]`.
    columns: Vec<Complex32>,
}

impl std::fmt::Debug for Convolution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Convolution").field("nodes", &self.nodes).field("distance", &self.distance).finish()
    }
}

/// Memory of a task.
struct Lines {
    /// Some lines of `2 nodes` numbers.
    lines: Vec<Complex32>,
    scratch: Vec<Complex32>,
}

impl Convolution {
    pub(super) fn new(nodes: usize, alpha: f32) -> Self {
        let (length, mut planner) = (2 * nodes, FftPlanner::new());
        let zeros = |len: usize| vec![Complex32::default(); len];
        Self {
            nodes,
            alpha: alpha.into(),
            forward: planner.plan_fft_forward(length),
            inverse: planner.plan_fft_inverse(length),
            spectra: zeros((nodes + 1) * length),
            distance: f64::NAN,
            rows: zeros(nodes * ARRAYS * length),
            columns: zeros(length * ARRAYS * nodes),
        }
    }

    /// Replaces the charges of the nodes, which are at `distance`, by their potentials. Rows that
    /// are not `filled` are zero.
    pub(super) fn run(&mut self, grid: &mut [Node], distance: f64, filled: &[bool]) {
        if self.distance != distance {
            self.make_spectra(distance);
            self.distance = distance;
        }
        self.transform_rows(grid, filled);
        self.convolve_columns();
        self.transform_back(grid);
    }

    fn lines(&self, count: usize) -> Lines {
        let scratch = self.forward.get_inplace_scratch_len().max(self.inverse.get_inplace_scratch_len());
        let zeros = |len: usize| vec![Complex32::default(); len];
        Lines { lines: zeros(count * 2 * self.nodes), scratch: zeros(scratch) }
    }

    /// Transforms of `K1 + i K2` for nodes at this distance.
    fn make_spectra(&mut self, distance: f64) {
        let (nodes, length) = (self.nodes, 2 * self.nodes);
        let mut rows = vec![Complex32::default(); (nodes + 1) * length];
        rows.par_chunks_mut(length).enumerate().for_each_init(
            || self.lines(0),
            |room, (r, row)| {
                let square = |c: usize| (r * r + c * c) as f64 * distance * distance;
                // Of the powers the compiler would take those of 1 as well.
                match self.alpha == 1. {
                    true => row[..=nodes].iter_mut().enumerate().for_each(|(c, x)| {
                        let near = 1. / (1. + square(c));
                        *x = Complex32::new(near as f32, (near * near) as f32);
                    }),
                    false => row[..=nodes].iter_mut().enumerate().for_each(|(c, x)| {
                        let near = 1. / (1. + square(c) / self.alpha);
                        let w = near.powf(self.alpha);
                        *x = Complex32::new(w as f32, (w * near) as f32);
                    }),
                }
                let (half, mirrored) = row.split_at_mut(nodes + 1);
                mirrored.iter_mut().zip(half[1..nodes].iter().rev()).for_each(|(to, x)| *to = *x);
                self.forward.process_with_scratch(row, &mut room.scratch);
            },
        );
        let scale = 1. / (length * length) as f32;
        let mut spectra = std::mem::take(&mut self.spectra);
        spectra.par_chunks_mut(length).enumerate().for_each_init(
            || self.lines(0),
            |room, (c, column)| {
                for (r, x) in column.iter_mut().enumerate() {
                    *x = rows[r.min(length - r) * length + c] * scale;
                }
                self.forward.process_with_scratch(column, &mut room.scratch);
            },
        );
        self.spectra = spectra;
    }

    fn transform_rows(&mut self, grid: &[Node], filled: &[bool]) {
        let (nodes, length) = (self.nodes, 2 * self.nodes);
        let mut rows = std::mem::take(&mut self.rows);
        let each = rows.par_chunks_mut(ARRAYS * length).zip(grid.par_chunks(nodes)).zip(filled);
        each.with_min_len(BLOCK).for_each_init(
            || self.lines(0),
            |room, ((spectra, charges), filled)| {
                spectra.fill(Complex32::default());
                if *filled {
                    let (ones, coordinates) = spectra.split_at_mut(length);
                    for ((one, coordinate), &[charge, x, y, _]) in
                        ones.iter_mut().zip(coordinates).zip(charges)
                    {
                        (*one, *coordinate) = (Complex32::new(charge, 0.), Complex32::new(x, y));
                    }
                    self.forward.process_with_scratch(spectra, &mut room.scratch);
                }
            },
        );
        self.rows = rows;
    }

    fn convolve_columns(&mut self) {
        let nodes = self.nodes;
        let mut columns = std::mem::take(&mut self.columns);
        columns.par_chunks_mut(BLOCK * ARRAYS * nodes).enumerate().for_each_init(
            || self.lines(BLOCK),
            |room, (block, columns)| {
                for array in 0..ARRAYS {
                    self.convolve_block(room, columns, block * BLOCK, array);
                }
            },
        );
        self.columns = columns;
    }

    /// Convolves one array of a block of columns that begins at `first`.
    fn convolve_block(&self, room: &mut Lines, columns: &mut [Complex32], first: usize, array: usize) {
        let (nodes, length) = (self.nodes, 2 * self.nodes);
        for (r, row) in self.rows.chunks_exact(ARRAYS * length).enumerate() {
            let row = &row[array * length + first..][..BLOCK];
            for (c, &x) in row.iter().enumerate() {
                room.lines[c * length + r] = x;
            }
        }
        for line in room.lines.chunks_exact_mut(length) {
            line[nodes..].fill(Complex32::default());
        }
        self.forward.process_with_scratch(&mut room.lines, &mut room.scratch);
        for (c, line) in room.lines.chunks_exact_mut(length).enumerate() {
            let column = (first + c).min(length - first - c);
            let spectra = &self.spectra[column * length..][..length];
            for (x, &kernels) in line.iter_mut().zip(spectra) {
                *x = if array == 0 { *x * kernels } else { *x * kernels.im };
            }
        }
        self.inverse.process_with_scratch(&mut room.lines, &mut room.scratch);
        for (c, line) in room.lines.chunks_exact(length).enumerate() {
            columns[(c * ARRAYS + array) * nodes..][..nodes].copy_from_slice(&line[..nodes]);
        }
    }

    fn transform_back(&mut self, grid: &mut [Node]) {
        let (nodes, length) = (self.nodes, 2 * self.nodes);
        let potentials = grid.par_chunks_mut(BLOCK * nodes).enumerate();
        potentials.for_each_init(
            || self.lines(BLOCK * ARRAYS),
            |room, (block, potentials)| {
                // One array after the other: lines that are a power of two apart would drive each
                // other out of the cache.
                for (array, lines) in room.lines.chunks_exact_mut(BLOCK * length).enumerate() {
                    for (c, columns) in self.columns.chunks_exact(ARRAYS * nodes).enumerate() {
                        let column = &columns[array * nodes + block * BLOCK..][..BLOCK];
                        for (r, &x) in column.iter().enumerate() {
                            lines[r * length + c] = x;
                        }
                    }
                }
                self.inverse.process_with_scratch(&mut room.lines, &mut room.scratch);
                let (ones, coordinates) = room.lines.split_at(BLOCK * length);
                let rows = ones.chunks_exact(length).zip(coordinates.chunks_exact(length));
                for (potentials, (ones, coordinates)) in potentials.chunks_exact_mut(nodes).zip(rows) {
                    for ((node, one), coordinate) in potentials.iter_mut().zip(ones).zip(coordinates) {
                        *node = [one.re, one.im, coordinate.re, coordinate.im];
                    }
                }
            },
        );
    }
}
