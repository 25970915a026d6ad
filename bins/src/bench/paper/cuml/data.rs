//! Rows for the sections.
use super::Known;
use crate::bench::paper::Paper;
use crate::bench::tsne::{Rows, rows_of};
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery_datasets::DataOptions;

/// Digits with their labels, on the CPU: the first `n` of the set that the library brings, `[n,
/// 784]` u8, in which classes take turns.
pub(super) fn digits(n: usize) -> Result<(Tensor, Tensor)> {
    let (rows, labels) = Rows::Set("mnist-sample".to_owned()).make(&Device::Cpu)?;
    let labels = labels.ok_or_else(|| anyhow::anyhow!("mnist-sample has no labels"))?;
    let n = n.min(rows.dim(0)?);
    Ok((rows.narrow(0, 0, n)?.contiguous()?, labels.narrow(0, 0, n)?.contiguous()?))
}

/// Ten Gaussian clusters, on the CPU: f32 `[n, n_features]`.
pub(super) fn clusters(n: usize, n_features: usize) -> Result<Tensor> {
    Ok(Rows::Blobs(n, n_features).make(&Device::Cpu)?.0)
}

impl Known {
    /// The rows themselves where they can be had and this is no quick run, else clusters of their
    /// shape, and which they are.
    pub(super) fn rows(&self, paper: &Paper) -> Result<(Tensor, &'static str)> {
        let set = match self.name {
            _ if paper.quick() => None,
            "Fashion-MNIST" => chandlery_datasets::open("fashion-mnist", &DataOptions::default()).ok(),
            "MNIST" => paper.mnist().ok(),
            _ => None,
        };
        if let Some(set) = set {
            let (rows, _) = rows_of(&set)?;
            if rows.dim(0)? >= self.n {
                return Ok((rows.narrow(0, 0, self.n)?.contiguous()?, "the set"));
            }
        }
        Ok((clusters(self.n, self.n_features)?, "made"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn digits_are_of_ten_classes() {
        let (rows, labels) = digits(300).unwrap();
        assert_eq!((rows.dims(), labels.dims()), (&[300, 784][..], &[300][..]));
        let mut classes = labels.to_vec1::<u32>().unwrap();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), 10);
    }
}
