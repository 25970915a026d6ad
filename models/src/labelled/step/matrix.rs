//! A matrix that learns.
use crate::flat::Flat;
use candle::{Result, Tensor};
use chandlery_ops::arrays::scale_into_;

/// Weights and their velocity, f32 of one shape.
#[derive(Clone)]
pub(in super::super) struct Matrix {
    pub weight: Tensor,
    pub velocity: Tensor,
    /// Both, `[2, ..]`, where they lie one behind the other.
    both: Option<Tensor>,
}

impl Matrix {
    /// A copy of the weights, at rest.
    pub fn new(weight: &Tensor) -> Result<Self> {
        let both = Tensor::stack(&[weight, &weight.zeros_like()?], 0)?;
        Ok(Self { weight: both.get(0)?, velocity: both.get(1)?, both: Some(both) })
    }

    /// Weights and velocity, `[2, ..]`: those of a rank alone themselves, of several a copy.
    pub fn params(&self) -> Result<Tensor> {
        match &self.both {
            Some(both) => Ok(both.clone()),
            None => Tensor::stack(&[&self.weight, &self.velocity], 0),
        }
    }

    /// The same numbers at a place of `flat`.
    pub fn moved(&self, flat: &Flat, start: usize) -> Result<Self> {
        let [weight, velocity] = flat.matrix(start, self.weight.dims())?;
        scale_into_(&weight, &self.weight, 1.)?;
        scale_into_(&velocity, &self.velocity, 1.)?;
        Ok(Self { weight, velocity, both: None })
    }
}
