//! The six modules of Algorithm 2 as separate launches of ops, beside many steps in one launch.
use super::{BEST, SIZE, either, heads, run_at, runs, serial_row, table};
use crate::bench::dae::{EPOCH, epoch, trainer};
use crate::bench::paper::{Cell, Headline, Paper};
use crate::bench::size::Size;
use crate::bench::stream::synthetic_rows;
use crate::bench::timing::time_of_one;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::dae::{Dae, DaeTrainConfig};
use chandlery::schedule::Schedule;
use chandlery::{Philox, Precision, Trainer};
use chandlery_ops::arrays::column_sums_;
use chandlery_ops::core::{Draws, advance_, set_scalars_};
use chandlery_ops::layers::{
    Activation, Corruption, Factors, OutputLoss, SgdStep, corrupt_, gemm_, layer_backward_, layer_forward_,
    output_loss_, sgd_step_,
};

/// The paper's names, in its order.
const NAMES: [&str; 6] = [
    "1 pGet-corrupted-input",
    "2 pGet-hidden-values",
    "3 pGet-reconstructed-input",
    "4 pL-vbias",
    "5 pL-hbias",
    "6 pWeights",
];
/// Steps of a timed run, at least.
const LEAST: usize = 5;

/// The network of tied weights and sigmoid units, and the memory of a step.
pub(super) struct Modules {
    corruption: Corruption,
    rate: f32,
    philox: Philox,
    counter: Tensor,
    /// `[n_hidden, n_visible]`
    pub weight: Tensor,
    /// Values, gradient, velocity of the hidden and of the visible biases, `[3, n]`.
    pub hidden_bias: Tensor,
    pub visible_bias: Tensor,
    /// Rate and momentum.
    scalars: Tensor,
    /// `x̃`, `y`, then `−LN/B` and `−LH/B`.
    pub corrupted: Tensor,
    hidden: Tensor,
    output: Tensor,
    hidden_delta: Tensor,
    gathered: Tensor,
}

impl Modules {
    pub fn of(dae: &Dae, config: &DaeTrainConfig, philox: Philox) -> Result<Self> {
        let (v, h, device) = (dae.config().n_visible, dae.config().n_hidden, dae.weight().device());
        let zeros = |shape: (usize, usize)| Tensor::zeros(shape, DType::F32, device);
        let state = |values: &Tensor| {
            let zeros = values.zeros_like()?;
            Tensor::stack(&[values, &zeros, &zeros], 0)
        };
        let rate = config.learning_rate.at(0) as f32;
        let scalars = Tensor::zeros(2, DType::F32, device)?;
        set_scalars_(&scalars, &[rate, 0.])?;
        Ok(Self {
            corruption: config.corruption,
            rate,
            philox,
            counter: Tensor::new(&[0i64], device)?,
            weight: dae.weight().copy()?,
            hidden_bias: state(dae.bias())?,
            visible_bias: state(dae.visible_bias())?,
            scalars,
            corrupted: zeros((config.batch, v))?,
            hidden: zeros((config.batch, h))?,
            output: zeros((config.batch, v))?,
            hidden_delta: zeros((config.batch, h))?,
            gathered: Tensor::zeros((2, config.batch), DType::F64, device)?,
        })
    }

    /// Module `i` of [`NAMES`] on the minibatch `x`, `[batch, n_visible]`.
    pub fn module(&self, i: usize, x: &Tensor) -> Result<()> {
        let Self { weight, corrupted, hidden, output, hidden_delta, .. } = self;
        let product = |c: &Tensor, a: &Tensor, b: &Tensor| gemm_(c, a, b, Factors::OVERWRITE, Precision::F32);
        // −LN/B and −LH/B have the sign of a gradient and the 1/B.
        let descend = Factors::Host { alpha: -f64::from(self.rate), beta: 1. };
        match i {
            0 => {
                let draws = Draws::Counter { philox: self.philox, counter: &self.counter };
                corrupt_(corrupted, x, self.corruption, draws, 0)?;
                advance_(&self.counter, x.elem_count().div_ceil(4) as i64)?;
            }
            1 => {
                product(hidden, corrupted, &weight.t()?)?;
                layer_forward_(hidden, Some(&self.hidden_bias.get(0)?), Activation::Sigmoid, None)?;
            }
            2 => product(output, hidden, weight)?,
            3 => {
                let bias = self.visible_bias.get(0)?;
                output_loss_(output, &bias, x, OutputLoss::CrossEntropy, x.dim(0)?, &self.gathered)?;
                self.step_bias(&self.visible_bias, output)?;
            }
            4 => {
                product(hidden_delta, output, &weight.t()?)?;
                layer_backward_(hidden_delta, hidden, Activation::Sigmoid, None)?;
                self.step_bias(&self.hidden_bias, hidden_delta)?;
            }
            _ => {
                gemm_(weight, &hidden_delta.t()?, corrupted, descend, Precision::F32)?;
                gemm_(weight, &hidden.t()?, output, descend, Precision::F32)?;
            }
        }
        Ok(())
    }

    /// All six.
    pub fn step(&self, x: &Tensor) -> Result<()> {
        (0..NAMES.len()).try_for_each(|i| self.module(i, x))
    }

    fn step_bias(&self, state: &Tensor, gradient: &Tensor) -> Result<()> {
        column_sums_(&state.get(1)?, gradient)?;
        Ok(sgd_step_(state, &self.scalars, SgdStep { weight_decay: 0. }, 0, None)?)
    }
}

/// Seconds of each module, of all six in a row, and of a step of the trainer.
fn measure(device: &Device, runs: (u32, f64), size: Size, batch: usize) -> Result<[f64; 8]> {
    let dae = trainer(size, Precision::F32, batch, device)?.model()?;
    // A rate at which the weights stay what they are, however often a minibatch is seen.
    let config =
        DaeTrainConfig { batch, learning_rate: Schedule::constant(1e-6), ..DaeTrainConfig::default() };
    let modules = Modules::of(&dae, &config, Philox::new(0, 1))?;
    let x = synthetic_rows(batch, size.n_visible)?.to_tensor(device)?;
    modules.step(&x)?;
    let mut seconds = [0.; 8];
    // Each on what the step before left, so that none reads zeros.
    for (i, seconds) in seconds.iter_mut().enumerate().take(NAMES.len() + 1) {
        let one = || if i < NAMES.len() { modules.module(i, &x) } else { modules.step(&x) };
        let calls = |n: usize| (0..n).try_for_each(|_| one());
        *seconds = time_of_one(device, runs.0, (runs.1, LEAST), calls)?.median;
    }
    // As many rows as fill what the device gets at a time.
    let rows = synthetic_rows((64 * batch).clamp(4096, EPOCH.max(batch)), size.n_visible)?;
    let steps = (rows.n_samples() / batch) as f64;
    seconds[7] = epoch(runs, device, size, Precision::F32, batch, &rows)?.median / steps;
    Ok(seconds)
}

/// The table of modules, and the headline.
pub(super) fn section(paper: &mut Paper<'_>) -> Result<()> {
    let (runs, serial_row) = (runs(paper), serial_row(paper, SIZE)?);
    let places = paper.places()?;
    let mut all_heads = heads(["minibatch", "what"]);
    for place in &places {
        all_heads.extend([format!("{}, µs", place.name()), "times the serial program".to_owned()]);
    }
    let (mut rows, mut best) = (Vec::new(), None);
    for batch in either(paper, &[1, BEST.1, 32, 128], &[BEST.1]) {
        let serial = serial_row * batch as f64;
        let mut measured = Vec::new();
        for place in &places {
            measured.push(run_at(place, |device| measure(device, runs, SIZE, batch))?);
        }
        let whole = ["six in a row", "a step of the trainer"];
        for (i, name) in NAMES.into_iter().chain(whole).enumerate() {
            let mut row = vec![Cell::number(batch as f64, 0), Cell::text(name)];
            for seconds in &measured {
                row.push(Cell::number(1e6 * seconds[i], 2));
                row.push(if i < NAMES.len() { Cell::none() } else { Cell::factor(serial / seconds[i]) });
            }
            rows.push(row);
        }
        if batch == BEST.1 {
            best = measured.last().map(|seconds| (serial / seconds[6], serial / seconds[7]));
        }
    }
    let notes = vec![
        format!(
            "The paper names the modules (Algorithm 2) and prints no time of one. The serial program takes {:.3} ms a row, on one thread, in f32.",
            1e3 * serial_row
        ),
        "Each module is launched by itself, by an op of this library or a few: 2, 3, 5 and 6 are matrix products. The sigmoid of module 3 is taken \
         by the kernel that takes LN in module 4."
            .to_owned(),
        "A step of the trainer: many steps in one launch where the network fits, else one op after the other; on a GPU recorded.".to_owned(),
    ];
    table(paper, "The six modules as separate launches, and the step in one", &all_heads, rows, notes)?;
    if let Some((same, fused)) = best {
        let factor = |x: f64| Cell::factor(x).as_str().to_owned();
        paper.headline(Headline {
            claim: format!(
                "Denoising autoencoder 784-500 in minibatches of {}, over the serial program on one thread",
                BEST.1
            ),
            paper: format!("> {}×", BEST.0),
            same: factor(same),
            best: factor(fused),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery::dae::reference::Serial;

    #[test]
    fn the_modules_in_a_row_are_the_serial_program() {
        let size = Size { n_visible: 21, n_hidden: 13 };
        let dae = trainer(size, Precision::F32, 5, &Device::Cpu).unwrap().model().unwrap();
        let mut serial = Serial::<f64>::of(&dae).unwrap();
        let config = DaeTrainConfig { batch: 5, ..DaeTrainConfig::default() };
        let modules = Modules::of(&dae, &config, Philox::new(3, 1)).unwrap();
        let x = synthetic_rows(5, 21).unwrap().to_tensor(&Device::Cpu).unwrap();
        let wide =
            |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        for _ in 0..20 {
            modules.step(&x).unwrap();
            serial.step(&wide(&x), &wide(&modules.corrupted), f64::from(config.learning_rate.at(0) as f32));
        }
        for (what, got, want) in [
            ("weight", wide(&modules.weight), &serial.weight),
            ("bias", wide(&modules.hidden_bias.get(0).unwrap()), &serial.bias),
            ("visible bias", wide(&modules.visible_bias.get(0).unwrap()), &serial.visible_bias),
        ] {
            // Rounding errors of 20 steps of sums of 21 products.
            let off = got.iter().zip(want).fold(0f64, |off, (got, want)| off.max((got - want).abs()));
            assert!(off < 1e-5, "{what}: {off:e} off");
        }
        let moved = wide(&(&modules.weight - dae.weight()).unwrap());
        assert!(moved.iter().any(|x| x.abs() > 0.05), "the weights hardly moved");
    }
}
