//! Learning from minibatches.
use super::{CPU, N, beginning, bits, coder, difference, signals, unit_rows};
use candle::{DType, Result, Tensor};
use chandlery::dictionary::{
    CodeError, Dictionary, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer, PursuitMethod, Replace,
    SparseCoder,
};
use chandlery::{Encode, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::codes::ErrorTarget;

#[test]
fn batches_teach_as_much_as_all_signals_at_once() -> Result<()> {
    let y = signals()?;
    let rmse = |d: &Dictionary| -> Result<f64> {
        d.encode(&y)?.residual(&y, d.atoms())?.sqr()?.mean_all()?.sqrt()?.to_scalar()
    };
    let begin = rmse(&beginning(&y)?)?;
    for method in [PursuitMethod::Omp, PursuitMethod::Ols] {
        let error = Some(ErrorTarget::Relative(0.01));
        let coder = SparseCoder { method, error, ..coder() };
        let config = OnlineDictionaryTrainConfig {
            coder: Some(coder),
            max_idle: 100,
            ..OnlineDictionaryTrainConfig::default()
        };
        let mut trainer = OnlineDictionaryTrainer::new(beginning(&y)?, config, Philox::new(7, 0))?;
        for batch in 0..120 {
            // Batches of two sizes.
            let (at, len) =
                if batch % 2 == 0 { (batch / 2 % 4 * 100, 60) } else { (batch / 2 % 4 * 100 + 60, 40) };
            assert_eq!(trainer.partial_fit(&y.narrow(0, at, len)?)?.batch, batch + 1);
        }
        // Whoever has the dictionary codes as the trainer did.
        let of_dictionary = trainer.dictionary().config();
        assert_eq!((of_dictionary.method, of_dictionary.error), (method, Some(CodeError::Relative(0.01))));
        let end = rmse(trainer.dictionary())?;
        assert!(end < 0.5 * begin, "{method:?}: {begin} to {end}");
        let lengths = trainer.dictionary().atoms().sqr()?.sum(1)?;
        assert!(difference(&lengths, &Tensor::ones(N, DType::F64, &CPU)?)? < 1e-12);
    }
    Ok(())
}

#[test]
fn the_dictionary_of_before_a_batch_is_left_alone() -> Result<()> {
    let y = signals()?;
    let mut trainer = OnlineDictionaryTrainer::new(
        beginning(&y)?,
        OnlineDictionaryTrainConfig { coder: Some(coder()), ..OnlineDictionaryTrainConfig::default() },
        Philox::new(7, 0),
    )?;
    let (before, copy) = (trainer.dictionary().clone(), trainer.dictionary().atoms().copy()?);
    trainer.partial_fit(&y)?;
    assert_eq!(bits(before.atoms())?, bits(&copy)?);
    assert!(difference(trainer.dictionary().atoms(), &copy)? > 1e-3);
    Ok(())
}

#[test]
fn without_forgetting_the_statistics_are_those_of_all_batches() -> Result<()> {
    // With every atom fixed the codes of all batches are over one dictionary.
    let y = signals()?;
    let config = || OnlineDictionaryTrainConfig {
        coder: Some(coder()),
        forgetting: 0.,
        n_fixed: N,
        replace: Replace::None,
        ..OnlineDictionaryTrainConfig::default()
    };
    let mut parts = OnlineDictionaryTrainer::new(beginning(&y)?, config(), Philox::new(8, 0))?;
    for batch in 0..4 {
        parts.partial_fit(&y.narrow(0, batch * 100, 100)?)?;
    }
    assert_eq!(bits(parts.dictionary().atoms())?, bits(&unit_rows(beginning(&y)?.atoms())?)?);
    let mut whole = OnlineDictionaryTrainer::new(beginning(&y)?, config(), Philox::new(8, 0))?;
    whole.partial_fit(&y)?;
    let folder = tempfile::tempdir()?;
    let sums = |trainer: &OnlineDictionaryTrainer| {
        let path = folder.path().join("state.safetensors");
        trainer.save(&path, &serde_json::Value::Null)?;
        candle::safetensors::load(&path, &CPU)
    };
    let (parts, whole) = (sums(&parts)?, sums(&whole)?);
    for name in ["gram", "signals"] {
        assert!(difference(&parts[name], &whole[name])? < 1e-9, "{name}");
    }
    Ok(())
}
