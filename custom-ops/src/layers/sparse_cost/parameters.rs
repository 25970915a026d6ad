//! The parameters of a sparse autoencoder apart from each other, in lines.
use super::SparseCost;
use crate::core::check::{expect, lines};
use candle::{DType, Result, Tensor};

/// The parameters as products read them, or what products make for each of them.
#[derive(Debug, Clone)]
pub struct SparseParameters {
    /// `W`, `[n_hidden, n_visible]` f32 or bf16; lines are contiguous and may lie apart.
    pub weight: Tensor,
    /// `W'`, `[n_visible, n_hidden]`, the same.
    pub decoder_weight: Tensor,
    /// `b`, `[n_hidden]` f32, contiguous.
    pub bias: Tensor,
    /// `c`, `[n_visible]` f32, contiguous.
    pub visible_bias: Tensor,
}

impl SparseParameters {
    /// How far lines of `W` and `W'` are from each other.
    pub(super) fn check(&self, op: &str, name: &str, dtype: DType, cost: SparseCost) -> Result<[usize; 2]> {
        let (v, h) = (cost.n_visible, cost.n_hidden);
        let of = |field: &str| format!("{name}.{field}");
        let weight = lines(op, &of("weight"), &self.weight, &[dtype], [h, v])?;
        let decoder = lines(op, &of("decoder_weight"), &self.decoder_weight, &[dtype], [v, h])?;
        expect(op, &of("bias"), &self.bias, &[DType::F32], &[h])?;
        expect(op, &of("visible_bias"), &self.visible_bias, &[DType::F32], &[v])?;
        Ok([weight, decoder])
    }
}

/// Entries from the first of `W` and of `W'` to their last, in lines so far from each other.
pub(super) fn spans(cost: SparseCost, [of_weight, of_decoder]: [usize; 2]) -> [usize; 2] {
    let SparseCost { n_visible: v, n_hidden: h, .. } = cost;
    [(h - 1) * of_weight + v, (v - 1) * of_decoder + h]
}
