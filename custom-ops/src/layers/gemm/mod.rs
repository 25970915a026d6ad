//! Matrix product into an existing buffer: `c ← alpha · a b + beta · c`.
//!
//! It adds what candle's `matmul` lacks for a training loop: it writes in place, accumulates, takes
//! either operand transposed without a copy, mixes bf16 operands with an f32 result, and takes the
//! precision as an argument instead of a process-wide switch.
//!
//! CUDA: cuBLAS on the device's stream, deterministic on one device. CPU: blocks of the `gemm`
//! crate on all rayon threads; the same bits on any number of threads.
pub(crate) mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod few;
mod onto;
#[cfg(any(feature = "cuda", test))]
mod onto_kernel;
mod parts;
pub mod split;

pub use onto::gemm_onto_;
pub(crate) use parts::PartSizes;
pub use parts::gemm_parts_;
pub use split::{gemm_split_, gemm_split_makes_tensors};

use crate::core::check::{expect, expect_layout};
use crate::core::op::{In, Io, Kernel, Out, new_tensor, not_recording, operands};
use candle::{CpuStorage, D, DType, Result, Tensor, WithDType};
use half::{bf16, f16};

/// Precision of products of f32 numbers. Sums are always f32 (f64 for f64 operands).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Full f32 products.
    #[default]
    F32,
    /// Operands rounded to 10 bits of mantissa in the tensor cores, with a relative error of about
    /// 5e-4 per product. The CPU computes as with [`Precision::F32`].
    Tf32,
    /// Operands rounded to bf16 with 7 bits of mantissa, with a relative error of about 4e-3 per
    /// product.
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

/// The factors on the product and on the old content of the buffer.
#[derive(Debug, Clone, Copy)]
pub enum Factors<'a> {
    /// Factors given in the call.
    Host {
        /// Multiplies the product.
        alpha: f64,
        /// Multiplies the old content; 0 overwrites, whatever it was (NaN included).
        beta: f64,
    },
    /// `[alpha, beta]`, the first two entries of a contiguous f32 tensor on the same device. They
    /// are read when the product runs, so that a recorded graph can follow a schedule. For f32
    /// results only.
    Tensor(&'a Tensor),
}

impl Factors<'_> {
    /// `c ← a b`
    pub const OVERWRITE: Factors<'static> = Factors::Host { alpha: 1., beta: 0. };
}

/// `c ← alpha · a b + beta · c`.
///
/// `c` is `[m, n]`, contiguous; `a` is `[m, k]` and `b` is `[k, n]`, each contiguous or the
/// transposed view of a contiguous matrix, possibly at an offset (`x.narrow(0, ..)`). One that was
/// broadcast, so that rows or columns share memory, is copied first, which cannot be recorded. All
/// are f32, or all are f64; or `a` and `b` are bf16 and `c` is f32 or bf16; or `a` and `b` are f16
/// and `c` is f32. 16-bit operands are multiplied as they are, whatever `precision` is. `c` must
/// not share memory with an operand.
///
/// Cost: `2mnk` FLOP.
///
/// # Errors
/// When shapes, types, devices or layouts do not fit.
pub fn gemm_(c: &Tensor, a: &Tensor, b: &Tensor, factors: Factors<'_>, precision: Precision) -> Result<()> {
    run("gemm_", c, a, b, factors, None, precision)
}

/// The product `a b` as a new tensor of type `dtype`: [`gemm_`] of `a`, `[m, k]`, and `b`, `[k, n]`.
///
/// # Errors
/// As [`gemm_`], or when a step is being recorded on a GPU.
pub fn product(a: &Tensor, b: &Tensor, dtype: DType, precision: Precision) -> Result<Tensor> {
    let (m, n) = (a.dim(0)?, b.dim(D::Minus1)?);
    let c = new_tensor("product", (m, n), dtype, a.device())?;
    gemm_(&c, a, b, Factors::OVERWRITE, precision)?;
    Ok(c)
}

/// [`gemm_`] of many matrices at once: `c[i] ← alpha · a[i] b[i] + beta · c[i]`.
///
/// `c` is `[batch, m, n]`, contiguous; `a` is `[batch, m, k]` and `b` `[batch, k, n]`, each matrix
/// as for [`gemm_`], with any stride between matrices. A stride of 0, as from `broadcast_as`, uses
/// one matrix for all. Types are those of [`gemm_`].
///
/// Cost: `2 · batch · mnk` FLOP; one launch on CUDA.
///
/// # Errors
/// As [`gemm_`].
pub fn gemm_batched_(
    c: &Tensor,
    a: &Tensor,
    b: &Tensor,
    factors: Factors<'_>,
    precision: Precision,
) -> Result<()> {
    run("gemm_batched_", c, a, b, factors, None, precision)
}

/// A batch of products, or one of them where tensors have two dimensions; the old content of `c` is
/// that of `onto`, where it is given.
fn run(
    op: &'static str,
    c: &Tensor,
    a: &Tensor,
    b: &Tensor,
    factors: Factors<'_>,
    onto: Option<&Tensor>,
    precision: Precision,
) -> Result<()> {
    let batched = op == "gemm_batched_";
    let ((batch, m, n), (a_batch, a_m, k)) = (dims(op, "c", c, batched)?, dims(op, "a", a, batched)?);
    let (b_batch, b_k, b_n) = dims(op, "b", b, batched)?;
    if (a_m, b_k, b_n) != (m, k, n) || (a_batch, b_batch) != (batch, batch) {
        let all = if batched { format!("{batch}, ") } else { String::new() };
        candle::bail!(
            "{op}: a must be [{all}{m}, k] and b [{all}k, {n}] for c [{all}{m}, {n}], got a {:?} and b {:?}",
            a.dims(),
            b.dims()
        )
    }
    if !c.is_contiguous() {
        candle::bail!("{op}: c must be contiguous, got shape {:?} with strides {:?}", c.dims(), c.stride())
    }
    match (a.dtype(), b.dtype(), c.dtype()) {
        (DType::F32, DType::F32, DType::F32) | (DType::F64, DType::F64, DType::F64) => {}
        (DType::BF16, DType::BF16, DType::F32 | DType::BF16) | (DType::F16, DType::F16, DType::F32) => {}
        (a, b, c) => candle::bail!(
            "{op}: a, b and c must all be f32, all f64, or bf16 operands with an f32 or bf16 c, or f16 ones with an f32 c, got {a:?}, {b:?}, {c:?}"
        ),
    }
    if let Some(onto) = onto {
        expect(op, "c", c, &[DType::F32], &[m, n])?;
        expect(op, "onto", onto, &[DType::F32], &[m, n])?;
    }
    let (host, tensor) = match factors {
        Factors::Host { alpha, beta } => (Some((alpha, beta)), None),
        Factors::Tensor(t) => {
            expect_layout(op, "factors", t, &[DType::F32])?;
            if t.elem_count() < 2 || c.dtype() != DType::F32 {
                candle::bail!(
                    "{op}: factors must have at least 2 entries and c be f32, got shape {:?} and c {:?}",
                    t.dims(),
                    c.dtype()
                )
            }
            (None, Some(t))
        }
    };
    let (a, b) = (&apart(op, a)?, &apart(op, b)?);
    let (a_order, b_order) = (Order::of("a", a)?, Order::of("b", b)?);
    let step = |t: &Tensor| if batched { t.stride()[0] } else { 0 };
    let product = Gemm {
        op,
        batch,
        m,
        n,
        k,
        a: Matrices { order: a_order, step: step(a), span: (batch - 1) * step(a) + a_order.span(m, k) },
        b: Matrices { order: b_order, step: step(b), span: (batch - 1) * step(b) + b_order.span(k, n) },
        from: a.dtype(),
        to: c.dtype(),
        factors: host,
        precision,
    };
    let io = operands(op).write("c", c).read("a", a).read("b", b);
    io.maybe("factors", tensor).maybe("onto", onto).run(&product)
}

/// The same function in plain loops, summed in f64. `a`, `b`, `c` are as for [`gemm_`], on the CPU;
/// returns a new tensor.
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

/// `(batch, rows, cols)`, each at least 1.
fn dims(op: &str, name: &str, t: &Tensor, batched: bool) -> Result<(usize, usize, usize)> {
    match (batched, t.dims()) {
        (false, &[rows, cols]) if rows > 0 && cols > 0 => Ok((1, rows, cols)),
        (true, &[batch, rows, cols]) if batch > 0 && rows > 0 && cols > 0 => Ok((batch, rows, cols)),
        (false, got) => candle::bail!("{op}: {name} must be a matrix of at least 1×1, got shape {got:?}"),
        (true, got) => {
            candle::bail!("{op}: {name} must be [batch, rows, cols], each at least 1, got shape {got:?}")
        }
    }
}

/// The same matrices, copied where rows or columns of one share memory, as after a broadcast:
/// products take lines that lie apart.
fn apart(op: &'static str, t: &Tensor) -> Result<Tensor> {
    if !is_shared(t) {
        return Ok(t.clone());
    }
    not_recording(op, t.device())?;
    match (t.dims(), t.stride()) {
        // One matrix for all stays one.
        (&[_, _, _], &[0, ..]) => t.narrow(0, 0, 1)?.contiguous()?.broadcast_as(t.shape()),
        _ => t.contiguous(),
    }
}

/// Whether entries of the last two dimensions lie at one place.
fn is_shared(t: &Tensor) -> bool {
    let rank = t.rank();
    let (dims, strides) = (&t.dims()[rank - 2..], &t.stride()[rank - 2..]);
    // The dimension that lies closer together, and the other one, which must go beyond it.
    let (near, far) = if strides[0] < strides[1] { (0, 1) } else { (1, 0) };
    dims[near] > 1 && strides[near] == 0 || dims[far] > 1 && strides[far] <= (dims[near] - 1) * strides[near]
}

/// Which way a matrix lies in memory, and the distance between its lines.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    RowMajor { line: usize },
    ColumnMajor { line: usize },
}

impl Order {
    /// The order of the last two dimensions.
    pub(crate) fn of(name: &str, t: &Tensor) -> Result<Self> {
        match Self::find(t) {
            Some(order) => Ok(order),
            None => candle::bail!(
                "gemm_: {name} must have unit stride along rows or columns, got shape {:?} with strides {:?}; call .contiguous() first",
                t.dims(),
                &t.stride()[t.rank() - 2..]
            ),
        }
    }

    /// The same; none where lines have gaps between their entries, or share memory. A line is at
    /// least as long as its entries, and never 0.
    pub(crate) fn find(t: &Tensor) -> Option<Self> {
        let rank = t.rank();
        let (rows, cols) = (t.dims()[rank - 2], t.dims()[rank - 1]);
        match t.stride()[rank - 2..] {
            [line, 1] if line >= cols => Some(Self::RowMajor { line }),
            [1, line] if line >= rows => Some(Self::ColumnMajor { line }),
            // One row or one column: the other stride is of no account.
            [_, 1] if rows == 1 => Some(Self::RowMajor { line: cols }),
            [1, _] if cols == 1 => Some(Self::ColumnMajor { line: rows }),
            [_, _] if (rows, cols) == (1, 1) => Some(Self::RowMajor { line: 1 }),
            [line, _] if cols == 1 && line > 0 => Some(Self::RowMajor { line }),
            [_, line] if rows == 1 && line > 0 => Some(Self::ColumnMajor { line }),
            _ => None,
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
        if rows * cols == 0 {
            return 0;
        }
        let (row, col) = self.strides();
        (rows - 1) * row + (cols - 1) * col + 1
    }
}

/// The matrices of an operand: how each lies, how far they are apart, and the entries from the
/// first of one to the last of all.
#[derive(Debug, Clone, Copy)]
struct Matrices {
    order: Order,
    step: usize,
    span: usize,
}

/// Products whose shapes, types and strides were checked.
struct Gemm {
    op: &'static str,
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    a: Matrices,
    b: Matrices,
    from: DType,
    to: DType,
    /// None where a tensor holds them.
    factors: Option<(f64, f64)>,
    precision: Precision,
}

impl Kernel for Gemm {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([c], [a, b, factors, onto]) = io.parts()?;
        let (alpha, beta) = match (self.factors, factors.maybe::<f32>()?) {
            (Some(factors), _) => factors,
            (None, Some(&[alpha, beta, ..])) => (f64::from(alpha), f64::from(beta)),
            _ => candle::bail!("{}: factors must have at least 2 entries", self.op),
        };
        let (alpha_32, beta_32) = (alpha as f32, beta as f32);
        match (self.from, self.to) {
            (DType::F64, _) => {
                self.each(c.elements()?, self.a.read(&a)?, self.b.read(&b)?, alpha, beta);
            }
            (DType::F32, _) => {
                let (c, a, b) = (begun(c, &onto)?, self.a.read::<f32>(&a)?, self.b.read::<f32>(&b)?);
                match self.precision {
                    Precision::F32 | Precision::Tf32 => self.each(c, a, b, alpha_32, beta_32),
                    Precision::Bf16 => {
                        let rounded = |x: f32| bf16::from_f32(x).to_f32();
                        self.each(c, &converted(a, rounded), &converted(b, rounded), alpha_32, beta_32);
                    }
                }
            }
            (DType::F16, _) => {
                let (a, b) = (self.a.read(&a)?, self.b.read(&b)?);
                let (a, b) = (converted(a, f16::to_f32), converted(b, f16::to_f32));
                self.each(begun(c, &onto)?, &a, &b, alpha_32, beta_32);
            }
            (_, to) => {
                let (a, b) = (self.a.read(&a)?, self.b.read(&b)?);
                let (a, b) = (converted(a, bf16::to_f32), converted(b, bf16::to_f32));
                if to == DType::F32 {
                    self.each(begun(c, &onto)?, &a, &b, alpha_32, beta_32);
                } else {
                    let c = c.elements::<bf16>()?;
                    let mut wide = converted(c, bf16::to_f32);
                    self.each(&mut wide, &a, &b, alpha_32, beta_32);
                    c.iter_mut().zip(wide).for_each(|(c, wide)| *c = bf16::from_f32(wide));
                }
            }
        }
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        let dtype = if self.from == DType::F64 { DType::F64 } else { DType::F32 };
        let form = few::Form::of(dtype, self.a.order, self.b.order, [self.m, self.n, self.k]);
        cpu::is_serial(form, self.m, self.n, self.k)
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.run_cuda(gpu, io)
    }
}

impl Matrices {
    /// The entries from the first matrix to the last.
    fn read<'a, T: WithDType>(&self, operand: &In<'a, CpuStorage>) -> Result<&'a [T]> {
        Ok(&operand.all::<T>()?[operand.layout()?.start_offset()..][..self.span])
    }
}

impl Gemm {
    /// All products, one after the other.
    fn each<T: WithDType>(&self, c: &mut [T], a: &[T], b: &[T], alpha: T, beta: T) {
        for (i, c) in c.chunks_exact_mut(self.m * self.n).enumerate() {
            self.one(c, &a[i * self.a.step..], &b[i * self.b.step..], alpha, beta);
        }
    }

    /// `c ← alpha · a b + beta · c`; the slices start at the first element of each matrix.
    fn one<T: WithDType>(&self, c: &mut [T], a: &[T], b: &[T], alpha: T, beta: T) {
        let &Self { m: rows, n: cols, k: depth, .. } = self;
        let (a_order, b_order) = (self.a.order, self.b.order);
        cpu::product(c, cpu::Operands { a, a_order, b, b_order, rows, cols, depth, alpha, beta });
    }
}

/// The f32 numbers of `c`, which begin as those of `onto`, where it is given.
fn begun<'a>(c: Out<'a, CpuStorage>, onto: &In<'_, CpuStorage>) -> Result<&'a mut [f32]> {
    let c = c.elements::<f32>()?;
    if let Some(onto) = onto.maybe::<f32>()? {
        c.copy_from_slice(onto);
    }
    Ok(c)
}

fn converted<T: Copy>(x: &[T], f: impl Fn(T) -> f32) -> Vec<f32> {
    x.iter().map(|&x| f(x)).collect()
}
