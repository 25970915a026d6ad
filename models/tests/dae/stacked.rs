//! A stack of autoencoders: layer by layer it is what its layers are, and a classifier stands on
//! it.
use super::{CPU, first_line, grey, off, values};
use candle::{Module, Result, Tensor};
use chandlery::dae::{Dae, DaeTrainConfig, DaeTrainer, StackedDae, StackedDaeConfig, StackedDaeTrainer};
use chandlery::feedforward::{Feedforward, FeedforwardTrainConfig, FeedforwardTrainer, ReconstructionLoss};
use chandlery::{Decode, Encode, Layered, MinibatchTrainer, Philox, Preparation, Trainer};
use chandlery_ops::layers::Corruption;

fn stack(sizes: &[usize]) -> Result<StackedDae> {
    StackedDae::init(StackedDaeConfig::new(sizes), Philox::new(3, 0), &CPU)
}

fn training(batch: usize, corruption: f32) -> DaeTrainConfig {
    DaeTrainConfig { batch, corruption: Corruption::Masking(corruption), ..DaeTrainConfig::default() }
}

#[test]
fn each_layer_learns_from_the_clean_hidden_units_of_the_one_below() -> Result<()> {
    let momentum = |corruption| DaeTrainConfig { momentum: 0.5.into(), ..training(8, corruption) };
    // One op for all steps; and ops for each, with units beside those of the layers.
    learns_alone([12, 9, 5], training(8, 0.1), training(8, 0.3))?;
    learns_alone([70, 67, 77], momentum(0.1), momentum(0.3))
}

fn learns_alone(sizes: [usize; 3], lower: DaeTrainConfig, upper: DaeTrainConfig) -> Result<()> {
    let rows = grey(40, sizes[0])?;
    let minibatches = rows.chunk(5, 0)?;
    let both = vec![lower.clone(), upper.clone()];
    let mut trainer = StackedDaeTrainer::new(&stack(&sizes)?, both, Philox::new(4, 6))?;
    minibatches.iter().try_for_each(|rows| trainer.step(rows, None))?;
    assert!(trainer.next_layer()?);
    let lowest = trainer.model()?.layers()[0].clone();
    minibatches.iter().try_for_each(|rows| trainer.step(rows, None))?;
    assert!(!trainer.next_layer()?);
    let trained = trainer.model()?;
    // The lowest layer alone, and the upper one on its features.
    let start = stack(&sizes)?;
    let mut alone = DaeTrainer::new(&start.layers()[0], lower, Philox::new(4, 6))?;
    minibatches.iter().try_for_each(|rows| alone.step(rows, None))?;
    let same = |a: &Dae, b: &Dae| -> Result<f64> {
        let (a, b) = (values(a.weight())?, values(b.weight())?);
        Ok(a.iter().zip(&b).fold(0f64, |worst, (a, b)| worst.max((a - b).abs())))
    };
    assert_eq!(same(&lowest, &alone.model()?)?, 0.);
    assert_eq!(same(&lowest, &trained.layers()[0])?, 0., "the lower layer went on learning");
    let mut upper = DaeTrainer::new(&start.layers()[1], upper, Philox::new(4, 7))?;
    for rows in &minibatches {
        upper.step(&lowest.forward(rows)?, None)?;
    }
    // Products by candle and by this crate's own sum in another order.
    let off = same(&trained.layers()[1], &upper.model()?)?;
    assert!(off < 1e-5, "{off:e}");
    assert!(same(&trained.layers()[1], &start.layers()[1])? > 1e-3, "the upper layer has not learned");
    Ok(())
}

#[test]
fn steps_made_at_once_are_the_bits_of_single_steps_wherever_they_are_cut() -> Result<()> {
    let (batch, n) = (8, 7);
    let rows = grey(n * batch, 37)?;
    let trained = |cuts: &[usize]| -> Result<Vec<f64>> {
        let training = vec![training(batch, 0.1), training(batch, 0.3)];
        let mut trainer = StackedDaeTrainer::new(&stack(&[37, 21, 6])?, training, Philox::new(4, 6))?;
        let mut made = Vec::new();
        loop {
            let mut at = 0;
            for &steps in cuts {
                trainer.steps_of(&rows.narrow(0, at * batch, steps * batch)?, None, steps)?;
                at += steps;
            }
            assert_eq!(at, n);
            made.extend(values(trainer.layer_model()?.weight())?);
            if !trainer.next_layer()? {
                return Ok(made);
            }
        }
    };
    let single = trained(&[1; 7])?;
    assert_eq!(trained(&[7])?, single);
    assert_eq!(trained(&[3, 4])?, single);
    Ok(())
}

#[test]
fn an_unrolled_stack_gives_back_what_the_stack_does() -> Result<()> {
    let rows = grey(4, 12)?;
    let mut untied = StackedDaeConfig::new(&[12, 9, 5]);
    untied.layers[0].tied = false;
    for stack in [stack(&[12, 9, 5])?, StackedDae::init(untied, Philox::new(3, 0), &CPU)?] {
        let network = Feedforward::unroll_stacked_dae(&stack)?;
        let (got, want) = (values(&network.forward(&rows)?)?, values(&stack.reconstruct(&rows)?)?);
        assert!(off(&got, &want) < 1e-6, "{}", off(&got, &want));
        assert_eq!(values(&network.encode(&rows)?)?, values(&stack.forward(&rows)?)?);
    }
    Ok(())
}

#[test]
fn features_are_those_of_the_layers() -> Result<()> {
    let preparation = Preparation::scale(0.5).map_err(candle::Error::wrap)?;
    let stack = StackedDae::from_layers(
        StackedDaeConfig { preparation, ..StackedDaeConfig::new(&[12, 9, 5]) },
        stack(&[12, 9, 5])?.layers().to_vec(),
    )?;
    let rows = grey(4, 12)?;
    let half = (&rows * 0.5)?;
    // The lowest layer prepares rows as the stack does.
    let by_hand = stack.layers()[1].encode(&stack.layers()[0].encode(&rows)?)?;
    assert_eq!(values(&stack.forward(&rows)?)?, values(&by_hand)?);
    assert_eq!(values(&stack.features(&rows, 0)?)?, values(&half)?);
    let down = stack.layers()[0].decode(&stack.layers()[1].decode(&by_hand)?)?;
    assert_eq!(values(&stack.reconstruct_prepared(&half)?)?, values(&down)?);
    assert_eq!(values(&stack.reconstruct(&rows)?)?, values(&(down * 2.)?)?);
    let error = first_line(stack.features(&rows, 3).expect_err("taken"));
    assert_eq!(error, "StackedDae::features: layer must be 0 to 2, got 3");
    Ok(())
}

#[test]
fn a_classifier_on_top_begins_with_the_features_and_is_fine_tuned() -> Result<()> {
    let rows = grey(60, 12)?;
    let labels: Vec<u32> = rows
        .to_vec2::<f32>()?
        .iter()
        .map(|row| u32::from(row[..6].iter().sum::<f32>() > row[6..].iter().sum()))
        .collect();
    let labels = Tensor::new(labels, &CPU)?;
    let stack = stack(&[12, 9, 5])?;
    let network = Feedforward::from_stacked_dae(&stack, 2)?;
    assert_eq!(values(&network.features(&rows, 2)?)?, values(&stack.forward(&rows)?)?);
    assert_eq!(values(&network.forward(&rows)?)?, vec![0.; 120]);
    let config =
        FeedforwardTrainConfig { batch: 20, learning_rate: 0.05.into(), ..FeedforwardTrainConfig::default() };
    let mut trainer = FeedforwardTrainer::new(&network, config, Philox::new(5, 0))?;
    for _ in 0..100 {
        for at in [0, 20, 40] {
            trainer.step(&rows.narrow(0, at, 20)?, Some(&labels.narrow(0, at, 20)?))?;
        }
    }
    let (before, after) = (network.errors(&rows, &labels)?, trainer.model()?.errors(&rows, &labels)?);
    assert!(before > 15 && after < 6, "{before} errors of 60 before, {after} after");
    Ok(())
}

#[test]
fn stacks_that_do_not_fit_are_refused() -> Result<()> {
    let refused = |config: StackedDaeConfig| {
        first_line(StackedDae::init(config, Philox::new(0, 0), &CPU).expect_err("taken"))
    };
    let mut gap = StackedDaeConfig::new(&[12, 9, 5]);
    gap.layers[1].n_visible = 8;
    assert_eq!(refused(gap), "StackedDaeConfig: layers[1].n_visible must be layers[0].n_hidden = 9, got 8");
    let none = StackedDaeConfig::new(&[12]);
    assert_eq!(refused(none), "StackedDaeConfig: layers must hold at least one autoencoder, got none");
    let error = StackedDaeTrainer::new(&stack(&[12, 9, 5])?, vec![training(8, 0.1)], Philox::new(0, 0));
    assert_eq!(
        first_line(error.err().expect("taken")),
        "StackedDaeTrainer: training must have one entry for each of 2 layers, got 1"
    );
    // The upper layer's rows are in (0, 1), whatever the lowest reads.
    let mut real = StackedDaeConfig::new(&[12, 9, 5]);
    real.layers[0].output = chandlery::feedforward::Activation::Identity;
    real.layers[0].loss = ReconstructionLoss::SquaredError;
    let network = Feedforward::from_stacked_dae(&StackedDae::init(real, Philox::new(0, 0), &CPU)?, 3)?;
    assert!(network.config().visible.is_gaussian());
    Ok(())
}
