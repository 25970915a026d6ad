//! The product on the CPU: the result is cut into blocks, and the `gemm` crate computes each block
//! on one thread.
//!
//! ```text
//! c[I, J] ← alpha · a[I, :] b[:, J] + beta · c[I, J]        a block: rows I, columns J, and all of k
//! ```
//!
//! In the threaded mode of the crate, threads wait while one of them packs an operand. Here every
//! block packs its own operands in parallel, and an RBM's products run at 9/10 of the peak of every
//! core. The blocks depend only on the sizes and never split a sum, so the result is the same bits
//! on any number of threads.
//!
//! Cost: `2mnk` FLOP, and `(rows + cols) · k` entries packed for a block.
use super::Order;
pub(crate) use super::few::Operands;
use super::few::{self, Form};
use candle::WithDType;
use rayon::prelude::*;
use std::ops::Range;

/// Columns of a block. Each packs its own columns of `b`, and the crate reads a row-major `a` as it
/// lies, so that narrow blocks do no work twice.
const WIDTH: usize = 48;
/// Results with fewer columns take a transposed `a` as it is; for others it is copied, once for all
/// blocks, which the crate would else do for each.
const COPIED_FROM: usize = 32;
/// Least and most rows of a block: `b` is packed for each.
const ROWS: std::ops::RangeInclusive<usize> = 126..=504;
/// Blocks that keep the threads busy; rows are not cut further for more.
const BLOCKS: usize = 32;
/// A register tile of the crate's kernels is a divisor of these: up to 6 rows, and 16 columns or
/// multiples of them.
const TILE: (usize, usize) = (6, 16);
/// FLOP that are worth a task: some 30 µs, where waking a thread takes 10.
const GRAIN: usize = 2_000_000;
/// Of a copy: rows and columns that are in the cache at once, and stripes of so many rows that are
/// worth a task.
const SIDE: usize = 16;
const LEAST_STRIPES: usize = 4;

/// `c ← alpha · a b + beta · c`, with `c` `[rows, cols]`.
///
/// # Panics
/// When a slice is shorter than its matrix.
pub(crate) fn product<T: WithDType>(c: &mut [T], operands: Operands<'_, T>) {
    let copy = operands.row_major_a();
    let operands = operands.with_row_major_a(copy.as_deref());
    let task = Task::new(c, operands);
    // SAFETY: the blocks of a cut are within the matrix, and disjoint.
    task.for_each_block(|rows, cols| unsafe { task.multiply(rows, cols) });
}

/// [`product`] on this thread alone, for a part of a larger work.
///
/// # Panics
/// When a slice is shorter than its matrix.
pub(crate) fn product_alone<T: WithDType>(c: &mut [T], operands: Operands<'_, T>) {
    let task = Task::new(c, operands);
    if operands.rows * operands.cols > 0 {
        // SAFETY: the one block is the whole matrix, which is borrowed mutably.
        unsafe { task.multiply(0..operands.rows, 0..operands.cols) }
    }
}

/// [`product`], and then `then(w, c)` for each stretch of a row of `c` and the same entries of `w`,
/// `[rows, cols]`, while they are still in the cache.
///
/// # Panics
/// When a slice is shorter than its matrix.
pub(crate) fn product_then<T: WithDType>(
    c: &mut [T],
    w: &mut [T],
    operands: Operands<'_, T>,
    then: impl Fn(&mut [T], &mut [T]) + Sync,
) {
    let copy = operands.row_major_a();
    let operands = operands.with_row_major_a(copy.as_deref());
    let (n, task) = (operands.cols, Task::new(c, operands));
    let w = Entries::of(&mut w[..operands.rows * n]);
    task.for_each_block(|rows, cols| {
        // SAFETY: as in `product`.
        unsafe { task.multiply(rows.clone(), cols.clone()) };
        for row in rows {
            let (at, len) = (row * n + cols.start, cols.len());
            // SAFETY: row and columns are within both matrices, `c` and `w` are borrowed mutably
            // and not the same, and the blocks of a cut are disjoint.
            let (w, c) = unsafe { (w.stretch(at, len), task.c.stretch(at, len)) };
            then(w, c);
        }
    });
}

impl<'a, T: WithDType> Operands<'a, T> {
    /// How few rows or terms are multiplied as they lie.
    fn form(&self) -> Option<Form> {
        Form::of(T::DTYPE, self.a_order, self.b_order, [self.rows, self.cols, self.depth])
    }

    /// A row-major copy of `a`, where that is worth it.
    fn row_major_a(&self) -> Option<Vec<T>> {
        match self.a_order {
            _ if self.form().is_some() => None,
            Order::ColumnMajor { line } if self.cols >= COPIED_FROM && self.rows > 1 && self.depth > 1 => {
                Some(transposed(self.a, line, self.rows, self.depth))
            }
            _ => None,
        }
    }

    fn with_row_major_a(self, copy: Option<&'a [T]>) -> Self {
        match copy {
            Some(a) => Self { a, a_order: Order::RowMajor { line: self.depth }, ..self },
            None => self,
        }
    }
}

/// Lines `[depth]` at distance `line`, of which the first `rows` entries are wanted, as rows
/// `[rows, depth]`.
fn transposed<T: WithDType>(x: &[T], line: usize, rows: usize, depth: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(rows * depth);
    let places = &mut out.spare_capacity_mut()[..rows * depth];
    places.par_chunks_mut(SIDE * depth).with_min_len(LEAST_STRIPES).enumerate().for_each(|(i, out)| {
        let first = i * SIDE;
        for start in (0..depth).step_by(SIDE) {
            for d in start..depth.min(start + SIDE) {
                let x = &x[d * line + first..];
                for (out, &x) in out.chunks_exact_mut(depth).zip(x) {
                    out[d].write(x);
                }
            }
        }
    });
    // SAFETY: the chunks cover the rows, and each has written all of its entries: `x` holds `rows`
    // entries of every line.
    unsafe { out.set_len(rows * depth) };
    out
}

/// The entries of a matrix that several threads write, each its own.
#[derive(Clone, Copy)]
pub(crate) struct Entries<T>(*mut T);

// SAFETY: a pointer to numbers that is only followed through `stretch`, whose callers keep to
// places of their own.
unsafe impl<T: Send> Send for Entries<T> {}
// SAFETY: the same.
unsafe impl<T: Send> Sync for Entries<T> {}

impl<T> Entries<T> {
    pub(crate) fn of(matrix: &mut [T]) -> Self {
        Self(matrix.as_mut_ptr())
    }

    /// Entries `at..at + len`.
    ///
    /// # Safety
    /// They are within the matrix, which is borrowed mutably for `'a`, and no other stretch that is
    /// in use meets them.
    pub(crate) unsafe fn stretch<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        // SAFETY: what the caller answers for.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// A product and where its result goes.
struct Task<'a, T> {
    c: Entries<T>,
    operands: Operands<'a, T>,
    form: Option<Form>,
}

impl<'a, T: WithDType> Task<'a, T> {
    /// Cuts the slices to what the sizes reach.
    fn new(c: &mut [T], mut operands: Operands<'a, T>) -> Self {
        let Operands { a, b, rows, cols, depth, .. } = operands;
        operands.a = &a[..operands.a_order.span(rows, depth)];
        operands.b = &b[..operands.b_order.span(depth, cols)];
        Self { c: Entries::of(&mut c[..rows * cols]), operands, form: operands.form() }
    }

    /// Calls `f(rows, columns)` for each block, on all of rayon's threads.
    fn for_each_block(&self, f: impl Fn(Range<usize>, Range<usize>) + Sync) {
        let Operands { rows, cols, .. } = self.operands;
        let (height, width) = block(self.form, rows, cols, self.operands.depth);
        let (down, across) = (rows.div_ceil(height), cols.div_ceil(width));
        let stretch = |i: usize, size: usize, end: usize| i * size..end.min((i + 1) * size);
        let run = |i: usize| f(stretch(i / across, height, rows), stretch(i % across, width, cols));
        match down * across {
            1 => run(0),
            blocks => (0..blocks).into_par_iter().with_max_len(1).for_each(run),
        }
    }

    /// Makes the entries of the result in `rows` and `cols`.
    ///
    /// # Safety
    /// The ranges are not empty and within the matrix, and no other thread reads or writes these
    /// entries.
    unsafe fn multiply(&self, rows: Range<usize>, cols: Range<usize>) {
        let Operands { a, a_order, b, b_order, cols: line, depth, alpha, beta, .. } = self.operands;
        let ((a_row, a_col), (b_row, b_col)) = (a_order.strides(), b_order.strides());
        let (a, b) = (&a[rows.start * a_row..], &b[cols.start * b_col..]);
        // SAFETY: the first entry of the block is within the result.
        let c = unsafe { self.c.0.add(rows.start * line + cols.start) };
        if let Some(form) = self.form {
            let block = Operands { a, b, rows: rows.len(), cols: cols.len(), ..self.operands };
            // SAFETY: there is a form for f32 alone, where the processor has the instructions; the
            // entries are the caller's alone.
            return unsafe { few::multiply(form, c, line, block) };
        }
        // SAFETY: `new` cut the slices to what all rows and columns reach, so that the ones asked
        // for are within; those of the result are the caller's alone.
        unsafe {
            gemm::gemm(
                rows.len(),
                cols.len(),
                depth,
                c,
                1,
                line as isize,
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
                gemm::Parallelism::None,
            )
        }
    }
}

/// Rows and columns of a block, from form and sizes alone.
fn block(form: Option<Form>, rows: usize, cols: usize, depth: usize) -> (usize, usize) {
    if let Some(form) = form {
        return form.block([rows, cols, depth], GRAIN);
    }
    let across = cols.div_ceil(WIDTH);
    let down = BLOCKS.div_ceil(across).min(rows.div_ceil(*ROWS.start())).max(rows.div_ceil(*ROWS.end()));
    let (height, width) = (share(rows, down, TILE.0), share(cols, across, TILE.1));
    // Blocks with less than a grain are joined, first along a row.
    let times = |width: usize| GRAIN.div_ceil((2 * height * width).saturating_mul(depth));
    let width = cols.min(width.saturating_mul(times(width)));
    (rows.min(height.saturating_mul(times(width))), width)
}

/// Whether a product is one block, and its `a` is copied by one thread if it is.
pub(crate) fn is_serial(form: Option<Form>, rows: usize, cols: usize, depth: usize) -> bool {
    block(form, rows, cols, depth) == (rows, cols) && (form.is_some() || rows <= SIDE * LEAST_STRIPES)
}

/// The size of one of `parts` equal parts of `n`, in whole tiles.
fn share(n: usize, parts: usize, tile: usize) -> usize {
    n.div_ceil(parts).next_multiple_of(tile).min(n)
}
