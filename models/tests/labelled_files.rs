//! A network with labels in files: saved and loaded, stopped and resumed, and what is refused.
#![allow(clippy::expect_used)]
use crate::common;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::labelled::{
    LabelledDbn, LabelledDbnConfig, LabelledDbnTrainConfig, LabelledDbnTrainer, Stage,
};
use chandlery::pretrained::{ModelType, model_type};
use chandlery::rbm::HiddenUnit;
use chandlery::schedule::Schedule;
use chandlery::{Decode, Encode, ImageShape, Layered, LoadOptions, MinibatchTrainer, Model, Trainer};
use chandlery_ops::core::uniform;
use chandlery_ops::{Philox, Precision};

const CPU: Device = Device::Cpu;

fn network() -> Result<LabelledDbn> {
    let config = DbnConfig { image: Some(ImageShape::grey(3, 4)), ..DbnConfig::new(&[12, 7, 6, 5]) };
    LabelledDbn::from_dbn(&Dbn::init(config, Philox::new(2, 0), &CPU)?, 3)
}

/// Bytes and labels of 60 rows: six minibatches.
fn data() -> Result<(Tensor, Tensor)> {
    let bytes = (uniform((60, 12), &CPU, Philox::new(1, 0))? * 255.)?.to_dtype(DType::U8)?;
    Ok((bytes, Tensor::from_iter((0..60u32).map(|i| i * i % 3), &CPU)?))
}

fn training(stage: Stage, persistent: bool) -> LabelledDbnTrainConfig {
    LabelledDbnTrainConfig {
        stage,
        batch: 10,
        persistent,
        momentum: Schedule::constant(0.5),
        learning_rate: Schedule::linear(0.2, 0., 6),
        k: Schedule::steps([(0, 1.), (2, 3.)]),
        l2: 1e-3,
        ..LabelledDbnTrainConfig::default()
    }
}

/// Steps `from` to `to`, six an epoch.
fn train(trainer: &mut LabelledDbnTrainer, from: usize, to: usize) -> Result<()> {
    let (rows, labels) = data()?;
    for step in from..to {
        trainer.begin_epoch(step / 6)?;
        let at = step % 6 * 10;
        trainer.step(&rows.narrow(0, at, 10)?, Some(&labels.narrow(0, at, 10)?))?;
    }
    Ok(())
}

fn bits(dbn: &LabelledDbn) -> Result<Vec<u32>> {
    common::bits(dbn.tensors())
}

#[test]
fn a_resumed_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for (stage, persistent) in
        [(Stage::Top, false), (Stage::Top, true), (Stage::UpDown, false), (Stage::UpDown, true)]
    {
        let new = || LabelledDbnTrainer::new(&network()?, training(stage, persistent), Philox::new(4, 1));
        let mut whole = new()?;
        train(&mut whole, 0, 30)?;
        let want = bits(&whole.model()?)?;
        assert!(want != bits(&network()?)?, "nothing was learnt");
        let metrics = whole.metrics()?;
        // Within an epoch, at its end, and on both sides of the epoch from which there are three
        // Gibbs steps.
        for stop in [1, 6, 11, 12, 13, 29] {
            let mut first = new()?;
            train(&mut first, 0, stop)?;
            first.save(&path, &serde_json::json!(stop))?;
            drop(first);
            let (mut second, at) = LabelledDbnTrainer::load(&path, &CPU)?;
            assert_eq!((second.steps(), second.config()), (stop as u64, &training(stage, persistent)));
            assert_eq!(at, stop);
            train(&mut second, stop, 30)?;
            let what = format!("{stage:?}, persistent {persistent}, stopped at step {stop}");
            assert!(bits(&second.model()?)? == want, "{what}: weights differ");
            assert_eq!(second.metrics()?, metrics, "{what}");
        }
    }
    Ok(())
}

#[test]
fn a_seed_decides_every_bit() -> Result<()> {
    let run = |seed| -> Result<Vec<u32>> {
        let mut trainer =
            LabelledDbnTrainer::new(&network()?, training(Stage::UpDown, false), Philox::new(seed, 0))?;
        train(&mut trainer, 0, 12)?;
        bits(&trainer.model()?)
    };
    assert!(run(3)? == run(3)?);
    assert!(run(3)? != run(4)?);
    Ok(())
}

#[test]
fn a_saved_network_comes_back_and_its_layers_load_as_linear_both_ways() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut trainer =
        LabelledDbnTrainer::new(&network()?, training(Stage::UpDown, false), Philox::new(4, 1))?;
    train(&mut trainer, 0, 12)?;
    let dbn = trainer.model()?;
    dbn.save_pretrained(folder.path())?;
    let name = folder.path().display().to_string();
    assert_eq!(model_type(&name)?, ModelType::LabelledDbn);
    let back = LabelledDbn::from_pretrained(&name, &LoadOptions::default())?;
    assert_eq!(back.config(), dbn.config());
    assert!(bits(&back)? == bits(&dbn)?);

    // What another candle project does, without this crate.
    let tensors = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &CPU);
    let (up, down) = (vb.pp("recognition"), vb.pp("generative"));
    let layers = [
        candle_nn::linear(12, 7, up.pp(0))?,
        candle_nn::linear(7, 6, up.pp(1))?,
        candle_nn::linear(6, 7, down.pp(1))?,
        candle_nn::linear(7, 12, down.pp(0))?,
    ];
    let rows = uniform((9, 12), &CPU, Philox::new(7, 0))?;
    let by_hand = layers.iter().try_fold(rows.clone(), |h, l| candle_nn::ops::sigmoid(&l.forward(&h)?))?;
    let difference = (by_hand - dbn.reconstruct(&rows)?)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
    assert!(difference < 1e-6, "linear layers differ by {difference}");

    Dbn::init(DbnConfig::new(&[4, 3]), Philox::new(0, 0), &CPU)?.save_pretrained(folder.path())?;
    assert_eq!(model_type(&name)?, ModelType::Dbn);
    Ok(())
}

#[test]
fn new_label_units_change_nothing_before_they_learn() -> Result<()> {
    let plain = Dbn::init(DbnConfig::new(&[12, 7, 6, 5]), Philox::new(2, 0), &CPU)?;
    let dbn = LabelledDbn::from_dbn(&plain, 3)?;
    assert_eq!(dbn.config().sizes, [12, 7, 6, 5]);
    let rows = uniform((9, 12), &CPU, Philox::new(7, 0))?;
    let same = |a: &Tensor, b: &Tensor| -> Result<()> {
        let difference = (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        assert!(difference < 1e-6, "{difference}");
        Ok(())
    };
    let features = plain.features(&rows, 2)?;
    same(&dbn.encode(&rows)?, &features)?;
    let down = plain.layers()[..2].iter().rev().try_fold(features, |h, rbm| rbm.visible_mean(&h))?;
    same(&dbn.reconstruct(&rows)?, &down)?;
    same(&dbn.label_log_probabilities(&rows)?.exp()?, &Tensor::full(1f32 / 3., (9, 3), &CPU)?)
}

#[test]
fn samples_are_rows_of_probabilities_one_for_each_label() -> Result<()> {
    let dbn = network()?;
    let labels = Tensor::new(&[2u32, 0, 1, 2], &CPU)?;
    let rows = uniform((4, 12), &CPU, Philox::new(7, 0))?;
    for sample in
        [dbn.sample(&labels, 5, Philox::new(3, 0))?, dbn.sample_from(&rows, &labels, 5, Philox::new(3, 0))?]
    {
        assert_eq!(sample.dims(), [4, 12]);
        assert!(sample.flatten_all()?.to_vec1::<f32>()?.iter().all(|x| (0. ..=1.).contains(x)));
    }
    Ok(())
}

fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}

#[test]
fn what_cannot_be_is_refused_with_its_name() -> Result<()> {
    let config = |change: &dyn Fn(&mut LabelledDbnTrainConfig)| {
        let mut config = LabelledDbnTrainConfig::default();
        change(&mut config);
        first_line(config.validate().expect_err("accepted"))
    };
    let k = "LabelledDbnTrainConfig: k must be a whole number of at least 1, got";
    assert_eq!(config(&|c| c.k = 2.5.into()), format!("{k} 2.5"));
    assert_eq!(config(&|c| c.k = Schedule::constant(0.)), format!("{k} 0"));
    assert!(config(&|c| c.k = Schedule::linear(1., 5., 4)).contains("k must be constant or in steps"));
    assert_eq!(
        config(&|c| c.precision = Precision::Bf16),
        "LabelledDbnTrainConfig: precision must be f32 or tf32, got bf16"
    );
    assert_eq!(config(&|c| c.batch = 0), "LabelledDbnTrainConfig: batch must be at least 1, got 0");

    let dbn = network()?;
    let error = |labels: &[u32]| -> Result<String> {
        let labels = Tensor::new(labels, &CPU)?;
        Ok(first_line(dbn.sample(&labels, 1, Philox::new(0, 0)).expect_err("accepted")))
    };
    assert_eq!(error(&[0, 3])?, "LabelledDbn::sample: labels must be below n_classes = 3, got 3");

    let mut trainer = LabelledDbnTrainer::new(&dbn, training(Stage::Top, false), Philox::new(0, 0))?;
    let (rows, labels) = data()?;
    let refused = |e: Result<()>| first_line(e.expect_err("accepted"));
    let (many, right) = (rows.narrow(0, 0, 11)?, rows.narrow(0, 0, 10)?);
    assert_eq!(
        refused(trainer.step(&many, Some(&labels.narrow(0, 0, 10)?))),
        "LabelledDbnTrainer::step: rows must have shape [10, 12], or fewer rows, at least 1, got [11, 12]"
    );
    assert_eq!(
        refused(trainer.step(&right, Some(&labels.narrow(0, 0, 9)?))),
        "LabelledDbnTrainer::step: labels must be [10] u32, got [9] U32"
    );
    let none = first_line(trainer.metrics().expect_err("accepted"));
    assert_eq!(none, "LabelledDbnTrainer::metrics: steps since the last call must be at least 1, got 0");

    let mut real = DbnConfig::new(&[4, 3]);
    real.layers[0].hidden = HiddenUnit::Rectified;
    let real = Dbn::init(real, Philox::new(0, 0), &CPU)?;
    assert_eq!(
        first_line(LabelledDbn::from_dbn(&real, 2).expect_err("accepted")),
        "LabelledDbn::from_dbn: all units must be bernoulli, got bernoulli visible and rectified hidden ones in layer 1"
    );
    let plain = Dbn::init(DbnConfig::new(&[4, 3]), Philox::new(0, 0), &CPU)?;
    assert_eq!(
        first_line(LabelledDbn::from_dbn(&plain, 1).expect_err("accepted")),
        "LabelledDbnConfig: n_classes must be at least 2, got 1"
    );
    let fits = LabelledDbnConfig { image: Some([2, 2, 2].into()), ..LabelledDbnConfig::new(&[4, 3], 2) };
    assert_eq!(
        first_line(fits.validate().expect_err("accepted")),
        "LabelledDbnConfig: image must have as many values as a row, 4, got 2x2x2 with 8"
    );
    Ok(())
}

#[test]
fn training_that_diverges_says_between_which_steps() -> Result<()> {
    let config =
        LabelledDbnTrainConfig { learning_rate: Schedule::constant(1e38), ..training(Stage::UpDown, false) };
    let mut trainer = LabelledDbnTrainer::new(&network()?, config, Philox::new(4, 1))?;
    train(&mut trainer, 0, 4)?;
    let error = first_line(trainer.metrics().expect_err("finite"));
    assert!(
        error.starts_with("LabelledDbnTrainer: the ")
            && error.contains("between steps 1 and 4; lower the learning rate"),
        "{error}"
    );
    Ok(())
}
