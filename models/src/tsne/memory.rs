//! How much memory a run takes, told before it begins.
use super::config::MOST_NODES;
use super::line::dims_of_ops;
use super::{Method, Metric, TsneConfig};
use candle::{Device, Result};

/// Bytes that each stage of a run holds at most at one time, beside the rows that it reads.
///
/// ```
/// use chandlery::tsne::TsneConfig;
/// let needs = TsneConfig::default().memory(1_000_000, 128, true);
/// assert!((3e9..8e9).contains(&(needs.peak() as f64)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// The search for neighbours.
    pub neighbours: u64,
    /// Perplexities and the symmetric graph.
    pub affinities: u64,
    /// The iterations, with the largest grid.
    pub descent: u64,
}

/// Bytes of blocks of products, lists of candidates and parts of sums.
const BLOCKS: u64 = 96 << 20;

/// Bytes that a search in cells takes beside copies of the rows: the order of the rows; on a GPU also
/// lists of candidates, and pairs of a row and a cell that are sorted.
fn of_cells(n: u64, k: u64, on_gpu: bool) -> u64 {
    const LISTS: u64 = 2 << 30;
    const PAIRS: u64 = 1 << 26;
    /// The most cells that a row looks at.
    const CELLS: u64 = 2048;
    match on_gpu {
        true => 32 * n + LISTS.min(20 * n * (k + 33)) + 48 * PAIRS.min(n * CELLS),
        false => 24 * n,
    }
}

impl MemoryNeeds {
    /// The most of all stages.
    pub fn peak(&self) -> u64 {
        self.neighbours.max(self.affinities).max(self.descent)
    }
}

impl TsneConfig {
    /// What a run over `n` rows of `n_features` takes, on a GPU or not: an upper bound for the
    /// usual, which has at most `2 n k` edges.
    pub fn memory(&self, n: usize, n_features: usize, on_gpu: bool) -> MemoryNeeds {
        let (k, method) = (self.neighbours_of(n) as u64, self.method_for(n, on_gpu));
        let by_angle = matches!(self.metric, Metric::Cosine | Metric::Correlation);
        let (n, n_features, dims) = (n as u64, n_features as u64, dims_of_ops(self.n_dims) as u64);
        // Indices and distances, twice while queries that were searched again take their places;
        // rows as products take them, and those of the correlation without their means.
        let copies = if on_gpu { 1 } else { 2 } + u64::from(self.metric == Metric::Correlation);
        let (copies, of_cells) = match self.is_approximate(n as usize) {
            // Rows by cell, and of angles those of length 1.
            true => (copies + u64::from(by_angle), of_cells(n, k, on_gpu)),
            false => (copies, 0),
        };
        let of_rows = copies * 4 * n * n_features.next_multiple_of(8);
        let neighbours = 16 * n * (k + 1) + of_rows + of_cells + BLOCKS;
        // Neighbours, their affinities, edges sorted from both ends, and the graph; the CPU makes
        // it in parts.
        let affinities = if on_gpu { 44 } else { 60 } * n * k;
        // Neighbours with each point as its own, and how many rows each stands for.
        let affinities = affinities + if self.unique { 16 * n * (k + 1) } else { 0 };
        let of_method = match method {
            Method::Exact => 64 * 4 * n * (dims + 1),
            // Sorted points, nodes and keys.
            Method::BarnesHut => 64 * n,
            // Counts, charges, two transforms, spectra and potentials of a node; the CPU keeps its
            // transforms in f32 too. The divergence is told by a grid of twice the nodes, where
            // that is possible.
            Method::Fft => 24 * n + 130 * (MOST_NODES * MOST_NODES) as u64,
        };
        // The graph as it was made and in the order of the descent, and what moves the points.
        let kept = if self.keeps_neighbours() { 8 * n * k } else { 0 };
        let descent = 2 * 16 * n * k + kept + 8 * 4 * n * dims + of_method + BLOCKS;
        MemoryNeeds { neighbours, affinities, descent }
    }

    /// Refuses a run for which `free` bytes are too few.
    ///
    /// # Errors
    /// When they are; the message says what the run needs and what would need less.
    pub fn check_memory(&self, n: usize, n_features: usize, on_gpu: bool, free: u64) -> Result<()> {
        let needs = self.memory(n, n_features, on_gpu);
        if needs.peak() <= free {
            return Ok(());
        }
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let k = self.neighbours_of(n);
        let least = self.least_neighbours();
        let fewer =
            if k > least { format!("fewer neighbours than {k} (at least {least}), ") } else { String::new() };
        let other = if on_gpu { ", or the CPU" } else { "" };
        candle::bail!(
            "Tsne: {n} rows of {n_features} features need {:.2} GiB of free memory beside the rows, got {:.2} GiB; take {fewer}a smaller perplexity, fewer rows{other}",
            gib(needs.peak()),
            gib(free)
        )
    }

    /// Whether a run over `n` raw rows of `n_features` fits the memory that is free on `device` with
    /// the rows, raw ones in so many `bytes` and prepared ones; if it does not,
    /// [`TsneTrainer::new_streamed`](super::TsneTrainer::new_streamed) is for them. True where the
    /// system does not say how much is free.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub fn fits(&self, n: usize, n_features: usize, bytes: u64, device: &Device) -> Result<bool> {
        let needs = self.memory(n, n_features, device.is_cuda()).peak();
        let rows = bytes + 4 * n as u64 * n_features as u64;
        Ok(chandlery_ops::core::free_memory(device)?.is_none_or(|free| needs + rows <= free))
    }

    /// Bytes of a device that are free for some of `n` rows at a time, beside what a search for their
    /// neighbours takes.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub fn bytes_for_stretches(&self, n: usize, device: &Device) -> Result<u64> {
        /// Of what is free, which more than rows may take meanwhile.
        const SHARE: f64 = 0.9;
        let free = chandlery_ops::core::free_memory(device)?.unwrap_or(1 << 30);
        let beside = self.memory(n, 0, device.is_cuda()).neighbours;
        Ok((free.saturating_sub(beside) as f64 * SHARE) as u64)
    }

    /// Refuses a run for which the memory that is free on its device is too little; passes where
    /// the system does not say how much that is.
    pub(super) fn check_free_memory(&self, n: usize, n_features: usize, device: &Device) -> Result<()> {
        match chandlery_ops::core::free_memory(device)? {
            Some(free) => self.check_memory(n, n_features, device.is_cuda(), free),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_what_it_needs() {
        let config = TsneConfig::default();
        let needs = config.memory(1_000_000, 128, true);
        assert!(config.check_memory(1_000_000, 128, true, needs.peak()).is_ok());
        let refused = config.check_memory(1_000_000, 128, true, 1 << 30);
        let error = refused.map_or_else(|error| error.to_string(), |()| String::new());
        let error = error.lines().next().unwrap_or_default();
        let want = format!(
            "need {:.2} GiB of free memory beside the rows, got 1.00 GiB",
            needs.peak() as f64 / f64::from(1 << 30)
        );
        assert!(error.contains(&want), "{error}");
        assert!(
            error.contains("fewer neighbours than 90 (at least 30)") && error.contains("or the CPU"),
            "{error}"
        );
    }

    #[test]
    fn more_edges_than_a_graph_holds_are_refused_before_the_search() {
        let config = TsneConfig::default();
        assert!(config.check_neighbours(23_860_929).is_ok());
        let refused = config.check_neighbours(30_000_000);
        let error = refused.map_or_else(|error| error.to_string(), |()| String::new());
        let want = "got 30000000 rows and 90 neighbours; take at most 71 neighbours, or 23860929 rows";
        assert!(error.contains(want), "{error}");
    }

    #[test]
    fn more_rows_neighbours_and_features_need_more() {
        let config = TsneConfig::default();
        let more = TsneConfig { neighbours: Some(180), ..TsneConfig::default() };
        for on_gpu in [false, true] {
            let few = config.memory(100_000, 50, on_gpu);
            assert!(config.memory(200_000, 50, on_gpu).peak() > few.peak());
            assert!(more.memory(100_000, 50, on_gpu).peak() > few.peak());
            let by = |metric| TsneConfig { metric, ..TsneConfig::default() }.memory(100_000, 50, on_gpu);
            assert_eq!(by(Metric::Manhattan).peak(), few.peak());
            assert!(by(Metric::Correlation).neighbours >= few.neighbours + 4 * 50 * 100_000);
            assert!(config.memory(100_000, 500, on_gpu).neighbours > few.neighbours);
        }
    }
}
