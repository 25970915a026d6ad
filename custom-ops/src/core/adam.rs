//! The rule of Adam for one stretch of parameters: what all ops that step by it have in common.
use candle::Result;
use multiversion::multiversion;

/// The constants of a step of Adam.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamStep {
    /// Decay of the mean gradient, in [0, 1). Default 0.9, as in the paper.
    pub beta1: f64,
    /// Decay of the mean squared gradient, in [0, 1). Default 0.999, as in the paper.
    pub beta2: f64,
    /// Keeps the step finite where gradients are 0; above 0. Default 1e-8, as in the paper.
    pub epsilon: f32,
    /// Share of a weight that a step with rate 1 removes, at least 0. Default 0.
    pub weight_decay: f32,
}

impl Default for AdamStep {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0. }
    }
}

impl AdamStep {
    /// The same as kernels take it.
    ///
    /// # Errors
    /// When a constant is out of its range.
    pub(crate) fn rule(self, op: &str) -> Result<AdamRule> {
        let Self { beta1, beta2, epsilon, weight_decay } = self;
        if !((0. ..1.).contains(&beta1) && (0. ..1.).contains(&beta2) && epsilon > 0. && weight_decay >= 0.) {
            candle::bail!(
                "{op}: beta1 and beta2 must be in [0, 1), epsilon above 0, weight_decay at least 0, got {self:?}"
            )
        }
        Ok(AdamRule {
            beta1,
            beta2,
            b1: beta1 as f32,
            c1: (1. - beta1) as f32,
            b2: beta2 as f32,
            c2: (1. - beta2) as f32,
            epsilon,
            decay: weight_decay,
        })
    }
}

/// The fields of `AdamRule` in kernels/layers/optimizer.cu, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AdamRule {
    beta1: f64,
    beta2: f64,
    b1: f32,
    c1: f32,
    b2: f32,
    c2: f32,
    epsilon: f32,
    pub decay: f32,
}

// SAFETY: two doubles and six floats, the same layout as the kernel's struct.
#[cfg(feature = "cuda")]
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for AdamRule {}

impl AdamRule {
    /// The rule for step `t`, counted from 1.
    pub(crate) fn at(self, rate: f32, t: i64) -> AdamAt {
        let m_scale = (1. / (1. - power(self.beta1, t))) as f32;
        let v_scale = (1. / (1. - power(self.beta2, t))) as f32;
        AdamAt { rule: self, rate, m_scale, v_scale }
    }
}

/// The rule for one step.
#[derive(Clone, Copy)]
pub(crate) struct AdamAt {
    rule: AdamRule,
    pub rate: f32,
    m_scale: f32,
    v_scale: f32,
}

impl AdamAt {
    /// Steps parameters `w` with gradient `g` and moments `m` and `v`, all of one length.
    pub(crate) fn step(self, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        step(self, w, g, m, v);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn step(at: AdamAt, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    let AdamAt { rule: AdamRule { b1, c1, b2, c2, epsilon, .. }, rate, m_scale, v_scale } = at;
    for (((w, g), m), v) in w.iter_mut().zip(g.iter()).zip(m).zip(v) {
        *m = b1 * *m + c1 * g;
        *v = b2 * *v + c2 * (g * g);
        *w -= rate * ((*m * m_scale) / ((*v * v_scale).sqrt() + epsilon));
    }
}

/// `base^t` by squaring, as the kernel forms it.
fn power(mut base: f64, mut t: i64) -> f64 {
    let mut result = 1.;
    while t > 0 {
        if t & 1 == 1 {
            result *= base;
        }
        base *= base;
        t >>= 1;
    }
    result
}
