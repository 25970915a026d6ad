//! Optimisers of smooth functions of one flat vector of parameters.
//!
//! A [`Descent`] minimises a function whose exact gradient is cheap, such as a cost over all rows
//! of a data set, by one of three [`Method`]s. Models that learn from minibatches have trainers of
//! their own, see [`Trainer`](crate::Trainer).
//!
//! | module | method |
//! |---|---|
//! | [`lbfgs`] | L-BFGS, which estimates the curvature from the last steps |
//! | [`cg`] | nonlinear conjugate gradient |
//! | [`gd`] | batch gradient descent, with a fixed rate or by backtracking |
//! | [`descent`] | what they have in common: the run, its rows, its files |
pub mod cg;
pub mod descent;
mod ending;
pub mod gd;
pub mod lbfgs;
mod line_search;
mod method;
mod state;

pub use cg::ConjugateGradientConfig;
pub use descent::Descent;
pub use ending::{Iteration, Outcome};
pub use gd::GradientDescentConfig;
pub use lbfgs::LbfgsConfig;
pub use method::Method;
pub(crate) use state::State;
