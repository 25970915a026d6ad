//! Ranks of rows by their distances, as far as bounds tell them.
//!
//! ```text
//! values[i, j]   products p: s² d(i, j) is within (g_i + g_j) share + lost of g_i + g_j − p
//!                distances:  d(i, j) is within p share + lost of p, and unknown where p is not finite
//! edges[i, e]    (near, far): what is within counts as far as the e-th of the rows that are
//!                ranked; ascending
//! weights[j]     how many equal rows stand at place j; 1 where none are given
//! between[i, e]  how many rows, by their weights, are surely beyond `far` of e edges, and before
//!                `near` of the others
//! doubtful[i]    places that the bounds leave in doubt, which others look at
//! ```
//!
//! Rows beyond `far` of the last edge are no matter, and the query itself, one of the rows at the
//! place `own[i]`, counts nowhere. So rank e of a query is the sum of `between` up to e, and of the
//! doubtful rows those that are nearer.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::tsne::{Bound, count_nearer};
//! # fn main() -> candle::Result<()> {
//! // Distances of row 0; ranked are those at 2 and at 5.
//! let values = Tensor::new(&[[0f32, 2., 1., 3., 9., 5.]], &Cpu)?;
//! let edges = Tensor::new(&[[[2f64, 2.], [5., 5.]]], &Cpu)?;
//! let bound = Bound { share: 0., lost: 0., unit: 1. };
//! let counts = count_nearer(&values, None, None, &[0], &edges, &bound, 4)?;
//! // The row at 1 is before both, that at 3 between them.
//! assert_eq!(counts.between.to_vec2::<u32>()?, [[1, 1]]);
//! assert_eq!(counts.n_doubtful.to_vec1::<u32>()?, [2]);
//! assert_eq!(counts.doubtful.to_vec2::<u32>()?[0][..2], [1, 5]);
//! # Ok(()) }
//! ```
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands};
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

/// What bounds tell of the ranks of rows.
#[derive(Debug, Clone)]
pub struct NearerCounts {
    /// How many rows are surely beyond so many edges and before the others: u32 `[m, k]`.
    pub between: Tensor,
    /// Places in doubt, in any order: u32 `[m, room]`.
    pub doubtful: Tensor,
    /// How many they are, u32 `[m]`; where there are more than `room`, the others are not in the
    /// list.
    pub n_doubtful: Tensor,
}

/// Counts the rows that are surely nearer to each of `m` queries than others, and lists those in
/// doubt; see the [module](self).
///
/// `values` are f32 `[m, n]`, products where `halves`, f64 `[n]`, are given and else distances,
/// `weights` u32 `[n]`, at least 1 and 2^32 − 1 in all, and `edges` f64 `[m, k, 2]`, all contiguous;
/// `own` are the rows that the `m` queries are. The counts are the same on CPU and CUDA. A place
/// whose half is infinite is in doubt for all.
///
/// Cost: reads `values` once.
///
/// # Errors
/// When an operand is not such a tensor, `own` are not `m` rows, `k` or `room` is 0, or a step is
/// being recorded.
pub fn count_nearer(
    values: &Tensor,
    halves: Option<&Tensor>,
    weights: Option<&Tensor>,
    own: &[u32],
    edges: &Tensor,
    bound: &Bound,
    room: usize,
) -> Result<NearerCounts> {
    let (device, (m, n)) = (values.device(), matrix(OP, "values", "[m, n]", values, &[DType::F32])?);
    not_recording(OP, device)?;
    let k = match edges.dims() {
        &[_, k, 2] if k > 0 => k,
        got => candle::bail!("{OP}: edges must have shape [{m}, k, 2] with k at least 1, got {got:?}"),
    };
    expect(OP, "edges", edges, &[DType::F64], &[m, k, 2])?;
    if room == 0 || u32::try_from(n).is_err() {
        candle::bail!("{OP}: room must be at least 1, and rows fewer than 2^32, got {room} and {n}")
    }
    if own.len() != m {
        candle::bail!("{OP}: own must be {m} rows, one for each query, got {}", own.len())
    }
    if let Some(row) = own.iter().find(|&&row| row as usize >= n) {
        candle::bail!("{OP}: own must be rows below {n}, got {row}")
    }
    if let Some(halves) = halves {
        expect(OP, "halves", halves, &[DType::F64], &[n])?;
    }
    if let Some(weights) = weights {
        expect(OP, "weights", weights, &[DType::U32], &[n])?;
    }
    let counts = NearerCounts {
        between: new_tensor(OP, (m, k), DType::U32, device)?,
        doubtful: Tensor::zeros((m, room), DType::U32, device)?,
        n_doubtful: new_tensor(OP, m, DType::U32, device)?,
    };
    if m > 0 {
        let NearerCounts { between, doubtful, n_doubtful } = &counts;
        let own = Tensor::from_slice(own, m, device)?;
        let io = operands(OP).write("between", between).write("doubtful", doubtful);
        let io = io
            .write("n_doubtful", n_doubtful)
            .read("values", values)
            .maybe("halves", halves)
            .maybe("weights", weights);
        io.read("own", &own).read("edges", edges).run(&CountNearer { m, n, k, room, bound: *bound })?;
    }
    Ok(counts)
}

/// The same by plain loops, with all rows in doubt in ascending order: `between` and the list of
/// each query.
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
) -> Result<Vec<(Vec<u32>, Vec<u32>)>> {
    let halves = halves.map(Tensor::to_vec1::<f64>).transpose()?;
    let weights = weights.map(Tensor::to_vec1::<u32>).transpose()?;
    let mut queries = vec![];
    for (i, (line, edges)) in values.to_vec2::<f32>()?.iter().zip(edges.to_vec3::<f64>()?).enumerate() {
        let own = own[i] as usize;
        let (mut counts, mut list) = (vec![0; edges.len()], vec![]);
        for (j, &value) in line.iter().enumerate() {
            let others = weights.as_ref().map_or(1, |weights| weights[j]) - u32::from(j == own);
            let (low, high) = match &halves {
                Some(halves) => bound.of_product(halves[own], halves[j], value.into()),
                None => bound.of_distance(value.into()),
            };
            let beyond = edges.iter().filter(|edge| edge[1] < low).count();
            let reached = edges.iter().filter(|edge| edge[0] <= high).count();
            match beyond == reached {
                _ if beyond == edges.len() || others == 0 => {}
                true => counts[beyond] += others,
                false => list.push(j as u32),
            }
        }
        queries.push((counts, list));
    }
    Ok(queries)
}

struct CountNearer {
    m: usize,
    n: usize,
    k: usize,
    room: usize,
    bound: Bound,
}

impl Kernel for CountNearer {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([between, doubtful, n_doubtful], [values, halves, weights, own, edges]) = io.parts()?;
        let (between, n_doubtful) = (between.elements::<u32>()?, n_doubtful.elements::<u32>()?);
        let (values, halves) = (values.elements::<f32>()?, halves.maybe::<f64>()?);
        let (doubtful, own) = (doubtful.elements::<u32>()?, own.elements::<u32>()?);
        let (weights, edges) = (weights.maybe::<u32>()?, edges.elements::<f64>()?);
        let results = between.par_chunks_mut(self.k).zip(doubtful.par_chunks_mut(self.room));
        results.zip(n_doubtful).enumerate().for_each(|(i, ((between, list), count))| {
            let edges = edges[i * self.k * 2..][..self.k * 2].as_chunks::<2>().0;
            let line = values[i * self.n..][..self.n].iter().map(|&value| f64::from(value));
            let own = own[i] as usize;
            *count = match halves {
                Some(halves) => {
                    let of = |(value, &half)| self.bound.of_product(halves[own], half, value);
                    counted(own, weights, edges, between, list, line.zip(halves).map(of))
                }
                None => {
                    let of = |value| self.bound.of_distance(value);
                    counted(own, weights, edges, between, list, line.map(of))
                }
            };
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        const THREADS: u32 = 256;
        let ([between, doubtful, n_doubtful], [values, halves, weights, own, edges]) = io.parts()?;
        let (mut between, mut doubtful) = (between.elements::<u32>()?, doubtful.elements::<u32>()?);
        let (mut n_doubtful, values) = (n_doubtful.elements::<u32>()?, values.elements::<f32>()?);
        let (halves, weights) = (halves.maybe::<f64>()?, weights.maybe::<u32>()?);
        let (own, edges) = (own.elements::<u32>()?, edges.elements::<f64>()?);
        let launch = gpu.launch(OP, "ranks", "count_nearer")?.write(&mut between).write(&mut doubtful);
        let launch = launch
            .write(&mut n_doubtful)
            .read(&values)
            .maybe(&halves)
            .maybe(&weights)
            .read(&own)
            .read(&edges);
        let launch = launch.num(self.n).count(self.k).count(self.room);
        let Bound { share, lost, unit } = self.bound;
        let launch = launch.num(share).num(lost).num(unit);
        // Edges, counts between them, and the number of rows in doubt.
        let shared = self.k * 16 + (self.k + 1) * 4;
        // SAFETY: (3 × unsigned*, const float*, const double* or null, const unsigned* or null,
        // const unsigned*, const double*, size_t, 2 × unsigned, 3 × double): values are [m, n],
        // halves and weights [n], own [m], edges [m, k, 2], between [m, k], doubtful [m, room],
        // n_doubtful [m]; a block for each query. Numbers of `own` are below n.
        unsafe { launch.blocks(self.m, THREADS).shared(shared).go() }
    }
}

/// Counts rows by what bounds the distance of each, and gives how many are in doubt.
#[inline(always)]
fn counted(
    own: usize,
    weights: Option<&[u32]>,
    edges: &[[f64; 2]],
    between: &mut [u32],
    list: &mut [u32],
    bounds: impl Iterator<Item = (f64, f64)>,
) -> u32 {
    between.fill(0);
    let mut n_doubtful = 0;
    let farthest = edges.last().map_or(f64::INFINITY, |edge| edge[1]);
    for (j, (low, high)) in bounds.enumerate() {
        if low > farthest {
            continue;
        }
        let others = weights.map_or(1, |weights| weights[j]) - u32::from(j == own);
        if others == 0 {
            continue;
        }
        let beyond = edges.partition_point(|edge| edge[1] < low);
        let reached = edges.partition_point(|edge| edge[0] <= high);
        // Both are below k: the row is not beyond the last edge.
        if beyond == reached {
            between[beyond] += others;
            continue;
        }
        if let Some(place) = list.get_mut(n_doubtful as usize) {
            *place = j as u32;
        }
        n_doubtful += 1;
    }
    n_doubtful
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn what_does_not_fit_is_named() {
        let values = Tensor::zeros((2, 3), DType::F32, &Cpu).unwrap();
        let edges = |shape: &[usize]| Tensor::zeros(shape, DType::F64, &Cpu).unwrap();
        let bound = Bound { share: 0., lost: 0., unit: 1. };
        let message = |own: &[u32], edges: Tensor, halves: Option<&Tensor>| {
            count_nearer(&values, halves, None, own, &edges, &bound, 1).unwrap_err().to_string()
        };
        let counts = Tensor::zeros(2, DType::U32, &Cpu).unwrap();
        let got = count_nearer(&values, None, Some(&counts), &[0, 1], &edges(&[2, 1, 2]), &bound, 1);
        let got = got.unwrap_err().to_string();
        assert!(got.contains("weights must have shape [3]"), "{got}");
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
