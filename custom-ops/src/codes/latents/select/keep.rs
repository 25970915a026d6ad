//! Those entries of codes that are not below a bound.
use crate::codes::SparseCodes;
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::real::Real;
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "keep";

/// The entries of codes whose values are not below `bound`, `[1]`, in their order, in rows of
/// `width`. Into `told`, two zeros, go the largest count and the sum of counts, of entries that do
/// not fit as well.
pub(super) fn keep(codes: &SparseCodes, bound: &Tensor, width: usize, told: &Tensor) -> Result<SparseCodes> {
    let (m, s) = codes.indices.dims2()?;
    let (dtype, device) = (codes.values.dtype(), codes.values.device());
    expect(OP, "codes.indices", &codes.indices, &[DType::U32], &[m, s])?;
    expect(OP, "codes.values", &codes.values, &[DType::F32, DType::F64], &[m, s])?;
    expect(OP, "codes.count", &codes.count, &[DType::U32], &[m])?;
    expect(OP, "bound", bound, &[dtype], &[1])?;
    let to = SparseCodes {
        indices: new_tensor(OP, (m, width), DType::U32, device)?,
        values: new_tensor(OP, (m, width), dtype, device)?,
        count: new_tensor(OP, m, DType::U32, device)?,
        n_atoms: codes.n_atoms,
    };
    if m * s * width > 0 {
        let io = operands(OP).write("the result", &to.indices).write("the result", &to.values);
        let io = io.write("the result", &to.count).write("told", told);
        let io = io.read("codes.indices", &codes.indices).read("codes.values", &codes.values);
        io.read("codes.count", &codes.count).read("bound", bound).run(&Keep { s, width, dtype })?;
    }
    Ok(to)
}

pub(super) struct Keep {
    pub s: usize,
    pub width: usize,
    dtype: DType,
}

impl Kernel for Keep {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.on_cpu::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.launch::<T>(gpu, io))
    }
}

impl Keep {
    fn on_cpu<T: Real>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { s, width, .. } = self;
        let ([to_indices, to_values, to_count, told], [indices, values, count, bound]) = io.parts()?;
        let (indices, values) = (indices.elements::<u32>()?, values.elements::<T>()?);
        let (count, &[bound]) = (count.elements::<u32>()?, bound.elements::<T>()?) else {
            candle::bail!("{OP}: bound must be one number")
        };
        let to_count = to_count.elements::<u32>()?;
        let to = to_indices.elements::<u32>()?.par_chunks_exact_mut(width);
        let to = to.zip(to_values.elements::<T>()?.par_chunks_exact_mut(width)).zip(&mut *to_count);
        let from = indices.par_chunks_exact(s).zip(values.par_chunks_exact(s)).zip(count);
        to.zip(from).with_min_len(64).for_each(
            |(((to_indices, to_values), to_count), ((indices, values), &count))| {
                let entries = indices.iter().zip(values).take(count as usize);
                let kept: Vec<(u32, T)> =
                    entries.filter(|(_, v)| **v >= bound).map(|(&j, &v)| (j, v)).collect();
                *to_count = kept.len() as u32;
                for ((index, value), (j, v)) in to_indices.iter_mut().zip(to_values).zip(kept) {
                    (*index, *value) = (j, v);
                }
            },
        );
        tell(told.elements::<u32>()?, to_count);
        Ok(())
    }
}

/// Puts the largest count and the sum of counts into two numbers.
pub(super) fn tell(told: &mut [u32], counts: &[u32]) {
    let of = [counts.iter().max().copied().unwrap_or(0), counts.iter().sum()];
    told.iter_mut().zip(of).for_each(|(told, of)| *told = of);
}
