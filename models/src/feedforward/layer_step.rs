//! One layer of a step: its memory, and its part of the way up and of the way back.
use super::{Connections, LayerConfig};
use crate::conv_rbm::ConvGrid;
use crate::split::Split;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::{column_sums_, scale_into_};
use chandlery_ops::core::Draws;
use chandlery_ops::images::{
    PatchDirection, PatchGrid, PoolSide, block_means_, convolution_, convolution_gradient_places,
    convolution_input_gradient_, convolution_weight_gradient_, patch_gradient_, patch_product_,
    pool_backward_, pool_units_, spread_blocks_,
};
use chandlery_ops::layers::{
    Activation, Dropout, Factors, UnitPlanes, gemm_, layer_backward_, layer_backward_into_, layer_forward_,
    layer_forward_into_,
};

/// A layer's parameters and their gradient.
#[derive(Clone)]
pub(super) struct Parameters {
    pub weight: Tensor,
    pub bias: Tensor,
    pub weight_gradient: Tensor,
    pub bias_gradient: Tensor,
}

/// A layer's parameters, and the memory of its passes.
#[derive(Clone)]
pub(super) struct LayerStep {
    pub params: Parameters,
    pub activation: Activation,
    /// Where products read numbers in bf16.
    rounded: Option<Rounded>,
    /// What the layer makes, `[batch, n_outputs]`; the top layer's becomes the derivative of the
    /// loss.
    pub output: Tensor,
    /// The derivative of the loss by what the layer reads, `[batch, n_inputs]`; none for the
    /// lowest.
    input_delta: Option<Tensor>,
    product: Product,
    /// Where a bias belongs to several outputs: sums over rows for each of these, `[n_units]`.
    sums: Option<Tensor>,
    /// Of dense products.
    precision: Precision,
    /// What these read, where they are made of f32 numbers in parts.
    split: Option<Split>,
}

/// What products in bf16 read, rounded once where it is made.
#[derive(Clone)]
struct Rounded {
    /// The weights, of the shape that they have.
    weight: Tensor,
    /// The outputs, and then in their place the derivative by what [`LayerStep::product`] wrote,
    /// `[batch, n_outputs]`. [`LayerStep::output`] then is the memory of the product.
    output: Tensor,
}

/// What stands in for a product with one matrix, and its memory.
#[derive(Clone)]
enum Product {
    Dense,
    Patches(PatchGrid, PatchDirection),
    Maps(Maps),
    FromMaps(Maps),
}

#[derive(Clone)]
struct Maps {
    grid: ConvGrid,
    /// Units before they are pooled, `[batch, n_units]`, where they are: pre-activations, or shares
    /// of what was pooled; and on the way back the derivative by them.
    units: Option<Tensor>,
    /// Partial sums of the gradient.
    parts: Tensor,
}

impl Maps {
    fn new(grid: ConvGrid, batch: usize, device: &Device) -> Result<Self> {
        let shape = grid.shape();
        let places = convolution_gradient_places(device, shape, batch, DType::F32)?;
        let zeros = |rows: usize, n: usize| Tensor::zeros((rows, n), DType::F32, device);
        Ok(Self {
            units: (grid.pool > 1).then(|| zeros(batch, grid.n_units())).transpose()?,
            parts: zeros(places, shape.n_filters * shape.filter_len())?,
            grid,
        })
    }
}

impl LayerStep {
    /// `is_lowest` layers need no derivative by what they read. `rounded` are the weights of a
    /// dense layer in bf16, if its products read such.
    pub(super) fn new(
        layer: &LayerConfig,
        params: Parameters,
        rounded: Option<Tensor>,
        batch: usize,
        precision: Precision,
        is_lowest: bool,
    ) -> Result<Self> {
        let device = params.weight.device();
        let zeros = |n: usize| Tensor::zeros((batch, n), DType::F32, device);
        let product = match layer.connections {
            Connections::Dense => Product::Dense,
            Connections::Patches(grid) => Product::Patches(grid, PatchDirection::Up),
            Connections::FromPatches(grid) => Product::Patches(grid, PatchDirection::Down),
            Connections::Filters(grid) => Product::Maps(Maps::new(grid, batch, device)?),
            Connections::FromFilters(grid) => Product::FromMaps(Maps::new(grid, batch, device)?),
        };
        let n_units = match &product {
            Product::Dense | Product::Patches(..) => None,
            Product::Maps(maps) => Some(maps.grid.n_units()),
            Product::FromMaps(maps) => Some(maps.grid.n_values()),
        };
        let splits = matches!(product, Product::Dense) && precision == Precision::F32;
        let split = splits.then(|| Split::new(device, batch, [layer.n_outputs, layer.n_inputs], is_lowest));
        Ok(Self {
            split: split.transpose()?.flatten(),
            activation: layer.activation.into(),
            rounded: rounded
                .map(|weight| {
                    let output = Tensor::zeros((batch, layer.n_outputs), DType::BF16, device)?;
                    Ok::<_, candle::Error>(Rounded { weight, output })
                })
                .transpose()?,
            output: zeros(layer.n_outputs)?,
            input_delta: (!is_lowest).then(|| zeros(layer.n_inputs)).transpose()?,
            sums: n_units.map(|n| Tensor::zeros(n, DType::F32, device)).transpose()?,
            product,
            params,
            precision,
        })
    }

    /// Whether a bias belongs to several outputs.
    pub(super) fn shares_biases(&self) -> bool {
        self.sums.is_some()
    }

    /// The weights as products read them.
    fn weight(&self) -> &Tensor {
        self.rounded.as_ref().map_or(&self.params.weight, |rounded| &rounded.weight)
    }

    /// What the layer above reads: the outputs; after [`through`](Self::through) or
    /// [`round`](Self::round) the derivative by what [`product`](Self::product) wrote.
    pub(super) fn values(&self) -> &Tensor {
        self.rounded.as_ref().map_or(&self.output, |rounded| &rounded.output)
    }

    /// Rounds the derivative of the loss in the outputs of the top layer for the products that read
    /// it.
    pub(super) fn round(&self) -> Result<()> {
        self.rounded.as_ref().map_or(Ok(()), |rounded| scale_into_(&rounded.output, &self.output, 1.))
    }

    /// Writes what goes into the outputs but for the biases, or into the units that are pooled to
    /// them.
    pub(super) fn product(&self, x: &Tensor) -> Result<()> {
        let (out, weight) = (&self.output, self.weight());
        match &self.product {
            Product::Dense => match &self.split {
                Some(split) => split.product(out, x, weight),
                None => gemm_(out, x, &weight.t()?, Factors::OVERWRITE, self.precision),
            },
            Product::Patches(grid, direction) => {
                patch_product_(out, &x.unsqueeze(0)?, &weight.unsqueeze(0)?, grid, *direction, 1.)
            }
            Product::Maps(Maps { grid, units, .. }) => {
                convolution_(units.as_ref().unwrap_or(out), x, weight, grid.shape())
            }
            Product::FromMaps(Maps { grid, units, .. }) => {
                if let Some(units) = units {
                    spread_blocks_(units, x, grid.pools())?;
                }
                convolution_input_gradient_(out, units.as_ref().unwrap_or(x), weight, grid.shape())
            }
        }
    }

    /// From there to the outputs: biases, activation, and what is left out of them.
    pub(super) fn activate(&self, dropout: Option<Dropout<'_>>) -> Result<()> {
        let bias = &self.params.bias;
        if let Product::Maps(Maps { grid, units: Some(units), .. }) = &self.product {
            let mean = UnitPlanes { mean: Some(0), ..UnitPlanes::default() };
            let planes = self.output.unsqueeze(0)?;
            pool_units_(&planes, units, bias, grid.pools(), PoolSide::Pooled, mean, Draws::Mode)?;
            return match dropout {
                Some(_) => layer_forward_(&self.output, None, Activation::Identity, dropout),
                None => Ok(()),
            };
        }
        if let Some(Rounded { output, .. }) = &self.rounded {
            return layer_forward_into_(output, &self.output, Some(bias), self.activation, dropout);
        }
        layer_forward_(&self.by_bias(&self.output)?, Some(bias), self.activation, dropout)
    }

    /// Adds the biases to the outputs.
    pub(super) fn add_biases(&self) -> Result<()> {
        layer_forward_(&self.by_bias(&self.output)?, Some(&self.params.bias), Activation::Identity, None)
    }

    /// Values of all outputs, or of the units that are pooled to them, with a column for each bias.
    fn by_bias(&self, t: &Tensor) -> Result<Tensor> {
        t.reshape(((), self.params.bias.elem_count()))
    }

    /// From the derivative by the outputs, `delta`, to that by what [`product`](Self::product)
    /// wrote, in the memory of either.
    pub(super) fn through<'a>(
        &'a self,
        delta: &'a Tensor,
        dropout: Option<Dropout<'_>>,
    ) -> Result<&'a Tensor> {
        if let Some(Rounded { output, .. }) = &self.rounded {
            layer_backward_into_(output, delta, self.activation, dropout)?;
            return Ok(output);
        }
        let Product::Maps(Maps { grid, units: Some(units), .. }) = &self.product else {
            layer_backward_(delta, &self.output, self.activation, dropout)?;
            return Ok(delta);
        };
        if dropout.is_some() {
            layer_backward_(delta, &self.output, Activation::Identity, dropout)?;
        }
        pool_backward_(units, &self.params.bias, delta, grid.pools())?;
        Ok(units)
    }

    /// The gradient of the parameters from that by what [`product`](Self::product) wrote, where `x`
    /// was read.
    pub(super) fn gradient(&self, delta: &Tensor, x: &Tensor) -> Result<()> {
        let gradient = &self.params.weight_gradient;
        match &self.product {
            Product::Dense => match &self.split {
                Some(split) => split.gradient(gradient, delta)?,
                None => gemm_(gradient, &delta.t()?, x, Factors::OVERWRITE, self.precision)?,
            },
            Product::Patches(grid, direction) => {
                let (hidden, visible) = match direction {
                    PatchDirection::Up => (delta, x),
                    PatchDirection::Down => (x, delta),
                };
                let (hidden, visible) = (hidden.unsqueeze(0)?, visible.unsqueeze(0)?);
                patch_gradient_(gradient, &hidden, &visible, grid, Factors::OVERWRITE)?;
            }
            Product::Maps(Maps { grid, parts, .. }) => {
                convolution_weight_gradient_(gradient, parts, x, delta, grid.shape(), Factors::OVERWRITE)?;
            }
            Product::FromMaps(Maps { grid, parts, units }) => {
                let maps = units.as_ref().unwrap_or(x);
                convolution_weight_gradient_(gradient, parts, delta, maps, grid.shape(), Factors::OVERWRITE)?;
            }
        }
        self.bias_gradient(delta)
    }

    /// That of the biases alone.
    pub(super) fn bias_gradient(&self, delta: &Tensor) -> Result<()> {
        let of_biases = &self.params.bias_gradient;
        match &self.sums {
            None => column_sums_(of_biases, delta),
            Some(sums) => {
                column_sums_(sums, delta)?;
                column_sums_(of_biases, &self.by_bias(sums)?)
            }
        }
    }

    /// The derivative by what the layer reads, from that by what [`product`](Self::product) wrote;
    /// none for the lowest layer. After [`gradient`](Self::gradient), whose memory it may take.
    pub(super) fn input_delta(&self, delta: &Tensor) -> Result<Option<&Tensor>> {
        let Some(out) = &self.input_delta else { return Ok(None) };
        let weight = self.weight();
        match &self.product {
            Product::Dense => match &self.split {
                Some(split) => split.input_delta(out, delta)?,
                None => gemm_(out, delta, weight, Factors::OVERWRITE, self.precision)?,
            },
            Product::Patches(grid, direction) => {
                let back = match direction {
                    PatchDirection::Up => PatchDirection::Down,
                    PatchDirection::Down => PatchDirection::Up,
                };
                patch_product_(out, &delta.unsqueeze(0)?, &weight.unsqueeze(0)?, grid, back, 1.)?;
            }
            Product::Maps(Maps { grid, .. }) => {
                convolution_input_gradient_(out, delta, weight, grid.shape())?;
            }
            Product::FromMaps(Maps { grid, units, .. }) => {
                convolution_(units.as_ref().unwrap_or(out), delta, weight, grid.shape())?;
                if let Some(units) = units {
                    block_means_(out, units, grid.pools())?;
                }
            }
        }
        Ok(Some(out))
    }
}
