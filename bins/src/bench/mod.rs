//! The program `bench`. It times named shapes with fixed seeds after a warm-up, synchronises the
//! device, and prints the median of several runs.
//!
//! There is one module per model. Each prints our time, the paper's, the peer's, the hardware
//! floor, and the share of the floor reached.
mod all;
mod common;
mod contrastive;
mod convolution;
mod dae;
mod dictionary;
mod file_rows;
mod floor;
mod grid;
mod group;
mod knn;
mod memory;
mod neighbours;
mod page;
mod paper;
mod patch_rbm;
mod peer;
mod place;
mod plots;
mod rbm;
mod runs;
mod size;
mod sparse_autoencoder;
mod sparse_coding;
mod stream;
mod table;
mod timing;
mod tsne;

pub use all::AllArgs;
pub use convolution::ConvolutionArgs;
pub use dae::DaeArgs;
pub use dictionary::DictionaryArgs;
pub use floor::{Gpu, RbmFloor};
pub use grid::GridArgs;
pub use group::GroupArgs;
pub use knn::KnnArgs;
pub use neighbours::NeighboursArgs;
pub use paper::PaperArgs;
pub use patch_rbm::PatchRbmArgs;
pub use plots::PlotsArgs;
pub use rbm::{RbmArgs, Row};
pub use runs::RunsArgs;
pub use sparse_autoencoder::SparseAutoencoderArgs;
pub use sparse_coding::SparseCodingArgs;
pub use tsne::TsneArgs;

use crate::completions::CompletionsArgs;
use crate::report::Outcome;
use clap::{Parser, Subcommand};

/// Time the models of Chandlery.
///
/// Figures of papers and of PyTorch in the tables were stored earlier and are not measured anew.
/// The floor is the least time that an H200 could take, on whatever device the program runs; that
/// of `rbm` on a CPU is the time of its matrix products alone.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
pub struct Cli {
    /// What to time.
    #[command(subcommand)]
    pub model: Model,
}

/// The models that can be timed.
#[derive(Debug, Subcommand)]
pub enum Model {
    /// Contrastive divergence at the four sizes of Raina, Madhavan and Ng 2009: seconds for 1
    /// million examples.
    Rbm(RbmArgs),
    /// Contrastive divergence in layers of overlapping patches: table 3 of Raina, Madhavan and Ng
    /// 2009, or the four layers of their largest network.
    PatchRbm(PatchRbmArgs),
    /// Denoising autoencoder 784-500: seconds an epoch by minibatch.
    Dae(DaeArgs),
    /// A convolution and both of its gradients, at the size of Lee et al. 2009 and with many
    /// channels, beside candle's conv2d.
    Convolution(ConvolutionArgs),
    /// Batch-OMP and OLS at named sizes, and iterations of training.
    Dictionary(DictionaryArgs),
    /// The tables and figures of a paper: its numbers, the same algorithm on this machine, and our
    /// best.
    Paper(PaperArgs),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
    /// One training pass of a sparse autoencoder at the eight sizes of Klaus and Welles 2014, or a
    /// run of 400 iterations.
    SparseAutoencoder(SparseAutoencoderArgs),
    /// Activations of natural patches to a duality gap, and updates of a basis, at the size of
    /// Raina, Madhavan and Ng 2009 and others.
    SparseCoding(SparseCodingArgs),
    /// A step of a family over widths, minibatches and precisions, beside a peer's: a table, JSON
    /// and a picture of the ratios.
    Grid(GridArgs),
    /// Several GPUs, or threads on the CPU: collectives by size, and steps of a network by one rank
    /// and by all.
    Group(GroupArgs),
    /// Nearest neighbours alone, of rows on the device.
    Knn(KnnArgs),
    /// The approximate search for nearest neighbours to a wanted recall, of a mixture of Gaussians
    /// in few strong directions.
    Neighbours(NeighboursArgs),
    /// t-SNE of whole data sets: seconds by stage, and how good the layouts are.
    Tsne(TsneArgs),
    /// Whole commands with default settings, from the command to the prompt: seconds by stage.
    Runs(RunsArgs),
    /// The commands of BENCHMARKS.md one after the other, and what they print as a page.
    All(AllArgs),
    /// Draw the tables of BENCHMARKS.md that have a trend, as SVG files.
    Plots(PlotsArgs),
}

/// Runs the benchmark that the command line names.
///
/// # Errors
/// When the device cannot be opened or a step fails.
pub fn run(cli: &Cli) -> anyhow::Result<Outcome> {
    match &cli.model {
        Model::Rbm(args) => rbm::run(args)?,
        Model::PatchRbm(args) => return patch_rbm::run(args),
        Model::Dae(args) => dae::run(args)?,
        Model::Convolution(args) => convolution::run(args)?,
        Model::Dictionary(args) => dictionary::run(args)?,
        Model::Paper(args) => paper::run(args)?,
        Model::Completions(args) => return args.print::<Cli>(),
        Model::SparseAutoencoder(args) => sparse_autoencoder::run(args)?,
        Model::SparseCoding(args) => sparse_coding::run(args)?,
        Model::Grid(args) => grid::run(args)?,
        Model::Group(args) => group::run(args)?,
        Model::Knn(args) => knn::run(args)?,
        Model::Neighbours(args) => neighbours::run(args)?,
        Model::Tsne(args) => tsne::run(args)?,
        Model::Runs(args) => runs::run(args)?,
        Model::All(args) => all::run(args)?,
        Model::Plots(args) => plots::run(args)?,
    }
    Ok(Outcome::Done)
}
