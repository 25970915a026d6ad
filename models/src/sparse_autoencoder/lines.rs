//! Matrices of the passes in lines that begin on 16 bytes, whatever the widths: products are
//! fastest on these. What lies beside the own entries is 0, and products over whole lines leave it
//! so.
use crate::padding::{OFF, Width, with_biases};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::layers::{Activation, SparseCost, SparseParameters};

/// Terms of a product from which on a GPU takes longer for it than for a launch: some 3 µs of f32
/// numbers. Below, lines are as long as what is in them.
const LEAST: usize = 1 << 26;
/// The same of TF32 numbers, whose products of other lines take far longer.
const LEAST_TF32: usize = LEAST / 4;

/// Visible and hidden units of passes over `n_samples` rows, and with those beside them.
///
/// bf16 numbers that products read are written by the passes themselves, on every device, and lines
/// of them always are whole; f32 ones may be split into two of 16 bits. The CPU packs what its f32
/// products read.
pub(super) fn widths(terms: SparseCost, precision: Precision, n_samples: usize, on_gpu: bool) -> [Width; 2] {
    let own = [terms.n_visible, terms.n_hidden];
    let aligned = precision == Precision::Bf16 || on_gpu && products_bind(terms, precision, n_samples);
    own.map(if aligned { Width::aligned } else { Width::as_it_is })
}

/// Whether on a GPU a product takes longer than a launch.
pub(super) fn products_bind(terms: SparseCost, precision: Precision, n_samples: usize) -> bool {
    let least = if precision == Precision::Tf32 { LEAST_TF32 } else { LEAST };
    terms.n_visible.saturating_mul(terms.n_hidden).saturating_mul(n_samples) >= least
}

/// A matrix in lines that begin on 16 bytes.
#[derive(Clone)]
pub(super) struct Lines {
    /// With the zeros beside and below it.
    pub whole: Tensor,
    /// The matrix.
    pub own: Tensor,
}

impl Lines {
    /// Zeros.
    pub fn new(rows: Width, cols: Width, dtype: DType, device: &Device) -> Result<Self> {
        let whole = Tensor::zeros((rows.all, cols.all), dtype, device)?;
        Ok(Self { own: whole.narrow(0, 0, rows.own)?.narrow(1, 0, cols.own)?, whole })
    }
}

/// The parameters, or a gradient by them.
#[derive(Clone)]
pub(super) struct Parameters {
    /// `[weight, decoder_weight, bias, visible_bias]` with what is beside them.
    pub whole: [Tensor; 4],
    pub own: SparseParameters,
}

impl Parameters {
    /// Weights of 0, f32 or bf16, and biases of 0, f32. Those of units beside the own ones keep
    /// these at 0.
    pub fn new(
        [visible, hidden]: [Width; 2],
        decoder: Activation,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let biases = |width: Width, of: Activation| {
            let nothing = if of == Activation::Sigmoid { OFF } else { 0. };
            with_biases(&Tensor::zeros(width.own, DType::F32, device)?, width.all, nothing)
        };
        let weight = Lines::new(hidden, visible, dtype, device)?;
        let decoder_weight = Lines::new(visible, hidden, dtype, device)?;
        let (bias, visible_bias) = (biases(hidden, Activation::Sigmoid)?, biases(visible, decoder)?);
        let own = SparseParameters {
            weight: weight.own,
            decoder_weight: decoder_weight.own,
            bias: bias.narrow(0, 0, hidden.own)?,
            visible_bias: visible_bias.narrow(0, 0, visible.own)?,
        };
        Ok(Self { whole: [weight.whole, decoder_weight.whole, bias, visible_bias], own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(n_visible: usize, n_hidden: usize) -> SparseCost {
        SparseCost {
            n_visible,
            n_hidden,
            decoder: Activation::Sigmoid,
            weight_decay: 0.,
            sparsity_weight: 0.,
            sparsity_target: 0.5,
        }
    }

    #[test]
    fn lines_are_whole_where_products_take_longer_than_launches() {
        let all = |(v, h, m): (usize, usize, usize), precision, on_gpu| {
            widths(terms(v, h), precision, m, on_gpu).map(|width| width.all)
        };
        for (precision, share) in [(Precision::F32, 1), (Precision::Tf32, 4)] {
            assert_eq!(all((3071, 3071, 512), precision, true), [3072, 3072]);
            assert_eq!(all((3070, 3068, 512), precision, true), [3072, 3072]);
            // 2^26 terms, or a quarter of them, and one row less.
            let rows = 64 / share + 1;
            assert_eq!(all((511, 2049, rows), precision, true), [512, 2064]);
            assert_eq!(all((511, 2049, rows - 1), precision, true), [511, 2049]);
            assert_eq!(all((3071, 3071, 512), precision, false), [3071, 3071]);
            assert_eq!(all((3071, usize::MAX, 512), precision, false), [3071, usize::MAX]);
        }
        for on_gpu in [false, true] {
            assert_eq!(all((785, 500, 1), Precision::Bf16, on_gpu), [800, 512]);
        }
    }
}
