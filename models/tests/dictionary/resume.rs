//! Runs that stop and go on, and runs that repeat.
use super::{CPU, N, RULES, beginning, bits, coder, config, dictionary, first_line, signals};
use candle::{DType, Result};
use chandlery::dictionary::{
    DictionaryTrainConfig, DictionaryTrainer, Init, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer,
    OnlineStep, Replace, UpdateRule, init,
};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Trainer};
use chandlery_ops::Philox;

#[test]
fn a_resumed_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let y = signals()?.to_dtype(DType::F32)?;
    for rule in RULES {
        for replace in [Replace::Random, Replace::WorstRepresented] {
            // Many replacements, so that draws and memory matter.
            let config = || DictionaryTrainConfig { replace, min_uses: 80, iterations: 9, ..config(rule) };
            let fresh = || DictionaryTrainer::new(beginning(&y)?, &y, config(), Philox::new(6, 0));
            let mut whole = fresh()?;
            let trace = whole.fit()?;
            assert!(trace.iter().any(|i| i.replaced > 0));
            for stop in [0, 1, 4, 8] {
                let mut first = fresh()?;
                (0..stop).try_for_each(|_| first.step().map(|_| ()))?;
                first.save(&path, &serde_json::json!(stop))?;
                let (mut second, at) = DictionaryTrainer::load(&path, &y, &CPU)?;
                assert_eq!(at, stop);
                assert_eq!((second.last(), second.best_rmse()), (first.last(), first.best_rmse()));
                assert_eq!(second.fit()?, trace[stop..], "{rule:?} {replace:?} stopped at {stop}");
                assert!(bits(second.current().atoms())? == bits(whole.current().atoms())?);
                assert!(bits(second.best().atoms())? == bits(whole.best().atoms())?);
            }
        }
    }
    // Other signals are found out.
    let error = DictionaryTrainer::load(&path, &(&y * 2.)?, &CPU).map(|_| ());
    let message = first_line(error.expect_err("loaded"));
    assert!(message.contains("not a checkpoint: these signals and this configuration"), "{message}");
    // So is another trainer.
    let error = OnlineDictionaryTrainer::load(&path, &CPU).map(|_| ());
    let message = first_line(error.expect_err("loaded"));
    assert!(message.contains("it is of the trainer `dictionary`, wanted `online-dictionary`"), "{message}");
    Ok(())
}

#[test]
fn a_resumed_online_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let y = signals()?.to_dtype(DType::F32)?;
    for replace in [Replace::Random, Replace::WorstRepresented] {
        let config = || OnlineDictionaryTrainConfig {
            coder: Some(coder()),
            replace,
            max_idle: 20,
            max_coherence: Some(0.8),
            ..OnlineDictionaryTrainConfig::default()
        };
        let fresh = || OnlineDictionaryTrainer::new(beginning(&y)?, config(), Philox::new(6, 0));
        let run = |trainer: &mut OnlineDictionaryTrainer,
                   batches: std::ops::Range<usize>|
         -> Result<Vec<OnlineStep>> {
            batches.map(|b| trainer.partial_fit(&y.narrow(0, b % 40 * 10, 10)?)).collect()
        };
        let mut whole = fresh()?;
        let trace = run(&mut whole, 0..80)?;
        assert!(trace.iter().any(|i| i.replaced > 0));
        for stop in [0, 1, 33] {
            let mut first = fresh()?;
            run(&mut first, 0..stop)?;
            first.save(&path, &serde_json::json!(stop))?;
            let (mut second, at) = OnlineDictionaryTrainer::load(&path, &CPU)?;
            assert_eq!(at, stop);
            assert_eq!(second.batches(), stop);
            assert_eq!(run(&mut second, stop..80)?, trace[stop..], "{replace:?} stopped at {stop}");
            assert!(bits(second.dictionary().atoms())? == bits(whole.dictionary().atoms())?);
        }
    }
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_dictionary_and_another_does_not() -> Result<()> {
    let y = signals()?.to_dtype(DType::F32)?;
    let run = |seed| -> Result<Vec<u64>> {
        let atoms = init(&Init::RandomSignals, N, &y, Philox::new(seed, 0))?;
        let config = DictionaryTrainConfig {
            iterations: 5,
            replace: Replace::Random,
            min_uses: 80,
            ..config(UpdateRule::AkSvd)
        };
        let mut trainer = DictionaryTrainer::new(dictionary(atoms)?, &y, config, Philox::new(seed, 1))?;
        trainer.fit()?;
        bits(trainer.current().atoms())
    };
    assert!(run(3)? == run(3)?);
    assert!(run(3)? != run(4)?);
    Ok(())
}
