//! Products of a dense layer of f32 numbers by the tensor cores, with the precision of f32.
//!
//! Each number is the sum of two f16 ones, and each row, or column where a sum goes over rows, has
//! a power of two; see [`split_rows_`]. The scales of a row that a sum goes over are factors of the
//! other operand:
//!
//! ```text
//! y = x Wᵀ        rows of x, rows of W
//! dx = d W        rows of d with the scales of W
//! dW = dᵀ x       columns of d with the scales of x
//! ```
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::{split_columns_, split_rows_};
use chandlery_ops::layers::{product_of_split_, split_products_are_faster};

/// Sums over rows go over whole lines of so many.
const LINE: usize = 8;

/// Lines of numbers in two parts, and their scales.
#[derive(Debug, Clone)]
struct Lines {
    parts: Tensor,
    scales: Tensor,
}

impl Lines {
    fn new(lines: usize, width: usize, device: &Device) -> Result<Self> {
        let parts = Tensor::zeros((2, lines, width), DType::F16, device)?;
        Ok(Self { parts, scales: Tensor::zeros(lines, DType::F32, device)? })
    }
}

/// What the products of a step read, in two parts.
#[derive(Debug, Clone)]
pub(crate) struct Split {
    rows: usize,
    weight: Lines,
    input: Lines,
    /// The derivative by what the product of the layer wrote, and its transpose; none where nobody
    /// wants that by what the layer reads.
    delta: Option<Lines>,
    turned: Lines,
}

impl Split {
    /// For minibatches of `rows`, where these products are faster than those of f32 numbers.
    pub fn new(
        device: &Device,
        rows: usize,
        [n_outputs, n_inputs]: [usize; 2],
        is_lowest: bool,
    ) -> Result<Option<Self>> {
        if !split_products_are_faster(device, rows, n_outputs, n_inputs)? {
            return Ok(None);
        }
        let deep = rows.next_multiple_of(LINE);
        Ok(Some(Self {
            rows,
            weight: Lines::new(n_outputs, n_inputs, device)?,
            input: Lines::new(deep, n_inputs, device)?,
            delta: (!is_lowest).then(|| Lines::new(rows, n_outputs, device)).transpose()?,
            turned: Lines::new(n_outputs, deep, device)?,
        }))
    }

    /// The scales of the rows that the layer reads.
    fn input_scales(&self) -> Result<Tensor> {
        self.input.scales.narrow(0, 0, self.rows)
    }

    /// `out ← x Wᵀ`. What was made of both serves the other two products.
    pub fn product(&self, out: &Tensor, x: &Tensor, weight: &Tensor) -> Result<()> {
        let (w, of_x) = (&self.weight, &self.input);
        split_rows_(&w.parts, &w.scales, weight, None)?;
        split_rows_(&of_x.parts, &of_x.scales, x, None)?;
        let own = of_x.parts.narrow(1, 0, self.rows)?;
        product_of_split_(out, (&own, &self.input_scales()?), (&w.parts.t()?, Some(&w.scales)))
    }

    /// `gradient ← deltaᵀ x`, of the `x` that [`product`](Self::product) read last.
    pub fn gradient(&self, gradient: &Tensor, delta: &Tensor) -> Result<()> {
        let turned = &self.turned;
        split_columns_(&turned.parts, &turned.scales, delta, Some(&self.input_scales()?))?;
        product_of_split_(gradient, (&turned.parts, &turned.scales), (&self.input.parts, None))
    }

    /// `out ← delta W`, of the weights that [`product`](Self::product) read last.
    pub fn input_delta(&self, out: &Tensor, delta: &Tensor) -> Result<()> {
        let Some(of_delta) = &self.delta else {
            candle::bail!("Split: nobody wants the derivative by what the lowest layer reads")
        };
        let w = &self.weight;
        split_rows_(&of_delta.parts, &of_delta.scales, delta, Some(&w.scales))?;
        product_of_split_(out, (&of_delta.parts, &of_delta.scales), (&w.parts, None))
    }
}
