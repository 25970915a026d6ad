//! Matrix product into a buffer that exists: `c ← alpha · a b + beta · c`.
//!
//! What candle's `matmul` lacks for a training loop: it writes in place, accumulates, takes either operand
//! transposed without a copy, mixes bf16 operands with an f32 result, and takes the precision as an
//! argument of the call instead of a switch of the process.
//!
//! CUDA: cuBLAS on the device's stream, deterministic on one device. CPU: the `gemm` crate on
//! all of rayon's threads.
#[cfg(feature = "cuda")]
mod cuda;
mod parts;

#[cfg(feature = "cuda")]
pub(crate) use parts::PartSizes;
pub use parts::gemm_parts_;

use crate::host;
use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, InplaceOp3, Layout, Result, Tensor, WithDType};
use half::{bf16, f16};

/// How exactly products of f32 numbers are formed. Sums are always f32 (f64 for f64 operands).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Full f32 products.
    #[default]
    F32,
    /// Operands rounded to 10 bits of mantissa in the tensor cores, relative error about 5e-4 a product.
    /// The CPU has no such unit and computes as [`Precision::F32`].
    Tf32,
    /// Operands rounded to bf16, 7 bits of mantissa, relative error about 4e-3 a product.
    Bf16,
}

impl Precision {
    /// The lower-case name that command lines and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        }
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        [Self::F32, Self::Tf32, Self::Bf16]
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| format!("precision must be f32, tf32 or bf16, got {name}"))
    }
}

/// The factors of a product and of what the buffer held.
#[derive(Debug, Clone, Copy)]
pub enum Factors<'a> {
    /// Known when the call is made.
    Host {
        /// Multiplies the product.
        alpha: f64,
        /// Multiplies the old content; 0 overwrites, whatever it was (NaN included).
        beta: f64,
    },
    /// `[alpha, beta]` at the head of a contiguous f32 tensor on the same device, read when the product
    /// runs, so that a recorded graph follows a schedule. For f32 results only.
    Tensor(&'a Tensor),
}

impl Factors<'_> {
    /// `c ← a b`
    pub const OVERWRITE: Factors<'static> = Factors::Host { alpha: 1., beta: 0. };
}

/// `c ← alpha · a b + beta · c`.
///
/// `c` is `[m, n]`, contiguous; `a` is `[m, k]` and `b` is `[k, n]`, each contiguous or the transposed
/// view of a contiguous matrix, possibly at an offset (`x.narrow(0, ..)`). All are f32, or all f64, or `a`
/// and `b` are bf16 and `c` is f32 or bf16, or they are f16 and `c` is f32. 16-bit operands are multiplied as they are, whatever
/// precision is asked. `c`
/// must not share memory with an operand.
///
/// Cost: `2mnk` FLOP.
///
/// # Errors
/// When shapes, types, devices or layouts do not fit.
pub fn gemm_(c: &Tensor, a: &Tensor, b: &Tensor, factors: Factors<'_>, precision: Precision) -> Result<()> {
    let (m, n) = dims2("c", c)?;
    let (a_m, k) = dims2("a", a)?;
    let (b_k, b_n) = dims2("b", b)?;
    if (a_m, b_k, b_n) != (m, k, n) {
        candle::bail!(
            "gemm_: a must be [{m}, k] and b [k, {n}] for c [{m}, {n}], got a {:?} and b {:?}",
            a.dims(),
            b.dims()
        )
    }
    if !c.is_contiguous() {
        candle::bail!("gemm_: c must be contiguous, got shape {:?} with strides {:?}", c.dims(), c.stride())
    }
    match (a.dtype(), b.dtype(), c.dtype()) {
        (DType::F32, DType::F32, DType::F32) | (DType::F64, DType::F64, DType::F64) => {}
        (DType::BF16, DType::BF16, DType::F32 | DType::BF16) | (DType::F16, DType::F16, DType::F32) => {}
        (a, b, c) => candle::bail!(
            "gemm_: a, b and c must all be f32, all f64, or bf16 operands with an f32 or bf16 c, or f16 ones with an f32 c, got {a:?}, {b:?}, {c:?}"
        ),
    }
    let a_order = Order::of("a", a)?;
    let b_order = Order::of("b", b)?;
    if let Factors::Tensor(t) = factors {
        if t.dtype() != DType::F32 || !t.is_contiguous() || t.elem_count() < 2 || c.dtype() != DType::F32 {
            candle::bail!(
                "gemm_: factors must be a contiguous f32 tensor of at least 2 entries and c f32, got {:?} {:?} and c {:?}",
                t.dtype(),
                t.dims(),
                c.dtype()
            )
        }
        if !t.device().same_device(c.device()) {
            candle::bail!(
                "gemm_: factors must be on c's device {:?}, got {:?}",
                c.device().location(),
                t.device().location()
            )
        }
    }
    c.inplace_op3(a, b, &Gemm { m, n, k, a_order, b_order, factors, precision })
}

/// The same function in plain loops, summed in f64. `a`, `b`, `c` as for [`gemm_`], on the CPU; the result is new.
///
/// # Errors
/// When candle cannot read the tensors.
pub fn gemm_reference(c: &Tensor, a: &Tensor, b: &Tensor, alpha: f64, beta: f64) -> Result<Tensor> {
    let rows = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (a, b, old) = (rows(a)?, rows(b)?, rows(c)?);
    let mut out = old.clone();
    for (i, row) in out.iter_mut().enumerate() {
        for (j, out) in row.iter_mut().enumerate() {
            let product: f64 = a[i].iter().zip(&b).map(|(a, b)| a * b[j]).sum();
            *out = alpha * product + if beta == 0. { 0. } else { beta * old[i][j] };
        }
    }
    Tensor::new(out, c.device())?.to_dtype(c.dtype())
}

fn dims2(name: &str, t: &Tensor) -> Result<(usize, usize)> {
    match t.dims() {
        [rows, cols] if *rows > 0 && *cols > 0 => Ok((*rows, *cols)),
        got => candle::bail!("gemm_: {name} must be a matrix of at least 1×1, got shape {got:?}"),
    }
}

/// Which way a matrix lies in memory, and the distance between its lines.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    RowMajor { line: usize },
    ColumnMajor { line: usize },
}

impl Order {
    pub(crate) fn of(name: &str, t: &Tensor) -> Result<Self> {
        let (rows, cols) = (t.dims()[0], t.dims()[1]);
        match *t.stride() {
            [line, 1] if line >= cols => Ok(Self::RowMajor { line }),
            [1, line] if line >= rows => Ok(Self::ColumnMajor { line }),
            // One row or one column: the other stride is of no account.
            [_, 1] if rows == 1 => Ok(Self::RowMajor { line: cols }),
            [1, _] if cols == 1 => Ok(Self::ColumnMajor { line: rows }),
            [line, _] if cols == 1 => Ok(Self::RowMajor { line }),
            [_, line] if rows == 1 => Ok(Self::ColumnMajor { line }),
            ref strides => candle::bail!(
                "gemm_: {name} must have unit stride along rows or columns, got shape {:?} with strides {strides:?}; call .contiguous() first",
                t.dims()
            ),
        }
    }

    /// `(row stride, column stride)`
    fn strides(self) -> (usize, usize) {
        match self {
            Self::RowMajor { line } => (line, 1),
            Self::ColumnMajor { line } => (1, line),
        }
    }

    /// How many elements from the first to the last of a `rows × cols` matrix.
    fn span(self, rows: usize, cols: usize) -> usize {
        let (row, col) = self.strides();
        (rows - 1) * row + (cols - 1) * col + 1
    }
}

/// A product whose shapes, types and strides were checked by [`gemm_`].
struct Gemm<'a> {
    m: usize,
    n: usize,
    k: usize,
    a_order: Order,
    b_order: Order,
    factors: Factors<'a>,
    precision: Precision,
}

impl InplaceOp3 for Gemm<'_> {
    fn name(&self) -> &'static str {
        "gemm_"
    }

    fn cpu_fwd(
        &self,
        c: &mut CpuStorage,
        c_l: &Layout,
        a: &CpuStorage,
        a_l: &Layout,
        b: &CpuStorage,
        b_l: &Layout,
    ) -> Result<()> {
        let (alpha, beta) = self.host_factors()?;
        let (alpha_32, beta_32) = (alpha as f32, beta as f32);
        let range = |layout: &Layout, n: usize| layout.start_offset()..layout.start_offset() + n;
        let a_at = range(a_l, self.a_order.span(self.m, self.k));
        let b_at = range(b_l, self.b_order.span(self.k, self.n));
        let c_at = range(c_l, self.m * self.n);
        match (a, b, c) {
            (CpuStorage::F64(a), CpuStorage::F64(b), CpuStorage::F64(c)) => {
                self.cpu(&mut c[c_at], &a[a_at], &b[b_at], alpha, beta)
            }
            (CpuStorage::F32(a), CpuStorage::F32(b), CpuStorage::F32(c)) => match self.precision {
                Precision::F32 | Precision::Tf32 => {
                    self.cpu(&mut c[c_at], &a[a_at], &b[b_at], alpha_32, beta_32)
                }
                Precision::Bf16 => {
                    let rounded = |x: f32| bf16::from_f32(x).to_f32();
                    let (a, b) = (converted(&a[a_at], rounded), converted(&b[b_at], rounded));
                    self.cpu(&mut c[c_at], &a, &b, alpha_32, beta_32)
                }
            },
            (CpuStorage::F16(a), CpuStorage::F16(b), CpuStorage::F32(c)) => {
                let (a, b) = (converted(&a[a_at], f16::to_f32), converted(&b[b_at], f16::to_f32));
                self.cpu(&mut c[c_at], &a, &b, alpha_32, beta_32)
            }
            (CpuStorage::BF16(a), CpuStorage::BF16(b), c) => {
                let (a, b) = (converted(&a[a_at], bf16::to_f32), converted(&b[b_at], bf16::to_f32));
                match c {
                    CpuStorage::F32(c) => self.cpu(&mut c[c_at], &a, &b, alpha_32, beta_32),
                    CpuStorage::BF16(c) => {
                        let c = &mut c[c_at];
                        let mut wide = converted(c, bf16::to_f32);
                        self.cpu(&mut wide, &a, &b, alpha_32, beta_32);
                        c.iter_mut().zip(wide).for_each(|(c, wide)| *c = bf16::from_f32(wide));
                    }
                    c => candle::bail!("gemm_: c must be f32 or bf16 for bf16 operands, got {:?}", c.dtype()),
                }
            }
            (a, b, c) => {
                candle::bail!("gemm_: no product of {:?} and {:?} into {:?}", a.dtype(), b.dtype(), c.dtype())
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        c: &mut candle::CudaStorage,
        c_l: &Layout,
        a: &candle::CudaStorage,
        a_l: &Layout,
        b: &candle::CudaStorage,
        b_l: &Layout,
    ) -> Result<()> {
        self.cuda((c, c_l), (a, a_l), (b, b_l))
    }
}

impl Gemm<'_> {
    /// The factors as numbers; a tensor of factors is on the CPU here.
    fn host_factors(&self) -> Result<(f64, f64)> {
        match self.factors {
            Factors::Host { alpha, beta } => Ok((alpha, beta)),
            Factors::Tensor(t) => {
                let factors = host::Operand::new(t);
                let &[alpha, beta, ..] = factors.elements::<f32>("gemm_")? else {
                    candle::bail!("gemm_: factors must have at least 2 entries")
                };
                Ok((f64::from(alpha), f64::from(beta)))
            }
        }
    }

    /// `c ← alpha · a b + beta · c`; the slices start at the first element of each matrix.
    fn cpu<T: WithDType + PartialEq>(&self, c: &mut [T], a: &[T], b: &[T], alpha: T, beta: T) {
        let (m, n, k) = (self.m, self.n, self.k);
        let (a, b) = (&a[..self.a_order.span(m, k)], &b[..self.b_order.span(k, n)]);
        let c = &mut c[..m * n];
        let (a_row, a_col) = self.a_order.strides();
        let (b_row, b_col) = self.b_order.strides();
        let parallelism = match rayon::current_num_threads() {
            0 | 1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        };
        // SAFETY: `c` holds the m×n entries of a contiguous matrix, and the spans cut above are exactly what
        // the strides of `a` and `b` reach; `c` is borrowed mutably, so nothing overlaps it.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                beta != T::zero(),
                a.as_ptr(),
                a_col as isize,
                a_row as isize,
                b.as_ptr(),
                b_col as isize,
                b_row as isize,
                beta,
                alpha,
                false,
                false,
                false,
                parallelism,
            )
        }
    }
}

fn converted<T: Copy>(x: &[T], f: impl Fn(T) -> f32) -> Vec<f32> {
    x.iter().map(|&x| f(x)).collect()
}
