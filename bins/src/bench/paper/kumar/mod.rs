//! Kumar and Giaquinto, "Parallelizing denoising autoencoders": a network of 784 inputs and 500
//! hidden units on MNIST.
//!
//! | module | what |
//! |---|---|
//! | `figure_4` | epochs, speed-ups and errors by minibatch |
//! | `modules` | the six modules as separate launches, beside the fused step |
//! | `naive` | a block an observation, a thread a feature (section 3.2) |
//! | `tiles` | products by the width of their tiles |
//! | `types` | f32 and f64, an open question of the conclusion |
//! | `stacks` | stacked autoencoders, another |
//! | `streams` | streams for the transfer of data, the last |
//!
//! The paper prints its results as curves without numbers; the numbers of its text are the
//! constants here.
mod figure_4;
mod modules;
mod naive;
mod stacks;
mod streams;
mod tiles;
mod types;

use super::{Cell, Paper, Table};
use crate::bench::dae::{RUN_SECONDS, serial};
use crate::bench::place::Place;
use crate::bench::size::Size;
use crate::bench::stream::synthetic_rows;
use anyhow::Result;
use candle::Device;

/// The tables and figures, in the order in which they are made.
pub(super) const SECTIONS: &[&str] =
    &["figure-4", "modules", "naive", "tile-width", "f32-f64", "stacks", "streams"];

/// Input features and hidden units (section 3.2).
const SIZE: Size = Size { n_visible: 784, n_hidden: 500 };
/// The largest speed-up over the serial program (abstract, section 6), and the minibatches that it
/// was reached with.
const BEST: (f64, usize) = (60., 8);
/// How many times slower than the serial program the naive form is (section 3.2, footnote 1).
const NAIVE_SLOWER: f64 = 10.;
/// Rows that the serial program is timed on.
const SERIAL_ROWS: (usize, usize) = (300, 60);

/// Makes the tables and figures that are wanted.
pub(super) fn run(paper: &mut Paper<'_>) -> Result<()> {
    let sections: [fn(&mut Paper<'_>) -> Result<()>; 7] = [
        figure_4::section,
        modules::section,
        naive::section,
        tiles::section,
        types::section,
        stacks::section,
        streams::section,
    ];
    for (id, section) in SECTIONS.iter().zip(sections) {
        if paper.wants(id) {
            section(paper)?;
        }
    }
    Ok(())
}

/// How often, and for about how many seconds, work is timed.
fn runs(paper: &Paper<'_>) -> (u32, f64) {
    if paper.quick() { (1, 0.05) } else { (paper.repeats().min(3), 0.2 * RUN_SECONDS) }
}

/// The longer list, or with `--quick` the shorter one.
fn either<T: Copy>(paper: &Paper<'_>, whole: &[T], quick: &[T]) -> Vec<T> {
    if paper.quick() { quick.to_vec() } else { whole.to_vec() }
}

/// Seconds of a row by the serial program of this size, on one thread.
fn serial_row(paper: &Paper<'_>, size: Size) -> Result<f64> {
    let n = if paper.quick() { SERIAL_ROWS.1 } else { SERIAL_ROWS.0 };
    serial(size, &synthetic_rows(n, size.n_visible)?)
}

/// Adds a table.
fn table(
    paper: &mut Paper<'_>,
    title: &str,
    heads: &[String],
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
) -> Result<()> {
    paper.table(Table { title: title.to_owned(), heads: heads.to_vec(), rows, notes })
}

/// Work on the device of a place, and on its threads.
fn run_at<T: Send>(place: &Place, work: impl FnOnce(&Device) -> Result<T> + Send) -> Result<T> {
    place.run(|| work(&place.device))
}

/// Heads, as text of its own.
fn heads<const N: usize>(heads: [&str; N]) -> Vec<String> {
    heads.map(str::to_owned).to_vec()
}
