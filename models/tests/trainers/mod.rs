//! What holds for every trainer.
#![allow(clippy::expect_used)]
mod checkpoints;
mod few_rows;
mod fit;
mod schedules;
mod stack;

use candle::{DType, Device, Result, Tensor};
use chandlery::dae::{
    Dae, DaeConfig, DaeTrainConfig, DaeTrainer, StackedDae, StackedDaeConfig, StackedDaeTrainer,
};
use chandlery::datasets::{Feed, FeedConfig, ImageShape, Split};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, OnlineDictionaryTrainConfig,
    OnlineDictionaryTrainer,
};
use chandlery::feedforward::{Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::sparse_autoencoder::sae::{
    Kind, LossConfig, PairTrainer, Sae, SaeConfig, SaeTrainConfig, SaeTrainer,
};
use chandlery::sparse_autoencoder::{
    SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer,
};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery::tsne::{Embedding, TransformConfig, TransformTrainer, TsneConfig, TsneTrainer};
use chandlery::{MinibatchTrainer, Model, Philox, Preparation, Trainer};
use chandlery_ops::core::uniform;
use std::borrow::Borrow;
use std::path::Path;

const CPU: Device = Device::Cpu;
const BATCH: usize = 10;
const N: usize = 6;

fn cd() -> RbmTrainConfig {
    RbmTrainConfig { batch: BATCH, persistent: true, ..RbmTrainConfig::default() }
}

fn half() -> Result<Preparation> {
    Preparation::scale(0.5).map_err(candle::Error::wrap)
}

fn rbm() -> Result<RbmTrainer> {
    let lower = [Rbm::init(RbmConfig::new(N, 5), Philox::new(1, 0), &CPU)?];
    let rbm = Rbm::init(RbmConfig::new(5, 4), Philox::new(1, 1), &CPU)?;
    RbmTrainer::above(&lower, &rbm, &half()?, cd(), Philox::new(1, 2))
}

/// Two windows of 2 x 2 on 2 x 3 values.
fn patches() -> Result<RbmTrainer> {
    let config = RbmConfig::patches(PatchGrid::of_image(ImageShape::grey(2, 3), 2, 1), 4)?;
    let rbm = Rbm::init(RbmConfig { preparation: half()?, ..config }, Philox::new(8, 0), &CPU)?;
    RbmTrainer::new(&rbm, cd(), Philox::new(8, 1))
}

fn dbn() -> Result<DbnTrainer> {
    let config = DbnConfig { preparation: half()?, ..DbnConfig::new(&[N, 5, 4]) };
    let dbn = Dbn::init(config, Philox::new(2, 0), &CPU)?;
    let mut trainer = DbnTrainer::new(&dbn, vec![cd(), cd()], Philox::new(2, 1))?;
    trainer.next_layer()?;
    Ok(trainer)
}

fn feedforward() -> Result<FeedforwardTrainer> {
    let network = Feedforward::init(FeedforwardConfig::classifier(&[N, 5, 3]), Philox::new(3, 0), &CPU)?;
    let config = FeedforwardTrainConfig { batch: BATCH, ..FeedforwardTrainConfig::default() };
    FeedforwardTrainer::new(&network, config, Philox::new(3, 1))
}

fn labelled() -> Result<LabelledDbnTrainer> {
    let dbn = Dbn::init(DbnConfig::new(&[N, 5, 4]), Philox::new(4, 0), &CPU)?;
    let config = LabelledDbnTrainConfig { batch: BATCH, ..LabelledDbnTrainConfig::default() };
    LabelledDbnTrainer::new(&LabelledDbn::from_dbn(&dbn, 3)?, config, Philox::new(4, 1))
}

fn dae(tied: bool) -> Result<DaeTrainer> {
    let lower = [Dae::init(DaeConfig::new(N, 5), Philox::new(6, 0), &CPU)?];
    let dae = Dae::init(DaeConfig { tied, ..DaeConfig::new(5, 4) }, Philox::new(6, 1), &CPU)?;
    let config = DaeTrainConfig { batch: BATCH, momentum: 0.5.into(), ..DaeTrainConfig::default() };
    DaeTrainer::above(&lower, &dae, &half()?, config, Philox::new(6, 2))
}

fn stacked_dae() -> Result<StackedDaeTrainer> {
    let config = StackedDaeConfig { preparation: half()?, ..StackedDaeConfig::new(&[N, 5, 4]) };
    let stack = StackedDae::init(config, Philox::new(7, 0), &CPU)?;
    let training = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
    let mut trainer = StackedDaeTrainer::new(&stack, vec![training.clone(), training], Philox::new(7, 1))?;
    trainer.next_layer()?;
    Ok(trainer)
}

fn online() -> Result<OnlineDictionaryTrainer> {
    OnlineDictionaryTrainer::new(dictionary()?, OnlineDictionaryTrainConfig::default(), Philox::new(5, 1))
}

fn steps<T: MinibatchTrainer>(trainer: &mut T, steps: std::ops::Range<usize>) -> Result<()> {
    // The last minibatch of an epoch is not full.
    const ROWS: usize = 34;
    let rows = uniform((ROWS, N), &CPU, Philox::new(9, 0))?;
    let labels = Tensor::from_iter((0..ROWS as u32).map(|i| i % 3), &CPU)?;
    trainer.begin_epoch(0)?;
    for step in steps {
        let at = step % ROWS.div_ceil(BATCH) * BATCH;
        let n = BATCH.min(ROWS - at);
        trainer.step(&rows.narrow(0, at, n)?, Some(&labels.narrow(0, at, n)?))?;
    }
    Ok(())
}

fn first_line(error: candle::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// `values` gives what a model is.
fn keeps_the_contract<T: MinibatchTrainer>(
    name: &str,
    new: impl Fn() -> Result<T>,
    values: impl Fn(&T::Model) -> Result<Vec<f32>>,
) -> Result<&'static str> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    fit::of_minibatches(name, &new, &values, &path)?;
    let mut whole = new()?;
    let error = first_line(whole.metrics().err().expect("metrics without steps"));
    assert!(error.contains("steps since the last call must be at least 1, got 0"), "{name}: {error}");
    whole.check()?;
    let before = whole.model()?;
    let untrained = values(&before)?;
    steps(&mut whole, 0..20)?;
    whole.check()?; // leaves the metrics as they are
    let metrics = serde_json::to_value(whole.metrics()?).expect("numbers");
    assert_eq!(metrics["steps"].as_u64(), Some(20), "{name}: {metrics}");
    assert_eq!(whole.steps(), 20, "{name}");
    // A model that was handed out does not follow the training.
    assert_eq!(values(&before)?, untrained, "{name}: the copy changed");
    assert_ne!(values(&whole.model()?)?, untrained, "{name}: nothing was learned");
    for stop in [0, 1, 7] {
        let mut first = new()?;
        steps(&mut first, 0..stop)?;
        first.save(&path, &serde_json::json!(["progress", stop]))?;
        drop(first);
        let (mut second, progress) = T::load(&path, &CPU)?;
        assert_eq!(progress, serde_json::json!(["progress", stop]), "{name}");
        steps(&mut second, stop..20)?;
        assert!(
            values(&second.model()?)? == values(&whole.model()?)?,
            "{name}, stopped after {stop}: other values"
        );
        let resumed = serde_json::to_value(second.metrics()?).expect("numbers");
        for (field, want) in metrics.as_object().expect("fields") {
            let close = match (resumed[field].as_f64(), want.as_f64()) {
                (Some(got), Some(want)) => (got - want).abs() <= 1e-12 * want.abs(),
                (got, want) => got == want,
            };
            assert!(close, "{name}, stopped after {stop}: {field} is {} after {want}", resumed[field]);
        }
    }
    Ok(std::any::type_name::<T>())
}

fn flat(tensors: impl IntoIterator<Item = impl Borrow<Tensor>>) -> Result<Vec<f32>> {
    let flat = tensors.into_iter().map(|t| t.borrow().to_dtype(DType::F32)?.flatten_all()?.to_vec1());
    Ok(flat.collect::<Result<Vec<Vec<f32>>>>()?.concat())
}

fn dictionary() -> Result<Dictionary> {
    Dictionary::from_tensor(DictionaryConfig::new(8, N, 2), uniform((8, N), &CPU, Philox::new(5, 0))?)
}

fn sparse_coding() -> Result<SparseCodingTrainer> {
    let basis = uniform((8, N), &CPU, Philox::new(5, 2))?;
    let model = SparseCoding::from_tensor(SparseCodingConfig::new(8, N, 0.1), basis)?;
    SparseCodingTrainer::new(&model, SparseCodingTrainConfig::default(), Philox::new(5, 3))
}

fn sparse_autoencoder() -> Result<SparseAutoencoder> {
    SparseAutoencoder::init(SparseAutoencoderConfig::new(N, 4), Philox::new(12, 0), &CPU)
}

/// The names in `impl … WHAT for NAME` of the library's sources.
fn implementors(what: &str) -> Vec<String> {
    let (mut folders, mut names) = (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")], vec![]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(path).expect("a source");
            let of = |line: &str| {
                let (before, name) = line.strip_prefix("impl")?.split_once(" for ")?;
                let (_, last) = before.rsplit_once(' ')?;
                (last == what).then(|| name.trim_end_matches(" {").to_owned())
            };
            names.extend(text.lines().filter_map(of));
        }
    }
    names
}

/// A trainer of a model with latents, some of which die.
fn sae(config: SaeConfig) -> Result<SaeTrainer> {
    let loss = LossConfig { aux_k: 4, ..LossConfig::default() };
    let training = SaeTrainConfig { loss, batch: BATCH, dead_rows: 20, ..SaeTrainConfig::default() };
    SaeTrainer::new(&Sae::init(config, Philox::new(14, 0), &CPU)?, training, Philox::new(14, 1))
}

#[test]
fn every_trainer_keeps_the_contract() -> Result<()> {
    let rows = uniform((40, N), &CPU, Philox::new(9, 3))?;
    let of_stack =
        |layers: &[Rbm]| flat(layers.iter().flat_map(|rbm| rbm.tensors().into_iter().map(|(_, t)| t)));
    let tsne = TsneConfig { perplexity: 5., early_iterations: 60, iterations: 60, ..TsneConfig::default() };
    let kept = [
        keeps_the_contract("rbm", rbm, |rbm| flat(rbm.tensors().into_iter().map(|(_, t)| t)))?,
        keeps_the_contract("patches", patches, |rbm| flat(rbm.tensors().into_iter().map(|(_, t)| t)))?,
        keeps_the_contract("dbn", dbn, |dbn| of_stack(dbn.layers()))?,
        keeps_the_contract("feedforward", feedforward, |network| {
            flat(network.layers().iter().flat_map(|(weight, bias)| [weight, bias]))
        })?,
        keeps_the_contract("labelled", labelled, |dbn| {
            flat(dbn.tensors().iter().map(|(_, t)| t).collect::<Vec<_>>())
        })?,
        keeps_the_contract("dae", || dae(true), |dae| flat(dae.tensors().into_iter().map(|(_, t)| t)))?,
        keeps_the_contract(
            "untied dae",
            || dae(false),
            |dae| flat(dae.tensors().into_iter().map(|(_, t)| t)),
        )?,
        keeps_the_contract("stacked dae", stacked_dae, |stack| {
            flat(stack.layers().iter().flat_map(|dae| dae.tensors().into_iter().map(|(_, t)| t)))
        })?,
        keeps_the_contract("online", online, |dictionary| flat([dictionary.atoms()]))?,
        keeps_the_contract("sparse coding", sparse_coding, |model| flat([model.basis()]))?,
        keeps_the_contract(
            "sparse autoencoder",
            || {
                let config =
                    SparseAutoencoderTrainConfig { batch: BATCH, ..SparseAutoencoderTrainConfig::default() };
                SparseAutoencoderTrainer::new(&sparse_autoencoder()?, config)
            },
            |model| flat([&model.flat()?]),
        )?,
        keeps_the_contract(
            "sparse autoencoder of latents",
            || sae(SaeConfig::new(N, 16, Kind::TopK { k: 2 })),
            |model| flat(model.tensors().into_iter().map(|(_, t)| t)),
        )?,
        keeps_the_contract(
            "transcoder",
            || sae(SaeConfig::transcoder(N - 4, 16, 4, Kind::TopK { k: 2 })).map(PairTrainer::from),
            |model| flat(model.tensors().into_iter().map(|(_, t)| t)),
        )?,
        fit::of_all_rows(
            "sparse autoencoder by L-BFGS",
            &rows,
            [6, 9],
            || {
                let fit = SparseAutoencoderLbfgsTrainConfig {
                    iterations: 6,
                    ..SparseAutoencoderLbfgsTrainConfig::default()
                };
                SparseAutoencoderLbfgsTrainer::new(&sparse_autoencoder()?, fit, &rows)
            },
            |model| flat([&model.flat()?]),
        )?,
        fit::of_all_rows(
            "dictionary",
            &rows,
            [6, 9],
            || {
                let config = DictionaryTrainConfig { iterations: 6, ..DictionaryTrainConfig::default() };
                DictionaryTrainer::new(dictionary()?, &rows, config, Philox::new(5, 1))
            },
            |dictionary| flat([dictionary.atoms()]),
        )?,
        fit::of_all_rows(
            "t-SNE",
            &rows,
            [60, 90],
            || TsneTrainer::new(tsne.clone(), Philox::new(13, 0), &rows),
            |embedding| flat([embedding.layout()]),
        )?,
        fit::of_all_rows(
            "rows placed by t-SNE",
            &rows,
            [120, 150],
            || {
                let layout = (rows.narrow(1, 0, 2)?.contiguous()? * 20.)?;
                let of = Embedding::from_tensors(tsne.clone(), layout, Some(rows.clone()))?;
                let config = TransformConfig { iterations: 120, ..TransformConfig::default() };
                TransformTrainer::new(&of, config, &rows)
            },
            |points| flat([points]),
        )?,
    ];
    // Of `chandlery::a::b::Name<chandlery::c::D>` the names without their paths.
    let short = |name: &str| name.rsplit("::").next().unwrap_or(name).to_owned();
    let kept = kept.map(|name| match name.trim_end_matches('>').split_once('<') {
        Some((trainer, of)) => format!("{}<{}>", short(trainer), short(of)),
        None => short(name),
    });
    let simple = ["MinibatchTrainer", "FullBatchTrainer"].map(implementors).concat();
    let simple = simple.into_iter().filter(|name| name != "LayerwiseTrainer<L>");
    let stacks = implementors("StackLayer").into_iter().map(|layer| format!("LayerwiseTrainer<{layer}>"));
    let all: Vec<_> = simple.chain(stacks).collect();
    assert!(all.len() >= 12, "{all:?}");
    for trainer in &all {
        assert!(
            kept.contains(trainer),
            "{trainer} is not held to the contract: add it here; held are {kept:?}"
        );
    }
    Ok(())
}

#[test]
fn a_network_stops_by_the_error_of_held_out_rows_and_gives_its_best() -> Result<()> {
    let split = |n: u32, seed| {
        let rows = Split::from_tensors(&uniform((n as usize, N), &CPU, Philox::new(seed, 0))?, None);
        let labels = Some((0..n).map(|i| i % 3).collect());
        Ok::<_, candle::Error>(Split { labels, ..rows.map_err(candle::Error::wrap)? })
    };
    let (rows, held_out) = (split(34, 9)?, split(21, 10)?);
    let mut feed = Feed::new(&rows, &CPU, FeedConfig::new(BATCH, 5)).map_err(candle::Error::wrap)?;
    // Labels that are noise are learned by heart, and held-out ones are not.
    let (mut trainer, mut epochs) = (feedforward()?, 0);
    let best = trainer.fit_until(&mut feed, 100, &held_out, 3)?;
    let labels = held_out.labels_tensor(&CPU).map_err(candle::Error::wrap)?.expect("labels");
    let rows = held_out.raw(&CPU).map_err(candle::Error::wrap)?;
    assert_eq!(best.figure, best.model.errors(&rows, &labels)? as f64 / 21.);
    let made = trainer.steps() / 4;
    assert_eq!(made, best.epoch as u64 + 4, "three epochs after the best");
    // It is the model that training up to there gives.
    let mut again = feedforward()?;
    epochs += again.fit(&mut feed, best.epoch + 1)?.len();
    let values = |network: &Feedforward| flat(network.layers().iter().flat_map(|(w, b)| [w, b]));
    assert_eq!(epochs, best.epoch + 1);
    assert!(values(&again.model()?)? == values(&best.model)?);
    let unlabelled = Split { labels: None, ..held_out };
    let error = first_line(feedforward()?.fit_until(&mut feed, 1, &unlabelled, 3).expect_err("fitted"));
    assert_eq!(error, "FeedforwardTrainer::fit_until: held_out must have labels, got none");
    Ok(())
}

#[test]
fn a_dictionary_keeps_its_pursuit_unless_training_is_told_another() -> Result<()> {
    let rows = uniform((300, 16), &CPU, Philox::new(9, 4))?;
    let config = DictionaryConfig::new(32, 16, 4);
    let training = DictionaryTrainConfig { iterations: 2, ..DictionaryTrainConfig::default() };
    let learned = Dictionary::fit(config.clone(), &rows, training, Philox::new(5, 0))?;
    let mut online = OnlineDictionaryTrainer::new(
        learned.clone(),
        OnlineDictionaryTrainConfig::default(),
        Philox::new(5, 1),
    )?;
    online.step(&rows, None)?;
    for dictionary in [learned, online.model()?] {
        let folder = tempfile::tempdir()?;
        dictionary.save_pretrained(folder.path())?;
        let name = folder.path().display().to_string();
        assert_eq!(Dictionary::from_pretrained(&name, &chandlery::LoadOptions::default())?.config(), &config);
    }
    Ok(())
}

#[test]
fn weights_that_are_no_longer_finite_are_found_though_the_errors_are() -> Result<()> {
    // Huge weights saturate the units: reconstructions stay in [0, 1] while a weight overflows.
    let rbm = Rbm::init(RbmConfig::new(N, 4), Philox::new(1, 0), &CPU)?;
    let config = RbmTrainConfig { batch: BATCH, learning_rate: 3e38.into(), momentum: 0.9.into(), ..cd() };
    let mut trainer = RbmTrainer::new(&rbm, config, Philox::new(1, 1))?;
    let rows = Tensor::zeros((BATCH, N), DType::F32, &CPU)?.ones_like()?;
    for _ in 0..8 {
        trainer.step(&rows, None)?;
    }
    let error = first_line(trainer.check().expect_err("diverged"));
    assert!(error.starts_with("RbmTrainer: ") && error.contains("became"), "{error}");
    Ok(())
}
