//! Sparse autoencoders: mean activations, cost and gradient summed.
use super::{CPU, Run, each, minibatches, several_are_one};
use candle::{Result, Tensor};
use chandlery::feedforward::Optimizer;
use chandlery::sparse_autoencoder::{
    CostConfig, Decoder, FullBatchOptimizer, SparseAutoencoder, SparseAutoencoderConfig,
    SparseAutoencoderLbfgsTrainConfig, SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig,
    SparseAutoencoderTrainer,
};
use chandlery::{FullBatchTrainer, Trainer};
use chandlery_ops::{Group, Philox};
use serde_json::Value;

const VISIBLE: usize = 7;

fn model(decoder: Decoder) -> Result<SparseAutoencoder> {
    let config = SparseAutoencoderConfig { decoder, ..SparseAutoencoderConfig::new(VISIBLE, 5) };
    SparseAutoencoder::init(config, Philox::new(1, 0), &CPU)
}

#[test]
fn minibatches_of_several_ranks_make_the_steps_of_one() -> Result<()> {
    for (decoder, optimizer, learning_rate) in
        [(Decoder::Sigmoid, Optimizer::Adam, 0.01), (Decoder::Linear, Optimizer::Sgd, 0.2)]
    {
        let make = || {
            let training = SparseAutoencoderTrainConfig {
                batch: super::BATCH,
                optimizer,
                learning_rate: learning_rate.into(),
                ..SparseAutoencoderTrainConfig::default()
            };
            SparseAutoencoderTrainer::new(&model(decoder)?, training)
        };
        let what = format!("{decoder:?}");
        several_are_one(&what, &minibatches(VISIBLE)?, 2e-5, make, SparseAutoencoderTrainer::in_group)?;
    }
    Ok(())
}

/// So many iterations more.
fn descended(mut run: SparseAutoencoderLbfgsTrainer, n: usize) -> Result<Run> {
    for _ in 0..n {
        run.step()?;
    }
    Run::of(&run.model()?, run.parts()?)
}

#[test]
fn all_rows_of_several_ranks_make_the_iterations_of_one() -> Result<()> {
    for (optimizer, double, chunk, m, most) in [
        (FullBatchOptimizer::Lbfgs, true, None, 22, 1e-9),
        (FullBatchOptimizer::Lbfgs, true, Some(3), 22, 1e-9),
        (FullBatchOptimizer::ConjugateGradient, true, None, 3, 1e-9),
        (FullBatchOptimizer::GradientDescent, false, None, 22, 2e-5),
    ] {
        let rows = Tensor::cat(&minibatches(VISIBLE)?, 0)?.narrow(0, 0, m)?;
        let make = || {
            let cost = CostConfig { weight_decay: 1e-3, sparsity_target: 0.2, ..CostConfig::default() };
            let config = SparseAutoencoderLbfgsTrainConfig {
                cost,
                optimizer,
                chunk,
                double,
                ..SparseAutoencoderLbfgsTrainConfig::default()
            };
            SparseAutoencoderLbfgsTrainer::new(&model(Decoder::Sigmoid)?, config, &rows)
        };
        let alone = descended(make()?, 8)?;
        for world in 1..=4 {
            let what = format!("{optimizer:?}, {chunk:?}: {world} ranks");
            let made = || each(world, |group| descended(make()?.in_group(group)?, 8));
            let ranks = made()?;
            alone.hold(&what, &ranks[0], most);
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{what} differ");
            assert_eq!(ranks, made()?, "{what}: another run");
        }
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("checkpoint.safetensors");
        each(3, |group| {
            let mut run = make()?.in_group(group)?;
            for _ in 0..3 {
                run.step()?;
            }
            if group.rank() == 0 { run.save(&path, &Value::Null) } else { Ok(()) }
        })?;
        let resumed = |group: &Group| {
            descended(SparseAutoencoderLbfgsTrainer::load(&path, &rows, &CPU)?.0.in_group(group)?, 5)
        };
        for rank in each(2, resumed)? {
            alone.hold("resumed by two ranks", &rank, most);
        }
    }
    Ok(())
}
