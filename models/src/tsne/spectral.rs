//! A first layout by the directions in which a random walk over the affinities mixes slowest.
//!
//! ```text
//! W = D⁻¹ P,   D = diag(d),  d_i = Σ_j p_ij       each row of W sums to 1
//! W u = λ u                                       u = D^−½ v for an eigenvector v of D^−½ P D^−½
//! y   = the u of the largest λ but the constant one, which has λ = 1
//! ```
//!
//! `W` is symmetric in the inner product `⟨u, w⟩ = Σ_i d_i u_i w_i`. The eigenvectors come from
//! subspace iteration with a Chebyshev polynomial that is small on `[−1, μ]`, `μ` the least of the
//! values in the subspace (Zhou, Saad, Tiago and Chelikowsky, "Self-consistent-field calculations
//! using Chebyshev-filtered subspace iteration", 2006); of few points from a dense solver.
#![expect(clippy::needless_range_loop, reason = "a direction is an index into several arrays of one length")]
use super::conditional::check_graph;
use super::{Affinities, Draw};
use crate::Philox;
use candle::{Device, Result, Tensor};
use chandlery_ops::core::normal;
use nalgebra::{DMatrix, SymmetricEigen};
use rayon::prelude::*;

/// The standard deviation of the first coordinate.
pub(super) const SPREAD: f64 = 1e-4;
/// Points up to which a dense solver is used.
const DENSE: usize = 256;
/// Directions of the subspace; those beyond the wanted ones make these converge faster.
const WIDTH: usize = 8;
/// Degree of the polynomial of a round.
const DEGREE: usize = 16;
/// A direction is found when what `W` does to it is off its multiple by this share of the distance
/// from its value to the least of the subspace.
const TOLERANCE: f64 = 1e-5;
/// Edges that are looked at in all: some seconds on two cores.
const MOST_EDGES: usize = 1_300_000_000;
/// Products with `W` that are made of any graph, and of a small one.
const PRODUCTS: [usize; 2] = [64, 20_000];
/// Rows whose sums are added in one go.
const ROWS: usize = 4096;
/// The standard deviation of what keeps equal points apart, over that of the first coordinate.
const JITTER: f64 = 0.01;

/// The first layout that [`Start::Spectral`](super::Start::Spectral) gives, f32 `[n, n_dims]`, on
/// the device of the affinities: for
/// [`TsneTrainer::from_affinities`](super::TsneTrainer::from_affinities).
///
/// Coordinates are the leading eigenvectors of the random walk but the constant one, about their
/// means. The standard deviation of the first is 1e-4; the largest entry of each is positive. To
/// all is added a normal draw of a hundredth of that, which keeps points apart that the walk does
/// not tell apart, as those of one of several components. A coordinate that is missing, because
/// there are no more points than dimensions, is drawn. The same bits on any number of threads.
///
/// Cost: on the host, at most some 1.3 · 10⁹ edges in all, or 64 products with the graph where it
/// has more than 2 · 10⁷ edges; where eigenvalues are very near each other the directions are then
/// not those of the limit, but such in which the walk mixes about as slowly.
///
/// # Errors
/// When the affinities are no graph, or memory is short.
pub fn spectral_layout(affinities: &Affinities, n_dims: usize, philox: Philox) -> Result<Tensor> {
    let device = affinities.offsets.device();
    check_graph(affinities)?;
    let walk = Walk::of(affinities)?;
    let n = walk.inverses.len();
    let drawn = normal((n, n_dims), &Device::Cpu, Draw::Start.of(philox))?.flatten_all()?.to_vec1::<f32>()?;
    let found = match n {
        0 | 1 => DMatrix::zeros(n, 0),
        n if n <= DENSE => walk.dense(n_dims.min(n - 1)),
        _ => walk.slowest(n_dims.min(WIDTH), Draw::Directions.of(philox))?,
    };
    /// Of the largest entry: less than this is rounding.
    const FLAT: f64 = 1e-12;
    let norm = found.iter().fold(0f64, |most, x| most.max(x.abs()));
    let mut found = upright(about_mean(found));
    let deviation = if found.ncols() > 0 { found.column(0).norm() / (n as f64).sqrt() } else { 0. };
    let is_usable = deviation > FLAT * norm && found.iter().all(|x| x.is_finite());
    found *= if is_usable { SPREAD / deviation } else { 0. };
    let coordinate = |i: usize, d: usize| match is_usable && d < found.ncols() {
        true => found[(i, d)] + JITTER * SPREAD * f64::from(drawn[i * n_dims + d]),
        false => SPREAD * f64::from(drawn[i * n_dims + d]),
    };
    let layout = (0..n).flat_map(|i| (0..n_dims).map(move |d| (i, d))).map(|(i, d)| coordinate(i, d) as f32);
    Tensor::from_vec(layout.collect::<Vec<f32>>(), (n, n_dims), device)
}

/// The largest entry of each column is positive, so that signs do not depend on the solver.
pub(super) fn upright(mut m: DMatrix<f64>) -> DMatrix<f64> {
    for mut column in m.column_iter_mut() {
        let sign = if column[column.iamax()] < 0. { -1. } else { 1. };
        column *= sign;
    }
    m
}

/// Columns less their means.
fn about_mean(mut m: DMatrix<f64>) -> DMatrix<f64> {
    for mut column in m.column_iter_mut() {
        let mean = column.mean();
        column.add_scalar_mut(-mean);
    }
    m
}

/// A random walk over a graph.
struct Walk {
    offsets: Vec<u32>,
    columns: Vec<u32>,
    values: Vec<f32>,
    /// `d`, and `1 / d`; both 0 for a point without an edge.
    sums: Vec<f64>,
    inverses: Vec<f64>,
}

/// The entries of a point in all directions.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Entries([f64; WIDTH]);

type Square = [[f64; WIDTH]; WIDTH];

impl Walk {
    fn of(affinities: &Affinities) -> Result<Self> {
        let host = |t: &Tensor| t.to_device(&Device::Cpu);
        let offsets = host(&affinities.offsets)?.to_vec1::<u32>()?;
        let columns = host(&affinities.columns)?.to_vec1::<u32>()?;
        let mut values = host(&affinities.values)?.to_vec1::<f32>()?;
        // What is no weight is no edge.
        values.iter_mut().filter(|p| !(p.is_finite() && **p > 0.)).for_each(|p| *p = 0.);
        let sum = |row: &[u32]| -> f64 {
            let row = &values[row[0] as usize..row[1] as usize];
            row.iter().map(|&p| f64::from(p)).sum()
        };
        let sums: Vec<f64> = offsets.par_windows(2).map(sum).collect();
        let inverses = sums.iter().map(|&sum| if sum > 0. { 1. / sum } else { 0. }).collect();
        Ok(Self { offsets, columns, values, sums, inverses })
    }

    fn edges(&self, i: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let edges = self.offsets[i] as usize..self.offsets[i + 1] as usize;
        let values = self.values[edges.clone()].iter().map(|&p| f64::from(p));
        self.columns[edges].iter().map(|&j| j as usize).zip(values)
    }

    /// The eigenvectors by a dense solver, `[n, count]`.
    fn dense(&self, count: usize) -> DMatrix<f64> {
        let n = self.sums.len();
        let roots: Vec<f64> = self.inverses.iter().map(|inverse| inverse.sqrt()).collect();
        let total: f64 = self.sums.iter().sum();
        let mut m = DMatrix::zeros(n, n);
        for i in 0..n {
            self.edges(i).for_each(|(j, p)| m[(i, j)] += p * roots[i] * roots[j]);
        }
        // The constant one comes last, with the value −2.
        if total > 0. {
            let root = |i: usize| (self.sums[i] / total).sqrt();
            for i in 0..n {
                for j in 0..n {
                    m[(i, j)] -= 3. * root(i) * root(j);
                }
            }
        }
        let eigen = SymmetricEigen::new((&m + m.transpose()) * 0.5);
        let order = descending(eigen.eigenvalues.as_slice());
        DMatrix::from_fn(n, count, |i, d| roots[i] * eigen.eigenvectors[(i, order[d])])
    }

    /// The eigenvectors by subspace iteration, `[n, count]`, of which there are at most [`WIDTH`].
    fn slowest(&self, count: usize, philox: Philox) -> Result<DMatrix<f64>> {
        let n = self.sums.len();
        if self.sums.iter().all(|&sum| sum == 0.) {
            return Ok(DMatrix::zeros(n, 0));
        }
        let drawn = normal((n, WIDTH), &Device::Cpu, philox)?.flatten_all()?.to_vec1::<f32>()?;
        let draw = |i: usize, d: usize| if self.sums[i] > 0. { f64::from(drawn[i * WIDTH + d]) } else { 0. };
        let block = |i: usize| Entries(std::array::from_fn(|d| draw(i, d)));
        let mut x: Vec<Entries> = (0..n).into_par_iter().map(block).collect();
        let (mut y, mut z) = (x.clone(), x.clone());
        let most = (MOST_EDGES / self.values.len().max(1)).clamp(PRODUCTS[0], PRODUCTS[1]);
        let (mut made, mut least) = (0, 0f64);
        loop {
            if made > 0 {
                self.filter(&mut x, &mut y, &mut z, least);
                made += DEGREE - 1;
            }
            self.orthonormalise(&mut x);
            self.step(&x, None, &mut y, [1., 0., 0.]);
            made += 1;
            let values = self.turn(&mut x, &mut y);
            least = values[WIDTH - 1];
            let off = self.residuals(&x, &y, &values);
            let is_found = |d: usize| off[d] <= TOLERANCE * (values[d] - least).max(1e-9);
            if (0..count).all(is_found) || made + DEGREE > most {
                return Ok(DMatrix::from_fn(n, count, |i, d| x[i].0[d]));
            }
        }
    }

    /// `out ← a W x + b x + c before`; without `before` that term is 0.
    fn step(&self, x: &[Entries], before: Option<&[Entries]>, out: &mut [Entries], [a, b, c]: [f64; 3]) {
        out.par_iter_mut().enumerate().with_min_len(64).for_each(|(i, out)| {
            let mut sums = [0f64; WIDTH];
            for (j, p) in self.edges(i) {
                let other = &x[j].0;
                for d in 0..WIDTH {
                    sums[d] += p * other[d];
                }
            }
            let scale = a * self.inverses[i];
            for d in 0..WIDTH {
                let last = before.map_or(0., |before| c * before[i].0[d]);
                out.0[d] = scale * sums[d] + b * x[i].0[d] + last;
            }
        });
    }

    /// `x ← T(x)`, the Chebyshev polynomial of `W` that is at most 1 on `[−1, least]`; `y` is `W
    /// x`.
    fn filter(&self, x: &mut Vec<Entries>, y: &mut Vec<Entries>, z: &mut Vec<Entries>, least: f64) {
        let least = least.clamp(-0.9, 1. - 1e-12);
        let (half, centre) = (f64::midpoint(least, 1.), f64::midpoint(least, -1.));
        // The first step has its product already.
        y.par_iter_mut().zip(&**x).for_each(|(y, x)| {
            for d in 0..WIDTH {
                y.0[d] = (y.0[d] - centre * x.0[d]) / half;
            }
        });
        for _ in 1..DEGREE {
            self.step(y, Some(x), z, [2. / half, -2. * centre / half, -1.]);
            std::mem::swap(x, y);
            std::mem::swap(y, z);
        }
        std::mem::swap(x, y);
    }

    /// Makes the directions orthonormal, and orthogonal to the constant one, by Gram and Schmidt. A
    /// direction of which nothing is left becomes 0.
    fn orthonormalise(&self, x: &mut [Entries]) {
        /// What is left after two turns is orthogonal but for rounding, unless it is less.
        const LEFT: f64 = 1e-12;
        let total: f64 = self.sums.iter().sum();
        for d in 0..WIDTH {
            let before = self.dots(x, d).1[d].sqrt();
            for _ in 0..3 {
                let (mean, dots) = self.dots(x, d);
                let mean = mean / total;
                x.par_iter_mut().for_each(|x| {
                    let others: f64 = (0..d).map(|e| dots[e] * x.0[e]).sum();
                    x.0[d] -= mean + others;
                });
            }
            let norm = self.dots(x, d).1[d].sqrt();
            let scale = if norm > LEFT * before && norm.is_normal() { 1. / norm } else { 0. };
            x.par_iter_mut().for_each(|x| x.0[d] *= scale);
        }
    }

    /// The inner products of direction `d` with the constant one and with all.
    fn dots(&self, x: &[Entries], d: usize) -> (f64, [f64; WIDTH]) {
        let parts = x.par_chunks(ROWS).zip(self.sums.par_chunks(ROWS)).map(|(x, sums)| {
            let (mut mean, mut dots) = (0., [0f64; WIDTH]);
            for (x, &sum) in x.iter().zip(sums) {
                let weighted = sum * x.0[d];
                mean += weighted;
                for e in 0..WIDTH {
                    dots[e] += weighted * x.0[e];
                }
            }
            (mean, dots)
        });
        let parts: Vec<(f64, [f64; WIDTH])> = parts.collect();
        let of = |e: usize| parts.iter().map(|part| part.1[e]).sum();
        (parts.iter().map(|part| part.0).sum(), std::array::from_fn(of))
    }

    /// Turns `x`, and with it `y = W x`, to the eigenvectors of `W` in the subspace; their values,
    /// descending.
    fn turn(&self, x: &mut [Entries], y: &mut [Entries]) -> [f64; WIDTH] {
        let parts = x.par_chunks(ROWS).zip(y.par_chunks(ROWS)).zip(self.sums.par_chunks(ROWS));
        let parts: Vec<Square> = parts
            .map(|((x, y), sums)| {
                let mut part = [[0f64; WIDTH]; WIDTH];
                for ((x, y), &sum) in x.iter().zip(y).zip(sums) {
                    for d in 0..WIDTH {
                        for e in 0..WIDTH {
                            part[d][e] += sum * x.0[d] * y.0[e];
                        }
                    }
                }
                part
            })
            .collect();
        let sum = |d: usize, e: usize| parts.iter().map(|part| part[d][e]).sum::<f64>();
        let inside = DMatrix::from_fn(WIDTH, WIDTH, |d, e| 0.5 * (sum(d, e) + sum(e, d)));
        let eigen = SymmetricEigen::new(inside);
        let order = descending(eigen.eigenvalues.as_slice());
        let turn: Square =
            std::array::from_fn(|d| std::array::from_fn(|e| eigen.eigenvectors[(d, order[e])]));
        let turned = |of: &mut Entries| {
            let old = of.0;
            of.0 = std::array::from_fn(|e| (0..WIDTH).map(|d| old[d] * turn[d][e]).sum());
        };
        x.par_iter_mut().for_each(turned);
        y.par_iter_mut().for_each(turned);
        std::array::from_fn(|d| eigen.eigenvalues[order[d]])
    }

    /// The norms of `W x − λ x`.
    fn residuals(&self, x: &[Entries], y: &[Entries], values: &[f64; WIDTH]) -> [f64; WIDTH] {
        let parts = x.par_chunks(ROWS).zip(y.par_chunks(ROWS)).zip(self.sums.par_chunks(ROWS));
        let parts: Vec<[f64; WIDTH]> = parts
            .map(|((x, y), sums)| {
                let mut part = [0f64; WIDTH];
                for ((x, y), &sum) in x.iter().zip(y).zip(sums) {
                    for d in 0..WIDTH {
                        part[d] += sum * (y.0[d] - values[d] * x.0[d]).powi(2);
                    }
                }
                part
            })
            .collect();
        std::array::from_fn(|d| parts.iter().map(|part| part[d]).sum::<f64>().sqrt())
    }
}

/// Places of values, the largest first.
fn descending(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    order
}
