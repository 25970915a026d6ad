//! Figure 4: error against time, seconds of an epoch and speed-up against the number of rows, error
//! by minibatch.
use super::{BEST, SIZE, either, heads, run_at, runs, serial_row, table};
use crate::bench::dae::{EPOCH, epoch, serial_epoch, trainer, values};
use crate::bench::paper::{Cell, Paper, break_even};
use crate::bench::stream::{Stream, synthetic_rows};
use crate::device::describe;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::dae::ReconstructionError;
use chandlery::dae::reference::Serial;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::{Philox, Precision, Trainer};
use chandlery_datasets::{DataOptions, Dataset, Feed, FeedConfig, Split};
use std::time::Instant;

/// Minibatches of the paper, 1 to 32, and two larger ones; fewer with `--quick`.
const BATCHES: [usize; 8] = [1, 2, 4, 8, 16, 32, 128, 512];
const QUICK_BATCHES: [usize; 3] = [1, 8, 32];
/// Those that have curves.
const DRAWN: [usize; 4] = [1, 8, 32, 512];
/// Rows of an epoch: the figure's axis is logarithmic, up to all of MNIST.
const ROWS: [usize; 4] = [100, 1000, 10_000, EPOCH];
/// Rows, and epochs, of the runs that are measured by what they learn beside the serial program;
/// fewer with `--quick`.
const LEARNING: ((usize, usize), (usize, usize)) = ((2000, 5), (320, 2));
/// Epochs over a whole data set.
const WHOLE_EPOCHS: usize = 5;
/// Rows of one that a CPU learns from.
const CPU_ROWS: usize = 10_000;
/// Held-out rows at most.
const HELD_OUT: usize = 1000;

/// Both tables, and the figure.
pub(super) fn section(paper: &mut Paper<'_>) -> Result<()> {
    let [seconds, speed] = speed(paper)?;
    let (data, note) = data(paper)?;
    let [learning, errors] = errors(paper, &data, note)?;
    if !paper.quick() {
        whole(paper, &data)?;
    }
    paper.figure(
        "figure-4",
        "Figure 4 of Kumar and Giaquinto: error against time, an epoch, error by minibatch, and speed-up",
        &[learning, seconds, errors, speed],
    )
}

/// All of MNIST where it can be had, else the digits that are built in; and what to say of that.
fn data(paper: &Paper<'_>) -> Result<(Dataset, String)> {
    let digits = || chandlery_datasets::open("mnist-sample", &DataOptions::default());
    if paper.quick() {
        return Ok((digits()?, "Data: mnist-sample, as --quick has it.".to_owned()));
    }
    Ok(match paper.mnist() {
        Ok(data) => (data, "Data: MNIST.".to_owned()),
        Err(err) => {
            let why = crate::report::one_line(&err.into());
            (digits()?, format!("Data: mnist-sample, since MNIST cannot be had here: {why}."))
        }
    })
}

/// The right half of the figure: seconds of an epoch and speed-up by rows, at each place.
fn speed(paper: &mut Paper<'_>) -> Result<[Panel; 2]> {
    let (runs, serial_row) = (runs(paper), serial_row(paper, SIZE)?);
    let places = paper.places()?;
    let mut all_heads = heads(["rows", "minibatch", "serial program, s", "the paper's speed-up"]);
    for place in &places {
        all_heads.extend([format!("{}, s", place.name()), "speed-up".to_owned()]);
    }
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    let (mut seconds, mut speed) = (Vec::new(), Vec::new());
    let sizes = ROWS.map(|n| n as f64);
    let serial = sizes.map(|n| n * serial_row);
    for batch in either(paper, &BATCHES, &QUICK_BATCHES) {
        let at: Vec<usize> = ROWS.into_iter().filter(|n| *n >= batch).collect();
        // By place, then by rows.
        let mut measured = Vec::new();
        for place in &places {
            measured.push(run_at(place, |device| epochs(device, runs, batch, &at))?);
        }
        for (i, &n) in at.iter().enumerate() {
            let serial = serial_row * n as f64;
            let papers = if (n, batch) == (EPOCH, BEST.1) { Cell::text("> 60") } else { Cell::none() };
            let mut row =
                vec![Cell::number(n as f64, 0), Cell::number(batch as f64, 0), Cell::seconds(serial), papers];
            for of_place in &measured {
                row.extend([Cell::seconds(of_place[i]), Cell::factor(serial / of_place[i])]);
            }
            rows.push(row);
        }
        if let (Some(place), Some(best)) = (places.last(), measured.last()) {
            let skipped = ROWS.len() - at.len();
            let even = break_even(&sizes[skipped..], &serial[skipped..], best);
            if let Some(n) = even.filter(|_| batch == BEST.1) {
                notes.push(format!(
                    "With minibatches of {batch}, {} is faster than the serial program from {n:.0} rows on.",
                    place.name()
                ));
            }
            let name = format!("batch {batch}");
            let points = |y: &dyn Fn(usize) -> f64| -> Vec<_> {
                at.iter().enumerate().map(|(i, &n)| (n as f64, y(i))).collect()
            };
            if DRAWN.contains(&batch) {
                seconds.push(Curve::new(name.clone(), points(&|i| best[i])));
                speed.push(Curve::new(name, points(&|i| serial_row * at[i] as f64 / best[i])));
            }
        }
    }
    seconds.push(Curve::new("serial", ROWS.map(|n| (n as f64, serial_row * n as f64))));
    notes.extend([
        format!(
            "The paper prints curves, and in its text the peak alone: more than {} times, with minibatches of {} on large data sets. Its minibatches are \
             1 to 32.",
            BEST.0, BEST.1
        ),
        format!(
            "The serial program is Algorithm 1 in f32 on one thread of this machine, {:.3} ms a row, times the rows. On a CPU a step always takes the same \
             time: as many as fill a fraction of a second are timed, times the steps of the epoch. On a GPU whole epochs are timed.",
            1e3 * serial_row
        ),
    ]);
    let title = "Figure 4, right: seconds of an epoch and speed-up over the serial program";
    table(paper, title, &all_heads, rows, notes)?;
    Ok([
        Panel::new("An epoch", "rows", "s", seconds).log_x().log(),
        Panel::new("Speed-up", "rows", "times the serial program", speed).log_x().log(),
    ])
}

/// Seconds of epochs of so many rows.
fn epochs(device: &Device, runs: (u32, f64), batch: usize, at: &[usize]) -> Result<Vec<f64>> {
    let of = |n: usize| {
        let rows = synthetic_rows(n, SIZE.n_visible)?;
        Ok(epoch(runs, device, SIZE, Precision::F32, batch, &rows)?.median)
    };
    match (device.is_cpu(), at.last()) {
        // Proportional to the rows, of which a part is timed anyway.
        (true, Some(&most)) => {
            let all = of(most)?;
            Ok(at.iter().map(|&n| all * n as f64 / most as f64).collect())
        }
        _ => at.iter().map(|&n| of(n)).collect(),
    }
}

/// Seconds of training, and the errors of held-out rows, after each epoch.
type Learned = Vec<(f64, ReconstructionError)>;

/// The left half of the figure: errors against time, and by minibatch.
fn errors(paper: &mut Paper<'_>, data: &Dataset, of_data: String) -> Result<[Panel; 2]> {
    let (n, epochs) = if paper.quick() { LEARNING.1 } else { LEARNING.0 };
    let held_out = held_out(data)?;
    let train = data.train.take(n.min(data.train.n_samples()))?;
    let device = paper.device().clone();
    let serial = learn_serially(&values(&train)?, epochs, &held_out)?;
    let last = |learned: &Learned| learned.last().copied().context("an epoch must have been made");
    let of_serial = last(&serial)?.1;
    let curve = |name: &str, learned: &Learned| {
        Curve::new(name, learned.iter().map(|(seconds, error)| (*seconds, error.rmse)))
    };
    let line = |program: &str, batch: usize, (seconds, error): (f64, ReconstructionError)| {
        vec![
            Cell::text(program),
            Cell::number(batch as f64, 0),
            Cell::seconds(seconds),
            Cell::number(error.rmse, 5),
            Cell::number(error.squared_error, 3),
            Cell::number(error.distance, 4),
            Cell::number(error.rmse / of_serial.rmse, 4),
        ]
    };
    let mut rows = vec![line("serial", 1, last(&serial)?)];
    let (mut learning, mut by_batch) = (vec![curve("serial", &serial)], Vec::new());
    for batch in either(paper, &BATCHES, &QUICK_BATCHES) {
        if batch > train.n_samples() {
            continue;
        }
        let learned = learn(&device, batch, &train, epochs, &held_out)?;
        rows.push(line("ours", batch, last(&learned)?));
        by_batch.push((batch as f64, last(&learned)?.1.rmse));
        if QUICK_BATCHES.contains(&batch) {
            learning.push(curve(&format!("batch {batch}"), &learned));
        }
    }
    let level = by_batch.iter().map(|(batch, _)| (*batch, of_serial.rmse)).collect::<Vec<_>>();
    let notes = vec![
        of_data,
        format!(
            "{} rows, {epochs} epochs, on {}; errors of {} held-out rows without noise. The learning rate is 0.1 for all, so that large minibatches make fewer \
             steps and have learned less.",
            train.n_samples(),
            describe(&device),
            held_out.dim(0)?
        ),
        "RMSE is the root of the mean over all values. The paper's \"RMSE\" (section 5.2) is the mean over rows of the squared distance, and its loss \
         (equation 1) that of the distance: both stand beside it."
            .to_owned(),
        "The paper prints curves without numbers: errors of its parallel program are at or below those of the serial one, for all minibatches.".to_owned(),
    ];
    let heads = heads([
        "program",
        "minibatch",
        "training, s",
        "RMSE",
        "squared distance of a row",
        "distance of a row",
        "RMSE of the serial program's",
    ]);
    table(paper, "Figure 4, left: what is learned", &heads, rows, notes)?;
    let by_minibatch = vec![Curve::new("parallel", by_batch), Curve::new("serial, one row at a time", level)];
    Ok([
        Panel::new("Error against time", "seconds", "RMSE, held out", learning).log_x(),
        Panel::new("Error by minibatch", "rows of a minibatch", "RMSE, held out", by_minibatch).log_x(),
    ])
}

/// Errors after epochs over all rows, or on a CPU over a part of them.
fn whole(paper: &mut Paper<'_>, data: &Dataset) -> Result<()> {
    let device = paper.device().clone();
    let held_out = data.test.as_ref().context("the data must have test rows")?.to_tensor(&Device::Cpu)?;
    let all = data.train.n_samples();
    let n = if device.is_cpu() { all.min(CPU_ROWS) } else { all };
    let train = data.train.take(n)?;
    let mut rows = Vec::new();
    for batch in BATCHES {
        // A single row at a time is slow on a CPU, and shows no more.
        if device.is_cpu() && batch < BEST.1 || batch > n {
            continue;
        }
        let learned = learn(&device, batch, &train, WHOLE_EPOCHS, &held_out)?;
        for (epoch, (seconds, error)) in learned.iter().enumerate() {
            if [1, WHOLE_EPOCHS].contains(&(epoch + 1)) {
                rows.push(vec![
                    Cell::number(batch as f64, 0),
                    Cell::number((epoch + 1) as f64, 0),
                    Cell::seconds(*seconds),
                    Cell::number(error.rmse, 5),
                    Cell::number(error.squared_error, 3),
                    Cell::number(error.distance, 4),
                ]);
            }
        }
    }
    let heads = heads([
        "minibatch",
        "epochs",
        "training, s",
        "RMSE",
        "squared distance of a row",
        "distance of a row",
    ]);
    let notes = vec![format!(
        "{n} of {all} training rows of {}, all {} test rows, on {}. The serial program takes minutes an epoch here: its errors are in the table above.",
        data.name,
        held_out.dim(0)?,
        describe(&device)
    )];
    table(paper, "Figure 4, left, over the whole data set", &heads, rows, notes)
}

/// Test rows as values in [0, 1].
fn held_out(data: &Dataset) -> Result<Tensor> {
    let test = data.test.as_ref().context("the data must have test rows")?;
    Ok(test.take(test.n_samples().min(HELD_OUT))?.to_tensor(&Device::Cpu)?)
}

/// What the trainer learns.
fn learn(device: &Device, batch: usize, rows: &Split, epochs: usize, held_out: &Tensor) -> Result<Learned> {
    let mut trainer = trainer(SIZE, Precision::F32, batch, device)?;
    let mut feed = Feed::new(rows, device, FeedConfig::new(batch, 0))?;
    let mut stream = Stream::new(&mut feed)?;
    let held_out = held_out.to_device(device)?;
    let (mut learned, mut seconds) = (Vec::new(), 0.);
    for _ in 0..epochs {
        let start = Instant::now();
        stream.train(&mut trainer, rows.n_samples() / batch)?;
        device.synchronize()?;
        seconds += start.elapsed().as_secs_f64();
        learned.push((seconds, trainer.model()?.errors_prepared(&held_out, &held_out)?));
    }
    Ok(learned)
}

/// The same by the serial program.
fn learn_serially(rows: &[f32], epochs: usize, held_out: &Tensor) -> Result<Learned> {
    let mut serial = Serial::<f32>::of(&trainer(SIZE, Precision::F32, 1, &Device::Cpu)?.model()?)?;
    let (mut learned, mut seconds) = (Vec::new(), 0.);
    for epoch in 0..epochs as u64 {
        let start = Instant::now();
        serial_epoch(&mut serial, rows, (SIZE.n_visible, 1), &mut Philox::new(0, 10 + epoch));
        seconds += start.elapsed().as_secs_f64();
        learned.push((seconds, serial.dae(&Device::Cpu)?.errors_prepared(held_out, held_out)?));
    }
    Ok(learned)
}
