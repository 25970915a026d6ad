//! The rows of a run, their inner products, and the direction that they make.
use super::Descent;
use crate::optim::state::Past;
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::{combine_rows_, row_dots};

impl Descent {
    /// The rows and their products, as methods look at them.
    pub(super) fn past(&self) -> Past<'_> {
        Past { slots: self.method.slots(), state: &self.state }
    }

    /// Makes row `next` the direction `δ K`.
    pub(super) fn combine(&self, coefficients: &[f64]) -> Result<()> {
        let coefficients = Tensor::from_slice(coefficients, coefficients.len(), self.x.device())?;
        combine_rows_(&self.rows, self.state.next, &coefficients)
    }

    /// Refuses what is no gradient of `x`.
    pub(super) fn check_gradient(&self, gradient: &Tensor) -> Result<()> {
        if gradient.dims() != self.x.dims() || gradient.dtype() != self.x.dtype() {
            candle::bail!(
                "{}: the objective must give a gradient of the shape and type of x, {:?} {:?}, got {:?} {:?}",
                self.method.name(),
                self.x.dims(),
                self.x.dtype(),
                gradient.dims(),
                gradient.dtype()
            )
        }
        Ok(())
    }

    pub(super) fn put(&mut self, row: usize, values: &Tensor) -> Result<()> {
        self.rows.slice_set(&values.contiguous()?.unsqueeze(0)?, 0, row)
    }

    /// Reads the value and the inner products of rows that are new, in one transfer.
    pub(super) fn read(&mut self, value: &Tensor, new: &[usize]) -> Result<f64> {
        if value.elem_count() != 1 {
            let name = self.method.name();
            candle::bail!("{name}: the objective must give one value, got shape {:?}", value.dims())
        }
        let value = value.flatten_all()?.to_dtype(DType::F64)?;
        let products = row_dots(&self.rows, new)?.flatten_all()?;
        let read = Tensor::cat(&[value, products], 0)?.to_vec1::<f64>()?;
        let count = self.past().count();
        let Some((value, products)) = read.split_first() else { candle::bail!("Descent: nothing was read") };
        for (&i, row) in new.iter().zip(products.chunks(count)) {
            for (j, &product) in row.iter().enumerate() {
                self.state.products[i * count + j] = product;
                self.state.products[j * count + i] = product;
            }
        }
        Ok(*value)
    }
}
