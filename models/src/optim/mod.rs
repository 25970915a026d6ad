//! Optimisers of smooth functions of one flat vector of parameters.
//!
//! [`Lbfgs`] minimises a function whose exact gradient is cheap, such as a cost over all rows of a
//! data set. Models that learn from minibatches have trainers of their own, see
//! [`Trainer`](crate::Trainer).
pub mod lbfgs;
mod line_search;

pub use lbfgs::{Iteration, Lbfgs, LbfgsConfig, Outcome};
