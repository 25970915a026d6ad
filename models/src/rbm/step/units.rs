//! Units that a product gives.
use candle::Tensor;
use chandlery_ops::core::Draws;
use chandlery_ops::layers::{Unit, UnitPlanes};

/// Units of one side that a product gives: where they go, their pre-activations, and what they are.
#[derive(Clone, Copy)]
pub(in super::super) struct Units<'a> {
    pub planes: &'a Tensor,
    pub pre: &'a Tensor,
    pub bias: &'a Tensor,
    pub unit: Unit,
    pub out: UnitPlanes,
    pub draws: Draws<'a>,
}
