//! Units beside those of layers in training, which stay at 0.
use super::step::{Buffers, GRADIENT, VALUES, VELOCITY};
use super::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use crate::checkpoint::Checkpoint;
use crate::feedforward::{Activation, ReconstructionLoss};
use crate::model::Model;
use crate::trainer::{MinibatchTrainer, Trainer};
use candle::{Device::Cpu, Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::core::uniform;
use chandlery_ops::layers::Corruption;
use chandlery_ops::{Philox, Precision};

const V: usize = 67;
const H: usize = 77;

/// Below, for the top autoencoder, and rows for the lowest.
fn layers(config: DaeConfig) -> Result<(Vec<Dae>, Dae, Tensor)> {
    let below = Dae::init(DaeConfig::new(70, config.n_visible), Philox::new(1, 0), &Cpu)?;
    let rows = uniform((6, 70), &Cpu, Philox::new(2, 0))?;
    Ok((vec![below], Dae::init(config, Philox::new(1, 2), &Cpu)?, rows))
}

/// Largest magnitude of what belongs to units beside those that were given: weights, gradients,
/// velocities, and what they read.
fn strays(buffers: &Buffers) -> Result<f32> {
    let mut largest = 0f32;
    let beyond = |t: &Tensor, dim: usize, n: usize| t.narrow(dim, n, t.dim(dim)? - n);
    for plane in [VALUES, GRADIENT, VELOCITY] {
        let params = buffers.plane(plane)?;
        let mut found = vec![beyond(&params.weight, 1, V)?, beyond(&params.weight, 0, H)?];
        if let Some(decoder) = &params.decoder_weight {
            found.extend([beyond(decoder, 0, V)?, beyond(decoder, 1, H)?]);
        }
        // The biases themselves keep the units at 0.
        if plane != VALUES {
            found.extend([beyond(&params.bias, 0, H)?, beyond(&params.visible_bias, 0, V)?]);
        }
        for t in found {
            let numbers = t.flatten_all()?.to_vec1::<f32>()?;
            assert!(!numbers.is_empty() && numbers.iter().all(|x| x.is_finite()), "{plane}");
            largest = numbers.iter().fold(largest, |a, b| a.max(b.abs()));
        }
    }
    let read = beyond(&buffers.corrupted()?, 1, V)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(read.iter().fold(largest, |a, b| a.max(b.abs())))
}

fn forms() -> Vec<DaeConfig> {
    use Activation::{Identity, Relu, Sigmoid, Tanh};
    let of = |(hidden, output, loss, tied)| DaeConfig { hidden, output, loss, tied, ..DaeConfig::new(V, H) };
    let (cross, square) = (ReconstructionLoss::CrossEntropy, ReconstructionLoss::SquaredError);
    [
        (Sigmoid, Sigmoid, cross, true),
        (Sigmoid, Sigmoid, cross, false),
        (Tanh, Sigmoid, square, true),
        (Relu, Identity, square, false),
        (Identity, Tanh, square, true),
        (Sigmoid, Relu, square, false),
    ]
    .map(of)
    .to_vec()
}

#[test]
fn no_gradient_reaches_the_weights_of_more_units() -> Result<()> {
    let plain = DaeTrainConfig {
        batch: 6,
        momentum: 0.5.into(),
        weight_decay: 0.1,
        learning_rate: 0.05.into(),
        ..DaeTrainConfig::default()
    };
    let corruptions = [
        Corruption::None,
        Corruption::SaltAndPepper(0.9),
        Corruption::Masking(0.5),
        Corruption::Flip(0.9),
        Corruption::Gaussian(0.5),
    ];
    for (config, corruption) in
        forms().iter().flat_map(|config| corruptions.map(|corruption| (config, corruption)))
    {
        for precision in [Precision::F32, Precision::Bf16] {
            let training = DaeTrainConfig { corruption, precision, ..plain.clone() };
            let (lower, dae, rows) = layers(config.clone())?;
            let mut trainer =
                DaeTrainer::above(&lower, &dae, &Preparation::default(), training, Philox::new(1, 1))?;
            for rows in [&rows, &rows, &rows.narrow(0, 0, 5)?, &rows] {
                trainer.step(rows, None)?;
            }
            trainer.check()?;
            assert_eq!(strays(trainer.buffers())?, 0., "{config:?} {corruption} {precision:?}");
            let learned = trainer.model()?;
            assert_eq!(learned.config(), dae.config());
            for ((name, learned), (_, first)) in learned.tensors().into_iter().zip(dae.tensors()) {
                assert_eq!(learned.dims(), first.dims());
                let moved = (learned - first)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(moved > 1e-5 && moved.is_finite(), "{config:?} {name}: {moved}");
            }
        }
    }
    Ok(())
}

#[test]
fn checkpoints_hold_the_units_that_were_given_and_give_the_others_back() -> Result<()> {
    for tied in [true, false] {
        let (lower, dae, rows) = layers(DaeConfig { tied, ..DaeConfig::new(V, H) })?;
        let training = DaeTrainConfig { batch: 6, momentum: 0.9.into(), ..DaeTrainConfig::default() };
        let make = || {
            let preparation = Preparation::default();
            DaeTrainer::above(&lower, &dae, &preparation, training.clone(), Philox::new(1, 1))
        };
        let mut first = make()?;
        first.step(&rows, None)?;
        let stored = first.stored_state()?;
        // Each tensor begins at a multiple of 64 entries.
        let n_weights = if tied { 5184 } else { 2 * 5184 };
        let shapes: Vec<_> = stored.iter().map(|(_, t)| t.dims().to_vec()).collect();
        assert!(shapes.contains(&vec![3, n_weights + 2 * 128]), "{shapes:?}");
        let mut second = make()?;
        second.restore(&Checkpoint::of(stored))?;
        for trainer in [&mut first, &mut second] {
            trainer.step(&rows, None)?;
        }
        for ((name, a), (_, b)) in first.model()?.tensors().into_iter().zip(second.model()?.tensors()) {
            assert_eq!(a.flatten_all()?.to_vec1::<f32>()?, b.flatten_all()?.to_vec1::<f32>()?, "{name}");
        }
        assert_eq!(strays(second.buffers())?, 0.);
    }
    Ok(())
}

#[test]
fn aligned_layers_and_small_ones_stay_as_they_are() -> Result<()> {
    let widths = |n_visible, n_hidden| {
        let dae = Dae::init(DaeConfig::new(n_visible, n_hidden), Philox::new(1, 0), &Cpu)?;
        let training = DaeTrainConfig { momentum: 0.5.into(), ..DaeTrainConfig::default() };
        let trainer = DaeTrainer::new(&dae, training, Philox::new(1, 1))?;
        let (h, v) = trainer.buffers().plane(VALUES)?.weight.dims2()?;
        Ok::<_, candle::Error>((v, h))
    };
    assert_eq!(widths(64, 512)?, (64, 512));
    assert_eq!(widths(63, 61)?, (63, 61));
    assert_eq!(widths(105, 61)?, (112, 61));
    assert_eq!(widths(784, 500)?, (784, 512));
    Ok(())
}
