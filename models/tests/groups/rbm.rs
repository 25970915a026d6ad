//! Ranks that share the hidden units of RBMs, or divide the rows of minibatches, reach what one
//! rank reaches, up to the order of sums.
use super::{CPU, each};
use candle::{Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::rbm::{
    Division, HiddenUnit, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig, VisibleUnit,
    WeightStorage,
};
use chandlery::{MinibatchTrainer, Model, Precision, Trainer};
use chandlery_ops::core::uniform;
use chandlery_ops::{Group, Philox};
use serde_json::Value;

/// Rows of full minibatches, of one that is not full, and of one of which most ranks that divide
/// rows have none; no number of ranks divides them into equal parts.
const SIZES: [usize; 5] = [BATCH, BATCH, 7, 3, BATCH];
const BATCH: usize = 22;
const VISIBLE: usize = 18;
/// Divides into parts of 16 for one rank only: by fours into 5 and 4, or 3 each, or 3, 2, 2 and 2.
const HIDDEN: usize = 36;

pub(super) fn minibatches(n_visible: usize) -> Result<Vec<Tensor>> {
    (0u64..).zip(SIZES).map(|(i, n)| uniform((n, n_visible), &CPU, Philox::new(2, i))).collect()
}

pub(super) fn numbers(model: &impl Model) -> Result<Vec<f32>> {
    let tensors = model.tensors();
    let all = tensors.iter().map(|(_, t)| t.flatten_all()?.to_vec1::<f32>());
    Ok(all.collect::<Result<Vec<_>>>()?.concat())
}

/// Parameters and error after two rounds of minibatches.
fn trained(mut trainer: RbmTrainer, n_visible: usize) -> Result<(Vec<f32>, f64)> {
    let rows = minibatches(n_visible)?;
    rows.iter().chain(&rows).try_for_each(|rows| trainer.step(rows, None))?;
    trainer.check()?;
    let error = trainer.metrics()?.reconstruction_error;
    trainer.gather()?;
    Ok((numbers(&trainer.model()?)?, error))
}

pub(super) fn far(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0., f32::max)
}

pub(super) fn config() -> RbmTrainConfig {
    RbmTrainConfig {
        batch: BATCH,
        learning_rate: 0.1.into(),
        momentum: 0.5.into(),
        l2: 1e-3,
        ..RbmTrainConfig::default()
    }
}

/// What is trained, and how.
pub(super) type Case = (&'static str, RbmConfig, RbmTrainConfig);

/// Each way of learning that ranks can share.
pub(super) fn cases(plain: RbmConfig) -> Vec<Case> {
    let gaussian = RbmConfig { visible: VisibleUnit::Gaussian, ..plain.clone() };
    let sparsity = SparsityConfig { target: 0.1, cost: 0.5, decay: 0.9 };
    vec![
        ("plain", plain.clone(), config()),
        ("a chain of three steps", plain.clone(), RbmTrainConfig { k: 3, sample_visible: true, ..config() }),
        ("persistent chains", plain.clone(), RbmTrainConfig { persistent: true, ..config() }),
        ("drawn rows", plain.clone(), RbmTrainConfig { binarize: true, ..config() }),
        (
            "sparse, and of short weights",
            plain.clone(),
            RbmTrainConfig { sparsity: Some(sparsity), max_norm: Some(0.1), l1: 1e-3, ..config() },
        ),
        ("real-valued", gaussian.clone(), RbmTrainConfig { learning_rate: 0.01.into(), ..config() }),
        (
            "rectified",
            RbmConfig { hidden: HiddenUnit::Rectified, ..gaussian },
            RbmTrainConfig { learning_rate: 0.001.into(), ..config() },
        ),
        ("bf16", plain, RbmTrainConfig { precision: Precision::Bf16, ..config() }),
    ]
}

fn trainer((_, rbm, training): &Case) -> Result<RbmTrainer> {
    RbmTrainer::new(&Rbm::init(rbm.clone(), Philox::new(7, 0), &CPU)?, training.clone(), Philox::new(7, 1))
}

#[test]
fn every_number_of_ranks_learns_what_one_learns() -> Result<()> {
    every_number_learns_alike(&cases(RbmConfig::new(VISIBLE, HIDDEN)))
}

/// What ranks divide.
const DIVISIONS: [Division; 2] = [Division::Units, Division::Rows];

/// The same case in each division, with its name.
fn divided((what, rbm, training): &Case) -> Vec<(String, Case)> {
    let of = |division| {
        let case = (*what, rbm.clone(), RbmTrainConfig { division, ..training.clone() });
        (format!("{what}, {division:?} divided"), case)
    };
    DIVISIONS.map(of).into()
}

pub(super) fn every_number_learns_alike(cases: &[Case]) -> Result<()> {
    for (what, case) in &cases.iter().flat_map(divided).collect::<Vec<_>>() {
        let n = case.1.n_visible;
        let (alone, error) = trained(trainer(case)?, n)?;
        assert!(far(&alone, &numbers(&trainer(case)?.model()?)?) > 1e-3, "{what}: nothing was learned");
        for world in [1, 2, 3, 4] {
            let all = each(world, |group| trained(trainer(case)?.in_group(group)?, n))?;
            assert!(all.iter().all(|of| *of == all[0]), "{what}, {world} ranks: each its own");
            // bf16 states double a rounding that falls the other way.
            let most = if case.0 == "bf16" { 2e-3 } else { 2e-5 };
            assert!(far(&all[0].0, &alone) < most, "{what}, {world} ranks: {}", far(&all[0].0, &alone));
            assert!((all[0].1 - error).abs() < 1e-2 * error.abs(), "{what}: {} and {error}", all[0].1);
            if world == 1 {
                assert_eq!(all[0], (alone.clone(), error), "{what}");
            }
        }
        let again = each(3, |group| trained(trainer(case)?.in_group(group)?, n))?;
        assert_eq!(
            again,
            each(3, |group| trained(trainer(case)?.in_group(group)?, n))?,
            "{what}: other bits"
        );
    }
    Ok(())
}

#[test]
fn a_checkpoint_is_that_of_all_ranks_and_goes_on_with_another_number() -> Result<()> {
    checkpoints_go_on(&cases(RbmConfig::new(VISIBLE, HIDDEN)))
}

pub(super) fn checkpoints_go_on(cases: &[Case]) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    for (what, case) in &cases.iter().flat_map(divided).collect::<Vec<_>>() {
        let n = case.1.n_visible;
        let path = folder.path().join("trainer.safetensors");
        let (alone, _) = trained(trainer(case)?, n)?;
        each(3, |group| {
            let mut trainer = trainer(case)?.in_group(group)?;
            minibatches(n)?.iter().try_for_each(|rows| trainer.step(rows, None))?;
            trainer.gather()?;
            if group.rank() == 0 { trainer.save(&path, &Value::Null) } else { Ok(()) }
        })?;
        let go_on_by = |group: &Group, division| {
            let mut trainer = RbmTrainer::load(&path, &CPU)?.0;
            trainer.set_division(division);
            let mut trainer = trainer.in_group(group)?;
            minibatches(n)?.iter().try_for_each(|rows| trainer.step(rows, None))?;
            trainer.gather()?;
            numbers(&trainer.model()?)
        };
        let most = if case.0 == "bf16" { 2e-3 } else { 2e-5 };
        for (world, division) in [1, 2, 3].into_iter().flat_map(|n| DIVISIONS.map(|of| (n, of))) {
            let all = each(world, |group| go_on_by(group, division))?;
            let far = far(&all[0], &alone);
            assert!(far < most, "{what}, {world} ranks that go on by {division:?}: {far}");
        }
        // The same number of ranks: the bits of a run that was not stopped.
        let whole = each(3, |group| trained(trainer(case)?.in_group(group)?, n))?;
        assert_eq!(each(3, |group| go_on_by(group, case.2.division))?[0], whole[0].0, "{what}");
    }
    Ok(())
}

#[test]
fn a_network_is_trained_layer_by_layer() -> Result<()> {
    let network = Dbn::init(DbnConfig::new(&[VISIBLE, HIDDEN, 8]), Philox::new(7, 0), &CPU)?;
    layers_are_alike(&network, 2)
}

/// A network of several layers by so many ranks, against one.
pub(super) fn layers_are_alike(network: &Dbn, world: usize) -> Result<()> {
    DIVISIONS.into_iter().try_for_each(|division| layers_are_alike_by(network, world, division))
}

fn layers_are_alike_by(network: &Dbn, world: usize, division: Division) -> Result<()> {
    let layers = &network.config().layers;
    let training = RbmTrainConfig { division, ..config() };
    let (n, training) = (layers[0].n_visible, vec![training; layers.len()]);
    let of = |group: &Group| -> Result<Vec<f32>> {
        let mut trainer = DbnTrainer::new(network, training.clone(), Philox::new(7, 1))?.in_group(group)?;
        loop {
            minibatches(n)?.iter().try_for_each(|rows| trainer.step(rows, None))?;
            trainer.gather()?;
            if !trainer.next_layer()? {
                return numbers(&trainer.model()?);
            }
        }
    };
    let alone = of(&Group::single())?;
    let all = each(world, of)?;
    assert!(all.iter().all(|of| *of == all[0]), "{world} ranks: each its own");
    assert!(far(&all[0], &alone) < 2e-5, "{world} ranks: {}", far(&all[0], &alone));
    assert!(far(&alone, &numbers(network)?) > 1e-3, "nothing was learned");
    Ok(())
}

/// What two ranks are told that cannot train so.
pub(super) fn refused(rbm: RbmConfig, training: RbmTrainConfig) -> Result<String> {
    let said = each(2, |group| {
        let text = trainer(&("", rbm.clone(), training.clone()))?.in_group(group).err().unwrap().to_string();
        Ok(text.lines().next().unwrap_or_default().to_owned())
    })?;
    assert_eq!(said[0], said[1]);
    Ok(said[0].clone())
}

#[test]
fn what_ranks_cannot_share_is_refused() -> Result<()> {
    let odd = "RbmTrainer: hidden units must be a multiple of 4, and 4 for each of 2 ranks, got ";
    assert_eq!(refused(RbmConfig::new(VISIBLE, 37), config())?, format!("{odd}37"));
    assert_eq!(refused(RbmConfig::new(VISIBLE, 4), config())?, format!("{odd}4"));
    let dense = "RbmTrainer: several ranks need weights with f32 copies and no learned variances; train this one on one rank";
    let stochastic =
        RbmTrainConfig { weights: WeightStorage::Bf16Stochastic, precision: Precision::Bf16, ..config() };
    assert_eq!(refused(RbmConfig::new(VISIBLE, HIDDEN), stochastic)?, dense);
    let learned = RbmConfig { visible: VisibleUnit::GaussianLearned, ..RbmConfig::new(VISIBLE, HIDDEN) };
    assert_eq!(refused(learned.clone(), config())?, dense);

    let rows = RbmTrainConfig { division: Division::Rows, ..config() };
    let few = "RbmTrainer::in_group: batch must be at least 5 for 2 ranks, got 4";
    assert_eq!(refused(RbmConfig::new(VISIBLE, 37), RbmTrainConfig { batch: 4, ..rows.clone() })?, few);
    let stochastic =
        RbmTrainConfig { weights: WeightStorage::Bf16Stochastic, precision: Precision::Bf16, ..rows.clone() };
    assert_eq!(refused(RbmConfig::new(VISIBLE, HIDDEN), stochastic)?, dense);
    assert_eq!(refused(learned, rows)?, dense);
    Ok(())
}

#[test]
fn ranks_that_divide_rows_sum_once_a_step_whatever_its_chains() -> Result<()> {
    // No number of hidden units that ranks could share.
    let rbm = RbmConfig::new(VISIBLE, 37);
    let training =
        RbmTrainConfig { division: Division::Rows, persistent: true, binarize: true, k: 3, ..config() };
    each(3, |group| {
        let mut trainer = trainer(&("", rbm.clone(), training.clone()))?.in_group(group)?;
        for rows in minibatches(VISIBLE)?.iter().filter(|rows| rows.dims()[0] == BATCH) {
            let before = group.exchanges();
            trainer.step(rows, None)?;
            assert_eq!(group.exchanges() - before, 1);
        }
        assert_eq!(trainer.chains()?.dims(), [group.rows(BATCH).len(), 37]);
        let said = trainer.save(std::path::Path::new("nowhere"), &Value::Null).unwrap_err().to_string();
        assert!(said.starts_with("RbmTrainer: call gather on all ranks before"), "{said}");
        Ok(())
    })?;
    Ok(())
}

#[test]
fn rows_that_one_rank_alone_has_are_refused_on_all() -> Result<()> {
    let rbm = RbmConfig::new(VISIBLE, HIDDEN);
    let training = RbmTrainConfig { division: Division::Rows, ..config() };
    let rows = minibatches(VISIBLE)?[0].copy()?;
    rows.slice_set(&(rows.narrow(0, BATCH - 1, 1)? + 2.)?, 0, BATCH - 1)?;
    let said = each(3, |group| {
        let mut trainer = trainer(&("", rbm.clone(), training.clone()))?.in_group(group)?;
        trainer.step(&rows, None)?;
        Ok(trainer.check().unwrap_err().to_string())
    })?;
    for said in said {
        assert!(said.starts_with("RbmTrainer: prepared rows must lie between 0 and 1"), "{said}");
    }
    Ok(())
}
