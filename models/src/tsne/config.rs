//! What a run of t-SNE is told.
use super::Affinity;
use super::changes::{Change, changed, check};
use crate::check::{at_least_one, range};
use crate::prepare::{check_inputs, prepared};
use candle::{DType, Device, Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::tsne::{LayoutStep, Metric, RepulsionMethod, grid_sides};
use serde::{Deserialize, Serialize};

/// The fewest nodes of a side of a grid on a GPU, where fewer take no less time: they leave
/// multiprocessors idle, and their cells hold more points.
const GPU_NODES: usize = 256;

/// The most nodes of a side of a grid.
pub(super) const MOST_NODES: usize = 2048;

/// The most neighbours of all rows together, of which the graph has twice as many at most.
const MOST_EDGES: usize = (u32::MAX / 2) as usize;

/// The most rows whose neighbours are all searched by default.
const MOST_EXACT: usize = 150_000;

/// How the repulsion between all pairs of points is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Every pair: `O(n²)` an iteration.
    Exact,
    /// A tree whose cells stand for the points in them: `O(n log n)`.
    BarnesHut,
    /// Interpolation on a grid and FFT: `O(n)`; 2 dimensions.
    Fft,
}

/// Where points begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// The principal components of the rows, scaled to a standard deviation of 1e-4; keeps the
    /// large-scale order of the data.
    #[default]
    Pca,
    /// Normal with a standard deviation of 1e-4.
    Random,
    /// The directions in which a random walk over the affinities mixes slowest, scaled to a
    /// standard deviation of 1e-4; needs no rows. See [`spectral_layout`](super::spectral_layout).
    Spectral,
}

/// How a layout is found, and what an [`Embedding`](super::Embedding) holds as the content of
/// `config.json`.
///
/// ```
/// use chandlery::tsne::TsneConfig;
/// let config = TsneConfig { perplexity: 10., n_dims: 3, ..TsneConfig::default() };
/// assert_eq!(config.iterations_in_all(), 750);
/// assert!(config.validate().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TsneConfig {
    /// Dimensions of the layout, 1 to 3. Default 2.
    pub n_dims: usize,
    /// The number of neighbours that a point effectively has, at least 1. Default 30. A run over
    /// few rows lowers it to a third of a row's neighbours, `(n − 1) / 3`, but not below 1
    /// ([`lowered`](Self::lowered)).
    pub perplexity: f64,
    /// What the affinities of neighbours are. Default the Gaussians of
    /// [`perplexity`](Self::perplexity); with the others a perplexity only says how many neighbours
    /// there are where [`neighbours`](Self::neighbours) does not.
    #[serde(skip_serializing_if = "is_default")]
    pub affinity: Affinity,
    /// More perplexities, whose affinities are averaged with those of
    /// [`perplexity`](Self::perplexity): small ones show local, large ones global structure. At
    /// most 7. Default none.
    pub further_perplexities: Vec<f64>,
    /// How rows are compared. Default Euclidean.
    #[serde(with = "StoredMetric")]
    pub metric: Metric,
    /// Whether equal rows are one point, which pulls and pushes as so many rows and stays one in
    /// the layout: what a descent of all rows comes to that has equal rows begin at one place, with
    /// the pairs, edges and memory of the points. Rows are equal if all prepared values are.
    /// Neighbours are then the nearest points, all of them where there are fewer, each with all its
    /// rows, and not copies of a row alone; a perplexity counts rows as ever.
    /// [`TsneTrainer::n_points`](super::TsneTrainer::n_points) says how many are distinct. Layouts
    /// are wider, as rows at one place have all of their weight there, and a grid with them. In one
    /// process, for rows and distances of all pairs. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub unique: bool,
    /// Neighbours of each row that get an affinity, at least the largest perplexity where
    /// affinities are of perplexities. Default three times the largest perplexity.
    pub neighbours: Option<usize>,
    /// Whether neighbours may be searched in the nearest cells of rows only. Default: with more than
    /// 150,000 rows.
    pub approximate: Option<bool>,
    /// The share of the nearest rows that such a search has to find, above 0 and at most 1;
    /// [`TsneTrainer::recall`](super::TsneTrainer::recall) says what it found. Default 0.95.
    pub recall: f64,
    /// How repulsion is found. Default: every pair for up to 2,000 points (10,000 on a GPU), beyond
    /// that FFT in 2 dimensions and a tree in 1 or 3.
    pub method: Option<Method>,
    /// How coarse the tree is: 0 (every pair) to 1. Default 0.5.
    pub theta: f32,
    /// The largest distance of the grid's nodes, in units of the layout, above 0. Default 0.5. The
    /// grid has at most 2,048 nodes a side.
    pub node_distance: f32,
    /// Iterations with [`early_exaggeration`](Self::early_exaggeration). Default 250.
    pub early_iterations: usize,
    /// The factor on the attraction in the first iterations, above 0. Default 12.
    pub early_exaggeration: f64,
    /// Iterations after the early ones. Default 500.
    pub iterations: usize,
    /// The factor on the attraction in these, above 0. Default 1; more makes clusters denser.
    pub exaggeration: f64,
    /// Above 0. Default the number of points over the exaggeration of the phase (Belkina et al.
    /// 2019).
    pub learning_rate: Option<f64>,
    /// In `[0, 1)`. Default 0.8.
    pub early_momentum: f64,
    /// In `[0, 1)`. Default 0.8.
    pub momentum: f64,
    /// `α` of the kernel `(1 + d²/α)^−α`, above 0. Default 1; less shows finer clusters (Kobak et
    /// al. 2019). It is the kernel of openTSNE; that of scikit-learn, `(1 + d²/ν)^−((ν + 1)/2)`, is
    /// the same for `α = (ν + 1)/2` but for the unit of the layout.
    pub degrees_of_freedom: f32,
    /// What becomes of points that a step is too large for. None, the default: no point moves by
    /// more than 5 units of the layout in a step. A number above 0: steps have no limit, and a
    /// coordinate beyond this one, to either side, is put back to it at rest, as by Han-Chen
    /// (2019), who does not say how large it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_back: Option<f32>,
    /// What changes on the way, in the order of the iterations. Default nothing.
    #[serde(skip_serializing_if = "is_default")]
    pub changes: Vec<Change>,
    /// Whether a run keeps its neighbours, 8 bytes each, and writes them into checkpoints, so that
    /// [`TsneTrainer::change`](super::TsneTrainer::change) may change perplexities; it does where
    /// [`changes`](Self::changes) have perplexities. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub keep_neighbours: bool,
    /// Where points begin. Default PCA.
    pub start: Start,
    /// The descent ends when the norm of the gradient is at most this; at least 0. Default 1e-7.
    pub gradient_tolerance: f64,
    /// After the early iterations the descent ends, too, when the divergence falls by less than
    /// this in an iteration, in nats, from one check to the next; above 0. Default none: it never
    /// ends so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_below: Option<f64>,
    /// What is done to raw rows first. Default: floats as they are, bytes over 255.
    #[serde(skip_serializing_if = "Preparation::is_default")]
    pub preparation: Preparation,
    /// What was subtracted from each column of the data, in f64, before they were rounded to the
    /// f32 of raw rows; empty: nothing. Whoever has new rows subtracts the same. The library only
    /// keeps it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub centre: Vec<f64>,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

crate::model::model_config!(TsneConfig, |_: &TsneConfig| 0);

/// [`Metric`] as files have it.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Metric", rename_all = "kebab-case")]
enum StoredMetric {
    Euclidean,
    Cosine,
    Correlation,
    Manhattan,
    Chebyshev,
    Hamming,
    Jaccard,
}

impl Default for TsneConfig {
    fn default() -> Self {
        Self {
            n_dims: 2,
            perplexity: 30.,
            affinity: Affinity::default(),
            further_perplexities: vec![],
            metric: Metric::Euclidean,
            unique: false,
            neighbours: None,
            approximate: None,
            recall: 0.95,
            method: None,
            theta: 0.5,
            node_distance: 0.5,
            early_iterations: 250,
            early_exaggeration: 12.,
            iterations: 500,
            exaggeration: 1.,
            learning_rate: None,
            early_momentum: 0.8,
            momentum: 0.8,
            degrees_of_freedom: 1.,
            push_back: None,
            changes: vec![],
            keep_neighbours: false,
            start: Start::default(),
            gradient_tolerance: 1e-7,
            stop_below: None,
            preparation: Preparation::default(),
            centre: vec![],
            image: None,
        }
    }
}

/// One part of the descent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Phase {
    pub exaggeration: f64,
    pub momentum: f64,
    pub learning_rate: Option<f64>,
    /// The iteration that it begins with.
    pub begin: usize,
    /// The iteration that it ends before.
    pub end: usize,
}

impl TsneConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "TsneConfig";
        if !(1..=3).contains(&self.n_dims) {
            candle::bail!("{OP}: n_dims must be 1, 2 or 3, got {}", self.n_dims)
        }
        for perplexity in self.perplexities() {
            range(OP, "perplexity", perplexity, "at least 1", |x| x >= 1.)?;
        }
        if self.further_perplexities.len() > 7 {
            candle::bail!(
                "{OP}: further_perplexities must be at most 7, got {}",
                self.further_perplexities.len()
            )
        }
        if let Affinity::FixedWidth(width) = self.affinity {
            range(OP, "fixed width of the affinity", width, "above 0", |x| x > 0.)?;
        }
        at_least_one(OP, "neighbours", self.neighbours.unwrap_or(1))?;
        range(OP, "recall", self.recall, "above 0 and at most 1", |x| x > 0. && x <= 1.)?;
        if self.n_dims != 2 && self.method == Some(Method::Fft) {
            candle::bail!(
                "{OP}: the method fft is for 2 dimensions, got {}; use barnes-hut or exact",
                self.n_dims
            )
        }
        range(OP, "theta", self.theta.into(), "in 0..=1", |x| (0. ..=1.).contains(&x))?;
        range(OP, "node_distance", self.node_distance.into(), "above 0", |x| x > 0.)?;
        range(OP, "early_exaggeration", self.early_exaggeration, "above 0", |x| x > 0.)?;
        range(OP, "exaggeration", self.exaggeration, "above 0", |x| x > 0.)?;
        range(OP, "learning_rate", self.learning_rate.unwrap_or(1.), "above 0", |x| x > 0.)?;
        range(OP, "early_momentum", self.early_momentum, "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "momentum", self.momentum, "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "degrees_of_freedom", self.degrees_of_freedom.into(), "above 0", |x| x > 0.)?;
        range(OP, "push_back", self.push_back.unwrap_or(1.).into(), "above 0", |x| x > 0.)?;
        range(OP, "gradient_tolerance", self.gradient_tolerance, "at least 0", |x| x >= 0.)?;
        range(OP, "stop_below", self.stop_below.unwrap_or(1.), "above 0", |x| x > 0.)?;
        at_least_one(OP, "iterations in all", self.iterations_in_all())?;
        check(&self.changes, self.affinity, self.iterations_in_all())
    }

    /// Refuses rows whose number or width do not fit, which are at so many points.
    pub(super) fn check_rows(&self, n: usize, n_points: usize, n_read: usize) -> Result<()> {
        check_inputs("Tsne", &self.preparation, n_read, self.image)?;
        self.check_neighbours_of_points(n, n_points)
    }

    /// Refuses a number of neighbours that does not fit so many rows, at least 2.
    ///
    /// # Errors
    /// When it does not; the message says what would.
    pub fn check_neighbours(&self, n: usize) -> Result<()> {
        self.check_neighbours_of_points(n, n)
    }

    /// The same for rows that are at so many points.
    pub(super) fn check_neighbours_of_points(&self, n: usize, n_points: usize) -> Result<()> {
        const OP: &str = "Tsne";
        if n < 2 {
            candle::bail!("{OP}: rows must be at least 2, got {n}")
        }
        let least = self.least_neighbours();
        if let Some(k) = self.neighbours.filter(|k| !(least..n).contains(k)) {
            let at = match self.affinity {
                Affinity::Perplexity => format!(" at perplexity {}", rounded(self.largest_perplexity())),
                _ => String::new(),
            };
            candle::bail!("{OP}: neighbours must be in {least}..={} for {n} rows{at}, got {k}", n - 1)
        }
        let (n, k) = (n_points, self.neighbours_of(n_points));
        if n.saturating_mul(k) > MOST_EDGES {
            candle::bail!(
                "{OP}: rows times neighbours must be at most {MOST_EDGES}, got {n} rows and {k} neighbours; take at most {} neighbours, or {} rows",
                MOST_EDGES / n,
                MOST_EDGES / k
            )
        }
        Ok(())
    }

    /// The fewest neighbours that a row must have.
    pub(super) fn least_neighbours(&self) -> usize {
        match self.affinity {
            Affinity::Perplexity => self.largest_perplexity().ceil() as usize,
            Affinity::Uniform | Affinity::FixedWidth(_) => 1,
        }
    }

    /// The same for `n` rows, with perplexities that these have: one above a third of a row's
    /// neighbours, `(n − 1) / 3`, is lowered to that, but not below 1. Every run does so first;
    /// [`TsneTrainer::notes`](super::TsneTrainer::notes) says it. Affinities of another kind have
    /// no perplexity, and nothing is lowered.
    ///
    /// ```
    /// # use chandlery::tsne::TsneConfig;
    /// assert_eq!(TsneConfig::default().lowered(31).perplexity, 10.);
    /// assert_eq!(TsneConfig::default().lowered(1000).perplexity, 30.);
    /// ```
    #[must_use]
    pub fn lowered(&self, n: usize) -> Self {
        self.lowered_to(largest_perplexity(n))
    }

    /// The same for perplexities of at most `most`.
    pub(super) fn lowered_to(&self, most: f64) -> Self {
        if self.affinity != Affinity::Perplexity {
            return self.clone();
        }
        Self {
            perplexity: self.perplexity.min(most),
            further_perplexities: self.further_perplexities.iter().map(|p| p.min(most)).collect(),
            changes: self.changes.iter().map(|change| change.lowered_to(most)).collect(),
            ..self.clone()
        }
    }

    /// What t-SNE reads of raw rows, f32 `[n, n_features]`.
    pub(super) fn read(&self, rows: &Tensor) -> Result<Tensor> {
        prepared("Tsne", &self.preparation, rows, DType::F32)?.contiguous()
    }

    /// Neighbours of each of `n` rows.
    pub fn neighbours_of(&self, n: usize) -> usize {
        let three = (3. * self.largest_perplexity()).ceil() as usize;
        self.neighbours.unwrap_or(three).min(n.saturating_sub(1)).max(1)
    }

    /// Whether neighbours of `n` rows are searched in cells.
    pub fn is_approximate(&self, n: usize) -> bool {
        self.approximate.unwrap_or(n > MOST_EXACT)
    }

    /// All perplexities that affinities begin with.
    pub fn perplexities(&self) -> Vec<f64> {
        std::iter::once(self.perplexity).chain(self.further_perplexities.iter().copied()).collect()
    }

    /// Those of changes too.
    fn perplexities_in_all(&self) -> Vec<f64> {
        let of_changes = self.changes.iter().flat_map(|change| change.to.perplexities.iter().flatten());
        self.perplexities().iter().chain(of_changes).copied().collect()
    }

    pub(super) fn largest_perplexity(&self) -> f64 {
        self.perplexities_in_all().into_iter().fold(1., f64::max)
    }

    /// Iterations of the whole descent.
    pub fn iterations_in_all(&self) -> usize {
        self.early_iterations + self.iterations
    }

    /// The part that `iteration` belongs to, with what changes have set.
    pub(super) fn phase(&self, iteration: usize) -> Phase {
        let (exaggeration, momentum, begin, end) = match iteration < self.early_iterations {
            true => (self.early_exaggeration, self.early_momentum, 0, self.early_iterations),
            false => (self.exaggeration, self.momentum, self.early_iterations, self.iterations_in_all()),
        };
        Phase {
            exaggeration: changed(&self.changes, iteration, |to| to.exaggeration).unwrap_or(exaggeration),
            momentum: changed(&self.changes, iteration, |to| to.momentum).unwrap_or(momentum),
            learning_rate: changed(&self.changes, iteration, |to| to.learning_rate).or(self.learning_rate),
            begin,
            end,
        }
    }

    /// The method for `n` points, on a GPU or not.
    pub fn method_for(&self, n: usize, on_gpu: bool) -> Method {
        let few = if on_gpu { 10_000 } else { 2_000 };
        match self.method {
            Some(method) => method,
            None if n <= few => Method::Exact,
            None if self.n_dims == 2 => Method::Fft,
            None => Method::BarnesHut,
        }
    }

    /// The same as the op takes it, for a layout that is `span` wide.
    pub(super) fn repulsion(&self, n: usize, device: &Device, span: f64) -> RepulsionMethod {
        match self.method_for(n, device.is_cuda()) {
            Method::Exact => RepulsionMethod::Exact,
            Method::BarnesHut => RepulsionMethod::Tree { theta: self.theta },
            Method::Fft => RepulsionMethod::Grid { nodes: self.nodes(span, device) },
        }
    }

    /// The settings of a step that are the same in all.
    pub(super) fn step(&self) -> LayoutStep {
        let step = LayoutStep { degrees_of_freedom: self.degrees_of_freedom, ..LayoutStep::default() };
        match self.push_back {
            None => step,
            Some(most) => LayoutStep { largest_step: f32::INFINITY, largest_coordinate: most, ..step },
        }
    }

    /// Nodes of a side of a grid whose nodes are near enough to each other until the layout is
    /// looked at again.
    fn nodes(&self, span: f64, device: &Device) -> usize {
        /// The layout may grow so much in between.
        const GROWTH: f64 = 1.1;
        let wanted = (GROWTH * span / f64::from(self.node_distance)).clamp(1., 2048.) as usize + 5;
        let wanted = wanted.max(if device.is_cuda() { GPU_NODES } else { 0 });
        grid_sides(device).find(|&side| side >= wanted).unwrap_or(MOST_NODES)
    }
}

/// Whether a field has its default, with which files leave it out.
fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}

/// The largest perplexity for `n` rows.
pub(super) fn largest_perplexity(n: usize) -> f64 {
    ((n.saturating_sub(1)) as f64 / 3.).max(1.)
}

/// A number with at most two decimals, for messages.
pub(super) fn rounded(x: f64) -> f64 {
    (100. * x).round() / 100.
}

/// A configuration whose perplexities were lowered for `what`, and that in words.
pub(super) fn noted(asked: &TsneConfig, lowered: TsneConfig, what: &str) -> (TsneConfig, Vec<String>) {
    let pairs = asked.perplexities_in_all().into_iter().zip(lowered.perplexities_in_all());
    let note = |(from, to)| format!("perplexity {} was lowered to {} for {what}", rounded(from), rounded(to));
    let mut notes: Vec<String> = pairs.filter(|(from, to)| from > to).map(note).collect();
    notes.dedup();
    (lowered, notes)
}
