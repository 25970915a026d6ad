//! Options of the layout and of the descent to it, of `tsne train` and of `bench tsne`.
use crate::choices::MethodArg;
use crate::options::{above_zero, at_least_one, below_one, not_negative, whole_number};
use chandlery::tsne::TsneConfig;
use clap::Args;
use serde::{Deserialize, Serialize};

/// The layout, and how it is found; of `train` and of `bench tsne`.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct DescentArgs {
    /// Dimensions of the layout, 1 to 3. A layout in one is drawn as a stacked histogram.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = one_to_three)]
    pub dims: usize,
    /// How repulsion is found.
    #[arg(long, value_enum, default_value_t)]
    pub method: MethodArg,
    /// How coarse the tree of --method barnes-hut is: from 0 (every pair) to 1.
    #[arg(long, value_name = "THETA", default_value_t = 0.5, value_parser = zero_to_one)]
    pub theta: f64,
    /// Largest distance between nodes of the grid of --method fft, in units of the layout, above 0.
    #[arg(long, value_name = "DISTANCE", default_value_t = 0.5, value_parser = above_zero)]
    pub node_distance: f64,
    /// Number of early iterations, which use --early-exaggeration.
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = whole_number)]
    pub early_iterations: usize,
    /// Factor on the attraction in the early iterations, above 0.
    #[arg(long, value_name = "FACTOR", default_value_t = 12., value_parser = above_zero)]
    pub early_exaggeration: f64,
    /// Factor on the attraction, above 0. In the iterations after the early ones; above 1 makes
    /// clusters denser.
    #[arg(long, value_name = "FACTOR", default_value_t = 1., value_parser = above_zero)]
    pub exaggeration: f64,
    /// Learning rate, above 0. Default: the number of rows divided by --early-exaggeration in the
    /// early iterations, by --exaggeration after them.
    #[arg(long, value_name = "RATE", value_parser = above_zero)]
    pub learning_rate: Option<f64>,
    /// Momentum in the early iterations, at least 0 and below 1.
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0.8, value_parser = below_one)]
    pub early_momentum: f64,
    /// Momentum, at least 0 and below 1. In the iterations after the early ones.
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0.8, value_parser = below_one)]
    pub momentum: f64,
    /// Degrees of freedom A of the kernel (1 + d^2/A)^-A, above 0; below 1 shows finer clusters.
    /// Scikit-learn's kernel (1 + d^2/V)^(-(V + 1)/2) is that of A = (V + 1)/2 in another unit of
    /// length.
    #[arg(long, value_name = "ALPHA", default_value_t = 1., value_parser = above_zero)]
    pub degrees_of_freedom: f64,
    /// Push points back that come out further than this from the centre, above 0, in units of the
    /// layout: the coordinate is put back, and its momentum starts anew. Steps then have no limit;
    /// default: no point moves by more than 5 in a step.
    #[arg(long, value_name = "DISTANCE", value_parser = above_zero)]
    pub push_back: Option<f64>,
    /// End when the divergence falls by less than this in an iteration, in nats, above 0. It is
    /// looked at every 50 iterations after the early ones; default: never.
    #[arg(long, value_name = "NATS", value_parser = above_zero)]
    pub stop_below: Option<f64>,
}

impl DescentArgs {
    /// The same as the library takes it, with so many iterations after the early ones.
    pub fn config(&self, iterations: usize) -> TsneConfig {
        TsneConfig {
            n_dims: self.dims,
            method: self.method.method(),
            theta: self.theta as f32,
            node_distance: self.node_distance as f32,
            early_iterations: self.early_iterations,
            early_exaggeration: self.early_exaggeration,
            iterations,
            exaggeration: self.exaggeration,
            learning_rate: self.learning_rate,
            early_momentum: self.early_momentum,
            momentum: self.momentum,
            degrees_of_freedom: self.degrees_of_freedom as f32,
            push_back: self.push_back.map(|most| most as f32),
            stop_below: self.stop_below,
            ..TsneConfig::default()
        }
    }
}

fn one_to_three(text: &str) -> Result<usize, String> {
    at_least_one(text).ok().filter(|n| matches!(n, 1..=3)).ok_or_else(|| "must be 1, 2 or 3".to_owned())
}

fn zero_to_one(text: &str) -> Result<f64, String> {
    not_negative(text).ok().filter(|&x| x <= 1.).ok_or_else(|| "must be a number from 0 to 1".to_owned())
}
