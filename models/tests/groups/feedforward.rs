//! Networks: dropout, every optimiser, full minibatches and others.
use super::{BATCH, CPU, SIZES, close, each};
use candle::{Result, Tensor};
use chandlery::conv_rbm::ConvGrid;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::feedforward::{
    Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer, Metrics, Optimizer,
    ReconstructionLoss,
};
use chandlery::rbm::RbmConfig;
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::core::uniform;
use chandlery_ops::{Group, Philox};

/// A network, how it is trained, and the classes of its labels.
struct Case {
    network: Feedforward,
    training: FeedforwardTrainConfig,
    classes: Option<u32>,
}

fn cases() -> Result<Vec<Case>> {
    let training = FeedforwardTrainConfig { batch: BATCH, learning_rate: 0.01.into(), ..Default::default() };
    let init = |config| Feedforward::init(config, Philox::new(1, 0), &CPU);
    let filters = RbmConfig::convolution(ConvGrid::of_image([6, 6, 1], 3, 3))?;
    let of_filters =
        Dbn::init(DbnConfig { layers: vec![filters], ..DbnConfig::new(&[1, 1]) }, Philox::new(1, 2), &CPU)?;
    Ok(vec![
        Case {
            network: init(FeedforwardConfig::classifier(&[10, 13, 4]))?,
            training: FeedforwardTrainConfig { dropout: vec![0.2, 0.5], ..training.clone() },
            classes: Some(4),
        },
        Case {
            network: init(FeedforwardConfig::classifier(&[10, 13, 4]))?,
            training: FeedforwardTrainConfig {
                optimizer: Optimizer::Sgd,
                learning_rate: 0.2.into(),
                weight_decay: 1e-3,
                max_norm: Some(1.5),
                ..training.clone()
            },
            classes: Some(4),
        },
        Case {
            network: init(FeedforwardConfig::autoencoder(&[10, 6, 3]))?,
            training: FeedforwardTrainConfig { loss: ReconstructionLoss::CrossEntropy, ..training.clone() },
            classes: None,
        },
        // Steps add units to these.
        Case {
            network: init(FeedforwardConfig::classifier(&[67, 77, 4]))?,
            training: FeedforwardTrainConfig {
                dropout: vec![0.2, 0.5],
                optimizer: Optimizer::Sgd,
                momentum: 0.5.into(),
                ..training.clone()
            },
            classes: Some(4),
        },
        Case { network: Feedforward::from_dbn(&of_filters, 3)?, training, classes: Some(3) },
    ])
}

struct Made {
    parameters: Vec<f32>,
    metrics: Vec<Metrics>,
}

/// Two epochs by one rank, which begins by `start`.
fn trained(
    case: &Case,
    start: impl FnOnce(FeedforwardTrainer) -> Result<FeedforwardTrainer>,
) -> Result<Made> {
    let Case { network, training, classes } = case;
    let mut trainer = start(FeedforwardTrainer::new(network, training.clone(), Philox::new(1, 1))?)?;
    let mut metrics = vec![];
    for epoch in 0..2 {
        trainer.begin_epoch(epoch)?;
        for (i, &n) in SIZES.iter().enumerate() {
            let rows = uniform((n, network.config().n_inputs()), &CPU, Philox::new(2, i as u64))?;
            let labels = classes.map(|classes| (0..n as u32).map(|j| (7 * j + i as u32) % classes).collect());
            let labels = labels.map(|labels: Vec<u32>| Tensor::from_vec(labels, n, &CPU)).transpose()?;
            trainer.step(&rows, labels.as_ref())?;
        }
        trainer.check()?;
        metrics.push(trainer.metrics()?);
    }
    let tensors = trainer.model()?.tensors();
    let values = tensors.iter().map(|(_, t)| t.flatten_all()?.to_vec1::<f32>());
    Ok(Made { parameters: values.collect::<Result<Vec<_>>>()?.concat(), metrics })
}

#[test]
fn networks_of_several_ranks_are_those_of_one() -> Result<()> {
    for (i, case) in cases()?.iter().enumerate() {
        let alone = trained(case, Ok)?;
        for world in 1..=4 {
            let what = format!("case {i}, {world} ranks");
            let made = each(world, |group| trained(case, |trainer| trainer.in_group(group)))?;
            for (a, b) in alone.parameters.iter().zip(&made[0].parameters) {
                close(&what, f64::from(*a), f64::from(*b), 2e-5);
            }
            for of in &made {
                assert_eq!(of.parameters, made[0].parameters, "{what}: ranks differ");
                assert_eq!(of.metrics, made[0].metrics, "{what}: ranks differ");
            }
            for (one, several) in alone.metrics.iter().zip(&made[0].metrics) {
                assert_eq!(one.steps, several.steps);
                close(&what, one.loss, several.loss, 1e-5);
                assert_eq!(one.error, several.error, "{what}");
            }
            let again = each(world, |group| trained(case, |trainer| trainer.in_group(group)))?;
            assert_eq!(again[0].parameters, made[0].parameters, "{what}: another run");
        }
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_some_ranks_goes_on_with_others() -> Result<()> {
    let case = &cases()?[0];
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint.safetensors");
    each(3, |group| {
        trained(case, |trainer| {
            let mut trainer = trainer.in_group(group)?;
            let rows = uniform((BATCH, 10), &CPU, Philox::new(3, 0))?;
            let labels = Tensor::from_vec((0..BATCH as u32).map(|i| i % 4).collect(), BATCH, &CPU)?;
            trainer.step(&rows, Some(&labels))?;
            // What a checkpoint holds of the losses is of all ranks, so all take part in it.
            let own = folder.path().join(format!("{}.safetensors", group.rank()));
            trainer.save(&own, &serde_json::Value::Null)?;
            if group.rank() == 0 {
                std::fs::copy(&own, &path)?;
            }
            Ok(trainer)
        })
    })?;
    let resumed = |group: &Group| trained(case, |_| FeedforwardTrainer::load(&path, &CPU)?.0.in_group(group));
    let alone = trained(case, |_| Ok(FeedforwardTrainer::load(&path, &CPU)?.0))?;
    for made in each(2, resumed)? {
        for (a, b) in alone.parameters.iter().zip(&made.parameters) {
            close("resumed by two ranks", f64::from(*a), f64::from(*b), 2e-5);
        }
        // The first report also has the step before the checkpoint.
        assert_eq!(made.metrics[0].steps, SIZES.len() as u64 + 1);
        close("loss", alone.metrics[0].loss, made.metrics[0].loss, 1e-5);
    }
    Ok(())
}

#[test]
fn too_few_rows_for_the_ranks_are_refused() -> Result<()> {
    let network = Feedforward::init(FeedforwardConfig::classifier(&[4, 2]), Philox::new(1, 0), &CPU)?;
    let training = FeedforwardTrainConfig { batch: 12, ..FeedforwardTrainConfig::default() };
    let said = each(4, |group| {
        let trainer = FeedforwardTrainer::new(&network, training.clone(), Philox::new(1, 1))?;
        Ok(trainer.in_group(group).map(drop).unwrap_err().to_string())
    })?;
    let first = said[0].lines().next().unwrap_or_default();
    assert_eq!(first, "FeedforwardTrainer::in_group: batch must be at least 13 for 4 ranks, got 12");
    Ok(())
}
