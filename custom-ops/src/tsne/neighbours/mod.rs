//! Exact nearest neighbours.
//!
//! ```text
//! neighbours of query i = the k rows j with the smallest d(i, j), nearest first, the lower j first among equals
//! Euclidean    d = |q_i − x_j|
//! Cosine       d = 1 − q_i·x_j / (|q_i| |x_j|),  1 where either is zero
//! Correlation  d = that of q_i − mean(q_i) and x_j − mean(x_j),  1 where either is constant
//! Manhattan    d = Σ_c |q_ic − x_jc|
//! Chebyshev    d = max_c |q_ic − x_jc|
//! Hamming      d = the share of the columns in which q_i and x_j differ
//! Jaccard      d = 1 − |Q_i ∩ X_j| / |Q_i ∪ X_j|,  0 where both are empty; Q_i, X_j: the columns that are not 0
//! ```
//!
//! Products of blocks propose more rows than asked for, and distances from the differences of the
//! rows themselves, in f32 or better, decide between them. The last four distances are compared for
//! all pairs in f32 in place of the products; Hamming and Jaccard on the host, also for rows on a
//! GPU. No other step of the library depends on how they were found: [`Neighbours`] may come from
//! elsewhere.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::tsne::{Metric, knn};
//! # fn main() -> candle::Result<()> {
//! let rows = Tensor::new(&[[0f32, 0.], [3., 4.], [0., 1.]], &Cpu)?;
//! let nearest = knn(&rows, 2, Metric::Euclidean)?;
//! assert_eq!(nearest.indices.to_vec2::<u32>()?, [[2, 1], [2, 0], [0, 1]]);
//! assert_eq!(nearest.distances.to_vec2::<f32>()?[0], [1., 5.]);
//! # Ok(()) }
//! ```
mod about_mean;
mod approximate;
mod centred;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod divided;
mod pairs;
mod reference;
mod streamed;

use crate::arrays::elementwise::contiguous;
use crate::core::check::matrix;
use crate::core::op::{Io, Kernel, new_tensor, operands, same_device};
use crate::group::Group;
pub use about_mean::{RowsAboutMean, rows_about_mean};
pub use approximate::{
    ApproximateNeighbours, Recall, knn_approximate, knn_approximate_in_group, knn_of_approximate,
};
use candle::{CpuStorage, DType, Device, Result, Tensor};
use centred::centred;
pub use pairs::row_distances;
pub use reference::{knn_of_reference, knn_reference};
use serde::{Deserialize, Serialize};
pub use streamed::{StreamedSearch, knn_streamed};

const OP: &str = "knn";

/// How far two rows are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// `|a − b|`
    #[default]
    Euclidean,
    /// `1 − a·b / (|a| |b|)`, 1 where either is zero.
    Cosine,
    /// The cosine distance of the rows minus their own means, 1 where either is constant. Rows
    /// without their means are rounded to f32.
    Correlation,
    /// `Σ |a_c − b_c|`
    Manhattan,
    /// `max |a_c − b_c|`
    Chebyshev,
    /// The share of the columns in which rows differ, in `[0, 1]`: for categories. 0 without
    /// columns.
    Hamming,
    /// Rows are the sets of their columns that are not 0: the share of the columns of both that are
    /// not in the other, in `[0, 1]`. 0 where both are empty.
    Jaccard,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Euclidean,
        Self::Cosine,
        Self::Correlation,
        Self::Manhattan,
        Self::Chebyshev,
        Self::Hamming,
        Self::Jaccard,
    ];

    /// Its name in files and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Euclidean => "euclidean",
            Self::Cosine => "cosine",
            Self::Correlation => "correlation",
            Self::Manhattan => "manhattan",
            Self::Chebyshev => "chebyshev",
            Self::Hamming => "hamming",
            Self::Jaccard => "jaccard",
        }
    }

    /// What it is, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Euclidean => "The Euclidean distance",
            Self::Cosine => "1 minus the cosine of the angle between rows",
            Self::Correlation => "1 minus the correlation of rows: the cosine of rows minus their own means",
            Self::Manhattan => "The sum of the magnitudes of the differences (L1)",
            Self::Chebyshev => "The largest magnitude of a difference (L-infinity)",
            Self::Hamming => "The share of the columns in which rows differ, for categories",
            Self::Jaccard => {
                "1 minus the shared part of two sets: a row is the set of its columns that are not 0"
            }
        }
    }

    /// Whether no product gives the distance or orders rows as it does; those of sets count here,
    /// too.
    fn has_no_product(self) -> bool {
        matches!(self, Self::Manhattan | Self::Chebyshev | Self::Hamming | Self::Jaccard)
    }

    /// Whether it depends on the angle between rows alone.
    pub fn is_angle(self) -> bool {
        matches!(self, Self::Cosine | Self::Correlation)
    }

    /// Whether only the host computes it.
    fn is_of_host(self) -> bool {
        matches!(self, Self::Hamming | Self::Jaccard)
    }
}

/// The nearest rows of each query.
#[derive(Debug, Clone)]
pub struct Neighbours {
    /// Rows, nearest first, the lower first among equals: u32 `[n_queries, k]`.
    pub indices: Tensor,
    /// Their distances (not squared), ascending: f32 `[n_queries, k]`.
    pub distances: Tensor,
}

impl Neighbours {
    fn to_device(&self, device: &Device) -> Result<Self> {
        Ok(Self { indices: self.indices.to_device(device)?, distances: self.distances.to_device(device)? })
    }

    /// Those of some queries.
    fn of_rows(&self, rows: std::ops::Range<usize>) -> Result<Self> {
        let narrow = |t: &Tensor| contiguous(&t.narrow(0, rows.start, rows.len())?);
        Ok(Self { indices: narrow(&self.indices)?, distances: narrow(&self.distances)? })
    }

    /// The `k` nearest of them, or all where they are fewer.
    ///
    /// # Errors
    /// When memory is short.
    pub fn first(&self, k: usize) -> Result<Self> {
        let k = k.min(self.indices.dim(1)?);
        let narrow = |t: &Tensor| contiguous(&t.narrow(1, 0, k)?);
        Ok(Self { indices: narrow(&self.indices)?, distances: narrow(&self.distances)? })
    }
}

/// The `k` nearest other rows of each row of a contiguous f32 matrix `rows`, `[n, n_features]`. A
/// row is no neighbour of itself, but of its duplicates.
///
/// Cost: about `2 · n² · n_features` FLOP, and memory for a copy of the rows (two for the
/// correlation) and a block of products (32 MiB) beside the result. They are not multiply-adds for
/// the last four distances of [`Metric`]. On a GPU `k` is at most 2,457.
///
/// # Errors
/// When `rows` is not such a matrix, has an entry that is not finite, `k` is 0 or not below `n`, or
/// a step is being recorded.
pub fn knn(rows: &Tensor, k: usize, metric: Metric) -> Result<Neighbours> {
    knn_in_group(&Group::single(), rows, k, metric)
}

/// The same with the other ranks of a group: each has all rows, searches for its part of them, and
/// gets the neighbours of all, those that one rank finds, byte for byte.
///
/// ```
/// use candle::{Device::Cpu, Result};
/// use chandlery_ops::tsne::{Metric, knn, knn_in_group};
/// use chandlery_ops::{Group, Philox};
/// # fn main() -> Result<()> {
/// let rows = chandlery_ops::core::uniform((10, 3), &Cpu, Philox::new(0, 0))?;
/// let want = knn(&rows, 2, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
/// let of_ranks = Group::on_threads(Group::threads(3), |group| {
///     knn_in_group(group, &rows, 2, Metric::Euclidean)?.indices.to_vec2::<u32>()
/// });
/// for found in of_ranks {
///     assert_eq!(found?, want);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`knn`], and when a rank is gone.
pub fn knn_in_group(group: &Group, rows: &Tensor, k: usize, metric: Metric) -> Result<Neighbours> {
    Asked { left_out: LeftOut::Same, ..Asked::of(rows, rows, k, metric) }.find_in_group(group)
}

/// The `k` nearest of `rows`, `[n, n_features]`, for each of `queries`, `[n_queries, n_features]`.
/// A row that equals the query counts.
///
/// # Errors
/// As [`knn`]; `k` may be `n` here.
pub fn knn_of(queries: &Tensor, rows: &Tensor, k: usize, metric: Metric) -> Result<Neighbours> {
    Asked::of(queries, rows, k, metric).find()
}

/// What is known of the entries of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entries {
    Unknown,
    /// An earlier search took them. Nobody looks again, for which the host would wait for a GPU.
    Finite,
}

/// The row that is no neighbour of query `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftOut<'a> {
    None,
    /// Row `i`: the queries are the rows.
    Same,
    /// The `i`-th of these rows.
    Rows(&'a [u32]),
}

impl LeftOut<'_> {
    fn of(self, i: usize) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Same => Some(i),
            Self::Rows(rows) => rows.get(i).map(|&row| row as usize),
        }
    }
}

/// The sizes of a search.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    n: usize,
    n_queries: usize,
    n_features: usize,
}

/// What is searched.
#[derive(Clone, Copy)]
struct Asked<'a> {
    /// f32 `[n_queries, n_features]`
    queries: &'a Tensor,
    /// f32 `[n, n_features]`
    rows: &'a Tensor,
    k: usize,
    metric: Metric,
    left_out: LeftOut<'a>,
    entries: Entries,
}

impl<'a> Asked<'a> {
    /// A search of which nothing is known, that leaves no row out.
    fn of(queries: &'a Tensor, rows: &'a Tensor, k: usize, metric: Metric) -> Self {
        Self { queries, rows, k, metric, left_out: LeftOut::None, entries: Entries::Unknown }
    }

    /// The sizes of operands that fit each other.
    fn checked(&self) -> Result<Sizes> {
        let &Self { queries, rows, k, left_out, .. } = self;
        let (n, n_features) = matrix(OP, "rows", "[n, n_features]", rows, &[DType::F32])?;
        let (n_queries, features) = matrix(OP, "queries", "[n_queries, n_features]", queries, &[DType::F32])?;
        same_device(OP, "queries", queries, rows.device())?;
        if features != n_features {
            candle::bail!("{OP}: queries must have {n_features} features, as rows have, got {features}")
        }
        let most = n - usize::from(left_out != LeftOut::None && n > 0);
        if k == 0 || k > most {
            candle::bail!("{OP}: k must be in 1..={most} for {n} rows, got {k}")
        }
        if u32::try_from(n).is_err() {
            candle::bail!("{OP}: there must be fewer than 2^32 rows, got {n}")
        }
        Ok(Sizes { n, n_queries, n_features })
    }

    fn find(&self) -> Result<Neighbours> {
        let &Self { queries, rows, k, metric, left_out, entries } = self;
        let Sizes { n, n_queries, n_features } = self.checked()?;
        if metric.is_of_host() && !rows.device().is_cpu() {
            let found = self.in_form(metric, |t| t.to_device(&Device::Cpu), |asked| asked.find())?;
            return found.to_device(rows.device());
        }
        if metric == Metric::Correlation {
            return self.in_form(Metric::Cosine, centred, |asked| asked.find());
        }
        let knn = Knn { n, n_features, k, metric, left_out, entries };
        #[cfg(feature = "cuda")]
        if rows.device().is_cuda() {
            return knn.find(queries, rows);
        }
        let new = |dtype| new_tensor(OP, (n_queries, k), dtype, rows.device());
        let found = Neighbours { indices: new(DType::U32)?, distances: new(DType::F32)? };
        let io = operands(OP).write("indices", &found.indices).write("distances", &found.distances);
        io.read("queries", queries).read("rows", rows).run(&knn)?;
        Ok(found)
    }

    /// What `find` finds of other forms of the operands.
    fn in_form<T>(
        &self,
        metric: Metric,
        form: impl Fn(&Tensor) -> Result<Tensor>,
        find: impl FnOnce(Asked<'_>) -> Result<T>,
    ) -> Result<T> {
        let rows = form(self.rows)?;
        let queries = if self.left_out == LeftOut::Same { rows.clone() } else { form(self.queries)? };
        find(Asked { queries: &queries, rows: &rows, metric, ..*self })
    }
}

/// A checked call.
#[derive(Debug, Clone, Copy)]
struct Knn<'a> {
    n: usize,
    n_features: usize,
    k: usize,
    metric: Metric,
    left_out: LeftOut<'a>,
    entries: Entries,
}

impl Kernel for Knn<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([indices, distances], [queries, rows]) = io.parts()?;
        self.search(indices.elements()?, distances.elements()?, queries.elements()?, rows.elements()?)
    }
}

/// The message for an entry that is not finite.
fn not_finite(name: &str, row: usize, column: usize, x: f32) -> candle::Error {
    candle::Error::Msg(format!("{OP}: {name} must be finite, got {x} in row {row}, column {column}"))
}
