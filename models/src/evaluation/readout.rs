//! The linear read-out: the accuracy of a linear classifier on features, and of the same classifier
//! on the rows that they were made of.
//!
//! Both classifiers are fitted in the same way ([`Softmax`] with its default configuration) to the
//! same training rows and measured on the same test rows. Without training rows a classifier learns
//! from each half of the test rows and is measured on the other.
//!
//! ```
//! use candle::{Device, Error, Module};
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery::evaluation::readout::{Features, Readout, Rows};
//! use chandlery_datasets::Split;
//! use chandlery_ops::Philox;
//!
//! # fn main() -> candle::Result<()> {
//! // Sixteen rows of two bytes: dark ones are class 0, bright ones class 1.
//! let bytes = (0..32).map(|i| if i < 16 { i } else { 255 - i }).collect();
//! let labels = (0..16).map(|i| i / 8).collect();
//! let test = Split::from_u8(bytes, 2, Some(labels)).map_err(Error::wrap)?;
//! let dbn = Dbn::init(DbnConfig::new(&[2, 3]), Philox::new(7, 0), &Device::Cpu)?;
//! let inputs = |split: &Split| split.to_tensor(&Device::Cpu).map_err(Error::wrap);
//! let features = |split: &Split| dbn.forward(&inputs(split)?);
//! let features = Features { features: &features, inputs: &inputs, n: 3, n_top: 3 };
//! let rows = Rows { train: None, test: &test, n_classes: 2 };
//! let readout = Readout::of(&features, &rows, &Device::Cpu, &mut |_, _, _| {})?;
//! assert!(readout.is_some_and(|readout| readout.n_test == 16 && readout.accuracy_pixels == 1.));
//! # Ok(()) }
//! ```
use crate::softmax::{Softmax, SoftmaxTrainConfig};
use candle::{Device, Error, Result, Tensor};
use chandlery_datasets::Split;
use chandlery_ops::arrays::elementwise::contiguous;
use serde::Serialize;

/// Rows that a classifier learns from, and rows that it is measured on, at most.
const ROWS: usize = 60_000;
/// Values of a matrix that is made of them, at most: 1 GiB.
const VALUES: usize = 1 << 28;

/// The first rows of a split: at most `rows`, and so many that a matrix of `width` values each has
/// at most 2²⁸ values.
///
/// # Errors
/// When the rows cannot be selected.
pub fn some(split: &Split, rows: usize, width: usize) -> Result<Split> {
    split.take(rows.min(VALUES / width.max(1)).max(1)).map_err(Error::wrap)
}

/// What is made of the rows of a split, `[n_samples, _]` f32 on one device. `E` is the caller's
/// error.
pub type Made<'a, E> = &'a dyn Fn(&Split) -> std::result::Result<Tensor, E>;

/// Features, and the rows as the model reads them.
pub struct Features<'a, E> {
    /// The features, `[n_samples, n]`; those of the top layer are the last.
    pub features: Made<'a, E>,
    /// The prepared rows, `[n_samples, _]`.
    pub inputs: Made<'a, E>,
    /// How many features there are.
    pub n: usize,
    /// How many of them are of the top layer.
    pub n_top: usize,
}

/// Rows with labels.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Those that the classifiers learn from; none where they learn from halves of the others.
    pub train: Option<&'a Split>,
    /// Those that everything is measured on.
    pub test: &'a Split,
    /// Classes of the labels.
    pub n_classes: usize,
}

/// A classifier that is being fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// That of all features.
    Features,
    /// That of the top layer.
    Top,
    /// That of the rows themselves.
    Inputs,
}

/// Told how many evaluations of a classifier's objective were made, and of about how many.
pub type Progress<'a> = &'a mut dyn FnMut(Of, usize, usize);

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
    /// Values in a raw row.
    pub n_pixels: usize,
    /// Rows learnt from.
    pub n_train: usize,
    /// Rows classified.
    pub n_test: usize,
}

impl Readout {
    /// Fits and measures; none without labels, with one class, or where a half has no row.
    ///
    /// At most 60,000 rows of each split are used, fewer where their matrix would take more than 1
    /// GiB.
    ///
    /// # Errors
    /// Those of `features`, and when labels or shapes do not fit.
    pub fn of<E: From<Error>>(
        features: &Features<'_, E>,
        rows: &Rows<'_>,
        device: &Device,
        progress: Progress<'_>,
    ) -> std::result::Result<Option<Self>, E> {
        if rows.n_classes < 2 {
            return Ok(None);
        }
        if let Some(train) = rows.train {
            return Self::between(features, train, rows, device, progress);
        }
        let n = rows.test.n_samples();
        if n < 2 {
            return Ok(None);
        }
        let (one, other) = rows.test.hold_out(n / 2, 0).map_err(Error::wrap)?;
        let on = |test| Rows { test, ..*rows };
        let a = Self::between(features, &one, &on(&other), device, progress)?;
        let b = Self::between(features, &other, &on(&one), device, progress)?;
        let (Some(a), Some(b)) = (a, b) else { return Ok(None) };
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
    fn between<E: From<Error>>(
        features: &Features<'_, E>,
        train: &Split,
        rows: &Rows<'_>,
        device: &Device,
        progress: Progress<'_>,
    ) -> std::result::Result<Option<Self>, E> {
        let &Features { features, inputs, n: n_features, n_top } = features;
        let width = train.n_features().max(n_features);
        let (train, test) = (some(train, ROWS, width)?, some(rows.test, ROWS, width)?);
        let labels = |split: &Split| split.labels_tensor(device).map_err(Error::wrap);
        let (Some(train_labels), Some(test_labels)) = (labels(&train)?, labels(&test)?) else {
            return Ok(None);
        };
        let mut accuracy = |x: &Tensor, test: &Tensor, of: Of| -> Result<f64> {
            let mut show = |done, total| progress(of, done, total);
            let config = SoftmaxTrainConfig::default();
            let (softmax, _) =
                Softmax::fit_with_progress(x, &train_labels, rows.n_classes, &config, &mut show)?;
            softmax.accuracy(test, &test_labels)
        };
        let made = [features(&train)?, features(&test)?];
        let accuracy_features = accuracy(&made[0], &made[1], Of::Features)?;
        let accuracy_top = match n_top == n_features {
            true => accuracy_features,
            false => {
                let top = |x: &Tensor| contiguous(&x.narrow(1, n_features - n_top, n_top)?);
                accuracy(&top(&made[0])?, &top(&made[1])?, Of::Top)?
            }
        };
        drop(made);
        Ok(Some(Self {
            accuracy_features,
            accuracy_top,
            accuracy_pixels: accuracy(&inputs(&train)?, &inputs(&test)?, Of::Inputs)?,
            n_features,
            n_pixels: train.n_features(),
            n_train: train.n_samples(),
            n_test: test.n_samples(),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn a_feature_that_is_the_class_is_read_and_one_that_is_the_same_everywhere_is_not() {
        let labels: Vec<u32> = (0..40).map(|i| i % 2).collect();
        let split = Split::from_f32(vec![0.5; 80], 2, Some(labels)).unwrap();
        let of_class = |split: &Split| -> Result<Tensor> {
            let labels = split.labels.as_deref().unwrap_or_default();
            Tensor::from_iter(labels.iter().map(|&label| label as f32), &Cpu)?.unsqueeze(1)
        };
        let inputs = |split: &Split| split.to_tensor(&Cpu).map_err(Error::wrap);
        let features = Features { features: &of_class, inputs: &inputs, n: 1, n_top: 1 };
        for (train, n_test) in [(Some(&split), 40), (None, 40)] {
            let rows = Rows { train, test: &split, n_classes: 2 };
            let mut seen = Vec::new();
            let readout =
                Readout::of(&features, &rows, &Cpu, &mut |of, _, _| seen.push(of)).unwrap().unwrap();
            assert_eq!((readout.accuracy_features, readout.accuracy_top, readout.n_test), (1., 1., n_test));
            assert!(readout.accuracy_pixels < 0.8, "{}", readout.accuracy_pixels);
            assert!(seen.contains(&Of::Features) && seen.contains(&Of::Inputs) && !seen.contains(&Of::Top));
        }
        let one = Rows { train: None, test: &split, n_classes: 1 };
        assert_eq!(Readout::of(&features, &one, &Cpu, &mut |_, _, _| {}).unwrap(), None);
    }
}
