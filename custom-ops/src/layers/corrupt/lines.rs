//! Where the values of rows and of their corrupted versions lie.
use super::OP;
use crate::arrays::scale::{check_parts, expect_apart};
use crate::core::check::{expect, expect_dtype};
use candle::{DType, Result, Tensor};

/// Elements that a block of Philox has draws for.
const ELEMENTS: usize = 4;

/// Where rows and each part of the result lie: in runs, of lines that may have gaps between them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines {
    /// Runs, the entries of one, and how far on the next one of the result begins.
    pub(super) runs: usize,
    pub(super) len: usize,
    pub(super) apart: usize,
    /// Entries of a line, and how far on the next one begins.
    pub(super) width: usize,
    pub(super) line: usize,
    /// How far on the numbers of the next run's elements begin.
    pub(super) numbers: usize,
}

impl Lines {
    /// All in one.
    pub(super) fn whole(len: usize) -> Self {
        Self { runs: 1, len, apart: len, width: len, line: len, numbers: len }
    }

    /// The same with a run for each of `n` minibatches, which has draws of whole blocks.
    pub(super) fn by_minibatch(self, n: usize) -> Self {
        if self.runs * self.len == 0 {
            return self;
        }
        let len = self.runs * self.len / n;
        let split = match self {
            Self { runs, .. } if runs == n => self,
            Self { width, line, .. } if width == line => Self { runs: n, ..Self::whole(len) },
            Self { width, line, .. } => Self { runs: n, len, apart: len / width * line, ..self },
        };
        Self { numbers: len.next_multiple_of(ELEMENTS), ..split }
    }

    /// The runs of each part of `out`, `[1, ..rows]` or `[2, ..rows]`: the whole part, or one for each
    /// entry of the first dimension of `rows`.
    pub(super) fn of_parts(out: &Tensor, rows: &Tensor) -> Result<Self> {
        let whole = out.rank() < 3 || out.dims()[1] == 0 || out.narrow(0, 0, 1)?.is_contiguous();
        if whole || out.dims()[1..] != *rows.dims() {
            check_out(out, rows.dims())?;
            return Ok(Self::whole(rows.elem_count()));
        }
        let one = rows.narrow(0, 0, 1)?;
        check_out(&out.narrow(1, 0, 1)?, one.dims())?;
        let lines = Self { runs: rows.dim(0)?, apart: out.stride()[1], ..Self::whole(one.elem_count()) };
        if out.dims()[0] > 1 {
            expect_apart(OP, out, lines.span())?;
        }
        Ok(lines)
    }

    /// Those of some columns of wider rows; none where rows have no gaps.
    pub(super) fn of_columns(out: &Tensor, rows: &Tensor) -> Result<Option<Self>> {
        let (dims, stride) = (rows.dims(), rows.stride());
        let ([rest @ .., width], false) = (dims, rows.is_contiguous()) else { return Ok(None) };
        let lowest = rest.iter().zip(stride).rfind(|(n, _)| **n > 1);
        let (width, line) = (*width, lowest.map_or(0, |(_, line)| *line));
        if line < width || !has_lines(dims, stride, line) {
            return Ok(None);
        }
        expect_dtype(OP, "rows", rows, &[DType::F32])?;
        let len = rows.elem_count();
        let lines = Self { runs: 1, len, apart: 0, width, line, numbers: len };
        let found = match (out.dtype(), out.dims(), out.stride()) {
            (DType::F32, of, by) => (of == dims && has_lines(of, by, line)).then_some(lines),
            (DType::F16, &[parts, ref of @ ..], [_, by @ ..]) if of == dims && (1..=2).contains(&parts) => {
                lines.within_part(by, dims)
            }
            (DType::BF16, [1, of @ ..], [_, by @ ..]) if of == dims => lines.within_part(by, dims),
            _ => None,
        };
        let Some(lines) = found else {
            candle::bail!(
                "{OP}: out must be as many columns of as wide rows as rows, f32, f16 or bf16, got {:?} {:?} with strides {:?} for {dims:?} with {stride:?}",
                out.dtype(),
                out.dims(),
                out.stride()
            )
        };
        if out.dims()[0] == 2 && out.dtype() == DType::F16 {
            expect_apart(OP, out, lines.span())?;
        }
        Ok(Some(lines))
    }

    /// The same with the runs of a part of the result, whose strides these are.
    fn within_part(self, stride: &[usize], dims: &[usize]) -> Option<Self> {
        if has_lines(dims, stride, self.line) {
            return Some(self);
        }
        let (&[runs, ref of @ ..], &[apart, ref by @ ..]) = (dims, stride) else { return None };
        let len = of.iter().product();
        let lines = Self { runs, len, apart, numbers: len, ..self };
        let one = Self { runs: 1, ..lines };
        (of.len() > 1 && has_lines(of, by, self.line) && apart >= one.span()).then_some(lines)
    }

    /// Lines of a run.
    pub(super) fn of_run(self) -> usize {
        self.len / self.width.max(1)
    }

    /// Entries from the first of a part of the result to the last.
    pub(super) fn span(self) -> usize {
        (self.runs - 1) * self.apart + (self.of_run().max(1) - 1) * self.line + self.width
    }

    /// The number of the first element of line `i`, counted from that of line 0.
    pub(super) fn element(self, i: usize) -> usize {
        i / self.of_run() * self.numbers + i % self.of_run() * self.width
    }

    /// Where line `i` of a part of the result begins.
    pub(super) fn at(self, i: usize) -> usize {
        i / self.of_run() * self.apart + i % self.of_run() * self.line
    }
}

/// Whether these are lines of the last dimension without gaps within, all of them so far apart.
fn has_lines(dims: &[usize], stride: &[usize], line: usize) -> bool {
    let ([rest @ .., width], [strides @ .., last]) = (dims, stride) else { return false };
    let mut next = line;
    (*last == 1 || *width == 1)
        && rest.iter().zip(strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == next;
            next *= n;
            fits
        })
}

/// Checks the parts of a result of 16 bits.
fn check_out(out: &Tensor, shape: &[usize]) -> Result<()> {
    if let (DType::F16, [2, ..]) = (out.dtype(), out.dims()) {
        return check_parts(OP, out, shape);
    }
    let shape: Vec<usize> = [1].iter().chain(shape).copied().collect();
    expect(OP, "out", out, &[DType::F16, DType::BF16], &shape)
}
