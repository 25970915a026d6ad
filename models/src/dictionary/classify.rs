//! Classification by dictionaries: one for each class; a row is of the class whose dictionary
//! leaves least of it.
//!
//! ```text
//! D_c    each learned from the rows of class c alone
//! e_c    = ‖y − x_c D_c‖²        x_c: the code of y over D_c, of as many atoms for each class
//! c(y)   = argmin_c e_c
//! ```
//!
//! Source: Ramirez, Sprechmann and Sapiro, "Classification and clustering via dictionary learning
//! with structured incoherence and shared features", CVPR 2010, section 2, without its term that
//! keeps the dictionaries of different classes apart.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::dictionary::{Dictionary, DictionaryConfig};
//! use chandlery::dictionary::classify::ClassDictionaries;
//! # fn main() -> candle::Result<()> {
//! // Rows of class 0 lie along the first axis, those of class 1 along the diagonal.
//! let of = |atom: [f32; 2]| {
//!     Dictionary::from_tensor(DictionaryConfig::new(1, 2, 1), Tensor::new(&[atom], &Cpu)?)
//! };
//! let classes = ClassDictionaries::new(vec![of([1., 0.])?, of([0.6, 0.8])?])?;
//! let rows = Tensor::new(&[[5f32, 0.], [-3., -4.]], &Cpu)?;
//! // (5, 0) is 3 (.6, .8) + (3.2, −2.4), of which 16 is left.
//! let left = classes.residuals(&rows)?.to_vec2::<f64>()?;
//! assert!(left[0][0].abs() < 1e-9 && (left[0][1] - 16.).abs() < 1e-4);
//! assert_eq!(classes.predict(&rows)?.to_vec1::<u32>()?, [0, 1]);
//! # Ok(()) }
//! ```
use super::{Dictionary, DictionaryConfig, DictionaryTrainConfig};
use crate::check::batch_of;
use crate::model::{Encode, Model};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::codes::row_squares;

/// A dictionary for each class; see the [module](self).
#[derive(Debug, Clone)]
pub struct ClassDictionaries {
    dictionaries: Vec<Dictionary>,
}

impl ClassDictionaries {
    /// Of trained dictionaries, in the order of the classes.
    ///
    /// # Errors
    /// When there are fewer than two, or they are for rows of different widths.
    pub fn new(dictionaries: Vec<Dictionary>) -> Result<Self> {
        const OP: &str = "ClassDictionaries";
        if dictionaries.len() < 2 {
            candle::bail!("{OP}: there must be at least 2 dictionaries, got {}", dictionaries.len())
        }
        let widths: Vec<usize> =
            dictionaries.iter().map(|dictionary| dictionary.config().n_inputs()).collect();
        if let Some(other) = widths.iter().find(|width| **width != widths[0]) {
            candle::bail!("{OP}: dictionaries must be for rows of one width, got {} and {other}", widths[0])
        }
        Ok(Self { dictionaries })
    }

    /// Learns the dictionary of each of `n_classes` classes from its raw rows among `rows`,
    /// `[n_samples, n_inputs]`, which have these labels. Each is what [`Dictionary::fit`] learns
    /// with `config` and `training`.
    ///
    /// # Errors
    /// When there are fewer than two classes, a class has no row, labels are not as many as rows or
    /// not below `n_classes`, or as [`Dictionary::fit`].
    pub fn fit(
        config: &DictionaryConfig,
        rows: &Tensor,
        labels: &[u32],
        n_classes: usize,
        training: &DictionaryTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        const OP: &str = "ClassDictionaries::fit";
        let n_samples = batch_of(OP, "rows", rows, config.n_inputs())?;
        if labels.len() != n_samples {
            candle::bail!("{OP}: labels must be {n_samples}, one for each row, got {}", labels.len())
        }
        if let Some(bad) = labels.iter().find(|&&label| label as usize >= n_classes) {
            candle::bail!("{OP}: labels must be below {n_classes}, the number of classes, got {bad}")
        }
        let rows = rows.contiguous()?;
        let mut dictionaries = Vec::with_capacity(n_classes);
        for class in 0..n_classes as u32 {
            let own: Vec<u32> =
                (0u32..).zip(labels).filter(|(_, label)| **label == class).map(|(row, _)| row).collect();
            if own.is_empty() {
                candle::bail!("{OP}: each class must have at least 1 row, got none of class {class}")
            }
            // Each class draws from two streams of its own.
            let philox = Philox { stream: philox.stream.wrapping_add(2 * u64::from(class)), ..philox };
            let own = gather_rows(&rows, &own)?;
            dictionaries.push(Dictionary::fit(config.clone(), &own, training.clone(), philox)?);
        }
        Self::new(dictionaries)
    }

    /// The dictionaries, in the order of the classes.
    pub fn dictionaries(&self) -> &[Dictionary] {
        &self.dictionaries
    }

    /// `e`: what each class's dictionary leaves of raw rows, squared and summed over values,
    /// `[n_samples, n_classes]` f64.
    ///
    /// # Errors
    /// When rows have another width or are not finite.
    pub fn residuals(&self, rows: &Tensor) -> Result<Tensor> {
        let of_class = |dictionary: &Dictionary| {
            let signals = dictionary.prepare(rows)?.to_dtype(dictionary.atoms().dtype())?;
            let codes = dictionary.encode_prepared(&signals)?;
            row_squares(&codes.residual(&signals, dictionary.atoms())?)
        };
        let residuals = self.dictionaries.iter().map(of_class).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&residuals, 1)
    }

    /// The class of each raw row, `[n_samples]` u32; of equal residuals the first.
    ///
    /// # Errors
    /// As [`residuals`](Self::residuals).
    pub fn predict(&self, rows: &Tensor) -> Result<Tensor> {
        self.residuals(rows)?.argmin(1)
    }

    /// The share of raw rows whose class is found; `labels` are u32 `[n_samples]`.
    ///
    /// # Errors
    /// As [`residuals`](Self::residuals), and when there are no rows or labels of another shape.
    pub fn accuracy(&self, rows: &Tensor, labels: &Tensor) -> Result<f64> {
        let classes = self.predict(rows)?;
        if classes.dims() != labels.dims() || classes.elem_count() == 0 {
            candle::bail!(
                "ClassDictionaries: labels must be of shape {:?}, one for each of at least 1 row, got {:?}",
                classes.dims(),
                labels.dims()
            )
        }
        let hits = classes.eq(labels)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()?;
        Ok(f64::from(hits) / classes.elem_count() as f64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;
    use chandlery_ops::core::normal;

    /// Rows of three classes: each of two directions of its own among eight, and noise.
    fn rows(m: usize, stream: u64) -> (Tensor, Vec<u32>) {
        let directions = normal((6, 8), &Cpu, Philox::new(5, 0)).unwrap();
        let x = normal((m, 2), &Cpu, Philox::new(5, stream)).unwrap().to_vec2::<f32>().unwrap();
        let labels: Vec<u32> = (0..m as u32).map(|i| i % 3).collect();
        let mut dense = vec![0f32; m * 6];
        for (i, (x, label)) in x.iter().zip(&labels).enumerate() {
            let at = i * 6 + 2 * *label as usize;
            dense[at..at + 2].copy_from_slice(x);
        }
        let clean = Tensor::from_vec(dense, (m, 6), &Cpu).unwrap().matmul(&directions).unwrap();
        let noise = normal((m, 8), &Cpu, Philox::new(5, stream + 1)).unwrap();
        ((clean + (noise * 0.05).unwrap()).unwrap(), labels)
    }

    fn fitted(rows: &Tensor, labels: &[u32], n_classes: usize) -> Result<ClassDictionaries> {
        let config = DictionaryConfig::new(2, 8, 2);
        let training = DictionaryTrainConfig { iterations: 10, ..DictionaryTrainConfig::default() };
        ClassDictionaries::fit(&config, rows, labels, n_classes, &training, Philox::new(1, 0))
    }

    #[test]
    fn planes_of_classes_are_told_apart_and_others_labels_are_not() {
        let ((train, labels), (test, test_labels)) = (rows(300, 10), rows(150, 20));
        let of = |labels: &[u32]| Tensor::new(labels, &Cpu).unwrap();
        let accuracy =
            |labels: &[u32]| fitted(&train, labels, 3).unwrap().accuracy(&test, &of(&test_labels)).unwrap();
        assert!(accuracy(&labels) > 0.95, "{}", accuracy(&labels));
        // Labels that have nothing to do with the rows.
        let others: Vec<u32> = labels.iter().enumerate().map(|(i, _)| (i / 3 % 3) as u32).collect();
        assert!(accuracy(&others) < 0.6, "{}", accuracy(&others));
    }

    #[test]
    fn a_residual_is_that_of_the_code_by_hand() {
        let (train, labels) = rows(90, 30);
        let classes = fitted(&train, &labels, 3).unwrap();
        let residuals = classes.residuals(&train).unwrap().to_vec2::<f64>().unwrap();
        for (c, dictionary) in classes.dictionaries().iter().enumerate() {
            let codes = dictionary.encode(&train).unwrap().to_dense().unwrap();
            let left =
                (&train - codes.matmul(dictionary.atoms()).unwrap()).unwrap().to_vec2::<f32>().unwrap();
            for (row, left) in left.iter().enumerate() {
                let want: f64 = left.iter().map(|x| f64::from(*x).powi(2)).sum();
                // f32 values of about 1.
                assert!((residuals[row][c] - want).abs() < 1e-5, "row {row}, class {c}");
            }
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let (rows, labels) = rows(30, 40);
        let message = |result: Result<ClassDictionaries>| {
            result.unwrap_err().to_string().lines().next().unwrap().to_owned()
        };
        let cases = [
            (fitted(&rows, &labels[1..], 3), "labels must be 30, one for each row, got 29"),
            (fitted(&rows, &labels, 2), "labels must be below 2, the number of classes, got 2"),
            (fitted(&rows, &labels, 4), "each class must have at least 1 row, got none of class 3"),
        ];
        for (result, want) in cases {
            assert_eq!(message(result), format!("ClassDictionaries::fit: {want}"));
        }
        let one = fitted(&rows, &[0; 30], 1);
        assert_eq!(message(one), "ClassDictionaries: there must be at least 2 dictionaries, got 1");
    }
}
