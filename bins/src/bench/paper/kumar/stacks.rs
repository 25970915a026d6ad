//! Stacks, an open question of the paper: seconds an epoch of each layer of a stacked denoising
//! autoencoder, beside the serial program on a layer of that size.
use super::{BEST, SIZE, heads, run_at, runs, serial_row, table};
use crate::bench::dae::EPOCH;
use crate::bench::paper::{Cell, Paper};
use crate::bench::size::Size;
use crate::bench::stream::{Stream, synthetic_rows};
use crate::bench::timing::time_of_one;
use anyhow::Result;
use candle::Device;
use chandlery::dae::{DaeTrainConfig, StackedDae, StackedDaeConfig, StackedDaeTrainer};
use chandlery::{Philox, Trainer};
use chandlery_datasets::{Feed, FeedConfig};

/// Units from the inputs up: the paper's network, and two layers more.
const LAYERS: [usize; 4] = [SIZE.n_visible, SIZE.n_hidden, 500, 250];
const BATCH: usize = BEST.1;
/// Rows that the steps go over.
const ROWS: usize = 8192;

/// Seconds of an epoch of each layer.
fn measure(device: &Device, (repeats, seconds): (u32, f64)) -> Result<Vec<f64>> {
    let stack = StackedDae::init(StackedDaeConfig::new(&LAYERS), Philox::new(0, 0), device)?;
    let config = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
    let n_layers = LAYERS.len() - 1;
    let mut trainer = StackedDaeTrainer::new(&stack, vec![config; n_layers], Philox::new(0, 1))?;
    let rows = synthetic_rows(ROWS, SIZE.n_visible)?;
    let mut feed = Feed::new(&rows, device, FeedConfig::new(BATCH, 0))?;
    let mut stream = Stream::new(&mut feed)?;
    let least = if device.is_cpu() { 10 } else { ROWS / BATCH };
    let mut of_layers = Vec::new();
    loop {
        let calls = |steps: usize| stream.train(&mut trainer, steps);
        let step = time_of_one(device, repeats, (seconds, least), calls)?.median;
        trainer.check()?;
        of_layers.push(step * EPOCH as f64 / BATCH as f64);
        if !trainer.next_layer()? {
            return Ok(of_layers);
        }
    }
}

/// The table.
pub(super) fn section(paper: &mut Paper<'_>) -> Result<()> {
    let runs = runs(paper);
    let sizes: Vec<Size> = LAYERS.windows(2).map(|of| Size { n_visible: of[0], n_hidden: of[1] }).collect();
    let serial =
        sizes.iter().map(|size| Ok(serial_row(paper, *size)? * EPOCH as f64)).collect::<Result<Vec<_>>>()?;
    let places = paper.places()?;
    let mut all_heads = heads(["layer", "serial program, s an epoch"]);
    let mut measured = Vec::new();
    for place in &places {
        all_heads.extend([format!("{}, s an epoch", place.name()), "speed-up".to_owned()]);
        measured.push(run_at(place, |device| measure(device, runs))?);
    }
    let row = |name: String, serial: f64, seconds: &dyn Fn(&[f64]) -> f64| {
        let mut row = vec![Cell::text(name), Cell::seconds(serial)];
        for of_place in &measured {
            let seconds = seconds(of_place);
            row.extend([Cell::seconds(seconds), Cell::factor(serial / seconds)]);
        }
        row
    };
    let mut rows: Vec<_> = sizes
        .iter()
        .zip(&serial)
        .enumerate()
        .map(|(i, (size, serial))| row(format!("{}: {size}", i + 1), *serial, &|of| of[i]))
        .collect();
    rows.push(row("all".to_owned(), serial.iter().sum(), &|of| of.iter().sum()));
    let notes = vec![
        "The paper asks how much faster stacked autoencoders become, and has no figure.".to_owned(),
        format!(
            "Minibatches of {BATCH}, an epoch of 60,000 rows for each layer. Ours takes raw rows through the layers below in every step; the serial program, in \
             f32 on one thread, reads rows of the width of the layer, as if what the layers below make were stored."
        ),
        "Seconds are of as many steps as fill a fraction of a second, times the steps of an epoch: each costs the same.".to_owned(),
    ];
    table(paper, "Open question: stacked denoising autoencoders", &all_heads, rows, notes)
}
