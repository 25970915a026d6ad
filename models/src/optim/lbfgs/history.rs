//! The rows of a run, their inner products, and the direction that they make.
use super::Lbfgs;
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::{combine_rows_, row_dots};

impl Lbfgs {
    /// The row of the gradient at `x`.
    pub(super) fn gradient_row(&self) -> usize {
        2 * self.config.slots() + self.state.gradient
    }

    pub(super) fn product(&self, i: usize, j: usize) -> f64 {
        let count = 2 * self.config.slots() + 2;
        self.state.products.get(i * count + j).copied().unwrap_or(f64::NAN)
    }

    /// The inner product of row `j` with the combination of all rows.
    pub(super) fn along(&self, coefficients: &[f64], j: usize) -> f64 {
        let used = coefficients.iter().enumerate().filter(|(_, c)| **c != 0.);
        used.map(|(i, c)| c * self.product(j, i)).sum()
    }

    /// The direction `−H g` as coefficients of the rows.
    pub(super) fn coefficients(&self) -> Vec<f64> {
        let slots = self.config.slots();
        let mut q = vec![0.; 2 * slots + 2];
        q[self.gradient_row()] = 1.;
        // s = step · p; s·y of a pair is above 0, by `accept`.
        let scaled = |&(slot, step): &(usize, f64)| (slot, step, step * self.product(slot, slots + slot));
        let pairs: Vec<(usize, f64, f64)> = self.state.pairs.iter().map(scaled).collect();
        let mut taken = vec![0.; pairs.len()];
        for (taken, &(slot, step, curvature)) in taken.iter_mut().zip(&pairs).rev() {
            *taken = step * self.along(&q, slot) / curvature;
            q[slots + slot] -= *taken;
        }
        if let Some(&(slot, _, curvature)) = pairs.last() {
            let scale = curvature / self.product(slots + slot, slots + slot);
            q.iter_mut().for_each(|q| *q *= scale);
        }
        for (taken, &(slot, step, curvature)) in taken.iter().zip(&pairs) {
            let given = self.along(&q, slots + slot) / curvature;
            q[slot] += step * (taken - given);
        }
        q.iter_mut().for_each(|q| *q = -*q);
        q
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
                "Lbfgs: the objective must give a gradient of the shape and type of x, {:?} {:?}, got {:?} {:?}",
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
            candle::bail!("Lbfgs: the objective must give one value, got shape {:?}", value.dims())
        }
        let value = value.flatten_all()?.to_dtype(DType::F64)?;
        let products = row_dots(&self.rows, new)?.flatten_all()?;
        let read = Tensor::cat(&[value, products], 0)?.to_vec1::<f64>()?;
        let count = 2 * self.config.slots() + 2;
        let Some((value, products)) = read.split_first() else { candle::bail!("Lbfgs: nothing was read") };
        for (&i, row) in new.iter().zip(products.chunks(count)) {
            for (j, &product) in row.iter().enumerate() {
                self.state.products[i * count + j] = product;
                self.state.products[j * count + i] = product;
            }
        }
        Ok(*value)
    }
}
