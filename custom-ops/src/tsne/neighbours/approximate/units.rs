//! Rows of length 1.
use super::super::{OP, cpu};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};

/// Each of the contiguous f32 `rows`, `[n, n_features]`, over its length; zero rows stay.
pub(super) fn unit_rows(rows: &Tensor) -> Result<Tensor> {
    if rows.elem_count() == 0 {
        return Ok(rows.clone());
    }
    #[cfg(feature = "cuda")]
    if rows.device().is_cuda() {
        return super::super::cuda::unit_rows(rows);
    }
    let units = new_tensor(OP, rows.shape(), DType::F32, rows.device())?;
    operands(OP).write("units", &units).read("rows", rows).run(&Units { d: rows.dim(1)? })?;
    Ok(units)
}

struct Units {
    d: usize,
}

impl Kernel for Units {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([units], [rows]) = io.parts()?;
        units.elements::<f32>()?.copy_from_slice(&cpu::units(rows.elements()?, self.d).1);
        Ok(())
    }
}
