//! Contrastive divergence at the four sizes of Raina, Madhavan and Ng 2009, table 2.
use super::common::TimingArgs;
use super::contrastive::{CdArgs, MIN_STEPS, RUN_SECONDS};
use super::floor::{Gpu, RbmFloor};
use super::size::Size;
use super::table::{Column, Table, or_dash, share};
use super::timing::{Seconds, time_of_one};
use crate::device::describe;
use crate::precision::RbmPrecision;
use crate::report::Report;
use anyhow::Context;
use candle::{DType, Device, Tensor};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainer};
use chandlery_datasets::Split;
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::{Philox, Precision};
use clap::Args;
use serde::Serialize;

/// Options of `bench rbm`.
#[derive(Debug, Args)]
pub struct RbmArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Sizes, several separated by commas. Visible x hidden units.
    #[arg(
        long,
        value_name = "VxH,…",
        value_delimiter = ',',
        default_value = "576x1024,1024x4096,2304x16000,4096x11008"
    )]
    size: Vec<Size>,
    /// Precision of the matrix products; f32, tf32, bf16 or bf16-stochastic (bf16 weights without
    /// f32 masters), several separated by commas.
    #[arg(
        long,
        value_name = "PRECISION,…",
        value_delimiter = ',',
        default_value = "f32,tf32,bf16,bf16-stochastic"
    )]
    precision: Vec<RbmPrecision>,
    #[command(flatten)]
    cd: CdArgs,
}

/// Seconds for 1 million examples in minibatches of 192, as reported by others or as we measured
/// their programs.
struct Known {
    size: Size,
    /// The paper's GPU, a GTX 280.
    paper: f64,
    /// PyTorch on an H200 (updates in place, replayed as a CUDA graph, no momentum): f32, TF32,
    /// bf16 weights.
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
    /// On a GPU the lower bound of an H200, on a CPU the matrix products alone.
    floor_seconds: Option<f64>,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("size", -11, |row| row.size.clone()),
    Column("type", -15, |row| row.precision.to_owned()),
    Column("median s", 9, |row| format!("{:.3}", row.seconds)),
    Column("min s", 8, |row| format!("{:.3}", row.seconds_min)),
    Column("max s", 8, |row| format!("{:.3}", row.seconds_max)),
    Column("step us", 9, |row| format!("{:.1}", row.step_us)),
    Column("paper s", 9, |row| or_dash(row.paper_seconds, 3)),
    Column("PyTorch s", 9, |row| or_dash(row.pytorch_seconds, 3)),
    Column("floor s", 8, |row| or_dash(row.floor_seconds, 3)),
    Column("reached", 7, |row| share(row.floor_seconds, row.seconds)),
];

pub(super) fn run(args: &RbmArgs) -> anyhow::Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("{}, on {}", args.cd.words(), describe(&device)))?;
    let floor = match device {
        Device::Cpu => "the matrix products alone, timed in this run",
        _ => "of an H200",
    };
    report.line(&format!(
        "seconds for 1 million examples; PyTorch: CUDA graph on an H200, recorded; floor: {floor}",
    ))?;
    let mut table = Table::new(&report, COLUMNS)?;
    for size in &args.size {
        let split = args.cd.rows(size.n_visible)?;
        for precision in &args.precision {
            let row = measure(args, &device, *size, *precision, &split)
                .with_context(|| format!("{size} {}", precision.name()))?;
            table.add(row)?;
        }
    }
    table.finish()
}

fn measure(
    args: &RbmArgs,
    device: &Device,
    size: Size,
    precision: RbmPrecision,
    split: &Split,
) -> anyhow::Result<Row> {
    let config = RbmConfig::new(size.n_visible, size.n_hidden);
    let batch = args.cd.batch();
    let floor_seconds = match device {
        Device::Cpu => Some(products(&args.timing, size, (batch, args.cd.k()), precision.products)?),
        _ => args.cd.one_step().then(|| {
            RbmFloor::of(&config, &[], batch)
                .stored(precision.weights)
                .seconds(&Gpu::H200, precision.products)
        }),
    };
    let rbm = Rbm::init(config, Philox::new(0, 0), device)?;
    let mut trainer = RbmTrainer::new(&rbm, args.cd.config(precision), Philox::new(0, 1))?;
    drop(rbm);
    let Seconds { median, min, max } = args.cd.time(&mut trainer, split, device, &args.timing)?;
    let known = KNOWN.iter().find(|known| known.size == size && args.cd.of_paper());
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
        pytorch_seconds: known.map(|known| known.pytorch[precision.products as usize]),
        floor_seconds,
        device: describe(device),
    })
}

/// Seconds for 1 million examples of the matrix products of CD-k on the CPU, without units, biases
/// and updates of the weights.
fn products(
    common: &TimingArgs,
    size: Size,
    (batch, k): (usize, usize),
    precision: Precision,
) -> anyhow::Result<f64> {
    let device = Device::Cpu;
    let random = |rows: usize, cols: usize| Tensor::rand(-1f32, 1., (rows, cols), &device);
    let (visible, hidden) = (random(2 * batch, size.n_visible)?, random(2 * batch, size.n_hidden)?);
    let weight = random(size.n_hidden, size.n_visible)?;
    let (v, h) = (visible.narrow(0, 0, batch)?, hidden.narrow(0, 0, batch)?);
    let visible_pre = Tensor::zeros((batch, size.n_visible), DType::F32, &device)?;
    let hidden_pre = Tensor::zeros((batch, size.n_hidden), DType::F32, &device)?;
    let gradient = weight.zeros_like()?;
    let product = |out: &Tensor, a: &Tensor, b: &Tensor| gemm_(out, a, b, Factors::OVERWRITE, precision);
    let step = || -> candle::Result<()> {
        product(&hidden_pre, &v, &weight.t()?)?;
        for _ in 0..k {
            product(&visible_pre, &h, &weight)?;
            product(&hidden_pre, &v, &weight.t()?)?;
        }
        product(&gradient, &hidden.t()?, &visible)
    };
    let one = time_of_one(&device, common.repeats, (RUN_SECONDS, MIN_STEPS), |n| {
        Ok((0..n).try_for_each(|_| step())?)
    })?;
    Ok(one.median / batch as f64 * 1e6)
}
