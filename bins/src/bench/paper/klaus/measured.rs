//! What is timed here, once for all tables and figures.
use super::serial::{Form, Level, Program};
use crate::bench::paper::Paper;
use crate::bench::sparse_autoencoder::printed::{ROWS, SIZES};
use crate::bench::sparse_autoencoder::{Pass, flop};
use anyhow::{Context, Result};
use candle::Device;
use chandlery::Precision;
use chandlery::sparse_autoencoder::CostConfig;
use std::time::Instant;

/// Seconds of a pass over [`ROWS`] rows at each size; none where it was not timed.
pub type Times = [Option<f64>; SIZES.len()];

/// The programs of the paper as they are written here, and what the paper calls those that its
/// compiler made with the flags 0 and 3.
pub const PROGRAMS: [(&str, Form, Level); 8] = [
    ("serial_naive_0", Form::Naive, Level::Unoptimised),
    ("serial_naive_3", Form::Naive, Level::Optimised),
    ("serial_base_0", Form::Base, Level::Unoptimised),
    ("serial_base_3", Form::Base, Level::Optimised),
    ("serial_loop_0", Form::Loop, Level::Unoptimised),
    ("serial_loop_3", Form::Loop, Level::Optimised),
    ("serial_omp_0", Form::Omp, Level::Unoptimised),
    ("serial_omp_3", Form::Omp, Level::Optimised),
];

/// FLOP of a timed run of a serial program, and of our best on a CPU: some seconds. Quick ones have
/// a fraction.
const SERIAL_FLOP: f64 = 4e8;
const CPU_FLOP: f64 = 5e10;
const QUICK: f64 = 0.1;
/// Rows at least: so many that the products of our best are those of many rows.
const LEAST_SERIAL: usize = 2;
const LEAST_BEST: usize = 512;

/// The times that were asked for so far.
#[derive(Default)]
pub struct Measured {
    programs: [Option<Times>; PROGRAMS.len()],
    best: Option<Vec<(String, Times)>>,
}

/// Whether a size is timed: with --quick two are.
fn is_timed(paper: &Paper<'_>, size: usize) -> bool {
    !paper.quick() || size == 0 || size == 2
}

/// Rows of a run of so many FLOP.
fn rows_of(paper: &Paper<'_>, flop_of_run: f64, (v, h): (usize, usize), least: usize) -> usize {
    let share = if paper.quick() { QUICK } else { 1. };
    let n = share * flop_of_run / (flop(v, h) / ROWS as f64);
    (n as usize).clamp(least, ROWS)
}

impl Measured {
    /// Times of one of [`PROGRAMS`], on the CPU.
    pub fn program(&mut self, paper: &Paper<'_>, name: &str) -> Result<Times> {
        let place = PROGRAMS.iter().position(|(known, ..)| *known == name);
        let place = place.with_context(|| format!("no serial program {name}"))?;
        if let Some(times) = self.programs.get(place).copied().flatten() {
            return Ok(times);
        }
        let (_, form, level) = PROGRAMS[place];
        let mut times = [None; SIZES.len()];
        for (i, (seconds, &size)) in times.iter_mut().zip(&SIZES).enumerate() {
            if is_timed(paper, i) {
                let n = rows_of(paper, SERIAL_FLOP, size, LEAST_SERIAL);
                *seconds = Some(serial(size, form, level, n)? * ROWS as f64 / n as f64);
            }
        }
        self.programs[place] = Some(times);
        Ok(times)
    }

    /// Times of our best on one thread, on all cores, and on the GPU where there is one.
    pub fn best(&mut self, paper: &Paper<'_>) -> Result<&[(String, Times)]> {
        if self.best.is_none() {
            let mut all = Vec::new();
            for place in paper.places()? {
                let mut times = [None; SIZES.len()];
                for (i, (seconds, &size)) in times.iter_mut().zip(&SIZES).enumerate() {
                    if !is_timed(paper, i) {
                        continue;
                    }
                    let whole = !place.device.is_cpu();
                    let n = if whole { ROWS } else { rows_of(paper, CPU_FLOP, size, LEAST_BEST) };
                    let repeats = if n == ROWS { paper.repeats() } else { 1 };
                    let one = place.run(|| best(&place.device, size, n, repeats))?;
                    *seconds = Some(one * ROWS as f64 / n as f64);
                }
                all.push((format!("here: best, {}", place.name()), times));
            }
            self.best = Some(all);
        }
        Ok(self.best.as_deref().unwrap_or_default())
    }
}

/// Seconds of a pass of a serial program over so many rows.
fn serial(size: (usize, usize), form: Form, level: Level, n: usize) -> Result<f64> {
    let (theta, rows) = Pass::new(&Device::Cpu, size, n, Precision::F32)?.on_host()?;
    let cost = CostConfig::default();
    let mut program = Program::new(size, &cost, &theta).context("the parameters must fit the size")?;
    let started = Instant::now();
    program.pass(form, level, &rows);
    let seconds = started.elapsed().as_secs_f64();
    std::hint::black_box(&program);
    Ok(seconds)
}

/// The same of our best.
fn best(device: &Device, size: (usize, usize), n: usize, repeats: u32) -> Result<f64> {
    Ok(Pass::new(device, size, n, Precision::F32)?.timed(device, repeats)?.median)
}
