//! Arithmetic of tensors entry by entry, with broadcasting and strides, as machine code.
//!
//! Each function is candle's op of the same meaning, to the bit on the CPU. On a GPU candle's come
//! as PTX, which the driver compiles when a program first calls one on a machine: 7.3 s for binary
//! ops and 3 s for unary ones on an H100. Those here are compiled with the crate, so that a first
//! run starts at once. Programs call these, at least where every run passes; candle's `affine`,
//! casts and sums are compiled in 2.5 s.
//!
//! A tensor that candle tracks for gradients, one of another type than f32 or f64 (copies: any
//! number), and one with more than four dimensions that its strides do not join go to candle's op
//! on a GPU as well.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::arrays::elementwise::{maximum, sqr, sub};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1f32, 2.], [5., 7.]], &Cpu)?;
//! let apart = sub(&x, &Tensor::new(&[3f32, 5.], &Cpu)?)?;
//! assert_eq!(apart.to_vec2::<f32>()?, [[-2., -3.], [2., 2.]]);
//! assert_eq!(sqr(&apart)?.to_vec2::<f32>()?, [[4., 9.], [4., 4.]]);
//! assert_eq!(maximum(&x, &x.get(1)?)?.to_vec2::<f32>()?, [[5., 7.], [5., 7.]]);
//! # Ok(()) }
//! ```
use crate::core::op::{Kernel, new_tensor, operands};
use candle::{DType, Device, Result, Tensor};

const OP: &str = "elementwise";
/// Dimensions that the kernels walk along.
const RANK: usize = 4;

/// A kernel's name for the type of `x`.
fn kernel_of(name: &str, x: &Tensor) -> String {
    format!("{name}_{}", x.dtype().as_str())
}

/// Whether the kernels have the code for these operands, floats of one type.
fn takes(operands: &[&Tensor]) -> bool {
    let dtype = operands.first().map(|x| x.dtype());
    operands.iter().all(|x| is_ours(x) && Some(x.dtype()) == dtype)
        && matches!(dtype, Some(DType::F32 | DType::F64))
}

fn is_ours(x: &Tensor) -> bool {
    x.device().is_cuda() && !x.track_op()
}

macro_rules! binary {
    ($($name:ident, $candle:expr, $formula:literal;)*) => {$(
        #[doc = concat!("`", $formula, "`, entry by entry, the two shapes broadcast to one.")]
        ///
        /// # Errors
        /// When shapes, types or devices do not fit, or a step is being recorded on a GPU.
        pub fn $name(a: &Tensor, b: &Tensor) -> Result<Tensor> {
            if takes(&[a, b]) {
                let shape = a.shape().broadcast_shape_binary_op(b.shape(), stringify!($name))?;
                let (a, b) = (a.broadcast_as(&shape)?, b.broadcast_as(&shape)?);
                if let Some(out) = each(kernel_of(stringify!($name), &a), &a, Some(&b))? {
                    return Ok(out);
                }
            }
            let candle: fn(&Tensor, &Tensor) -> Result<Tensor> = $candle;
            candle(a, b)
        }
    )*};
}
binary! {
    add, Tensor::broadcast_add, "a + b";
    sub, Tensor::broadcast_sub, "a − b";
    mul, Tensor::broadcast_mul, "a · b";
    div, Tensor::broadcast_div, "a / b";
    maximum, Tensor::broadcast_maximum, "max(a, b)";
    minimum, Tensor::broadcast_minimum, "min(a, b)";
    equal, |a, b| a.broadcast_eq(b)?.to_dtype(a.dtype()), "1 where a = b, else 0";
}

/// `max(x, low)` of each entry.
///
/// # Errors
/// As [`maximum`].
pub fn at_least(x: &Tensor, low: f64) -> Result<Tensor> {
    maximum(x, &like(x, low)?)
}

/// `min(max(x, low), high)` of each entry.
///
/// # Errors
/// As [`maximum`].
pub fn clamp(x: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    minimum(&at_least(x, low)?, &like(x, high)?)
}

/// A number of the type of `x` and on its device.
fn like(x: &Tensor, value: f64) -> Result<Tensor> {
    Tensor::new(value, &Device::Cpu)?.to_dtype(x.dtype())?.to_device(x.device())
}

macro_rules! unary {
    ($($name:ident, $candle:path, $formula:literal;)*) => {$(
        #[doc = concat!("`", $formula, "` of each entry.")]
        ///
        /// # Errors
        /// When `x` is no float tensor, or a step is being recorded on a GPU.
        pub fn $name(x: &Tensor) -> Result<Tensor> {
            if takes(&[x])
                && let Some(out) = each(kernel_of(stringify!($name), x), x, None)?
            {
                return Ok(out);
            }
            $candle(x)
        }
    )*};
}
unary! {
    abs, Tensor::abs, "|x|";
    exp, Tensor::exp, "eˣ";
    ln, Tensor::log, "ln x";
    neg, Tensor::neg, "−x";
    recip, Tensor::recip, "1 / x";
    relu, Tensor::relu, "max(x, 0)";
    sigmoid, candle_nn::ops::sigmoid, "1 / (1 + e⁻ˣ)";
    sqr, Tensor::sqr, "x²";
    sqrt, Tensor::sqrt, "√x";
}

/// `x` with its entries side by side in the order of its shape: itself where they are, else a copy.
///
/// # Errors
/// When memory is short, or a step is being recorded on a GPU.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    let is_number = matches!(
        x.dtype(),
        DType::U8 | DType::U32 | DType::I64 | DType::BF16 | DType::F16 | DType::F32 | DType::F64
    );
    if is_ours(x)
        && is_number
        && !x.is_contiguous()
        && let Some(out) = each(format!("copy_{}", 8 * x.dtype().size_in_bytes()), x, None)?
    {
        return Ok(out);
    }
    x.contiguous()
}

/// What the kernel makes of operands of one shape; none where there are too many dimensions.
fn each(kernel: String, x: &Tensor, y: Option<&Tensor>) -> Result<Option<Tensor>> {
    let Some(walk) = Walk::of(x.dims(), [x.stride(), y.unwrap_or(x).stride()]) else { return Ok(None) };
    let out = new_tensor(OP, x.shape(), x.dtype(), x.device())?;
    if out.elem_count() > 0 {
        let op = Each { kernel, walk, dtype: x.dtype(), n: out.elem_count() };
        operands(OP).write("out", &out).read("x", x).maybe("y", y).run(&op)?;
    }
    Ok(Some(out))
}

/// How a kernel walks through two operands of one shape: sizes and strides from the last dimension
/// to the first, dimensions of one entry left out, and those joined that both operands have in one
/// stretch. As in kernels/arrays/elementwise.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Walk {
    rank: usize,
    size: [usize; RANK],
    x: [usize; RANK],
    y: [usize; RANK],
}

// SAFETY: numbers alone, without padding, as the kernels take them.
#[cfg(feature = "cuda")]
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for Walk {}

impl Walk {
    /// The walk along `dims` by the strides of both operands; none of more than [`RANK`]
    /// dimensions.
    fn of(dims: &[usize], [x, y]: [&[usize]; 2]) -> Option<Self> {
        let mut walk = Self { rank: 1, size: [1; RANK], x: [0; RANK], y: [0; RANK] };
        let (mut last, mut first) = (0, true);
        for ((&size, &x), &y) in dims.iter().zip(x).zip(y).rev().filter(|((size, _), _)| **size != 1) {
            let joins = |stride: &[usize; RANK], of: usize| of == walk.size[last] * stride[last];
            if !first && joins(&walk.x, x) && joins(&walk.y, y) {
                walk.size[last] *= size;
                continue;
            }
            last = if first { 0 } else { last + 1 };
            first = false;
            *walk.size.get_mut(last)? = size;
            (walk.x[last], walk.y[last]) = (x, y);
        }
        walk.rank = last + 1;
        Some(walk)
    }

    /// Entries from the first one of an operand to the last that the walk comes to.
    fn reach(&self, strides: &[usize; RANK]) -> usize {
        self.size.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1
    }
}

struct Each {
    kernel: String,
    walk: Walk,
    dtype: DType,
    n: usize,
}

impl Kernel for Each {
    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        gpu: &crate::core::cuda::Gpu,
        io: crate::core::op::Io<'_, candle::CudaStorage>,
    ) -> Result<()> {
        for_type!(
            self.dtype,
            [U8: u8, U32: u32, I64: i64, BF16: half::bf16, F16: half::f16, F32: f32; f64],
            |T| {
                let ([out], [x, y]) = io.parts()?;
                let (mut out, x) = (out.elements::<T>()?, x.span::<T>(self.walk.reach(&self.walk.x))?);
                let y = y.maybe_span::<T>(self.walk.reach(&self.walk.y))?;
                let mut launch = gpu.launch(OP, "elementwise", &self.kernel)?.write(&mut out).read(&x);
                if let Some(y) = &y {
                    launch = launch.read(y);
                }
                // SAFETY: (T*, const T*, const T* of binary kernels, Walk, size_t), the kernel's
                // name says the type or its width; `out` holds n entries, the product of the sizes
                // of the walk, and x and y reach to its last place.
                unsafe { launch.num(self.walk).num(self.n).linear(self.n).go() }
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device::Cpu;

    /// Where the walk finds entry `i`, as the kernels compute it.
    fn places(walk: &Walk, mut i: usize) -> [usize; 2] {
        let mut at = [0; 2];
        for d in 0..walk.rank {
            let digit = if d + 1 == walk.rank { i } else { i % walk.size[d] };
            i /= walk.size[d];
            at[0] += digit * walk.x[d];
            at[1] += digit * walk.y[d];
        }
        at
    }

    /// Tensors of their places have their own values as what the walk must find.
    #[test]
    fn a_walk_finds_every_entry_of_both_operands() -> Result<()> {
        let numbers = |n: usize| Tensor::arange(0u32, n as u32, &Cpu);
        let base = numbers(2 * 3 * 4 * 5)?.reshape((2, 3, 4, 5))?;
        let row = numbers(5)?;
        let column = numbers(4)?.reshape((4, 1))?;
        let pairs = [
            (base.clone(), base.clone(), 1),
            (base.clone(), row.broadcast_as((2, 3, 4, 5))?, 2),
            (base.clone(), column.broadcast_as((2, 3, 4, 5))?, 3),
            (base.narrow(2, 0, 2)?, base.narrow(2, 0, 2)?, 2),
            (base.t()?, base.reshape((2, 3, 5, 4))?, 3),
            (base.permute((3, 1, 0, 2))?, base.permute((3, 1, 0, 2))?, 4),
            (numbers(1)?.broadcast_as((6, 7))?, numbers(42)?.reshape((6, 7))?, 1),
            (numbers(1)?.reshape(())?, numbers(1)?.reshape(())?, 1),
            (row.broadcast_as((4, 5))?, column.broadcast_as((4, 5))?, 2),
        ];
        for (case, (x, y, rank)) in pairs.into_iter().enumerate() {
            let walk = Walk::of(x.dims(), [x.stride(), y.stride()]);
            let Some(walk) = walk else { panic!("case {case}: no walk") };
            assert!(walk.rank <= rank, "case {case}: {walk:?}");
            assert_eq!(walk.size.iter().product::<usize>(), x.elem_count(), "case {case}");
            let mut furthest = [0; 2];
            let values = |t: &Tensor| t.flatten_all()?.to_vec1::<u32>();
            for (i, (x, y)) in values(&x)?.into_iter().zip(values(&y)?).enumerate() {
                let found = places(&walk, i);
                assert_eq!(found, [x as usize, y as usize], "case {case}, entry {i}: {walk:?}");
                furthest = [furthest[0].max(found[0]), furthest[1].max(found[1])];
            }
            assert_eq!([walk.reach(&walk.x), walk.reach(&walk.y)], furthest.map(|at| at + 1), "case {case}");
        }
        Ok(())
    }

    #[test]
    fn dimensions_that_do_not_join_have_no_walk_beyond_four() -> Result<()> {
        let x = Tensor::zeros((2, 2, 2, 2, 2), DType::U8, &Cpu)?;
        let rank = |x: &Tensor| Walk::of(x.dims(), [x.stride(), x.stride()]).map(|walk| walk.rank);
        assert_eq!(rank(&x), Some(1));
        assert_eq!(rank(&x.permute((0, 1, 4, 3, 2))?), Some(4));
        assert_eq!(rank(&x.permute((4, 3, 2, 1, 0))?), None);
        Ok(())
    }
}
