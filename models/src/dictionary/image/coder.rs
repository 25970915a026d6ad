//! What codes the patches of an image: a pursuit or a lasso.
use crate::dictionary::pursuit::SparseCoder;
use crate::sparse_coding::lasso::Lasso;
use candle::{DType, Result, Tensor};

/// A pursuit, or the lasso, whose coefficients are penalised.
pub(super) enum PatchCoder {
    Pursuit(SparseCoder),
    Lasso(Lasso),
}

/// What codes of patches stand for.
pub(super) struct Estimate {
    /// `[n, side²]`
    pub patches: Tensor,
    /// Atoms in all codes.
    pub count: f64,
}

impl PatchCoder {
    /// Codes `patches`, `[n, side²]` without their means. Where there is a `mask`, u8 of their
    /// shape, pixels where it is 0 are missing.
    pub(super) fn estimate(
        &self,
        patches: &Tensor,
        mask: Option<&Tensor>,
        dictionary: &Tensor,
    ) -> Result<Estimate> {
        let (patches, counts) = match self {
            Self::Pursuit(coder) => {
                let codes = match mask {
                    Some(mask) => coder.encode_masked(patches, mask, dictionary)?,
                    None => coder.encode(patches, dictionary)?,
                };
                (codes.reconstruct(dictionary)?, codes.count)
            }
            Self::Lasso(lasso) => {
                let activations = match mask {
                    Some(mask) => lasso.solve_masked(patches, mask, dictionary)?,
                    None => lasso.solve(patches, dictionary, None)?,
                };
                (activations.dense.matmul(dictionary)?, activations.counts()?)
            }
        };
        Ok(Estimate { patches, count: counts.to_dtype(DType::F64)?.sum_all()?.to_scalar()? })
    }
}
