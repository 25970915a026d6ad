//! Runs that stop and go on.
use super::{CPU, SIZES, beginning, bits, first_line, signals};
use candle::{DType, Result};
use chandlery::dictionary::Replace;
use chandlery::sparse_coding::basis::{BasisMethod, BasisUpdate};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingStep, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery::{Encode, LoadOptions, MinibatchTrainer, Model, Philox, Trainer};

#[test]
fn a_resumed_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for dtype in [DType::F32, DType::F64] {
        let y = signals()?.to_dtype(dtype)?;
        for (replace, method) in [
            (Replace::Random, BasisMethod::BlockCoordinate),
            (Replace::WorstRepresented, BasisMethod::ProjectedGradient),
        ] {
            // Many replacements, so that draws and memory matter.
            let config = SparseCodingTrainConfig {
                basis: BasisUpdate { method, iterations: 2 },
                replace,
                max_idle: 10,
                max_coherence: Some(0.7),
                ..SparseCodingTrainConfig::default()
            };
            let fresh = || SparseCodingTrainer::new(&beginning(dtype)?, config.clone(), Philox::new(6, 0));
            let run = |trainer: &mut SparseCodingTrainer, batches: std::ops::Range<usize>| {
                batches.map(|b| trainer.partial_fit(&y.narrow(0, b % 40 * 10, 10)?)).collect()
            };
            let mut whole = fresh()?;
            let trace: Result<Vec<SparseCodingStep>> = run(&mut whole, 0..40);
            let trace = trace?;
            assert!(trace.iter().any(|step| step.replaced > 0));
            let metrics = whole.metrics()?;
            for stop in [0, 1, 17] {
                let mut first = fresh()?;
                let _: Vec<_> = run(&mut first, 0..stop)?;
                first.save(&path, &serde_json::json!(stop))?;
                let (mut second, at) = SparseCodingTrainer::load(&path, &CPU)?;
                assert_eq!(at, stop);
                assert_eq!((second.steps(), second.config()), (stop as u64, &config));
                let rest: Vec<_> = run(&mut second, stop..40)?;
                assert_eq!(rest, trace[stop..], "{replace:?} stopped at {stop}");
                assert_eq!(second.metrics()?, metrics);
                assert!(bits(second.current().basis())? == bits(whole.current().basis())?);
            }
        }
    }
    let error = chandlery::dictionary::OnlineDictionaryTrainer::load(&path, &CPU).map(drop);
    let message = first_line(error.expect_err("refused"));
    assert!(
        message.ends_with("it is of the trainer `sparse-coding`, wanted `online-dictionary`"),
        "{message}"
    );
    Ok(())
}

#[test]
fn a_model_comes_back_to_the_bit_in_its_type() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let name = folder.path().display().to_string();
    for dtype in [DType::F32, DType::F64] {
        let (model, rows) = (beginning(dtype)?, signals()?.to_dtype(dtype)?);
        model.save_pretrained(folder.path())?;
        let back = SparseCoding::from_pretrained(&name, &LoadOptions::default())?;
        assert_eq!((back.config(), back.basis().dtype()), (model.config(), dtype));
        assert_eq!(bits(&back.encode(&rows)?)?, bits(&model.encode(&rows)?)?);
        assert_eq!(back.basis().dims(), &SIZES[..2]);
    }
    Ok(())
}
