//! Raw rows go into every model as into its training: bytes or floats, prepared by what is saved
//! with the model.
#![allow(clippy::expect_used)]
use crate::common::bits;
use candle::{DType, Device, Module, Result, Tensor};
use chandlery::datasets::preparation::{StepConfig, WhiteningConfig};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, OnlineDictionaryTrainConfig,
    OnlineDictionaryTrainer,
};
use chandlery::feedforward::{Feedforward, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::{
    Decode, Encode, FullBatchTrainer, ImageShape, Layered, MinibatchTrainer, Philox, Preparation, Trainer,
};
use chandlery_ops::core::{normal, uniform};

const CPU: Device = Device::Cpu;
/// Values in a raw row, and what models read of it.
const N: usize = 9;
const READ: usize = 5;
const BATCH: usize = 20;

/// Rows as bytes, and the same as floats.
fn rows() -> Result<(Tensor, Tensor)> {
    let mixed = uniform((60, N), &CPU, Philox::new(1, 0))?;
    let bytes = (mixed * 255.)?.to_dtype(DType::U8)?;
    let floats = bytes.to_dtype(DType::F32)?.affine(1. / 255., 0.)?;
    Ok((bytes, floats))
}

/// Row means, then whitened to fewer values.
fn preparation() -> Result<Preparation> {
    let kind = chandlery::datasets::preparation::WhiteningKind::Pca;
    let whiten = WhiteningConfig { kind, n_components: Some(READ), ..WhiteningConfig::default() };
    let steps = [StepConfig::Scale(3.), StepConfig::RowMean, StepConfig::Whiten(whiten)];
    Preparation::fit_tensor(&rows()?.0, &steps, 0).map_err(candle::Error::wrap)
}

fn rbm_config(n_visible: usize, n_hidden: usize) -> RbmConfig {
    RbmConfig { visible: VisibleUnit::Gaussian, ..RbmConfig::new(n_visible, n_hidden) }
}

fn dbn(preparation: Preparation, n_visible: usize) -> Result<Dbn> {
    let layers = vec![rbm_config(n_visible, 4), RbmConfig::new(4, 3)];
    let image = (n_visible == READ).then_some(ImageShape::grey(3, 3));
    Dbn::init(DbnConfig { layers, preparation, image }, Philox::new(2, 0), &CPU)
}

fn binary(preparation: Preparation, n_visible: usize) -> Result<LabelledDbn> {
    let config = DbnConfig { preparation, ..DbnConfig::new(&[n_visible, 4, 3]) };
    LabelledDbn::from_dbn(&Dbn::init(config, Philox::new(2, 0), &CPU)?, 3)
}

fn dictionary(preparation: Preparation, n_features: usize) -> Result<Dictionary> {
    let config = DictionaryConfig { preparation, ..DictionaryConfig::new(6, n_features, 2) };
    Dictionary::from_tensor(config, normal((6, n_features), &CPU, Philox::new(3, 0))?)
}

fn close(what: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    let worst = (a - b)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(worst < 2e-4, "{what}: {worst}");
    Ok(())
}

#[test]
fn models_prepare_raw_rows_themselves() -> Result<()> {
    let (bytes, floats) = rows()?;
    let preparation = preparation()?;
    let read = preparation.apply(&bytes).map_err(candle::Error::wrap)?;
    assert_eq!(read.dims(), [60, READ]);
    // The same weights without a preparation, on rows that are prepared already.
    let none = Preparation::default;
    let (raw, plain) = (dbn(preparation.clone(), READ)?, dbn(none(), READ));
    assert!(plain.is_err(), "an image of other rows");
    let plain = Dbn::from_layers(
        DbnConfig { preparation: none(), image: None, ..raw.config().clone() },
        raw.layers().to_vec(),
    )?;
    assert_eq!(raw.config().n_inputs(), N);
    for rows in [&bytes, &floats] {
        close("Dbn", &raw.forward(rows)?, &plain.forward(&read)?)?;
        close("all features", &raw.all_features(rows)?, &plain.all_features(&read)?)?;
        close("layer 0", &raw.features(rows, 0)?, &read)?;
        close("reconstruct", &raw.reconstruct_prepared(&read)?, &plain.reconstruct(&read)?)?;
        let back = preparation.inverse(&plain.reconstruct(&read)?).map_err(candle::Error::wrap)?;
        close("raw rows", &raw.reconstruct(rows)?, &back)?;
        close("lowest layer", &raw.layers()[0].encode(rows)?, &plain.features(&read, 1)?)?;
        assert!((raw.reconstruction_error(rows)? - plain.reconstruction_error(&read)?).abs() < 1e-3);
        let samples = |dbn: &Dbn, rows| dbn.sample_from(rows, 1, Philox::new(9, 0));
        assert_eq!(samples(&raw, rows)?.dims(), samples(&plain, &read)?.dims());

        let (raw, plain) = (Feedforward::unroll(&raw)?, Feedforward::unroll(&plain)?);
        close("autoencoder", &raw.forward(rows)?, &plain.forward(&read)?)?;
        close("code", &raw.encode(rows)?, &plain.encode(&read)?)?;
        assert!((raw.reconstruction_error(rows)? - plain.reconstruction_error(&read)?).abs() < 1e-3);

        let (raw, plain) = (binary(preparation.clone(), READ)?, binary(none(), READ)?);
        close("LabelledDbn", &raw.encode(rows)?, &plain.encode(&read)?)?;
        close("free energies", &raw.free_energies(rows)?, &plain.free_energies(&read)?)?;
        close("generation", &raw.reconstruct_prepared(&read)?, &plain.reconstruct(&read)?)?;

        let (raw, plain) = (dictionary(preparation.clone(), READ)?, dictionary(none(), READ)?);
        close("Dictionary", &raw.encode(rows)?.to_dense()?, &plain.encode(&read)?.to_dense()?)?;

        let config = RbmConfig { preparation: preparation.clone(), ..rbm_config(READ, 4) };
        let raw = Rbm::init(config, Philox::new(4, 0), &CPU)?;
        close("Rbm", &raw.forward(rows)?, &raw.hidden_mean(&read)?)?;
    }
    Ok(())
}

/// What a trainer has learned after an epoch.
fn trained<T: MinibatchTrainer>(mut trainer: T, rows: &Tensor, labels: Option<&Tensor>) -> Result<T::Model> {
    trainer.begin_epoch(0)?;
    for i in 0..3 {
        let labels = labels.map(|labels| labels.narrow(0, i * BATCH, BATCH)).transpose()?;
        trainer.step(&rows.narrow(0, i * BATCH, BATCH)?, labels.as_ref())?;
    }
    trainer.model()
}

#[test]
fn trainers_prepare_raw_rows_themselves() -> Result<()> {
    let (bytes, floats) = rows()?;
    let preparation = preparation()?;
    let read = preparation.apply(&bytes).map_err(candle::Error::wrap)?;
    let labels = Tensor::from_iter((0..60u32).map(|i| i % 3), &CPU)?;
    let cd = RbmTrainConfig { batch: BATCH, learning_rate: 0.01.into(), ..RbmTrainConfig::default() };
    let backprop = FeedforwardTrainConfig { batch: BATCH, ..FeedforwardTrainConfig::default() };
    let philox = Philox::new(5, 0);

    let (raw, none) = (dbn(preparation.clone(), READ)?, Preparation::default());
    let plain = DbnConfig { preparation: none.clone(), image: None, ..raw.config().clone() };
    let plain = Dbn::from_layers(plain, raw.layers().to_vec())?;
    let of_dbn = |dbn: &Dbn, rows: &Tensor| {
        let trainer = DbnTrainer::new(dbn, vec![cd.clone(); 2], philox)?;
        Ok::<_, candle::Error>(trained(trainer, rows, None)?.layers()[0].weight().clone())
    };
    let of_rbm = |dbn: &Dbn, rows: &Tensor| {
        let config = RbmConfig { preparation: dbn.config().preparation.clone(), ..rbm_config(READ, 4) };
        let rbm = Rbm::init(config, Philox::new(4, 0), &CPU)?;
        let rbm = trained(RbmTrainer::new(&rbm, cd.clone(), philox)?, rows, None)?;
        assert_eq!(rbm.config().preparation, dbn.config().preparation);
        Ok::<_, candle::Error>(rbm.weight().clone())
    };
    let of_network = |dbn: &Dbn, rows: &Tensor| {
        let network = Feedforward::unroll(dbn)?;
        let network = trained(FeedforwardTrainer::new(&network, backprop.clone(), philox)?, rows, None)?;
        assert_eq!(network.config().preparation, dbn.config().preparation);
        Ok::<_, candle::Error>(network.layers()[0].0.clone())
    };
    let of_labelled = |preparation: &Preparation, rows: &Tensor| {
        let config = LabelledDbnTrainConfig { batch: BATCH, ..LabelledDbnTrainConfig::default() };
        let trainer = LabelledDbnTrainer::new(&binary(preparation.clone(), READ)?, config, philox)?;
        Ok::<_, candle::Error>(trained(trainer, rows, Some(&labels))?.recognition()[0].weight().clone())
    };
    let of_online = |preparation: &Preparation, rows: &Tensor| {
        let dictionary = dictionary(preparation.clone(), READ)?;
        let config = OnlineDictionaryTrainConfig { max_idle: 1000, ..OnlineDictionaryTrainConfig::default() };
        Ok::<_, candle::Error>(
            trained(OnlineDictionaryTrainer::new(dictionary, config, philox)?, rows, None)?.atoms().clone(),
        )
    };
    let of_batch = |preparation: &Preparation, rows: &Tensor| {
        let dictionary = dictionary(preparation.clone(), READ)?;
        let config = DictionaryTrainConfig::default();
        let mut trainer = DictionaryTrainer::new(dictionary, rows, config, philox)?;
        trainer.step()?;
        assert_eq!(&trainer.current().config().preparation, preparation);
        Ok::<_, candle::Error>(trainer.current().atoms().clone())
    };
    for rows in [&bytes, &floats] {
        close("DbnTrainer", &of_dbn(&raw, rows)?, &of_dbn(&plain, &read)?)?;
        close("RbmTrainer", &of_rbm(&raw, rows)?, &of_rbm(&plain, &read)?)?;
        close("FeedforwardTrainer", &of_network(&raw, rows)?, &of_network(&plain, &read)?)?;
        close("LabelledDbnTrainer", &of_labelled(&preparation, rows)?, &of_labelled(&none, &read)?)?;
        close("OnlineDictionaryTrainer", &of_online(&preparation, rows)?, &of_online(&none, &read)?)?;
        close("DictionaryTrainer", &of_batch(&preparation, rows)?, &of_batch(&none, &read)?)?;
    }
    Ok(())
}

#[test]
fn a_resumed_trainer_prepares_as_before() -> Result<()> {
    let (bytes, _) = rows()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let step = |trainer: &mut DbnTrainer| trainer.step(&bytes.narrow(0, 0, BATCH)?, None);
    let cd = RbmTrainConfig { batch: BATCH, learning_rate: 0.01.into(), ..RbmTrainConfig::default() };
    let mut trainer = DbnTrainer::new(&dbn(preparation()?, READ)?, vec![cd.clone(); 2], Philox::new(5, 0))?;
    step(&mut trainer)?;
    trainer.next_layer()?;
    step(&mut trainer)?;
    trainer.save(&path, &serde_json::Value::Null)?;
    let (mut back, _) = DbnTrainer::load(&path, &CPU)?;
    back.begin_epoch(0)?;
    step(&mut trainer)?;
    step(&mut back)?;
    let weights = |trainer: &DbnTrainer| bits([("", trainer.rbm()?.weight())]);
    assert!(weights(&trainer)? == weights(&back)?);

    let config = RbmConfig { preparation: preparation()?, ..rbm_config(READ, 4) };
    let rbm = Rbm::init(config, Philox::new(4, 0), &CPU)?;
    let mut trainer = RbmTrainer::new(&rbm, cd, Philox::new(5, 0))?;
    trainer.step(&bytes.narrow(0, 0, BATCH)?, None)?;
    trainer.save(&path, &serde_json::Value::Null)?;
    let (mut back, _) = RbmTrainer::load(&path, &CPU)?;
    back.begin_epoch(0)?;
    for trainer in [&mut trainer, &mut back] {
        trainer.step(&bytes.narrow(0, BATCH, BATCH)?, None)?;
    }
    let (rbm, back) = (trainer.model()?, back.model()?);
    assert!(bits([("", rbm.weight())])? == bits([("", back.weight())])?);
    assert_eq!(rbm.config(), back.config());
    Ok(())
}

#[test]
fn rows_of_another_width_are_refused() -> Result<()> {
    let dbn = dbn(preparation()?, READ)?;
    let narrow = uniform((BATCH, READ), &CPU, Philox::new(1, 0))?;
    assert!(dbn.forward(&narrow).is_err());
    let cd = RbmTrainConfig { batch: BATCH, ..RbmTrainConfig::default() };
    let mut trainer = DbnTrainer::new(&dbn, vec![cd.clone(); 2], Philox::new(5, 0))?;
    let said = trainer.step(&narrow, None).expect_err("accepted").to_string();
    assert!(said.contains("rows must have shape [20, 9], or fewer rows, at least 1, got [20, 5]"), "{said}");
    let config = DbnConfig { preparation: preparation()?, ..DbnConfig::new(&[READ + 1, 4]) };
    let said = config.validate().expect_err("accepted").to_string();
    assert!(
        said.starts_with("DbnConfig: Preparation: PCA-whitened with 5 components")
            && said.contains("gives rows of 5 values, where 6 are needed"),
        "{said}"
    );
    Ok(())
}
