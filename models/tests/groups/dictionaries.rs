//! Online dictionary learning and sparse coding: statistics summed, atoms replaced alike.
use super::{CPU, minibatches, several_are_one};
use candle::{Result, Tensor};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer, Replace,
};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;

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
