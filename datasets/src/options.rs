//! How a data set is read.

/// The forms that [`open`](mod@crate::open) takes, for messages and help texts.
pub const FORMS: &str = "mnist-sample, mnist, fashion-mnist, hub:OWNER/NAME, a folder of idx files, images or parquet \
                         files, or a file .npy, .safetensors, .parquet or -ubyte[.gz]";

/// What to make of images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Colour {
    /// Grey images give one plane, colour images three; they may not be mixed. Palettes are looked up.
    #[default]
    AsStored,
    /// One plane of luma, 0.2126 R + 0.7152 G + 0.0722 B (Rec. 709), of the stored, gamma-coded values.
    Grey,
    /// Three planes, red, green, blue; a grey image gives the same plane three times.
    Rgb,
}

/// How to read a data set; each field has a default that fits the usual files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataOptions {
    /// Columns (hub, parquet; several separated by commas) or tensor (safetensors) of the rows.
    ///
    /// Default: the image column, else the only column of vectors, else all numeric columns but the labels; the tensor
    /// named like training data, else the only one of two or more dimensions.
    pub features: Option<String>,
    /// Column or tensor of the labels, or for `.npy` the path of another `.npy` file.
    ///
    /// Default: what the hub declares as class label, else a column or tensor called `label`, `labels`, `target` or the
    /// like; none for `.npy`.
    pub labels: Option<String>,
    /// Configuration of a hub data set. Default: `default`, or the only one.
    pub config: Option<String>,
    /// Name of the training split. Default: `train`, or the only one.
    pub train_split: Option<String>,
    /// Name of the test split. Default: `test`, else `validation`, else none.
    pub test_split: Option<String>,
    /// Rows to keep of each split, from its beginning. Default: all.
    pub max_rows: Option<usize>,
    /// What to make of images: as stored by default. Transparency is dropped, 16 bits a channel are rounded to 8.
    pub colour: Colour,
    /// Bytes of decoded rows of a split that may stay in memory; the rest goes to a temporary file that is mapped.
    /// Default 2 GiB.
    pub memory_bytes: Option<usize>,
}

impl DataOptions {
    pub(crate) fn memory_limit(&self) -> usize {
        self.memory_bytes.unwrap_or(2 << 30)
    }

    /// Of `n` rows, how many to keep.
    pub(crate) fn rows_of(&self, n: usize) -> usize {
        self.max_rows.map_or(n, |max| max.min(n))
    }
}
