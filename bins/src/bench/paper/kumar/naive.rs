//! The naive parallel form of section 3.2: a block for each observation, a thread for each feature,
//! and sums by atomic additions. On a CPU a task for each observation.
use super::{BEST, NAIVE_SLOWER, SIZE, either, heads, run_at, runs, serial_row, table};
use crate::bench::dae::{epoch, trainer};
use crate::bench::paper::{Cell, Paper};
use crate::bench::size::Size;
use crate::bench::stream::synthetic_rows;
use crate::bench::timing::time_of_one;
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::dae::{Dae, DaeTrainConfig};
use chandlery::{Philox, Precision, Trainer};
use chandlery_ops::core::{Draws, advance_};
use chandlery_ops::layers::{DenoisingParams, corrupt_, naive_denoising_step_};

/// The parameters in one buffer, and the memory of a step.
struct Naive {
    size: Size,
    values: Tensor,
    sums: Tensor,
    corrupted: Tensor,
    counter: Tensor,
    config: DaeTrainConfig,
}

impl Naive {
    fn of(dae: &Dae, batch: usize) -> Result<Self> {
        let size = Size { n_visible: dae.config().n_visible, n_hidden: dae.config().n_hidden };
        let values =
            Tensor::cat(&[&dae.weight().flatten_all()?, dae.bias(), dae.visible_bias()], 0)?.contiguous()?;
        let corrupted = Tensor::zeros((batch, size.n_visible), values.dtype(), values.device())?;
        let counter = Tensor::new(&[0i64], values.device())?;
        let config = DaeTrainConfig { batch, ..DaeTrainConfig::default() };
        Ok(Self { size, sums: values.zeros_like()?, values, corrupted, counter, config })
    }

    fn step(&self, x: &Tensor, philox: Philox) -> Result<()> {
        let draws = Draws::Counter { philox, counter: &self.counter };
        corrupt_(&self.corrupted, x, self.config.corruption, draws, 0)?;
        advance_(&self.counter, x.elem_count().div_ceil(4) as i64)?;
        let (n_visible, n_hidden) = self.size.units();
        let bias_at = n_visible * n_hidden;
        let params = DenoisingParams {
            values: &self.values,
            n_visible,
            n_hidden,
            bias_at,
            visible_bias_at: bias_at + n_hidden,
        };
        let rate = self.config.learning_rate.at(0) as f32;
        Ok(naive_denoising_step_(params, &self.sums, x, &self.corrupted, rate)?)
    }
}

/// Seconds of a minibatch in the naive form.
fn measure(device: &Device, runs: (u32, f64), batch: usize) -> Result<f64> {
    let naive = Naive::of(&trainer(SIZE, Precision::F32, batch, device)?.model()?, batch)?;
    let x = synthetic_rows(batch, SIZE.n_visible)?.to_tensor(device)?;
    let calls = |n: usize| (0..n).try_for_each(|_| naive.step(&x, Philox::new(0, 1)));
    Ok(time_of_one(device, runs.0, (runs.1, 2), calls)?.median)
}

/// The table.
pub(super) fn section(paper: &mut Paper<'_>) -> Result<()> {
    let (runs, serial_row) = (runs(paper), serial_row(paper, SIZE)?);
    let places = paper.places()?;
    let mut all_heads = heads(["minibatch", "serial program, ms", "the paper's factor"]);
    for place in &places {
        let name = place.name();
        all_heads.extend([format!("naive, {name}, ms"), "factor".to_owned(), format!("ours, {name}, ms")]);
        all_heads.push("factor".to_owned());
    }
    let mut rows = Vec::new();
    for batch in either(paper, &[1, BEST.1, 32, 128], &[BEST.1]) {
        let serial = serial_row * batch as f64;
        let mut row = vec![
            Cell::number(batch as f64, 0),
            Cell::number(1e3 * serial, 3),
            Cell::factor(1. / NAIVE_SLOWER),
        ];
        let many = synthetic_rows(4096.max(batch), SIZE.n_visible)?;
        let steps = (many.n_samples() / batch) as f64;
        for place in &places {
            let naive = run_at(place, |device| measure(device, runs, batch))?;
            let ours = run_at(place, |device| epoch(runs, device, SIZE, Precision::F32, batch, &many))?;
            for seconds in [naive, ours.median / steps] {
                row.extend([Cell::number(1e3 * seconds, 3), Cell::factor(serial / seconds)]);
            }
        }
        rows.push(row);
    }
    let notes = vec![
        format!(
            "Factors are over the serial program on one thread. The paper's naive form ran on a GPU and was about {NAIVE_SLOWER} times slower than its serial \
             program on a CPU (footnote 1); the text does not say with which minibatch."
        ),
        "On a GPU a block is an observation and a thread a feature: partial products are added to shared memory, and updates to global memory, by atomic \
         additions. On a CPU a task is an observation, and its update is added by atomic additions; the products are its own."
            .to_owned(),
        "Departure: the paper adds to the weights while other blocks read them; here a minibatch is summed apart and then added, so that the result is \
         Algorithm 1's."
            .to_owned(),
    ];
    table(paper, "The naive parallel form: a block for each observation", &all_heads, rows, notes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery::dae::reference::Serial;

    #[test]
    fn the_naive_form_is_the_serial_program() {
        let size = Size { n_visible: 19, n_hidden: 11 };
        let dae = trainer(size, Precision::F32, 7, &Device::Cpu).unwrap().model().unwrap();
        let (naive, mut serial) = (Naive::of(&dae, 7).unwrap(), Serial::<f32>::of(&dae).unwrap());
        let x = synthetic_rows(7, 19).unwrap().to_tensor(&Device::Cpu).unwrap();
        let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for _ in 0..10 {
            naive.step(&x, Philox::new(4, 0)).unwrap();
            serial.step(&values(&x), &values(&naive.corrupted), 0.1);
        }
        let want = [serial.weight, serial.bias, serial.visible_bias].concat();
        let got = values(&naive.values);
        // The order of sums is another each time: rounding errors of ten steps.
        let off = got.iter().zip(&want).fold(0f32, |off, (got, want)| off.max((got - want).abs()));
        assert!(off < 1e-5, "{off:e} off");
        assert_ne!(got[..19 * 11], values(dae.weight()));
    }
}
