//! Irofti, "Efficient dictionary learning implementation on the GPU using OpenCL", 2016.
//!
//! | module        | what                                                                      |
//! |---------------|---------------------------------------------------------------------------|
//! | `figure3`     | Batch-OMP by signals and by atoms                                         |
//! | `figure5`     | 200 iterations of the rules by atoms and by signals                       |
//! | `algorithm1`  | the printed Cholesky form beside ours: times, and whether codes are equal |
//! | `printed`     | an iteration as the paper prints it, from ops                             |
//! | `groups`      | `ñ`, atoms updated at once: time, error, recovery                         |
//! | `recovery`    | a known dictionary found again, by rule                                   |
//! | `denoising`   | a noisy photograph, by rule and `ñ`                                       |
//! | `chunks`      | `m̃`, signals coded at once                                                |
//!
//! OpenCL, tables 1 and 2 and figures 2 and 4 (registers and occupancy of its kernels on a card of
//! 2014), and GPUs of other vendors are out.
mod algorithm1;
mod chunks;
mod denoising;
mod figure3;
mod figure5;
mod groups;
mod printed;
mod recovery;

use super::{Cell, Paper};
use crate::bench::place::Place;
use crate::bench::timing::time;
use anyhow::Result;
use chandlery::dictionary::UpdateRule;
use chandlery::pictures::curves::Curve;

/// Its figures and tables.
pub(super) const SECTIONS: &[&str] =
    &["figure-3", "figure-5", "algorithm-1", "atoms-at-once", "recovery", "denoising", "signals-at-once"];

/// Makes those that are asked for.
pub(super) fn run(paper: &mut Paper) -> Result<()> {
    let made: [fn(&mut Paper) -> Result<()>; SECTIONS.len()] = [
        figure3::make,
        figure5::make,
        algorithm1::make,
        groups::make,
        recovery::make,
        denoising::make,
        chunks::make,
    ];
    for (id, make) in SECTIONS.iter().zip(made) {
        if paper.wants(id) {
            make(paper)?;
        }
    }
    Ok(())
}

/// The paper's rules, by the names of its figures.
const RULES: [(&str, UpdateRule); 3] =
    [("AK-SVD", UpdateRule::AkSvd), ("SGK", UpdateRule::Sgk), ("NSGK", UpdateRule::Nsgk)];

/// Seconds of `work` in a place: the median of so many runs, of at most 3 on one thread.
fn seconds(place: &Place, repeats: u32, work: impl FnMut() -> Result<()> + Send) -> Result<f64> {
    let repeats = if place.pool.is_some() { repeats.min(3) } else { repeats };
    Ok(place.run(|| time(&place.device, repeats, work))?.median)
}

/// Seconds of one form in one place, by size.
struct Times {
    name: String,
    seconds: Vec<f64>,
}

impl Times {
    fn new(name: String) -> Self {
        Self { name, seconds: Vec::new() }
    }

    /// A line over `x`, times `unit`.
    fn curve(&self, x: &[f64], unit: f64) -> Curve {
        Curve::new(self.name.clone(), x.iter().zip(&self.seconds).map(|(&x, s)| (x, unit * s)))
    }

    /// How many times as fast `fast` is at the size where it is most.
    fn most_over(&self, fast: &Self) -> f64 {
        self.seconds.iter().zip(&fast.seconds).map(|(slow, fast)| slow / fast).fold(f64::NAN, f64::max)
    }
}

/// A factor as a headline has it.
fn words(factor: f64) -> String {
    Cell::factor(factor).as_str().to_owned()
}

/// Of sizes those that a quick run has: the first, the middle and the last.
fn some<T>(all: Vec<T>, quick: bool) -> Vec<T> {
    let (middle, last) = (all.len() / 2, all.len().saturating_sub(1));
    let kept = all.into_iter().enumerate().filter(|(i, _)| !quick || [0, middle, last].contains(i));
    kept.map(|(_, size)| size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_has_the_ends_and_the_middle() {
        assert_eq!(some((1..=10).collect(), true), [1, 6, 10]);
        assert_eq!(some(vec![4, 5], true), [4, 5]);
        assert_eq!(some((1..=10).collect(), false).len(), 10);
    }

    #[test]
    fn the_largest_factor_is_that_of_one_size() {
        let times = |seconds: &[f64]| Times { name: String::new(), seconds: seconds.to_vec() };
        assert_eq!(times(&[4., 9., 8.]).most_over(&times(&[2., 3., 8.])), 3.);
    }
}
