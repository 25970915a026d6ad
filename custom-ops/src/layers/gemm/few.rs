//! Products on the CPU of which the result has few rows, or the sums few terms: by [`tiles`] of the
//! matrices as they lie, since packing an operand would take as long as the product.
//!
//! [`tiles`]: crate::layers::tiles
use super::Order;
#[cfg(target_arch = "x86_64")]
use crate::core::vector::Vector;
use crate::core::vector::{is_wide, is_widest};
#[cfg(target_arch = "x86_64")]
use crate::layers::tiles::{Across, add_rows, dots};
use candle::{DType, WithDType};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64;

/// Up to how many rows of the result, and terms of a sum, the tiles are faster than the `gemm`
/// crate, which packs.
struct Most {
    /// Of [`Form::Adds`].
    rows_of_adds: usize,
    /// Of [`Form::Dots`].
    rows_of_dots: usize,
    /// Of [`Form::Terms`].
    terms: usize,
}

/// On one core with AVX2 the tiles reach 62 to 83 GFLOP/s at 784×500 from 8 rows on.
const MOST_OF_AVX2: Most = Most { rows_of_adds: 64, rows_of_dots: 64, terms: 64 };
/// On one core with AVX-512 (Zen 5) the tiles reach 105 to 140 GFLOP/s there; the crate 150 from 16
/// rows and 190 from 8 terms on, and 240 at last.
const MOST_OF_AVX512: Most = Most { rows_of_adds: 8, rows_of_dots: 16, terms: 4 };
/// Most terms of a sum of f32 where rows are few: sums of sixteen are added to the result one after
/// the other, which of more loses digits that the crate's longer ones keep.
const MOST_DEPTH: usize = 16 << 10;
/// Rows up to which they are where `b` comes from memory, line beside line, and numbers of `b` that
/// stay in a cache that cores share.
const MOST_ROWS_FAR: usize = 8;
const FAR: usize = 2 << 20;
/// Numbers of `b` that stay in the cache of a core.
const CLOSE: usize = 64 << 10;
/// Tasks of a product: the fewer, the longer the stretches of a line that one reads.
const MOST_TASKS: usize = 8;
/// Bytes of the large matrix that are worth a task: some 30 µs of reading from a cache that cores
/// share.
const GRAIN_BYTES: usize = 512 << 10;
/// Columns and rows of blocks come in so many.
const COLUMNS: usize = 64;
const ROWS: usize = 8;
/// Columns of sums along lines that are read side by side.
const AT_ONCE: usize = 12;
/// Terms whose lines are read side by side, so that few pages are in use at once.
#[cfg(target_arch = "x86_64")]
const TERMS: usize = 16;
/// Terms of sums along lines that are added up before the next columns: the rows' then stay in the
/// cache of a core.
#[cfg(target_arch = "x86_64")]
const LENGTH: usize = 1024;

/// `a` and `b` of a product `[rows, cols]` of `depth` terms; the slices begin at the first entry of
/// each.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a, T> {
    /// `[rows, depth]`
    pub a: &'a [T],
    pub a_order: Order,
    /// `[depth, cols]`
    pub b: &'a [T],
    pub b_order: Order,
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    /// Multiplies the product.
    pub alpha: T,
    /// Factor on the old content of the result; 0 overwrites it, NaN included.
    pub beta: T,
}

impl<'a, T: WithDType> Operands<'a, T> {
    /// Of `c ← a b`: matrices with their orders, and `[rows, cols, depth]`.
    pub(crate) fn of(a: (&'a [T], Order), b: (&'a [T], Order), [rows, cols, depth]: [usize; 3]) -> Self {
        let (alpha, beta) = (T::one(), T::zero());
        Self { a: a.0, a_order: a.1, b: b.0, b_order: b.1, rows, cols, depth, alpha, beta }
    }
}

/// How a product is computed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Few rows; terms of `b` lie in lines.
    Adds,
    /// Few rows; columns of `b` lie in lines.
    Dots,
    /// Few terms.
    Terms,
}

impl Form {
    /// None where the `gemm` crate is the way.
    pub(crate) fn of(dtype: DType, a: Order, b: Order, [rows, cols, depth]: [usize; 3]) -> Option<Self> {
        let is_exact = dtype == DType::F64 || (dtype == DType::F32 && depth <= MOST_DEPTH);
        if !is_exact || !is_wide() {
            return None;
        }
        let most = Most::here();
        match (a, b) {
            (_, Order::RowMajor { .. }) if rows <= most.rows_by(cols, depth) => Some(Self::Adds),
            (Order::RowMajor { .. }, Order::ColumnMajor { .. }) if rows <= most.rows_of_dots => {
                Some(Self::Dots)
            }
            (_, Order::RowMajor { .. }) if depth <= most.terms && cols >= ROWS && is_close(cols, depth) => {
                Some(Self::Terms)
            }
            _ => None,
        }
    }

    /// Rows and columns of a block, from the sizes alone.
    pub(crate) fn block(self, [rows, cols, depth]: [usize; 3], grain: usize) -> (usize, usize) {
        let flop = (2 * rows * cols).saturating_mul(depth);
        let bytes = match self {
            Self::Adds | Self::Dots => 4 * cols * depth,
            Self::Terms => 16 * rows * cols,
        };
        let tasks = (flop / grain).max(bytes / GRAIN_BYTES).clamp(1, MOST_TASKS);
        let share = |n: usize, whole: usize| n.div_ceil(tasks).next_multiple_of(whole).min(n);
        match self {
            Self::Adds => (rows, share(cols, COLUMNS)),
            Self::Dots => (rows, share(cols, AT_ONCE)),
            Self::Terms => (share(rows, ROWS), cols),
        }
    }
}

impl Most {
    /// Those of this processor.
    fn here() -> &'static Self {
        if is_widest() { &MOST_OF_AVX512 } else { &MOST_OF_AVX2 }
    }

    /// Most rows for which lines of `b`, `[depth, cols]`, are read side by side.
    fn rows_by(&self, cols: usize, depth: usize) -> usize {
        let far = cols.saturating_mul(depth) > FAR;
        if far { self.rows_of_adds.min(MOST_ROWS_FAR) } else { self.rows_of_adds }
    }
}

/// Whether `b`, of which each row of the result takes all, stays at hand.
fn is_close(cols: usize, depth: usize) -> bool {
    cols.saturating_mul(depth) <= CLOSE
}

/// The block at `c` of `rows × cols` entries; the slices of `operands` begin at its first row and
/// column.
///
/// # Safety
/// There is this form for these operands, the block can be written, and no other thread reads or
/// writes it.
pub(super) unsafe fn multiply<T: WithDType>(form: Form, c: *mut T, line: usize, of: Operands<'_, T>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: what the caller answers for; there are forms where the processor has AVX2 and FMA,
    // and a type is what its DTYPE says.
    unsafe {
        match (T::DTYPE, is_widest()) {
            (DType::F64, true) => avx512::block::<x86_64::__m512d>(form, c.cast(), line, cast(of)),
            (DType::F64, false) => avx2::block::<x86_64::__m256d>(form, c.cast(), line, cast(of)),
            (_, true) => avx512::block::<x86_64::__m512>(form, c.cast(), line, cast(of)),
            (_, false) => avx2::block::<x86_64::__m256>(form, c.cast(), line, cast(of)),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (form, c, line, of);
        unreachable!("Form::of gives no form on this processor")
    }
}

/// The same operands, whose type goes by another name.
///
/// # Safety
/// `T` and `U` are the same.
#[cfg(target_arch = "x86_64")]
unsafe fn cast<T: WithDType, U: WithDType>(of: Operands<'_, T>) -> Operands<'_, U> {
    let Operands { a, a_order, b, b_order, rows, cols, depth, alpha, beta } = of;
    // SAFETY: what the caller answers for.
    let all = |x: &[T]| unsafe { std::slice::from_raw_parts(x.as_ptr().cast::<U>(), x.len()) };
    let one = |x: T| U::from_f64(x.to_f64());
    Operands { a: all(a), a_order, b: all(b), b_order, rows, cols, depth, alpha: one(alpha), beta: one(beta) }
}

#[cfg(target_arch = "x86_64")]
macro_rules! block {
    ($name:ident, $features:literal) => {
        mod $name {
            use super::*;

            /// # Safety
            /// As [`multiply`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn block<V: Vector>(
                form: Form,
                c: *mut V::Number,
                line: usize,
                of: Operands<'_, V::Number>,
            ) {
                // SAFETY: what the caller answers for.
                unsafe {
                    match form {
                        Form::Dots => dots_of::<V>(c, line, of),
                        // Each tile's columns of `b` serve all rows before the next ones are read.
                        Form::Adds if of.rows >= 4 => adds_of::<V>((c, line), of, 2 * V::LANES),
                        Form::Adds | Form::Terms => adds_of::<V>((c, line), of, of.cols),
                    }
                }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
block!(avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
block!(avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma");

/// # Safety
/// As [`multiply`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn adds_of<V: Vector>((c, line): (*mut V::Number, usize), of: Operands<'_, V::Number>, width: usize) {
    let Operands { rows, cols, depth, alpha, beta, .. } = of;
    let (row, term) = of.a_order.strides();
    let a = Across { entries: of.a, term, row };
    let b_line = of.b_order.strides().0;
    for first in (0..depth).step_by(TERMS) {
        let (terms, keep) = (TERMS.min(depth - first), if first == 0 { beta } else { V::ONE });
        let (b, factors) = (&of.b[first * b_line..], (keep, alpha));
        for col in (0..cols).step_by(width) {
            let (b, size) = ((&b[col..], b_line), (width.min(cols - col), terms));
            let mut at = 0;
            while at < rows {
                let a = a.from(at, first);
                // SAFETY: the row is within the block, and so are those that follow by the match.
                unsafe {
                    let c = (c.add(at * line + col), line);
                    at += match rows - at {
                        4.. => add_rows::<V, 4, 2>(c, a, b, size, factors),
                        2.. => add_rows::<V, 2, 4>(c, a, b, size, factors),
                        _ => add_rows::<V, 1, 8>(c, a, b, size, factors),
                    };
                }
            }
        }
    }
}

/// # Safety
/// As [`multiply`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn dots_of<V: Vector>(c: *mut V::Number, line: usize, of: Operands<'_, V::Number>) {
    let Operands { rows, cols, depth, alpha, beta, .. } = of;
    let ((a_line, _), (_, b_line)) = (of.a_order.strides(), of.b_order.strides());
    for first in (0..depth).step_by(LENGTH) {
        let part = Part {
            a: &of.a[first..],
            b: &of.b[first..],
            lines: (a_line, b_line),
            length: LENGTH.min(depth - first),
            factors: (if first == 0 { beta } else { V::ONE }, alpha),
        };
        for col in (0..cols).step_by(AT_ONCE) {
            let mut row = 0;
            while row < rows {
                // SAFETY: rows by the match, columns by the bound.
                unsafe {
                    let c = c.add(row * line + col);
                    let of = Part { a: &part.a[row * a_line..], b: &part.b[col * b_line..], ..part };
                    let cols = AT_ONCE.min(cols - col);
                    row += match rows - row {
                        4.. => rows_of::<V, 4, 3>((c, line), of, cols),
                        2.. => rows_of::<V, 2, 6>((c, line), of, cols),
                        _ => rows_of::<V, 1, AT_ONCE>((c, line), of, cols),
                    };
                }
            }
        }
    }
}

/// Operands of sums over `length` terms, from their first row, column and term.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Part<'a, T> {
    a: &'a [T],
    b: &'a [T],
    lines: (usize, usize),
    length: usize,
    factors: (T, T),
}

/// `R` rows at `c` and so many columns, `J` at a time; returns `R`.
///
/// # Safety
/// As [`multiply`], and so many rows and columns are there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rows_of<V: Vector, const R: usize, const J: usize>(
    (c, line): (*mut V::Number, usize),
    of: Part<'_, V::Number>,
    cols: usize,
) -> usize {
    let mut col = 0;
    while col < cols {
        // SAFETY: what the caller answers for.
        unsafe {
            col += match cols - col >= J {
                true => store_dots::<V, R, J>((c.add(col), line), of, col),
                false => store_dots::<V, R, 1>((c.add(col), line), of, col),
            };
        }
    }
    R
}

/// `J` columns from `col` on, at `c`; returns `J`.
///
/// # Safety
/// As [`rows_of`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn store_dots<V: Vector, const R: usize, const J: usize>(
    (c, line): (*mut V::Number, usize),
    Part { a, b, lines, length, factors: (keep, scale) }: Part<'_, V::Number>,
    col: usize,
) -> usize {
    let sums = dots::<V, R, J>((a, lines.0), (&b[col * lines.1..], lines.1), length);
    for (r, sums) in sums.into_iter().enumerate() {
        for (j, sum) in sums.into_iter().enumerate() {
            // SAFETY: what the caller answers for.
            unsafe {
                let c = c.add(r * line + j);
                *c = if keep == V::ZERO { scale * sum } else { scale * sum + keep * *c };
            }
        }
    }
    J
}
