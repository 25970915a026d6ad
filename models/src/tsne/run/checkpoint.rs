//! Checkpoints of a descent.
use super::super::conditional::check_graph;
use super::super::embedding::{Known, named};
use super::super::unique::Unique;
use super::super::{Affinities, Neighbours, Recall, TsneConfig};
use super::{Progress, StageSeconds, TsneTrainer};
use crate::checkpoint::{self, Checkpoint};
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The name of a run in its checkpoints.
const NAME: &str = "t-sne";
/// Of the tensor that holds the order of the points.
const ORDER: &str = "order";
/// Of the tensor that holds the point of each row, where equal rows are one.
const PLACES: &str = "places";
/// Of those that hold kept neighbours.
const NEIGHBOURS: [&str; 2] = ["neighbours.indices", "neighbours.distances"];

/// What a checkpoint notes.
#[derive(Serialize, Deserialize)]
struct Notes {
    config: TsneConfig,
    iteration: usize,
    last: Option<Progress>,
    /// The span at the last check, by which the grid is chosen.
    span: f64,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    n_samples: usize,
    recall: Option<Recall>,
    seconds: StageSeconds,
    notes: Vec<String>,
    progress: Value,
}

impl TsneTrainer {
    pub(super) fn store(&self, path: &Path, progress: &Value) -> Result<()> {
        let state = &self.state;
        let mut tensors = vec![("trainer.layout".to_owned(), self.layout_of_points()?)];
        for (name, t) in [("velocity", &state.velocity), ("gains", &state.gains)] {
            tensors.push((format!("trainer.{name}"), self.points.as_given_of(t)?));
        }
        tensors.extend(self.points.order().map(|order| (format!("trainer.{ORDER}"), order.clone())));
        tensors.extend(self.unique.iter().map(|of| (format!("trainer.{PLACES}"), of.places().clone())));
        if let Some(Neighbours { indices, distances }) = &self.neighbours {
            let both = NEIGHBOURS.into_iter().zip([indices, distances]);
            tensors.extend(both.map(|(name, t)| (format!("trainer.{name}"), t.clone())));
        }
        let notes = Notes {
            config: self.config.clone(),
            iteration: self.iteration,
            last: self.last,
            span: self.span,
            philox: self.philox,
            n_samples: self.n_rows(),
            recall: self.recall,
            seconds: self.seconds,
            notes: self.notes.clone(),
            progress: progress.clone(),
        };
        let tensors = tensors.into_iter().chain(named(&self.affinities));
        checkpoint::save(path, NAME, tensors, &notes, &notes.config.preparation)
    }

    /// As [`load`](crate::FullBatchTrainer::load), also for a run that has no raw rows.
    ///
    /// # Errors
    /// When the file is missing, cut short or of something else, or the rows are not as many; the
    /// message names the file.
    pub fn restored(path: &Path, rows: Option<&Tensor>, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
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
        let unique = match checkpoint.of_trainer(PLACES) {
            Ok(places) => Some(unique_of(places, notes.n_samples, affinities.n())),
            Err(_) => None,
        };
        let unique = unique.transpose().map_err(|e| checkpoint.refused(&e))?;
        let run = Self::at(
            notes.config,
            notes.philox,
            affinities,
            &checkpoint.of_trainer("layout")?,
            unique,
            notes.seconds,
        );
        let mut run = run.map_err(|e| checkpoint.refused(&e))?;
        let state = [("velocity", &run.state.velocity), ("gains", &run.state.gains)];
        checkpoint::put_back("TsneTrainer", state, |name| checkpoint.of_trainer(name))?;
        (run.iteration, run.span, run.rows) = (notes.iteration, notes.span, rows.cloned().map(Known::Raw));
        (run.recall, run.notes, run.last) = (notes.recall, notes.notes, notes.last);
        run.objective = run.config.objective_after(run.iteration);
        if run.config.keeps_neighbours() {
            let [indices, distances] = NEIGHBOURS.map(|name| checkpoint.of_trainer(name));
            let neighbours = Neighbours { indices: indices?, distances: distances? };
            check_kept(&neighbours, run.n_points()).map_err(|e| checkpoint.refused(&e))?;
            run.neighbours = Some(neighbours);
        }
        if let Ok(order) = checkpoint.of_trainer(ORDER) {
            check_order(&order, run.n_points()).map_err(|e| checkpoint.refused(&e))?;
            run.points.take(&run.affinities, &run.state, &order)?;
        }
        Ok((run, notes.progress))
    }
}

/// The points of so many rows, as many as affinities have; a damaged file may have others.
fn unique_of(places: Tensor, n_rows: usize, n: usize) -> Result<Unique> {
    let unique = Unique::of_places(places)?;
    if (unique.n_rows(), unique.n()) != (n_rows, n) {
        candle::bail!("its {n_rows} rows must be at {n} points, got {} at {}", unique.n_rows(), unique.n())
    }
    Ok(unique)
}

/// Refuses kept neighbours that are none of `n` points, which a damaged file may have.
fn check_kept(neighbours: &Neighbours, n: usize) -> Result<()> {
    let (indices, distances) = (&neighbours.indices, &neighbours.distances);
    if indices.rank() != 2 || indices.dim(0)? != n || distances.dims() != indices.dims() {
        candle::bail!(
            "its neighbours must be those of {n} points with their distances, got {:?} and {:?}",
            indices.dims(),
            distances.dims()
        )
    }
    let indices = indices.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u32>()?;
    match indices.iter().find(|&&j| j as usize >= n) {
        Some(wrong) => candle::bail!("its neighbours must be below {n}, got {wrong}"),
        None => Ok(()),
    }
}

/// Refuses an order that does not hold each point once, which a damaged file may have.
fn check_order(order: &Tensor, n: usize) -> Result<()> {
    let mut sorted = order.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
    sorted.sort_unstable();
    if sorted.len() != n || (0..).zip(&sorted).any(|(i, &j)| i != j) {
        candle::bail!("its order must hold each of {n} points once")
    }
    Ok(())
}
