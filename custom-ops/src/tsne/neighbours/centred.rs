//! Rows minus their own means.
use super::OP;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

/// Each of the contiguous f32 `rows`, `[n, n_features]`, minus its own mean, computed in f64. A
/// constant row becomes zero; one with an entry that is not finite stays as it is, so that the
/// search refuses the entry by its place.
pub(super) fn centred(rows: &Tensor) -> Result<Tensor> {
    let (n, d) = rows.dims2()?;
    let out = new_tensor(OP, (n, d), DType::F32, rows.device())?;
    if out.elem_count() > 0 {
        operands(OP).write("centred", &out).read("rows", rows).run(&Centre { n, d })?;
    }
    Ok(out)
}

/// Neither size is 0.
struct Centre {
    n: usize,
    d: usize,
}

impl Kernel for Centre {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [rows]) = io.parts()?;
        let (out, rows) = (out.elements::<f32>()?, rows.elements::<f32>()?);
        out.par_chunks_mut(self.d).zip(rows.par_chunks(self.d)).for_each(|(out, row)| {
            let sum: f64 = row.iter().map(|&x| f64::from(x)).sum();
            let mean = if sum.is_finite() { sum / self.d as f64 } else { 0. };
            out.iter_mut().zip(row).for_each(|(out, &x)| *out = (f64::from(x) - mean) as f32);
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([out], [rows]) = io.parts()?;
        let (mut out, rows) = (out.elements::<f32>()?, rows.elements::<f32>()?);
        let launch = gpu.launch(OP, "neighbours", "centre")?.write(&mut out).read(&rows);
        // SAFETY: (float*, const float*, 2 × size_t): both are [n, d] by the check of the search; a
        // warp for each row.
        unsafe { launch.num(self.n).num(self.d).blocks(self.n.div_ceil(8), 256).go() }
    }
}
