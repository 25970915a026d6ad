//! The run of 400 iterations by each optimiser: the cost by the time that it took.
use crate::bench::paper::{Cell, Paper, Table};
use crate::bench::place::Place;
use crate::bench::sparse_autoencoder::patches;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::sparse_autoencoder::{
    Cost, FullBatchOptimizer, SparseAutoencoder, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer, Start,
};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Trainer};
use chandlery_datasets::{Feed, FeedConfig, Split};
use std::time::Instant;

/// Iterations of the paper.
const ITERATIONS: usize = 400;
/// With --quick.
const FEW: usize = 25;

/// A run: its costs by time.
struct Made {
    name: &'static str,
    /// Seconds since the first iteration began, and the cost after each.
    points: Vec<(f64, f64)>,
    /// Passes over all rows.
    passes: u64,
}

impl Made {
    fn last(&self) -> (f64, f64) {
        self.points.last().copied().unwrap_or((f64::NAN, f64::NAN))
    }

    /// Seconds to a cost.
    fn to(&self, cost: f64) -> Option<f64> {
        self.points.iter().find(|point| point.1 <= cost).map(|point| point.0)
    }
}

/// A table with a row for each place and optimiser, and a figure of the last place.
pub fn run(paper: &mut Paper<'_>) -> Result<()> {
    let iterations = if paper.quick() { FEW } else { ITERATIONS };
    let mut table = Table::new(
        format!("Cost by time: 64-25-64 on 10,000 patches, {iterations} iterations by each optimiser"),
        &["optimiser", "place", "iterations", "passes", "seconds", "cost", "seconds to the best + 5 %"],
    );
    let mut last = Vec::new();
    for place in paper.places()? {
        let runs = place.run(|| all(&place, iterations))?;
        let best = runs.iter().map(|run| run.last().1).fold(f64::INFINITY, f64::min);
        for run in &runs {
            let (seconds, cost) = run.last();
            table.row(vec![
                Cell::text(run.name),
                Cell::text(place.name()),
                Cell::number(run.points.len() as f64, 0),
                Cell::number(run.passes as f64, 0),
                Cell::seconds(seconds),
                Cell::number(cost, 4),
                Cell::or_none(run.to(1.05 * best), Cell::seconds),
            ]);
        }
        last = runs;
    }
    table.note("the paper runs minFunc's L-BFGS for 400 iterations, and names gradient descent and conjugate gradient without a time");
    table.note("from the paper's start, normal with standard deviation 0.01; adam: epochs in minibatches of 1000 at a rate of 0.003, its cost is that over all rows after each, taken while the clock stands");
    table.note("gradient descent backtracks; seconds to the best: to 5 % above the lowest cost that one of them reached there");
    paper.table(table)?;
    let curves = last.iter().map(|run| Curve::new(run.name, run.points.iter().copied())).collect();
    let panel = Panel::new("64-25-64, 10,000 patches", "seconds", "cost", curves).log_x().log();
    paper.figure("optimizers", "Cost by time of four optimisers, from the paper's start", &[panel])
}

/// Runs of all optimisers on one place.
fn all(place: &Place, iterations: usize) -> Result<Vec<Made>> {
    let (rows, first) = patches(&place.device, Start::Gaussian)?;
    let mut runs = Vec::new();
    for (name, optimizer) in [
        ("lbfgs", FullBatchOptimizer::Lbfgs),
        ("cg", FullBatchOptimizer::ConjugateGradient),
        ("gd", FullBatchOptimizer::GradientDescent),
    ] {
        // Once unseen, for what is loaded and allocated.
        of_all_rows(name, optimizer, &first, &rows, 2)?;
        runs.push(of_all_rows(name, optimizer, &first, &rows, iterations)?);
    }
    by_minibatches(&first, &rows, 2)?;
    runs.push(by_minibatches(&first, &rows, iterations)?);
    Ok(runs)
}

fn of_all_rows(
    name: &'static str,
    optimizer: FullBatchOptimizer,
    first: &SparseAutoencoder,
    rows: &Tensor,
    iterations: usize,
) -> Result<Made> {
    let fit = SparseAutoencoderLbfgsTrainConfig {
        optimizer,
        iterations,
        ..SparseAutoencoderLbfgsTrainConfig::default()
    };
    let mut run = SparseAutoencoderLbfgsTrainer::new(first, fit, rows)?;
    rows.device().synchronize()?;
    let (started, mut points) = (Instant::now(), Vec::with_capacity(iterations));
    // A step has read its value: the device is done.
    while let Some(made) = run.step()? {
        points.push((started.elapsed().as_secs_f64(), made.value));
    }
    Ok(Made { name, points, passes: run.descent().evaluations() })
}

fn by_minibatches(first: &SparseAutoencoder, rows: &Tensor, epochs: usize) -> Result<Made> {
    let device: &Device = rows.device();
    let config = SparseAutoencoderTrainConfig::default();
    let cost = Cost::new(first.config().clone(), config.cost, rows, None, DType::F32, device)?;
    let split = Split::from_tensors(&rows.to_device(&Device::Cpu)?, None)?;
    let mut feed = Feed::new(&split, device, FeedConfig::new(config.batch, 0))?;
    let mut trainer = SparseAutoencoderTrainer::new(first, config)?;
    let (mut seconds, mut points) = (0., Vec::with_capacity(epochs));
    for epoch in 0..epochs {
        device.synchronize()?;
        let started = Instant::now();
        trainer.begin_epoch(epoch)?;
        feed.start_epoch(epoch as u64, 0)?;
        while let Some(minibatch) = feed.next()? {
            trainer.step(&minibatch.rows, None)?;
        }
        device.synchronize()?;
        seconds += started.elapsed().as_secs_f64();
        points.push((seconds, cost.parts(&trainer.model()?.flat()?)?.cost));
    }
    Ok(Made { name: "adam", points, passes: epochs as u64 })
}
