//! Figures 18 to 22: the times of table 6, and the ratios of table 7.
use super::measured::{Measured, PROGRAMS, Times};
use crate::bench::paper::Paper;
use crate::bench::sparse_autoencoder::printed::{SECONDS, SIZES, SPEEDUPS};
use anyhow::{Context, Result};
use chandlery::pictures::curves::{Curve, Panel};

/// Where each size stands on the horizontal axis.
fn x(size: usize) -> f64 {
    SIZES.get(size).map_or(f64::NAN, |&(v, _)| v as f64)
}

const X: &str = "input nodes";

fn curve(name: &str, values: impl IntoIterator<Item = Option<f64>>, sizes: usize) -> Curve {
    let points = values.into_iter().take(sizes).enumerate();
    Curve::new(name, points.filter_map(|(i, value)| Some((x(i), value?))))
}

/// The paper's variants with one flag, Matlab and CUDA.
fn printed(title: &str, flag: &str, sizes: usize) -> Panel {
    let is_in = |name: &str| name.ends_with(flag) || ["Matlab", "GPU"].contains(&name);
    let lines = SECONDS.iter().filter(|(name, _)| is_in(name));
    let curves = lines.map(|(name, seconds)| curve(name, seconds.map(Some), sizes)).collect();
    Panel::new(title, X, "seconds of a pass", curves).log_x()
}

/// Ours: the serial programs of one level, and the best.
fn ours(paper: &Paper<'_>, measured: &mut Measured, title: &str, flag: &str, sizes: usize) -> Result<Panel> {
    let mut curves = Vec::new();
    for (name, ..) in PROGRAMS.iter().filter(|(name, ..)| name.ends_with(flag)) {
        curves.push(curve(name, measured.program(paper, name)?, sizes));
    }
    for (name, times) in measured.best(paper)? {
        curves.push(curve(name.trim_start_matches("here: "), *times, sizes));
    }
    Ok(Panel::new(title, X, "seconds of a pass", curves).log_x())
}

/// Figures 18 and 19: all implementations, at all sizes and at the first five.
pub fn runtime(paper: &mut Paper<'_>, measured: &mut Measured, number: usize, sizes: usize) -> Result<()> {
    let panels = [
        printed("the paper's, flag -O0", "_0", sizes),
        printed("the paper's, flag -O3", "_3", sizes),
        ours(paper, measured, "here, serial as compiled", "_3", sizes)?,
    ];
    let zoomed = if sizes < SIZES.len() { ", zoomed in" } else { "" };
    let caption = format!(
        "Figure {number}: runtime of all implementations{zoomed}; flags -O1 and -O2 lie by -O3, see table 6"
    );
    paper.figure(&format!("figure-{number}"), &caption, &panels)
}

/// Figures 20 and 21: with logarithms, beside the variants of one flag.
pub fn logarithmic(paper: &mut Paper<'_>, measured: &mut Measured, number: usize, flag: &str) -> Result<()> {
    let (compiled, title) = match flag {
        "_0" => ("-O0", "here, sums through memory"),
        _ => ("-O3", "here, as compiled"),
    };
    let all = SIZES.len();
    let panels = [
        printed(&format!("the paper's, flag {compiled}"), flag, all).log(),
        ours(paper, measured, title, flag, all)?.log(),
    ];
    let caption = format!("Figure {number}: log-log runtime of GPU, Matlab and {compiled} variants");
    paper.figure(&format!("figure-{number}"), &caption, &panels)
}

/// Figure 22: how many times as long each takes as the GPU.
pub fn speedups(paper: &mut Paper<'_>, measured: &mut Measured) -> Result<()> {
    let lines = SPEEDUPS.iter().filter(|(name, _)| name.ends_with("_3") || *name == "Matlab");
    let all = SIZES.len();
    let curves = lines.map(|(name, ratios)| curve(name, ratios.map(Some), all)).collect();
    let printed = Panel::new("the paper's: CUDA over each", X, "times as fast", curves).log_x().log();
    let (fastest, fast) = measured.best(paper)?.last().cloned().context("there must be a place")?;
    let mut ours: Vec<(String, Times)> = Vec::new();
    for (name, ..) in PROGRAMS.iter().filter(|(name, ..)| name.ends_with("_3")) {
        ours.push(((*name).to_owned(), measured.program(paper, name)?));
    }
    ours.extend(measured.best(paper)?.iter().filter(|(name, _)| *name != fastest).cloned());
    let curves = ours.iter().map(|(name, times)| {
        let ratios = times.iter().zip(fast).map(|(slow, fast)| Some(slow.as_ref()? / fast?));
        curve(name.trim_start_matches("here: "), ratios, all)
    });
    let title = format!("{} over each", fastest.trim_start_matches("here: best, "));
    let here = Panel::new(title, X, "times as fast", curves.collect()).log_x().log();
    let caption =
        "Figure 22: its caption repeats that of figure 21; here the ratios of table 7, log-log, for flag -O3";
    paper.figure("figure-22", caption, &[printed, here])
}
