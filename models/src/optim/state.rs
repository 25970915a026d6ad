//! What a descent keeps of its past, as its methods look at it.
use serde::{Deserialize, Serialize};

/// What a run knows beside its tensors.
///
/// The rows of a run are `slots` directions, as many differences of gradients, and two gradients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The inner products of all rows, row-major.
    pub(super) products: Vec<f64>,
    /// The pairs, oldest first: their slot, and the step length along the direction.
    pub(super) pairs: Vec<(usize, f64)>,
    /// The slot of the next pair, and which of the two gradients is that of `x`.
    pub(super) next: usize,
    pub(super) gradient: usize,
    /// The value at `x`; none before the first evaluation.
    pub(super) value: Option<f64>,
    /// What the last iteration took from the value, over `max(|f|, 1)`.
    pub(super) decrease: Option<f64>,
    pub(super) iterations: usize,
    pub(super) evaluations: u64,
    /// The first evaluation since the last accepted step that was not finite.
    pub(super) non_finite: Option<u64>,
}

impl State {
    /// That of a run that has evaluated nothing.
    pub(super) fn new(slots: usize) -> Self {
        let count = 2 * slots + 2;
        Self {
            products: vec![0.; count * count],
            pairs: Vec::with_capacity(slots),
            next: 0,
            gradient: 0,
            value: None,
            decrease: None,
            iterations: 0,
            evaluations: 0,
            non_finite: None,
        }
    }
}

/// The rows of a run by what they are, and their inner products.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past<'a> {
    pub slots: usize,
    pub state: &'a State,
}

impl Past<'_> {
    /// How many rows there are.
    pub fn count(&self) -> usize {
        2 * self.slots + 2
    }

    /// The row of the difference of gradients of a slot.
    pub fn difference(&self, slot: usize) -> usize {
        self.slots + slot
    }

    /// The row of the gradient at `x`.
    pub fn gradient(&self) -> usize {
        2 * self.slots + self.state.gradient
    }

    /// The row of the gradient where the last step began, or of one that is being tried.
    pub fn other_gradient(&self) -> usize {
        2 * self.slots + 1 - self.state.gradient
    }

    /// The inner product of two rows.
    pub fn product(&self, i: usize, j: usize) -> f64 {
        self.state.products.get(i * self.count() + j).copied().unwrap_or(f64::NAN)
    }

    /// The inner product of row `j` with the combination of all rows.
    pub fn along(&self, coefficients: &[f64], j: usize) -> f64 {
        let used = coefficients.iter().enumerate().filter(|(_, c)| **c != 0.);
        used.map(|(i, c)| c * self.product(j, i)).sum()
    }

    /// The direction against the gradient, as coefficients of the rows.
    pub fn downhill(&self) -> Vec<f64> {
        let mut coefficients = vec![0.; self.count()];
        if let Some(of_gradient) = coefficients.get_mut(self.gradient()) {
            *of_gradient = -1.;
        }
        coefficients
    }

    /// The first step to try where no step before it gives a scale: of length 1 at most.
    pub fn unscaled_step(slope: f64) -> f64 {
        1f64.min(1. / (-slope).sqrt())
    }
}
