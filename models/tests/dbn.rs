//! A network's layers, files and checkpoints.
#![allow(clippy::expect_used)]
use crate::common;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::{Rbm, RbmTrainConfig, SparsityConfig, VisibleUnit};
use chandlery::{Decode, Layered, LoadOptions, MinibatchTrainer, Model, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use std::path::Path;

const CPU: Device = Device::Cpu;

fn rows() -> Result<Tensor> {
    uniform((60, 12), &CPU, Philox::new(1, 0))?.round()
}

fn training(persistent: bool) -> RbmTrainConfig {
    let sparsity = Some(SparsityConfig { target: 0.2, cost: 0.5, decay: 0.9 });
    RbmTrainConfig { batch: 10, persistent, k: 2, sparsity, ..RbmTrainConfig::default() }
}

fn trainer(persistent: bool) -> Result<DbnTrainer> {
    let dbn = Dbn::init(DbnConfig::new(&[12, 7, 5]), Philox::new(2, 0), &CPU)?;
    DbnTrainer::new(&dbn, vec![training(persistent); 2], Philox::new(2, 10))
}

/// Six minibatches an epoch, five epochs a layer.
const STEPS: usize = 30;

/// Trains from step `from` (counted over both layers) to step `to`.
fn train(trainer: &mut DbnTrainer, rows: &Tensor, from: usize, to: usize) -> Result<()> {
    for step in from..to {
        if step == STEPS {
            assert!(trainer.next_layer()?);
        }
        trainer.begin_epoch(step % STEPS / 6)?;
        trainer.step(&rows.narrow(0, step % 6 * 10, 10)?, None)?;
    }
    Ok(())
}

fn bits(dbn: &Dbn) -> Result<Vec<u32>> {
    common::bits(dbn.layers().iter().flat_map(Rbm::tensors))
}

#[test]
fn a_resumed_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let rows = rows()?;
    for persistent in [false, true] {
        let mut whole = trainer(persistent)?;
        train(&mut whole, &rows, 0, 2 * STEPS)?;
        let whole = bits(&whole.model()?)?;
        // Within an epoch, at its end, at the first step of the second layer, and late in it.
        for stop in [1, 12, 17, 30, 31, 59] {
            let mut first = trainer(persistent)?;
            train(&mut first, &rows, 0, stop)?;
            first.save(&path, &serde_json::json!(stop))?;
            drop(first);
            let (mut second, at) = DbnTrainer::load(&path, &CPU)?;
            assert_eq!(at, stop);
            train(&mut second, &rows, stop, 2 * STEPS)?;
            assert!(
                bits(&second.model()?)? == whole,
                "persistent {persistent}, stopped at step {stop}: weights differ"
            );
        }
    }
    Ok(())
}

#[test]
fn another_seed_gives_another_network() -> Result<()> {
    let dbn = Dbn::init(DbnConfig::new(&[12, 7, 5]), Philox::new(2, 0), &CPU)?;
    let rows = rows()?;
    let run = |seed| -> Result<Vec<u32>> {
        let mut trainer = DbnTrainer::new(&dbn, vec![training(false); 2], Philox::new(seed, 0))?;
        train(&mut trainer, &rows, 0, 12)?;
        bits(&trainer.model()?)
    };
    assert!(run(3)? == run(3)?);
    assert!(run(3)? != run(4)?);
    Ok(())
}

#[test]
fn bytes_scaled_in_the_step_train_as_the_numbers_they_stand_for() -> Result<()> {
    let bytes = (uniform((60, 12), &CPU, Philox::new(5, 0))? * 255.)?.to_dtype(DType::U8)?;
    let numbers = (bytes.to_dtype(DType::F32)? * f64::from(1f32 / 255.))?;
    let dbn = Dbn::init(DbnConfig::new(&[12, 7]), Philox::new(2, 0), &CPU)?;
    let run = |rows: &Tensor| -> Result<Vec<u32>> {
        let mut trainer = DbnTrainer::new(&dbn, vec![training(false)], Philox::new(6, 0))?;
        train(&mut trainer, rows, 0, 12)?;
        bits(&trainer.model()?)
    };
    assert!(run(&bytes)? == run(&numbers)?);
    Ok(())
}

#[test]
fn a_saved_network_comes_back_and_its_layers_load_as_linear() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut trainer = trainer(false)?;
    let rows = rows()?;
    train(&mut trainer, &rows, 0, 2 * STEPS)?;
    let dbn = trainer.model()?;
    dbn.save_pretrained(folder.path())?;
    let name = folder.path().display().to_string();
    let back = Dbn::from_pretrained(&name, &LoadOptions::default())?;
    assert_eq!(back.config(), dbn.config());
    assert!(bits(&back)? == bits(&dbn)?);

    // What another candle project does, without this crate: two linear layers from the same file.
    let weights = folder.path().join("model.safetensors");
    let tensors = candle::safetensors::load(&weights, &CPU)?;
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &CPU).pp("layers");
    let lower = candle_nn::linear(12, 7, vb.pp(0))?;
    let upper = candle_nn::linear(7, 5, vb.pp(1))?;
    let features =
        candle_nn::ops::sigmoid(&upper.forward(&candle_nn::ops::sigmoid(&lower.forward(&rows)?)?)?)?;
    let difference = (features - dbn.forward(&rows)?)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(difference < 1e-6, "linear layers differ by {difference}");
    Ok(())
}

#[test]
fn features_reconstructions_and_samples_have_their_shapes_and_ranges() -> Result<()> {
    let dbn = Dbn::init(DbnConfig::new(&[12, 7, 5]), Philox::new(2, 0), &CPU)?;
    let rows = rows()?;
    assert_eq!(dbn.features(&rows, 0)?.dims(), [60, 12]);
    assert_eq!(dbn.features(&rows, 1)?.dims(), [60, 7]);
    assert_eq!(dbn.forward(&rows)?.dims(), [60, 5]);
    assert_eq!(dbn.all_features(&rows)?.dims(), [60, 12]);
    for image in [
        dbn.reconstruct(&rows)?,
        dbn.sample(9, 5, Philox::new(3, 0))?,
        dbn.sample_from(&rows, 5, Philox::new(3, 0))?,
    ] {
        let values = image.flatten_all()?.to_vec1::<f32>()?;
        assert!(values.len() % 12 == 0 && values.iter().all(|x| (0. ..=1.).contains(x)));
    }
    let error = dbn.features(&rows, 3).expect_err("accepted").to_string();
    assert_eq!(error.lines().next(), Some("Dbn::features: layer must be 0 to 2, got 3"));
    Ok(())
}

#[test]
fn bad_files_and_configurations_say_which_and_why() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let first = |e: candle::Error| e.to_string().lines().next().unwrap_or_default().to_owned();
    let load = |path: &Path| first(Dbn::from_pretrained(path, &LoadOptions::default()).expect_err("loaded"));
    let name = folder.path().display();

    assert!(load(folder.path()).starts_with(&format!("{name}/config.json: cannot be read: ")));
    std::fs::write(folder.path().join("config.json"), "{\"layers\":")?;
    assert!(
        load(folder.path()).starts_with(&format!("{name}/config.json: cannot be read: EOF while parsing"))
    );
    Dbn::init(DbnConfig::new(&[4, 3]), Philox::new(0, 0), &CPU)?.save_pretrained(folder.path())?;
    let weights = folder.path().join("model.safetensors");
    let whole = std::fs::read(&weights)?;
    std::fs::write(&weights, &whole[..whole.len() - 5])?;
    assert!(load(folder.path()).starts_with(&format!("{name}/model.safetensors: cannot be read: ")));
    std::fs::write(&weights, &whole)?;
    let config = std::fs::read_to_string(folder.path().join("config.json"))?;
    std::fs::write(folder.path().join("config.json"), config.replace("\"n_hidden\": 3", "\"n_hidden\": 2"))?;
    assert!(load(folder.path()).starts_with(&format!("{name}/model.safetensors: ")));

    let mut config = DbnConfig::new(&[4, 3, 2]);
    config.layers[1].n_visible = 5;
    let error = first(config.validate().expect_err("accepted"));
    assert_eq!(error, "DbnConfig: layers[1].n_visible must be layers[0].n_hidden = 3, got 5");
    let mut config = DbnConfig::new(&[4, 3, 2]);
    config.layers[1].visible = VisibleUnit::Gaussian;
    let error = first(config.validate().expect_err("accepted"));
    assert_eq!(
        error,
        "DbnConfig: layers[1].visible must be bernoulli, since layers[0].hidden is bernoulli, got gaussian"
    );

    let path = folder.path().join("model.safetensors");
    let error = first(DbnTrainer::load(&path, &CPU).map(|_| ()).expect_err("loaded"));
    let want = format!("{}: not a checkpoint: its header has no checksum", path.display());
    assert_eq!(error, want);
    Ok(())
}
