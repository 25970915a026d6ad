//! Sums over the entries of each latent.
use crate::codes::{AtomUses, SparseCodes};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "use_sums";

/// `Σ values[v, e]` over the entries `e` of each atom: `[planes, n_atoms]`.
///
/// `values` is `[planes, m, s]`, f32 or f64, contiguous, for codes of `[m, s]` whose uses `uses`
/// are. Entries are added in f64: in their order on the CPU, in 32 lanes on a GPU.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn use_sums(codes: &SparseCodes, uses: &AtomUses, values: &Tensor) -> Result<Tensor> {
    let (m, s) = codes.indices.dims2()?;
    uses.check(OP, codes)?;
    let planes = values.dims().first().copied().unwrap_or(0);
    expect(OP, "values", values, &[DType::F32, DType::F64], &[planes, m, s])?;
    let n = codes.n_atoms;
    let out = new_tensor(OP, (planes, n), values.dtype(), values.device())?;
    let io = operands(OP).write("the result", &out).read("values", values);
    let io = io.read("uses", uses.offsets()).read("uses", uses.entries());
    io.run(&UseSums { n, of_plane: m * s, dtype: values.dtype() })?;
    Ok(out)
}

pub(super) struct UseSums {
    pub n: usize,
    pub of_plane: usize,
    dtype: DType,
}

impl Kernel for UseSums {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { n, of_plane, dtype } = self;
        for_float!(dtype, |T| {
            let ([out], [values, offsets, entries]) = io.parts()?;
            let (values, offsets) = (values.elements::<T>()?, offsets.elements::<u32>()?);
            let entries = entries.elements::<u32>()?;
            out.elements::<T>()?.par_iter_mut().enumerate().with_min_len(256).for_each(|(at, out)| {
                let (plane, j) = (&values[at / n * of_plane..][..of_plane], at % n);
                let list = &entries[offsets[j] as usize..offsets[j + 1] as usize];
                let sum: f64 = list.iter().map(|&e| candle::WithDType::to_f64(plane[e as usize])).sum();
                *out = <T as candle::WithDType>::from_f64(sum);
            });
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.launch::<T>(gpu, io))
    }
}
