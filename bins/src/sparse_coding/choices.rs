//! Choices of the command line: how activations are found, and how the basis follows from them.
use chandlery::sparse_coding::basis::BasisMethod;
use chandlery::sparse_coding::lasso::{LineSearch, Solver, Stop};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Coordinates of a block of [`SolverArg::ParallelBlocks`].
const BLOCK: usize = 128;

/// Algorithm that solves the lasso of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SolverArg {
    /// Greedy coordinate descent and Newton steps on the support.
    #[default]
    ActiveSet,
    /// Cyclic coordinate descent.
    Cyclic,
    /// FISTA with restart.
    Fista,
    /// As Raina, Madhavan and Ng print it: all coordinates at once, a fixed set of steps, until the
    /// objective falls by less than 1e-6 of itself.
    ParallelCoordinates,
    /// The same with the exact line search, until the gap is small enough.
    ParallelExact,
    /// The same for one block of 128 coordinates after the other.
    ParallelBlocks,
}

impl SolverArg {
    /// The lower-case name that command lines and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActiveSet => "active-set",
            Self::Cyclic => "cyclic",
            Self::Fista => "fista",
            Self::ParallelCoordinates => "parallel-coordinates",
            Self::ParallelExact => "parallel-exact",
            Self::ParallelBlocks => "parallel-blocks",
        }
    }
}

impl From<SolverArg> for Solver {
    fn from(solver: SolverArg) -> Self {
        match solver {
            SolverArg::ActiveSet => Self::ActiveSet,
            SolverArg::Cyclic => Self::CoordinateDescent,
            SolverArg::Fista => Self::Fista,
            SolverArg::ParallelCoordinates => Self::PRINTED,
            SolverArg::ParallelExact => {
                Self::CoordinateParallel { line_search: LineSearch::Exact, stop: Stop::Gap }
            }
            SolverArg::ParallelBlocks => Self::CoordinateBlocks { block: BLOCK },
        }
    }
}

/// Update of the basis, given the activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BasisArg {
    /// A gradient step of fixed length for all atoms, as Raina, Madhavan and Ng print it; those
    /// longer than 1 are then scaled to length 1.
    ProjectedGradient,
    /// The same with the longest steps that pay.
    SpectralGradient,
    /// Updates one atom at a time to its optimum.
    #[default]
    Blocks,
    /// The optimal basis, by the Lagrange dual on the CPU; slow above a few hundred atoms.
    LagrangeDual,
}

impl BasisArg {
    /// The lower-case name that command lines and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::ProjectedGradient => "projected-gradient",
            Self::SpectralGradient => "spectral-gradient",
            Self::Blocks => "blocks",
            Self::LagrangeDual => "lagrange-dual",
        }
    }
}

impl From<BasisArg> for BasisMethod {
    fn from(basis: BasisArg) -> Self {
        match basis {
            BasisArg::ProjectedGradient => Self::ProjectedGradient,
            BasisArg::SpectralGradient => Self::SpectralGradient,
            BasisArg::Blocks => Self::BlockCoordinate,
            BasisArg::LagrangeDual => Self::LagrangeDual,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_command_lines() {
        for solver in SolverArg::value_variants() {
            assert_eq!(
                solver.to_possible_value().map(|v| v.get_name().to_owned()),
                Some(solver.name().to_owned())
            );
        }
        for basis in BasisArg::value_variants() {
            assert_eq!(
                basis.to_possible_value().map(|v| v.get_name().to_owned()),
                Some(basis.name().to_owned())
            );
        }
    }
}
