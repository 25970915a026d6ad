//! Rows of two splits side by side.
use crate::source::{check_read, row_bytes};
use crate::{Error, Result, RowType, Source, Split};
use std::ops::Range;
use std::sync::Arc;

impl Split {
    /// Each row with that of `other` behind it: for what learns one from the other. Shares the rows;
    /// labels stay, images do not.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use chandlery_datasets::Split;
    /// # fn main() -> chandlery_datasets::Result<()> {
    /// let of = |rows: &Tensor| Split::from_tensors(rows, None);
    /// let x = of(&Tensor::new(&[[1f32], [2.]], &Device::Cpu)?)?;
    /// let y = of(&Tensor::new(&[[3f32, 4.], [5., 6.]], &Device::Cpu)?)?;
    /// assert_eq!(x.beside(&y)?.to_tensor(&Device::Cpu)?.to_vec2::<f32>()?, [[1., 3., 4.], [2., 5., 6.]]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When they are not as many, or of different types.
    pub fn beside(&self, other: &Self) -> Result<Self> {
        let [n, of_other] = [self, other].map(Self::n_samples);
        let [row_type, other_type] = [self, other].map(Self::row_type);
        if n != of_other || row_type != other_type {
            return Err(Error::Argument(format!(
                "Split::beside: rows must be as many and of one type, got {n} of {row_type:?} and {of_other} of {other_type:?}"
            )));
        }
        let rows = SideBySide { left: self.rows.clone(), right: other.rows.clone() };
        Ok(Self { rows: Arc::new(rows), labels: self.labels.clone(), image: None })
    }
}

/// Rows of two sources, of one type and as many.
#[derive(Debug)]
struct SideBySide {
    left: Arc<dyn Source>,
    right: Arc<dyn Source>,
}

impl Source for SideBySide {
    fn n_samples(&self) -> usize {
        self.left.n_samples()
    }

    fn n_features(&self) -> usize {
        self.left.n_features() + self.right.n_features()
    }

    fn row_type(&self) -> RowType {
        self.left.row_type()
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        let [left, right] = [&self.left, &self.right].map(|source| row_bytes(source.as_ref()));
        let mut rows = Vec::new();
        for (source, place) in [(&self.left, 0..left), (&self.right, left..left + right)] {
            rows.resize(indices.len() * place.len(), 0);
            source.read_rows(indices, &mut rows)?;
            for (out, row) in out.chunks_exact_mut(left + right).zip(rows.chunks_exact(place.len())) {
                if let Some(out) = out.get_mut(place.clone()) {
                    out.copy_from_slice(row);
                }
            }
        }
        Ok(())
    }

    fn will_read(&self, rows: Range<usize>) {
        self.left.will_read(rows.clone());
        self.right.will_read(rows);
    }

    fn origin(&self, row: usize) -> usize {
        self.left.origin(row)
    }
}
