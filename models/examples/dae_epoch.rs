//! Times an epoch of 60,000 rows of a denoising autoencoder on the CPU, and the serial program; `bins/peers/dae.py` runs it beside
//! PyTorch.
//!
//! ```text
//! cargo run -p chandlery --example dae_epoch -- [N_VISIBLE] [N_HIDDEN] [BATCH] [STEPS] [SERIAL_STEPS]
//! ```
//!
//! The defaults are 784, 500, 8, 500 and 0. Rows are random. Prints the median and the least of seven runs of so many steps, each as
//! seconds an epoch.
use candle::{Device::Cpu, Result};
use chandlery::dae::reference::Serial;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::{Philox, Trainer};
use chandlery_ops::uniform;
use std::time::Instant;

/// Minibatches that are gone through in turn.
const MINIBATCHES: usize = 16;
const RUNS: usize = 7;

fn per_epoch(start: Instant, rows: usize) -> f64 {
    start.elapsed().as_secs_f64() * 60_000. / rows as f64
}

fn main() -> Result<()> {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let arg = |i: usize, default: usize| args.get(i).copied().unwrap_or(default);
    let (n_visible, n_hidden, batch, steps) = (arg(0, 784), arg(1, 500), arg(2, 8), arg(3, 500));
    let dae = Dae::init(DaeConfig::new(n_visible, n_hidden), Philox::new(0, 0), &Cpu)?;
    let rows = uniform((batch * MINIBATCHES, n_visible), &Cpu, Philox::new(0, 1))?;
    let mut trainer =
        DaeTrainer::new(&dae, DaeTrainConfig { batch, ..DaeTrainConfig::default() }, Philox::new(0, 2))?;
    let mut times = Vec::with_capacity(RUNS);
    for run in 0..=RUNS {
        let start = Instant::now();
        for step in 0..steps {
            trainer.step(&rows.narrow(0, step % MINIBATCHES * batch, batch)?, None)?;
        }
        if run > 0 {
            times.push(per_epoch(start, steps * batch));
        }
    }
    times.sort_by(f64::total_cmp);
    let (median, least) = (times[RUNS / 2], times[0]);
    println!("{n_visible}-{n_hidden}, batch {batch}: {median:.3} s an epoch (median), {least:.3} (least)");

    let serial_steps = arg(4, 0);
    if serial_steps > 0 {
        let mut serial = Serial::<f32>::of(&dae)?;
        let x = rows.flatten_all()?.to_vec1::<f32>()?;
        let start = Instant::now();
        for (step, x) in x.chunks(n_visible).cycle().take(serial_steps).enumerate() {
            let noisy = Serial::corrupt(x, trainer.config().corruption, Philox::new(0, step as u64), 0);
            serial.step(x, &noisy, 0.1);
        }
        println!("serial program, f32: {:.1} s an epoch", per_epoch(start, serial_steps));
    }
    Ok(())
}
