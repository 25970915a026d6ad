//! Networks with labels by the up-down algorithm: the draws of one rank, gradients summed, and chains
//! by rank.
use super::{BATCH, CPU, Run, SIZES, each};
use candle::{Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer, Stage};
use chandlery::schedule::Schedule;
use chandlery::{MinibatchTrainer, Trainer};
use chandlery_ops::core::uniform;
use chandlery_ops::{Group, Philox};
use serde_json::Value;
use std::ops::Range;

/// Widths of layers that are no multiples of a block of draws.
const VISIBLE: usize = 7;
const CLASSES: u32 = 3;
/// Rounding of sums, which may not move a draw.
const MOST: f64 = 2e-5;

/// A way of learning: layers, and how.
struct Case {
    what: &'static str,
    sizes: &'static [usize],
    training: LabelledDbnTrainConfig,
}

fn cases() -> Vec<Case> {
    let training = LabelledDbnTrainConfig {
        batch: BATCH,
        learning_rate: Schedule::linear(0.1, 0., 6),
        momentum: 0.5.into(),
        // The second epoch has another step.
        k: Schedule::steps([(0, 1.), (1, 3.)]),
        l2: 1e-3,
        ..LabelledDbnTrainConfig::default()
    };
    let persistent = LabelledDbnTrainConfig { persistent: true, ..training.clone() };
    let deep: &[usize] = &[VISIBLE, 6, 5, 9];
    vec![
        Case { what: "the paper's", sizes: deep, training: training.clone() },
        Case { what: "persistent chains", sizes: deep, training: persistent.clone() },
        Case {
            what: "the top alone",
            sizes: deep,
            training: LabelledDbnTrainConfig { stage: Stage::Top, ..persistent.clone() },
        },
        Case { what: "no layer below the top", sizes: &[VISIBLE, 9], training: persistent },
    ]
}

impl Case {
    fn trainer(&self) -> Result<LabelledDbnTrainer> {
        let dbn = Dbn::init(DbnConfig::new(self.sizes), Philox::new(1, 0), &CPU)?;
        let dbn = LabelledDbn::from_dbn(&dbn, CLASSES as usize)?;
        LabelledDbnTrainer::new(&dbn, self.training.clone(), Philox::new(1, 1))
    }
}

fn step(trainer: &mut LabelledDbnTrainer, i: usize) -> Result<()> {
    let n = SIZES[i % SIZES.len()];
    let rows = uniform((n, VISIBLE), &CPU, Philox::new(2, i as u64))?;
    let labels = Tensor::from_iter((0..n as u32).map(|j| (7 * j + i as u32) % CLASSES), &CPU)?;
    trainer.step(&rows, Some(&labels))
}

/// Steps of two epochs, and what they come to.
fn steps(trainer: &mut LabelledDbnTrainer, of: Range<usize>) -> Result<Run> {
    for i in of {
        trainer.begin_epoch(i / SIZES.len())?;
        step(trainer, i)?;
    }
    trainer.check()?;
    Run::of(&trainer.model()?, trainer.metrics()?)
}

const ALL: usize = 2 * SIZES.len();
/// Where a checkpoint is written, after a minibatch that is not full.
const HALF: usize = 4;

#[test]
fn up_down_of_several_ranks_is_that_of_one() -> Result<()> {
    for case in cases() {
        let what = case.what;
        let alone = steps(&mut case.trainer()?, 0..ALL)?;
        for world in 1..=4 {
            let made = || each(world, |group| steps(&mut case.trainer()?.in_group(group)?, 0..ALL));
            let (ranks, again) = (made()?, made()?);
            assert_eq!(ranks, again, "{what}: another run of {world} ranks");
            alone.hold(&format!("{what}: {world} ranks"), &ranks[0], MOST);
            assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{what}: the {world} ranks differ");
        }
    }
    Ok(())
}

#[test]
fn a_minibatch_is_one_sum_over_ranks() -> Result<()> {
    for case in cases() {
        each(3, |group| {
            let mut trainer = case.trainer()?.in_group(group)?;
            let full = |i: usize| SIZES[i] == BATCH;
            for i in (0..SIZES.len()).filter(|&i| full(i)) {
                let before = group.exchanges();
                step(&mut trainer, i)?;
                assert_eq!(group.exchanges() - before, 1, "{}", case.what);
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_some_ranks_goes_on_with_others_and_their_chains() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint.safetensors");
    for case in cases() {
        let alone = steps(&mut case.trainer()?, 0..ALL)?;
        let whole = each(3, |group| steps(&mut case.trainer()?.in_group(group)?, 0..ALL))?;
        each(3, |group| {
            let mut trainer = case.trainer()?.in_group(group)?;
            for i in 0..HALF {
                trainer.begin_epoch(i / SIZES.len())?;
                step(&mut trainer, i)?;
            }
            if group.rank() == 0 {
                let said = trainer.save(&path, &Value::Null).unwrap_err().to_string();
                assert!(said.starts_with("LabelledDbnTrainer::save: all ranks must call gather"), "{said}");
            }
            trainer.gather()?;
            if group.rank() == 0 { trainer.save(&path, &Value::Null) } else { trainer.join_save() }
        })?;
        for world in 1..=4 {
            let what = format!("{}: a checkpoint of 3 ranks, resumed by {world}", case.what);
            let resumed = |group: &Group| {
                steps(&mut LabelledDbnTrainer::load(&path, &CPU)?.0.in_group(group)?, HALF..ALL)
            };
            let made = each(world, resumed)?;
            alone.hold(&what, &made[0], MOST);
            assert!(world != 3 || made[0] == whole[0], "{what}: other bits");
        }
    }
    Ok(())
}

#[test]
fn each_rank_refuses_rows_and_labels_of_any() -> Result<()> {
    let Case { training, .. } = &cases()[0];
    let few = Case {
        what: "",
        sizes: &[VISIBLE, 9],
        training: LabelledDbnTrainConfig { batch: 8, ..training.clone() },
    };
    let first = |error: candle::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    let said = each(3, |group| Ok(few.trainer()?.in_group(group).map(drop).map_err(first).unwrap_err()))?;
    assert_eq!(said[0], "LabelledDbnTrainer::in_group: batch must be at least 9 for 3 ranks, got 8");

    // The last row, which is the last rank's.
    let case = &cases()[0];
    let rows = uniform((BATCH, VISIBLE), &CPU, Philox::new(2, 0))?;
    let high = rows.copy()?;
    high.slice_set(&(rows.narrow(0, BATCH - 1, 1)? + 2.)?, 0, BATCH - 1)?;
    let fine = Tensor::zeros(BATCH, candle::DType::U32, &CPU)?;
    let wrong =
        Tensor::from_iter((0..BATCH as u32).map(|i| if i + 1 == BATCH as u32 { 3u32 } else { 0 }), &CPU)?;
    let said = each(3, |group| {
        let mut trainer = case.trainer()?.in_group(group)?;
        let of_labels = trainer.step(&rows, Some(&wrong)).map_err(first).unwrap_err();
        trainer.step(&high, Some(&fine))?;
        Ok((of_labels, trainer.check().map_err(first).unwrap_err()))
    })?;
    for (of_labels, of_rows) in said {
        assert_eq!(of_labels, "LabelledDbnTrainer::step: labels must be below n_classes = 3, got 3");
        let want = "LabelledDbnTrainer: prepared rows must lie between 0 and 1 for Bernoulli units, got";
        assert!(of_rows.starts_with(want), "{of_rows}");
    }
    Ok(())
}
