//! Signals, penalties and updates of table 4 of Raina, Madhavan and Ng 2009.
use super::super::timing::{Seconds, time};
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::sparse_coding::basis::BasisUpdate;
use chandlery::sparse_coding::lasso::{Activations, Lasso, Solver};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery_datasets::patches::{ImageSet, PatchSampler};
use std::sync::Arc;

/// Signals that the penalty of a density is searched with, and halvings of the interval.
const SEARCHED: usize = 200;
const HALVINGS: usize = 12;

/// Patches of mean 0 and deviation 1, `[n, side²]`.
pub(in super::super) fn patches(
    images: &Arc<ImageSet>,
    side: usize,
    n: usize,
    seed: u64,
    device: &Device,
) -> Result<Tensor> {
    let rows =
        PatchSampler::new(images.clone(), side, n, seed)?.into_split()?.raw(device)?.to_dtype(DType::F32)?;
    let rows = rows.broadcast_sub(&rows.mean_keepdim(1)?)?;
    let deviation = (rows.sqr()?.mean_keepdim(1)? + 1e-6)?.sqrt()?;
    Ok(rows.broadcast_div(&deviation)?.contiguous()?)
}

/// The penalty at which this share of the activations of some signals is not 0.
pub(in super::super) fn penalty(signals: &Tensor, atoms: &Tensor, share: f64) -> Result<f64> {
    let some = signals.narrow(0, 0, SEARCHED.min(signals.dim(0)?))?;
    let (mut low, mut high) = (1e-3, Lasso::new(1.).lambda_max(&some, atoms)?);
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        let of = Lasso::new(middle).solve(&some, atoms, None)?;
        if nonzero(&of)? > share { low = middle } else { high = middle }
    }
    Ok((low * high).sqrt())
}

pub(in super::super) fn nonzero(activations: &Activations) -> Result<f64> {
    let used = activations.counts()?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    Ok(used / activations.dense.elem_count() as f64)
}

pub(in super::super) fn largest(gaps: &Tensor) -> Result<f64> {
    Ok(gaps.max(0)?.to_dtype(DType::F64)?.to_scalar()?)
}

/// Random directions, `[n, p]`.
pub(in super::super) fn directions(n: usize, p: usize, device: &Device) -> Result<Tensor> {
    let config = SparseCodingConfig::new(n, p, 0.);
    Ok(SparseCoding::init(config, Philox::new(12, 0), device)?.basis().clone())
}

/// How a basis is updated.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Update {
    pub solver: Solver,
    pub basis: BasisUpdate,
    /// Signals of a minibatch.
    pub batch: usize,
    /// How fast earlier minibatches are forgotten.
    pub forgetting: f64,
}

impl Update {
    /// Minibatches of table 4, and what trainers do unless they are told otherwise.
    pub fn usual() -> Self {
        let SparseCodingTrainConfig { basis, forgetting, .. } = SparseCodingTrainConfig::default();
        Self { solver: Solver::default(), basis, batch: 1000, forgetting }
    }

    /// Learns from all signals once; gives the trainer.
    pub fn pass(&self, signals: &Tensor, atoms: &Tensor, beta: f64) -> Result<SparseCodingTrainer> {
        let ((m, p), n) = (signals.dims2()?, atoms.dim(0)?);
        let config = SparseCodingConfig { solver: self.solver, ..SparseCodingConfig::new(n, p, beta) };
        let model = SparseCoding::from_tensor(config, atoms.clone())?;
        let config = SparseCodingTrainConfig {
            basis: self.basis,
            forgetting: self.forgetting,
            ..SparseCodingTrainConfig::default()
        };
        let mut trainer = SparseCodingTrainer::new(&model, config, Philox::new(0, 1))?;
        for first in (0..m).step_by(self.batch) {
            trainer.partial_fit(&signals.narrow(0, first, self.batch.min(m - first))?.contiguous()?)?;
        }
        Ok(trainer)
    }

    /// Seconds of one pass.
    pub fn time(&self, repeats: u32, signals: &Tensor, atoms: &Tensor, beta: f64) -> Result<Seconds> {
        time(signals.device(), repeats, || self.pass(signals, atoms, beta).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_penalty_gives_the_share_of_nonzeros_that_was_asked_for() -> Result<()> {
        let signals = chandlery_ops::core::normal((60, 20), &Device::Cpu, Philox::new(1, 0))?;
        let atoms = chandlery_ops::core::normal((40, 20), &Device::Cpu, Philox::new(1, 1))?;
        let atoms = atoms.broadcast_div(&atoms.sqr()?.sum_keepdim(1)?.sqrt()?)?;
        for share in [0.05, 0.2] {
            let beta = penalty(&signals, &atoms, share)?;
            let got = nonzero(&Lasso::new(beta).solve(&signals, &atoms, None)?)?;
            assert!((got / share - 1.).abs() < 0.05, "{got} for {share}");
        }
        Ok(())
    }
}
