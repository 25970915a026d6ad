//! The annealing path from independent units to an RBM, by inverse temperature `β`.
//!
//! ```text
//! binary  ln p*_β(v) = ((1−β) a + β b)·v                     + Σ_j softplus(β x_j)
//! real    ln p*_β(v) = −½ ((1−β) (v−a)² + β (v−b)²)·1/σ²     + Σ_j softplus(β x_j)     x = (v/σ²) Wᵀ + c
//!
//! β = 0   v ~ sigmoid(a), or N(a, σ²);   ln Z_A = n_hidden ln 2 + Σ_i softplus(a_i), or + Σ_i ½ ln 2πσ_i²
//! β = 1   the RBM
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `a` | `base` | `[n_visible]` |
//! | `b − a` | `shift` | `[n_visible]` |
//! | `∂β` of the visible part | `slope·v + offset` | `[n_visible]`, number |
//! | `Wᵀ`, over `σ²` | `read` | `[n_visible, n_hidden]` |
use super::exact::log_volume;
use crate::model::Model;
use crate::rbm::energy::softplus;
use crate::rbm::{Rbm, VisibleUnit};
use crate::share::Share;
use candle::{DType, Result, Tensor};
use chandlery_ops::layers::{Factors, Rise, annealed_hidden_, annealed_visible_, gemm_};
use chandlery_ops::{Group, Philox, Precision};

/// An RBM, the independent units at the start of its path, and what the steps between them need.
/// All f64.
pub(super) struct Path {
    rbm: Rbm,
    read: Tensor,
    base: Tensor,
    shift: Tensor,
    slope: Tensor,
    offset: f64,
    /// `σ`, for real-valued units.
    stdev: Option<Tensor>,
    /// Which of the chains this rank has: all the states here are of its own, and its draws those that
    /// one rank makes for them.
    pub(super) share: Share,
    /// `ln Z_A`
    pub(super) log_z_base: f64,
}

/// The chains of this rank, f64.
pub(super) struct Chains {
    /// `ln w`, `[n_chains]`.
    pub log_weights: Tensor,
    /// `[n_chains, n_hidden]`
    hidden: Tensor,
    /// `[n_chains, n_visible]`
    pub visible: Tensor,
}

impl Path {
    pub(super) fn new(rbm: &Rbm, base: &Tensor, n_chains: usize) -> Result<Self> {
        let rbm = rbm.dense()?.to(DType::F64, rbm.weight.device())?;
        let base = base.to_dtype(DType::F64)?.to_device(rbm.weight.device())?;
        let shift = (&rbm.visible_bias - &base)?;
        let share = Share::new(&Group::single(), n_chains);
        let n_hidden = rbm.config.n_hidden as f64;
        let of_hidden = n_hidden * std::f64::consts::LN_2;
        let number = |t: Tensor| t.sum_all()?.to_scalar::<f64>();
        if rbm.config.visible == VisibleUnit::Bernoulli {
            return Ok(Self {
                read: rbm.weight.t()?,
                slope: shift.clone(),
                offset: 0.,
                stdev: None,
                share,
                log_z_base: of_hidden + number(softplus(&base)?)?,
                rbm,
                base,
                shift,
            });
        }
        let log_variance = match &rbm.log_variance {
            Some(log_variance) => log_variance.clone(),
            None => base.zeros_like()?,
        };
        let precision = log_variance.neg()?.exp()?;
        // ∂β: ((v−a)² − (v−b)²)/2σ² = (b−a)/σ² · v + (a² − b²)/2σ²
        let squares = (base.sqr()? - rbm.visible_bias.sqr()?)?;
        Ok(Self {
            read: rbm.weight.broadcast_mul(&precision)?.t()?,
            slope: (&shift * &precision)?,
            offset: number((squares * &precision)?)? / 2.,
            stdev: Some((&log_variance * 0.5)?.exp()?),
            share,
            log_z_base: of_hidden + log_volume(&log_variance)?,
            rbm,
            base,
            shift,
        })
    }

    /// Chains with the visible states `v`, `[chains of this rank, n_visible]`, and weights of 1.
    pub(super) fn chains(&self, v: Tensor) -> Result<Chains> {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, v.device());
        let hidden = zeros(&[v.dim(0)?, self.rbm.config.n_hidden])?;
        Ok(Chains { log_weights: zeros(&[v.dim(0)?])?, hidden, visible: v })
    }

    /// Adds `ln p*_to(v) − ln p*_from(v)` to the logarithm of each chain's weight, and draws its
    /// hidden and then its visible units at `to`, which leaves `p_to` as it is. `at` moves on.
    pub(super) fn step(&self, chains: &Chains, from: f64, to: f64, at: &mut Philox) -> Result<()> {
        let Chains { log_weights, hidden, visible } = chains;
        gemm_(hidden, visible, &self.read, Factors::OVERWRITE, Precision::F32)?;
        let rise = Rise { from, to, visible, slope: &self.slope, offset: self.offset };
        annealed_hidden_(log_weights, hidden, &self.rbm.bias, rise, self.take(hidden, at)?)?;
        gemm_(visible, hidden, &self.rbm.weight, Factors::OVERWRITE, Precision::F32)?;
        self.draw_visible(visible, to, at)
    }

    /// Where the draws for such states of this rank's chains begin. `at` moves on beyond those of all.
    fn take(&self, states: &Tensor, at: &mut Philox) -> Result<Philox> {
        let n = states.dim(1)?;
        let own = at.advanced(self.share.rows().start * n);
        *at = at.advanced(self.share.of() * n);
        Ok(own)
    }

    /// Draws of the independent units at `β = 0`, `[n_chains, n_visible]`. `at` moves on.
    pub(super) fn start(&self, at: &mut Philox) -> Result<Tensor> {
        let shape = (self.share.rows().len(), self.rbm.config.n_visible);
        let states = Tensor::zeros(shape, DType::F64, self.base.device())?;
        self.draw_visible(&states, 0., at)?;
        Ok(states)
    }

    /// States over products, in place.
    fn draw_visible(&self, products: &Tensor, beta: f64, at: &mut Philox) -> Result<()> {
        let own = self.take(products, at)?;
        annealed_visible_(products, &self.shift, &self.base, self.stdev.as_ref(), beta, own)
    }

    pub(super) fn rbm(&self) -> &Rbm {
        &self.rbm
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbm::RbmConfig;
    use candle::Device::Cpu;
    use chandlery_ops::core::normal;

    #[test]
    fn the_rises_along_the_path_add_up_to_the_free_energies_of_its_ends() -> Result<()> {
        for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned] {
            let draw = |shape: (usize, usize), stream| {
                normal(shape, &Cpu, Philox::new(3, stream))?.to_dtype(DType::F64)
            };
            let flat = |n, stream| draw((1, n), stream)?.squeeze(0);
            let log_variance = (visible == VisibleUnit::GaussianLearned).then(|| flat(4, 3)).transpose()?;
            let machine = |weight: Tensor, c: Tensor, b: Tensor| {
                let config = RbmConfig { visible, ..RbmConfig::new(4, 3) };
                Rbm::from_tensors(config, weight, c, b, log_variance.clone())
            };
            let rbm = machine(draw((3, 4), 0)?, flat(3, 1)?, flat(4, 2)?)?;
            let base = flat(4, 4)?;
            let independent = machine(rbm.weight.zeros_like()?, rbm.bias.zeros_like()?, base.clone())?;
            let path = Path::new(&rbm, &base, 9)?;
            let v = draw((9, 4), 5)?;
            let mut sum = Tensor::zeros(9, DType::F64, &Cpu)?;
            for (from, to) in [(0., 0.25), (0.25, 0.9), (0.9, 1.)] {
                let chains = path.chains(v.copy()?)?;
                path.step(&chains, from, to, &mut Philox::new(3, 6))?;
                sum = (sum + chains.log_weights)?;
            }
            let want = (independent.free_energy(&v)? - rbm.free_energy(&v)?)?;
            let worst = (sum - &want)?.abs()?.max(0)?.to_scalar::<f64>()?;
            assert!(worst < 1e-12, "{visible:?}: off by {worst:e}");
            // And Z_A is the sum over the states of the RBM without weights.
            let exact = independent.exact_log_z(&mut |_, _| {})?;
            assert!((path.log_z_base - exact).abs() < 1e-12, "{visible:?}: {}", path.log_z_base - exact);
        }
        Ok(())
    }
}
