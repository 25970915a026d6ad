//! Dictionary learning and sparse coding: statistics summed, atoms replaced alike.
use super::{CPU, Run, each, minibatches, several_are_one};
use candle::{DType, Result, Tensor};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, OnlineDictionaryTrainConfig,
    OnlineDictionaryTrainer, Replace, SparseCoder, UpdateRule,
};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery::{FullBatchTrainer, Trainer};
use chandlery_ops::codes::ErrorTarget;
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::{Group, Philox};
use serde_json::Value;

const ATOMS: usize = 14;
const FEATURES: usize = 9;

/// Atoms of which one is 0, which no row uses, so that it is replaced.
fn atoms() -> Result<Tensor> {
    let atoms = normal((ATOMS, FEATURES), &CPU, Philox::new(1, 0))?;
    atoms.slice_set(&atoms.narrow(0, 5, 1)?.zeros_like()?, 0, 5)?;
    Ok(atoms)
}

#[test]
fn online_dictionaries_of_several_ranks_are_those_of_one() -> Result<()> {
    // The last in units of which the squares leave f32, from the third minibatch on: the statistics
    // change their unit, after the first attempt to add to them.
    let nasty = (0..).zip(minibatches(FEATURES)?);
    let nasty = nasty.map(|(i, rows)| if i < 2 { Ok(rows) } else { rows * 1e25 });
    let nasty = nasty.collect::<Result<Vec<_>>>()?;
    let normal = minibatches(FEATURES)?;
    for (what, replace, nonnegative, rows) in [
        ("worst", Replace::WorstRepresented, false, &normal),
        ("random", Replace::Random, false, &normal),
        ("nonnegative", Replace::WorstRepresented, true, &normal),
        ("nasty", Replace::WorstRepresented, false, &nasty),
    ] {
        let make = || {
            let config = DictionaryConfig {
                nonnegative_atoms: nonnegative,
                nonnegative,
                ..DictionaryConfig::new(ATOMS, FEATURES, 3)
            };
            let atoms = if nonnegative { atoms()?.abs()? } else { atoms()? };
            let training = OnlineDictionaryTrainConfig {
                replace,
                max_idle: 30,
                ..OnlineDictionaryTrainConfig::default()
            };
            let dictionary = Dictionary::from_tensor(config, atoms)?;
            OnlineDictionaryTrainer::new(dictionary, training, Philox::new(1, 1))
        };
        let alone = several_are_one(what, rows, 2e-5, make, OnlineDictionaryTrainer::in_group)?;
        assert!(alone.metrics["replaced"].as_u64() > Some(0), "{what}: {:?}", alone.metrics);
    }
    Ok(())
}

#[test]
fn sparse_coding_of_several_ranks_is_that_of_one() -> Result<()> {
    for replace in [Replace::WorstRepresented, Replace::Random] {
        let make = || {
            let config =
                SparseCodingConfig { tolerance: 1e-9, ..SparseCodingConfig::new(ATOMS, FEATURES, 0.2) };
            let training =
                SparseCodingTrainConfig { replace, max_idle: 30, ..SparseCodingTrainConfig::default() };
            SparseCodingTrainer::new(
                &SparseCoding::from_tensor(config, atoms()?)?,
                training,
                Philox::new(1, 1),
            )
        };
        let rows = minibatches(FEATURES)?;
        let alone = several_are_one("sparse coding", &rows, 2e-5, make, SparseCodingTrainer::in_group)?;
        assert!(alone.metrics["replaced"].as_u64() > Some(0), "{replace:?}: {:?}", alone.metrics);
    }
    Ok(())
}

/// So many iterations more.
fn iterated(mut trainer: DictionaryTrainer, n: usize) -> Result<Run> {
    for _ in 0..n {
        trainer.step()?;
    }
    Run::of(trainer.current(), trainer.last())
}

#[test]
fn dictionaries_of_all_signals_of_several_ranks_are_those_of_one() -> Result<()> {
    let signals = Tensor::cat(&minibatches(FEATURES)?, 0)?;
    let targets = (uniform(signals.dim(0)?, &CPU, Philox::new(3, 0))? * 0.3)?.to_dtype(DType::F64)?;
    for (what, rule, group, nonnegative, per_signal) in [
        ("AK-SVD", UpdateRule::AkSvd, usize::MAX, false, false),
        ("AK-SVD to errors", UpdateRule::AkSvd, usize::MAX, false, true),
        ("SGK", UpdateRule::Sgk, 5, false, false),
        ("nonnegative SGK", UpdateRule::Sgk, 1, true, false),
        ("NSGK", UpdateRule::Nsgk, usize::MAX, false, false),
        ("MOD", UpdateRule::Mod, usize::MAX, false, false),
    ] {
        let make = || {
            let config = DictionaryConfig {
                nonnegative_atoms: nonnegative,
                nonnegative,
                ..DictionaryConfig::new(ATOMS, FEATURES, 3)
            };
            let error = per_signal.then(|| ErrorTarget::PerSignal(targets.clone()));
            let training = DictionaryTrainConfig {
                rule,
                group,
                coherence_penalty: if rule == UpdateRule::Sgk { 0.1 } else { 0. },
                min_uses: 2,
                coder: error.map(|error| SparseCoder { error: Some(error), ..config.coder() }),
                ..DictionaryTrainConfig::default()
            };
            let atoms = if nonnegative { atoms()?.abs()? } else { atoms()? };
            DictionaryTrainer::new(
                Dictionary::from_tensor(config, atoms)?,
                &signals,
                training,
                Philox::new(1, 1),
            )
        };
        let mut first = make()?;
        assert!(first.step()?.is_some_and(|made| made.replaced > 0), "{what}");
        let alone = iterated(make()?, 5)?;
        for world in 1..=4 {
            let what = format!("{what}: {world} ranks");
            let made = || each(world, |group| iterated(make()?.in_group(group)?, 5));
            let ranks = made()?;
            alone.hold(&what, &ranks[0], 2e-5);
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{what} differ");
            assert_eq!(ranks, made()?, "{what}: another run");
        }
        // A checkpoint is refused where the signals give other figures, to the bit.
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("checkpoint.safetensors");
        each(3, |group| {
            let mut trainer = make()?.in_group(group)?;
            trainer.step()?;
            trainer.step()?;
            let own = folder.path().join(format!("{}.safetensors", group.rank()));
            trainer.save(&own, &Value::Null)?;
            if group.rank() == 0 { std::fs::copy(&own, &path).map(drop).map_err(Into::into) } else { Ok(()) }
        })?;
        alone.hold(what, &iterated(DictionaryTrainer::load(&path, &signals, &CPU)?.0, 3)?, 2e-5);
        let resumed =
            |group: &Group| iterated(DictionaryTrainer::load(&path, &signals, &CPU)?.0.in_group(group)?, 3);
        for rank in each(2, resumed)? {
            alone.hold(&format!("{what}, resumed by two ranks"), &rank, 2e-5);
        }
    }
    Ok(())
}

#[test]
fn rules_whose_atoms_follow_one_another_are_refused() -> Result<()> {
    let signals = uniform((20, FEATURES), &CPU, Philox::new(3, 0))?;
    for (rule, group, want) in [
        (UpdateRule::Ksvd, usize::MAX, "rule must be ak-svd, sgk, nsgk or mod for several ranks, got ksvd"),
        (UpdateRule::AkSvd, 4, "group must be all atoms, 14, for ak-svd on several ranks, got 4"),
    ] {
        let said = each(2, |ranks| {
            let dictionary = Dictionary::from_tensor(DictionaryConfig::new(ATOMS, FEATURES, 3), atoms()?)?;
            let training = DictionaryTrainConfig { rule, group, ..DictionaryTrainConfig::default() };
            let trainer = DictionaryTrainer::new(dictionary, &signals, training, Philox::new(1, 1))?;
            Ok(trainer.in_group(ranks).map(drop).unwrap_err().to_string())
        })?;
        assert!(said[0].starts_with(&format!("DictionaryTrainer::in_group: {want}, ")), "{}", said[0]);
    }
    Ok(())
}
