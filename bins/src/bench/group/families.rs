//! What is timed of each family: a step, or all that is done with so many rows.
use super::super::patch_rbm::NETWORK;
use super::{GroupArgs, What, timed, timed_by};
use crate::layer_arg::{LayerArg, stacked};
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery::conv_rbm::ConvGrid;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer,
};
use chandlery::feedforward::{Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::rbm::likelihood::{Ais, AisConfig};
use chandlery::rbm::{self, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::sparse_autoencoder::sae::{Division, Kind, Sae, SaeConfig, SaeTrainConfig, SaeTrainer};
use chandlery::sparse_autoencoder::{
    SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer,
};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery::tsne::{TsneConfig, TsneTrainer};
use chandlery::{Encode, FullBatchTrainer, MinibatchTrainer, Model, Share, Trainer};
use chandlery_datasets::ImageShape;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::tsne::{Metric, knn_of};
use chandlery_ops::{Group, Philox};

/// Seconds on so many rows: those of all ranks.
type Seconds = fn(&GroupArgs, &Group, &Device, usize) -> Result<[f64; 3]>;

/// A line of the table.
pub(super) struct Case {
    pub what: What,
    pub family: &'static str,
    pub size: &'static str,
    /// Of one rank (weak scaling), or of all (strong).
    pub rows: usize,
    pub is_weak: bool,
    /// Most ranks that there is a part for.
    pub most_ranks: usize,
    pub seconds: Seconds,
}

const fn weak(what: What, family: &'static str, size: &'static str, rows: usize, seconds: Seconds) -> Case {
    Case { what, family, size, rows, is_weak: true, most_ranks: usize::MAX, seconds }
}

const fn strong(what: What, family: &'static str, size: &'static str, rows: usize, seconds: Seconds) -> Case {
    Case { is_weak: false, ..weak(what, family, size, rows, seconds) }
}

/// Layers of the network: 9.6 million weights.
const LAYERS: [usize; 5] = [784, 2000, 2000, 2000, 10];

/// All of them.
pub(super) const ALL: &[Case] = &[
    weak(What::Network, "network", "9.6 million", 192, network),
    weak(What::Network, "network", "9.6 million", 1024, network),
    weak(What::Network, "network", "9.6 million", 4096, network),
    weak(What::Network, "network", "9.6 million", 16_384, network),
    strong(What::Network, "network", "9.6 million", 192, network),
    strong(What::Network, "network", "9.6 million", 4096, network),
    strong(What::Rbm, "rbm", "2304x16000", 192, rbm::<2304, 16000>),
    strong(What::Rbm, "rbm", "4096x11008", 192, rbm::<4096, 11008>),
    strong(What::Rbm, "rbm", "4096x65536", 192, rbm::<4096, 65536>),
    weak(What::Rbm, "rbm by rows", "2304x16000", 192, rbm_by_rows::<2304, 16000>),
    weak(What::Rbm, "rbm by rows", "2304x16000", 1536, rbm_by_rows::<2304, 16000>),
    weak(What::Rbm, "rbm by rows", "4096x11008", 1536, rbm_by_rows::<4096, 11008>),
    weak(What::UpDown, "up-down", "784,500,500,2000", 192, up_down),
    weak(What::UpDown, "up-down", "784,500,500,2000", 4096, up_down),
    strong(What::UpDown, "up-down", "784,500,500,2000", 4096, up_down),
    strong(What::Patches, "patches of 24", "192x192", 192, patches::<192>),
    strong(What::Patches, "patches of 24", "144x144", 192, patches::<144>),
    // The third layer has three lines of windows.
    Case { most_ranks: 3, ..strong(What::Patches, "patches, 4 layers", "96 million", 192, patch_network) },
    strong(What::ConvRbm, "conv-rbm", "28x28, 40 of 12", 192, conv_rbm),
    weak(What::Dae, "dae", "4096x4096", 1024, dae),
    weak(What::Latents, "top-k latents", "1024x16384 of 32", 8192, latents),
    weak(What::Latents, "top-k latents", "1024x16384 of 32", 32_768, latents),
    strong(What::DividedLatents, "latents by rank", "768xN, 32 active", 4096, divided_latents),
    weak(What::SparseAutoencoder, "sparse autoencoder", "784x196", 60_000, all_rows),
    weak(What::SparseCoding, "sparse coding", "196x512", 4000, sparse_coding),
    weak(What::SparseCoding, "sparse coding", "196x512", 32_000, sparse_coding),
    weak(What::Dictionary, "online dictionary", "64x256 of 8", 4096, dictionary),
    weak(What::Dictionary, "online dictionary", "64x256 of 8", 65_536, dictionary),
    weak(What::Pursuit, "batch-omp", "64x256 of 8", 65_536, pursuit),
    weak(What::Pursuit, "its own codes", "64x256 of 8", 65_536, own_pursuit),
    weak(What::Encode, "encode", "784-2000-1000", 65_536, encode),
    weak(What::Ais, "AIS, chains", "784x2000", 1000, ais),
    weak(What::Neighbours, "queries of 90", "in 100000x128", 20_000, neighbours),
    strong(What::Tsne, "t-SNE", "1000000x128", 1_000_000, layout),
];

/// Seconds of a step on the same rows.
fn step<T: MinibatchTrainer>(
    args: &GroupArgs,
    mut trainer: T,
    rows: &Tensor,
    labels: Option<&Tensor>,
) -> Result<[f64; 3]> {
    let device = rows.device();
    let seconds = timed(args, device, || Ok(trainer.step(rows, labels)?))?;
    trainer.check()?;
    Ok(seconds)
}

fn network(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let network = Feedforward::init(FeedforwardConfig::classifier(&LAYERS), Philox::new(0, 0), device)?;
    let config =
        FeedforwardTrainConfig { batch, precision: args.precision, ..FeedforwardTrainConfig::default() };
    let trainer = FeedforwardTrainer::new(&network, config, Philox::new(0, 1))?.in_group(group)?;
    let rows = uniform((batch, LAYERS[0]), device, Philox::new(0, 2))?;
    let classes = LAYERS[LAYERS.len() - 1] as u32;
    let labels = Tensor::from_vec((0..batch as u32).map(|i| i % classes).collect(), batch, device)?;
    step(args, trainer, &rows, Some(&labels))
}

fn rbm<const VISIBLE: usize, const HIDDEN: usize>(
    args: &GroupArgs,
    group: &Group,
    device: &Device,
    batch: usize,
) -> Result<[f64; 3]> {
    dense_rbm([VISIBLE, HIDDEN], rbm::Division::Units, args, group, device, batch)
}

/// Every rank has all weights and its part of the rows.
fn rbm_by_rows<const VISIBLE: usize, const HIDDEN: usize>(
    args: &GroupArgs,
    group: &Group,
    device: &Device,
    batch: usize,
) -> Result<[f64; 3]> {
    dense_rbm([VISIBLE, HIDDEN], rbm::Division::Rows, args, group, device, batch)
}

fn dense_rbm(
    [visible, hidden]: [usize; 2],
    division: rbm::Division,
    args: &GroupArgs,
    group: &Group,
    device: &Device,
    batch: usize,
) -> Result<[f64; 3]> {
    let first = Rbm::init(RbmConfig::new(visible, hidden), Philox::new(0, 0), device)?;
    let config = RbmTrainConfig { batch, precision: args.precision, division, ..RbmTrainConfig::default() };
    let trainer = RbmTrainer::new(&first, config, Philox::new(0, 1))?;
    drop(first);
    step(args, trainer.in_group(group)?, &uniform((batch, visible), device, Philox::new(0, 2))?, None)
}

/// The network of Hinton, Osindero and Teh 2006, by the up-down algorithm.
fn up_down(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let (sizes, classes) = ([784, 500, 500, 2000], 10);
    let dbn = Dbn::init(DbnConfig::new(&sizes), Philox::new(0, 0), device)?;
    let dbn = LabelledDbn::from_dbn(&dbn, classes)?;
    let config =
        LabelledDbnTrainConfig { batch, precision: args.precision, ..LabelledDbnTrainConfig::default() };
    let trainer = LabelledDbnTrainer::new(&dbn, config, Philox::new(0, 1))?.in_group(group)?;
    let rows = uniform((batch, sizes[0]), device, Philox::new(0, 2))?;
    let labels = (0..batch as u32).map(|i| i % classes as u32).collect();
    step(args, trainer, &rows, Some(&Tensor::from_vec(labels, batch, device)?))
}

/// Seconds of a step of each layer, on top of those below it, one after another.
fn layers(
    args: &GroupArgs,
    group: &Group,
    device: &Device,
    batch: usize,
    layers: Vec<RbmConfig>,
) -> Result<[f64; 3]> {
    let config = DbnConfig { layers, ..DbnConfig::new(&[1, 1]) };
    let dbn = Dbn::init(config, Philox::new(0, 0), device)?;
    let config = RbmTrainConfig { batch, precision: args.precision, ..RbmTrainConfig::default() };
    let lowest = dbn.layers().first().context("there must be a layer")?;
    let rows = uniform((batch, lowest.config().n_visible), device, Philox::new(0, 2))?;
    let (preparation, mut all) = (&dbn.config().preparation, [0.; 3]);
    for (layer, rbm) in dbn.layers().iter().enumerate() {
        let (below, philox) = (&dbn.layers()[..layer], Philox::new(0, 3 + layer as u64));
        let trainer = RbmTrainer::above(below, rbm, preparation, config.clone(), philox)?;
        let seconds = step(args, trainer.in_group(group)?, &rows, None)?;
        all.iter_mut().zip(seconds).for_each(|(all, seconds)| *all += seconds);
    }
    Ok(all)
}

/// Patches of 24 x 24 pixels every 8, with 192 units each, of a square image.
fn patches<const SIDE: usize>(
    args: &GroupArgs,
    group: &Group,
    device: &Device,
    batch: usize,
) -> Result<[f64; 3]> {
    let image = ImageShape::grey(SIDE, SIDE);
    let layer = [LayerArg::Patch { window: 24, stride: 8, hidden: 192 }];
    layers(args, group, device, batch, stacked(&layer, image.n_features(), Some(image))?)
}

fn patch_network(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let (images, network) = NETWORK;
    let image = *images.first().context("there must be an image")?;
    layers(args, group, device, batch, stacked(network, image.n_features(), Some(image))?)
}

fn conv_rbm(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    // Maps of 17 x 17 places cannot be pooled by twos.
    let grid = ConvGrid::of_image(ImageShape::grey(28, 28), 12, 40);
    layers(args, group, device, batch, vec![RbmConfig::convolution(grid)?])
}

fn dae(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let dae = Dae::init(DaeConfig::new(4096, 4096), Philox::new(0, 0), device)?;
    let config = DaeTrainConfig { batch, precision: args.precision, ..DaeTrainConfig::default() };
    let trainer = DaeTrainer::new(&dae, config, Philox::new(0, 1))?.in_group(group)?;
    step(args, trainer, &uniform((batch, 4096), device, Philox::new(0, 2))?, None)
}

fn latents(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let (inputs, latents) = (1024, 16_384);
    let first = Sae::init(SaeConfig::new(inputs, latents, Kind::TopK { k: 32 }), Philox::new(0, 1), device)?;
    let config = SaeTrainConfig {
        precision: args.precision,
        batch,
        start_at_median: false,
        learning_rate: Some(1e-5),
        ..SaeTrainConfig::default()
    };
    let trainer = SaeTrainer::new(&first, config, Philox::new(0, 2))?.in_group(group)?;
    step(args, trainer, &normal((batch, inputs), device, Philox::new(0, 3))?, None)
}

/// Every rank has all rows and its part of the latents.
fn divided_latents(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let config = SaeTrainConfig {
        precision: args.precision,
        batch,
        start_at_median: false,
        division: Division::Latents,
        learning_rate: Some(1e-5),
        ..SaeTrainConfig::default()
    };
    let model = SaeConfig::new(768, args.latents_in_all, Kind::TopK { k: 32 });
    let trainer = SaeTrainer::init(model, config, [Philox::new(0, 1), Philox::new(0, 2)], group, device)?;
    step(args, trainer, &normal((batch, 768), device, Philox::new(0, 3))?, None)
}

/// An iteration of L-BFGS.
fn all_rows(args: &GroupArgs, group: &Group, device: &Device, n: usize) -> Result<[f64; 3]> {
    let config = SparseAutoencoderConfig::new(784, 196);
    let first = SparseAutoencoder::init(config, Philox::new(0, 0), device)?;
    let rows = (uniform((n, 784), device, Philox::new(0, 1))? * 0.8)?;
    let rows = (rows + 0.1)?;
    // Iterations enough for all timed runs.
    let fit = SparseAutoencoderLbfgsTrainConfig {
        iterations: 1_000_000,
        ..SparseAutoencoderLbfgsTrainConfig::default()
    };
    let mut trainer = SparseAutoencoderLbfgsTrainer::new(&first, fit, &rows)?.in_group(group)?;
    timed(args, device, || Ok(trainer.step().map(drop)?))
}

fn sparse_coding(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let (features, atoms) = (196, 512);
    let basis = normal((atoms, features), device, Philox::new(0, 0))?;
    let basis = basis.broadcast_div(&basis.sqr()?.sum_keepdim(1)?.sqrt()?)?;
    let model = SparseCoding::from_tensor(SparseCodingConfig::new(atoms, features, 1.), basis)?;
    let trainer = SparseCodingTrainer::new(&model, SparseCodingTrainConfig::default(), Philox::new(0, 1))?;
    step(args, trainer.in_group(group)?, &normal((batch, features), device, Philox::new(0, 2))?, None)
}

/// Atoms of length 1, and the dictionary of them.
fn atoms(device: &Device) -> Result<Dictionary> {
    let (n, p, nonzeros) = (256, 64, 8);
    let atoms = normal((n, p), device, Philox::new(0, 0))?;
    let atoms = atoms.broadcast_div(&atoms.sqr()?.sum_keepdim(1)?.sqrt()?)?;
    Ok(Dictionary::from_tensor(DictionaryConfig::new(n, p, nonzeros), atoms)?)
}

fn dictionary(args: &GroupArgs, group: &Group, device: &Device, batch: usize) -> Result<[f64; 3]> {
    let config = OnlineDictionaryTrainConfig::default();
    let trainer = OnlineDictionaryTrainer::new(atoms(device)?, config, Philox::new(0, 1))?;
    step(args, trainer.in_group(group)?, &normal((batch, 64), device, Philox::new(0, 2))?, None)
}

/// Each rank keeps the codes of its rows.
fn own_pursuit(args: &GroupArgs, group: &Group, device: &Device, n: usize) -> Result<[f64; 3]> {
    let dictionary = atoms(device)?;
    let own = normal((Share::new(group, n).rows().len(), 64), device, Philox::new(0, 2))?;
    timed(args, device, || Ok(dictionary.encode_prepared(&own).map(drop)?))
}

/// Codes of each rank's rows by the layers of a network, which it keeps.
fn encode(args: &GroupArgs, group: &Group, device: &Device, n: usize) -> Result<[f64; 3]> {
    let dbn = Dbn::init(DbnConfig::new(&[784, 2000, 1000]), Philox::new(0, 0), device)?;
    let own = uniform((Share::new(group, n).rows().len(), 784), device, Philox::new(0, 2))?;
    timed(args, device, || Ok(dbn.encode(&own).map(drop)?))
}

/// All temperatures of a run of 1000, its sums over the chains of all ranks with it.
fn ais(args: &GroupArgs, group: &Group, device: &Device, n_chains: usize) -> Result<[f64; 3]> {
    let rbm = Rbm::init(RbmConfig::new(784, 2000), Philox::new(0, 0), device)?;
    let config = AisConfig { n_chains, stages: AisConfig::stages(1000), ..AisConfig::default() };
    let ais = Ais::new(&rbm, &Tensor::zeros(784, DType::F64, device)?, config)?.in_group(group)?;
    timed_by(args, 1, device, || Ok(ais.forward(Philox::new(0, 1), &mut |_, _| {}).map(drop)?))
}

/// The nearest rows of each rank's queries among rows that all ranks have.
fn neighbours(args: &GroupArgs, group: &Group, device: &Device, n: usize) -> Result<[f64; 3]> {
    let rows = heaps(100_000, device)?;
    let own = normal((Share::new(group, n).rows().len(), 128), device, Philox::new(0, 3))?;
    timed(args, device, || Ok(knn_of(&own, &rows, 90, Metric::Euclidean).map(drop)?))
}

fn pursuit(args: &GroupArgs, group: &Group, device: &Device, n: usize) -> Result<[f64; 3]> {
    let (dictionary, share) = (atoms(device)?, Share::new(group, n));
    let own = normal((share.rows().len(), 64), device, Philox::new(0, 2))?;
    timed(args, device, || Ok(share.gathered_codes(&dictionary.encode_prepared(&own)?).map(drop)?))
}

/// A layout of all rows from the search to the last iteration, as `tsne` makes it by default, in one
/// call a run: it takes seconds.
fn layout(args: &GroupArgs, group: &Group, device: &Device, n: usize) -> Result<[f64; 3]> {
    let rows = heaps(n, device)?;
    let config = TsneConfig::default();
    timed_by(args, 1, device, || {
        let run = TsneTrainer::new_in_group(group, config.clone(), Philox::new(0, 0), &rows)?;
        Ok(run.in_group(group)?.fit().map(drop)?)
    })
}

/// Rows of 128 numbers in 100 heaps.
fn heaps(n: usize, device: &Device) -> Result<Tensor> {
    let (n_heaps, d) = (100, 128);
    let centres = (normal((n_heaps, d), device, Philox::new(0, 1))? * 3.)?;
    let own: Vec<u32> = (0..n).map(|i| (i % n_heaps) as u32).collect();
    Ok((gather_rows(&centres, &own)? + normal((n, d), device, Philox::new(0, 2))?)?)
}
