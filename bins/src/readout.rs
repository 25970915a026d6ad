//! What features are worth, as programs measure and say it: [`chandlery::evaluation::readout`].
use crate::progress::Progress;
use crate::rows::{self, MeasuredOn, Reads};
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::evaluation::readout::{self, Of};
pub use chandlery::evaluation::readout::{Readout, some};
use chandlery_datasets::{Split, count};

/// Rows to evaluate on.
pub struct Rows<'a> {
    /// Those that the classifier learns from; without them it learns from each half of the others
    /// and is measured on the other half.
    pub train: Option<&'a Split>,
    /// Those that everything is measured on.
    pub test: &'a Split,
    /// Which those are.
    pub measured_on: MeasuredOn,
    /// Classes of the labels, 0 without.
    pub n_classes: usize,
}

/// What makes features of raw rows.
pub struct Features<'a> {
    /// What is said of the rows that are read.
    pub reads: Reads,
    /// Features of raw rows, `[n, n_features]`.
    pub of: &'a dyn Fn(&Tensor) -> candle::Result<Tensor>,
    /// How many there are.
    pub n: usize,
    /// Those of the top layer, which are the last.
    pub n_top: usize,
}

/// None without labels, with one class, or where there are only the rows that features were learned
/// from: a classifier is not asked about the rows that it learned from.
pub fn measure(features: &Features<'_>, rows: &Rows<'_>, device: &Device) -> Result<Option<Readout>> {
    let Features { reads, of, n, n_top } = features;
    let &Rows { train, test, measured_on, n_classes } = rows;
    if measured_on == MeasuredOn::Training {
        return Ok(None);
    }
    let through = |split: &Split, f: &dyn Fn(&Tensor) -> candle::Result<Tensor>| {
        rows::through(split, reads.clone(), device, f)
    };
    let features = readout::Features {
        features: &|split: &Split| through(split, of),
        inputs: &|split: &Split| {
            through(split, &|rows| reads.preparation.apply(rows).map_err(candle::Error::wrap))
        },
        n: *n,
        n_top: *n_top,
    };
    let mut bar: Option<(Of, Progress)> = None;
    let mut show = |of: Of, done, total| {
        if bar.as_ref().is_none_or(|(shown, _)| *shown != of) {
            let name = match of {
                Of::Features => "features",
                Of::Top => "the top layer",
                Of::Inputs => "inputs",
            };
            let new = Progress::steps(0);
            new.label(format!("linear classifier of {name}"));
            bar = Some((of, new));
        }
        bar.iter().for_each(|(_, bar)| bar.show(done, total));
    };
    Readout::of(&features, &readout::Rows { train, test, n_classes }, device, &mut show)
}

/// The accuracies in a line, of features that are called `noun`.
pub fn words(readout: &Readout, measured_on: MeasuredOn, noun: &str) -> String {
    format!(
        "linear classifier on {}: {:.2} % on features ({}), {:.2} % on raw inputs ({})",
        measured_on.count_with_warning(readout.n_test),
        100. * readout.accuracy_features,
        count(readout.n_features, noun),
        100. * readout.accuracy_pixels,
        readout.n_pixels
    )
}

/// What to say where features lose to raw inputs; none where they do not.
pub fn warning(readout: &Readout) -> Option<String> {
    let rows = |accuracy: f64| (accuracy * readout.n_test as f64).round() as usize;
    let (features, raw) = (rows(readout.accuracy_features), rows(readout.accuracy_pixels));
    (features < raw).then(|| {
        format!(
            "warning: features lose to raw inputs here: a linear classifier gets {features} of {} right from features and {raw} from \
             raw inputs; train longer (--epochs), try another size (--hidden) or --prepare, or use the raw inputs",
            count(readout.n_test, "row")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_lose_are_warned_of_and_others_are_not() {
        let readout = |accuracy_features, accuracy_pixels| Readout {
            accuracy_features,
            accuracy_top: 0.,
            accuracy_pixels,
            n_features: 3,
            n_pixels: 4,
            n_train: 10,
            n_test: 48,
        };
        assert_eq!(warning(&readout(0.75, 0.75)), None);
        assert_eq!(warning(&readout(0.75, 0.5)), None);
        let said = warning(&readout(34. / 48., 46. / 48.)).unwrap_or_default();
        assert!(said.contains("34 of 48 rows right from features and 46 from raw inputs"), "{said}");
    }
}
