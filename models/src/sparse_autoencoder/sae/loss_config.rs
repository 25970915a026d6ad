//! What the loss weighs.
use crate::check::range;
use candle::Result;
use serde::{Deserialize, Serialize};

/// What JumpReLU's penalty counts.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Penalty {
    /// Active latents: `H(π − θ)`.
    #[default]
    Step,
    /// `tanh(scale · z ‖d‖)`, which also shrinks small values.
    Tanh {
        /// Above 0; 4 by custom.
        scale: f64,
    },
}

/// What the loss weighs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LossConfig {
    /// `λ` of ReLU, JumpReLU and gated latents, at least 0: the squared error of a row, in squared
    /// units of its values, that one active latent, or one unit of their sum, is worth. Default 1.
    pub sparsity: f64,
    /// `ε` of JumpReLU in units of pre-activations, above 0. Default 0.05, by custom.
    pub bandwidth: f64,
    /// What JumpReLU's penalty counts. Default active latents.
    pub penalty: Penalty,
    /// `k'` of AuxK; 0 for none. Default 512.
    pub aux_k: usize,
    /// `α` of AuxK, at least 0. Default 1/32, as in Gao et al.
    pub aux_weight: f64,
    /// Whether TopK also has the loss of the `4k` largest. Default no.
    pub multi_top_k: bool,
    /// Whether rows of the decoder keep length 1. Default yes. If not, penalties count lengths.
    pub unit_atoms: bool,
}

impl Default for LossConfig {
    fn default() -> Self {
        Self {
            sparsity: 1.,
            bandwidth: 0.05,
            penalty: Penalty::Step,
            aux_k: 512,
            aux_weight: 1. / 32.,
            multi_top_k: false,
            unit_atoms: true,
        }
    }
}

impl LossConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "LossConfig";
        range(OP, "sparsity", self.sparsity, "at least 0", |x| x >= 0.)?;
        range(OP, "bandwidth", self.bandwidth, "above 0", |x| x > 0.)?;
        range(OP, "aux_weight", self.aux_weight, "at least 0", |x| x >= 0.)?;
        match self.penalty {
            Penalty::Step => Ok(()),
            Penalty::Tanh { scale } => range(OP, "penalty.scale", scale, "above 0", |x| x > 0.),
        }
    }
}

/// What of the loss follows a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// `λ` of this step.
    pub sparsity: f64,
    /// `k` of this step, where the kind has one.
    pub k: usize,
}
