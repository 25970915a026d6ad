//! The storage formats of states and weights for the products of a step.
//!
//! The master weights are f32 in each format, but for
//! [`WeightStorage::Bf16Stochastic`](super::WeightStorage): then bf16 weights are all there is, and
//! products read them. On CUDA, if all units are binary, states and a copy of the weights are f16:
//! one f16 number for TF32, since both have ten bits of mantissa, and for f32 the sum of two, with
//! 22 bits, if a product of such sums is one kernel ([`two_part_products_fuse`]; if it is not, it
//! takes many launches, and plain f32 is faster). Products then run in the tensor cores at twice
//! the rate of TF32 and many times that of f32. f16 has full accuracy from 6e-5 to 65,504.
//! Probabilities are stored unscaled and weights times 64, so weights may grow to 1,023; beyond
//! that they overflow to infinity, and training reports it.
//!
//! | precision | binary units on CUDA from capability 9.0 on | binary units on CUDA below | otherwise |
//! |---|---|---|---|
//! | f32 | f16, two parts | f32 | f32 |
//! | TF32 | f16 | f16 | f32, rounded by the product |
//! | bf16 | bf16 | bf16 | bf16 |
//!
//! A small layer whose sizes are not multiples of four, for which [`cd_update_fuses`] is false, is
//! stored as in the last column.
//!
//! Convolutions, and all layers below another where there is one among them, are stored in f32.
//!
//! Large matrices with bf16 states, on GPUs of capability 9.0, have no copy beside the masters:
//! their masters are stored in halves of 16 bits, of which products read the upper ones
//! ([`masters`](crate::masters)). Models and checkpoints hold f32 weights all the same.
//!
//! Where ranks divide rows, all is stored as in the last column, with f32 velocities: the gradient
//! has to be had by itself, to be summed.
//!
//! Layers of patches, for which [`patch_steps_fuse`], are stored as in the first column on every
//! GPU: their products have two parts on all of them. Their visible units may be real-valued with
//! deviation 1 too: an f16 number is as close to such a value as TF32's.
use super::{HiddenUnit, RbmConfig, RbmTrainConfig, VisibleUnit, WeightStorage};
use crate::masters::{Format, Storage};
use candle::Device;
use chandlery_ops::Precision;
use chandlery_ops::images::{patch_step_takes_halves, patch_steps_fuse};
use chandlery_ops::layers::{cd_update_fuses, cd_update_takes_halves, two_part_products_fuse};

impl Format {
    /// The fastest format that is as exact as `precision` for this RBM on this device.
    pub(super) fn of(rbm: &RbmConfig, precision: Precision, device: &Device) -> Self {
        if rbm.filter_grid().is_some() {
            return Self::F32;
        }
        if let Some(grid) = rbm.patch_grid() {
            let known = rbm.visible != VisibleUnit::GaussianLearned && rbm.hidden == HiddenUnit::Bernoulli;
            let fuses = known && patch_steps_fuse(device, &grid, rbm.n_hidden / grid.n_patches());
            return match precision {
                Precision::Bf16 => Self::Bf16,
                Precision::Tf32 if fuses => Self::F16,
                Precision::F32 if fuses => Self::F16Pair,
                Precision::F32 | Precision::Tf32 => Self::F32,
            };
        }
        let binary = rbm.visible == VisibleUnit::Bernoulli && rbm.hidden == HiddenUnit::Bernoulli;
        let fuses = cd_update_fuses(device, rbm.n_hidden, rbm.n_visible);
        match precision {
            Precision::Bf16 => Self::Bf16,
            Precision::Tf32 if binary && fuses => Self::F16,
            Precision::F32 if binary && fuses && two_part_products_fuse(device) => Self::F16Pair,
            Precision::F32 | Precision::Tf32 => Self::F32,
        }
    }

    /// The one of products and updates that are ops of their own, on every device: f32, whose
    /// products are rounded to TF32, or bf16.
    pub(super) fn plain(rbm: &RbmConfig, precision: Precision) -> Self {
        match precision {
            Precision::Bf16 if rbm.filter_grid().is_none() => Self::Bf16,
            _ => Self::F32,
        }
    }

    /// The format of the layers below, which are only read: that of `self` where one of them has
    /// patches, whose f32 products are slow, and all could be trained in it; f32 where one is a
    /// convolution.
    pub(super) fn below(self, lower: &[RbmConfig], precision: Precision, device: &Device) -> Self {
        if lower.iter().any(|layer| layer.filter_grid().is_some()) {
            return Self::F32;
        }
        let patches = lower.iter().any(|layer| layer.patch_grid().is_some());
        let same = || lower.iter().all(|layer| Self::of(layer, precision, device) == self);
        match self {
            Self::F16 | Self::F16Pair if patches && same() => self,
            Self::F32 | Self::F16 | Self::F16Pair => Self::F32,
            Self::Bf16 => Self::Bf16,
        }
    }

    /// How weights are stored that products read in this format.
    pub(super) fn storage(self, rbm: &RbmConfig, training: &RbmTrainConfig, device: &Device) -> Storage {
        let (n_hidden, batch) = (rbm.n_hidden, training.batch);
        let (fuses, takes_halves) = match rbm.patch_grid() {
            None => (
                cd_update_fuses(device, n_hidden, rbm.n_visible),
                cd_update_takes_halves(device, [n_hidden, rbm.n_visible], batch),
            ),
            Some(grid) => {
                let hidden = n_hidden / grid.n_patches();
                (
                    patch_steps_fuse(device, &grid, hidden),
                    patch_step_takes_halves(device, &grid, hidden, batch),
                )
            }
        };
        match self {
            _ if training.weights == WeightStorage::Bf16Stochastic => Storage::Bf16,
            // A limit on the length of rows is set on weights that are whole.
            Self::Bf16 if fuses && takes_halves && training.max_norm.is_none() => Storage::Halves,
            Self::Bf16 if fuses => Storage::Bf16Velocity,
            _ => Storage::F32,
        }
    }
}
