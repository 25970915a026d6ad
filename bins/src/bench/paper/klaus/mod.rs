//! Klaus and Welles, "Optimizing propagation and sparsity enforcement for a fully connected
//! scalable feedforward sparse autoencoder", 2014.
//!
//! | module       | what                                                        |
//! |--------------|-------------------------------------------------------------|
//! | `serial`     | the serial programs of the paper                            |
//! | `measured`   | what is timed here, once for all sections                   |
//! | `tables`     | tables 1 to 7                                               |
//! | `figures`    | figures 18 to 22                                            |
//! | `optimizers` | the cost by time of the optimisers that the paper names     |
mod figures;
mod measured;
mod optimizers;
mod serial;
mod tables;

use super::Paper;
use crate::bench::sparse_autoencoder::printed::SIZES;
use anyhow::Result;
use measured::Measured;

/// Sizes in the figure that is zoomed in.
const ZOOMED: usize = 5;

pub(super) const SECTIONS: &[&str] = &[
    "table-1",
    "table-2",
    "table-3",
    "table-4",
    "table-5",
    "table-6",
    "table-7",
    "figure-18",
    "figure-19",
    "figure-20",
    "figure-21",
    "figure-22",
    "optimizers",
];

pub(super) fn run(paper: &mut Paper<'_>) -> Result<()> {
    let measured = &mut Measured::default();
    for id in SECTIONS {
        if !paper.wants(id) {
            continue;
        }
        match *id {
            "table-1" => tables::serial(paper, measured, 1)?,
            "table-2" => tables::serial(paper, measured, 2)?,
            "table-3" => tables::serial(paper, measured, 3)?,
            "table-4" => tables::serial(paper, measured, 4)?,
            "table-5" => tables::gpu(paper, measured)?,
            "table-6" => tables::all(paper, measured)?,
            "table-7" => tables::speedups(paper, measured)?,
            "figure-18" => figures::runtime(paper, measured, 18, SIZES.len())?,
            "figure-19" => figures::runtime(paper, measured, 19, ZOOMED)?,
            "figure-20" => figures::logarithmic(paper, measured, 20, "_3")?,
            "figure-21" => figures::logarithmic(paper, measured, 21, "_0")?,
            "figure-22" => figures::speedups(paper, measured)?,
            _ => optimizers::run(paper)?,
        }
    }
    Ok(())
}
