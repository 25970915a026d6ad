//! Contrastive divergence at the four sizes of Raina, Madhavan and Ng 2009, table 2.
use super::CommonArgs;
use super::floor::{Gpu, RbmFloor};
use super::size::Size;
use super::stream::{Stream, synthetic_rows};
use super::timing::{Seconds, time};
use crate::device::describe;
use crate::report::Report;
use anyhow::Context;
use candle::Device;
use chandlery::Trainer;
use chandlery::rbm::{CdConfig, Rbm, RbmConfig, RbmTrainer};
use chandlery::schedule::Schedule;
use chandlery_datasets::{Feed, FeedConfig, Split};
use chandlery_ops::{Philox, Precision};
use clap::Args;
use serde::Serialize;
use std::time::Instant;

/// Minibatches in host memory; each chunk of rows is copied to the device while the previous one is used.
const BATCHES: usize = 256;
/// A timed run lasts at least this long, or this many steps.
const RUN_SECONDS: f64 = 0.3;
const MIN_STEPS: usize = 10;

/// Options of `bench rbm`.
#[derive(Debug, Args)]
pub struct RbmArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Sizes (visible x hidden units), several separated by commas.
    #[arg(
        long,
        value_name = "VxH",
        value_delimiter = ',',
        default_value = "576x1024,1024x4096,2304x16000,4096x11008"
    )]
    size: Vec<Size>,
    /// Precision of the matrix products (f32, tf32, bf16), several separated by commas.
    #[arg(long, value_name = "P", value_delimiter = ',', default_value = "f32,tf32,bf16")]
    precision: Vec<Precision>,
    /// Rows per minibatch.
    #[arg(long, value_name = "N", default_value_t = 192, value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Gibbs steps per update (CD-k).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    k: u32,
    /// Momentum; a step with momentum reads and writes a velocity of the weights' size.
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0.9)]
    momentum: f64,
    /// L2 decay of the weights.
    #[arg(long, value_name = "DECAY", default_value_t = 2e-4)]
    l2: f64,
}

/// Seconds for 1 million examples in minibatches of 192, as reported by others or as we measured their programs.
struct Known {
    size: Size,
    /// The paper's GPU, a GTX 280.
    paper: f64,
    /// PyTorch on an H200 (updates in place, replayed as a CUDA graph, no momentum): f32, TF32, bf16 weights.
    pytorch: [f64; 3],
}

const KNOWN: [Known; 4] = [
    Known { size: Size { n_visible: 576, n_hidden: 1024 }, paper: 38.6, pytorch: [0.658, 0.329, 0.246] },
    Known { size: Size { n_visible: 1024, n_hidden: 4096 }, paper: 184., pytorch: [1.678, 0.623, 0.354] },
    Known { size: Size { n_visible: 2304, n_hidden: 16000 }, paper: 1376., pytorch: [10.51, 2.918, 1.412] },
    Known { size: Size { n_visible: 4096, n_hidden: 11008 }, paper: 1726., pytorch: [11.90, 3.372, 1.571] },
];

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    model: &'static str,
    size: String,
    precision: &'static str,
    batch: usize,
    /// Seconds for 1 million examples: the median, the fastest and the slowest run.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    /// Microseconds per step of `batch` examples.
    step_us: f64,
    paper_seconds: Option<f64>,
    /// PyTorch on an H200, measured earlier.
    pytorch_seconds: Option<f64>,
    /// Lower bound on an H200.
    floor_seconds: Option<f64>,
    device: String,
}

impl Row {
    fn table(&self) -> String {
        let optional = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.3}"));
        let share = self
            .floor_seconds
            .map_or("-".to_owned(), |floor| format!("{:.0} %", 100. * floor / self.seconds));
        format!(
            "{:<11} {:<5} {:>9.3} {:>8.3} {:>8.3} {:>9.1} {:>9} {:>9} {:>8} {:>7}",
            self.size,
            self.precision,
            self.seconds,
            self.seconds_min,
            self.seconds_max,
            self.step_us,
            optional(self.paper_seconds),
            optional(self.pytorch_seconds),
            optional(self.floor_seconds),
            share
        )
    }
}

pub(super) fn run(args: &RbmArgs) -> anyhow::Result<()> {
    let device = args.common.open_device()?;
    let report = Report::new(args.common.json);
    report.line(&format!(
        "CD-{} with momentum {} and L2 {}, minibatches of {}, byte rows streamed from host memory, on {}",
        args.k,
        args.momentum,
        args.l2,
        args.batch,
        describe(&device)
    ))?;
    report.line(
        "seconds for 1 million examples; PyTorch: CUDA graph on an H200, recorded; floor: of an H200",
    )?;
    report.line(&format!(
        "{:<11} {:<5} {:>9} {:>8} {:>8} {:>9} {:>9} {:>9} {:>8} {:>7}",
        "size", "type", "median s", "min s", "max s", "step us", "paper s", "PyTorch s", "floor s", "reached"
    ))?;
    let mut rows = Vec::new();
    for size in &args.size {
        let split = synthetic_rows(args.batch as usize * BATCHES, size.n_visible)?;
        for precision in &args.precision {
            let row = measure(args, &device, *size, *precision, &split)
                .with_context(|| format!("{size} {}", precision.name()))?;
            report.line(&row.table())?;
            rows.push(row);
        }
    }
    report.finish(&rows)
}

fn measure(
    args: &RbmArgs,
    device: &Device,
    size: Size,
    precision: Precision,
    split: &Split,
) -> anyhow::Result<Row> {
    let batch = args.batch as usize;
    let config = CdConfig {
        batch,
        k: args.k as usize,
        learning_rate: Schedule::constant(0.01),
        momentum: Schedule::constant(args.momentum),
        l2: args.l2,
        precision,
        ..CdConfig::default()
    };
    let mut feed =
        Feed::new(split, device, FeedConfig { resident_bytes: None, ..FeedConfig::new(batch, 0) })?;
    let rbm = Rbm::init(RbmConfig::new(size.n_visible, size.n_hidden), Philox::new(0, 0), device)?;
    let mut trainer = RbmTrainer::new(&rbm, config, Philox::new(0, 1))?;
    drop(rbm);
    let mut stream = Stream::new(&mut feed)?;

    // Enough steps that a run is long against the clock and against waiting for the device at its end.
    stream.train(&mut trainer, MIN_STEPS)?;
    device.synchronize()?;
    let start = Instant::now();
    stream.train(&mut trainer, MIN_STEPS)?;
    device.synchronize()?;
    let step = start.elapsed().as_secs_f64() / MIN_STEPS as f64;
    let steps = ((RUN_SECONDS / step).ceil() as usize).max(MIN_STEPS);

    let run = time(device, args.common.repeats, || stream.train(&mut trainer, steps))?;
    let error = trainer.metrics()?.reconstruction_error;
    tracing::debug!(%size, precision = precision.name(), steps, error, "timed");
    let Seconds { median, min, max } = run.times(1e6 / (steps * batch) as f64);
    let known = KNOWN.iter().find(|known| known.size == size && batch == 192 && args.k == 1);
    let floor = RbmFloor { n_visible: size.n_visible, n_hidden: size.n_hidden, batch };
    Ok(Row {
        model: "rbm",
        size: size.to_string(),
        precision: precision.name(),
        batch,
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        step_us: median * batch as f64,
        paper_seconds: known.map(|known| known.paper),
        pytorch_seconds: known.map(|known| known.pytorch[precision as usize]),
        floor_seconds: (args.k == 1).then(|| floor.seconds(&Gpu::H200, precision)),
        device: describe(device),
    })
}
