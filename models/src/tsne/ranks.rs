//! Ranks of rows by their distances from one of them.

/// How many rows are nearer to a row than another one, and how many are as far as that one, which
/// is one of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rank {
    pub nearer: u64,
    pub as_far: u64,
}

impl Rank {
    /// The mean of the ranks of all that are as far: 1 for the nearest.
    pub(super) fn mean(self) -> f64 {
        self.nearer as f64 + 0.5 * (self.as_far as f64 + 1.)
    }

    /// How likely it is among the `k` nearest if a draw decides between those that are as far.
    pub(super) fn among(self, k: usize) -> f64 {
        (k as u64).saturating_sub(self.nearer).min(self.as_far) as f64 / self.as_far.max(1) as f64
    }
}

/// Whether distances differ by no more than the rounding of their sums.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tolerance {
    /// For angles what 1 less a cosine does not tell apart in f64, which is how others compute
    /// them; else 0.
    pub absolute: f64,
}

impl Tolerance {
    fn of(&self, d: f64) -> f64 {
        const SHARE: f64 = 16. * f64::EPSILON;
        SHARE * d + self.absolute
    }

    pub(super) fn equal(&self, a: f64, b: f64) -> bool {
        (a - b).abs() <= self.of(a.max(b))
    }
}

/// A row, and rows that are ranked as seen from it.
pub(super) struct Query {
    pub own: usize,
    tolerance: Tolerance,
    /// Their distances.
    each: Vec<f64>,
    /// Between what others count as far as they are, ascending.
    edges: Vec<(f64, f64)>,
}

impl Query {
    /// `each` are the distances of those that are ranked.
    pub(super) fn new(own: usize, each: Vec<f64>, tolerance: Tolerance) -> Self {
        let mut edges: Vec<(f64, f64)> =
            each.iter().map(|&d| (d - tolerance.of(d), d + tolerance.of(d))).collect();
        edges.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { own, tolerance, each, edges }
    }

    /// Between what rows count as far as each of those that are ranked, ascending.
    pub(super) fn edges(&self) -> &[(f64, f64)] {
        &self.edges
    }

    /// The distance beyond which others are no matter.
    pub(super) fn farthest(&self) -> f64 {
        self.edges.last().map_or(0., |edge| edge.1)
    }

    /// Ranks from the distances of the others.
    pub(super) fn ranks(&self, others: impl Iterator<Item = f64>) -> Vec<Rank> {
        let mut between = vec![0; self.edges.len()];
        let mut as_far = between.clone();
        for d in others {
            let beyond = self.edges.partition_point(|edge| edge.1 < d);
            let reached = self.edges.partition_point(|edge| edge.0 <= d);
            as_far[beyond..reached].iter_mut().for_each(|as_far| *as_far += 1);
            if let Some(between) = between.get_mut(reached) {
                *between += 1;
            }
        }
        self.ranks_of_counts(&between, &as_far)
    }

    /// Ranks from how many rows reach the near ends of exactly so many edges, and how many are within
    /// each.
    pub(super) fn ranks_of_counts(&self, between: &[u32], as_far: &[u32]) -> Vec<Rank> {
        let mut nearer = 0;
        let sorted: Vec<Rank> = between
            .iter()
            .zip(as_far)
            .map(|(&between, &as_far)| {
                nearer += u64::from(between);
                Rank { nearer, as_far: as_far.into() }
            })
            .collect();
        let rank = |&d: &f64| {
            let place = self.edges.partition_point(|edge| edge.0 < d - self.tolerance.of(d));
            sorted.get(place).copied().unwrap_or_default()
        };
        self.each.iter().map(rank).collect()
    }
}
