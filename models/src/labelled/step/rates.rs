//! What steps go by.
use super::super::LabelledDbnTrainConfig;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::core::set_scalars_;

/// The numbers that change from epoch to epoch.
#[derive(Clone)]
pub(in super::super) struct Rates {
    /// `[ε/B, μ, ε]`
    pub(super) first: Tensor,
    /// `[−ε/B, 1]`: what a second product adds to the velocity that the first has begun.
    pub(super) second: Tensor,
    /// `first` with the rates of the labels.
    pub(super) label: Tensor,
    /// `first` and `label` as products take them: of ranks after the first, on which velocities
    /// begin at 0, `[ε/B, 0]`.
    pub(super) product: Tensor,
    pub(super) label_product: Tensor,
    apart: bool,
}

impl Rates {
    pub(super) fn new(group: &Group, device: &Device) -> Result<Self> {
        let zeros = |n: usize| Tensor::zeros(n, DType::F32, device);
        let (first, label, apart) = (zeros(3)?, zeros(3)?, group.rank() > 0);
        let product = |of: &Tensor| if apart { zeros(2) } else { Ok(of.clone()) };
        let (product, label_product) = (product(&first)?, product(&label)?);
        Ok(Self { first, second: zeros(2)?, label, product, label_product, apart })
    }

    pub(in super::super) fn set(&self, config: &LabelledDbnTrainConfig, epochs: f64) -> Result<()> {
        let (rate, momentum) = (config.learning_rate.within(epochs), config.momentum.within(epochs) as f32);
        let of_row = rate / config.batch as f64;
        let scalars = |factor: f64| [(factor * of_row) as f32, momentum, (factor * rate) as f32];
        set_scalars_(&self.first, &scalars(1.))?;
        set_scalars_(&self.second, &[-of_row as f32, 1.])?;
        set_scalars_(&self.label, &scalars(config.label_rate))?;
        if self.apart {
            set_scalars_(&self.product, &[of_row as f32, 0.])?;
            set_scalars_(&self.label_product, &[(config.label_rate * of_row) as f32, 0.])?;
        }
        Ok(())
    }
}
