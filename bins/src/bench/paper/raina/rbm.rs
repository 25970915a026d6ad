//! Tables 1 to 3: contrastive divergence in RBMs and in layers of overlapping patches, and how the
//! speed-up grows with the size.
use super::super::{Cell, Paper, Table};
use super::images;
use super::printed::{Printed, TABLE1, TABLE2, TABLE3};
use super::rows::{ByPlace, at, ends, factor, headline, of_paper, of_places, over, speed_ups, with_gpu};
use super::seconds_of_one;
use crate::bench::patch_rbm::NETWORK;
use crate::bench::place::Place;
use crate::bench::stream::{Stream, synthetic_rows};
use crate::layer_arg::{LayerArg, stacked};
use anyhow::{Context, Result};
use candle::Device;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::patch_rbm::PatchGrid;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig, VisibleUnit};
use chandlery::schedule::Schedule;
use chandlery::{Preparation, Trainer};
use chandlery_datasets::patches::ImageSet;
use chandlery_datasets::{Feed, FeedConfig, Split};
use chandlery_ops::{Philox, Precision};
use std::sync::Arc;

/// Examples of a minibatch.
const BATCH: usize = 192;
/// Examples that times are for.
const MILLION: f64 = 1e6;
/// Host memory for rows, bytes, and minibatches, at least and at most.
const BYTES: usize = 128 << 20;
const BATCHES: (usize, usize) = (4, 64);

/// How a layer is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// As printed: real-valued visible units, sparsity, sampled reconstructions, no momentum and no
    /// decay; f32.
    Printed,
    /// As `bench rbm` does it: binary units, means as reconstructions, momentum and decay.
    Today(Precision),
}

impl Setting {
    fn visible(self) -> VisibleUnit {
        match self {
            Self::Printed => VisibleUnit::Gaussian,
            Self::Today(_) => VisibleUnit::Bernoulli,
        }
    }

    fn training(self, n_hidden: usize) -> RbmTrainConfig {
        let of_both = RbmTrainConfig { batch: BATCH, k: 1, ..RbmTrainConfig::default() };
        match self {
            Self::Printed => RbmTrainConfig {
                // Reconstructions are sums over all hidden units: larger layers diverge at lower
                // rates.
                learning_rate: Schedule::constant(0.5 / n_hidden as f64),
                momentum: Schedule::constant(0.),
                l2: 0.,
                sample_visible: true,
                sparsity: Some(SparsityConfig { target: 0.02, cost: 1., decay: 0. }),
                ..of_both
            },
            Self::Today(precision) => RbmTrainConfig {
                learning_rate: Schedule::constant(0.01),
                momentum: Schedule::constant(0.9),
                l2: 2e-4,
                precision,
                ..of_both
            },
        }
    }

    /// Rows of `side` × `side` pixels.
    fn rows(self, images: &Arc<ImageSet>, side: usize, batches: usize) -> Result<Split> {
        match self {
            Self::Printed => images::patches(images, side, batches * BATCH),
            Self::Today(_) => synthetic_rows(batches * BATCH, side * side),
        }
    }
}

/// Seconds for 1 million rows that stream from host memory.
fn seconds(trainer: &mut RbmTrainer, rows: &Split, device: &Device, repeats: u32) -> Result<f64> {
    let config = FeedConfig { resident_bytes: None, ..FeedConfig::new(BATCH, 0) };
    let mut feed = Feed::new(rows, device, config)?;
    let mut stream = Stream::new(&mut feed)?;
    let step = seconds_of_one(device, repeats, |n| stream.train(trainer, n))?;
    // Refuses what diverged.
    trainer.metrics()?;
    Ok(step * MILLION / BATCH as f64)
}

/// One layer on rows of `side` × `side` pixels, on each place; `None` where it is left out.
fn by_place(
    paper: &Paper,
    (places, images): (&[Place], &Arc<ImageSet>),
    (side, layer): (usize, &RbmConfig),
    setting: Setting,
) -> Result<Vec<Option<f64>>> {
    let most = if paper.quick() { BATCHES.0 } else { BATCHES.1 };
    let batches = (BYTES / (4 * BATCH * side * side)).clamp(BATCHES.0, most);
    let rows = setting.rows(images, side, batches)?;
    let config = RbmConfig { visible: setting.visible(), ..layer.clone() };
    let repeats = paper.repeats();
    let one = |place: &Place| {
        let of_gpu = matches!(setting, Setting::Today(precision) if precision != Precision::F32);
        if of_gpu && place.device.is_cpu() {
            return Ok(None);
        }
        place.run(|| {
            let device = &place.device;
            let rbm = Rbm::init(config.clone(), Philox::new(0, 0), device)?;
            let mut trainer = RbmTrainer::new(&rbm, setting.training(config.n_hidden), Philox::new(0, 1))?;
            drop(rbm);
            seconds(&mut trainer, &rows, device, repeats).map(Some)
        })
    };
    places.iter().map(one).collect()
}

/// The times of all sizes of a table.
struct Timed {
    printed: ByPlace,
    today: ByPlace,
    bf16: ByPlace,
}

impl Timed {
    /// `layers` by the side of their rows, of which `quick` are measured in a quick run.
    fn of(paper: &Paper, places: &[Place], layers: &[(usize, RbmConfig)], quick: usize) -> Result<Self> {
        let images = Arc::new(images::whitened()?);
        let measured = if paper.quick() { quick } else { layers.len() };
        let of = |setting| -> Result<ByPlace> {
            let one = |(i, (side, layer)): (usize, &(usize, RbmConfig))| match i < measured {
                true => by_place(paper, (places, &images), (*side, layer), setting)
                    .with_context(|| format!("{}x{} {setting:?}", layer.n_visible, layer.n_hidden)),
                false => Ok(vec![None; places.len()]),
            };
            layers.iter().enumerate().map(one).collect()
        };
        Ok(Self {
            printed: of(Setting::Printed)?,
            today: of(Setting::Today(Precision::F32))?,
            bf16: of(Setting::Today(Precision::Bf16))?,
        })
    }

    /// The same for other amounts of work, one factor for each column.
    fn times(self, factors: &[f64]) -> Self {
        let scaled = |times: ByPlace| -> ByPlace {
            let column = |(column, by): (Vec<Option<f64>>, &f64)| {
                column.into_iter().map(|seconds| seconds.map(|seconds| seconds * by)).collect()
            };
            times.into_iter().zip(factors).map(column).collect()
        };
        Self { printed: scaled(self.printed), today: scaled(self.today), bf16: scaled(self.bf16) }
    }

    /// Rows of a table, the paper's first.
    fn rows(&self, paper: &[Printed], places: &[Place]) -> Vec<Vec<Cell>> {
        let (last, before) = ends(places);
        let (fast, slow) = (at(&self.printed, last), at(&self.printed, before));
        let mut rows = of_paper(paper);
        rows.extend(of_places("as printed", places, &self.printed));
        rows.push(speed_ups(&format!("speed-up: {}", over(places)), &fast, &slow));
        rows.extend(of_places("today, f32", places, &self.today));
        if with_gpu(places) {
            rows.extend(of_places("today, bf16", &places[last..], &from(&self.bf16, last)));
            rows.push(speed_ups("best GPU over all cores", &at(&self.bf16, last), &slow));
        }
        let printed: Vec<_> = paper.iter().map(|one| Some(one.gpu)).collect();
        rows.push(speed_ups("ours as printed over the paper's GPU", &fast, &printed));
        rows
    }

    /// The factor of the last size, for the table of headlines.
    fn headline(&self, places: &[Place]) -> [Option<f64>; 2] {
        if !with_gpu(places) {
            return [None; 2];
        }
        let (last, before) = ends(places);
        let end = |times: &ByPlace, place| at(times, place).last().copied().flatten();
        let slow = end(&self.printed, before);
        let best = [end(&self.today, last), end(&self.bf16, last)].into_iter().flatten().reduce(f64::min);
        [factor(end(&self.printed, last), slow), factor(best, slow)]
    }
}

/// Times from one place on.
fn from(times: &ByPlace, place: usize) -> ByPlace {
    times.iter().map(|column| column.get(place..).unwrap_or_default().to_vec()).collect()
}

/// Tables 2 and 3, and the figure.
pub(super) fn tables(paper: &mut Paper) -> Result<()> {
    let places = paper.places()?;
    let layers =
        TABLE2.map(|([n_visible, n_hidden], _)| (n_visible.isqrt(), RbmConfig::new(n_visible, n_hidden)));
    let mut timed = None;
    if paper.wants("table-2") {
        let timed = timed.insert(Timed::of(paper, &places, &layers, 2)?);
        table2(paper, &places, timed)?;
    }
    if paper.wants("figure-speed-up") {
        let timed = match timed {
            Some(timed) => timed,
            None => Timed::of(paper, &places, &layers, 2)?,
        };
        figure(paper, &places, &layers, &timed)?;
    }
    if paper.wants("table-3") { table3(paper, &places) } else { Ok(()) }
}

const PRINTED_NOTE: &str = "As printed: Gaussian visible and binary hidden units, sparsity (target 0.02, weight 1, each minibatch by itself), \
                            CD-1 with drawn visible units, minibatches of 192, plain gradient steps in f32; patches of natural images, whitened by \
                            the filter of Olshausen and Field.";
const TODAY_NOTE: &str = "Today: binary units with means as reconstructions, momentum 0.9 and L2 decay of 2e-4 on byte rows, as bench rbm.";
const SCALED_NOTE: &str = "All times are those of steps of 192 examples, scaled to a million: a step costs the same whatever the examples are. \
                           A step that takes long on a CPU is timed once. Rows stream from host memory.";

/// A table of these columns, with its notes.
fn table(title: &str, columns: &[String], rows: Vec<Vec<Cell>>, more: &[&str]) -> Table {
    let heads: Vec<&str> = [""].into_iter().chain(columns.iter().map(String::as_str)).collect();
    let mut table = Table::new(title, &heads);
    rows.into_iter().for_each(|row| table.row(row));
    [PRINTED_NOTE, TODAY_NOTE, SCALED_NOTE].iter().chain(more).for_each(|note| table.note(*note));
    table
}

fn table2(paper: &mut Paper, places: &[Place], timed: &Timed) -> Result<()> {
    let columns = TABLE2.map(|([n_visible, n_hidden], _)| format!("{n_visible}x{n_hidden}"));
    let rows = timed.rows(&TABLE2.map(|(_, printed)| printed), places);
    paper.table(table(
        "Table 2: 1 million examples of an RBM, by visible x hidden units",
        &columns,
        rows,
        &["--quick leaves our times of the two large sizes out."],
    ))?;
    let [same, best] = timed.headline(places);
    let claim = "RBM 4096x11008: GPU over the fastest CPU";
    paper.headline(headline(claim, TABLE2[3].1.speedup, same, best));
    Ok(())
}

fn figure(paper: &mut Paper, places: &[Place], layers: &[(usize, RbmConfig)], timed: &Timed) -> Result<()> {
    let (last, before) = ends(places);
    let millions: Vec<f64> =
        layers.iter().map(|(_, layer)| (layer.n_visible * layer.n_hidden) as f64 / 1e6).collect();
    let curve = |name: String, factors: Vec<Option<f64>>| {
        Curve::new(name, millions.iter().zip(factors).filter_map(|(x, y)| Some((*x, y?))))
    };
    let slow = at(&timed.printed, before);
    let of = |times: &ByPlace| -> Vec<Option<f64>> {
        at(times, last).into_iter().zip(&slow).map(|(fast, slow)| factor(fast, *slow)).collect()
    };
    let mut curves = vec![
        curve("paper".to_owned(), TABLE2.iter().map(|row| Some(row.1.speedup)).collect()),
        curve("as printed".to_owned(), of(&timed.printed)),
    ];
    if with_gpu(places) {
        curves.push(curve("today, bf16".to_owned(), of(&timed.bf16)));
    }
    let panel = Panel::new("speed-up by size", "million weights", "times as fast", curves).log();
    let caption = format!("The speed-up of table 2 by the number of weights; ours: {}.", over(places));
    paper.figure("speed-up", &caption, &[panel])
}

/// The side of the images of a quick run of table 3.
const SMALL: usize = 64;

fn table3(paper: &mut Paper, places: &[Place]) -> Result<()> {
    let layer = |side: usize| RbmConfig::patches(PatchGrid::of_image([side, side, 1], 24, 8), 192);
    let (mut layers, mut columns, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for (side, _) in TABLE3 {
        let whole = layer(side)?;
        let measured = if paper.quick() { SMALL } else { side };
        let config = layer(measured)?;
        columns.push(format!("{}x{}", whole.n_visible, whole.n_hidden));
        scales.push(whole.n_hidden as f64 / config.n_hidden as f64);
        layers.push((measured, config));
    }
    let timed = Timed::of(paper, places, &layers, layers.len())?.times(&scales);
    let rows = timed.rows(&TABLE3.map(|(_, printed)| printed), places);
    paper.table(table(
        "Table 3: 1 million examples of overlapping patches, 24x24 pixels every 8, 192 hidden units each",
        &columns,
        rows,
        &["All patches of a layer are one grouped product. --quick times 36 patches on 64x64 pixels, scaled to 256 and 484: the products of patches are all of one size."],
    ))?;
    let [same, best] = timed.headline(places);
    let claim = "Overlapping patches 36864x92928: GPU over the fastest CPU";
    paper.headline(headline(claim, TABLE3[1].1.speedup, same, best));
    Ok(())
}

/// The layers of the paper's largest network.
fn network() -> Result<Vec<RbmConfig>> {
    let (images, layers): (_, &[LayerArg]) = NETWORK;
    let image = images.first().copied().context("the network must have an image")?;
    stacked(layers, image.n_features(), Some(image))
}

/// Seconds for 1 million examples in each layer of the network in turn, on a GPU.
fn network_seconds(device: &Device, repeats: u32, precision: Precision) -> Result<f64> {
    let layers = network()?;
    let n_inputs = layers.first().context("the network must have layers")?.n_visible;
    let rows = synthetic_rows(BATCHES.0 * BATCH, n_inputs)?;
    let dbn = Dbn::init(DbnConfig { layers, ..DbnConfig::new(&[1, 1]) }, Philox::new(0, 0), device)?;
    let mut total = 0.;
    for layer in 0..dbn.layers().len() {
        let (below, rest) = dbn.layers().split_at(layer);
        let rbm = rest.first().context("there must be such a layer")?;
        let (training, philox) =
            (Setting::Today(precision).training(rbm.config().n_hidden), Philox::new(0, 1 + layer as u64));
        let mut trainer = RbmTrainer::above(below, rbm, &Preparation::default(), training, philox)?;
        total += seconds(&mut trainer, &rows, device, repeats)?;
    }
    Ok(total)
}

/// Table 1: sizes of networks, and what the largest takes.
pub(super) fn table1(paper: &mut Paper) -> Result<()> {
    if !paper.wants("table-1") {
        return Ok(());
    }
    let millions = network()?.iter().map(RbmConfig::n_parameters).sum::<usize>() as f64 / 1e6;
    let repeats = paper.repeats();
    let mut hours = [None; 2];
    for place in paper.places()?.iter().filter(|place| !place.device.is_cpu()) {
        let of = |precision| {
            place
                .run(|| network_seconds(&place.device, repeats, precision))
                .map(|seconds| Some(seconds / 3600.))
        };
        hours = [of(Precision::F32)?, of(Precision::Bf16)?];
    }
    let hour = |x: Option<f64>| Cell::or_none(x, |x| Cell::number(x, 3));
    let mut table = Table::new(
        "Table 1: millions of parameters of deep belief networks, and GPU hours for 1 million examples in each layer of the largest",
        &["source", "application", "paper, millions", "ours, millions", "f32 hours", "bf16 hours"],
    );
    for (i, &(source, application, printed)) in TABLE1.iter().enumerate() {
        let ours = i + 1 == TABLE1.len();
        table.row(vec![
            Cell::text(source),
            Cell::text(application),
            Cell::number(printed, 1),
            Cell::or_none(ours.then_some(millions), |x| Cell::number(x, 1)),
            hour(hours[0].filter(|_| ours)),
            hour(hours[1].filter(|_| ours)),
        ]);
    }
    table.note(
        "Our model: 25600-82944-8192-4608-1024 units in overlapping patches; `bench patch-rbm --network` has its layers one by one. The paper \
         learns it in about a day, it does not say from how many examples; its 100 million are rounded from the 96 million of its text.",
    );
    paper.table(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_network_has_the_parameters_of_the_text() -> Result<()> {
        let sizes: Vec<_> = network()?.iter().map(|layer| (layer.n_visible, layer.n_hidden)).collect();
        assert_eq!(sizes, [(25600, 82944), (82944, 8192), (8192, 4608), (4608, 1024)]);
        let millions = network()?.iter().map(RbmConfig::n_parameters).sum::<usize>() as f64 / 1e6;
        assert!((millions - 96.).abs() < 1., "{millions}");
        Ok(())
    }

    #[test]
    fn both_settings_train_a_small_layer() -> Result<()> {
        let images = Arc::new(images::whitened()?);
        for setting in [Setting::Printed, Setting::Today(Precision::F32)] {
            let rows = setting.rows(&images, 5, 4)?;
            let config = RbmConfig { visible: setting.visible(), ..RbmConfig::new(25, 7) };
            let rbm = Rbm::init(config.clone(), Philox::new(0, 0), &Device::Cpu)?;
            let mut trainer = RbmTrainer::new(&rbm, setting.training(config.n_hidden), Philox::new(0, 1))?;
            assert!(seconds(&mut trainer, &rows, &Device::Cpu, 1)? > 0., "{setting:?}");
        }
        let training = Setting::Printed.training(7);
        assert!(training.sample_visible && training.sparsity.is_some() && training.l2 == 0.);
        Ok(())
    }
}
