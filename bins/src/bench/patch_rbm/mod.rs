//! Contrastive divergence in layers of overlapping patches: table 3 of Raina, Madhavan and Ng 2009,
//! and their network of four layers.
mod streams;

use super::common::TimingArgs;
use super::contrastive::CdArgs;
use super::floor::{Gpu, RbmFloor};
use super::table::{Column, Table, or_dash, share};
use super::timing::Seconds;
use crate::device::describe;
use crate::layer_arg::{LayerArg, stacked};
use crate::options::image_shape;
use crate::precision::RbmPrecision;
use crate::report::{Outcome, Report};
use anyhow::{Context, Result};
use candle::Device;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::rbm::{RbmConfig, RbmTrainer};
use chandlery_datasets::ImageShape;
use chandlery_ops::Philox;
use clap::Args;
use serde::Serialize;
use streams::StreamsArgs;

/// Images and the layer of the paper's table 3.
const TABLE3: (&[ImageShape], &[LayerArg]) = (
    &[ImageShape::grey(144, 144), ImageShape::grey(192, 192)],
    &[LayerArg::Patch { window: 24, stride: 8, hidden: 192 }],
);

/// Image and layers of the paper's largest network: 25600-82944-8192-4608-1024 units, 96 million
/// parameters.
pub(super) const NETWORK: (&[ImageShape], &[LayerArg]) = (
    &[ImageShape::grey(160, 160)],
    &[
        LayerArg::Patch { window: 24, stride: 8, hidden: 256 },
        LayerArg::Patch { window: 4, stride: 2, hidden: 128 },
        LayerArg::Patch { window: 4, stride: 2, hidden: 512 },
        LayerArg::Dense(1024),
    ],
);

/// Options of `bench patch-rbm`.
#[derive(Debug, Args)]
pub struct PatchRbmArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Time the paper's network of four layers in place of its table 3: layers
    /// patch:24/8x256,patch:4/2x128,patch:4/2x512,dense:1024 on 160x160 images.
    #[arg(long)]
    network: bool,
    /// Shape of an image, HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS; several are separated by commas.
    /// Default: 144x144,192x192, or 160x160 with --network.
    #[arg(long, value_name = "SHAPE,…", value_delimiter = ',', value_parser = image_shape)]
    image: Vec<ImageShape>,
    /// Layers, lowest first. Named as by `dbn train`, each is timed on top of those before it;
    /// default: patch:24/8x192, or those of --network.
    #[arg(long, value_name = "LAYER,…", value_delimiter = ',')]
    layers: Vec<LayerArg>,
    /// Precision of the matrix products; f32, tf32, bf16 or bf16-stochastic, several separated by
    /// commas.
    #[arg(long, value_name = "PRECISION,…", value_delimiter = ',', default_value = "f32,tf32,bf16")]
    precision: Vec<RbmPrecision>,
    #[command(flatten)]
    cd: CdArgs,
    #[command(flatten)]
    streams: StreamsArgs,
}

/// Seconds for 1 million examples in minibatches of 192, as the paper has them.
struct Known {
    side: usize,
    /// Two cores.
    cpu: f64,
    /// A GTX 280.
    gpu: f64,
}

const KNOWN: [Known; 2] =
    [Known { side: 144, cpu: 32236., gpu: 3415. }, Known { side: 192, cpu: 65235., gpu: 6435. }];

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Row {
    model: &'static str,
    /// Height, width and channels of an image.
    image: String,
    /// Counted from 1, the lowest; none where the figures are sums over all layers.
    layer: Option<usize>,
    /// The layer, as options name it.
    name: String,
    n_visible: usize,
    n_hidden: usize,
    n_weights: usize,
    precision: &'static str,
    batch: usize,
    /// Seconds for 1 million examples: the median, the fastest and the slowest run.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    /// Microseconds per step of `batch` examples.
    step_us: f64,
    /// Of the paper's two CPU cores, and of its GPU.
    paper_cpu_seconds: Option<f64>,
    paper_seconds: Option<f64>,
    /// Lower bounds on an H200: by arithmetic, by the traffic of weights, and the larger of the
    /// two.
    floor_arithmetic_seconds: Option<f64>,
    floor_traffic_seconds: Option<f64>,
    floor_seconds: Option<f64>,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("image", -11, |row| row.image.clone()),
    Column("layer", -16, |row| row.name.clone()),
    Column("type", -5, |row| row.precision.to_owned()),
    Column("median s", 9, |row| format!("{:.3}", row.seconds)),
    Column("min s", 8, |row| format!("{:.3}", row.seconds_min)),
    Column("max s", 8, |row| format!("{:.3}", row.seconds_max)),
    Column("step us", 9, |row| format!("{:.1}", row.step_us)),
    Column("paper CPU s", 11, |row| or_dash(row.paper_cpu_seconds, 3)),
    Column("paper GPU s", 11, |row| or_dash(row.paper_seconds, 3)),
    Column("arithmetic", 10, |row| or_dash(row.floor_arithmetic_seconds, 3)),
    Column("traffic", 9, |row| or_dash(row.floor_traffic_seconds, 3)),
    Column("reached", 7, |row| share(row.floor_seconds, row.seconds)),
];

impl Row {
    /// The layers of a network, which are trained one after another; none where there is one layer.
    fn sum(rows: &[Self]) -> Option<Self> {
        let [first, _, ..] = rows else { return None };
        let last = rows.last().unwrap_or(first);
        let sum = |f: fn(&Self) -> f64| rows.iter().map(f).sum::<f64>();
        let least = |f: fn(&Self) -> Option<f64>| rows.iter().map(f).sum::<Option<f64>>();
        Some(Self {
            model: first.model,
            image: first.image.clone(),
            layer: None,
            name: "all layers".to_owned(),
            n_visible: first.n_visible,
            n_hidden: last.n_hidden,
            n_weights: rows.iter().map(|row| row.n_weights).sum(),
            precision: first.precision,
            batch: first.batch,
            seconds: sum(|row| row.seconds),
            seconds_min: sum(|row| row.seconds_min),
            seconds_max: sum(|row| row.seconds_max),
            step_us: sum(|row| row.step_us),
            paper_cpu_seconds: None,
            paper_seconds: None,
            floor_arithmetic_seconds: least(|row| row.floor_arithmetic_seconds),
            floor_traffic_seconds: least(|row| row.floor_traffic_seconds),
            floor_seconds: least(|row| row.floor_seconds),
            device: first.device.clone(),
        })
    }
}

/// An image and the layers of its network, by option and by configuration.
struct Network<'a> {
    image: ImageShape,
    layers: &'a [LayerArg],
    configs: Vec<RbmConfig>,
}

impl<'a> Network<'a> {
    fn new(image: ImageShape, layers: &'a [LayerArg]) -> Result<Self> {
        let configs =
            stacked(layers, image.n_features(), Some(image)).with_context(|| format!("--image {image}"))?;
        Ok(Self { image, layers, configs })
    }

    fn init(&self, device: &Device) -> Result<Dbn> {
        let config = DbnConfig { layers: self.configs.clone(), ..DbnConfig::new(&[1, 1]) };
        Dbn::init(config, Philox::new(0, 0), device).with_context(|| self.image.to_string())
    }
}

pub(super) fn run(args: &PatchRbmArgs) -> Result<Outcome> {
    let (images, layers) = if args.network { NETWORK } else { TABLE3 };
    let images: &[ImageShape] = if args.image.is_empty() { images } else { &args.image };
    let layers: &[LayerArg] = if args.layers.is_empty() { layers } else { &args.layers };
    // All that can be refused is refused before anything is timed.
    let networks: Vec<_> = images.iter().map(|&image| Network::new(image, layers)).collect::<Result<_>>()?;
    if args.streams.asked() {
        return streams::compare(args, &networks);
    }
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("{}, on {}", args.cd.words(), describe(&device)))?;
    report.line(
        "seconds for 1 million examples, which go up through the layers below in each step; arithmetic, traffic of weights: least seconds of an \
         H200; reached: share of the larger",
    )?;
    let mut table = Table::new(&report, COLUMNS)?;
    for network in &networks {
        let Network { image, layers, configs } = network;
        let rows = args.cd.rows(image.n_features())?;
        let dbn = network.init(&device)?;
        for &precision in &args.precision {
            let mut of_network = Vec::new();
            for (layer, name) in layers.iter().enumerate() {
                let seconds = trainer(args, &dbn, layer, precision)
                    .and_then(|mut trainer| args.cd.time(&mut trainer, &rows, &device, &args.timing))
                    .with_context(|| format!("{image} {name} {}", precision.name()))?;
                let row = row(args, *image, (*name, layer), configs, precision, seconds, &device);
                of_network.push(row.clone());
                table.add(row)?;
            }
            Row::sum(&of_network).into_iter().try_for_each(|sum| table.add(sum))?;
        }
    }
    table.finish()?;
    Ok(Outcome::Done)
}

/// Trains a layer on top of those below it.
fn trainer(args: &PatchRbmArgs, dbn: &Dbn, layer: usize, precision: RbmPrecision) -> Result<RbmTrainer> {
    let (below, rest) = dbn.layers().split_at(layer);
    let rbm = rest.first().context("there must be such a layer")?;
    let preparation = &dbn.config().preparation;
    let philox = Philox::new(0, 1 + layer as u64);
    Ok(RbmTrainer::above(below, rbm, preparation, args.cd.config(precision), philox)?)
}

fn row(
    args: &PatchRbmArgs,
    image: ImageShape,
    (name, layer): (LayerArg, usize),
    network: &[RbmConfig],
    precision: RbmPrecision,
    Seconds { median, min, max }: Seconds,
    device: &Device,
) -> Row {
    let (config, batch) = (&network[layer], args.cd.batch());
    let of_table = args.cd.of_paper() && layer == 0 && TABLE3.1 == [name];
    let known = KNOWN.iter().find(|known| of_table && image == ImageShape::grey(known.side, known.side));
    let floor = RbmFloor::of(config, &network[..layer], batch);
    let least = |seconds: f64| args.cd.one_step().then_some(seconds);
    Row {
        model: "patch-rbm",
        image: image.to_string(),
        layer: Some(layer + 1),
        name: name.to_string(),
        n_visible: config.n_visible,
        n_hidden: config.n_hidden,
        n_weights: floor.n_weights,
        precision: precision.name(),
        batch,
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        step_us: median * batch as f64,
        paper_cpu_seconds: known.map(|known| known.cpu),
        paper_seconds: known.map(|known| known.gpu),
        floor_arithmetic_seconds: least(floor.arithmetic(&Gpu::H200, precision.products)),
        floor_traffic_seconds: least(floor.memory(&Gpu::H200)),
        floor_seconds: least(floor.seconds(&Gpu::H200, precision.products)),
        device: describe(device),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_are_those_of_the_paper() {
        let sizes = |(images, layers): (&[ImageShape], &[LayerArg])| -> Vec<Vec<(usize, usize)>> {
            let of = |image: &ImageShape| stacked(layers, image.n_features(), Some(*image)).unwrap();
            images.iter().map(|i| of(i).iter().map(|l| (l.n_visible, l.n_hidden)).collect()).collect()
        };
        assert_eq!(sizes(TABLE3), [[(20736, 49152)], [(36864, 92928)]]);
        assert_eq!(sizes(NETWORK), [[(25600, 82944), (82944, 8192), (8192, 4608), (4608, 1024)]]);
        let names: Vec<String> = NETWORK.1.iter().map(LayerArg::to_string).collect();
        assert_eq!(names.join(","), "patch:24/8x256,patch:4/2x128,patch:4/2x512,dense:1024");
    }
}
