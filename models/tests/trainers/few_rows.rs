//! Minibatches that are not full.
use super::{BATCH, CPU, N, first_line, flat, half};
use candle::{Result, Tensor};
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::datasets::ImageShape;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::feedforward::{
    Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer, Optimizer,
};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::{MinibatchTrainer, Model, Philox};
use chandlery_ops::core::uniform;
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
