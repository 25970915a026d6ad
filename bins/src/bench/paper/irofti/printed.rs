//! Iterations as the paper prints them: algorithm 1, the whole error matrix, the update of the
//! atoms in groups of `ñ`.
//!
//! Nothing is replaced and nothing measured between iterations, as in the paper.
use crate::bench::dictionary::training::Task;
use anyhow::Result;
use candle::Tensor;
use chandlery::dictionary::UpdateRule;
use chandlery_ops::codes::{AtomUpdate, AtomUses, SparseCodes, bomp_cholesky, update_atoms};

/// A dictionary that is learned as printed, on the CPU.
pub struct Printed<'a> {
    signals: &'a Tensor,
    atoms: Tensor,
    task: Task,
    /// The codes of the iteration before, which NSGK updates by.
    previous: Option<(SparseCodes, AtomUses)>,
}

impl<'a> Printed<'a> {
    /// Begins with `atoms` of length 1.
    pub fn new(signals: &'a Tensor, atoms: &Tensor, task: Task) -> Self {
        Self { signals, atoms: atoms.clone(), task, previous: None }
    }

    /// Codes the signals, and updates the atoms.
    pub fn step(&mut self) -> Result<()> {
        let Task { s, rule, group, .. } = self.task;
        let codes = bomp_cholesky(self.signals, &self.atoms, s)?;
        let uses = AtomUses::of(&codes)?;
        // NSGK's Z − X'D is Y − X D (see `chandlery::dictionary::train`).
        let error = codes.residual(self.signals, &self.atoms)?;
        let power_steps = usize::from(rule == UpdateRule::AkSvd);
        let update = AtomUpdate { group, power_steps, ..AtomUpdate::default() };
        let (by, its_uses) = match (&self.previous, rule) {
            (Some((codes, uses)), UpdateRule::Nsgk) => (codes, uses),
            _ => (&codes, &uses),
        };
        self.atoms = update_atoms(&self.atoms, by, its_uses, &error, &update)?.0;
        self.previous = (rule == UpdateRule::Nsgk).then_some((codes, uses));
        Ok(())
    }

    /// The atoms after the last iteration.
    #[cfg(test)]
    fn atoms(&self) -> &Tensor {
        &self.atoms
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::RULES;
    use super::*;
    use crate::bench::dictionary::data;
    use candle::{DType, Device::Cpu};
    use chandlery::dictionary::{
        Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Replace,
    };
    use chandlery::{FullBatchTrainer, Philox};

    #[test]
    fn printed_iterations_are_those_of_the_trainer() {
        let (signals, atoms) = (data::patches(600, 4, &Cpu).unwrap(), data::atoms(24, 4, &Cpu).unwrap());
        let (signals, atoms) = (signals.to_dtype(DType::F64).unwrap(), atoms.to_dtype(DType::F64).unwrap());
        let lengths = atoms.sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
        let atoms = atoms.broadcast_div(&lengths).unwrap();
        for (name, rule) in RULES {
            for group in [1, 5, 24] {
                let mut printed = Printed::new(&signals, &atoms, Task { m: 600, n: 24, s: 3, rule, group });
                let config =
                    DictionaryTrainConfig { rule, group, replace: Replace::None, ..Default::default() };
                let first = Dictionary::from_tensor(DictionaryConfig::new(24, 16, 3), atoms.clone()).unwrap();
                let mut trainer = DictionaryTrainer::new(first, &signals, config, Philox::new(0, 0)).unwrap();
                for _ in 0..3 {
                    printed.step().unwrap();
                    trainer.step().unwrap();
                }
                let off = (printed.atoms() - trainer.current().atoms()).unwrap().abs().unwrap();
                let off = off.max_all().unwrap().to_scalar::<f64>().unwrap();
                // The same arithmetic but for the form of the pursuit, in f64.
                assert!(off < 1e-8, "{name} in groups of {group}: atoms differ by {off}");
            }
        }
    }
}
