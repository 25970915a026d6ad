//! Runs that stop at a checkpoint and go on from it.
use candle::{Result, Tensor};
use chandlery::dbn::{Dbn, DbnTrainer};
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_tests::assert_same_bits;
use std::path::Path;

/// The trainer after `end` steps, of which `first` makes the first `stop`, and one that was read
/// from its checkpoint the others; `run` makes the steps from one number to another.
pub fn resumed<T: MinibatchTrainer>(
    path: &Path,
    mut first: T,
    run: impl Fn(&mut T, usize, usize) -> Result<()>,
    stop: usize,
    end: usize,
) -> Result<T> {
    run(&mut first, 0, stop)?;
    first.save(path, &serde_json::json!(stop))?;
    let device = first.device().clone();
    drop(first);
    let (mut second, at) = T::load(path, &device)?;
    assert_eq!(at, stop);
    run(&mut second, stop, end)?;
    Ok(second)
}

/// Trains two layers for `steps` steps each, in epochs of eight minibatches of 20 rows, and asserts
/// that a run that stops at any of `stops` ends with the same bits. Returns the network; the file
/// at `path` then holds the checkpoint of the last stop.
pub fn assert_two_layers_resume(
    path: &Path,
    new: impl Fn() -> Result<DbnTrainer>,
    rows: &Tensor,
    steps: usize,
    stops: &[usize],
) -> Result<Dbn> {
    let run = |trainer: &mut DbnTrainer, from: usize, to: usize| -> Result<()> {
        for step in from..to {
            if step == steps {
                trainer.next_layer()?;
            }
            trainer.begin_epoch(step % steps / 8)?;
            trainer.step(&rows.narrow(0, step % 8 * 20, 20)?, None)?;
        }
        Ok(())
    };
    let mut whole = new()?;
    run(&mut whole, 0, 2 * steps)?;
    let whole = whole.model()?;
    for &stop in stops {
        let resumed = resumed(path, new()?, run, stop, 2 * steps)?.model()?;
        for (got, want) in resumed.layers().iter().zip(whole.layers()) {
            for ((part, got), (_, want)) in got.tensors().into_iter().zip(want.tensors()) {
                let what = format!("stopped at {stop}: {part} on {:?}", rows.device().location());
                assert_same_bits(&what, &got, &want)?;
            }
        }
    }
    Ok(whole)
}
