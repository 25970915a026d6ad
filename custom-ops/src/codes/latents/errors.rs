//! What codes leave of their rows.
use super::types::{FLOATS, on_device, wide_type};
use crate::codes::SparseCodes;
use crate::codes::atoms::row_squares;
use crate::core::check::{expect, matrix};
use crate::core::op::{Kernel, new_tensor, operands};
use candle::{DType, Result, Tensor};

const OP: &str = "code_errors";

/// What [`code_errors`] gives.
#[derive(Debug, Clone)]
pub struct CodeErrors {
    /// `Y − X D`, `[m, p]`.
    pub residual: Tensor,
    /// `scale` times that, in the type of the atoms.
    pub errors: Tensor,
    /// `Σ_f` of squares of each row of the residual, and of `Y`: f64 `[2, m]`.
    pub squares: Tensor,
}

/// What codes `X` leave of rows `y`, `[m, p]`, by atoms `[n_atoms, p]`, f32, f64 or bf16; `y` is f64
/// for f64, else f32. All contiguous.
///
/// Cost: `2p` FLOP an entry; one launch on a GPU.
///
/// # Errors
/// When shapes, types or devices do not fit or, on the CPU, an index is not below `n_atoms` (a GPU
/// passes over it).
pub fn code_errors(codes: &SparseCodes, y: &Tensor, atoms: &Tensor, scale: f64) -> Result<CodeErrors> {
    let (n, p) = matrix(OP, "atoms", "[n_atoms, n_features]", atoms, &FLOATS)?;
    let (wide, s, device) = (wide_type(atoms.dtype()), codes.width(), y.device());
    let m = codes.count.elem_count();
    expect(OP, "y", y, &[wide], &[m, p])?;
    expect(OP, "atoms", atoms, &[atoms.dtype()], &[codes.n_atoms, p])?;
    expect(OP, "codes.values", &codes.values, &[wide], &[m, s])?;
    expect(OP, "codes.indices", &codes.indices, &[DType::U32], &[m, s])?;
    if device.is_cpu() || m * p * s == 0 {
        return code_errors_reference(codes, y, atoms, scale);
    }
    let of = CodeErrors {
        residual: new_tensor(OP, (m, p), wide, device)?,
        errors: new_tensor(OP, (m, p), atoms.dtype(), device)?,
        squares: new_tensor(OP, (2, m), DType::F64, device)?,
    };
    let io = operands(OP).write("the result", &of.residual).write("the result", &of.errors);
    let io = io.write("the result", &of.squares).read("codes.indices", &codes.indices);
    let io = io.read("codes.values", &codes.values).read("codes.count", &codes.count);
    io.read("y", y).read("atoms", atoms).run(&Errors { n, p, s, scale, dtype: atoms.dtype() })?;
    Ok(of)
}

/// The same by [`SparseCodes::residual`] and an op for each result.
///
/// # Errors
/// As [`code_errors`].
pub fn code_errors_reference(
    codes: &SparseCodes,
    y: &Tensor,
    atoms: &Tensor,
    scale: f64,
) -> Result<CodeErrors> {
    let residual = codes.residual(y, &on_device(atoms)?.to_dtype(y.dtype())?)?;
    Ok(CodeErrors {
        errors: (&residual * scale)?.to_dtype(atoms.dtype())?,
        squares: Tensor::stack(&[row_squares(&residual)?, row_squares(y)?], 0)?,
        residual,
    })
}

pub(super) struct Errors {
    pub n: usize,
    pub p: usize,
    pub s: usize,
    pub scale: f64,
    dtype: DType,
}

impl Kernel for Errors {
    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        gpu: &crate::core::cuda::Gpu,
        io: crate::core::op::Io<'_, candle::CudaStorage>,
    ) -> Result<()> {
        for_latents!(self.dtype, |T, V| self.launch::<T, V>(gpu, io))
    }
}
