//! Thousands of damaged models and checkpoints: each is loaded, or refused by a line that names its
//! folder, in bounded time and memory.
//!
//! `CHANDLERY_MUTANTS=20000 cargo test --workspace --test model_files` makes more of them; see
//! `mutants.rs`.
#[path = "../datasets/tests/common/gauge.rs"]
mod gauge;
#[path = "../datasets/tests/common/mutants.rs"]
mod mutants;

use candle::{DType, Device, Result, Tensor};
use chandlery::datasets::preparation::{Preparation, StepConfig};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer,
};
use chandlery::feedforward::{Feedforward, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::pretrained::model_type;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::sparse_autoencoder::{
    Decoder, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer,
};
use chandlery::{
    Decode, Encode, FullBatchTrainer, Layered, LoadOptions, MinibatchTrainer, Model, Philox, Trainer,
};
use chandlery_ops::core::{normal, uniform};
use mutants::{Whole, campaign, sealed};
use serde_json::Value;
use std::path::Path;

#[global_allocator]
static GAUGE: gauge::Gauge = gauge::Gauge;

const CPU: Device = Device::Cpu;
/// Mutants of a plain `cargo test`: some seconds.
const MUTANTS: u64 = 3_000;
/// Values in a row, and rows of a minibatch.
const N: usize = 6;
const BATCH: usize = 4;

#[test]
fn no_damaged_model_ends_the_program_or_goes_unnamed() -> Result<()> {
    let mut wholes = models()?;
    wholes.extend(checkpoints()?);
    campaign("no_damaged_model_ends_the_program_or_goes_unnamed", &wholes, MUTANTS, load);
    Ok(())
}

/// Loads what the name of the folder or file says, and uses it.
fn load(folder: &Path, whole: &Whole) -> std::result::Result<(), String> {
    let path = folder.join(&whole.spec);
    let name = path.display().to_string();
    let rows = Tensor::ones((1, N), DType::F32, &CPU).map_err(|e| e.to_string())?;
    let step = Tensor::ones((BATCH, N), DType::F32, &CPU).map_err(|e| e.to_string())?;
    let labels = Tensor::zeros(BATCH, DType::U32, &CPU).map_err(|e| e.to_string())?;
    let result = match whole.spec.as_str() {
        "rbm" => Rbm::from_pretrained(&name, &LoadOptions::default()).map(drop),
        "dbn" => Dbn::from_pretrained(&name, &LoadOptions::default()).map(drop),
        "labelled" => LabelledDbn::from_pretrained(&name, &LoadOptions::default()).map(drop),
        "feedforward" => Feedforward::from_pretrained(&name, &LoadOptions::default()).map(drop),
        "dictionary" => Dictionary::from_pretrained(&name, &LoadOptions::default()).map(drop),
        "sparse-autoencoder" => SparseAutoencoder::from_pretrained(&name, &LoadOptions::default()).map(drop),
        "sparse-autoencoder.safetensors" => SparseAutoencoderTrainer::load(&path, &CPU).map(drop),
        "sparse-autoencoder-run.safetensors" => {
            SparseAutoencoderLbfgsTrainer::load(&path, &step, &CPU).map(drop)
        }
        "rbm.safetensors" => RbmTrainer::load(&path, &CPU).map(drop),
        "dbn.safetensors" => DbnTrainer::load(&path, &CPU).map(drop),
        "labelled.safetensors" => LabelledDbnTrainer::load(&path, &CPU).map(drop),
        "feedforward.safetensors" => FeedforwardTrainer::load(&path, &CPU).map(drop),
        _ => OnlineDictionaryTrainer::load(&path, &CPU).map(drop),
    };
    if path.is_dir() {
        let _ = model_type(&name);
    }
    // What was loaded is used: an error is one of the rows, not of the file.
    match whole.spec.as_str() {
        "dbn" => {
            drop(Dbn::from_pretrained(&name, &LoadOptions::default()).and_then(|dbn| dbn.all_features(&rows)))
        }
        "dictionary" => {
            drop(Dictionary::from_pretrained(&name, &LoadOptions::default()).and_then(|d| d.encode(&rows)))
        }
        "feedforward" => {
            drop(Feedforward::from_pretrained(&name, &LoadOptions::default()).and_then(|n| n.predict(&rows)))
        }
        "sparse-autoencoder" => drop(
            SparseAutoencoder::from_pretrained(&name, &LoadOptions::default())
                .and_then(|m| m.reconstruct(&rows)),
        ),
        "sparse-autoencoder.safetensors" => used(SparseAutoencoderTrainer::load(&path, &CPU), &step, None),
        "sparse-autoencoder-run.safetensors" => {
            if let Ok((mut run, _)) = SparseAutoencoderLbfgsTrainer::load(&path, &step, &CPU) {
                drop(run.step());
            }
        }
        "rbm.safetensors" => used(RbmTrainer::load(&path, &CPU), &step, None),
        "labelled.safetensors" => used(LabelledDbnTrainer::load(&path, &CPU), &step, Some(&labels)),
        _ => {}
    }
    result.map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())
}

fn used<T: MinibatchTrainer>(loaded: Result<(T, Value)>, rows: &Tensor, labels: Option<&Tensor>) {
    if let Ok((mut trainer, _)) = loaded {
        let _ = trainer.begin_epoch(0).and_then(|()| trainer.step(rows, labels));
        let _ = trainer.check();
    }
}

fn preparation() -> Result<Preparation> {
    let rows = uniform((20, N), &CPU, Philox::new(1, 0))?;
    let steps = [StepConfig::RowMean, StepConfig::Pca { n_components: 3 }];
    Preparation::fit_tensor(&rows, &steps, 0).map_err(candle::Error::wrap)
}

fn rbm() -> Result<Rbm> {
    let visible = VisibleUnit::GaussianLearned;
    Rbm::init(
        RbmConfig { visible, preparation: preparation()?, ..RbmConfig::new(3, 2) },
        Philox::new(1, 0),
        &CPU,
    )
}

fn dbn() -> Result<Dbn> {
    Dbn::init(
        DbnConfig { image: Some([2, 3, 1].into()), ..DbnConfig::new(&[N, 4, 3]) },
        Philox::new(2, 0),
        &CPU,
    )
}

fn dictionary() -> Result<Dictionary> {
    let config = DictionaryConfig { preparation: preparation()?, ..DictionaryConfig::new(5, 3, 2) };
    Dictionary::from_tensor(config, normal((5, 3), &CPU, Philox::new(3, 0))?)
}

fn sparse_autoencoder() -> Result<SparseAutoencoder> {
    let config = SparseAutoencoderConfig {
        decoder: Decoder::Linear,
        preparation: preparation()?,
        ..SparseAutoencoderConfig::new(3, 4)
    };
    SparseAutoencoder::init(config, Philox::new(6, 0), &CPU)
}

/// Each model twice: its configuration damaged, and its weights.
fn models() -> Result<Vec<Whole>> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    rbm()?.save_pretrained(at("rbm"))?;
    dbn()?.save_pretrained(at("dbn"))?;
    LabelledDbn::from_dbn(&dbn()?, 2)?.save_pretrained(at("labelled"))?;
    Feedforward::from_dbn(&dbn()?, 2)?.save_pretrained(at("feedforward"))?;
    dictionary()?.save_pretrained(at("dictionary"))?;
    sparse_autoencoder()?.save_pretrained(at("sparse-autoencoder"))?;
    let mut wholes = Vec::new();
    for name in ["rbm", "dbn", "labelled", "feedforward", "dictionary", "sparse-autoencoder"] {
        for (damaged, other) in [("config.json", "model.safetensors"), ("model.safetensors", "config.json")] {
            let bytes = |file: &str| std::fs::read(at(name).join(file));
            let whole = Whole::new(&format!("{name}/{damaged}"), bytes(damaged)?);
            wholes.push(whole.with(&format!("{name}/{other}"), bytes(other)?).opened_by(name));
        }
    }
    Ok(wholes)
}

/// A checkpoint of each trainer after a step.
fn checkpoints() -> Result<Vec<Whole>> {
    let folder = tempfile::tempdir()?;
    let rows = uniform((BATCH, N), &CPU, Philox::new(4, 0))?;
    let labels = Tensor::zeros(BATCH, DType::U32, &CPU)?;
    let cd = RbmTrainConfig { batch: BATCH, ..RbmTrainConfig::default() };
    let mut wholes = Vec::new();
    let mut keep = |name: &str, save: &dyn Fn(&Path) -> Result<()>| -> Result<()> {
        let path = folder.path().join(name);
        save(&path)?;
        let bytes = std::fs::read(&path)?;
        // As the disk damages it, which its checksum tells, and with a checksum that is right.
        wholes.push(Whole::new(name, bytes.clone()));
        wholes.push(Whole::new(name, bytes).wrapped(sealed));
        Ok(())
    };
    let mut trainer = RbmTrainer::new(&rbm()?, cd.clone(), Philox::new(5, 0))?;
    trainer.step(&rows, None)?;
    keep("rbm.safetensors", &|path| trainer.save(path, &serde_json::json!(7u32)))?;
    let mut trainer = DbnTrainer::new(&dbn()?, vec![cd.clone(), cd], Philox::new(5, 0))?;
    trainer.step(&rows, None)?;
    keep("dbn.safetensors", &|path| trainer.save(path, &serde_json::json!(7u32)))?;
    let config = LabelledDbnTrainConfig { batch: BATCH, ..LabelledDbnTrainConfig::default() };
    let mut trainer =
        LabelledDbnTrainer::new(&LabelledDbn::from_dbn(&dbn()?, 2)?, config, Philox::new(5, 0))?;
    trainer.step(&rows, Some(&labels))?;
    keep("labelled.safetensors", &|path| trainer.save(path, &serde_json::json!(7u32)))?;
    let config = FeedforwardTrainConfig { batch: BATCH, ..FeedforwardTrainConfig::default() };
    let mut trainer = FeedforwardTrainer::new(&Feedforward::unroll(&dbn()?)?, config, Philox::new(5, 0))?;
    trainer.step(&rows, None)?;
    keep("feedforward.safetensors", &|path| trainer.save(path, &serde_json::json!(7u32)))?;
    let config = SparseAutoencoderTrainConfig { batch: BATCH, ..SparseAutoencoderTrainConfig::default() };
    let mut trainer = SparseAutoencoderTrainer::new(&sparse_autoencoder()?, config)?;
    trainer.step(&rows, None)?;
    keep("sparse-autoencoder.safetensors", &|path| trainer.save(path, &serde_json::json!(7u32)))?;
    let fit = SparseAutoencoderLbfgsTrainConfig {
        iterations: 2,
        history: 2,
        ..SparseAutoencoderLbfgsTrainConfig::default()
    };
    let mut run = SparseAutoencoderLbfgsTrainer::new(&sparse_autoencoder()?, fit, &rows)?;
    run.fit()?;
    keep("sparse-autoencoder-run.safetensors", &|path| run.save(path, &serde_json::json!(7u32)))?;
    let dictionary = dictionary()?;
    let config = OnlineDictionaryTrainConfig::default();
    let mut trainer = OnlineDictionaryTrainer::new(dictionary, config, Philox::new(5, 0))?;
    trainer.step(&rows, None)?;
    keep("online.safetensors", &|path| trainer.save(path, &serde_json::json!(7u32)))?;
    Ok(wholes)
}
