//! The descent: from rows, neighbours or affinities to a layout, and its checkpoints.
use super::config::{PROBES, Phase};
use super::embedding::named;
use super::start::start;
use super::{Affinities, Embedding, Neighbours, TsneConfig};
use crate::Philox;
use crate::checkpoint::{self, Checkpoint};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    LayoutState, LayoutStep, Replay, Repulsion, RepulsionMethod, knn, knn_approximate, layout_divergence,
    layout_step_, perplexity_search, set_scalars_, symmetrize,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Iterations between two looks at the run.
const CHECK: usize = 50;
/// The same at the start of a phase, when the layout grows fast.
const FIRST_CHECK: usize = 25;
/// Iterations between two sorts of the points of a tree, from a check on.
const ARRANGE: usize = 10;
/// The name of a run in its checkpoints.
const NAME: &str = "t-sne";

/// What a run looks like at a check.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Iterations made.
    pub iteration: usize,
    /// Iterations of the whole descent.
    pub iterations: usize,
    /// The Kullback-Leibler divergence in nats, without exaggeration; exact but for what the method's sums are off.
    pub kl: f64,
    /// The norm of the gradient, with exaggeration.
    pub gradient_norm: f64,
    /// The longest side of the box around the layout.
    pub span: f64,
}

/// Seconds that each stage took, of this process.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StageSeconds {
    /// The search for neighbours.
    pub neighbours: f64,
    /// Perplexities and the symmetric graph.
    pub affinities: f64,
    /// The first layout.
    pub start: f64,
    /// The iterations.
    pub descent: f64,
}

/// What a checkpoint notes.
#[derive(Serialize, Deserialize)]
struct Notes<P> {
    config: TsneConfig,
    iteration: usize,
    /// The span at the last check, by which the grid is chosen.
    span: f64,
    philox: [u64; 3],
    n_samples: usize,
    progress: P,
}

/// A descent that can be looked at, ended, written to a checkpoint and taken up again bit for bit.
///
/// ```
/// use candle::Device::Cpu;
/// use chandlery::Philox;
/// use chandlery::tsne::{TsneConfig, TsneRun};
/// use std::ops::ControlFlow;
/// # fn main() -> candle::Result<()> {
/// let rows = chandlery_ops::uniform((50, 6), &Cpu, Philox::new(1, 0))?;
/// let config = TsneConfig { perplexity: 8., ..TsneConfig::default() };
/// let mut run = TsneRun::new(config, Philox::new(1, 1), &rows)?;
/// run.run(|_, seen| Ok(if seen.iteration >= 300 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }))?;
/// assert_eq!(run.iteration(), 300);
/// # Ok(()) }
/// ```
pub struct TsneRun {
    config: TsneConfig,
    philox: Philox,
    rows: Option<Tensor>,
    affinities: Affinities,
    state: LayoutState,
    forces: Tensor,
    total: Tensor,
    iteration: usize,
    span: f64,
    repulsion: Option<(RepulsionMethod, Arc<Repulsion>)>,
    replay: Option<Replay>,
    seconds: StageSeconds,
    recall: Option<f64>,
}

/// Runs `stage` and adds to `seconds` how long it took, with all that it queued on the device.
fn timed<T>(seconds: &mut f64, device: &Device, stage: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let done = stage()?;
    device.synchronize()?;
    *seconds += begin.elapsed().as_secs_f64();
    Ok(done)
}

impl StageSeconds {
    /// Seconds of all stages.
    pub fn total(self) -> f64 {
        self.neighbours + self.affinities + self.start + self.descent
    }
}

/// Those of two parts of one run.
impl std::ops::Add for StageSeconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            neighbours: self.neighbours + other.neighbours,
            affinities: self.affinities + other.affinities,
            start: self.start + other.start,
            descent: self.descent + other.descent,
        }
    }
}

impl TsneRun {
    /// A run over raw `rows`, `[n, n_inputs]` u8 or f32, on their device: finds neighbours, affinities and the first layout.
    ///
    /// # Errors
    /// When the configuration does not fit the rows, an entry is not finite (the message names row and column), or memory is short.
    pub fn new(config: TsneConfig, philox: Philox, rows: &Tensor) -> Result<Self> {
        config.validate()?;
        let read = config.read(rows)?;
        let (n, n_features) = read.dims2()?;
        config.check_rows(n, n_features)?;
        let mut seconds = StageSeconds::default();
        let (neighbours, recall) = timed(&mut seconds.neighbours, read.device(), || {
            let (k, metric) = (config.neighbours_of(n), config.metric);
            match config.is_approximate(n) {
                true => {
                    let found = knn_approximate(&read, k, metric, PROBES, philox)?;
                    Ok((found.neighbours, found.recall))
                }
                false => Ok((knn(&read, k, metric)?, 1.)),
            }
        })?;
        let run = Self::of_neighbours(config, philox, &neighbours, Some(&read), seconds)?;
        Ok(Self { rows: Some(rows.clone()), recall: Some(recall), ..run })
    }

    /// A run over neighbours that were found elsewhere: indices u32 and distances f32, `[n, k]`. No row is a neighbour of itself, and none is
    /// there twice.
    ///
    /// It begins at random, and the embedding cannot take new rows.
    ///
    /// # Errors
    /// When the configuration does not fit, an index is out of range, or memory is short.
    pub fn from_neighbours(config: TsneConfig, philox: Philox, neighbours: &Neighbours) -> Result<Self> {
        config.validate()?;
        let (n, k) = neighbours.indices.dims2()?;
        let config = TsneConfig { neighbours: Some(k), ..config };
        config.check_rows(n, config.preparation.n_inputs(1).unwrap_or(1))?;
        Self::of_neighbours(config, philox, neighbours, None, StageSeconds::default())
    }

    fn of_neighbours(
        config: TsneConfig,
        philox: Philox,
        neighbours: &Neighbours,
        read: Option<&Tensor>,
        mut seconds: StageSeconds,
    ) -> Result<Self> {
        let device = neighbours.indices.device().clone();
        let k = neighbours.indices.dim(1)? as f64;
        let perplexities: Vec<f64> = config.perplexities().into_iter().map(|p| p.min(k)).collect();
        let affinities = timed(&mut seconds.affinities, &device, || {
            symmetrize(&neighbours.indices, &perplexity_search(&neighbours.distances, &perplexities)?)
        })?;
        let n = affinities.n();
        let layout = timed(&mut seconds.start, &device, || start(&config, philox, n, read, &device))?;
        Self::at(config, philox, affinities, &layout, seconds)
    }

    /// A run over affinities that were made elsewhere, from a first layout, f32 `[n, n_dims]`. The embedding cannot take new rows.
    ///
    /// # Errors
    /// When the configuration is out of range, the layout does not fit, or memory is short.
    pub fn from_affinities(config: TsneConfig, affinities: Affinities, layout: &Tensor) -> Result<Self> {
        config.validate()?;
        Self::at(config, Philox::new(0, 0), affinities, layout, StageSeconds::default())
    }

    fn at(
        config: TsneConfig,
        philox: Philox,
        affinities: Affinities,
        layout: &Tensor,
        seconds: StageSeconds,
    ) -> Result<Self> {
        let (n, n_dims) = layout.dims2()?;
        if n != affinities.n() || n_dims != config.n_dims {
            candle::bail!(
                "TsneRun: layout must have shape [{}, {}], got {:?}",
                affinities.n(),
                config.n_dims,
                layout.dims()
            )
        }
        let state = LayoutState::new(&layout.contiguous()?)?;
        let total = Tensor::zeros(1, DType::F64, layout.device())?;
        Ok(Self {
            config,
            philox,
            rows: None,
            affinities,
            forces: state.layout.zeros_like()?,
            state,
            total,
            iteration: 0,
            span: 0.,
            repulsion: None,
            replay: None,
            seconds,
            recall: None,
        })
    }

    /// Starts from another layout, f32 `[n, n_dims]`, before the first iteration.
    ///
    /// # Errors
    /// When the run has begun, or the layout has another shape.
    pub fn start_at(self, layout: &Tensor) -> Result<Self> {
        if self.iteration > 0 {
            candle::bail!(
                "TsneRun: a layout can be given before the first iteration, got iteration {}",
                self.iteration
            )
        }
        let Self { config, philox, rows, affinities, seconds, recall, .. } = self;
        let layout = layout.to_device(affinities.offsets.device())?.to_dtype(DType::F32)?;
        Ok(Self { rows, recall, ..Self::at(config, philox, affinities, &layout, seconds)? })
    }

    /// Goes on until all iterations are made, the gradient is small enough, or `each` ends the run, which it sees at every check: every 50
    /// iterations and at the end of each phase.
    ///
    /// # Errors
    /// When the layout becomes infinite or NaN (the message names the iteration), or `each` fails.
    pub fn run(&mut self, mut each: impl FnMut(&Self, &Progress) -> Result<ControlFlow<()>>) -> Result<()> {
        while self.iteration < self.config.iterations_in_all() {
            let progress = self.advance()?;
            if each(self, &progress)?.is_break() || self.config.is_at_end(&progress) {
                break;
            }
        }
        Ok(())
    }

    /// Goes on to the next check.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn advance(&mut self) -> Result<Progress> {
        let phase = self.config.phase(self.iteration);
        let device = self.state.layout.device().clone();
        let mut seconds = 0.;
        let progress = timed(&mut seconds, &device, || {
            self.enter(phase)?;
            let begin =
                if self.iteration < self.config.early_iterations { 0 } else { self.config.early_iterations };
            let every = if self.iteration - begin < 4 * FIRST_CHECK { FIRST_CHECK } else { CHECK };
            let until = (begin + (self.iteration - begin + every) / every * every).min(phase.end);
            self.prepare_step()?;
            for iteration in self.iteration..until {
                if let Some((_, repulsion)) = &self.repulsion
                    && (iteration - self.iteration).is_multiple_of(ARRANGE)
                {
                    repulsion.arrange(&self.state.layout)?;
                }
                if let Some(replay) = &mut self.replay {
                    replay.run()?;
                }
            }
            self.iteration = until;
            self.look()
        })?;
        self.seconds.descent += seconds;
        Ok(progress)
    }

    /// Sets what differs between phases.
    fn enter(&self, phase: Phase) -> Result<()> {
        let n = self.affinities.n() as f64;
        let rate = self.config.learning_rate.unwrap_or(n / phase.exaggeration);
        set_scalars_(&self.state.rates, &[rate as f32, phase.momentum as f32, phase.exaggeration as f32])
    }

    /// Makes the step for the layout as wide as it is.
    fn prepare_step(&mut self) -> Result<()> {
        let device = self.state.layout.device().clone();
        let n = self.affinities.n();
        let method = self.config.repulsion(n, device.is_cuda(), self.span);
        if let (Some(_), Some((of, _))) = (&self.replay, &self.repulsion)
            && *of == method
        {
            return Ok(());
        }
        let alpha = self.config.degrees_of_freedom;
        let repulsion = Arc::new(Repulsion::new(method, n, self.config.n_dims, alpha, &device)?);
        self.repulsion = Some((method, repulsion.clone()));
        let (state, affinities) = (self.state.clone(), self.affinities.clone());
        let (forces, total) = (self.forces.clone(), self.total.clone());
        let step = LayoutStep { degrees_of_freedom: alpha, ..LayoutStep::default() };
        let replay = Replay::new(&device, move || {
            repulsion.repulsion_(&forces, &total, &state.layout)?;
            layout_step_(&state, &affinities, &forces, &total, &step)
        });
        self.replay = Some(replay.unshared());
        Ok(())
    }

    /// Reads the figures; waits for the device.
    fn look(&mut self) -> Result<Progress> {
        let figures = self.state.figures()?;
        if !(figures.gradient_norm.is_finite() && figures.span.is_finite()) {
            candle::bail!(
                "TsneRun: the layout became infinite or NaN by iteration {}; lower the learning rate",
                self.iteration
            )
        }
        self.span = figures.span;
        Ok(Progress {
            iteration: self.iteration,
            iterations: self.config.iterations_in_all(),
            kl: self.kl()?,
            gradient_norm: figures.gradient_norm,
            span: figures.span,
        })
    }

    /// The divergence of the layout as it is, with the sums over all pairs of the run's method. Waits for the device.
    ///
    /// # Errors
    /// When memory is short.
    pub fn kl(&self) -> Result<f64> {
        let Some((_, repulsion)) = &self.repulsion else {
            let alpha = self.config.degrees_of_freedom;
            return super::measure::kl_of_affinities(&self.affinities, &self.state.layout, alpha);
        };
        repulsion.repulsion_(&self.forces, &self.total, &self.state.layout)?;
        let alpha = self.config.degrees_of_freedom;
        layout_divergence(&self.affinities, &self.state.layout, &self.total, alpha)?.get(0)?.to_scalar()
    }

    /// A copy of the layout as it is, f32 `[n, n_dims]`.
    ///
    /// # Errors
    /// When memory is short.
    pub fn layout(&self) -> Result<Tensor> {
        self.state.layout.copy()
    }

    /// The embedding as it is.
    ///
    /// # Errors
    /// When memory is short.
    pub fn embedding(&self) -> Result<Embedding> {
        Embedding::from_tensors(self.config.clone(), self.layout()?, self.rows.clone())
    }

    /// The symmetric affinities of the rows.
    pub fn affinities(&self) -> &Affinities {
        &self.affinities
    }

    /// Iterations made.
    pub fn iteration(&self) -> usize {
        self.iteration
    }

    /// The settings.
    pub fn config(&self) -> &TsneConfig {
        &self.config
    }

    /// Seconds of each stage so far, in this process.
    pub fn seconds(&self) -> StageSeconds {
        self.seconds
    }

    /// The share of the nearest rows that the search found, in `[0, 1]`: 1 where all rows were searched; none where neighbours were given, or
    /// the run comes from a checkpoint.
    pub fn recall(&self) -> Option<f64> {
        self.recall
    }

    /// Changes how many iterations follow the early ones.
    ///
    /// # Errors
    /// When there would be none at all.
    pub fn set_iterations(&mut self, iterations: usize) -> Result<()> {
        let config = TsneConfig { iterations, ..self.config.clone() };
        config.validate()?;
        self.config = config;
        Ok(())
    }

    /// Writes all that the rest of the run depends on but the rows to one file, with `progress` of the caller: the layout, and the graph, of
    /// 8 bytes an edge. The file appears whole.
    ///
    /// # Errors
    /// When the file is not writable.
    pub fn save_checkpoint(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let state = &self.state;
        let tensors = [("layout", &state.layout), ("velocity", &state.velocity), ("gains", &state.gains)];
        let tensors = tensors.map(|(name, t)| (format!("trainer.{name}"), t.clone()));
        let notes = Notes {
            config: self.config.clone(),
            iteration: self.iteration,
            span: self.span,
            philox: checkpoint::words(self.philox),
            n_samples: self.affinities.n(),
            progress,
        };
        let tensors = tensors.into_iter().chain(named(&self.affinities));
        checkpoint::save(path, NAME, tensors, &notes, &notes.config.preparation)
    }

    /// Reads what [`save_checkpoint`](Self::save_checkpoint) wrote, to go on over the same raw `rows`, where there were any: on the device that
    /// wrote the file, bit for bit.
    ///
    /// # Errors
    /// When the file is missing, cut short or of something else, or the rows are not as many; the message names the file.
    pub fn load_checkpoint<P: DeserializeOwned>(
        path: &Path,
        rows: Option<&Tensor>,
        device: &Device,
    ) -> Result<(Self, P)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes<P>>(path, NAME, device)?;
        checkpoint.load_preparation(&mut notes.config.preparation, device)?;
        notes.config.validate().map_err(|e| checkpoint.refused(&e))?;
        if let Some(rows) = rows.filter(|rows| rows.dims().first() != Some(&notes.n_samples)) {
            candle::bail!(
                "{}: the run is over {} rows, got {:?}; give the rows that it began with",
                path.display(),
                notes.n_samples,
                rows.dims()
            )
        }
        let part = |name: &str| checkpoint.of_trainer(&format!("affinities.{name}"));
        let affinities =
            Affinities { offsets: part("offsets")?, columns: part("columns")?, values: part("values")? };
        check_graph(&affinities).map_err(|e| checkpoint.refused(&e))?;
        let philox = checkpoint::philox(notes.philox);
        let run = Self::at(
            notes.config,
            philox,
            affinities,
            &checkpoint.of_trainer("layout")?,
            StageSeconds::default(),
        );
        let mut run = run.map_err(|e| checkpoint.refused(&e))?;
        let state = [("velocity", &run.state.velocity), ("gains", &run.state.gains)];
        checkpoint::put_back("TsneRun", state, |name| checkpoint.of_trainer(name))?;
        (run.iteration, run.span, run.rows) = (notes.iteration, notes.span, rows.cloned());
        Ok((run, notes.progress))
    }
}

/// Refuses a graph with rows or columns out of range, which a damaged file may hold.
fn check_graph(affinities: &Affinities) -> Result<()> {
    let offsets = affinities.offsets.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
    let columns = affinities.columns.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
    let n_edges = columns.len();
    let ends = offsets.first() == Some(&0) && offsets.last().is_some_and(|&end| end as usize == n_edges);
    if !ends || !offsets.is_sorted() {
        candle::bail!("offsets of its affinities must ascend from 0 to {n_edges}")
    }
    if let Some(wrong) = columns.iter().find(|&&j| j as usize + 1 >= offsets.len()) {
        candle::bail!("columns of its affinities must be below {}, got {wrong}", offsets.len() - 1)
    }
    if affinities.values.dims() != [n_edges] {
        candle::bail!(
            "values of its affinities must have shape [{n_edges}], got {:?}",
            affinities.values.dims()
        )
    }
    Ok(())
}
