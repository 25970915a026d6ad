//! What a data set is: a training split, perhaps a test split, and what its rows and labels mean.
use crate::source::{MemoryRows, Subset, row_bytes};
use crate::{Error, Result, RowType, Source};
use candle::{DType, Device, Tensor};
use chandlery_ops::Philox;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The Philox stream that draws held-out rows; [`crate::Feed`] draws its orders from others.
const HOLD_OUT_STREAM: u64 = 0x686f_6c64; // "hold"

/// Rows, and for each row a label where there are labels.
#[derive(Clone)]
pub struct Split {
    /// The rows.
    pub rows: Arc<dyn Source>,
    /// One class number for each row.
    pub labels: Option<Arc<[u32]>>,
    /// How the values of a row make an image, where rows are images.
    pub image: Option<ImageShape>,
}

impl std::fmt::Debug for Split {
    /// Says whether there are labels, not which.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Split")
            .field("rows", &self.rows)
            .field("n_labels", &self.labels.as_deref().map(<[u32]>::len))
            .field("image", &self.image)
            .finish()
    }
}

impl Split {
    /// Joins rows and labels.
    ///
    /// # Errors
    /// When there are no rows, or not as many labels as rows.
    pub fn new(rows: Arc<dyn Source>, labels: Option<Vec<u32>>) -> Result<Self> {
        let n_rows = rows.n_samples();
        if n_rows == 0 || n_rows > u32::MAX as usize {
            return Err(Error::Argument(format!(
                "Split: rows must number between 1 and {}, got {n_rows}",
                u32::MAX
            )));
        }
        let split = Self { rows, labels: labels.map(Into::into), image: None };
        split.check_labels()?;
        Ok(split)
    }

    /// Refuses labels of another number than rows: the fields are open.
    pub(crate) fn check_labels(&self) -> Result<()> {
        let n_rows = self.n_samples();
        match self.labels.as_deref() {
            Some(labels) if labels.len() != n_rows => {
                Err(Error::Labels { at: "Split".to_owned(), n_rows, n_labels: labels.len() })
            }
            _ => Ok(()),
        }
    }

    /// The same rows as images of this shape.
    ///
    /// # Errors
    /// When the shape does not have as many values as a row.
    pub fn with_image(self, image: Option<ImageShape>) -> Result<Self> {
        match image {
            Some(shape) if shape.n_features() != self.n_features() => Err(Error::Argument(format!(
                "image shape {shape} has {}, rows have {}",
                crate::count(shape.n_features(), "value"),
                self.n_features()
            ))),
            image => Ok(Self { image, ..self }),
        }
    }

    /// Refuses images of another shape than those of the training split; `at` names the data set,
    /// `fix` says what to do.
    pub(crate) fn check_images_like(&self, train: &Self, at: &str, fix: &str) -> Result<()> {
        if self.image == train.image {
            return Ok(());
        }
        let text = |image: Option<ImageShape>| {
            image.map_or_else(|| "no images".to_owned(), |image| image.to_string())
        };
        let (train, test) = (text(train.image), text(self.image));
        let what = format!("training images are {train}, test images {test} (height x width x channels)");
        Err(Error::format(at, what, fix))
    }

    /// Joins rows and labels of a file that held `n_rows` rows, of which `rows` are all or the
    /// first.
    pub(crate) fn join(
        at: impl std::fmt::Display,
        rows: Arc<dyn Source>,
        n_rows: usize,
        labels: Option<Vec<u32>>,
    ) -> Result<Self> {
        let Some(mut labels) = labels else {
            return Self::new(rows, None);
        };
        if labels.len() != n_rows {
            return Err(Error::Labels { at: at.to_string(), n_rows, n_labels: labels.len() });
        }
        labels.truncate(rows.n_samples());
        Self::new(rows, Some(labels))
    }

    /// A split of bytes in memory, each standing for itself over 255; `values` is
    /// `[n_samples, n_features]`.
    ///
    /// # Errors
    /// See [`MemoryRows::from_u8`] and [`Split::new`].
    pub fn from_u8(values: Vec<u8>, n_features: usize, labels: Option<Vec<u32>>) -> Result<Self> {
        Self::new(Arc::new(MemoryRows::from_u8(values, n_features)?), labels)
    }

    /// A split of floats in memory; `values` is `[n_samples, n_features]`.
    ///
    /// # Errors
    /// See [`MemoryRows::from_f32`] and [`Split::new`].
    pub fn from_f32(values: Vec<f32>, n_features: usize, labels: Option<Vec<u32>>) -> Result<Self> {
        Self::new(Arc::new(MemoryRows::from_f32(values, n_features)?), labels)
    }

    /// Number of rows.
    pub fn n_samples(&self) -> usize {
        self.rows.n_samples()
    }

    /// Values in a row.
    pub fn n_features(&self) -> usize {
        self.rows.n_features()
    }

    /// The stored type.
    pub fn row_type(&self) -> RowType {
        self.rows.row_type()
    }

    /// One more than the largest label, 0 without labels.
    pub fn n_classes(&self) -> usize {
        let largest = self.labels.iter().flat_map(|l| l.iter()).max();
        largest.map_or(0, |&l| l as usize + 1)
    }

    /// All rows on `device`: `[n_samples, n_features]`, f32, bytes scaled to [0, 1].
    ///
    /// # Errors
    /// When a row cannot be read or the device has no room for them.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        self.scaled(&self.all(), device)
    }

    /// The rows at `indices`, `[indices.len(), n_features]` on `device`: f32, bytes over 255.
    pub(crate) fn scaled(&self, indices: &[u32], device: &Device) -> Result<Tensor> {
        let stored = self.gather(indices, device)?;
        match self.row_type() {
            RowType::F32 => Ok(stored),
            RowType::Bf16 | RowType::F16 => Ok(stored.to_dtype(DType::F32)?),
            RowType::U8 => Ok(stored.to_dtype(DType::F32)?.affine(RowType::U8.scale(), 0.)?),
        }
    }

    /// The indices of all rows.
    fn all(&self) -> Vec<u32> {
        (0..self.n_samples() as u32).collect()
    }

    /// All rows on `device` as they are stored, which is what models take:
    /// `[n_samples, n_features]`, u8 or float.
    ///
    /// # Errors
    /// When a row cannot be read or the device has no room for them.
    pub fn raw(&self, device: &Device) -> Result<Tensor> {
        self.gather(&self.all(), device)
    }

    /// The labels on `device`: `[n_samples]`, u32; none without labels.
    ///
    /// # Errors
    /// When the device has no room for them.
    pub fn labels_tensor(&self, device: &Device) -> Result<Option<Tensor>> {
        let labels = self.labels.as_deref();
        Ok(labels.map(|labels| Tensor::from_slice(labels, labels.len(), device)).transpose()?)
    }

    /// The rows at `indices` as stored, `[indices.len(), n_features]` on `device`.
    pub(crate) fn gather(&self, indices: &[u32], device: &Device) -> Result<Tensor> {
        let shape = (indices.len(), self.n_features());
        let n_values = shape.0 * shape.1;
        Ok(match self.row_type() {
            RowType::U8 => {
                let mut values = vec![0u8; n_values];
                self.rows.read_rows(indices, &mut values)?;
                Tensor::from_vec(values, shape, device)?
            }
            RowType::F32 => {
                let mut values = vec![0f32; n_values];
                self.rows.read_rows(indices, bytemuck::cast_slice_mut(&mut values))?;
                Tensor::from_vec(values, shape, device)?
            }
            half => {
                let mut values = vec![0u8; n_values * half.size_bytes()];
                self.rows.read_rows(indices, &mut values)?;
                Tensor::from_raw_buffer(&values, half.dtype(), &[shape.0, shape.1], device)?
            }
        })
    }

    /// The rows at `indices`, in that order, and their labels; shares the rows.
    ///
    /// # Errors
    /// When `indices` is empty or one of them is not below `n_samples`.
    pub fn select(&self, indices: &[u32]) -> Result<Self> {
        let rows = Arc::new(Subset::new(self.rows.clone(), indices)?);
        self.check_labels()?;
        let labels =
            self.labels.as_deref().map(|labels| indices.iter().map(|&i| labels[i as usize]).collect());
        Ok(Self { image: self.image, ..Self::new(rows, labels)? })
    }

    /// The first `n` rows, or all when there are fewer.
    ///
    /// # Errors
    /// When `n` is 0.
    pub fn take(&self, n: usize) -> Result<Self> {
        if n >= self.n_samples() {
            return Ok(self.clone());
        }
        self.select(&(0..n as u32).collect::<Vec<_>>())
    }

    /// Draws `n` rows without replacement and returns `(the others, those)`, each in the order of
    /// the file.
    ///
    /// The same `seed` draws the same rows.
    ///
    /// # Errors
    /// When `n` is 0 or not below the number of rows.
    pub fn hold_out(&self, n: usize, seed: u64) -> Result<(Self, Self)> {
        let n_samples = self.n_samples();
        if n == 0 || n >= n_samples {
            return Err(Error::Argument(format!(
                "hold_out: n must be at least 1 and below the number of rows, got {n} of {n_samples}"
            )));
        }
        let mut order = Philox::new(seed, HOLD_OUT_STREAM).permutation(n_samples);
        let mut kept = order.split_off(n);
        order.sort_unstable();
        kept.sort_unstable();
        Ok((self.select(&kept)?, self.select(&order)?))
    }

    /// Bytes of all rows as stored.
    pub fn size_bytes(&self) -> usize {
        self.n_samples() * row_bytes(self.rows.as_ref())
    }
}

/// How the values of a row make an image: planes one after the other (`[channels, height, width]`),
/// each by lines.
///
/// Configurations write it as `[height, width, channels]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "[usize; 3]", into = "[usize; 3]")]
pub struct ImageShape {
    /// Lines, at least 1.
    pub height: usize,
    /// Pixels in a line, at least 1.
    pub width: usize,
    /// 1 for grey, 3 for red, green, blue.
    pub channels: usize,
}

impl ImageShape {
    /// A grey image.
    pub const fn grey(height: usize, width: usize) -> Self {
        Self { height, width, channels: 1 }
    }

    /// Values in a row: `channels * height * width`.
    pub const fn n_features(&self) -> usize {
        self.channels.saturating_mul(self.height).saturating_mul(self.width)
    }
}

impl From<[usize; 3]> for ImageShape {
    /// Of height, width and channels.
    fn from([height, width, channels]: [usize; 3]) -> Self {
        Self { height, width, channels }
    }
}

impl From<ImageShape> for [usize; 3] {
    fn from(shape: ImageShape) -> Self {
        [shape.height, shape.width, shape.channels]
    }
}

impl std::fmt::Display for ImageShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { height, width, channels } = self;
        write!(f, "{height}x{width}x{channels}")
    }
}

/// A data set, opened.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// How to name it in reports: the specification it was opened by.
    pub name: String,
    /// Rows to learn from.
    pub train: Split,
    /// Rows to test on, when the data set sets some apart.
    pub test: Option<Split>,
    /// Names of the classes in the order of their numbers, where the source has them.
    pub class_names: Option<Vec<String>>,
    /// Names of the columns that make a row, where the source is a table.
    pub column_names: Option<Vec<String>>,
    /// Why the labels that the source has were left out: they are no classes.
    pub left_out_labels: Option<String>,
    /// What was chosen or left out on the way, each in a line.
    pub notes: Vec<String>,
}

impl Dataset {
    /// Checks that the parts belong together; the test split's images get the shape of the training
    /// split's.
    ///
    /// # Errors
    /// When the splits differ in `n_features` or type.
    pub fn new(
        name: impl Into<String>,
        train: Split,
        test: Option<Split>,
        class_names: Option<Vec<String>>,
    ) -> Result<Self> {
        let name = name.into();
        if let Some(test) = &test
            && (test.n_features(), test.row_type()) != (train.n_features(), train.row_type())
        {
            return Err(Error::format(
                &name,
                format!(
                    "training rows are {} values of {:?}, test rows {} of {:?}",
                    train.n_features(),
                    train.row_type(),
                    test.n_features(),
                    test.row_type()
                ),
                "give splits of the same shape and type",
            ));
        }
        let test = test.map(|test| Split { image: train.image, ..test });
        let (column_names, left_out_labels, notes) = (None, None, Vec::new());
        Ok(Self { name, train, test, class_names, column_names, left_out_labels, notes })
    }

    /// Values in a row.
    pub fn n_features(&self) -> usize {
        self.train.n_features()
    }

    /// How the values of a row make an image, where rows are images.
    pub fn image(&self) -> Option<ImageShape> {
        self.train.image
    }

    /// Number of classes: of names where there are names, else one more than the largest label; 0
    /// without labels.
    pub fn n_classes(&self) -> usize {
        match &self.class_names {
            Some(names) => names.len(),
            None => self.test.iter().chain([&self.train]).map(Split::n_classes).max().unwrap_or(0),
        }
    }
}
