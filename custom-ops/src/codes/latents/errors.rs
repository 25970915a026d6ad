//! What codes leave of their rows.
use super::groups::check_groups;
use super::types::{FLOATS, on_device, wide_type};
use crate::codes::SparseCodes;
use crate::codes::atoms::{row_squares, weighted_sum};
use crate::core::check::{expect, matrix};
use crate::core::fused::Fused;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "code_errors";

/// What [`code_errors`] gives.
#[derive(Debug, Clone)]
pub struct CodeErrors {
    /// `Y − X D`, `[m, p]`.
    pub residual: Tensor,
    /// `scale · Σ_{q ≥ g} R_q` of each group `g`, one after the other: `[groups · m, p]`, in the
    /// type of the atoms.
    pub errors: Tensor,
    /// `Σ_f` of squares of each row of each `R_g`, and of `Y`: f64 `[groups + 1, m]`.
    pub squares: Tensor,
}

/// What codes `X` leave of rows `y`, `[m, p]`, by atoms `[n_atoms, p]`, f32, f64 or bf16; `y` is
/// f64 for f64, else f32. All contiguous; entries of a row are in the order of atoms.
///
/// ```text
/// R_g = Y − Σ_{j < ends_g} x_j d_j      the residual of the atoms of groups 0 to g
/// ```
///
/// `ends` are the ends of groups of atoms, ascending, the last `n_atoms`: `[n_atoms]` for one
/// group.
///
/// Cost: `2p` FLOP an entry; one launch on a GPU.
///
/// # Errors
/// When shapes, types or devices do not fit, groups are none or more than
/// [`MOST_GROUPS`](super::MOST_GROUPS) or, on the CPU, an index is not below `n_atoms` (a GPU
/// passes over it).
pub fn code_errors(
    codes: &SparseCodes,
    y: &Tensor,
    atoms: &Tensor,
    ends: &[usize],
    scale: f64,
) -> Result<CodeErrors> {
    let (n, p) = matrix(OP, "atoms", "[n_atoms, n_features]", atoms, &FLOATS)?;
    let (wide, s, device) = (wide_type(atoms.dtype()), codes.width(), y.device());
    let m = codes.count.elem_count();
    expect(OP, "y", y, &[wide], &[m, p])?;
    expect(OP, "atoms", atoms, &[atoms.dtype()], &[codes.n_atoms, p])?;
    expect(OP, "codes.values", &codes.values, &[wide], &[m, s])?;
    expect(OP, "codes.indices", &codes.indices, &[DType::U32], &[m, s])?;
    check_groups(OP, ends, n)?;
    let on_device = &on_device(atoms)?;
    let groups = ends.len();
    let of = CodeErrors {
        residual: new_tensor(OP, (m, p), wide, device)?,
        errors: new_tensor(OP, (groups * m, p), on_device.dtype(), device)?,
        squares: new_tensor(OP, (groups + 1, m), DType::F64, device)?,
    };
    if m * p * s == 0 {
        return code_errors_reference(codes, y, atoms, ends, scale);
    }
    let io = operands(OP).write("the result", &of.residual).write("the result", &of.errors);
    let io = io.write("the result", &of.squares).read("codes.indices", &codes.indices);
    let io = io.read("codes.values", &codes.values).read("codes.count", &codes.count);
    let io = io.read("y", y).read("atoms", on_device);
    io.run(&Errors { n, p, s, ends: ends.to_vec(), scale, dtype: on_device.dtype() })?;
    Ok(CodeErrors { errors: of.errors.to_dtype(atoms.dtype())?, ..of })
}

/// The same from dense codes, with an op for each result.
///
/// # Errors
/// As [`code_errors`].
pub fn code_errors_reference(
    codes: &SparseCodes,
    y: &Tensor,
    atoms: &Tensor,
    ends: &[usize],
    scale: f64,
) -> Result<CodeErrors> {
    let (dense, wide) = (codes.to_dense()?, &on_device(atoms)?.to_dtype(y.dtype())?);
    let residuals = ends.iter().map(|&end| {
        let of = |t: &Tensor, dim| t.narrow(dim, 0, end)?.contiguous();
        y - of(&dense, 1)?.matmul(&of(wide, 0)?)?
    });
    let residuals = residuals.collect::<Result<Vec<_>>>()?;
    let mut squares = residuals.iter().map(row_squares).collect::<Result<Vec<_>>>()?;
    squares.push(row_squares(y)?);
    let mut errors = vec![];
    let mut later: Option<Tensor> = None;
    for residual in residuals.iter().rev() {
        let sum = match later {
            Some(later) => (later + residual)?,
            None => residual.clone(),
        };
        errors.push((&sum * scale)?.to_dtype(atoms.dtype())?);
        later = Some(sum);
    }
    errors.reverse();
    let Some(residual) = residuals.into_iter().next_back() else {
        candle::bail!("{OP}: there are no groups")
    };
    Ok(CodeErrors { residual, errors: Tensor::cat(&errors, 0)?, squares: Tensor::stack(&squares, 0)? })
}

pub(super) struct Errors {
    pub n: usize,
    pub p: usize,
    pub s: usize,
    pub ends: Vec<usize>,
    pub scale: f64,
    dtype: DType,
}

impl Kernel for Errors {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.on_cpu::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_latents!(self.dtype, |T, V| self.launch::<T, V>(gpu, io))
    }
}

impl Errors {
    fn on_cpu<T: Fused>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { n, p, s, ref ends, scale, .. } = self;
        let ([residual, errors, squares], [indices, values, count, y, atoms]) = io.parts()?;
        let (indices, values) = (indices.elements::<u32>()?, values.elements::<T>()?);
        let (count, y, atoms) = (count.elements::<u32>()?, y.elements::<T>()?, atoms.elements::<T>()?);
        if let Some(atom) = indices.iter().find(|&&atom| atom as usize >= n) {
            candle::bail!("{OP}: codes.indices must be below {n}, the number of atoms, got {atom}")
        }
        let m = count.len();
        // A row of each group's matrix.
        let mut of_rows: Vec<Vec<(&mut [T], &mut f64)>> =
            (0..m).map(|_| Vec::with_capacity(ends.len())).collect();
        let (of_groups, of_y) = squares.elements::<f64>()?.split_at_mut(ends.len() * m);
        let groups = errors.elements::<T>()?.chunks_exact_mut(m * p).zip(of_groups.chunks_exact_mut(m));
        for (errors, squares) in groups {
            let rows = errors.chunks_exact_mut(p).zip(squares);
            of_rows.iter_mut().zip(rows).for_each(|(of_row, row)| of_row.push(row));
        }
        let of_codes = indices.par_chunks_exact(s).zip(values.par_chunks_exact(s)).zip(count);
        let rows = residual.elements::<T>()?.par_chunks_exact_mut(p).zip(y.par_chunks_exact(p));
        let rows = rows.zip(of_codes).zip(of_rows.into_par_iter().zip(of_y));
        let square = |row: &[T]| row.iter().map(|x| x.to_f64() * x.to_f64()).sum::<f64>();
        rows.with_min_len(4).for_each(
            |(((residual, y), ((indices, values), &count)), (mut of_groups, of_y))| {
                let (indices, values) = (&indices[..count as usize], &values[..count as usize]);
                residual.copy_from_slice(y);
                let mut start = 0;
                for (&end, (row, squares)) in ends.iter().zip(&mut of_groups) {
                    let stop = indices.partition_point(|&j| (j as usize) < end);
                    weighted_sum(atoms, &indices[start..stop], &values[start..stop], row);
                    residual.iter_mut().zip(&**row).for_each(|(r, &x)| *r -= x);
                    row.copy_from_slice(residual);
                    **squares = square(residual);
                    start = stop;
                }
                for g in (1..of_groups.len()).rev() {
                    let (earlier, later) = of_groups.split_at_mut(g);
                    if let (Some((row, _)), Some((later, _))) = (earlier.last_mut(), later.first()) {
                        row.iter_mut().zip(&**later).for_each(|(x, &later)| *x += later);
                    }
                }
                let scale = T::from_f64(scale);
                of_groups.iter_mut().flat_map(|(row, _)| row.iter_mut()).for_each(|x| *x *= scale);
                *of_y = square(y);
            },
        );
        Ok(())
    }
}
