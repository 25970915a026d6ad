//! What holds for every trainer.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery::checkpoint::verify;
use chandlery::dae::{
    Dae, DaeConfig, DaeTrainConfig, DaeTrainer, StackedDae, StackedDaeConfig, StackedDaeTrainer,
};
use chandlery::datasets::ImageShape;
use chandlery::datasets::preparation::StepConfig;
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::dictionary::{Dictionary, DictionaryConfig, OnlineConfig, OnlineTrainer};
use chandlery::feedforward::{BackpropConfig, Feedforward, FeedforwardConfig, FeedforwardTrainer, Optimizer};
use chandlery::labelled::{LabelledDbn, UpDownConfig, UpDownTrainer};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{CdConfig, Rbm, RbmConfig, RbmTrainer, VisibleUnit};
use chandlery::schedule::Schedule;
use chandlery::{Model, Philox, Preparation, Trainer};
use chandlery_ops::Precision;
use chandlery_ops::core::uniform;
use std::borrow::Borrow;

const CPU: Device = Device::Cpu;
const BATCH: usize = 10;
const N: usize = 6;

fn cd() -> CdConfig {
    CdConfig { batch: BATCH, persistent: true, ..CdConfig::default() }
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
    let config = BackpropConfig { batch: BATCH, ..BackpropConfig::default() };
    FeedforwardTrainer::new(&network, config, Philox::new(3, 1))
}

fn labelled() -> Result<UpDownTrainer> {
    let dbn = Dbn::init(DbnConfig::new(&[N, 5, 4]), Philox::new(4, 0), &CPU)?;
    let config = UpDownConfig { batch: BATCH, ..UpDownConfig::default() };
    UpDownTrainer::new(&LabelledDbn::from_dbn(&dbn, 3)?, config, Philox::new(4, 1))
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

fn online() -> Result<OnlineTrainer> {
    let atoms = uniform((8, N), &CPU, Philox::new(5, 0))?;
    let config = DictionaryConfig::new(8, N, 2);
    let training = OnlineConfig::default();
    OnlineTrainer::new(Dictionary::from_tensor(config, atoms)?, training, Philox::new(5, 1))
}

fn steps<T: Trainer>(trainer: &mut T, steps: std::ops::Range<usize>) -> Result<()> {
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

/// Two steps on `FEW` rows by a trainer of minibatches of [`BATCH`] rows and by one of minibatches of `FEW`: the same bits and figures.
fn fewer_rows_are_a_smaller_minibatch<T: Trainer>(
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
        let cd =
            |batch| CdConfig { batch, k, persistent: false, momentum: 0.9.into(), ..CdConfig::default() };
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
            let config =
                BackpropConfig { batch, optimizer, dropout: vec![0.2, 0.5], ..BackpropConfig::default() };
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
        let config = UpDownConfig { batch, persistent: false, ..UpDownConfig::default() };
        UpDownTrainer::new(&LabelledDbn::from_dbn(&dbn, 3)?, config, Philox::new(4, 1))
    };
    let values = |model: &LabelledDbn| flat(model.top().tensors().into_iter().map(|(_, t)| t));
    fewer_rows_are_a_smaller_minibatch("labelled", labelled, values)
}

fn first_line(error: candle::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// `values` gives what a model is.
fn keeps_the_contract<T: Trainer>(
    name: &str,
    new: impl Fn() -> Result<T>,
    values: impl Fn(&T::Model) -> Result<Vec<f32>>,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
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
        first.save_checkpoint(&path, &("progress", stop))?;
        drop(first);
        let (mut second, progress) = T::load_checkpoint::<(String, usize)>(&path, &CPU)?;
        assert_eq!(progress, ("progress".to_owned(), stop), "{name}");
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
    Ok(())
}

fn flat(tensors: impl IntoIterator<Item = impl Borrow<Tensor>>) -> Result<Vec<f32>> {
    let flat = tensors.into_iter().map(|t| t.borrow().to_dtype(DType::F32)?.flatten_all()?.to_vec1());
    Ok(flat.collect::<Result<Vec<Vec<f32>>>>()?.concat())
}

#[test]
fn every_trainer_resumes_hands_out_copies_and_checks_without_draining() -> Result<()> {
    keeps_the_contract("rbm", rbm, |rbm| flat(rbm.tensors().into_iter().map(|(_, t)| t)))?;
    keeps_the_contract("patches", patches, |rbm| flat(rbm.tensors().into_iter().map(|(_, t)| t)))?;
    keeps_the_contract("dbn", dbn, |dbn| {
        flat(dbn.layers().iter().flat_map(|rbm| rbm.tensors().into_iter().map(|(_, t)| t)))
    })?;
    keeps_the_contract("feedforward", feedforward, |network| {
        flat(network.layers().iter().flat_map(|(weight, bias)| [weight, bias]))
    })?;
    keeps_the_contract("labelled", labelled, |dbn| {
        flat(dbn.tensors().iter().map(|(_, t)| t).collect::<Vec<_>>())
    })?;
    for tied in [true, false] {
        keeps_the_contract("dae", || dae(tied), |dae| flat(dae.tensors().into_iter().map(|(_, t)| t)))?;
    }
    keeps_the_contract("stacked dae", stacked_dae, |stack| {
        flat(stack.layers().iter().flat_map(|dae| dae.tensors().into_iter().map(|(_, t)| t)))
    })?;
    keeps_the_contract("online", online, |dictionary| flat([dictionary.atoms()]))
}

/// Training in which the schedules come before epoch 1 is training that had them from the start. `new` takes the momentum.
fn follows_the_schedules_of_a_longer_run<T: Trainer>(
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
        let cd = |momentum| CdConfig { momentum, precision, ..cd() };
        follows_the_schedules_of_a_longer_run(
            &format!("rbm, {precision:?}"),
            |momentum| RbmTrainer::new(&rbm, cd(momentum), Philox::new(1, 1)),
            |trainer, momentum| trainer.set_schedules(&cd(momentum)),
            |rbm| flat(rbm.tensors().into_iter().map(|(_, t)| t)),
        )?;
    }
    let dbn = Dbn::init(DbnConfig::new(&[N, 5, 4]), Philox::new(2, 0), &CPU)?;
    let both = |momentum: Schedule| vec![CdConfig { momentum, ..cd() }; 2];
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
        BackpropConfig { batch: BATCH, momentum, optimizer, ..BackpropConfig::default() }
    };
    follows_the_schedules_of_a_longer_run(
        "feedforward",
        |momentum| FeedforwardTrainer::new(&network, sgd(momentum), Philox::new(3, 1)),
        |trainer, momentum| trainer.set_schedules(&sgd(momentum)),
        |network| flat(network.layers().iter().flat_map(|(weight, bias)| [weight, bias])),
    )?;
    let labelled = LabelledDbn::from_dbn(&dbn, 3)?;
    let up_down = |momentum| UpDownConfig { batch: BATCH, momentum, ..UpDownConfig::default() };
    follows_the_schedules_of_a_longer_run(
        "labelled",
        |momentum| UpDownTrainer::new(&labelled, up_down(momentum), Philox::new(4, 1)),
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
    // Images are of raw rows: of another size than what the autoencoder reads where the preparation changes it.
    for (n_visible, preparation) in [(N, Preparation::default()), (3, pca)] {
        let image = Some(ImageShape::grey(2, 3));
        let config = DaeConfig { preparation: preparation.clone(), image, ..DaeConfig::new(n_visible, 4) };
        let dae = Dae::init(config.clone(), Philox::new(6, 0), &CPU)?;
        let training = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
        let resumed = |trainer: DaeTrainer| {
            trainer.save_checkpoint(&path, &())?;
            DaeTrainer::load_checkpoint::<()>(&path, &CPU)?.0.model()
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
    feedforward()?.save_checkpoint(&path, &())?;
    let refused = |error: Option<candle::Error>| first_line(error.expect("loaded"));
    let errors = [
        refused(RbmTrainer::load_checkpoint::<()>(&path, &CPU).err()),
        refused(DbnTrainer::load_checkpoint::<()>(&path, &CPU).err()),
        refused(UpDownTrainer::load_checkpoint::<()>(&path, &CPU).err()),
        refused(OnlineTrainer::load_checkpoint::<()>(&path, &CPU).err()),
        refused(DaeTrainer::load_checkpoint::<()>(&path, &CPU).err()),
        refused(StackedDaeTrainer::load_checkpoint::<()>(&path, &CPU).err()),
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
    feedforward()?.save_checkpoint(&path, &())?;
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
        assert!(FeedforwardTrainer::load_checkpoint::<()>(&path, &CPU).is_err(), "byte {at}");
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
    let config = CdConfig { batch: BATCH, learning_rate: 3e38.into(), momentum: 0.9.into(), ..cd() };
    let mut trainer = RbmTrainer::new(&rbm, config, Philox::new(1, 1))?;
    let rows = Tensor::zeros((BATCH, N), DType::F32, &CPU)?.ones_like()?;
    for _ in 0..8 {
        trainer.step(&rows, None)?;
    }
    let error = first_line(trainer.check().expect_err("diverged"));
    assert!(error.starts_with("RbmTrainer: ") && error.contains("became"), "{error}");
    Ok(())
}
