//! A convolution and both of its gradients.
use super::common::TimingArgs;
use super::floor::Gpu;
use super::table::{Column, Table, or_dash, share};
use super::timing::{Seconds, time_of_one};
use crate::device::describe;
use crate::options::at_least_one;
use crate::report::Report;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::images::{
    ConvolutionShape, Padding, convolution_, convolution_gradient_places, convolution_input_gradient_,
    convolution_weight_gradient_,
};
use chandlery_ops::layers::Factors;
use clap::Args;
use serde::Serialize;
use std::str::FromStr;

/// A timed run lasts about this long, or this many calls.
const RUN_SECONDS: f64 = 0.2;
const MIN_CALLS: usize = 3;

/// Options of `bench convolution`.
#[derive(Debug, Args)]
pub struct ConvolutionArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Sizes, several separated by commas. Height x width x channels of an image, filters, their
    /// side.
    #[arg(
        long,
        value_name = "HxWxC:N:SIZE",
        value_delimiter = ',',
        default_value = "128x128x1:32:16,56x56x24:32:10"
    )]
    size: Vec<Layer>,
    /// Rows of a minibatch. Here the images of a call.
    #[arg(long, value_name = "ROWS", default_value_t = 32, value_parser = at_least_one)]
    batch: usize,
    /// Zeros around the images, so that maps have their height and width.
    #[arg(long)]
    same: bool,
}

/// The sizes of a layer as options name them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer {
    image: (usize, usize, usize),
    n_filters: usize,
    size: usize,
}

impl Layer {
    fn shape(&self, padding: Padding) -> candle::Result<ConvolutionShape> {
        ConvolutionShape::new(self.image, self.n_filters, self.size, padding)
    }

    /// Terms of the sums of all maps of an image, without zeros around it.
    pub(super) fn terms(&self) -> f64 {
        let terms = |shape: ConvolutionShape| shape.n_hidden() as f64 * shape.filter_len() as f64;
        self.shape(Padding::Valid).map_or(0., terms)
    }
}

impl FromStr for Layer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |n: &str| n.parse().ok().filter(|n| (1..=65_536).contains(n));
        let parts: Option<Vec<usize>> = text.split(['x', ':']).map(number).collect();
        match (parts.as_deref(), text.split(':').count()) {
            (Some(&[height, width, channels, n_filters, size]), 3) => {
                Ok(Self { image: (height, width, channels), n_filters, size })
            }
            _ => Err(format!(
                "must be HEIGHTxWIDTHxCHANNELS:FILTERS:SIZE, such as 128x128x1:32:16, got {text}"
            )),
        }
    }
}

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (height, width, channels) = self.image;
        write!(f, "{height}x{width}x{channels}:{}:{}", self.n_filters, self.size)
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    size: String,
    batch: usize,
    padding: &'static str,
    /// What is computed: the maps, those of images and filters that come from the host each time (on
    /// a GPU), the gradient to the images or that to the weights.
    op: &'static str,
    /// Milliseconds of a call: the median, the fastest and the slowest run.
    ms: f64,
    ms_min: f64,
    ms_max: f64,
    /// Candle's conv2d of images with channels first, for the maps.
    candle_ms: Option<f64>,
    /// Arithmetic over the f32 peak of an H200.
    floor_ms: f64,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("size", -18, |row| row.size.clone()),
    Column("op", -9, |row| row.op.to_owned()),
    Column("median ms", 9, |row| format!("{:.4}", row.ms)),
    Column("min ms", 9, |row| format!("{:.4}", row.ms_min)),
    Column("max ms", 9, |row| format!("{:.4}", row.ms_max)),
    Column("candle ms", 10, |row| or_dash(row.candle_ms, 4)),
    Column("floor ms", 9, |row| format!("{:.4}", row.floor_ms)),
    Column("reached", 9, |row| share(Some(row.floor_ms), row.ms)),
];

pub(super) fn run(args: &ConvolutionArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    let padding = if args.same { Padding::Same } else { Padding::Valid };
    report.line(&format!(
        "a convolution of {} images and its gradients in f32, milliseconds a call, on {}",
        args.batch,
        describe(&device)
    ))?;
    report.line(
        "candle: its conv2d, channels first; transfers: maps of images and filters that are copied from the host each time; floor: FLOP over the \
         f32 peak of an H200",
    )?;
    let mut table = Table::new(&report, COLUMNS)?;
    for layer in &args.size {
        let rows = measure(args, &device, *layer, padding).with_context(|| layer.to_string())?;
        rows.into_iter().try_for_each(|row| table.add(row))?;
    }
    table.finish()
}

fn measure(args: &ConvolutionArgs, device: &Device, layer: Layer, padding: Padding) -> Result<Vec<Row>> {
    let calls = Calls::of(layer.shape(padding)?, args.batch, device)?;
    let Calls { shape, ref x, ref w, ref maps, .. } = calls;
    let repeats = args.timing.repeats;

    let of_candle = candles(x, w, shape)?;
    let candle = match of_candle {
        Some((x, w, pad)) => {
            let call = || {
                x.conv2d(&w, pad, 1, 1, 1)?;
                Ok(())
            };
            Some(timed(device, repeats, call)?.median)
        }
        None => None,
    };
    let of_maps = timed(device, repeats, || Ok(calls.maps()?))?;
    let transferred =
        (!device.is_cpu()).then(|| transferred(device, repeats, maps, [x, w], shape)).transpose()?;
    let of_images = timed(device, repeats, || Ok(calls.images()?))?;
    let of_weights = timed(device, repeats, || Ok(calls.weights()?))?;

    let flop = 2. * (args.batch * shape.n_hidden()) as f64 * shape.filter_len() as f64;
    let row = |op, seconds: Seconds, candle: Option<f64>| {
        let Seconds { median, min, max } = seconds.times(1e3);
        Row {
            model: "convolution",
            size: layer.to_string(),
            batch: args.batch,
            padding: if args.same { "same" } else { "valid" },
            op,
            ms: median,
            ms_min: min,
            ms_max: max,
            candle_ms: candle.map(|seconds| 1e3 * seconds),
            floor_ms: 1e3 * flop / Gpu::H200.f32_flops,
            device: describe(device),
        }
    };
    let mut rows = vec![row("maps", of_maps, candle)];
    rows.extend(transferred.map(|seconds| row("transfers", seconds, None)));
    rows.extend([row("images", of_images, None), row("weights", of_weights, None)]);
    Ok(rows)
}

/// Operands and results of a convolution and its gradients.
pub(super) struct Calls {
    shape: ConvolutionShape,
    x: Tensor,
    w: Tensor,
    hidden: Tensor,
    maps: Tensor,
    images: Tensor,
    gradient: Tensor,
    parts: Tensor,
}

impl Calls {
    /// Of random images, without zeros around them.
    pub(super) fn new(layer: Layer, batch: usize, device: &Device) -> Result<Self> {
        Self::of(layer.shape(Padding::Valid)?, batch, device)
    }

    fn of(shape: ConvolutionShape, batch: usize, device: &Device) -> Result<Self> {
        let draw = |rows: usize, cols: usize, stream| normal((rows, cols), device, Philox::new(0, stream));
        let x = draw(batch, shape.n_visible(), 0)?;
        let hidden = draw(batch, shape.n_hidden(), 1)?;
        let w = (draw(shape.n_filters, shape.filter_len(), 2)? * 0.1)?;
        let (maps, images, gradient) = (hidden.zeros_like()?, x.zeros_like()?, w.zeros_like()?);
        let places = convolution_gradient_places(device, shape, batch, DType::F32)?;
        let parts = Tensor::zeros((places, w.elem_count()), DType::F32, device)?;
        Ok(Self { shape, x, w, hidden, maps, images, gradient, parts })
    }

    fn maps(&self) -> candle::Result<()> {
        convolution_(&self.maps, &self.x, &self.w, self.shape)
    }

    fn images(&self) -> candle::Result<()> {
        convolution_input_gradient_(&self.images, &self.hidden, &self.w, self.shape)
    }

    fn weights(&self) -> candle::Result<()> {
        let Self { shape, x, hidden, gradient, parts, .. } = self;
        convolution_weight_gradient_(gradient, parts, x, hidden, *shape, Factors::OVERWRITE)
    }

    /// The maps and both gradients.
    pub(super) fn all(&self) -> candle::Result<()> {
        self.maps()?;
        self.images()?;
        self.weights()
    }
}

/// Seconds of the maps of images and filters that are copied from the host each time.
fn transferred(
    device: &Device,
    repeats: u32,
    maps: &Tensor,
    operands: [&Tensor; 2],
    shape: ConvolutionShape,
) -> Result<Seconds> {
    let [x, w] = operands.map(|t| t.to_device(&Device::Cpu));
    let (x, w) = (x?, w?);
    timed(device, repeats, || Ok(convolution_(maps, &x.to_device(device)?, &w.to_device(device)?, shape)?))
}

/// Images and weights with channels first, and the zeros on each side, where conv2d has as many on
/// both.
fn candles(x: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<Option<(Tensor, Tensor, usize)>> {
    let ConvolutionShape { height, width, channels, size, padding, .. } = shape;
    let pad = match padding {
        Padding::Valid => 0,
        Padding::Same if size % 2 == 1 => size / 2,
        Padding::Same => return Ok(None),
    };
    let first = |t: &Tensor, rows: usize, columns: usize| {
        t.reshape(((), rows, columns, channels))?.permute((0, 3, 1, 2))?.contiguous()
    };
    Ok(Some((first(x, height, width)?, first(w, size, size)?, pad)))
}

/// Seconds of one call.
fn timed(device: &Device, repeats: u32, call: impl Fn() -> Result<()>) -> Result<Seconds> {
    time_of_one(device, repeats, (RUN_SECONDS, MIN_CALLS), |n| (0..n).try_for_each(|_| call()))
}
