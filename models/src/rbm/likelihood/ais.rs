//! Annealed importance sampling of the partition function, from below and from above.
//!
//! ```text
//! forward   v ~ p_0;            for β < β' up to 1:    ln w += ln p*_β'(v) − ln p*_β(v);  v ~ T_β'(v)
//!           ln Z ≈ ln Z_A + ln ⟨w⟩
//! reverse   v ~ p_1;            for β > β' down to 0:  the same
//!           ln Z ≈ ln Z_A − ln ⟨w⟩
//! bounds    ln(⟨w⟩ ± 3 s/√M)
//! ```
//!
//! | symbol | is |
//! |---|---|
//! | `p*_β`, `Z_A` | the annealing path and the partition function at its start, see `path.rs` |
//! | `T_β` | one Gibbs step at `β`: hidden units, then visible units; it is its own reverse |
//! | `w`, `s`, `M` | the weights of the chains, their standard deviation, `n_chains` |
//!
//! The weights sum over the hidden units analytically. Each temperature costs two products of
//! `n_chains · n_visible · n_hidden` in f64 and one pass over the states of each side, four launches
//! on a GPU. Nothing is read back before the end.
//!
//! Source: Salakhutdinov and Murray 2008, sections 3 and 4.1, with their bounds; reverse annealing
//! is that of Burda, Grosse and Salakhutdinov 2015. Departure: with real-valued units, the
//! independent units have the standard deviations of the RBM. Draws compare a multiple of 2⁻²⁴ with
//! the mean, which so is rounded up to one.
use super::path::{Chains, Path};
use super::{Estimate, Progress};
use crate::check::{at_least_one, batch_of};
use crate::rbm::{Rbm, RbmConfig};
use crate::share::Share;
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};

/// The shares of Salakhutdinov and Murray's 14,500 temperatures, and where each ends.
const STAGES: [Stage; 3] =
    [Stage { n: 500, to: 0.5 }, Stage { n: 4000, to: 0.9 }, Stage { n: 10_000, to: 1. }];
/// Visible times hidden units of the RBMs that Salakhutdinov and Murray measured with them.
const PAPER_WEIGHTS: f64 = 784. * 500.;
/// The least that are chosen for a small RBM.
const LEAST_CHAINS: usize = 500;
const LEAST_TEMPERATURES: usize = 1000;
/// Standard errors on each side of an estimate.
const SIGMAS: f64 = 3.;

/// Equally spaced inverse temperatures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Their number, at least 1.
    pub n: usize,
    /// The last of them, in (0, 1].
    pub to: f64,
}

/// Settings of annealed importance sampling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AisConfig {
    /// Number of chains, all run at once, at least 2. The bounds shrink with its square root.
    /// Default 5000, that of the paper, which suits large RBMs; [`for_rbm`](Self::for_rbm) chooses
    /// by size.
    pub n_chains: usize,
    /// The inverse temperatures after 0. Each stage continues from the end of the previous one, and
    /// the last ends at 1. The default is that of the paper: 500 to 0.5, 4000 to 0.9, 10,000 to 1.
    pub stages: Vec<Stage>,
    /// Gibbs steps of the RBM from the rows given to [`Ais::reverse`] before reverse annealing
    /// starts. Default 1000.
    pub burn_in: usize,
}

impl Default for AisConfig {
    fn default() -> Self {
        Self { n_chains: 5000, stages: STAGES.to_vec(), burn_in: 1000 }
    }
}

impl AisConfig {
    /// Chains and temperatures for the size of `rbm`: `r` times the default,
    /// `r = √(n_visible n_hidden / (784 · 500))`, at most 1, but at least 500 chains and 1000
    /// temperatures. The variance of the log-weights of chains grows with the number of units and
    /// falls with that of temperatures (Neal 2001, section 4), so that it stays about that of the
    /// paper's RBMs.
    pub fn for_rbm(rbm: &Rbm) -> Self {
        let RbmConfig { n_visible, n_hidden, .. } = rbm.config;
        let ratio = (n_visible as f64 * n_hidden as f64 / PAPER_WEIGHTS).sqrt().min(1.);
        let usual = Self::default();
        let share = |of: usize, least: usize| ((of as f64 * ratio).ceil() as usize).max(least);
        Self {
            n_chains: share(usual.n_chains, LEAST_CHAINS),
            stages: Self::stages(share(usual.n_temperatures(), LEAST_TEMPERATURES)),
            ..usual
        }
    }

    /// The default stages with `n` temperatures in total; each stage has at least one.
    pub fn stages(n: usize) -> Vec<Stage> {
        let total: usize = STAGES.iter().map(|stage| stage.n).sum();
        let share = |stage: Stage| Stage { n: (stage.n * n / total).max(1), ..stage };
        let mut stages = STAGES.map(share);
        stages[2].n = n.saturating_sub(stages[0].n + stages[1].n).max(1);
        stages.to_vec()
    }

    /// Number of temperatures after 0.
    pub fn n_temperatures(&self) -> usize {
        self.stages.iter().map(|stage| stage.n).sum()
    }

    /// # Errors
    /// When there are fewer than 2 chains, or the stages do not rise from 0 to 1.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "AisConfig";
        if self.n_chains < 2 {
            candle::bail!("{OP}: n_chains must be at least 2, for bounds, got {}", self.n_chains)
        }
        self.stages.iter().try_for_each(|stage| at_least_one(OP, "n of a stage", stage.n))?;
        let ends: Vec<f64> = self.stages.iter().map(|stage| stage.to).collect();
        let rising = ends.first().is_some_and(|&to| to > 0.) && ends.is_sorted_by(|a, b| a < b);
        if !rising || ends.last() != Some(&1.) {
            candle::bail!("{OP}: stages must rise from above 0 to exactly 1, got ends at {ends:?}")
        }
        Ok(())
    }

    /// All inverse temperatures, from 0 to 1.
    fn betas(&self) -> Vec<f64> {
        let mut betas = vec![0.];
        let mut from = 0.;
        for &Stage { n, to } in &self.stages {
            betas.extend((1..n).map(|i| from + (to - from) * i as f64 / n as f64));
            betas.push(to);
            from = to;
        }
        betas
    }
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct AisRun {
    /// `ln Z` and its bounds.
    pub log_z: Estimate,
    /// Effective number of chains, `(Σw)²/Σw²`: from 1, if one chain outweighs all others, to
    /// `n_chains`, if all weights are equal.
    pub effective_chains: f64,
    /// Visible units, `[n_chains, n_visible]` f64. For a forward run they are samples of the RBM:
    /// final states of chains, resampled in proportion to their weights, so that one with a large
    /// weight occurs many times. For a reverse run they are the final states of the chains, which
    /// are independent units.
    pub states: Tensor,
}

/// Estimates the partition function of one RBM; see the [module](super).
pub struct Ais {
    path: Path,
    config: AisConfig,
}

impl Ais {
    /// Prepares annealing of a copy of `rbm` from independent visible units with the biases `base`,
    /// `[n_visible]`.
    ///
    /// [`Rbm::base_rate_bias`] of the data's mean is the best choice: the closer the independent
    /// units are to the data, the less the weights of the chains vary.
    ///
    /// # Errors
    /// When `config` is out of range, `base` has another shape, or hidden units are not binary.
    pub fn new(rbm: &Rbm, base: &Tensor, config: AisConfig) -> Result<Self> {
        config.validate()?;
        rbm.must_be_binary("Ais")?;
        if base.dims() != [rbm.config.n_visible] {
            candle::bail!("Ais: base must have shape {:?}, got {:?}", [rbm.config.n_visible], base.dims())
        }
        Ok(Self { path: Path::new(rbm, base, config.n_chains)?, config })
    }

    /// Anneals with the other ranks of a group, each its own chains, [`Group::rows`], with the draws
    /// that one rank makes for them: every rank gets the results of one, up to the rounding of products
    /// of other sizes.
    ///
    /// All ranks make the same calls with the same arguments. A run exchanges nothing before its end,
    /// then 8 bytes a chain and `8 · n_chains · n_visible` bytes of states.
    ///
    /// # Errors
    /// When there are too few chains to give each rank some.
    pub fn in_group(mut self, group: &Group) -> Result<Self> {
        Share::check("Ais", group, "n_chains", self.config.n_chains)?;
        self.path.share = Share::new(group, self.config.n_chains);
        Ok(self)
    }

    /// Anneals from the independent units to the RBM. The estimate of `ln Z` tends to be too low;
    /// see the [module](super).
    ///
    /// # Errors
    /// When a weight is not finite, or memory is short.
    pub fn forward(&self, philox: Philox, progress: Progress<'_>) -> Result<AisRun> {
        let mut at = philox;
        let chains = self.path.chains(self.path.start(&mut at)?)?;
        let betas = self.config.betas();
        let n = betas.len() - 1;
        let (ends, log_weights) = self.walk(chains, &betas, &mut at, &mut |done| progress(done, n))?;
        let (log_mean, effective_chains) = log_mean(&log_weights);
        let chosen = in_proportion(&log_weights, at);
        Ok(AisRun {
            log_z: log_mean.shifted(self.path.log_z_base),
            effective_chains,
            states: self.path.share.rows_at(&ends, &chosen)?,
        })
    }

    /// Anneals from samples of the RBM back to the independent units. If they are true samples, the
    /// estimate of `ln Z` tends to be too high.
    ///
    /// `start` is `[_, n_visible]`, at least one row; chains take the rows in turn and first run
    /// `config.burn_in` Gibbs steps towards the distribution of the RBM. Training rows cover every
    /// mode of an RBM that fits them, but not in the RBM's proportions. The states of a forward run
    /// have its proportions but lack the modes that the run missed; both estimates then agree on
    /// the same wrong value.
    ///
    /// # Errors
    /// When `start` has another shape, a weight is not finite, or memory is short.
    pub fn reverse(&self, start: &Tensor, philox: Philox, progress: Progress<'_>) -> Result<AisRun> {
        const OP: &str = "Ais::reverse";
        let rows = batch_of(OP, "start", start, self.path.rbm().config.n_visible)?;
        at_least_one(OP, "rows of start", rows)?;
        let turns: Vec<u32> = self.path.share.rows().map(|i| (i % rows) as u32).collect();
        let device = self.path.rbm().weight.device();
        let states = gather_rows(&start.contiguous()?, &turns)?.to_dtype(DType::F64)?.to_device(device)?;

        let mut betas = self.config.betas();
        betas.reverse();
        let (burn_in, n) = (self.config.burn_in, self.config.burn_in + betas.len() - 1);
        let mut at = philox;
        let chains = self.path.chains(states)?;
        for step in 0..burn_in {
            self.path.step(&chains, 1., 1., &mut at)?;
            progress(step + 1, n);
        }
        let (states, log_weights) =
            self.walk(chains, &betas, &mut at, &mut |done| progress(burn_in + done, n))?;
        let (log_mean, effective_chains) = log_mean(&log_weights);
        let states = self.path.share.gathered(&states)?;
        Ok(AisRun { log_z: log_mean.subtracted_from(self.path.log_z_base), effective_chains, states })
    }

    /// Takes every chain of this rank, with a weight of 1, from the first of `betas` to the last: where
    /// it ends, and `ln w` of the chains of all ranks. `at` moves on.
    fn walk(
        &self,
        chains: Chains,
        betas: &[f64],
        at: &mut Philox,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(Tensor, Vec<f64>)> {
        for (i, pair) in betas.windows(2).enumerate() {
            self.path.step(&chains, pair[0], pair[1], at)?;
            progress(i + 1);
        }
        let log_weights = self.path.share.gathered(&chains.log_weights)?.to_vec1::<f64>()?;
        if let Some(bad) = log_weights.iter().find(|w| !w.is_finite()) {
            candle::bail!(
                "Ais: the weights of all chains must be finite, got ln w = {bad}; are the parameters?"
            )
        }
        Ok((chains.visible, log_weights))
    }

    /// The settings.
    pub fn config(&self) -> &AisConfig {
        &self.config
    }
}

impl Estimate {
    fn shifted(self, by: f64) -> Self {
        Self { value: self.value + by, lower: self.lower + by, upper: self.upper + by }
    }
}

/// The logarithm of the mean of what has these logarithms, bounds three standard errors of the mean
/// to each side, and the effective number of terms. Nothing overflows: the largest term is taken
/// out.
fn log_mean(logs: &[f64]) -> (Estimate, f64) {
    let n = logs.len() as f64;
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let terms = || logs.iter().map(|log| (log - top).exp());
    let (sum, squares) = (terms().sum::<f64>(), terms().map(|t| t * t).sum::<f64>());
    let mean = sum / n;
    let variance = terms().map(|t| (t - mean).powi(2)).sum::<f64>() / (n - 1.);
    let reach = SIGMAS * (variance / n).sqrt();
    let log = |x: f64| if x > 0. { top + x.ln() } else { f64::NEG_INFINITY };
    let estimate = Estimate { value: log(mean), lower: log(mean - reach), upper: log(mean + reach) };
    (estimate, sum * sum / squares)
}

/// As many indices as weights, each weight's own on average `n w/Σw` times and never more than one
/// off (systematic resampling), in ascending order.
fn in_proportion(log_weights: &[f64], philox: Philox) -> Vec<u32> {
    let top = log_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = log_weights.iter().map(|log| (log - top).exp()).collect();
    let share = weights.iter().sum::<f64>() / weights.len() as f64;
    let mut reached = f64::from(philox.bits(0)) / 2f64.powi(32);
    let (mut passed, mut chosen) = (0., Vec::with_capacity(weights.len()));
    for (i, weight) in weights.iter().enumerate() {
        passed += weight / share;
        while reached < passed && chosen.len() < weights.len() {
            chosen.push(i as u32);
            reached += 1.;
        }
    }
    // Rounding can leave the last place open.
    chosen.resize(weights.len(), weights.len() as u32 - 1);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_and_temperatures_follow_the_size() -> Result<()> {
        let sizes = |n_visible, n_hidden| -> Result<[usize; 2]> {
            let rbm =
                Rbm::init(RbmConfig::new(n_visible, n_hidden), Philox::new(0, 0), &candle::Device::Cpu)?;
            let config = AisConfig::for_rbm(&rbm);
            config.validate()?;
            Ok([config.n_chains, config.n_temperatures()])
        };
        assert_eq!(sizes(32, 30)?, [500, 1000]);
        assert_eq!(sizes(196, 125)?, [1250, 3625]); // a quarter
        for large in [[784, 500], [3072, 4000]] {
            assert_eq!(sizes(large[0], large[1])?, [5000, 14_500]);
        }
        Ok(())
    }

    #[test]
    fn the_default_temperatures_are_those_of_the_paper() {
        let betas = AisConfig::default().betas();
        assert_eq!((betas.len(), AisConfig::default().n_temperatures()), (14_501, 14_500));
        assert_eq!([betas[0], betas[500], betas[4500], betas[14_500]], [0., 0.5, 0.9, 1.]);
        assert!(betas.is_sorted_by(|a, b| a < b));
        assert!((betas[1] - 1e-3).abs() < 1e-12 && (betas[14_499] - (1. - 1e-5)).abs() < 1e-12);
        for n in [3, 10, 29, 145, 1000, 14_500, 30_000] {
            let config = AisConfig { stages: AisConfig::stages(n), ..AisConfig::default() };
            assert_eq!(config.n_temperatures(), n);
            assert!(config.validate().is_ok());
        }
        assert_eq!(AisConfig::stages(14_500), STAGES);
    }

    #[test]
    fn the_logarithm_of_a_mean_is_stable_and_its_bounds_are_three_errors() {
        // 1, 2, 3 and their mean 2 with standard error 1/√3; far outside of f64's range, too.
        for by in [0., 5000., -5000.] {
            let logs: Vec<f64> = [1f64, 2., 3.].iter().map(|x| x.ln() + by).collect();
            let (got, effective) = log_mean(&logs);
            assert!((got.value - 2f64.ln() - by).abs() < 1e-9, "{got:?}");
            assert!((got.upper - (2. + 3f64.sqrt()).ln() - by).abs() < 1e-9, "{got:?}");
            assert!((got.lower - (2. - 3f64.sqrt()).ln() - by).abs() < 1e-9, "{got:?}");
            assert!((effective - 36. / 14.).abs() < 1e-9, "{effective}");
        }
        let (wide, _) = log_mean(&[0., 10., 0.]);
        assert_eq!(wide.lower, f64::NEG_INFINITY, "the error is more than the mean");
    }

    #[test]
    fn chains_are_taken_in_proportion_to_their_weights() {
        let logs: Vec<f64> = [1f64, 0., 2.5, 0.5, 4.].iter().map(|x| x.ln() - 3000.).collect();
        let mut counts = [0usize; 5];
        for seed in 0..4000 {
            let chosen = in_proportion(&logs, Philox::new(seed, 0));
            assert!(chosen.len() == 5 && chosen.is_sorted());
            let mut now = [0usize; 5];
            chosen.iter().for_each(|&i| now[i as usize] += 1);
            // 5 places for a total of 8: shares .625, 0, 1.5625, .3125, 2.5.
            assert!(now[1] == 0 && now[0] <= 1 && now[3] <= 1);
            assert!((1..=2).contains(&now[2]) && (2..=3).contains(&now[4]), "{now:?}");
            counts.iter_mut().zip(now).for_each(|(sum, n)| *sum += n);
        }
        for (count, want) in counts.iter().zip([0.625, 0., 1.5625, 0.3125, 2.5]) {
            // Five standard errors of a coin's mean over 4000.
            assert!((*count as f64 / 4000. - want).abs() < 0.04, "{counts:?}");
        }
    }
}
