//! The steps of a search: candidates, their distances, and what is refined.
use super::{COLUMNS, Keys, OP};
use crate::core::cuda::{Gpu, Launch};
use crate::core::op::{In, Io, Kernel, new_tensor};
use crate::layers::gemm::Precision;
use crate::tsne::neighbours::{Knn, LeftOut, Metric};
use candle::cuda::cudarc::driver::{CudaView, DeviceRepr};
use candle::{CudaStorage, DType, Device, Result, Tensor};

const FILE: &str = "nearest";
const THREADS: u32 = 256;
/// Of kernels/tsne/nearest.cu: columns between two looks at the room of a list.
const TILE: usize = 2048;
/// The most entries that a block sorts: 64 KiB.
const MOST_ROOM: usize = 8192;

/// How the list of a query is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lists {
    keep: usize,
    stored: usize,
    room: usize,
}

impl Lists {
    pub(super) fn of(k: usize) -> Result<Self> {
        let keep = (k + (k / 4).max(32)).next_multiple_of(32);
        let stored = 2 * keep;
        let room = (stored + TILE).next_power_of_two();
        if room > MOST_ROOM {
            let most = ((MOST_ROOM - TILE) / 2 / 32 * 32) * 4 / 5;
            candle::bail!("{OP}: k must be at most {most} on a GPU, got {k}; use the CPU")
        }
        Ok(Self { keep, stored, room })
    }

    /// How many are in so many bytes.
    pub(super) fn held_in(&self, bytes: usize) -> usize {
        bytes / (8 * self.stored)
    }
}

/// Candidates of a block of queries.
pub(super) struct Candidates {
    pub(super) lists: Tensor,
    pub(super) counts: Tensor,
    pub(super) limits: Tensor,
}

impl Candidates {
    pub(super) fn new(lists: &Lists, count: usize, device: &Device) -> Result<Self> {
        Ok(Self {
            lists: new_tensor(OP, (count, lists.stored), DType::I64, device)?,
            counts: Tensor::zeros(count, DType::U32, device)?,
            limits: Tensor::full(f32::INFINITY, count, device)?,
        })
    }
}

/// `Search` of kernels/tsne/nearest.cu, in its order: a search, and where its block of products
/// lies.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    d: u64,
    first_query: u64,
    first_column: u64,
    columns: u32,
    k: u32,
    metric: u32,
    form: u32,
    without_self: u32,
    error: f32,
    share: f32,
    slack: f32,
    by_query: u32,
}
// SAFETY: three words of eight bytes and nine of four, padded to a multiple of eight, the same
// layout as the kernel's struct.
unsafe impl DeviceRepr for Search {}

impl Search {
    /// The block of the queries from `first_query` and the rows from `first_column` on. Sizes are
    /// below 2³², as those of the search are.
    pub(super) fn new(knn: &Knn<'_>, keys: Keys, first_query: usize, first_column: usize) -> Self {
        let (error, share, slack) = margins(knn, keys);
        Self {
            d: knn.n_features as u64,
            first_query: first_query as u64,
            first_column: first_column as u64,
            columns: COLUMNS.min(knn.n - first_column) as u32,
            k: knn.k as u32,
            // In the order of the kernel; the correlation became the cosine. Those of sets are
            // searched on the host.
            metric: match knn.metric {
                Metric::Euclidean => 0,
                Metric::Cosine | Metric::Correlation => 1,
                Metric::Manhattan => 2,
                Metric::Chebyshev | Metric::Hamming | Metric::Jaccard => 3,
            },
            form: keys as u32,
            without_self: u32::from(knn.left_out != LeftOut::None),
            error,
            share,
            slack,
            by_query: 0,
        }
    }

    /// The block of queries that look at the `columns` rows from `first_column` on. Their bounds
    /// are the products or distances themselves.
    pub(super) fn of_cell(knn: &Knn<'_>, keys: Keys, first_column: usize, columns: usize) -> Self {
        Self {
            columns: columns as u32,
            error: 0.,
            share: 1.,
            slack: 0.,
            by_query: 1,
            ..Self::new(knn, keys, 0, first_column)
        }
    }
}

/// `error`, `share` and `slack` of bounds: see the head of the module above.
fn margins(knn: &Knn<'_>, keys: Keys) -> (f32, f32, f32) {
    let (d, u) = (knn.n_features as f64, f64::from(f32::EPSILON) / 2.);
    let two = |power: i32| 2f64.powi(power);
    if keys == Keys::Products {
        let rounding = match knn.precision() {
            Precision::Tf32 => two(-10) + two(-22) + (d / 4. + 32.) * 4. * u,
            _ => (d + 16.) * 2. * u,
        };
        return ((2. * rounding + two(-20)) as f32, 0., two(-100) as f32);
    }
    let share = 1. - (d + 8.) * 2. * u;
    let (share, slack) = match knn.metric {
        // Each vector of length 1 is off by 2⁻²⁴: (√D − c)² ≥ (1 − η) D − c² / η for the distance D
        // of what both are rounded to, c = 2⁻²³ and η = 2⁻¹⁰.
        Metric::Cosine | Metric::Correlation => (share - two(-10), two(-31)),
        _ => (share, two(-100)),
    };
    (0., share.max(0.) as f32, slack as f32)
}

/// `Block` of kernels/tsne/nearest.cu: products, if there are any, and what bounds take besides.
struct Block<'a> {
    products: Option<CudaView<'a, f32>>,
    others: [CudaView<'a, f32>; 5],
}

impl<'a> Block<'a> {
    /// `others`: squares, magnitudes and points of the rows, points and magnitudes of the queries.
    fn of(products: In<'a, CudaStorage>, others: [In<'a, CudaStorage>; 5]) -> Result<Self> {
        let [squares, magnitudes, points, query_points, query_magnitudes] = others;
        let (squares, magnitudes, points) = (squares.elements()?, magnitudes.elements()?, points.elements()?);
        let others = [squares, magnitudes, points, query_points.elements()?, query_magnitudes.elements()?];
        Ok(Self { products: products.maybe()?, others })
    }

    fn add<'l>(&'l self, launch: Launch<'l>) -> Launch<'l> {
        let Self { products, others } = self;
        launch.record(move |launch| {
            others.iter().fold(launch.maybe(products), |launch, other| launch.read(other))
        })
    }
}

/// `Source` of kernels/tsne/nearest.cu: what distances are measured from.
struct Source<'a> {
    queries: CudaView<'a, f32>,
    rows: CudaView<'a, f32>,
    query_lengths: Option<CudaView<'a, f64>>,
    lengths: Option<CudaView<'a, f64>>,
    query_squares: CudaView<'a, f32>,
    largest: Option<CudaView<'a, u32>>,
}

impl<'a> Source<'a> {
    fn of(operands: [In<'a, CudaStorage>; 6]) -> Result<Self> {
        let [queries, rows, query_lengths, lengths, query_squares, largest] = operands;
        Ok(Self {
            queries: queries.elements()?,
            rows: rows.elements()?,
            query_lengths: query_lengths.maybe()?,
            lengths: lengths.maybe()?,
            query_squares: query_squares.elements()?,
            largest: largest.maybe()?,
        })
    }

    fn add<'l>(&'l self, launch: Launch<'l>) -> Launch<'l> {
        launch.record(move |launch| {
            let launch = launch.read(&self.queries).read(&self.rows).maybe(&self.query_lengths);
            launch.maybe(&self.lengths).read(&self.query_squares).maybe(&self.largest)
        })
    }
}

pub(super) struct Select {
    pub(super) search: Search,
    pub(super) lists: Lists,
    pub(super) count: usize,
}

impl Kernel for Select {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([lists, counts, limits], [products, others @ .., picks, left_out]) = io.parts::<3, 8>()?;
        let (mut lists, mut counts) = (lists.elements::<i64>()?, counts.elements::<u32>()?);
        let (mut limits, block) = (limits.elements::<f32>()?, Block::of(products, others)?);
        let (picks, left_out) = (picks.maybe::<u32>()?, left_out.maybe::<u32>()?);
        let Lists { keep, stored, room } = self.lists;
        let launch = gpu.launch(OP, FILE, "select_nearest")?.write(&mut lists).write(&mut counts);
        let launch = block.add(launch.write(&mut limits)).maybe(&picks).maybe(&left_out);
        let launch = launch.num(self.search).count(room).count(keep).count(stored);
        // SAFETY: (u64*, unsigned*, float*, Block, 2 × const unsigned* (may be null), Search, 3 ×
        // unsigned): lists are [count, stored], products [count, columns] (may be null), picks hold
        // a query of all for each of the block, left_out a number for each of all queries, squares
        // and magnitudes [n], points [n, pitch], query_points [count, pitch], query_magnitudes
        // [count]; columns end at n or before. Without products the pitch is 8. A block for each
        // query sorts `room` entries, a power of two of at least `stored` and a tile. In a search in
        // cells lists are those of all queries that picks may name, and no query is picked twice.
        unsafe { launch.blocks(self.count, THREADS).shared(room * 8).go() }
    }
}

pub(super) struct Rank {
    pub(super) search: Search,
    pub(super) lists: Lists,
    pub(super) count: usize,
}

impl Kernel for Rank {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let (written, [lists, counts, limits, source @ .., picks, numbers]) = io.parts::<4, 11>()?;
        let [indices, distances, farthest, uncertain] = written;
        let (mut indices, mut distances) = (indices.elements::<u32>()?, distances.elements::<f32>()?);
        let (mut farthest, mut uncertain) = (farthest.elements::<f64>()?, uncertain.elements::<u8>()?);
        let (lists, counts, limits) =
            (lists.elements::<i64>()?, counts.elements::<u32>()?, limits.elements::<f32>()?);
        let (source, picks) = (Source::of(source)?, picks.maybe::<u32>()?);
        let numbers = numbers.maybe::<u32>()?;
        let Lists { keep, stored, .. } = self.lists;
        let width = stored.next_power_of_two();
        let launch = gpu.launch(OP, FILE, "rank_nearest")?.write(&mut indices).write(&mut distances);
        let launch = launch.write(&mut farthest).write(&mut uncertain).read(&lists).read(&counts);
        let launch = source.add(launch.read(&limits)).maybe(&picks).maybe(&numbers).num(self.search);
        let launch = launch.count(stored).count(width).count(keep);
        // SAFETY: (unsigned*, float*, double*, u8*, const u64*, const unsigned*, const float*,
        // Source (lengths are null but for the cosine, largest may be null), 2 × const unsigned*
        // (may be null), Search, 3 × unsigned): as for `Select`; numbers are [n]; indices and distances are [m, k],
        // farthest, uncertain and query_lengths [m], queries [m, d], query_squares [count], rows
        // [n, d], lengths [n]; k is at most `keep`, which is at most `stored` and `width`; a block
        // for each query holds `width` entries and rows.
        unsafe { launch.blocks(self.count, THREADS).shared(width * 12).go() }
    }
}

pub(super) struct Refine {
    pub(super) search: Search,
    pub(super) count: usize,
    pub(super) is_last: bool,
}

impl Refine {
    /// Of kernels/tsne/nearest.cu: rows that wait between two launches, and how many are measured
    /// at a time.
    pub(super) const WAITING: usize = 1024;
    const AT_ONCE: usize = 256;
}

impl Kernel for Refine {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let (written, read) = io.parts::<8, 14>()?;
        let [indices, distances, farthest, near, near_rows, near_counts, waiting, waiting_counts] = written;
        let [products, a, b, c, d, e, source @ .., picks, left_out] = read;
        let (block, source) = (Block::of(products, [a, b, c, d, e])?, Source::of(source)?);
        let (mut indices, mut distances) = (indices.elements::<u32>()?, distances.elements::<f32>()?);
        let (mut farthest, mut near) = (farthest.elements::<f64>()?, near.elements::<i64>()?);
        let (mut near_rows, mut near_counts) = (near_rows.elements::<u32>()?, near_counts.elements::<u32>()?);
        let (mut waiting, mut waiting_counts) =
            (waiting.elements::<u32>()?, waiting_counts.elements::<u32>()?);
        let (picks, left_out) = (picks.elements::<u32>()?, left_out.maybe::<u32>()?);
        let width = (self.search.k as usize + Self::AT_ONCE).next_power_of_two();
        let launch = gpu.launch(OP, FILE, "refine_nearest")?.write(&mut indices).write(&mut distances);
        let launch =
            launch.write(&mut farthest).write(&mut near).write(&mut near_rows).write(&mut near_counts);
        let launch = launch.write(&mut waiting).write(&mut waiting_counts);
        let launch =
            source.add(block.add(launch)).read(&picks).maybe(&left_out).num(self.search).count(width);
        let launch =
            launch.count(usize::from(self.search.first_column == 0)).count(usize::from(self.is_last));
        // SAFETY: (unsigned*, float*, double*, u64*, 4 × unsigned*, Block, Source, 2 × const
        // unsigned* (the last may be null), Search, 3 × unsigned): each of `picks`, [count], is one
        // of the m queries; indices and distances are [m, k], farthest and query_lengths [m],
        // queries [m, d]; near and near_rows [count, k], waiting [count, WAITING], the counts
        // [count]; the rest as for `Select` and `Rank`. A block for each pick holds `width` entries
        // and rows, and the rows that wait with those of a tile.
        unsafe { launch.blocks(self.count, THREADS).shared(width * 12 + (Self::WAITING + TILE) * 4).go() }
    }
}
