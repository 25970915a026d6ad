//! The layers below the one that is trained, which turn rows into what it reads.
use super::{HiddenUnit, Rbm, RbmConnections};
use crate::masters::{Format, store};
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::core::Draws;
use chandlery_ops::images::{PatchDirection, PoolSide, convolution_, pool_units_, units_of_patches_};
use chandlery_ops::layers::{Factors, Unit, UnitPlanes, gemm_, units_, units_of_product_};

/// Where the means of a layer go.
#[derive(Clone)]
pub(super) struct Place {
    pub planes: Tensor,
    pub plane: usize,
    /// How far on second parts go.
    pub low: Option<usize>,
}

/// A layer below the one that is trained, and where its hidden means go.
#[derive(Clone)]
pub(super) struct LowerLayer {
    /// `[n_hidden, n_visible]`, or parts of it, `[parts, ..]`, in the 16-bit formats of a stack
    /// with patches.
    weight: Tensor,
    connections: RbmConnections,
    bias: Tensor,
    unit: Unit,
    /// Pre-activations, `[batch, n_units]`.
    pre: Tensor,
    format: Format,
    precision: Precision,
    place: Place,
}

impl LowerLayer {
    /// A copy of `layer` that reads rows in `format`, as all layers below do.
    /// For so many rows, by products of a precision.
    pub(super) fn new(
        layer: &Rbm,
        format: Format,
        (rows, precision): (usize, Precision),
        place: Place,
    ) -> Result<Self> {
        let (device, n_units) = (layer.weight().device(), layer.config().n_units());
        let weight = layer.weight().to_dtype(DType::F32)?.contiguous()?;
        let weight = match format {
            Format::F32 | Format::Bf16 => weight.to_dtype(format.dtype())?,
            Format::F16 | Format::F16Pair => {
                let shape = [&[format.parts()], weight.dims()].concat();
                let copy = Tensor::zeros(shape, format.dtype(), device)?;
                store(&copy, &weight, format.weight_scale())?;
                copy
            }
        };
        Ok(Self {
            weight,
            connections: layer.config().connections,
            bias: layer.bias().to_dtype(DType::F32)?.contiguous()?,
            unit: hidden_unit(layer.config().hidden),
            pre: Tensor::zeros((rows, n_units), DType::F32, device)?,
            format,
            precision,
            place,
        })
    }

    /// Writes the hidden means given `x`, `[batch, n_visible]` or `[2, batch, n_visible]` in two
    /// parts, and gives them as the next layer reads them.
    pub(super) fn rise(&self, x: &Tensor) -> Result<Tensor> {
        let Self { weight, bias, unit, pre, place: Place { planes, plane, low }, .. } = self;
        let out = UnitPlanes { mean: Some(*plane), low: *low, ..UnitPlanes::default() };
        let split = matches!(self.format, Format::F16 | Format::F16Pair);
        let parts = |t: &Tensor, rank: usize| if t.rank() == rank { Ok(t.clone()) } else { t.unsqueeze(0) };
        let (scale, draws) = (self.format.product_scale(), Draws::Mode);
        match &self.connections {
            RbmConnections::Filters(grid) => {
                convolution_(pre, x, weight, grid.shape())?;
                pool_units_(planes, pre, bias, grid.pools(), PoolSide::Pooled, out, draws)?;
            }
            RbmConnections::Patches(grid) => {
                let (x, weight, up) = (parts(x, 3)?, parts(weight, 4)?, PatchDirection::Up);
                units_of_patches_(planes, pre, &x, &weight, grid, up, scale, bias, *unit, out, draws, None)?;
            }
            RbmConnections::Dense if split => {
                let (x, weight) = (parts(x, 3)?, weight.transpose(1, 2)?);
                units_of_product_(planes, pre, &x, &weight, scale, bias, *unit, out, draws)?;
            }
            RbmConnections::Dense => {
                gemm_(pre, x, &weight.t()?, Factors::OVERWRITE, self.precision)?;
                units_(planes, pre, bias, *unit, out, draws, None)?;
            }
        }
        match self.format.parts() {
            2 => Ok(planes.clone()), // both parts; nobody reads on from the planes of the layer in training
            _ => planes.get(*plane),
        }
    }
}

pub(super) fn hidden_unit(unit: HiddenUnit) -> Unit {
    match unit {
        HiddenUnit::Bernoulli => Unit::Bernoulli,
        HiddenUnit::Rectified => Unit::Rectified,
        HiddenUnit::Gaussian => Unit::Gaussian,
    }
}
