//! A run: from rows, neighbours or affinities to a layout.
mod changes;
mod checkpoint;
mod descent;
mod divergence;
mod ranks;
mod seconds;
#[cfg(test)]
mod tests;
mod unique;

use super::changes::Objective;
use super::conditional::conditional_in_group;
use super::config::noted;
use super::embedding::Known;
use super::given::CheckedNeighbours;
use super::line::for_ops;
use super::neighbours::{By, Found, search};
use super::order::Ordered;
use super::start::start;
use super::unique::Unique;
use super::{Affinities, Embedding, Neighbours, Recall, TsneConfig};
use crate::trainer::{FullBatchTrainer, Trainer};
use crate::{Group, Philox};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_ops::core::Replay;
use chandlery_ops::tsne::{LayoutState, Repulsion, RepulsionMethod, symmetrize};
use ranks::Ranks;
pub use seconds::StageSeconds;
use seconds::timed;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Of the nearest rows, those that measures take.
const NEAREST: usize = crate::evaluation::layout::NEIGHBOURS + 1;

/// What a run looks like at a check.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Iterations made.
    pub iteration: usize,
    /// Iterations of the whole descent.
    pub iterations: usize,
    /// The Kullback-Leibler divergence in nats, without exaggeration, at least 0; exact but for
    /// what the method's sums are off. A grid whose nodes are half a unit apart makes .94 to 1 of
    /// the weight of points that lie on each other, by which the divergence of equal rows would be
    /// told up to .07 too low; so it is told by a grid of twice the nodes, which makes .99 to 1.
    pub kl: f64,
    /// The norm of the gradient, with exaggeration.
    pub gradient_norm: f64,
    /// The longest side of the box around the layout.
    pub span: f64,
    /// How much the divergence fell in an iteration since the check before, in nats; below 0 where
    /// it rose; none at the first check, and at that after a change of perplexities or degrees of
    /// freedom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fall: Option<f64>,
}

/// A descent that can be looked at, ended, written to a checkpoint and taken up again bit for bit.
///
/// ```
/// use candle::Device::Cpu;
/// use chandlery::tsne::{TsneConfig, TsneTrainer};
/// use chandlery::{FullBatchTrainer, Philox};
/// use std::ops::ControlFlow;
/// # fn main() -> candle::Result<()> {
/// let rows = chandlery_ops::core::uniform((50, 6), &Cpu, Philox::new(1, 0))?;
/// let config = TsneConfig { perplexity: 8., ..TsneConfig::default() };
/// let mut run = TsneTrainer::new(config, Philox::new(1, 1), &rows)?;
/// run.fit_with(|_, seen| Ok(if seen.iteration >= 300 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }))?;
/// assert_eq!(run.iteration(), 300);
/// # Ok(()) }
/// ```
pub struct TsneTrainer {
    config: TsneConfig,
    philox: Philox,
    rows: Option<Known>,
    affinities: Affinities,
    /// What the affinities and the step are made for.
    objective: Objective,
    /// Those of the affinities, where others may be made of them.
    neighbours: Option<Neighbours>,
    /// The points that rows are at, where some are equal and are one.
    unique: Option<Unique>,
    /// What the pairs of rows at them take from the divergence of points.
    of_pairs: f64,
    /// The points in the order that the descent takes them in, as are state and forces.
    points: Ordered,
    state: LayoutState,
    ranks: Ranks,
    forces: Tensor,
    total: Tensor,
    iteration: usize,
    /// What was seen after it.
    last: Option<Progress>,
    span: f64,
    repulsion: Option<(RepulsionMethod, Arc<Repulsion>)>,
    replay: Option<Replay>,
    seconds: StageSeconds,
    recall: Option<Recall>,
    nearest: Option<Neighbours>,
    notes: Vec<String>,
}

impl TsneConfig {
    /// Whether the descent ends at this check, before its last iteration, because the layout hardly
    /// moves any more, or hardly becomes better; it never does before its last change.
    pub fn is_at_end(&self, progress: &Progress) -> bool {
        let is_flat = progress.gradient_norm <= self.gradient_tolerance;
        let falls_little = self.stop_below.zip(progress.fall).is_some_and(|(least, fall)| fall < least);
        let is_last = self.changes.iter().all(|change| change.iteration < progress.iteration);
        progress.iteration > self.early_iterations && is_last && (is_flat || falls_little)
    }
}

impl TsneTrainer {
    /// A run over raw `rows`, `[n, n_inputs]` u8 or f32, on their device: finds neighbours,
    /// affinities and the first layout. A perplexity that is too large for so few rows is lowered
    /// ([`TsneConfig::lowered`]), and [`notes`](Self::notes) say so.
    ///
    /// # Errors
    /// When the configuration does not fit the rows, an entry is not finite (the message names row
    /// and column), or memory is short, which is said before the search ([`TsneConfig::memory`]).
    pub fn new(config: TsneConfig, philox: Philox, rows: &Tensor) -> Result<Self> {
        Self::new_in_group(&Group::single(), config, philox, rows)
    }

    /// The same with the other ranks of a group, which have the same rows: each searches for the
    /// neighbours of its part of them, and for their precisions, and gets those of all. For the
    /// descent see [`in_group`](Trainer::in_group).
    ///
    /// # Errors
    /// As [`new`](Self::new), and when a rank is gone.
    pub fn new_in_group(group: &Group, config: TsneConfig, philox: Philox, rows: &Tensor) -> Result<Self> {
        config.validate()?;
        let read = config.read(rows)?;
        Self::over(By::Ranks(group), config, philox, &read, Known::Raw(rows.clone()))
    }

    /// The same over rows that stay in host memory, because they do not fit `device`, on which
    /// everything else is: the search for neighbours takes some at a time, in `bytes` of the device,
    /// or in what is free there beside its result. See [`knn_streamed`].
    ///
    /// [`knn_streamed`]: chandlery_ops::tsne::knn_streamed
    ///
    /// # Errors
    /// As [`new`](Self::new), and when rows are not in host memory.
    pub fn new_streamed(
        config: TsneConfig,
        philox: Philox,
        rows: &Tensor,
        device: &Device,
        bytes: Option<u64>,
    ) -> Result<Self> {
        config.validate()?;
        let read = config.read(rows)?;
        let bytes = bytes.map_or_else(|| config.bytes_for_stretches(read.dim(0)?, device), Ok)?;
        Self::over(By::Stretches(device, bytes), config, philox, &read, Known::Raw(rows.clone()))
    }

    /// The same over rows that the preparation of `config` made already, f32 `[n, n_features]`, on
    /// their device: of sparse rows, which are small only then.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_prepared(config: TsneConfig, philox: Philox, rows: &Tensor) -> Result<Self> {
        Self::of_prepared_in_group(&Group::single(), config, philox, rows)
    }

    /// The same with the other ranks of a group, as [`new_in_group`](Self::new_in_group).
    ///
    /// # Errors
    /// As [`new_in_group`](Self::new_in_group).
    pub fn of_prepared_in_group(
        group: &Group,
        config: TsneConfig,
        philox: Philox,
        rows: &Tensor,
    ) -> Result<Self> {
        config.validate()?;
        Self::over(By::Ranks(group), config, philox, &rows.contiguous()?, Known::Prepared(rows.clone()))
    }

    fn over(by: By<'_>, config: TsneConfig, philox: Philox, read: &Tensor, rows: Known) -> Result<Self> {
        let (n, n_features) = read.dims2()?;
        let (config, notes) = noted(&config, config.lowered(n), &format!("{n} rows"));
        let mut seconds = StageSeconds::default();
        // Features of rows that the device does not hold take nothing there.
        let (group, device, n_held) = match by {
            By::Ranks(group) => (group.clone(), read.device(), n_features),
            By::Stretches(device, _) => (Group::single(), device, 0),
        };
        let unique = || Unique::of_rows(&group, &config, read, device);
        let unique = timed(&mut seconds.neighbours, device, unique)?;
        let n_points = unique.as_ref().map_or(n, Unique::n);
        config.check_rows(n, n_points, n_features)?;
        config.check_free_memory(n_points, n_held, device)?;
        let find = || match &unique {
            Some(unique) => unique.search(by, &config, philox, read),
            None => search(by, &config, philox, read),
        };
        let Found { neighbours, recall, unit } = timed(&mut seconds.neighbours, device, find)?;
        let is_exact = !config.is_approximate(n) && unique.is_none();
        let nearest = is_exact.then(|| neighbours.first(NEAREST)).transpose()?;
        let given = (&neighbours, unit);
        let run = Self::of_neighbours(&group, config, philox, given, Some(read), unique, seconds)?;
        Ok(Self { rows: Some(rows), recall: Some(recall), nearest, ..run }.with_notes(notes))
    }

    /// A run over neighbours that were found elsewhere: indices u32 and distances f32, not squared,
    /// `[n, k]`. They are looked at on the host as
    /// [`GivenNeighbours::checked`](super::GivenNeighbours::checked) does; [`notes`](Self::notes)
    /// say what was changed. Perplexities above the number of neighbours that are left are lowered
    /// to a third of it, but not below 1.
    ///
    /// It begins at random, or with [`Start::Spectral`](super::Start::Spectral), and the embedding
    /// cannot take new rows.
    ///
    /// # Errors
    /// When the configuration does not fit, there is something that is no neighbour or no distance
    /// (the message names row and column), or memory is short.
    pub fn from_neighbours(config: TsneConfig, philox: Philox, neighbours: &Neighbours) -> Result<Self> {
        config.validate()?;
        config.check_not_unique()?;
        let checked = CheckedNeighbours::of(neighbours)?;
        match checked.notes.is_empty() {
            true => Self::over_given(config, philox, (neighbours, 1.), &checked.notes),
            false => Self::from_checked(config, philox, &checked, neighbours.indices.device()),
        }
    }

    /// The same over neighbours that were looked at already, on a device.
    ///
    /// # Errors
    /// When the configuration does not fit, or memory is short.
    pub fn from_checked(
        config: TsneConfig,
        philox: Philox,
        checked: &CheckedNeighbours,
        device: &Device,
    ) -> Result<Self> {
        config.validate()?;
        config.check_not_unique()?;
        Self::over_given(config, philox, (&checked.to_device(device)?, checked.unit()), &checked.notes)
    }

    /// A run over neighbours, with the unit of their distances and what was changed of them.
    pub(super) fn over_given(
        config: TsneConfig,
        philox: Philox,
        (neighbours, unit): (&Neighbours, f64),
        changed: &[String],
    ) -> Result<Self> {
        let (n, k) = neighbours.indices.dims2()?;
        config.check_perplexities_of_changes(k)?;
        let lowered = match config.largest_perplexity() > k as f64 {
            true => config.lowered_to((k as f64 / 3.).max(1.)),
            false => config.clone(),
        };
        let (config, lower) = noted(&config, lowered, &format!("{k} neighbours of a row"));
        let config = TsneConfig { neighbours: Some(k), ..config };
        config.check_rows(n, n, config.preparation.n_inputs(1).unwrap_or(1))?;
        config.check_free_memory(n, 0, neighbours.indices.device())?;
        let (group, seconds) = (Group::single(), StageSeconds::default());
        let run = Self::of_neighbours(&group, config, philox, (neighbours, unit), None, None, seconds)?;
        Ok(run.with_notes([changed, &lower].concat()))
    }

    pub(super) fn of_neighbours(
        group: &Group,
        config: TsneConfig,
        philox: Philox,
        (neighbours, unit): (&Neighbours, f64),
        read: Option<&Tensor>,
        unique: Option<Unique>,
        mut seconds: StageSeconds,
    ) -> Result<Self> {
        let device = neighbours.indices.device().clone();
        let of_points = unique.as_ref();
        let conditional = || conditional_in_group(group, &config, neighbours, unit, of_points);
        let (indices, p) = timed(&mut seconds.perplexity, &device, conditional)?;
        let affinities = timed(&mut seconds.symmetrisation, &device, || symmetrize(&indices, &p))?;
        drop((indices, p));
        let first = || start(&config, philox, &affinities, read, of_points);
        let layout = timed(&mut seconds.start, &device, first)?;
        let kept = config.keeps_neighbours().then(|| neighbours.clone());
        Ok(Self { neighbours: kept, ..Self::at(config, philox, affinities, &layout, unique, seconds)? })
    }

    /// A run over affinities that were made elsewhere, from a first layout, f32 `[n, n_dims]`. The
    /// embedding cannot take new rows.
    ///
    /// # Errors
    /// When the configuration is out of range or changes perplexities, the layout does not fit, or
    /// memory is short.
    pub fn from_affinities(config: TsneConfig, affinities: Affinities, layout: &Tensor) -> Result<Self> {
        config.validate()?;
        config.check_not_unique()?;
        let config = TsneConfig { keep_neighbours: false, ..config };
        let run = Self::at(config, Philox::new(0, 0), affinities, layout, None, StageSeconds::default())?;
        run.check_neighbours_for(&run.config)?;
        Ok(run)
    }

    fn at(
        config: TsneConfig,
        philox: Philox,
        affinities: Affinities,
        layout: &Tensor,
        unique: Option<Unique>,
        seconds: StageSeconds,
    ) -> Result<Self> {
        let (n, n_dims) = layout.dims2()?;
        if n != affinities.n() || n_dims != config.n_dims {
            candle::bail!(
                "TsneTrainer: layout must have shape [{}, {}], got {:?}",
                affinities.n(),
                config.n_dims,
                layout.dims()
            )
        }
        let mut state = LayoutState::new(&for_ops(layout)?)?;
        let mut of_pairs = 0.;
        if let Some(unique) = &unique {
            of_pairs = unique.of_pairs(&affinities)?;
            state.weights = Some(unique.counts().copy()?);
        }
        let total = Tensor::zeros(1, DType::F64, layout.device())?;
        Ok(Self {
            objective: config.objective_after(0),
            neighbours: None,
            unique,
            of_pairs,
            config,
            ranks: Ranks::single(n),
            philox,
            rows: None,
            points: Ordered::as_given(&affinities),
            affinities,
            forces: state.layout.zeros_like()?,
            state,
            total,
            iteration: 0,
            last: None,
            span: 0.,
            repulsion: None,
            replay: None,
            seconds,
            recall: None,
            nearest: None,
            notes: vec![],
        })
    }

    /// Starts from another layout, f32 `[n, n_dims]`, before the first iteration. Equal rows that
    /// are one point begin where the first of them is.
    ///
    /// # Errors
    /// When the run has begun, or the layout has another shape.
    pub fn start_at(self, layout: &Tensor) -> Result<Self> {
        if self.iteration > 0 {
            candle::bail!(
                "TsneTrainer: a layout can be given before the first iteration, got iteration {}",
                self.iteration
            )
        }
        let Self { config, philox, rows, affinities, neighbours, unique, seconds, recall, .. } = self;
        let (nearest, notes) = (self.nearest, self.notes);
        let layout = layout.to_device(affinities.offsets.device())?.to_dtype(DType::F32)?;
        let layout = match &unique {
            Some(unique) => unique.firsts_of(&layout)?,
            None => layout,
        };
        let run = Self::at(config, philox, affinities, &layout, unique, seconds)?;
        Ok(Self { rows, neighbours, recall, nearest, notes, ..run })
    }

    /// A copy of the layout as it is, f32 `[n, n_dims]`.
    ///
    /// # Errors
    /// When memory is short.
    pub fn layout(&self) -> Result<Tensor> {
        self.of_rows(self.layout_of_points()?)
    }

    /// Gives a run from a checkpoint, of which the rows were prepared ones, these back.
    ///
    /// # Errors
    /// When they are not as many.
    pub fn with_prepared_rows(self, rows: &Tensor) -> Result<Self> {
        if rows.dims().first() != Some(&self.n_rows()) {
            candle::bail!("TsneTrainer: the run is over {} rows, got {:?}", self.n_rows(), rows.dims())
        }
        Ok(Self { rows: Some(Known::Prepared(rows.clone())), ..self })
    }

    /// The symmetric affinities of the rows, as they are now; of points where equal rows are one,
    /// each the sum over the rows at both, and its own that of the rows at it.
    pub fn affinities(&self) -> &Affinities {
        &self.affinities
    }

    /// Iterations made.
    pub fn iteration(&self) -> usize {
        self.iteration
    }

    /// The settings, with all changes so far.
    pub fn config(&self) -> &TsneConfig {
        &self.config
    }

    /// Seconds of each stage so far, also before a checkpoint that the run goes on from.
    pub fn seconds(&self) -> StageSeconds {
        self.seconds
    }

    /// How many of the nearest rows the search found: all where all rows were searched; none where
    /// neighbours were given.
    pub fn recall(&self) -> Option<Recall> {
        self.recall
    }

    /// The nearest rows of each row, up to 11, where all rows were searched and the run did not
    /// come from a checkpoint: for [`Measures`](crate::evaluation::layout::Measures).
    pub fn nearest(&self) -> Option<&Neighbours> {
        self.nearest.as_ref()
    }

    /// The same with more to say first.
    pub(super) fn with_notes(self, first: Vec<String>) -> Self {
        Self { notes: [first, self.notes].concat(), ..self }
    }

    /// What differs from what was asked for, in words: a perplexity that was lowered, neighbours
    /// that were left out.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Trainer for TsneTrainer {
    type Model = Embedding;
    type Metrics = Progress;

    /// Iterations made.
    fn steps(&self) -> u64 {
        self.iteration as u64
    }

    /// What the last look saw.
    fn metrics(&mut self) -> Result<Progress> {
        self.last.ok_or_else(|| Error::msg("TsneTrainer::metrics: iterations must be at least 1, got 0"))
    }

    /// Points are divided; all ranks must have begun with the same rows, or checkpoint, on devices
    /// of one kind. Each pulls and pushes its own points and moves them; where they come to, 4
    /// bytes a coordinate, is gathered in each iteration, and two sums, in f64. Each makes the grid,
    /// or the tree, of all points; with a tree the forces on all points are summed, too.
    fn in_group(self, group: &Group) -> Result<Self> {
        self.divided(group)
    }

    fn gather(&mut self) -> Result<()> {
        self.ranks.gather(&self.state)
    }

    fn model(&self) -> Result<Embedding> {
        Embedding::of(self.config_of_layout()?, self.layout()?, self.rows.clone())
    }

    fn device(&self) -> &Device {
        self.state.layout.device()
    }

    /// The file has the layout, and the graph, of 8 bytes an edge.
    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        self.store(path, progress)
    }
}

impl FullBatchTrainer for TsneTrainer {
    /// The iterations up to the next look: every 50, at the start of a phase and after a change
    /// every 25, at each change, and at the end of each phase. None when all are made, the gradient
    /// is small enough, or the divergence falls too little. Fails when the layout becomes infinite
    /// or NaN; the message names the iteration.
    fn step(&mut self) -> Result<Option<Progress>> {
        let is_at_end = self.last.is_some_and(|last| self.config.is_at_end(&last));
        if is_at_end || self.iteration >= self.config.iterations_in_all() {
            return Ok(None);
        }
        self.last = Some(self.advance()?);
        Ok(self.last)
    }

    fn set_iterations(&mut self, iterations: usize) -> Result<()> {
        let config = TsneConfig { iterations, ..self.config.clone() };
        config.validate()?;
        self.config = config;
        Ok(())
    }

    /// Refuses rows that are not as many; for runs without raw rows see
    /// [`restored`](Self::restored).
    fn load(path: &Path, rows: &Tensor, device: &Device) -> Result<(Self, Value)> {
        Self::restored(path, Some(rows), device)
    }
}
