//! What features are worth: the accuracy of a linear classifier on them, and of the same classifier on the rows that they were made of.
use crate::data::MeasuredOn;
use crate::progress::Progress;
use crate::rows::{self, Reads};
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::softmax::{Softmax, SoftmaxTrainConfig};
use chandlery_datasets::{Split, count};
use serde::Serialize;

/// Rows that the classifier learns from, at most.
const ROWS: usize = 60_000;
/// Values of a matrix that is made of them, at most: 1 GiB.
const VALUES: usize = 1 << 28;

/// The first rows of a split, as many as are worth measuring and fit the memory when each makes `width` values.
pub fn some(split: &Split, rows: usize, width: usize) -> Result<Split> {
    Ok(split.take(rows.min(VALUES / width.max(1)).max(1))?)
}

/// Rows to evaluate on.
pub struct Rows<'a> {
    /// Those that the classifier learns from; without them it learns from each half of the others and is measured on the other half.
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

/// Accuracy of a linear classifier on features and on the rows themselves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Readout {
    /// Share of test rows classified rightly from all features side by side.
    pub accuracy_features: f64,
    /// The same from the top layer alone.
    pub accuracy_top: f64,
    /// The same from the rows as the model reads them.
    pub accuracy_pixels: f64,
    /// Features.
    pub n_features: usize,
    /// Values in a row.
    pub n_pixels: usize,
    /// Rows learnt from.
    pub n_train: usize,
    /// Rows classified.
    pub n_test: usize,
}

impl Readout {
    /// None without labels, with one class, or where there are only the rows that features were learned from: a classifier is not asked
    /// about the rows that it learned from.
    pub fn of(features: &Features<'_>, rows: &Rows<'_>, device: &Device) -> Result<Option<Self>> {
        if rows.measured_on == MeasuredOn::Training || rows.n_classes < 2 {
            return Ok(None);
        }
        if let Some(train) = rows.train {
            return Self::between(features, train, rows, device);
        }
        let n = rows.test.n_samples();
        if n < 2 {
            return Ok(None);
        }
        let (one, other) = rows.test.hold_out(n / 2, 0)?;
        let on = |test| Rows { test, ..*rows };
        let halves = (
            Self::between(features, &one, &on(&other), device)?,
            Self::between(features, &other, &on(&one), device)?,
        );
        let (Some(a), Some(b)) = halves else { return Ok(None) };
        let mean = |of: fn(&Self) -> f64| {
            let right = of(&a) * a.n_test as f64 + of(&b) * b.n_test as f64;
            right / (a.n_test + b.n_test) as f64
        };
        Ok(Some(Self {
            accuracy_features: mean(|half| half.accuracy_features),
            accuracy_top: mean(|half| half.accuracy_top),
            accuracy_pixels: mean(|half| half.accuracy_pixels),
            n_test: a.n_test + b.n_test,
            ..a
        }))
    }

    /// Of a classifier that learns from `train`.
    fn between(
        features: &Features<'_>,
        train: &Split,
        rows: &Rows<'_>,
        device: &Device,
    ) -> Result<Option<Self>> {
        let Features { reads, of, n: n_features, n_top, .. } = features;
        let width = train.n_features().max(*n_features);
        let (train, test) = (some(train, ROWS, width)?, some(rows.test, ROWS, width)?);
        let labels = (train.labels_tensor(device)?, test.labels_tensor(device)?);
        let (Some(train_labels), Some(test_labels)) = labels else { return Ok(None) };
        let accuracy = |x: &Tensor, test: &Tensor, of: &str| -> Result<f64> {
            let bar = Progress::steps(0);
            bar.label(format!("linear classifier of {of}"));
            let mut show = |done, total| bar.show(done, total);
            let config = SoftmaxTrainConfig::default();
            let (softmax, _) =
                Softmax::fit_with_progress(x, &train_labels, rows.n_classes, &config, &mut show)?;
            Ok(softmax.accuracy(test, &test_labels)?)
        };
        let both = |f: &dyn Fn(&Tensor) -> candle::Result<Tensor>| -> Result<[Tensor; 2]> {
            let through = |split: &Split| rows::through(split, reads.clone(), device, f);
            Ok([through(&train)?, through(&test)?])
        };
        let made = both(of)?;
        let accuracy_features = accuracy(&made[0], &made[1], "features")?;
        let accuracy_top = match n_top == n_features {
            true => accuracy_features,
            false => {
                let top = |x: &Tensor| x.narrow(1, n_features - n_top, *n_top)?.contiguous();
                accuracy(&top(&made[0])?, &top(&made[1])?, "the top layer")?
            }
        };
        drop(made);
        let prepared = both(&|rows| reads.preparation.apply(rows).map_err(candle::Error::wrap))?;
        Ok(Some(Self {
            accuracy_features,
            accuracy_top,
            accuracy_pixels: accuracy(&prepared[0], &prepared[1], "inputs")?,
            n_features: *n_features,
            n_pixels: train.n_features(),
            n_train: train.n_samples(),
            n_test: test.n_samples(),
        }))
    }

    /// The accuracies in a line, of features that are called `noun`.
    pub fn words(&self, measured_on: MeasuredOn, noun: &str) -> String {
        format!(
            "linear classifier on {}: {:.2} % on features ({}), {:.2} % on raw inputs ({})",
            measured_on.count_with_warning(self.n_test),
            100. * self.accuracy_features,
            count(self.n_features, noun),
            100. * self.accuracy_pixels,
            self.n_pixels
        )
    }

    /// What to say where features lose to raw inputs; none where they do not.
    pub fn warning(&self) -> Option<String> {
        let rows = |accuracy: f64| (accuracy * self.n_test as f64).round() as usize;
        let (features, raw) = (rows(self.accuracy_features), rows(self.accuracy_pixels));
        (features < raw).then(|| {
            format!(
                "warning: features lose to raw inputs here: a linear classifier gets {features} of {} right from features and {raw} from \
                 raw inputs; train longer (--epochs), try another size (--hidden) or --prepare, or use the raw inputs",
                count(self.n_test, "row")
            )
        })
    }
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
        assert_eq!(readout(0.75, 0.75).warning(), None);
        assert_eq!(readout(0.75, 0.5).warning(), None);
        let said = readout(34. / 48., 46. / 48.).warning().unwrap_or_default();
        assert!(said.contains("34 of 48 rows right from features and 46 from raw inputs"), "{said}");
    }
}
