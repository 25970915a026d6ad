//! Some of the entries of codes.
use crate::codes::SparseCodes;
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::real::Real;
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;
use std::ops::Range;

const OP: &str = "keep";

/// The entries of codes whose atoms are in a range and whose values are not below `bound`, `[1]`, in
/// their order, in rows as wide as they were.
pub(super) fn keep(codes: &SparseCodes, atoms: Range<usize>, bound: Option<&Tensor>) -> Result<SparseCodes> {
    let (m, s) = codes.indices.dims2()?;
    let (dtype, device) = (codes.values.dtype(), codes.values.device());
    expect(OP, "codes.indices", &codes.indices, &[DType::U32], &[m, s])?;
    expect(OP, "codes.values", &codes.values, &[DType::F32, DType::F64], &[m, s])?;
    expect(OP, "codes.count", &codes.count, &[DType::U32], &[m])?;
    if let Some(bound) = bound {
        expect(OP, "bound", bound, &[dtype], &[1])?;
    }
    let to = SparseCodes {
        indices: new_tensor(OP, (m, s), DType::U32, device)?,
        values: new_tensor(OP, (m, s), dtype, device)?,
        count: new_tensor(OP, m, DType::U32, device)?,
        n_atoms: codes.n_atoms,
    };
    if m * s > 0 {
        let io = operands(OP).write("the result", &to.indices).write("the result", &to.values);
        let io = io.write("the result", &to.count).read("codes.indices", &codes.indices);
        let io = io.read("codes.values", &codes.values).read("codes.count", &codes.count);
        io.maybe("bound", bound).run(&Keep { s, start: atoms.start, end: atoms.end, dtype })?;
    }
    Ok(to)
}

impl SparseCodes {
    /// The codes of ranges of atoms: those below the first of `ends`, those from there to below the
    /// second, and so on; entries keep their order. As wide as these, on the CPU as the widest row.
    ///
    /// # Errors
    /// When the tensors of the codes do not fit each other.
    pub fn parted(&self, ends: &[usize]) -> Result<Vec<Self>> {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let part = |(start, &end): (usize, &usize)| {
            let part = keep(self, start..end, None)?;
            if !part.count.device().is_cpu() || part.count.elem_count() == 0 {
                return Ok(part);
            }
            let width = (part.count.max(0)?.to_scalar::<u32>()? as usize).max(1);
            let of = |t: &Tensor| t.narrow(1, 0, width)?.contiguous();
            Ok(Self { indices: of(&part.indices)?, values: of(&part.values)?, ..part })
        };
        starts.zip(ends).map(part).collect()
    }
}

pub(super) struct Keep {
    pub s: usize,
    pub start: usize,
    pub end: usize,
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
        let &Self { s, start, end, .. } = self;
        let ([to_indices, to_values, to_count], [indices, values, count, bound]) = io.parts()?;
        let (indices, values) = (indices.elements::<u32>()?, values.elements::<T>()?);
        let (count, bound) = (count.elements::<u32>()?, bound.maybe::<T>()?);
        let least = bound.and_then(|bound| bound.first().copied());
        let to = to_indices.elements::<u32>()?.par_chunks_exact_mut(s);
        let to = to.zip(to_values.elements::<T>()?.par_chunks_exact_mut(s)).zip(to_count.elements::<u32>()?);
        let from = indices.par_chunks_exact(s).zip(values.par_chunks_exact(s)).zip(count);
        to.zip(from).with_min_len(64).for_each(
            |(((to_indices, to_values), to_count), ((indices, values), &count))| {
                let entries = indices.iter().zip(values).take(count as usize);
                let stays = |(j, v): &(&u32, &T)| {
                    (start..end).contains(&(**j as usize)) && least.is_none_or(|least| **v >= least)
                };
                let mut kept = 0;
                for (((index, value), (&j, &v)), at) in
                    to_indices.iter_mut().zip(to_values).zip(entries.filter(stays)).zip(1..)
                {
                    (*index, *value, kept) = (j, v, at);
                }
                *to_count = kept;
            },
        );
        Ok(())
    }
}
