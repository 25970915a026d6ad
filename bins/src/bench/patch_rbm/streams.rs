//! Rows that stay on the device beside rows that stream to it from host memory and from a file:
//! what streaming costs, and what memory it takes.
use super::{Network, PatchRbmArgs, trainer};
use crate::bench::contrastive::MIN_STEPS;
use crate::bench::file_rows::FileRows;
use crate::bench::memory::{Memory, Watch};
use crate::bench::table::{Column, Table, or_dash};
use crate::bench::timing::Seconds;
use crate::device::describe;
use crate::layer_arg::LayerArg;
use crate::options::bytes;
use crate::precision::RbmPrecision;
use crate::report::{Outcome, Report, figure};
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::dbn::Dbn;
use chandlery_datasets::{Feed, FeedConfig, ImageShape, count};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Options of `--streams`.
#[derive(Debug, Args)]
pub(super) struct StreamsArgs {
    /// Compare rows in the device's memory with rows that stream to it, in place of the table. From
    /// host memory and from a mapped file, with seconds for 1 million examples and the memory of
    /// the process.
    #[arg(long)]
    streams: bool,
    /// Size of the file that --streams writes for each image and deletes at the end, such as 4GiB;
    /// rounded down to whole rows, and at least a minibatch.
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = bytes, requires = "streams")]
    file_bytes: usize,
    /// Folder for the file of --streams; default: the system's folder for temporary files.
    #[arg(long, value_name = "DIR", requires = "streams")]
    folder: Option<PathBuf>,
    /// Size of the chunks that are copied to the device: 64MiB, 500MB or a number of bytes. Of
    /// --streams; rounded down to whole minibatches, at least one.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = bytes, requires = "streams")]
    chunk_bytes: usize,
}

impl StreamsArgs {
    /// Whether the comparison is to take the place of the table.
    pub(super) fn asked(&self) -> bool {
        self.streams
    }

    fn folder(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Rows of the file.
    fn n_rows(&self, image: ImageShape, batch: usize) -> Result<usize> {
        let (n_features, most) = (image.n_features(), u32::MAX as usize);
        let n_rows = self.file_bytes / n_features;
        ensure!(
            (batch..=most).contains(&n_rows),
            "--file-bytes: must hold {batch} (a minibatch) to {most} rows, got {} for {} of {}",
            count(self.file_bytes, "byte"),
            count(n_rows, "row"),
            count(n_features, "byte")
        );
        Ok(n_rows)
    }
}

/// Where rows come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    /// The device's memory.
    Resident,
    /// Host memory, in chunks.
    Memory,
    /// A mapped file, in chunks.
    File,
}

impl Origin {
    const ALL: [Self; 3] = [Self::Resident, Self::Memory, Self::File];

    fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Memory => "memory",
            Self::File => "file",
        }
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    /// Height, width and channels of an image.
    image: String,
    /// The layer, as options name it.
    name: String,
    precision: &'static str,
    batch: usize,
    source: Origin,
    /// Bytes of all rows, and of a chunk.
    rows_bytes: usize,
    chunk_bytes: usize,
    /// Seconds for 1 million examples: the median, the fastest and the slowest run.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    /// Time above that of resident rows, by medians; none for these.
    cost_percent: Option<f64>,
    rows_per_second: f64,
    bytes_per_second: f64,
    #[serde(flatten)]
    memory: Memory,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("image", -11, |row| row.image.clone()),
    Column("layer", -16, |row| row.name.clone()),
    Column("type", -5, |row| row.precision.to_owned()),
    Column("rows", -8, |row| row.source.name().to_owned()),
    Column("median s", 9, |row| format!("{:.3}", row.seconds)),
    Column("min s", 8, |row| format!("{:.3}", row.seconds_min)),
    Column("max s", 8, |row| format!("{:.3}", row.seconds_max)),
    Column("cost", 8, |row| row.cost_percent.map_or("-".to_owned(), |cost| format!("{cost:.1} %"))),
    Column("rows/s", 9, |row| format!("{:.0}", row.rows_per_second)),
    Column("GB/s", 8, |row| figure(row.bytes_per_second / 1e9, 2)),
    Column("peak", 8, |row| or_dash(row.memory.peak_bytes.map(mib), 0)),
    Column("anonymous", 9, |row| or_dash(row.memory.anonymous_bytes.map(mib), 0)),
    Column("mapped", 8, |row| or_dash(row.memory.mapped_bytes.map(mib), 0)),
    Column("shared", 8, |row| or_dash(row.memory.shared_bytes.map(mib), 0)),
];

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Prints the table. Ctrl-C ends it after the line in work, so that the file is deleted.
pub(super) fn compare(args: &PatchRbmArgs, networks: &[Network]) -> Result<Outcome> {
    let (streams, batch) = (&args.streams, args.cd.batch());
    for network in networks {
        streams.n_rows(network.image, batch)?;
    }
    let folder = streams.folder();
    ensure!(
        folder.is_dir(),
        "--folder {}: there must be such a folder; make it or name another",
        folder.display()
    );
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!(
        "{}, rows of bytes in an order of its own for each epoch, on {}",
        args.cd.words_of_step(),
        describe(&device)
    ))?;
    report.line(&format!(
        "seconds for 1 million examples; resident: rows in the device's memory; memory: streamed from host memory; file: streamed from a mapped \
         file of {:.1} MiB in {}; chunks of {:.1} MiB; cost: above resident",
        mib(streams.file_bytes),
        folder.display(),
        mib(streams.chunk_bytes)
    ))?;
    report.line(
        "MiB of the process: peak: greatest resident set of these runs, with the pages of the file that the system leaves mapped; after a run: \
         anonymous: what the program itself holds, mapped: pages of files, shared: with drivers and others",
    )?;
    let mut table = Table::new(&report, COLUMNS)?;
    for network in networks {
        let image = network.image;
        let file = FileRows::write(&folder, (streams.n_rows(image, batch)?, image.n_features()))?;
        let dbn = network.init(&device)?;
        for &precision in &args.precision {
            for (layer, &name) in network.layers.iter().enumerate() {
                let mut resident = None;
                for source in Origin::ALL {
                    let at = || format!("{image} {name} {} {}", precision.name(), source.name());
                    let row =
                        measure(args, &device, (image, &dbn), (layer, name), precision, (source, &file));
                    let row = row.with_context(at)?;
                    let cost = |resident: f64| 100. * (row.seconds / resident - 1.);
                    let row = Row { cost_percent: resident.map(cost), ..row };
                    resident = resident.or(Some(row.seconds));
                    table.add(row)?;
                }
            }
        }
    }
    table.finish()?;
    Ok(Outcome::Done)
}

/// Times rows of one origin. They are made or mapped here and go with the end, so that no run
/// counts the memory of another.
fn measure(
    args: &PatchRbmArgs,
    device: &Device,
    (image, dbn): (ImageShape, &Dbn),
    (layer, name): (usize, LayerArg),
    precision: RbmPrecision,
    (source, file): (Origin, &FileRows),
) -> Result<Row> {
    let (batch, chunk_bytes) = (args.cd.batch(), args.streams.chunk_bytes);
    let mut watch = Watch::begin();
    let of_file = file.open()?;
    // On a GPU each run makes as many steps as the file has minibatches, wherever the rows come
    // from.
    let least = if device.is_cpu() { MIN_STEPS } else { MIN_STEPS.max(of_file.n_samples() / batch) };
    let rows = match source {
        Origin::Resident | Origin::Memory => args.cd.rows(image.n_features())?,
        Origin::File => of_file,
    };
    let config = FeedConfig {
        chunk_bytes,
        resident_bytes: (source == Origin::Resident).then_some(usize::MAX),
        ..FeedConfig::new(batch, 0)
    };
    let mut trainer = trainer(args, dbn, layer, precision)?;
    let mut feed = Feed::new(&rows, device, config)?;
    let runs = (args.timing.repeats, least);
    let Seconds { median, min, max } =
        args.cd.time_from(&mut feed, &mut trainer, device, runs, || watch.look())?;
    let rows_per_second = 1e6 / median;
    Ok(Row {
        model: "patch-rbm",
        image: image.to_string(),
        name: name.to_string(),
        precision: precision.name(),
        batch,
        source,
        rows_bytes: rows.size_bytes(),
        chunk_bytes,
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        cost_percent: None,
        rows_per_second,
        bytes_per_second: rows_per_second * image.n_features() as f64,
        memory: watch.greatest(),
        device: describe(device),
    })
}
