//! Tensors in memory as rows and labels, and rows and labels as tensors.
use crate::labels::class_numbers;
use crate::planes::Layout;
use crate::rounded::RoundedSink;
use crate::{Dataset, Error, MemoryRows, Result, Source, Split};
use candle::{DType, Device, Tensor};
use std::sync::Arc;

impl Split {
    /// A split of rows in memory, copied from `rows`, `[n_samples, …]` on any device; `labels` are
    /// their class numbers, of any type, `[n_samples]` or `[n_samples, 1]`.
    ///
    /// Bytes stay bytes, which stand for themselves over 255; all other types become f32. Samples
    /// of the shape of an image are one: `[height, width]`, `[channels, height, width]` with 1 or 3
    /// channels, or `[height, width, channels]` with 1, 3, or 4 of which the last is dropped.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use chandlery_datasets::Split;
    /// # fn main() -> chandlery_datasets::Result<()> {
    /// let rows = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let split = Split::from_tensors(&rows, Some(&Tensor::new(&[0u32, 1], &Device::Cpu)?))?;
    /// assert_eq!((split.n_samples(), split.n_features(), split.n_classes()), (2, 2, 2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When there are no rows or rows of no values; when a value is not finite, or a whole number
    /// that f32 does not hold; when there are not as many labels as rows, or one of them is no
    /// class number.
    pub fn from_tensors(rows: &Tensor, labels: Option<&Tensor>) -> Result<Self> {
        let n_features = match rows.dims() {
            [] | [_] => 0,
            [_, sample @ ..] => sample.iter().product(),
        };
        if n_features == 0 {
            return Err(Error::Argument(format!(
                "Split::from_tensors: rows must have shape [n_samples, n_features], got {:?}",
                rows.dims()
            )));
        }
        let flat = rows.flatten_all()?;
        let source: Arc<dyn Source> = match rows.dtype() {
            DType::U8 => Arc::new(MemoryRows::from_u8(flat.to_vec1()?, n_features)?),
            DType::F16 | DType::BF16 | DType::F32 => {
                Arc::new(MemoryRows::from_f32(flat.to_dtype(DType::F32)?.to_vec1()?, n_features)?)
            }
            // What rounding costs is noted.
            DType::F64 => {
                let mut sink = RoundedSink::new(usize::MAX, None);
                sink.push(&flat.to_vec1()?, n_features)?;
                sink.finish("Split::from_tensors", n_features)?
            }
            _ => Arc::new(MemoryRows::from_f32(exact(&whole(&flat, "rows")?, n_features)?, n_features)?),
        };
        let labels = labels.map(classes).transpose()?;
        let layout = rows.dims().get(1..).and_then(Layout::of);
        let source = layout.map_or(source.clone(), |layout| layout.planes(source));
        Self::new(source, labels)?.with_image(layout.map(|layout| layout.shape))
    }

    /// A split of what an iterator in the form of candle-datasets' `Batcher` gives: rows and labels
    /// of minibatches, or of single samples where labels have no dimension. See
    /// [`from_tensors`](Self::from_tensors).
    ///
    /// # Errors
    /// Those of the iterator and of [`from_tensors`](Self::from_tensors), and when it gives
    /// nothing.
    pub fn from_batches(batches: impl IntoIterator<Item = candle::Result<(Tensor, Tensor)>>) -> Result<Self> {
        let (mut rows, mut labels) = (Vec::new(), Vec::new());
        for batch in batches {
            let (x, y) = batch?;
            let (x, y) = if y.rank() == 0 { (x.unsqueeze(0)?, y.unsqueeze(0)?) } else { (x, y) };
            rows.push(x.to_device(&Device::Cpu)?);
            labels.push(y.to_device(&Device::Cpu)?);
        }
        if rows.is_empty() {
            return Err(Error::Argument("Split::from_batches: there must be at least one batch".to_owned()));
        }
        Self::from_tensors(&Tensor::cat(&rows, 0)?, Some(&Tensor::cat(&labels, 0)?))
    }

    /// The samples one by one, which candle-datasets' `Batcher::new_r2` takes: `[n_features]` f32,
    /// bytes over 255, and `[]` u32, on `device`.
    ///
    /// # Errors
    /// When there are no labels. Those of the iterator are of reading.
    pub fn samples(
        &self,
        device: &Device,
    ) -> Result<impl Iterator<Item = candle::Result<(Tensor, Tensor)>> + use<>> {
        self.check_labels()?;
        let Some(labels) = self.labels.clone() else { return Err(no_labels("Split::samples")) };
        let (split, device) = (self.clone(), device.clone());
        Ok((0..self.n_samples()).map(move |i| {
            let row = split.scaled(&[i as u32], &device).map_err(candle::Error::wrap)?;
            Ok((row.squeeze(0)?, Tensor::new(labels[i], &device)?))
        }))
    }
}

/// What is said where labels are needed.
pub(crate) fn no_labels(at: &str) -> Error {
    Error::Argument(format!("{at}: rows must have labels, and these have none"))
}

/// Whole numbers of any type.
fn whole(flat: &Tensor, what: &str) -> Result<Vec<i64>> {
    match flat.dtype() {
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => {
            Ok(flat.to_dtype(DType::I64)?.to_vec1()?)
        }
        other => Err(Error::Argument(format!(
            "Split::from_tensors: {what} must be whole numbers or floats, got {other:?}; convert them first"
        ))),
    }
}

/// Whole numbers as f32, which must hold them.
fn exact(numbers: &[i64], n_features: usize) -> Result<Vec<f32>> {
    let exact = |(i, &number): (usize, &i64)| {
        let value = number as f32;
        if value as i128 != i128::from(number) {
            return Err(Error::Argument(format!(
                "Split::from_tensors: row {}, column {} is {number}, which f32 does not hold; convert rows to floats first",
                i / n_features,
                i % n_features
            )));
        }
        Ok(value)
    };
    numbers.iter().enumerate().map(exact).collect()
}

/// Labels as class numbers.
fn classes(labels: &Tensor) -> Result<Vec<u32>> {
    let at = "Split::from_tensors, labels";
    if !matches!(labels.dims(), [_] | [_, 1]) {
        let what = format!("have shape {:?}, want [n_samples]", labels.dims());
        return Err(Error::format(at, what, "give one class number a row"));
    }
    let flat = labels.flatten_all()?;
    let numbers = match flat.dtype() {
        dtype if dtype.is_float() => {
            let floats: Vec<f64> = flat.to_dtype(DType::F64)?.to_vec1()?;
            if let Some(row) = floats.iter().position(|x| x.fract() != 0. || !x.is_finite()) {
                let what = format!("row {row} has label {}", floats[row]);
                return Err(Error::format(at, what, "labels are class numbers from 0 on"));
            }
            floats.into_iter().map(|x| x as i64).collect()
        }
        _ => whole(&flat, "labels")?,
    };
    class_numbers(at, &numbers)
}

impl Dataset {
    /// A data set of rows in memory, without rows to test on; see [`Split::from_tensors`]. For
    /// those there are [`split`](Self::split) and [`with_test`](Self::with_test).
    ///
    /// # Errors
    /// Those of [`Split::from_tensors`].
    pub fn from_tensors(rows: &Tensor, labels: Option<&Tensor>) -> Result<Self> {
        Self::new("tensors", Split::from_tensors(rows, labels)?, None, None)
    }

    /// A data set that one of candle-datasets' loaders has read, with its f32 values in [0, 1].
    ///
    /// Images may be `[n, height * width]` (as its MNIST) or `[n, channels, height, width]` (as its
    /// CIFAR); only the latter gives an [`image`](Self::image).
    ///
    /// # Errors
    /// Those of [`Split::from_tensors`].
    #[cfg(feature = "candle-datasets")]
    pub fn from_candle(name: impl Into<String>, data: &candle_datasets::vision::Dataset) -> Result<Self> {
        let train = Split::from_tensors(&data.train_images, Some(&data.train_labels))?;
        let test = Split::from_tensors(&data.test_images, Some(&data.test_labels))?;
        Self::new(name, train, Some(test), None)
    }

    /// The data set as candle-datasets' loaders give one, on the CPU: rows f32, bytes over 255,
    /// `[n, n_features]` or, where they are images, `[n, channels, height, width]`; labels u32.
    ///
    /// # Errors
    /// When there are no rows to test on, or no labels; when rows cannot be read.
    #[cfg(feature = "candle-datasets")]
    pub fn to_candle(&self) -> Result<candle_datasets::vision::Dataset> {
        let of = |split: &Split| -> Result<(Tensor, Tensor)> {
            let labels = split.labels_tensor(&Device::Cpu)?.ok_or_else(|| no_labels("Dataset::to_candle"))?;
            let rows = split.to_tensor(&Device::Cpu)?;
            Ok((
                match self.image() {
                    None => rows,
                    Some(image) => rows.reshape(((), image.channels, image.height, image.width))?,
                },
                labels,
            ))
        };
        let Some(test) = &self.test else {
            return Err(Error::Argument("Dataset::to_candle: there must be rows to test on".to_owned()));
        };
        let ((train_images, train_labels), (test_images, test_labels)) = (of(&self.train)?, of(test)?);
        let labels = self.n_classes();
        Ok(candle_datasets::vision::Dataset { train_images, train_labels, test_images, test_labels, labels })
    }
}
