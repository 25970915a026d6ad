//! Rows for the sections.
use super::Known;
use crate::bench::tsne::Rows;
use anyhow::Result;
use candle::Tensor;

/// Digits with their labels, on the CPU: the first `n` of the set that the library brings, `[n,
/// 784]` u8, in which classes take turns.
pub(super) fn digits(n: usize) -> Result<(Tensor, Tensor)> {
    let (rows, labels) = Rows::Set("mnist-sample".to_owned()).make()?;
    let labels = labels.ok_or_else(|| anyhow::anyhow!("mnist-sample has no labels"))?;
    let n = n.min(rows.dim(0)?);
    Ok((rows.narrow(0, 0, n)?.contiguous()?, labels.narrow(0, 0, n)?.contiguous()?))
}

/// Ten Gaussian clusters, on the CPU: f32 `[n, n_features]`.
pub(super) fn clusters(n: usize, n_features: usize) -> Result<Tensor> {
    Ok(Rows::Blobs(n, n_features).make()?.0)
}

impl Known {
    /// The rows themselves where `fetch` allows and finds them, else clusters of their shape, and
    /// which they are.
    pub(super) fn rows(&self, fetch: bool) -> Result<(Tensor, &'static str)> {
        let name = match self.name {
            "Fashion-MNIST" => Some("fashion-mnist"),
            "MNIST" => Some("mnist"),
            _ => None,
        };
        if let Some(name) = name.filter(|_| fetch)
            && let Ok((rows, _)) = Rows::Set(name.to_owned()).make()
            && rows.dim(0)? >= self.n
        {
            return Ok((rows.narrow(0, 0, self.n)?.contiguous()?, "the set"));
        }
        Ok((clusters(self.n, self.n_features)?, "made"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::KNOWN;
    use super::*;

    #[test]
    fn rows_have_the_shapes_of_the_source() {
        for known in KNOWN.iter().filter(|known| known.n < 2000) {
            let (rows, what) = known.rows(false).unwrap();
            assert_eq!((rows.dims(), what), (&[known.n, known.n_features][..], "made"), "{}", known.name);
        }
        let (rows, labels) = digits(300).unwrap();
        assert_eq!((rows.dims(), labels.dims()), (&[300, 784][..], &[300][..]));
        let mut classes = labels.to_vec1::<u32>().unwrap();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), 10);
    }
}
