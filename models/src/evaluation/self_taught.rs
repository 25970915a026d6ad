//! Self-taught learning: what features that were learned without labels are worth where labels are
//! few.
//!
//! Features are learned from rows of some classes without their labels. Linear classifiers of other
//! classes learn from these features, and from others to compare them with, all from the same
//! labelled rows, and are measured on the same test rows. Everything is repeated with other seeds:
//! other draws of labelled rows, other features.
//!
//! Source: Raina, Battle, Lee, Packer and Ng, "Self-taught learning", ICML 2007.
use crate::softmax::{Softmax, SoftmaxTrainConfig};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::Split;
use chandlery_ops::Philox;
use chandlery_ops::arrays::gather_rows;
use serde::Serialize;
use std::ops::RangeInclusive;

/// Most iterations of a classifier.
const CLASSIFIER_ITERATIONS: usize = 300;
/// The place of the draws of labelled rows in the random sequence of a seed.
const ORDER: u64 = 1 << 33;

/// The rows of these classes.
///
/// # Errors
/// When rows have no labels, or none is of these classes.
pub fn rows_of(split: &Split, classes: &RangeInclusive<u32>) -> Result<Split> {
    let labels = labels_of(split)?;
    let places = labels.iter().zip(0..).filter(|(label, _)| classes.contains(label));
    let places: Vec<u32> = places.map(|(_, place)| place).collect();
    ensure!(
        !places.is_empty(),
        "SelfTaught: there must be rows of the classes {} to {}, got none",
        classes.start(),
        classes.end()
    );
    split.select(&places).map_err(Error::wrap)
}

fn labels_of(split: &Split) -> Result<&[u32]> {
    match split.labels.as_deref() {
        Some(labels) => Ok(labels),
        None => candle::bail!("SelfTaught: rows must have labels, got none"),
    }
}

/// The labelled part of the comparison.
#[derive(Debug, Clone)]
pub struct SelfTaught {
    train: Split,
    test: Split,
    classes: RangeInclusive<u32>,
    numbers: Vec<usize>,
}

/// Labelled rows of a seed.
#[derive(Debug)]
pub struct Drawn {
    rows: Split,
    /// Places in `rows` for each number of labels.
    places: Vec<Vec<u32>>,
}

impl SelfTaught {
    /// Rows of `classes`, at least two, of a training and of a test split; classifiers learn from
    /// as many labelled rows as `numbers` say, or from all where it is empty.
    ///
    /// # Errors
    /// When rows have no labels or none is of these classes, or there are fewer than two classes.
    pub fn new(train: &Split, test: &Split, classes: RangeInclusive<u32>, numbers: &[usize]) -> Result<Self> {
        let n = classes.clone().count();
        ensure!(n >= 2, "SelfTaught: there must be at least 2 classes, got {n}");
        let (train, test) = (rows_of(train, &classes)?, rows_of(test, &classes)?);
        let numbers = ascending(numbers, train.n_samples());
        Ok(Self { train, test, classes, numbers })
    }

    /// The numbers of labelled rows, ascending, each once.
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// How many rows classifiers are measured on.
    pub fn n_test(&self) -> usize {
        self.test.n_samples()
    }

    /// Labels, counted from the first class.
    fn labels(&self, split: &Split) -> Result<Vec<u32>> {
        Ok(labels_of(split)?.iter().map(|label| label - self.classes.start()).collect())
    }

    fn n_classes(&self) -> usize {
        self.classes.clone().count()
    }

    /// The labelled rows of a seed: as many of each class as there can be, and those of a smaller
    /// number among those of a larger one.
    ///
    /// # Errors
    /// When rows cannot be selected.
    pub fn draw(&self, seed: u64) -> Result<Drawn> {
        let order = balanced(&self.labels(&self.train)?, self.n_classes(), Philox::new(seed, ORDER));
        let sorted = |n: usize| {
            let mut places = order[..n].to_vec();
            places.sort_unstable();
            places
        };
        let most = sorted(self.numbers.last().copied().unwrap_or_default());
        let inside = |place: &u32| most.partition_point(|p| p < place) as u32;
        let places = self.numbers.iter().map(|&n| sorted(n).iter().map(inside).collect()).collect();
        Ok(Drawn { rows: self.train.select(&most).map_err(Error::wrap)?, places })
    }

    /// The shares of test rows that classifiers of what `features` makes of raw rows,
    /// `[n, n_features]`, get right: one for each number of labels. Features are not standardised,
    /// and weights decay by 10⁻⁴, as in the published experiments.
    ///
    /// # Errors
    /// Those of `features`, and when what it gives does not fit.
    pub fn accuracies(
        &self,
        drawn: &Drawn,
        device: &Device,
        features: &dyn Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Vec<f64>> {
        let of = |split: &Split| -> Result<(Tensor, Tensor)> {
            let raw = split.raw(device).map_err(Error::wrap)?;
            let x = features(&raw)?.to_dtype(DType::F32)?.contiguous()?;
            Ok((x, Tensor::new(self.labels(split)?, device)?))
        };
        let ((x, labels), (test_x, test_labels)) = (of(&drawn.rows)?, of(&self.test)?);
        let config =
            SoftmaxTrainConfig { l2: Some(1e-4), iterations: CLASSIFIER_ITERATIONS, standardise: false };
        let accuracy = |places: &Vec<u32>| {
            let (x, labels) = (gather_rows(&x, places)?, gather_rows(&labels, places)?);
            let (softmax, _) = Softmax::fit(&x, &labels, self.n_classes(), &config)?;
            softmax.accuracy(&test_x, &test_labels)
        };
        drawn.places.iter().map(accuracy).collect()
    }
}

/// The numbers of labelled rows, ascending, each once, of `all` at most.
fn ascending(asked: &[usize], all: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = asked.iter().map(|&n| n.min(all)).collect();
    if numbers.is_empty() {
        numbers.push(all);
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Places of rows with these labels such that the first n have as many of each class as there can
/// be, for each n.
fn balanced(labels: &[u32], n_classes: usize, philox: Philox) -> Vec<u32> {
    let mut seen = vec![0usize; n_classes];
    let mut order: Vec<(usize, u32)> = Vec::with_capacity(labels.len());
    for place in philox.permutation(labels.len()) {
        let seen = &mut seen[labels[place as usize] as usize];
        order.push((*seen, place));
        *seen += 1;
    }
    // Stable: within a round the classes come in the order of the permutation.
    order.sort_by_key(|(round, _)| *round);
    order.into_iter().map(|(_, place)| place).collect()
}

/// Shares of test rows that are right, over seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Accuracy {
    /// Of each seed.
    pub each: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation as a sample; none of one seed.
    pub standard_deviation: Option<f64>,
}

impl Accuracy {
    /// Over these seeds.
    pub fn of(each: Vec<f64>) -> Self {
        let n = each.len() as f64;
        let mean = each.iter().sum::<f64>() / n;
        let squares = each.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        let standard_deviation = (each.len() > 1).then(|| (squares / (n - 1.)).sqrt());
        Self { each, mean, standard_deviation }
    }

    /// One for each of `n` numbers of labels, of the [accuracies](SelfTaught::accuracies) of each
    /// seed.
    pub fn of_each(of_seeds: &[Vec<f64>], n: usize) -> Vec<Self> {
        (0..n).map(|i| Self::of(of_seeds.iter().map(|of_seed| of_seed[i]).collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_first_rows_of_a_draw_have_as_many_of_each_class_as_there_can_be() {
        // Six of class 0, three of class 1, one of class 2.
        let labels = [0, 0, 1, 0, 0, 2, 1, 0, 1, 0];
        let order = balanced(&labels, 3, Philox::new(4, 0));
        let counts = |n: usize| {
            let mut counts = [0; 3];
            order[..n].iter().for_each(|&place| counts[labels[place as usize] as usize] += 1);
            counts
        };
        assert_eq!(
            [counts(3), counts(5), counts(7), counts(10)],
            [[1, 1, 1], [2, 2, 1], [3, 3, 1], [6, 3, 1]]
        );
        let mut places = order.clone();
        places.sort_unstable();
        assert_eq!(places, (0..10).collect::<Vec<u32>>());
        assert_ne!(order, balanced(&labels, 3, Philox::new(5, 0)));
    }

    #[test]
    fn numbers_of_labels_ascend_and_end_at_all() {
        assert_eq!(ascending(&[], 70), [70]);
        assert_eq!(ascending(&[100, 10, 1000, 10], 70), [10, 70]);
    }

    #[test]
    fn the_spread_is_that_of_a_sample() {
        let accuracy = Accuracy::of(vec![0.5, 0.7]);
        assert!((accuracy.mean - 0.6).abs() < 1e-12);
        // √(0.01 + 0.01)
        assert!((accuracy.standard_deviation.unwrap() - 0.02f64.sqrt()).abs() < 1e-12);
        assert_eq!(Accuracy::of(vec![0.5]).standard_deviation, None);
    }
}
