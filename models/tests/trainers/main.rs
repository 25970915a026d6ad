//! What holds for every trainer.
#![allow(clippy::expect_used)]
mod fit;

use candle::{DType, Device, Result, Tensor};
use chandlery::checkpoint::verify;
use chandlery::dae::{
    Dae, DaeConfig, DaeTrainConfig, DaeTrainer, StackedDae, StackedDaeConfig, StackedDaeTrainer,
};
use chandlery::datasets::preparation::StepConfig;
use chandlery::datasets::{Feed, FeedConfig, ImageShape, Split};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, OnlineDictionaryTrainConfig,
    OnlineDictionaryTrainer,
};
use chandlery::feedforward::{
    Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer, Optimizer,
};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::schedule::Schedule;
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
use chandlery::{Epochs, Event, MinibatchTrainer, Model, Philox, Preparation, Trainer};
use chandlery_ops::Precision;
use chandlery_ops::core::uniform;
use std::borrow::Borrow;
use std::ops::ControlFlow;
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

/// Two steps on `FEW` rows by a trainer of minibatches of [`BATCH`] rows and by one of minibatches
/// of `FEW`: the same bits and figures.
fn fewer_rows_are_a_smaller_minibatch<T: MinibatchTrainer>(
    name: &str,
    new: impl Fn(usize) -> Result<T>,
    values: impl Fn(&T::Model) -> Result<Vec<f32>>,
) -> Result<()> {
    const FEW: usize = 7;
    let rows = uniform((2 * FEW, N), &CPU, Philox::new(10, 0))?;
    let labels = Tensor::from_iter((0..2 * FEW as u32).map(|i| i % 3), &CPU)?;
    let learned = |batch: usize| {
        let mut trainer = new(batch)?;
        trainer.begin_epoch(0)?;
        for at in [0, FEW] {
            trainer.step(&rows.narrow(0, at, FEW)?, Some(&labels.narrow(0, at, FEW)?))?;
        }
        let metrics = serde_json::to_value(trainer.metrics()?).expect("numbers");
        Ok::<_, candle::Error>((values(&trainer.model()?)?, metrics))
    };
    let ((got, figures), (want, wanted)) = (learned(BATCH)?, learned(FEW)?);
    assert!(got == want, "{name}: other values");
    for (field, want) in wanted.as_object().expect("fields") {
        let close = match (figures[field].as_f64(), want.as_f64()) {
            (Some(got), Some(want)) => (got - want).abs() <= 1e-12 * want.abs(),
            (got, want) => got == want,
        };
        assert!(close, "{name}: {field} is {}, not {want}", figures[field]);
    }
    let error = new(BATCH)?.step(&uniform((BATCH + 1, N), &CPU, Philox::new(0, 0))?, Some(&labels)).err();
    assert!(error.is_some_and(|e| first_line(e).contains("or fewer rows")), "{name}");
    Ok(())
}

#[test]
fn a_minibatch_that_is_not_full_is_one_of_its_own_size() -> Result<()> {
    let of_rbm = |model: &Rbm| flat([model.weight(), model.bias(), model.visible_bias()]);
    for k in [1, 2] {
        let cd = |batch| RbmTrainConfig {
            batch,
            k,
            persistent: false,
            momentum: 0.9.into(),
            ..RbmTrainConfig::default()
        };
        let plain = |batch| {
            let lower = [Rbm::init(RbmConfig::new(N, 5), Philox::new(1, 0), &CPU)?];
            let rbm = Rbm::init(RbmConfig::new(5, 4), Philox::new(1, 1), &CPU)?;
            RbmTrainer::above(&lower, &rbm, &half()?, cd(batch), Philox::new(1, 2))
        };
        fewer_rows_are_a_smaller_minibatch("rbm", plain, of_rbm)?;
        let patches = |batch| {
            let config = RbmConfig::patches(PatchGrid::of_image(ImageShape::grey(2, 3), 2, 1), 4)?;
            RbmTrainer::new(&Rbm::init(config, Philox::new(8, 0), &CPU)?, cd(batch), Philox::new(8, 1))
        };
        fewer_rows_are_a_smaller_minibatch("patches", patches, of_rbm)?;
        let learned = |batch| {
            let config = RbmConfig { visible: VisibleUnit::GaussianLearned, ..RbmConfig::new(N, 4) };
            RbmTrainer::new(&Rbm::init(config, Philox::new(8, 0), &CPU)?, cd(batch), Philox::new(8, 1))
        };
        fewer_rows_are_a_smaller_minibatch("learned variances", learned, of_rbm)?;
    }
    for optimizer in [Optimizer::Adam, Optimizer::Sgd] {
        let feedforward = |batch| {
            let network =
                Feedforward::init(FeedforwardConfig::classifier(&[N, 5, 3]), Philox::new(3, 0), &CPU)?;
            let config = FeedforwardTrainConfig {
                batch,
                optimizer,
                dropout: vec![0.2, 0.5],
                ..FeedforwardTrainConfig::default()
            };
            FeedforwardTrainer::new(&network, config, Philox::new(3, 1))
        };
        let values = |model: &Feedforward| flat(model.layers().iter().flat_map(|(w, b)| [w, b]));
        fewer_rows_are_a_smaller_minibatch("feedforward", feedforward, values)?;
    }
    let of_dae = |model: &Dae| flat(model.tensors().into_iter().map(|(_, t)| t));
    for (tied, momentum) in [(true, 0.), (true, 0.5), (false, 0.5)] {
        let dae = |batch| {
            let lower = [Dae::init(DaeConfig::new(N, 5), Philox::new(6, 0), &CPU)?];
            let dae = Dae::init(DaeConfig { tied, ..DaeConfig::new(5, 4) }, Philox::new(6, 1), &CPU)?;
            let config = DaeTrainConfig { batch, momentum: momentum.into(), ..DaeTrainConfig::default() };
            DaeTrainer::above(&lower, &dae, &half()?, config, Philox::new(6, 2))
        };
        fewer_rows_are_a_smaller_minibatch("dae", dae, of_dae)?;
    }
    let labelled = |batch| {
        let dbn = Dbn::init(DbnConfig::new(&[N, 5, 4]), Philox::new(4, 0), &CPU)?;
        let config = LabelledDbnTrainConfig { batch, persistent: false, ..LabelledDbnTrainConfig::default() };
        LabelledDbnTrainer::new(&LabelledDbn::from_dbn(&dbn, 3)?, config, Philox::new(4, 1))
    };
    let values = |model: &LabelledDbn| flat(model.top().tensors().into_iter().map(|(_, t)| t));
    fewer_rows_are_a_smaller_minibatch("labelled", labelled, values)
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
fn a_stack_is_fitted_layer_by_layer() -> Result<()> {
    let rows = Split::from_tensors(&uniform((34, N), &CPU, Philox::new(9, 0))?, None)
        .map_err(candle::Error::wrap)?;
    let mut feed = Feed::new(&rows, &CPU, FeedConfig::new(BATCH, 5)).map_err(candle::Error::wrap)?;
    let new = || {
        let config = DbnConfig { preparation: half()?, ..DbnConfig::new(&[N, 5, 4]) };
        let dbn = Dbn::init(config, Philox::new(2, 0), &CPU)?;
        DbnTrainer::new(&dbn, vec![cd(), cd()], Philox::new(2, 1))
    };
    let values = |trainer: &DbnTrainer| {
        let dbn = trainer.model()?;
        flat(dbn.layers().iter().flat_map(|rbm| rbm.tensors().into_iter().map(|(_, t)| t)))
    };
    let (mut fitted, mut looped, mut raw) = (new()?, new()?, new()?);
    let metrics = fitted.fit(&mut feed, &[2, 3])?;
    assert_eq!(metrics.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
    for (layer, epochs) in [2, 3].into_iter().enumerate() {
        // Each epoch has an order of its own.
        let of_layer = || Epochs { earlier: 2 * layer, ..epochs.into() };
        let mut made = looped.feed_of_layer(&feed)?;
        assert_eq!(made.as_ref().map(Feed::n_features), (layer == 1).then_some(5));
        MinibatchTrainer::fit(&mut looped, made.as_mut().unwrap_or(&mut feed), of_layer())?;
        assert_eq!(looped.next_layer()?, layer == 0);
        MinibatchTrainer::fit(&mut raw, &mut feed, of_layer())?;
        assert_eq!(raw.next_layer()?, layer == 0);
    }
    assert!(values(&fitted)? == values(&looped)?);
    // What the lower layer makes is the same for each minibatch, up to rounding.
    let far = values(&fitted)?.into_iter().zip(values(&raw)?).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
    assert!(far < 1e-5, "{far}");
    // One that is broken off goes on with the layer under way.
    let mut broken = new()?;
    let made = broken.fit_with(&mut feed, &[2, 3], |event| {
        let ends = matches!(event, Event::Epoch { epoch: 0, trainer, .. } if trainer.layer() == 1);
        Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    assert_eq!((made.iter().map(Vec::len).collect::<Vec<_>>(), broken.layer()), (vec![2, 1], 1));
    let path = std::env::temp_dir().join(format!("chandlery-stack-{}.safetensors", std::process::id()));
    broken.save(&path, &serde_json::Value::Null)?;
    let (mut broken, _) = DbnTrainer::load(&path, &CPU)?;
    std::fs::remove_file(&path)?;
    let Some(mut made) = broken.feed_of_layer(&feed)? else { candle::bail!("rows are on the device") };
    MinibatchTrainer::fit(&mut broken, &mut made, Epochs { earlier: 2, ..(1..3).into() })?;
    assert!(values(&broken)? == values(&fitted)?);
    // The same of rows that stream.
    let streamed = FeedConfig { resident_bytes: None, ..FeedConfig::new(BATCH, 5) };
    let mut streamed = Feed::new(&rows, &CPU, streamed).map_err(candle::Error::wrap)?;
    let mut from_stream = new()?;
    from_stream.fit(&mut streamed, &[2, 3])?;
    assert!(values(&from_stream)? == values(&fitted)?);
    // What reads states that are drawn anew is made anew in each step.
    let drawn = RbmTrainConfig { binarize: true, ..cd() };
    let dbn = Dbn::init(DbnConfig::new(&[N, 5, 4]), Philox::new(2, 0), &CPU)?;
    let mut drawn = DbnTrainer::new(&dbn, vec![drawn; 2], Philox::new(2, 1))?;
    assert!(drawn.next_layer()? && drawn.feed_of_layer(&feed)?.is_none());
    let error = first_line(new()?.fit(&mut feed, &[2]).expect_err("fitted"));
    assert_eq!(error, "DbnTrainer::fit: epochs must have one number for each of 2 layers, got 1");
    Ok(())
}

#[test]
fn a_schedule_is_followed_from_step_to_step_where_that_is_asked_for() -> Result<()> {
    let rows = Split::from_tensors(&uniform((34, N), &CPU, Philox::new(9, 0))?, None)
        .map_err(candle::Error::wrap)?;
    let mut feed = Feed::new(&rows, &CPU, FeedConfig::new(BATCH, 5)).map_err(candle::Error::wrap)?;
    let new = || {
        let config = RbmTrainConfig { learning_rate: Schedule::linear(0.4, 0., 2), ..cd() };
        RbmTrainer::new(&Rbm::init(RbmConfig::new(N, 4), Philox::new(1, 0), &CPU)?, config, Philox::new(1, 1))
    };
    let values = |trainer: &RbmTrainer| flat(trainer.model()?.tensors().into_iter().map(|(_, t)| t));
    let by_step = |range| Epochs { by_step: true, ..Epochs::from(range) };
    let (mut fitted, mut looped, mut by_epoch) = (new()?, new()?, new()?);
    fitted.fit(&mut feed, by_step(0..2))?;
    by_epoch.fit(&mut feed, 2)?;
    for epoch in 0..2u32 {
        feed.start_epoch(epoch.into(), 0).map_err(candle::Error::wrap)?;
        for step in 0..4u32 {
            let minibatch = feed.next().map_err(candle::Error::wrap)?.expect("a minibatch");
            looped.follow(f64::from(epoch) + f64::from(step) / 4.)?;
            looped.step(&minibatch.rows, None)?;
        }
    }
    assert!(values(&fitted)? == values(&looped)?);
    assert!(values(&fitted)? != values(&by_epoch)?);
    // From within an epoch on, too.
    let mut broken = new()?;
    broken.fit_with(&mut feed, by_step(0..2), |event| {
        let ends = matches!(event, Event::Steps { epoch: 1, minibatches: 3, .. });
        Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    broken.fit(&mut feed, Epochs { minibatches: 3, ..by_step(1..2) })?;
    assert!(values(&broken)? == values(&fitted)?);
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

/// Training in which the schedules come before epoch 1 is training that had them from the start.
/// `new` takes the momentum.
fn follows_the_schedules_of_a_longer_run<T: MinibatchTrainer>(
    name: &str,
    new: impl Fn(Schedule) -> Result<T>,
    set: impl Fn(&mut T, Schedule) -> Result<()>,
    values: impl Fn(&T::Model) -> Result<Vec<f32>>,
) -> Result<()> {
    let rows = uniform((BATCH, N), &CPU, Philox::new(9, 0))?;
    let labels = Tensor::from_iter((0..BATCH as u32).map(|i| i % 3), &CPU)?;
    let longer = Schedule::steps([(0, 0.5), (1, 0.9)]);
    let trained = |mut trainer: T, new: Option<&Schedule>| {
        for epoch in 0..2 {
            if epoch == 1
                && let Some(schedule) = new
            {
                set(&mut trainer, schedule.clone())?;
            }
            trainer.begin_epoch(epoch)?;
            (0..5).try_for_each(|_| trainer.step(&rows, Some(&labels)))?;
        }
        values(&trainer.model()?)
    };
    let from_the_start = trained(new(longer.clone())?, None)?;
    assert_ne!(trained(new(0.5.into())?, None)?, from_the_start, "{name}: the schedule changes nothing");
    assert_eq!(trained(new(0.5.into())?, Some(&longer))?, from_the_start, "{name}: another schedule");
    Ok(())
}

#[test]
fn a_run_that_is_extended_follows_its_new_schedules() -> Result<()> {
    for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
        let rbm = Rbm::init(RbmConfig::new(N, 4), Philox::new(1, 0), &CPU)?;
        let cd = |momentum| RbmTrainConfig { momentum, precision, ..cd() };
        follows_the_schedules_of_a_longer_run(
            &format!("rbm, {precision:?}"),
            |momentum| RbmTrainer::new(&rbm, cd(momentum), Philox::new(1, 1)),
            |trainer, momentum| trainer.set_schedules(&cd(momentum)),
            |rbm| flat(rbm.tensors().into_iter().map(|(_, t)| t)),
        )?;
    }
    let dbn = Dbn::init(DbnConfig::new(&[N, 5, 4]), Philox::new(2, 0), &CPU)?;
    let both = |momentum: Schedule| vec![RbmTrainConfig { momentum, ..cd() }; 2];
    follows_the_schedules_of_a_longer_run(
        "dbn",
        |momentum| DbnTrainer::new(&dbn, both(momentum), Philox::new(2, 1)),
        |trainer, momentum| trainer.set_schedules(&both(momentum)),
        |dbn| flat(dbn.layers().iter().flat_map(|rbm| rbm.tensors().into_iter().map(|(_, t)| t))),
    )?;
    let dae = Dae::init(DaeConfig::new(N, 4), Philox::new(6, 0), &CPU)?;
    let noise = |momentum| DaeTrainConfig { batch: BATCH, momentum, ..DaeTrainConfig::default() };
    follows_the_schedules_of_a_longer_run(
        "dae",
        |momentum| DaeTrainer::new(&dae, noise(momentum), Philox::new(6, 1)),
        |trainer, momentum| trainer.set_schedules(&noise(momentum)),
        |dae| flat(dae.tensors().into_iter().map(|(_, t)| t)),
    )?;
    let network = Feedforward::init(FeedforwardConfig::classifier(&[N, 5, 3]), Philox::new(3, 0), &CPU)?;
    let sgd = |momentum| {
        let optimizer = Optimizer::Sgd;
        FeedforwardTrainConfig { batch: BATCH, momentum, optimizer, ..FeedforwardTrainConfig::default() }
    };
    follows_the_schedules_of_a_longer_run(
        "feedforward",
        |momentum| FeedforwardTrainer::new(&network, sgd(momentum), Philox::new(3, 1)),
        |trainer, momentum| trainer.set_schedules(&sgd(momentum)),
        |network| flat(network.layers().iter().flat_map(|(weight, bias)| [weight, bias])),
    )?;
    let labelled = LabelledDbn::from_dbn(&dbn, 3)?;
    let up_down =
        |momentum| LabelledDbnTrainConfig { batch: BATCH, momentum, ..LabelledDbnTrainConfig::default() };
    follows_the_schedules_of_a_longer_run(
        "labelled",
        |momentum| LabelledDbnTrainer::new(&labelled, up_down(momentum), Philox::new(4, 1)),
        |trainer, momentum| trainer.set_schedules(&up_down(momentum)),
        |dbn| flat(dbn.tensors().iter().map(|(_, t)| t).collect::<Vec<_>>()),
    )
}

#[test]
fn a_resumed_autoencoder_knows_the_shape_of_its_images() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let rows = uniform((40, N), &CPU, Philox::new(9, 1))?;
    let pca = Preparation::fit_tensor(&rows, &[StepConfig::Pca { n_components: 3 }], 0);
    let pca = pca.map_err(candle::Error::wrap)?;
    // Images are of raw rows: of another size than what the autoencoder reads where the preparation
    // changes it.
    for (n_visible, preparation) in [(N, Preparation::default()), (3, pca)] {
        let image = Some(ImageShape::grey(2, 3));
        let config = DaeConfig { preparation: preparation.clone(), image, ..DaeConfig::new(n_visible, 4) };
        let dae = Dae::init(config.clone(), Philox::new(6, 0), &CPU)?;
        let training = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
        let resumed = |trainer: DaeTrainer| {
            trainer.save(&path, &serde_json::Value::Null)?;
            DaeTrainer::load(&path, &CPU)?.0.model()
        };
        let alone = resumed(DaeTrainer::new(&dae, training.clone(), Philox::new(6, 1))?)?;
        assert_eq!(alone.config(), &config);
        // The images of an autoencoder above others are not of what a checkpoint says it reads.
        let lower = [Dae::init(DaeConfig::new(N, n_visible), Philox::new(6, 2), &CPU)?];
        let philox = Philox::new(6, 1);
        let above = resumed(DaeTrainer::above(&lower, &dae, &half()?, training, philox)?)?;
        let image = config.image.filter(|_| n_visible == N);
        assert_eq!(above.config(), &DaeConfig { image, ..DaeConfig::new(n_visible, 4) });
    }
    Ok(())
}

#[test]
fn the_checkpoint_of_another_trainer_is_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    feedforward()?.save(&path, &serde_json::Value::Null)?;
    let refused = |error: Option<candle::Error>| first_line(error.expect("loaded"));
    let errors = [
        refused(RbmTrainer::load(&path, &CPU).err()),
        refused(DbnTrainer::load(&path, &CPU).err()),
        refused(LabelledDbnTrainer::load(&path, &CPU).err()),
        refused(OnlineDictionaryTrainer::load(&path, &CPU).err()),
        refused(DaeTrainer::load(&path, &CPU).err()),
        refused(StackedDaeTrainer::load(&path, &CPU).err()),
    ];
    let names = [
        "rbm",
        "deep-belief-network",
        "labelled-deep-belief-network",
        "online-dictionary",
        "denoising-autoencoder",
        "stacked-denoising-autoencoder",
    ];
    for (error, name) in errors.iter().zip(names) {
        let want = format!(
            "{}: not a checkpoint: it is of the trainer `feedforward`, wanted `{name}`",
            path.display()
        );
        assert_eq!(error, &want);
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_which_any_bit_has_changed_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    feedforward()?.save(&path, &serde_json::Value::Null)?;
    verify(&path)?;
    let bytes = std::fs::read(&path)?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).map_err(candle::Error::wrap)?;
    let sum = header.metadata().as_ref().and_then(|entries| entries.get("crc32")).expect("a checksum");
    assert_eq!(sum.len(), 8);
    let name = path.display().to_string();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged)?;
        let message = first_line(verify(&path).expect_err("accepted"));
        assert!(message.starts_with(&name), "byte {at}: {message}");
        assert!(FeedforwardTrainer::load(&path, &CPU).is_err(), "byte {at}");
    }
    for len in [0, 7, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len])?;
        assert!(verify(&path).is_err(), "{len} bytes");
    }
    let message = first_line(verify(&folder.path().join("none")).expect_err("accepted"));
    assert!(message.contains("none: cannot be read: "), "{message}");
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
