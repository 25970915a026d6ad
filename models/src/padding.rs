//! Units that are always 0, beside those of layers in training: kernels are fastest on aligned lines.
//!
//! A layer of [`LEAST`] units or more gets as many as make their number a multiple of 64, if these are
//! few, else of 16, or of 8 below [`MANY`]. Their weights are 0 and their biases keep them at 0 whatever
//! they see, so that no gradient reaches their weights, and the other units do not see them. Models and
//! checkpoints do not hold them.
use crate::feedforward::Activation;
use candle::{Result, Tensor};
use chandlery_ops::arrays::scale_into_;

/// Units to which the number is rounded up: the 128 bytes of a block of 16-bit numbers, of which kernels
/// have whole ones in one copy; their sector of memory, 32 bytes; the 16 bytes that copies need, of these
/// and of f32 numbers. In bf16 on an H200 a step of 792-504 by 4,096 rows takes 15 % longer than one of
/// 800-512, and one of 1008-1008 as long as one of 1024-1024 by a row, 14 % longer by 4,096.
const BLOCK: usize = 64;
const SIXTEEN: usize = 16;
const EIGHT: usize = 8;
/// From here on whole sectors add 6 % of units at most.
const MANY: usize = 256;
/// Whole blocks are for layers of which they add at most a fortieth.
const FEW: usize = 40;
/// Below, launches bind.
const LEAST: usize = 64;
/// A bias at which the mean of a binary or a rectified unit is 0, in any sum with it.
pub(crate) const OFF: f64 = -1e30;

/// Units of a layer, and with those that are added in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Width {
    pub own: usize,
    pub all: usize,
}

impl Width {
    /// With so many more that lines of 16-bit numbers are aligned, in a layer that is not small.
    pub fn padded(own: usize) -> Self {
        if own < LEAST { Self::as_it_is(own) } else { Self::aligned(own) }
    }

    /// The same in a layer of any size.
    pub fn aligned(own: usize) -> Self {
        let blocks = own.next_multiple_of(BLOCK);
        let few = FEW.saturating_mul(blocks - own) <= own;
        Self {
            own,
            all: if few { blocks } else { own.next_multiple_of(if own < MANY { EIGHT } else { SIXTEEN }) },
        }
    }

    /// Without others.
    pub fn as_it_is(own: usize) -> Self {
        Self { own, all: own }
    }

    /// Whether there are others.
    pub fn has_more(self) -> bool {
        self.all > self.own
    }
}

/// A bias at which a unit that sees nothing is 0.
pub(crate) fn bias_of_nothing(activation: Activation) -> f64 {
    match activation {
        Activation::Sigmoid => OFF,
        Activation::Tanh | Activation::Relu | Activation::Identity => 0.,
    }
}

/// Weights with lines and columns of 0 up to a shape.
pub(crate) fn with_zeros(weight: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let pad = |t: Tensor, (dim, &n): (usize, &usize)| t.pad_with_zeros(dim, 0, n.saturating_sub(t.dim(dim)?));
    dims.iter().enumerate().try_fold(weight.clone(), pad)?.contiguous()
}

/// `bias` and as many times `value` as there are more units.
pub(crate) fn with_biases(bias: &Tensor, n: usize, value: f64) -> Result<Tensor> {
    match n.saturating_sub(bias.dim(0)?) {
        // A GPU fills no empty tensor.
        0 => Ok(bias.clone()),
        more => Tensor::cat(&[bias, &Tensor::full(value, more, bias.device())?.to_dtype(bias.dtype())?], 0),
    }
}

/// The entries of the units that come first.
pub(crate) fn corner(t: &Tensor, dims: &[usize]) -> Result<Tensor> {
    dims.iter().enumerate().try_fold(t.clone(), |t, (dim, &n)| t.narrow(dim, 0, n))
}

/// Copies the entries of the units that both have, f32.
pub(crate) fn copy_common_(to: &Tensor, from: &Tensor) -> Result<()> {
    let dims: Vec<usize> = to.dims().iter().zip(from.dims()).map(|(a, b)| *a.min(b)).collect();
    scale_into_(&corner(to, &dims)?, &corner(from, &dims)?.contiguous()?, 1.)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_padded_to_blocks_where_these_add_few_units() {
        for (own, all) in [
            (10, 10),
            (63, 63),
            (65, 72),
            (100, 104),
            (250, 256),
            (257, 272),
            (500, 512),
            (784, 784),
            (785, 800),
            (1000, 1024),
            (2000, 2048),
            (3071, 3072),
            (16000, 16000),
        ] {
            assert_eq!(Width::padded(own), Width { own, all });
            assert!(all < LEAST || 8 * all <= 9 * own, "{own}");
        }
        assert_eq!(Width::aligned(10).all, 16);
    }
}
