//! Ranks of rows by their distances, as far as bounds tell them.
//!
//! ```text
//! values[i, j]   products p: s² d(i, j) is within (g_i + g_j) share + lost of g_i + g_j − p
//!                distances:  d(i, j) is within p share + lost of p, and unknown where p is not finite
//! edges[i, e]    (near, far): what is within counts as far as the e-th of the rows that are
//!                ranked; ascending
//! weights[j]     how many equal rows stand at place j; 1 where none are given
//! between[i, e]  how many rows, by their weights, reach `near` of exactly e edges
//! as_far[i, e]   how many are within edge e
//! ```
//!
//! Where bounds leave a row in doubt, its distance in f64 tells, see [`ExactRows`]. Rows beyond
//! `far` of the last edge are no matter, and the query itself, one of the rows at the place
//! `own[i]`, counts nowhere. So the sum of `between` up to e is how many rows are nearer than what is
//! ranked at edge e.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::tsne::{Bound, ExactRows, Metric, count_nearer};
//! # fn main() -> candle::Result<()> {
//! // Rows on a line, and their distances from the first; ranked are those at 2 and at 5.
//! let rows = Tensor::new(&[[0f32], [2.], [1.], [3.], [9.], [5.]], &Cpu)?;
//! let values = rows.t()?.contiguous()?;
//! let edges = Tensor::new(&[[[2f64, 2.], [5., 5.]]], &Cpu)?;
//! let bound = Bound { share: 0., lost: 0., unit: 1. };
//! let exact = ExactRows { rows: &rows, angles: None, metric: Metric::Manhattan };
//! let counts = count_nearer(&values, None, None, &[0], &edges, &bound, exact, 4)?;
//! // The row at 1 is before both, that at 3 between them; the other two are those that are ranked.
//! assert_eq!(counts.between.to_vec2::<u32>()?, [[1, 2]]);
//! assert_eq!(counts.as_far.to_vec2::<u32>()?, [[1, 1]]);
//! assert_eq!(counts.n_doubtful.to_vec1::<u32>()?, [2]);
//! # Ok(()) }
//! ```
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands};
use crate::tsne::Metric;
#[cfg(feature = "cuda")]
use crate::tsne::exact::kernel_metric;
use crate::tsne::exact::{ExactRows, Slices};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "count_nearer";

/// What values say of distances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// By what share distances may be off.
    pub share: f64,
    /// What they may be off besides.
    pub lost: f64,
    /// 1 / s² of products, a power of two; else 1.
    pub unit: f64,
}

impl Bound {
    /// Between what the distance lies whose product with the rows of the halves `own` and `other`
    /// is `value`.
    fn of_product(&self, own: f64, other: f64, value: f64) -> (f64, f64) {
        let sum = own + other;
        let error = sum * self.share + self.lost;
        ((sum - value - error) * self.unit, (sum - value + error) * self.unit)
    }

    /// Between what the distance lies that is about `value`.
    fn of_distance(&self, value: f64) -> (f64, f64) {
        let error = value * self.share + self.lost;
        if value.is_finite() { (value - error, value + error) } else { (0., f64::INFINITY) }
    }
}

/// What is counted for the ranks of rows.
#[derive(Debug, Clone)]
pub struct NearerCounts {
    /// How many rows reach the near ends of exactly so many edges: u32 `[m, k]`.
    pub between: Tensor,
    /// How many are within each edge: u32 `[m, k]`.
    pub as_far: Tensor,
    /// How many rows the bounds left in doubt, u32 `[m]`; where they are more than `most`, none of
    /// them is counted.
    pub n_doubtful: Tensor,
}

/// Counts the rows that are nearer to each of `m` queries than others; see the [module](self).
///
/// `values` are f32 `[m, n]`, products where `halves`, f64 `[n]`, are given and else distances,
/// `weights` u32 `[n]`, at least 1 and 2^32 − 1 in all, and `edges` f64 `[m, k, 2]`, all contiguous;
/// `own` are the rows that the `m` queries are, `exact` all `n` rows. The counts are the same on CPU
/// and CUDA where no edge is within the rounding of a distance. A place whose half is infinite is in
/// doubt for all.
///
/// Cost: reads `values` once, and two rows for each that is in doubt. On a GPU `min(most, n)` numbers
/// for each query beside.
///
/// # Errors
/// When an operand is not such a tensor, `own` are not `m` rows, `k` or `most` is 0, or a step is
/// being recorded.
#[allow(clippy::too_many_arguments)]
pub fn count_nearer(
    values: &Tensor,
    halves: Option<&Tensor>,
    weights: Option<&Tensor>,
    own: &[u32],
    edges: &Tensor,
    bound: &Bound,
    exact: ExactRows<'_>,
    most: usize,
) -> Result<NearerCounts> {
    let (device, (m, n)) = (values.device(), matrix(OP, "values", "[m, n]", values, &[DType::F32])?);
    not_recording(OP, device)?;
    let k = match edges.dims() {
        &[_, k, 2] if k > 0 => k,
        got => candle::bail!("{OP}: edges must have shape [{m}, k, 2] with k at least 1, got {got:?}"),
    };
    expect(OP, "edges", edges, &[DType::F64], &[m, k, 2])?;
    if most == 0 || u32::try_from(n).is_err() {
        candle::bail!("{OP}: most must be at least 1, and rows fewer than 2^32, got {most} and {n}")
    }
    if own.len() != m {
        candle::bail!("{OP}: own must be {m} rows, one for each query, got {}", own.len())
    }
    if let Some(row) = own.iter().find(|&&row| row as usize >= n) {
        candle::bail!("{OP}: own must be rows below {n}, got {row}")
    }
    let (n_rows, d) = exact.checked(OP)?;
    if n_rows != n {
        candle::bail!("{OP}: rows must be {n}, one for each column of values, got {n_rows}")
    }
    if let Some(halves) = halves {
        expect(OP, "halves", halves, &[DType::F64], &[n])?;
    }
    if let Some(weights) = weights {
        expect(OP, "weights", weights, &[DType::U32], &[n])?;
    }
    let counts = NearerCounts {
        between: new_tensor(OP, (m, k), DType::U32, device)?,
        as_far: new_tensor(OP, (m, k), DType::U32, device)?,
        n_doubtful: new_tensor(OP, m, DType::U32, device)?,
    };
    if m > 0 {
        let NearerCounts { between, as_far, n_doubtful } = &counts;
        let own = Tensor::from_slice(own, m, device)?;
        let io = operands(OP).write("between", between).write("as_far", as_far);
        let io = io
            .write("n_doubtful", n_doubtful)
            .read("values", values)
            .maybe("halves", halves)
            .maybe("weights", weights);
        let io = io.read("own", &own).read("edges", edges).read("rows", exact.rows);
        let op = CountNearer { m, n, k, d, most: most.min(n), metric: exact.metric, bound: *bound };
        io.maybe("angles", exact.angles).run(&op)?;
    }
    Ok(counts)
}

/// The same by plain loops over the distances in f64, `[m, n]`: `between`, `as_far`, and the rows
/// that bounds leave in doubt, of each query.
///
/// # Errors
/// When an operand has another type or shape.
pub fn count_nearer_reference(
    values: &Tensor,
    halves: Option<&Tensor>,
    weights: Option<&Tensor>,
    own: &[u32],
    edges: &Tensor,
    bound: &Bound,
    distances: &Tensor,
) -> Result<Vec<[Vec<u32>; 3]>> {
    let halves = halves.map(Tensor::to_vec1::<f64>).transpose()?;
    let weights = weights.map(Tensor::to_vec1::<u32>).transpose()?;
    let (edges, distances) = (edges.to_vec3::<f64>()?, distances.to_vec2::<f64>()?);
    let mut queries = vec![];
    for (i, (line, edges)) in values.to_vec2::<f32>()?.iter().zip(edges).enumerate() {
        let own = own[i] as usize;
        let (mut between, mut as_far) = (vec![0; edges.len()], vec![0; edges.len()]);
        let mut list = vec![];
        let places = |low: f64, high: f64| {
            let beyond = edges.iter().filter(|edge| edge[1] < low).count();
            (beyond, edges.iter().filter(|edge| edge[0] <= high).count())
        };
        for (j, &value) in line.iter().enumerate() {
            let others = weights.as_ref().map_or(1, |weights| weights[j]) - u32::from(j == own);
            let (low, high) = match &halves {
                Some(halves) => bound.of_product(halves[own], halves[j], value.into()),
                None => bound.of_distance(value.into()),
            };
            let (mut beyond, mut reached) = places(low, high);
            if others == 0 || beyond == edges.len() {
                continue;
            }
            if beyond < reached {
                list.push(j as u32);
                (beyond, reached) = places(distances[i][j], distances[i][j]);
            }
            as_far[beyond..reached].iter_mut().for_each(|as_far| *as_far += others);
            between.iter_mut().skip(reached).take(1).for_each(|between| *between += others);
        }
        queries.push([between, as_far, list]);
    }
    Ok(queries)
}

struct CountNearer {
    m: usize,
    n: usize,
    k: usize,
    d: usize,
    most: usize,
    metric: Metric,
    bound: Bound,
}

impl Kernel for CountNearer {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([between, as_far, n_doubtful], [values, halves, weights, own, edges, rows, angles]) =
            io.parts()?;
        let (between, n_doubtful) = (between.elements::<u32>()?, n_doubtful.elements::<u32>()?);
        let (values, halves) = (values.elements::<f32>()?, halves.maybe::<f64>()?);
        let (as_far, own) = (as_far.elements::<u32>()?, own.elements::<u32>()?);
        let (weights, edges) = (weights.maybe::<u32>()?, edges.elements::<f64>()?);
        let (rows, angles) = (rows.elements::<f32>()?, angles.maybe::<f64>()?);
        let exact = Slices { rows, angles, d: self.d, metric: self.metric };
        let results = between.par_chunks_mut(self.k).zip(as_far.par_chunks_mut(self.k));
        results.zip(n_doubtful).enumerate().for_each(|(i, ((between, as_far), count))| {
            let edges = edges[i * self.k * 2..][..self.k * 2].as_chunks::<2>().0;
            let line = values[i * self.n..][..self.n].iter().map(|&value| f64::from(value));
            let query = Counting { own: own[i] as usize, weights, edges, exact: &exact, most: self.most };
            *count = match halves {
                Some(halves) => {
                    let own = halves[query.own];
                    let of = |(value, &half)| self.bound.of_product(own, half, value);
                    query.count(between, as_far, line.zip(halves).map(of))
                }
                None => query.count(between, as_far, line.map(|value| self.bound.of_distance(value))),
            };
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        const THREADS: u32 = 512;
        let ([between, as_far, n_doubtful], [values, halves, weights, own, edges, rows, angles]) =
            io.parts()?;
        let (mut between, mut as_far) = (between.elements::<u32>()?, as_far.elements::<u32>()?);
        let (mut n_doubtful, values) = (n_doubtful.elements::<u32>()?, values.elements::<f32>()?);
        let (halves, weights) = (halves.maybe::<f64>()?, weights.maybe::<u32>()?);
        let (own, edges) = (own.elements::<u32>()?, edges.elements::<f64>()?);
        let (rows, angles) = (rows.elements::<f32>()?, angles.maybe::<f64>()?);
        let mut layout = crate::core::cuda::ScratchLayout::default();
        let list = layout.part::<u32>(self.m * self.most);
        let mut scratch = layout.alloc(OP, gpu)?;
        let mut list = scratch.view_mut(list);
        let launch = gpu.launch(OP, "ranks", "count_nearer")?.write(&mut between).write(&mut as_far);
        let launch = launch
            .write(&mut n_doubtful)
            .write(&mut list)
            .read(&values)
            .maybe(&halves)
            .maybe(&weights)
            .read(&own)
            .read(&edges)
            .read(&rows)
            .maybe(&angles);
        let launch = launch.num(self.n).num(self.d).count(self.k).count(self.most);
        let Bound { share, lost, unit } = self.bound;
        let launch = launch.num(kernel_metric(self.metric)).num(share).num(lost).num(unit);
        // Edges, counts between them and within them, and the number of rows in doubt.
        let shared = self.k * 16 + (2 * self.k + 1) * 4;
        // SAFETY: (4 × unsigned*, const float*, const double* or null, const unsigned* or null,
        // const unsigned*, const double*, const float*, const double2* or null, 2 × size_t,
        // 3 × unsigned, 3 × double): values are [m, n], halves and weights [n], own [m], edges
        // [m, k, 2], between and as_far [m, k], the list [m, most], n_doubtful [m], rows [n, d],
        // angles [n, 2] where the metric needs them; a block for each query. Numbers of `own` are
        // below n.
        unsafe { launch.blocks(self.m, THREADS).shared(shared).go() }
    }
}

/// A query whose nearer rows are counted.
struct Counting<'a> {
    own: usize,
    weights: Option<&'a [u32]>,
    edges: &'a [[f64; 2]],
    exact: &'a Slices<'a>,
    most: usize,
}

impl Counting<'_> {
    /// Counts rows by what bounds the distance of each, and gives how many were in doubt.
    #[inline(always)]
    fn count(
        &self,
        between: &mut [u32],
        as_far: &mut [u32],
        bounds: impl Iterator<Item = (f64, f64)>,
    ) -> u32 {
        between.fill(0);
        as_far.fill(0);
        let farthest = self.edges.last().map_or(f64::INFINITY, |edge| edge[1]);
        let (mut doubtful, mut n_doubtful) = (vec![], 0);
        for (j, (low, high)) in bounds.enumerate() {
            if low > farthest {
                continue;
            }
            let others = self.others(j);
            if others == 0 {
                continue;
            }
            let (beyond, reached) = self.places(low, high);
            // Both are below k: the row is not beyond the last edge.
            if beyond == reached {
                between[beyond] += others;
                continue;
            }
            n_doubtful += 1;
            if doubtful.len() < self.most {
                doubtful.push(j);
            }
        }
        if n_doubtful as usize > self.most {
            return n_doubtful;
        }
        for j in doubtful {
            let (d, others) = (self.exact.up_to(self.own, j, farthest), self.others(j));
            let (beyond, reached) = self.places(d, d);
            as_far[beyond..reached].iter_mut().for_each(|as_far| *as_far += others);
            if let Some(between) = between.get_mut(reached) {
                *between += others;
            }
        }
        n_doubtful
    }

    /// How many rows beside the query are at place `j`.
    fn others(&self, j: usize) -> u32 {
        self.weights.map_or(1, |weights| weights[j]) - u32::from(j == self.own)
    }

    /// How many edges a row between both is beyond for certain, and how many it may reach.
    fn places(&self, low: f64, high: f64) -> (usize, usize) {
        let beyond = self.edges.partition_point(|edge| edge[1] < low);
        (beyond, self.edges.partition_point(|edge| edge[0] <= high))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn what_does_not_fit_is_named() {
        let values = Tensor::zeros((2, 3), DType::F32, &Cpu).unwrap();
        let rows = Tensor::zeros((3, 4), DType::F32, &Cpu).unwrap();
        fn exact(rows: &Tensor) -> ExactRows<'_> {
            ExactRows { rows, angles: None, metric: Metric::Euclidean }
        }
        let edges = |shape: &[usize]| Tensor::zeros(shape, DType::F64, &Cpu).unwrap();
        let bound = Bound { share: 0., lost: 0., unit: 1. };
        let message = |own: &[u32], edges: Tensor, halves: Option<&Tensor>| {
            count_nearer(&values, halves, None, own, &edges, &bound, exact(&rows), 1).unwrap_err().to_string()
        };
        let counts = Tensor::zeros(2, DType::U32, &Cpu).unwrap();
        let one = edges(&[2, 1, 2]);
        let got = count_nearer(&values, None, Some(&counts), &[0, 1], &one, &bound, exact(&rows), 1);
        let got = got.unwrap_err().to_string();
        assert!(got.contains("weights must have shape [3]"), "{got}");
        let two = Tensor::zeros((2, 4), DType::F32, &Cpu).unwrap();
        let angle = ExactRows { metric: Metric::Cosine, ..exact(&rows) };
        for (exact, want) in [
            (exact(&two), "rows must be 3, one for each column of values, got 2"),
            (angle, "the Cosine distance needs angles of rows"),
        ] {
            let got = count_nearer(&values, None, None, &[0, 1], &one, &bound, exact, 1);
            let got = got.unwrap_err().to_string();
            assert!(got.contains(want), "{got}");
        }
        let four = Tensor::zeros(4, DType::F64, &Cpu).unwrap();
        for (got, want) in [
            (message(&[0, 3], edges(&[2, 1, 2]), None), "own must be rows below 3, got 3"),
            (message(&[0], edges(&[2, 1, 2]), None), "own must be 2 rows, one for each query, got 1"),
            (message(&[0, 1], edges(&[2, 0, 2]), None), "with k at least 1, got [2, 0, 2]"),
            (message(&[0, 1], edges(&[1, 4, 2]), None), "edges must have shape [2, 4, 2]"),
            (message(&[0, 1], edges(&[2, 1, 2]), Some(&four)), "halves must have shape [3]"),
        ] {
            assert!(got.contains(want), "{got}");
        }
    }
}
