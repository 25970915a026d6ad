//! New points on their way into a layout that stays.
use super::line::{dims_of_ops, for_ops, from_ops};
use super::neighbours::{in_unit, unit_of};
use super::transform_config::{OP, TransformConfig};
use super::{Draw, Embedding, Method, Recall, TsneConfig};
use crate::Philox;
use crate::check::at_least_one;
use crate::checkpoint::{self, Checkpoint};
use crate::model::Model;
use crate::trainer::{FullBatchTrainer, Trainer};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_ops::arrays::elementwise::contiguous;
use chandlery_ops::tsne::{
    PlaceState, PlaceSteps, RepulsionField, knn_of, knn_of_approximate, perplexity_search, place_points_,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The name of a run in its checkpoints.
const NAME: &str = "t-sne-transform";
/// Iterations between two looks at the points.
const CHECK: usize = 50;

/// What new points look like at a check.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TransformProgress {
    /// Iterations made.
    pub iteration: usize,
    /// Iterations of the whole descent.
    pub iterations: usize,
    /// The mean distance that a point came in an iteration since the check before, in units of the
    /// layout, as the crow flies; since their medians at the first.
    pub moved: f64,
    /// Points that go with exact sums because they have left the grid around the layout.
    pub outside: usize,
}

/// New rows on their way into a layout, which stays: an [`Embedding::transform`] that can be looked
/// at, ended, written to a checkpoint and taken up again bit for bit. How often it is looked at
/// changes no bits.
///
/// ```
/// use candle::{Device::Cpu, Tensor};
/// use chandlery::tsne::{Embedding, TransformConfig, TransformTrainer, TsneConfig};
/// use chandlery::{FullBatchTrainer, Philox, Trainer};
/// use std::ops::ControlFlow;
/// # fn main() -> candle::Result<()> {
/// let rows = chandlery_ops::core::uniform((50, 6), &Cpu, Philox::new(1, 0))?;
/// let layout = (rows.narrow(1, 0, 2)?.contiguous()? * 20.)?;
/// let embedding = Embedding::from_tensors(TsneConfig::default(), layout, Some(rows.clone()))?;
/// let mut placed = TransformTrainer::new(&embedding, TransformConfig::default(), &rows.narrow(0, 0, 8)?)?;
/// placed.fit_with(|_, seen| Ok(if seen.moved < 1e-3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }))?;
/// assert_eq!(placed.model()?.dims(), [8, 2]);
/// # Ok(()) }
/// ```
pub struct TransformTrainer {
    config: TransformConfig,
    /// Those of the layout.
    of: TsneConfig,
    neighbours: Tensor,
    p: Tensor,
    layout: Tensor,
    field: Option<RepulsionField>,
    state: PlaceState,
    last: Option<TransformProgress>,
    recall: Option<Recall>,
}

/// What a checkpoint notes.
#[derive(Serialize, Deserialize)]
struct Notes {
    config: TransformConfig,
    of: TsneConfig,
    iteration: usize,
    last: Option<TransformProgress>,
    recall: Option<Recall>,
    progress: Value,
}

impl TransformTrainer {
    /// New raw `rows`, `[m, n_inputs]`, at the medians of their neighbours.
    ///
    /// Cost: a search among the training rows: all of them, or as many as
    /// [`recall`](TsneConfig::recall) takes where those of the layout were searched so
    /// ([`TsneConfig::approximate`]) and new ones are 4,096 or more. An iteration: `m` places on a
    /// grid; `m · n` pairs where the layout has 1 or 3 dimensions or few points
    /// ([`TsneConfig::method`]), and of new points that leave the grid.
    ///
    /// # Errors
    /// When a setting is out of range, the embedding has no rows, or the new ones do not fit them.
    pub fn new(embedding: &Embedding, config: TransformConfig, rows: &Tensor) -> Result<Self> {
        match rows.dim(0)? {
            m if m > 0 && embedding.rows.is_some() => {
                let rows = embedding.prepare(&rows.to_device(embedding.layout.device())?)?;
                Self::of_prepared(embedding, config, &rows)
            }
            _ => Self::of_prepared(embedding, config, rows),
        }
    }

    /// The same of rows that are prepared already, f32 `[m, n_features]`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_prepared(embedding: &Embedding, config: TransformConfig, rows: &Tensor) -> Result<Self> {
        let Some(training) = embedding.prepared_rows()? else {
            candle::bail!(
                "{OP}: this embedding was made from neighbours, distances or affinities and has no rows to compare with; lay all rows out together"
            )
        };
        config.validate()?;
        let (n, m, device) = (embedding.layout.dim(0)?, rows.dim(0)?, embedding.layout.device());
        let config = config.lowered(n);
        let k = ((3. * config.perplexity).ceil() as usize).clamp(1, n);
        if m == 0 {
            let none = |dtype| Tensor::zeros((0, k), dtype, device);
            let (neighbours, p) = (none(DType::U32)?, none(DType::F32)?);
            return Self::at(config, embedding.config.clone(), neighbours, p, &embedding.layout);
        }
        let metric = embedding.config.metric;
        let unit = unit_of(&training, metric)?;
        let (rows, training) = (in_unit(&rows.to_device(device)?, unit)?, in_unit(&training, unit)?);
        let (near, recall) = if embedding.config.is_approximate(n) {
            let (recall, philox) = (embedding.config.recall, Draw::Cells.of(Philox::new(0, 0)));
            let found = knn_of_approximate(&rows, &training, k, metric, recall, philox)?;
            (found.neighbours, found.recall)
        } else {
            (knn_of(&rows, &training, k, metric)?, Recall::exact(m))
        };
        let p = perplexity_search(&near.distances, &[config.perplexity.min(k as f64)])?;
        let placed = Self::at(config, embedding.config.clone(), near.indices, p, &embedding.layout)?;
        Ok(Self { recall: Some(recall), ..placed })
    }

    fn at(
        config: TransformConfig,
        of: TsneConfig,
        neighbours: Tensor,
        p: Tensor,
        layout: &Tensor,
    ) -> Result<Self> {
        let field = field_of(&of, layout)?;
        let layout = for_ops(layout)?;
        let state = PlaceState::new(neighbours.dim(0)?, dims_of_ops(of.n_dims), layout.device())?;
        let mut placed = Self { config, of, neighbours, p, layout, field, state, last: None, recall: None };
        placed.advance(0)?;
        Ok(placed)
    }

    /// So many iterations more.
    fn advance(&mut self, iterations: usize) -> Result<()> {
        let Self { config, of, neighbours, p, layout, field, state, .. } = self;
        let steps = PlaceSteps {
            degrees_of_freedom: of.degrees_of_freedom,
            iterations,
            exaggeration: config.exaggeration as f32,
            learning_rate: config.learning_rate as f32,
            momentum: config.momentum as f32,
            largest_gradient: config.largest_gradient as f32,
        };
        place_points_(state, neighbours, p, layout, field.as_ref(), &steps)
    }

    /// Makes the iterations that are left without a look at the points, which takes less time than
    /// [`fit`](FullBatchTrainer::fit).
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn finish(&mut self) -> Result<()> {
        self.advance(self.config.iterations.saturating_sub(self.state.made))
    }

    /// How many of the nearest training rows the search found; none where there are no new rows.
    pub fn recall(&self) -> Option<Recall> {
        self.recall
    }

    /// The training rows that pull each point, nearest first, u32 `[m, k]`, and how strongly they
    /// do beside each other, f32 `[m, k]`.
    pub fn affinities(&self) -> (&Tensor, &Tensor) {
        (&self.neighbours, &self.p)
    }
}

/// What a layout does to points beside it, where a grid tells it.
fn field_of(of: &TsneConfig, layout: &Tensor) -> Result<Option<RepulsionField>> {
    /// Of the distance of nodes of a descent: a grid that is made once may be finer.
    const FINER: f64 = 0.5;
    /// Units around the layout, beyond which points go their way with exact sums.
    const MARGIN: f64 = 5.;
    let (n, on_gpu) = (layout.dim(0)?, layout.device().is_cuda());
    if of.n_dims != 2 || of.method_for(n, on_gpu) == Method::Exact {
        return Ok(None);
    }
    let distance = FINER * f64::from(of.node_distance);
    RepulsionField::new(&contiguous(layout)?, distance, MARGIN, of.degrees_of_freedom).map(Some)
}

/// The mean distance of points from others with the same numbers, `[m, n_dims]`.
fn mean_distance(a: &Tensor, b: &Tensor) -> Result<f64> {
    let (m, n_dims) = a.dims2()?;
    let (a, b) = (a.flatten_all()?.to_vec1::<f32>()?, b.flatten_all()?.to_vec1::<f32>()?);
    let distance = |(a, b): (&[f32], &[f32])| {
        a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
    };
    let sum: f64 = a.chunks_exact(n_dims).zip(b.chunks_exact(n_dims)).map(distance).sum();
    Ok(sum / m.max(1) as f64)
}

impl Trainer for TransformTrainer {
    /// The points, f32 `[m, n_dims]`.
    type Model = Tensor;
    type Metrics = TransformProgress;

    /// Iterations made.
    fn steps(&self) -> u64 {
        self.state.made as u64
    }

    /// What the last look saw.
    fn metrics(&mut self) -> Result<TransformProgress> {
        self.last.ok_or_else(|| Error::msg("TransformTrainer::metrics: there was no step yet"))
    }

    fn model(&self) -> Result<Tensor> {
        from_ops(self.state.points.copy()?, self.of.n_dims)
    }

    fn device(&self) -> &Device {
        self.layout.device()
    }

    /// The file has the layout and `8 k` bytes for each point, so that it is enough to go on.
    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let PlaceState { points, velocity, outside, made, .. } = &self.state;
        let layout = from_ops(self.layout.clone(), self.of.n_dims)?;
        let tensors = [
            ("layout", &layout),
            ("neighbours", &self.neighbours),
            ("p", &self.p),
            ("points", points),
            ("velocity", velocity),
            ("outside", outside),
        ];
        let tensors = tensors.map(|(name, t)| (format!("trainer.{name}"), t.clone()));
        let notes = Notes {
            config: self.config.clone(),
            of: self.of.clone(),
            iteration: *made,
            last: self.last,
            recall: self.recall,
            progress: progress.clone(),
        };
        checkpoint::save(path, NAME, tensors, &notes, &self.of.preparation)
    }
}

impl FullBatchTrainer for TransformTrainer {
    /// The iterations up to the next look, every 50 and at the end.
    fn step(&mut self) -> Result<Option<TransformProgress>> {
        let left = self.config.iterations.saturating_sub(self.state.made);
        if left == 0 {
            return Ok(None);
        }
        let iterations = (CHECK - self.state.made % CHECK).min(left);
        let before = self.state.points.copy()?;
        self.advance(iterations)?;
        let outside = self.state.outside.to_vec1::<u32>()?;
        self.last = Some(TransformProgress {
            iteration: self.state.made,
            iterations: self.config.iterations,
            moved: mean_distance(&before, &self.state.points)? / iterations as f64,
            outside: outside.iter().filter(|&&outside| outside == PlaceState::EXACTLY).count(),
        });
        Ok(self.last)
    }

    fn set_iterations(&mut self, iterations: usize) -> Result<()> {
        at_least_one(OP, "iterations", iterations)?;
        self.config.iterations = iterations;
        Ok(())
    }

    /// `rows` are only counted.
    fn load(path: &Path, rows: &Tensor, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
        checkpoint.load_preparation(&mut notes.of.preparation, device)?;
        let refused = |e: Error| checkpoint.refused(&e);
        notes.of.validate().and_then(|()| notes.config.validate()).map_err(refused)?;
        let [layout, neighbours, p, points, velocity, outside] =
            ["layout", "neighbours", "p", "points", "velocity", "outside"]
                .map(|name| checkpoint.of_trainer(name));
        let (neighbours, layout) = (neighbours?, layout?);
        let (m, _) = neighbours.dims2().map_err(refused)?;
        if rows.dims().first() != Some(&m) {
            candle::bail!(
                "{}: the run is of {m} rows, got {:?}; give the rows that it began with",
                path.display(),
                rows.dims()
            )
        }
        let mut placed = Self::at(notes.config, notes.of, neighbours, p?, &layout).map_err(refused)?;
        let state = PlaceState {
            points: points?,
            velocity: velocity?,
            outside: outside?,
            placed: true,
            made: notes.iteration,
        };
        (placed.state, placed.last, placed.recall) = (state, notes.last, notes.recall);
        // Refuses a state that does not fit.
        placed.advance(0).map_err(refused)?;
        Ok((placed, notes.progress))
    }
}
