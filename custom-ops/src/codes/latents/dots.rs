//! Inner products of rows with the atoms that their codes name.
use super::groups::{check_groups, group_of};
use super::types::{FLOATS, on_device, wide_type};
use crate::codes::SparseCodes;
use crate::codes::atoms::dots;
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "code_dots";

/// `rows[i] · atoms[indices[i, k]]` for every entry of `codes`, `[m, s]`; 0 beyond the count of a
/// row. With groups of atoms, as [`code_errors`](super::code_errors) has them, `rows` has a matrix
/// for each group, of which that of the atom is taken.
///
/// `rows` is `[groups · m, p]`, `atoms` `[n_atoms, p]`, both contiguous, f32, f64 or bf16 alike;
/// the result is f64 for f64, else f32.
///
/// Cost: `2p` FLOP an entry.
///
/// # Errors
/// When shapes, types or devices do not fit or, on the CPU, an index is not below `n_atoms` (a GPU
/// gives 0 for it).
pub fn code_dots(codes: &SparseCodes, rows: &Tensor, atoms: &Tensor, ends: &[usize]) -> Result<Tensor> {
    let (s, m, dtype) = (codes.width(), codes.count.elem_count(), rows.dtype());
    let (_, p) = matrix(OP, "rows", "[groups · n_samples, n_features]", rows, &FLOATS)?;
    check_groups(OP, ends, codes.n_atoms)?;
    expect(OP, "rows", rows, &[dtype], &[ends.len() * m, p])?;
    expect(OP, "codes.indices", &codes.indices, &[DType::U32], &[m, s])?;
    expect(OP, "codes.count", &codes.count, &[DType::U32], &[m])?;
    expect(OP, "atoms", atoms, &[dtype], &[codes.n_atoms, p])?;
    let (rows, atoms) = (&on_device(rows)?, &on_device(atoms)?);
    let out = new_tensor(OP, (m, s), wide_type(dtype), rows.device())?;
    if out.elem_count() > 0 {
        let io = operands(OP).write("the result", &out).read("rows", rows).read("atoms", atoms);
        let io = io.read("codes.indices", &codes.indices).read("codes.count", &codes.count);
        io.run(&CodeDots { n: codes.n_atoms, p, s, ends: ends.to_vec(), dtype: rows.dtype() })?;
    }
    Ok(out)
}

pub(super) struct CodeDots {
    pub n: usize,
    pub p: usize,
    pub s: usize,
    pub ends: Vec<usize>,
    dtype: DType,
}

impl Kernel for CodeDots {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { n, p, s, ref ends, dtype } = self;
        for_float!(dtype, |T| {
            let ([out], [rows, atoms, indices, count]) = io.parts()?;
            let (rows, atoms) = (rows.elements::<T>()?, atoms.elements::<T>()?);
            let (indices, count) = (indices.elements::<u32>()?, count.elements::<u32>()?);
            if let Some(atom) = indices.iter().find(|&&atom| atom as usize >= n) {
                candle::bail!("{OP}: codes.indices must be below {n}, the number of atoms, got {atom}")
            }
            if p == 0 {
                return Ok(());
            }
            let m = count.len();
            let codes = indices.par_chunks_exact(s).zip(count).enumerate();
            out.elements::<T>()?.par_chunks_exact_mut(s).zip(codes).with_min_len(4).for_each(
                |(out, (i, (indices, &count)))| {
                    let mut start = 0;
                    let all = &indices[..(count as usize).min(s)];
                    for of_group in
                        all.chunk_by(|&a, &b| group_of(ends, a as usize) == group_of(ends, b as usize))
                    {
                        let row = group_of(ends, of_group[0] as usize) * m + i;
                        let to = &mut out[start..start + of_group.len()];
                        dots(atoms, of_group, &rows[row * p..][..p], to);
                        start += of_group.len();
                    }
                },
            );
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_latents!(self.dtype, |T, V| self.launch::<T, V>(gpu, io))
    }
}
