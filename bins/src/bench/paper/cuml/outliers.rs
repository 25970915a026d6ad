//! Points that a step is too large for: pushed back at rest, as the source does it, against a limit
//! on steps, and neither.
use super::data::digits;
use super::{SEED, best, table};
use crate::bench::paper::{Cell, Paper};
use anyhow::Result;
use candle::{DType, Tensor};
use chandlery::evaluation::layout::{NEIGHBOURS, SAMPLE, TRUST_NEIGHBOURS};
use chandlery::tsne::measure::{self, TrueDistances};
use chandlery::tsne::{TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox};

/// Factors on the usual learning rate.
const RATES: [f64; 4] = [1., 10., 100., 1000.];
/// What is done, and the setting: a bound that nothing reaches is none.
const FORMS: [(&str, Option<f32>); 4] = [
    ("limit on steps: 5 (ours)", None),
    ("pushed back beyond 50", Some(50.)),
    ("pushed back beyond 200", Some(200.)),
    ("neither", Some(f32::MAX)),
];

/// What a run comes to.
struct Outcome {
    kl: f64,
    trustworthiness: f64,
    accuracy: f64,
    span: f64,
}

/// None where the layout becomes infinite.
fn outcome(config: TsneConfig, rows: &Tensor, labels: &Tensor) -> Result<Option<Outcome>> {
    let mut run = TsneTrainer::new(config, Philox::new(SEED, 9), rows)?;
    let mut span = 0.;
    loop {
        match run.step() {
            Ok(Some(progress)) => span = progress.span,
            Ok(None) => break,
            Err(_) => return Ok(None),
        }
    }
    let (layout, config) = (run.layout()?, run.config());
    let read = config.preparation.apply(rows)?.to_dtype(DType::F32)?.contiguous()?;
    let trust = measure::trustworthiness(
        TrueDistances::Rows(&read, config.metric),
        &layout,
        TRUST_NEIGHBOURS,
        SAMPLE,
    )?;
    Ok(Some(Outcome {
        kl: measure::kl_of_affinities(run.affinities(), &layout, 1.)?,
        trustworthiness: trust,
        accuracy: measure::knn_label_accuracy(&layout, labels, NEIGHBOURS)?,
        span,
    }))
}

/// The table.
pub(super) fn run(paper: &mut Paper) -> Result<()> {
    if !paper.wants("outliers") {
        return Ok(());
    }
    let n = match (paper.quick(), paper.device().is_cuda()) {
        (true, _) => 300,
        (false, false) => 1000,
        (false, true) => 6000,
    };
    let (rows, labels) = digits(n)?;
    let rows = rows.to_device(paper.device())?;
    let mut lines = Vec::new();
    for rate in RATES {
        for (form, push_back) in FORMS {
            let early = best().early_exaggeration;
            // One rate for both phases, as a user would set it.
            let learning_rate = Some(rate * n as f64 / early);
            let found = outcome(TsneConfig { learning_rate, push_back, ..best() }, &rows, &labels)?;
            let mut cells = vec![Cell::number(rate, 0), Cell::text(form)];
            cells.extend(match found {
                Some(Outcome { kl, trustworthiness, accuracy, span }) => vec![
                    Cell::number(kl, 3),
                    Cell::number(trustworthiness, 4),
                    Cell::number(100. * accuracy, 1),
                    Cell::number(span, 1),
                ],
                None => vec![Cell::text("diverged"), Cell::none(), Cell::none(), Cell::none()],
            });
            lines.push(cells);
        }
    }
    paper.table(table(
        "Outliers: pushed back, or steps limited",
        &["rate ×", "form", "KL", "trust", "10-NN label, %", "span"],
        lines,
        vec![
            format!("{n} digits, 250 + 500 iterations, learning rate {n} / 12 times the factor."),
            "A coordinate beyond the bound is put back to it, its velocity becomes 0 and its gain \
                 1 (`tsne --push-back`); the source does not say how large its bound is."
                .to_owned(),
        ],
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn points_that_are_pushed_back_stay_within_the_bound() {
        let (rows, labels) = digits(200).unwrap();
        let of = |push_back, rate: f64| {
            let config = TsneConfig { learning_rate: Some(rate), push_back, iterations: 100, ..best() };
            outcome(config, &rows, &labels).unwrap()
        };
        let far = of(Some(f32::MAX), 1e4).map(|found| found.span);
        assert!(far.is_none_or(|span| span > 100.), "{far:?}");
        let kept = of(Some(20.), 1e4).unwrap();
        assert!(kept.span <= 40. && kept.kl.is_finite(), "{}", kept.span);
        // A bound beyond the layout changes nothing but for the limit of steps, which few reach.
        let (usual, bounded) = (of(None, 17.).unwrap(), of(Some(200.), 17.).unwrap());
        assert!((usual.kl - bounded.kl).abs() < 0.1, "{} and {}", usual.kl, bounded.kl);
    }
}
