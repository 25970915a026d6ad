//! What the rest of a training depends on, and how it comes back.
use super::super::step::H_DRAWN;
use super::RbmTrainer;
use crate::checkpoint::{self, Checkpoint};
use crate::patch_rbm::Cells;
use candle::{DType, Device, Result, Tensor};

/// The state that has a line for each row of a minibatch.
pub(super) const CHAIN: &str = "chain";

impl RbmTrainer {
    /// Everything that the next step depends on, by name, of all ranks.
    pub(super) fn state(&self) -> Result<Vec<(&'static str, Tensor)>> {
        match &self.gathered_state {
            _ if self.is_alone() => self.own_state(),
            Some(state) => Ok(state.clone()),
            None => candle::bail!("RbmTrainer: call gather on all ranks before model or save"),
        }
    }

    /// The same of this rank; the tensors share memory with the trainer, but for weights in halves.
    pub(in crate::rbm) fn own_state(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let b = &self.buffers;
        let mut state = vec![
            ("params", b.weights.masters.params()?),
            ("hidden_state", b.hidden_state.clone()),
            ("visible_state", b.visible_state.clone()),
            (CHAIN, b.hidden.get(H_DRAWN)?),
            ("counter", b.counter.clone()),
        ];
        state.extend(b.variance.as_ref().map(|v| ("variance", v.state.clone())));
        state.extend(b.weights.masters.apart.as_ref().map(|v| ("velocity", v.clone())));
        Ok(state)
    }

    /// The state as a checkpoint holds it, of this trainer and of those that train by it.
    pub(crate) fn stored_state(&self) -> Result<Vec<(String, Tensor)>> {
        let counts = [self.steps, self.gathered, self.gathered_rows].map(|n| n as i64);
        let counts = Tensor::new(&counts, &Device::Cpu)?;
        let ordered = |(name, t): (&'static str, Tensor)| match &self.padding {
            Some(padding) => Ok((name, padding.state_back(name, &t)?)),
            None => Ok((name, self.reordered(name, t, Cells::windows_back, Cells::rows_back)?)),
        };
        let state = self.state()?.into_iter().map(ordered).chain([Ok(("counts", counts))]);
        state.map(|one: Result<_>| one.map(|(name, t)| (format!("trainer.{name}"), t))).collect()
    }

    /// Puts back what [`stored_state`](Self::stored_state) gave, for a trainer made with the same
    /// sizes and configuration.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub(crate) fn restore(&mut self, stored: &Checkpoint<'_>) -> Result<()> {
        self.put_back(|name| match (&self.padding, stored.of_trainer(name)?) {
            (Some(padding), t) => padding.state(name, &t),
            (None, t) => self.reordered(name, t, Cells::windows, Cells::rows),
        })?;
        [self.steps, self.gathered, self.gathered_rows] = stored.counts()?;
        Ok(())
    }

    /// Copies what `of` gives for each name to the state of this rank. The velocity may be stored
    /// with the weights, or apart from them.
    pub(super) fn put_back(&self, of: impl Fn(&str) -> Result<Tensor>) -> Result<()> {
        let state = self.own_state()?;
        let apart = state.iter().any(|(name, _)| *name == "velocity");
        let fitting = |name: &str| match (name, apart) {
            ("params", true) => of(name)?.narrow(0, 0, 1),
            ("velocity", true) => match of("params")? {
                params if params.dim(0)? == 2 => params.get(1),
                _ => of(name),
            },
            ("params", false) => match of(name)? {
                weight if weight.dim(0)? == 1 => {
                    let both =
                        [weight.to_dtype(DType::F32)?, of("velocity")?.to_dtype(DType::F32)?.unsqueeze(0)?];
                    Tensor::cat(&both, 0)
                }
                both => Ok(both),
            },
            _ => of(name),
        };
        checkpoint::put_back("RbmTrainer", state.iter().map(|(name, t)| (*name, t)), fitting)?;
        let Some((_, params)) = state.iter().find(|(name, _)| *name == "params") else { return Ok(()) };
        self.buffers.weights.masters.set_weight(&params.get(0)?)
    }

    /// A tensor of the state in another order of visible units: checkpoints hold them in lines of
    /// the grid.
    fn reordered(
        &self,
        name: &str,
        t: Tensor,
        windows: impl Fn(&Cells, &Tensor) -> Result<Tensor>,
        rows: impl Fn(&Cells, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        match (&self.cells, name) {
            (Some(cells), "params" | "velocity") => windows(cells, &t),
            (Some(cells), "visible_state" | "variance") => rows(cells, &t),
            _ => Ok(t),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rbm::{Rbm, RbmConfig, RbmTrainConfig, WeightStorage};
    use crate::trainer::MinibatchTrainer;
    use candle::Device::Cpu;
    use chandlery_ops::core::uniform;
    use chandlery_ops::{Philox, Precision};

    fn trainer(training: RbmTrainConfig) -> RbmTrainer {
        let rbm = Rbm::init(RbmConfig::new(6, 8), Philox::new(1, 0), &Cpu).unwrap();
        RbmTrainer::new(&rbm, RbmTrainConfig { batch: 4, ..training }, Philox::new(1, 1)).unwrap()
    }

    fn of(state: &[(String, Tensor)], wanted: &str) -> Tensor {
        state.iter().find(|(name, _)| name == &format!("trainer.{wanted}")).unwrap().1.clone()
    }

    fn numbers(t: &Tensor) -> Vec<f32> {
        t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// As a GPU stores bf16 velocities, and the CPU and ranks that divide rows do not.
    #[test]
    fn a_velocity_comes_back_from_beside_the_weights_and_from_behind_them() {
        let mut learned = trainer(RbmTrainConfig::default());
        learned.step(&uniform((4, 6), &Cpu, Philox::new(2, 0)).unwrap(), None).unwrap();
        let stored = learned.stored_state().unwrap();
        let params = of(&stored, "params");
        let (weight, velocity) = (params.get(0).unwrap(), params.get(1).unwrap());
        assert!(numbers(&velocity).iter().any(|x| *x != 0.));
        let rounded = |t: &Tensor| numbers(&t.to_dtype(DType::BF16).unwrap());

        let mut apart = stored.clone();
        for (name, t) in &mut apart {
            if name == "trainer.params" {
                *t = params.narrow(0, 0, 1).unwrap();
            }
        }
        apart.push(("trainer.velocity".to_owned(), velocity.to_dtype(DType::BF16).unwrap()));
        let mut behind = trainer(RbmTrainConfig::default());
        behind.restore(&Checkpoint::of(apart)).unwrap();
        let got = of(&behind.stored_state().unwrap(), "params");
        assert_eq!(numbers(&got.get(0).unwrap()), numbers(&weight));
        assert_eq!(numbers(&got.get(1).unwrap()), rounded(&velocity));

        let mut beside = trainer(RbmTrainConfig {
            precision: Precision::Bf16,
            weights: WeightStorage::Bf16Stochastic,
            ..RbmTrainConfig::default()
        });
        beside.restore(&Checkpoint::of(stored)).unwrap();
        let got = beside.stored_state().unwrap();
        assert_eq!(numbers(&of(&got, "params")), rounded(&weight));
        assert_eq!(numbers(&of(&got, "velocity")), rounded(&velocity));
    }
}
