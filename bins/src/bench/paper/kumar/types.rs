//! f32 against f64, an open question of the paper: seconds an epoch, and what is learned in the
//! same epochs from the same rows and draws.
use super::{SIZE, either, heads, run_at, runs, table};
use crate::bench::dae::{EPOCH, epoch, serial_epoch, trainer, values};
use crate::bench::paper::{Cell, Paper};
use crate::bench::stream::synthetic_rows;
use crate::bench::timing::time_of_one;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use candle_nn::ops::sigmoid;
use chandlery::dae::reference::{Real, Serial};
use chandlery::dae::{Dae, DaeTrainConfig};
use chandlery::{MinibatchTrainer, Model, Philox, Precision, Trainer};
use chandlery_datasets::{DataOptions, Split};
use chandlery_ops::layers::corrupt;

/// Training rows, and epochs over them: the serial program takes milliseconds a row.
const ROWS: (usize, usize) = (512, 128);
const EPOCHS: usize = 2;
/// Held-out rows at most.
const HELD_OUT: usize = 1000;
/// Seconds of an epoch by PyTorch on an H200 in f64 (updates in place, replayed as a CUDA graph),
/// by rows of a minibatch.
const PYTORCH_F64: [(usize, f64); 5] = [(1, 2.83), (8, 0.432), (32, 0.127), (128, 0.035), (512, 0.016)];

/// Seconds of an epoch, and the error of held-out rows.
type Measured = (f64, f64);

/// The network as plain tensors of one type: a step is some thirty launches of candle's own ops.
struct Plain {
    weight: Tensor,
    bias: Tensor,
    visible_bias: Tensor,
}

impl Plain {
    fn of(dae: &Dae, dtype: DType, device: &Device) -> Result<Self> {
        let dae = dae.to(dtype, device)?;
        let [weight, bias, visible_bias] = [dae.weight(), dae.bias(), dae.visible_bias()].map(Tensor::clone);
        Ok(Self { weight, bias, visible_bias })
    }

    /// A step of Algorithm 2 on a minibatch and the same with noise, in f32.
    fn step(&mut self, x: &Tensor, corrupted: &Tensor, rate: f64) -> candle::Result<()> {
        let Self { weight, bias, visible_bias } = self;
        let (x, corrupted) = (x.to_dtype(weight.dtype())?, corrupted.to_dtype(weight.dtype())?);
        let rate = rate / x.dim(0)? as f64;
        let y = sigmoid(&corrupted.matmul(&weight.t()?)?.broadcast_add(bias)?)?;
        let z = sigmoid(&y.matmul(weight)?.broadcast_add(visible_bias)?)?;
        let ln = (x - z)?;
        let lh = ((&y - y.sqr()?)? * ln.matmul(&weight.t()?)?)?;
        *visible_bias = (&*visible_bias + (ln.sum(0)? * rate)?)?;
        *bias = (&*bias + (lh.sum(0)? * rate)?)?;
        let update = (lh.t()?.matmul(&corrupted)? + y.t()?.matmul(&ln)?)?;
        *weight = (&*weight + (update * rate)?)?;
        Ok(())
    }
}

/// What is learned from, and what it is measured on.
struct Task {
    rows: Split,
    held_out: Tensor,
    batch: usize,
    runs: (u32, f64),
}

impl Task {
    fn first(&self, device: &Device) -> Result<Dae> {
        Ok(trainer(SIZE, Precision::F32, self.batch, device)?.model()?)
    }

    /// By the serial program, on one thread.
    fn serially<T: Real>(&self) -> Result<Measured> {
        let mut serial = Serial::<T>::of(&self.first(&Device::Cpu)?)?;
        let rows: Vec<T> = values(&self.rows)?.into_iter().map(|x| T::of(f64::from(x))).collect();
        // The draws of `trainer`.
        let mut philox = Philox::new(0, 1);
        let start = std::time::Instant::now();
        for _ in 0..EPOCHS {
            serial_epoch(&mut serial, &rows, (SIZE.n_visible, self.batch), &mut philox);
        }
        let made = EPOCHS * self.rows.n_samples();
        let seconds = start.elapsed().as_secs_f64() * EPOCH as f64 / made as f64;
        Ok((seconds, serial.dae(&Device::Cpu)?.errors_prepared(&self.held_out, &self.held_out)?.rmse))
    }

    /// By candle's own ops in either type.
    fn plainly(&self, dtype: DType, device: &Device) -> Result<Measured> {
        let config = DaeTrainConfig::default();
        let (rate, first) = (config.learning_rate.at(0), self.first(device)?);
        let rows = self.rows.to_tensor(device)?;
        let mut plain = Plain::of(&first, dtype, device)?;
        let mut philox = Philox::new(0, 1);
        let mut step = |plain: &mut Plain, i: usize| -> Result<()> {
            let x = rows.narrow(0, i * self.batch, self.batch)?;
            let corrupted = corrupt(&x, config.corruption, philox)?;
            philox = philox.advanced(x.elem_count());
            Ok(plain.step(&x, &corrupted, rate)?)
        };
        let n = self.rows.n_samples() / self.batch;
        for i in 0..EPOCHS * n {
            step(&mut plain, i % n)?;
        }
        let Plain { weight, bias, visible_bias } = &plain;
        let learned = Dae::from_tensors(
            first.config().clone(),
            weight.clone(),
            bias.clone(),
            visible_bias.clone(),
            None,
        )?;
        let held_out = self.held_out.to_device(device)?.to_dtype(dtype)?;
        let rmse = learned.errors_prepared(&held_out, &held_out)?.rmse;
        let calls = |steps: usize| (0..steps).try_for_each(|i| step(&mut plain, i % n));
        let seconds = time_of_one(device, self.runs.0, (self.runs.1, 2), calls)?.median;
        Ok((seconds * EPOCH as f64 / self.batch as f64, rmse))
    }

    /// By the trainer, in f32.
    fn fused(&self, device: &Device) -> Result<Measured> {
        let synthetic = synthetic_rows(EPOCH, SIZE.n_visible)?;
        let seconds = epoch(self.runs, device, SIZE, Precision::F32, self.batch, &synthetic)?.median;
        let mut trainer = trainer(SIZE, Precision::F32, self.batch, device)?;
        let rows = self.rows.raw(device)?;
        for _ in 0..EPOCHS {
            trainer.steps_of(&rows, None, rows.dim(0)? / self.batch)?;
        }
        let held_out = self.held_out.to_device(device)?;
        Ok((seconds, trainer.model()?.errors_prepared(&held_out, &held_out)?.rmse))
    }
}

/// The table.
pub(super) fn section(paper: &mut Paper<'_>) -> Result<()> {
    let runs = runs(paper);
    let dataset = chandlery_datasets::open("mnist-sample", &DataOptions::default())?;
    let test = dataset.test.context("mnist-sample must have test rows")?;
    let held_out = test.take(test.n_samples().min(HELD_OUT))?.to_tensor(&Device::Cpu)?;
    let n = if paper.quick() { ROWS.1 } else { ROWS.0 };
    let places = paper.places()?;
    let mut rows = Vec::new();
    for batch in either(paper, &[8, 128], &[8]) {
        let task =
            Task { rows: dataset.train.take(n / batch * batch)?, held_out: held_out.clone(), batch, runs };
        let double = task.serially::<f64>()?;
        let mut line =
            |program: String, of: &str, (seconds, rmse): (f64, Option<f64>), of_f64: Option<f64>| {
                let or_none = |x: Option<f64>| x.map_or_else(Cell::none, |x| Cell::number(x, 6));
                rows.push(vec![
                    Cell::number(batch as f64, 0),
                    Cell::text(program),
                    Cell::text(of),
                    Cell::seconds(seconds),
                    of_f64.map_or_else(Cell::none, |of_f64| Cell::factor(of_f64 / seconds)),
                    or_none(rmse),
                    or_none(rmse.map(|rmse| rmse / double.1)),
                ]);
            };
        let seen = |(seconds, rmse): Measured| (seconds, Some(rmse));
        let serial = "serial program, 1 thread".to_owned();
        line(serial.clone(), "f64", seen(double), None);
        line(serial, "f32", seen(task.serially::<f32>()?), Some(double.0));
        for place in &places {
            let wide = run_at(place, |device| task.plainly(DType::F64, device))?;
            let narrow = run_at(place, |device| task.plainly(DType::F32, device))?;
            let fused = run_at(place, |device| task.fused(device))?;
            line(format!("candle's ops, {}", place.name()), "f64", seen(wide), None);
            line(format!("candle's ops, {}", place.name()), "f32", seen(narrow), Some(wide.0));
            line(format!("ours, {}", place.name()), "f32", seen(fused), Some(wide.0));
        }
        if let Some((_, seconds)) = PYTORCH_F64.iter().find(|(of, _)| *of == batch) {
            line("PyTorch, CUDA graph, H200, stored".to_owned(), "f64", (*seconds, None), None);
        }
    }
    let heads = heads([
        "minibatch",
        "program",
        "type",
        "s an epoch of 60,000 rows",
        "times as fast as f64",
        "RMSE",
        "of the serial f64's",
    ]);
    let notes = vec![
        "The paper's programs are in f64; it asks whether f32 is faster and as accurate, and has no figure.".to_owned(),
        format!(
            "RMSE of {} held-out rows of mnist-sample after {EPOCHS} epochs over {n} of its training rows, the same rows and draws for all.",
            held_out.dim(0)?
        ),
        "Times as fast as f64: over the same program in f64; of ours over candle's ops in f64 at the same place. Candle's ops are the six modules, an op \
         a product or a sum."
            .to_owned(),
    ];
    table(paper, "Open question: f32 in place of f64", &heads, rows, notes)
}
