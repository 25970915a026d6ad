//! Signals in units far from one: what is learned does not depend on them.
use super::{N, beginning, bits, coder, config, difference, signals};
use candle::{DType, Result, Tensor};
use chandlery::dictionary::{
    DictionaryTrainConfig, DictionaryTrainer, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer, Replace,
    SparseCoder, UpdateRule,
};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::codes::ErrorTarget;

/// Signals of a type, and the powers of two that it can bear beside those of length 1 or so.
fn cases() -> Result<[(Tensor, &'static [i32]); 2]> {
    let y = signals()?;
    Ok([(y.to_dtype(DType::F32)?, &[-60, -30, 30, 63, 100]), (y, &[-400, -60, 60, 400])])
}

#[test]
fn the_unit_of_signals_changes_no_bit_of_the_atoms() -> Result<()> {
    for (y, powers) in cases()? {
        for (rule, penalty) in
            super::RULES.map(|rule| (rule, 0.)).into_iter().chain([(UpdateRule::AkSvd, 5.)])
        {
            let run = |unit: f64| -> Result<(f64, Tensor)> {
                let y = (&y * unit)?;
                // Some codes end at an error, some at the number of atoms; some atoms are replaced.
                let coder = SparseCoder { error: Some(ErrorTarget::Absolute(0.5 * unit)), ..coder() };
                let config = DictionaryTrainConfig {
                    coder: Some(coder),
                    min_uses: 60,
                    coherence_penalty: penalty * unit * unit,
                    ..config(rule)
                };
                let mut trainer = DictionaryTrainer::new(beginning(&y)?, &y, config, Philox::new(3, 0))?;
                for _ in 0..6 {
                    trainer.step()?;
                }
                Ok((trainer.last().rmse / unit, trainer.current().atoms().clone()))
            };
            let (rmse, atoms) = run(1.)?;
            assert!(
                difference(&beginning(&y)?.atoms().to_dtype(DType::F64)?, &atoms.to_dtype(DType::F64)?)?
                    > 0.01
            );
            for &power in powers {
                let (other_rmse, other) = run(2f64.powi(power))?;
                assert_eq!(other_rmse, rmse, "{rule:?} in units of 2^{power}");
                assert!(bits(&other)? == bits(&atoms)?, "{rule:?} in units of 2^{power}: other atoms");
            }
        }
    }
    Ok(())
}

#[test]
fn the_unit_of_batches_changes_no_bit_of_the_atoms() -> Result<()> {
    for (y, powers) in cases()? {
        let run = |unit: f64| -> Result<Tensor> {
            let y = (&y * unit)?;
            let config = OnlineDictionaryTrainConfig {
                coder: Some(coder()),
                max_idle: 20,
                ..OnlineDictionaryTrainConfig::default()
            };
            let mut trainer = OnlineDictionaryTrainer::new(beginning(&y)?, config, Philox::new(6, 0))?;
            // The first batch is silent.
            trainer.partial_fit(&y.narrow(0, 0, 10)?.zeros_like()?)?;
            for batch in 0..40 {
                trainer.partial_fit(&y.narrow(0, batch * 10, 10)?)?;
            }
            Ok(trainer.dictionary().atoms().clone())
        };
        let atoms = run(1.)?;
        for &power in powers {
            assert!(bits(&run(2f64.powi(power))?)? == bits(&atoms)?, "in units of 2^{power}: other atoms");
        }
    }
    Ok(())
}

#[test]
fn batches_that_grow_out_of_their_unit_go_on_and_resume() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let y = signals()?;
    // f32 cannot square the last of these; f64, which can square all of them, says what must come
    // out.
    let run = |dtype: DType| -> Result<Tensor> {
        let config = || OnlineDictionaryTrainConfig {
            coder: Some(coder()),
            forgetting: 0.,
            replace: Replace::None,
            ..OnlineDictionaryTrainConfig::default()
        };
        let mut trainer =
            OnlineDictionaryTrainer::new(beginning(&y.to_dtype(dtype)?)?, config(), Philox::new(6, 0))?;
        for (batch, power) in [0, 10, 20, 40, 70, 72].into_iter().enumerate() {
            let batch = (y.narrow(0, batch * 60, 60)? * 2f64.powi(power))?.to_dtype(dtype)?;
            trainer.partial_fit(&batch)?;
            trainer.save(&path, &serde_json::Value::Null)?;
            (trainer, _) = OnlineDictionaryTrainer::load(&path, y.device())?;
        }
        trainer.dictionary().atoms().to_dtype(DType::F64)
    };
    let (got, want) = (run(DType::F32)?, run(DType::F64)?);
    assert!(difference(&got, &want)? < 1e-4, "{}", difference(&got, &want)?);
    assert_eq!(got.dims()[0], N);
    Ok(())
}
