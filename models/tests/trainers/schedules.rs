//! Schedules, step by step and of runs that are extended.
use super::{BATCH, CPU, N, cd, flat};
use candle::{Result, Tensor};
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::datasets::{Feed, FeedConfig, Split};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::feedforward::{
    Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer, Optimizer,
};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::schedule::Schedule;
use chandlery::{Epochs, Event, MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::Precision;
use chandlery_ops::core::uniform;
use std::ops::ControlFlow;

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
