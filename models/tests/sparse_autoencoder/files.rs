//! Models and runs come back from their files to the bit.
use super::{CPU, first_line, pairs, start};
use candle::{DType, Module, Result, Tensor};
use chandlery::feedforward::Optimizer;
use chandlery::sparse_autoencoder::{
    CostConfig, FullBatchOptimizer, SparseAutoencoder, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer,
};
use chandlery::{Decode, FullBatchTrainer, LoadOptions, MinibatchTrainer, Model, Trainer};
use std::ops::ControlFlow;

fn bits(t: &Tensor) -> Result<Vec<u32>> {
    Ok(t.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

#[test]
fn a_model_comes_back_to_the_bit_and_its_layers_are_linear() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let name = folder.path().display().to_string();
    let (saved, rows) = (start()?, pairs(9)?);
    saved.save_pretrained(folder.path())?;
    let back = SparseAutoencoder::from_pretrained(&name, &LoadOptions::default())?;
    assert_eq!(back.config(), saved.config());
    assert_eq!(bits(&back.flat()?)?, bits(&saved.flat()?)?);
    let tensors = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
    let linear = candle_nn::Linear::new(tensors["weight"].clone(), Some(tensors["bias"].clone()));
    let features = candle_nn::ops::sigmoid(&linear.forward(&rows)?)?;
    assert_eq!(bits(&features)?, bits(&back.forward(&rows)?)?);
    assert_eq!((features.dims(), back.reconstruct(&rows)?.dims()), (&[9, 6][..], &[9, 8][..]));
    Ok(())
}

#[test]
fn a_run_that_is_resumed_goes_on_bit_for_bit_by_every_optimiser_in_both_types_and_in_chunks() -> Result<()> {
    let (folder, rows) = (tempfile::tempdir()?, pairs(90)?);
    let path = folder.path().join("run.safetensors");
    let lbfgs = FullBatchOptimizer::Lbfgs;
    for (optimizer, learning_rate, double, chunk) in [
        (lbfgs, None, false, None),
        (lbfgs, None, true, None),
        (lbfgs, None, false, Some(40)),
        (FullBatchOptimizer::ConjugateGradient, None, false, None),
        (FullBatchOptimizer::ConjugateGradient, None, true, Some(40)),
        (FullBatchOptimizer::GradientDescent, None, false, None),
        (FullBatchOptimizer::GradientDescent, Some(0.1), false, None),
    ] {
        let fit = SparseAutoencoderLbfgsTrainConfig {
            iterations: 30,
            optimizer,
            learning_rate,
            history: 5,
            double,
            chunk,
            ..SparseAutoencoderLbfgsTrainConfig::default()
        };
        let mut whole = SparseAutoencoderLbfgsTrainer::new(&start()?, fit, &rows)?;
        whole.fit()?;
        for at in [0, 1, 13] {
            let mut part = SparseAutoencoderLbfgsTrainer::new(&start()?, fit, &rows)?;
            if at > 0 {
                part.fit_with(|_, i| {
                    Ok(if i.iteration == at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })?;
            }
            part.save(&path, &serde_json::json!(at))?;
            let (mut again, progress) = SparseAutoencoderLbfgsTrainer::load(&path, &rows, &CPU)?;
            assert_eq!(progress, at);
            assert_eq!(again.descent().iterations(), at);
            again.fit()?;
            assert_eq!(
                bits(&again.model()?.flat()?)?,
                bits(&whole.model()?.flat()?)?,
                "{optimizer:?} {double} {chunk:?} {at}"
            );
            assert_eq!(again.descent().value(), whole.descent().value());
        }
    }
    let refused = SparseAutoencoderLbfgsTrainer::load(&path, &pairs(91)?, &CPU).map(drop);
    let message = refused.map_err(first_line).err().unwrap_or_default();
    assert!(
        message.ends_with("the run is over 90 rows, got [91, 8]; give the rows that it began with"),
        "{message}"
    );
    Ok(())
}

#[test]
fn a_trainer_that_is_resumed_goes_on_bit_for_bit() -> Result<()> {
    let (folder, rows) = (tempfile::tempdir()?, pairs(80)?);
    let path = folder.path().join("trainer.safetensors");
    for optimizer in [Optimizer::Adam, Optimizer::Sgd] {
        let config = SparseAutoencoderTrainConfig {
            batch: 20,
            optimizer,
            cost: CostConfig::default(),
            ..SparseAutoencoderTrainConfig::default()
        };
        let mut whole = SparseAutoencoderTrainer::new(&start()?, config)?;
        let minibatches = rows.chunk(4, 0)?;
        for minibatch in &minibatches[..3] {
            whole.step(minibatch, None)?;
        }
        whole.save(&path, &serde_json::json!(3))?;
        let (mut again, progress) = SparseAutoencoderTrainer::load(&path, &CPU)?;
        assert_eq!(progress, 3);
        assert_eq!(again.steps(), 3);
        again.begin_epoch(0)?;
        for trainer in [&mut whole, &mut again] {
            trainer.step(&minibatches[3], None)?;
        }
        assert_eq!(bits(&again.model()?.flat()?)?, bits(&whole.model()?.flat()?)?);
        assert_eq!(again.metrics()?, whole.metrics()?);
    }
    Ok(())
}
