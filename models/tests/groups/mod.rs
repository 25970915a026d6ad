//! Ranks that train together reach what one rank reaches: up to the order of sums, and each the same
//! bits as the others.
#![allow(clippy::unwrap_used)]
mod denoising;
mod dictionaries;
mod feedforward;
mod filters;
mod inference;
mod labelled;
mod latents;
mod patches;
mod rbm;
mod shards;
mod sparse_autoencoders;
mod tsne;

use candle::{DType, Device, Result, Tensor};
use chandlery::{MinibatchTrainer, Model};
use chandlery_ops::core::uniform;
use chandlery_ops::{Group, Philox};
use serde_json::Value;

const CPU: Device = Device::Cpu;
/// Rows of a minibatch; no number of ranks divides it into equal parts of whole blocks of draws.
const BATCH: usize = 22;
/// Minibatches of an epoch: full ones, one that is not, and one of which most ranks have no row.
const SIZES: [usize; 5] = [BATCH, BATCH, 9, 3, BATCH];

/// What each of so many ranks makes of its seat.
fn each<T: Send>(world: usize, of_rank: impl Fn(&Group) -> Result<T> + Sync) -> Result<Vec<T>> {
    Group::on_threads(Group::threads(world), of_rank).into_iter().collect()
}

fn close(what: &str, a: f64, b: f64, most: f64) {
    assert!(a == b || (a - b).abs() <= most * (1. + a.abs()), "{what}: {a} and {b}");
}

/// Minibatches of rows of `p` numbers in [0, 1).
fn minibatches(p: usize) -> Result<Vec<Tensor>> {
    (0u64..).zip(SIZES).map(|(i, n)| uniform((n, p), &CPU, Philox::new(2, i))).collect()
}

/// What a run came to.
#[derive(Debug, PartialEq)]
struct Run {
    parameters: Vec<f64>,
    metrics: Value,
}

impl Run {
    fn of<M: Model>(model: &M, metrics: impl serde::Serialize) -> Result<Self> {
        let tensors = model.tensors();
        let values = tensors.iter().map(|(_, t)| t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>());
        let metrics = serde_json::to_value(metrics).map_err(candle::Error::wrap)?;
        Ok(Self { parameters: values.collect::<Result<Vec<_>>>()?.concat(), metrics })
    }

    /// Parameters within `most`, and figures within ten times of it; counts are the same.
    fn hold(&self, what: &str, other: &Self, most: f64) {
        assert_eq!(self.parameters.len(), other.parameters.len(), "{what}");
        for (a, b) in self.parameters.iter().zip(&other.parameters) {
            close(what, *a, *b, most);
        }
        let (Value::Object(a), Value::Object(b)) = (&self.metrics, &other.metrics) else { panic!("{what}") };
        assert_eq!(a.len(), b.len(), "{what}");
        for ((name, a), (_, b)) in a.iter().zip(b) {
            match (a.as_u64(), a.as_f64(), b.as_f64()) {
                (None, Some(x), Some(y)) => close(&format!("{what}, {name}"), x, y, 10. * most),
                _ => assert_eq!(a, b, "{what}, {name}"),
            }
        }
    }
}

/// Steps of `minibatches` by one rank.
fn trained<T>(mut trainer: T, minibatches: &[Tensor]) -> Result<Run>
where
    T: MinibatchTrainer,
    T::Model: Model,
{
    minibatches.iter().try_for_each(|rows| trainer.step(rows, None))?;
    trainer.check()?;
    Run::of(&trainer.model()?, trainer.metrics()?)
}

/// Trainers that `make` gives and that `join` a group, against one alone and one another: from their
/// first step, and from a checkpoint of other ranks. Returns what one alone came to.
fn several_are_one<T>(
    what: &str,
    minibatches: &[Tensor],
    most: f64,
    make: impl Fn() -> Result<T> + Sync,
    join: impl Fn(T, &Group) -> Result<T> + Sync,
) -> Result<Run>
where
    T: MinibatchTrainer,
    T::Model: Model,
{
    let alone = trained(make()?, minibatches)?;
    for world in 1..=4 {
        let made = || each(world, |group| trained(join(make()?, group)?, minibatches));
        let (ranks, again) = (made()?, made()?);
        assert_eq!(ranks, again, "{what}: another run of {world} ranks");
        alone.hold(&format!("{what}: {world} ranks"), &ranks[0], most);
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{what}: the {world} ranks differ");
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint.safetensors");
    let (first, rest) = minibatches.split_at(minibatches.len() / 2);
    each(3, |group| {
        let mut trainer = join(make()?, group)?;
        first.iter().try_for_each(|rows| trainer.step(rows, None))?;
        // What a checkpoint holds may be of all ranks, so all take part in it.
        trainer.gather()?;
        if group.rank() == 0 { trainer.save(&path, &Value::Null) } else { trainer.join_save() }
    })?;
    for ranks in each(2, |group| trained(join(T::load(&path, &CPU)?.0, group)?, rest))? {
        alone.hold(&format!("{what}: a checkpoint of 3 ranks, resumed by 2"), &ranks, most);
    }
    Ok(alone)
}
