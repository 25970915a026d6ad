//! What a layout is compared with.
use super::super::distances::{Distances, Unlike};
use super::super::matrix::GivenDistances;
use super::super::neighbours::{in_unit, near, unit_of};
use super::super::ranks::Rank;
use super::super::{Metric, Neighbours};
use candle::{Device, Error, Result, Tensor};
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::tsne::{knn, knn_of};

/// Where the distances come from that a layout should keep.
///
/// ```
/// use candle::{Device::Cpu, Tensor};
/// use chandlery::tsne::measure::{TrueDistances, trustworthiness};
/// use chandlery::tsne::{GivenDistances, Metric};
/// # fn main() -> candle::Result<()> {
/// let rows = Tensor::new(&[[0f32], [1.], [3.], [7.], [15.]], &Cpu)?;
/// let layout = Tensor::new(&[[0f32, 0.], [3., 0.], [2., 0.], [1., 0.], [4., 0.]], &Cpu)?;
/// let of_rows = trustworthiness(TrueDistances::Rows(&rows, Metric::Euclidean), &layout, 1, 5)?;
/// let x = [0f64, 1., 3., 7., 15.];
/// let all: Vec<f64> = x.iter().flat_map(|a| x.map(|b| (a - b).abs())).collect();
/// let matrix = GivenDistances { all: &all, n: 5 };
/// assert_eq!(of_rows, trustworthiness(TrueDistances::Matrix(matrix), &layout, 1, 5)?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub enum TrueDistances<'a> {
    /// Prepared rows, f32 `[n, n_features]`, as a metric compares them.
    Rows(&'a Tensor, Metric),
    /// Those of all pairs, as they were given.
    Matrix(GivenDistances<'a>),
}

impl TrueDistances<'_> {
    /// Rows.
    ///
    /// # Errors
    /// When they are no matrix.
    pub fn n(&self) -> Result<usize> {
        match self {
            Self::Rows(rows, _) => Ok(rows.dims2()?.0),
            Self::Matrix(given) => Ok(given.n),
        }
    }

    /// Whether rows are on the device of a layout.
    pub(crate) fn are_with(&self, layout: &Tensor) -> bool {
        match self {
            Self::Rows(rows, _) => rows.device().same_device(layout.device()),
            Self::Matrix(_) => true,
        }
    }
}

/// The same as ranks are taken from them.
pub(super) enum Source<'a> {
    Rows(Box<OfRows<'a>>),
    Matrix(GivenDistances<'a>),
}

/// Rows, and their distances in f64.
pub(super) struct OfRows<'a> {
    pub rows: &'a Tensor,
    pub metric: Metric,
    pub distances: Distances,
}

impl<'a> Source<'a> {
    /// Of as many rows as a layout has points; `op` asks.
    pub(super) fn new(op: &str, of: TrueDistances<'a>, n_points: usize) -> Result<Self> {
        let n = of.n()?;
        if n_points != n {
            candle::bail!("{op}: layout must have {n} points, as many as rows, got {n_points}")
        }
        match of {
            TrueDistances::Rows(rows, metric) => {
                Ok(Self::Rows(Box::new(OfRows { rows, metric, distances: Distances::new(rows, metric)? })))
            }
            TrueDistances::Matrix(given) => {
                given.check().map_err(|wrong| Error::Msg(format!("{op}: {wrong}")))?;
                Ok(Self::Matrix(given))
            }
        }
    }

    /// For each row of `own` the ranks of the rows that `of` gives for its place, as many for each,
    /// among all others.
    pub(super) fn ranks<'b>(
        &self,
        own: &[u32],
        of: impl Fn(usize) -> &'b [u32] + Sync,
    ) -> Result<Vec<Vec<Rank>>> {
        match self {
            Self::Rows(rows) => rows.distances.ranks(own, of),
            Self::Matrix(given) => Ok(given.ranks(own, of)),
        }
    }
}

impl OfRows<'_> {
    /// The `k` nearest others of the rows `own`, nearest first.
    pub(super) fn nearest(&self, own: &[u32], k: usize) -> Result<Neighbours> {
        let rows = in_unit(&self.rows.contiguous()?, unit_of(self.rows, self.metric)?)?;
        match self.distances.unlike_if_few()? {
            Some(unlike) => nearest_of_unlike(&rows, unlike, own, k, self.metric),
            None => nearest_others(&rows, own, k, self.metric),
        }
    }

    /// Whether the last two of some distances, ascending, may be one but for rounding.
    pub(super) fn may_be_one(&self, last: &[f32]) -> bool {
        near(last, self.metric)
    }
}

/// The `k` nearest others of the rows `own` of a matrix, nearest first.
pub(super) fn nearest_others(rows: &Tensor, own: &[u32], k: usize, metric: Metric) -> Result<Neighbours> {
    if own.len() == rows.dim(0)? {
        return knn(rows, k, metric);
    }
    let found = knn_of(&gather_rows(rows, own)?, rows, k + 1, metric)?;
    let (indices, distances) = (found.indices.to_vec2::<u32>()?, found.distances.to_vec2::<f32>()?);
    let (mut others, mut far) = (Vec::with_capacity(own.len() * k), Vec::with_capacity(own.len() * k));
    for ((own, indices), distances) in own.iter().zip(indices).zip(distances) {
        // Of more than `k` rows that equal it, others may stand in its place.
        let place = indices.iter().position(|j| j == own).unwrap_or(k);
        let is_other = |&e: &usize| e != place;
        others.extend((0..=k).filter(is_other).map(|e| indices[e]));
        far.extend((0..=k).filter(is_other).map(|e| distances[e]));
    }
    let matrix = (own.len(), k);
    let indices = Tensor::from_vec(others, matrix, &Device::Cpu)?;
    Ok(Neighbours { indices, distances: Tensor::from_vec(far, matrix, &Device::Cpu)? })
}

/// The same by a search among the rows that differ: equal rows are found once, and follow each
/// other.
fn nearest_of_unlike(
    rows: &Tensor,
    unlike: &Unlike,
    own: &[u32],
    k: usize,
    metric: Metric,
) -> Result<Neighbours> {
    let members = unlike.members();
    let mut asked: Vec<u32> = own.iter().map(|&row| unlike.places[row as usize]).collect();
    asked.sort_unstable();
    asked.dedup();
    let differ = gather_rows(rows, &unlike.firsts)?;
    let some = (k + 1).min(unlike.firsts.len());
    let found = knn_of(&gather_rows(&differ, &asked)?, &differ, some, metric)?;
    let (indices, distances) = (found.indices.to_vec2::<u32>()?, found.distances.to_vec2::<f32>()?);
    let (mut others, mut far) = (Vec::with_capacity(own.len() * k), Vec::with_capacity(own.len() * k));
    for &row in own {
        let at = asked.partition_point(|&place| place < unlike.places[row as usize]);
        let equal = |(&place, &d): (&u32, &f32)| members.of(place).iter().map(move |&j| (j, d));
        let nearest = indices[at].iter().zip(&distances[at]).flat_map(equal).filter(|&(j, _)| j != row);
        for (j, d) in nearest.take(k) {
            others.push(j);
            far.push(d);
        }
    }
    let matrix = (own.len(), k);
    let indices = Tensor::from_vec(others, matrix, &Device::Cpu)?;
    Ok(Neighbours { indices, distances: Tensor::from_vec(far, matrix, &Device::Cpu)? })
}
