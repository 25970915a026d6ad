//! The inner loops over atoms: greedy coordinate descent, sums of rows of the Gram matrix, and what
//! the gap needs.
//!
//! All arrays over atoms are padded to blocks of `W`. Padding has `q = a = 0` and an infinite
//! penalty, so that it never moves.
use crate::core::fused::{fma, fused};
use crate::core::real::Real;
use multiversion::multiversion;

/// Columns that a sum of rows keeps in registers, in blocks of `W`.
const BLOCKS: usize = 2;

/// Rows of `Ĝ`, `[padded]` each.
pub(super) trait Rows<T> {
    /// The number of atom `j`'s row among the [entries](Self::entries), which then has it.
    fn place(&mut self, j: usize) -> usize;
    /// The rows that there are, at distance [`stride`](Self::stride).
    fn entries(&self) -> &[T];
    fn stride(&self) -> usize;

    fn row<'a>(&'a mut self, j: usize) -> &'a [T]
    where
        T: 'a,
    {
        let start = self.place(j) * self.stride();
        &self.entries()[start..][..self.stride()]
    }
}

/// The state of coordinate descent on some atoms whose Gram matrix has a diagonal of 1.
pub(super) struct Coordinates<'a, T> {
    /// `q`, `a` and `β`, `[n]`
    pub q: &'a mut [T],
    pub a: &'a mut [T],
    pub beta: &'a [T],
}

/// `a*ⱼ − aⱼ`: how far a coordinate is from its minimiser.
#[inline(always)]
fn step<T: Real, const POSITIVE: bool>(q: T, a: T, beta: T) -> T {
    let z = q + a;
    let z = if z > beta { beta } else { z };
    // a* = z − clamp(z, −β, β)
    let z = if !POSITIVE && z < -beta { -beta } else { z };
    q - z
}

/// The minimiser `a*ⱼ` itself by the soft threshold, exactly 0 where it is 0.
#[inline(always)]
pub(super) fn minimiser<T: Real, const POSITIVE: bool>(q: T, a: T, beta: T) -> T {
    let z = q + a;
    if z > beta {
        z - beta
    } else if !POSITIVE && z < -beta {
        z + beta
    } else {
        T::zero()
    }
}

/// The largest step so far in each lane, and the block it is in.
struct Best<T, const W: usize> {
    size: [T; W],
    block: [u32; W],
}

impl<T: Real, const W: usize> Best<T, W> {
    #[inline(always)]
    fn new() -> Self {
        Self { size: [T::zero(); W], block: [0; W] }
    }

    // By value: arrays that are only read or only written in a loop stay in registers.
    #[inline(always)]
    fn see<const POSITIVE: bool>(self, b: u32, q: &[T; W], a: &[T; W], beta: &[T; W]) -> Self {
        let (mut size, mut block) = ([T::zero(); W], [0; W]);
        for i in 0..W {
            let step = step::<T, POSITIVE>(q[i], a[i], beta[i]).magnitude();
            let better = step > self.size[i];
            size[i] = if better { step } else { self.size[i] };
            block[i] = if better { b } else { self.block[i] };
        }
        Self { size, block }
    }

    /// The first atom with the largest step, and that step.
    #[inline(always)]
    fn first(&self) -> (usize, T) {
        let mut largest = T::Bits::default();
        for i in 0..W {
            largest = largest.max(self.size[i].bits());
        }
        let mut first = u32::MAX;
        for i in 0..W {
            let atom = self.block[i] * W as u32 + i as u32;
            first = first.min(if self.size[i].bits() == largest { atom } else { u32::MAX });
        }
        (first as usize, T::of_bits(largest))
    }
}

/// Moves the coordinate with the largest step to its minimiser, up to `most` times, while that step
/// is above `least`. Returns the number of moves; `seen` receives the moved atoms.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn descend<T: Real, G: Rows<T>, const POSITIVE: bool, const W: usize>(
    gram: &mut G,
    on: Coordinates<'_, T>,
    most: usize,
    least: T,
    seen: &mut Vec<u32>,
) -> usize {
    const FUSED: bool = fused!();
    let Coordinates { q, a, beta } = on;
    let beta = beta.as_chunks::<W>().0;
    let mut best = Best::<T, W>::new();
    for (b, ((q, a), beta)) in q.as_chunks::<W>().0.iter().zip(a.as_chunks::<W>().0).zip(beta).enumerate() {
        best = best.see::<POSITIVE>(b as u32, q, a, beta);
    }
    for moves in 0..most {
        let (j, size) = best.first();
        if size <= least {
            return moves;
        }
        let new = minimiser::<T, POSITIVE>(q[j], a[j], beta[j / W][j % W]);
        let by = new - a[j];
        a[j] = new;
        seen.push(j as u32);
        best = Best::new();
        let row = gram.row(j)[..q.len()].as_chunks::<W>().0;
        let columns = q.as_chunks_mut::<W>().0.iter_mut().zip(a.as_chunks::<W>().0).zip(beta).zip(row);
        for (b, (((q, a), beta), row)) in columns.enumerate() {
            let mut new = [T::zero(); W];
            for i in 0..W {
                new[i] = fma::<T, FUSED>(-by, row[i], q[i]);
            }
            *q = new;
            best = best.see::<POSITIVE>(b as u32, &new, a, beta);
        }
    }
    most
}

/// `q ← q − x · row`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn subtract_row<T: Real, const W: usize>(q: &mut [T], row: &[T], x: T) {
    const FUSED: bool = fused!();
    for (q, row) in q.as_chunks_mut::<W>().0.iter_mut().zip(row.as_chunks::<W>().0) {
        for i in 0..W {
            q[i] = fma::<T, FUSED>(-x, row[i], q[i]);
        }
    }
}

/// `out ← from − Σ x_k row_k` for rows of `gram` by their number, `[n]` at distance `stride`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn subtract_rows<T: Real, const W: usize>(
    out: &mut [T],
    from: &[T],
    gram: &[T],
    stride: usize,
    rows: &[u32],
    x: &[T],
) {
    const FUSED: bool = fused!();
    let wide = out.len() / (BLOCKS * W) * (BLOCKS * W);
    for start in (0..wide).step_by(BLOCKS * W) {
        let mut sums = [[T::zero(); W]; BLOCKS];
        for (b, sum) in sums.iter_mut().enumerate() {
            sum.copy_from_slice(&from[start + b * W..][..W]);
        }
        for (&row, &x) in rows.iter().zip(x) {
            let row = gram[row as usize * stride + start..][..BLOCKS * W].as_chunks::<W>().0;
            for b in 0..BLOCKS {
                for i in 0..W {
                    sums[b][i] = fma::<T, FUSED>(-x, row[b][i], sums[b][i]);
                }
            }
        }
        for (b, sum) in sums.iter().enumerate() {
            out[start + b * W..][..W].copy_from_slice(sum);
        }
    }
    for start in (wide..out.len()).step_by(W) {
        let mut sum = [T::zero(); W];
        sum.copy_from_slice(&from[start..][..W]);
        for (&row, &x) in rows.iter().zip(x) {
            let row = &gram[row as usize * stride + start..][..W];
            for i in 0..W {
                sum[i] = fma::<T, FUSED>(-x, row[i], sum[i]);
            }
        }
        out[start..][..W].copy_from_slice(&sum);
    }
}

/// [`subtract_rows`] with sums in f64.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn subtract_rows_in_f64<T: Real, const W: usize>(
    out: &mut [T],
    from: &[T],
    gram: &[T],
    stride: usize,
    rows: &[u32],
    x: &[T],
) {
    const FUSED: bool = fused!();
    let columns = out.as_chunks_mut::<W>().0.iter_mut().zip(from.as_chunks::<W>().0);
    for (b, (out, from)) in columns.enumerate() {
        let mut sum = from.map(T::to_f64);
        for (&row, &x) in rows.iter().zip(x) {
            let row = &gram[row as usize * stride + b * W..][..W];
            for i in 0..W {
                sum[i] = fma::<f64, FUSED>(-x.to_f64(), row[i].to_f64(), sum[i]);
            }
        }
        *out = sum.map(T::from_f64);
    }
}

/// The largest `|qⱼ| · scaleⱼ` (`POSITIVE`: of positive `qⱼ`), 0 where there is none.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn largest<T: Real, const POSITIVE: bool, const W: usize>(q: &[T], scale: &[T]) -> T {
    let mut largest = [T::zero(); W];
    for (q, scale) in q.as_chunks::<W>().0.iter().zip(scale.as_chunks::<W>().0) {
        let mut new = [T::zero(); W];
        for i in 0..W {
            let size = if POSITIVE { q[i] } else { q[i].magnitude() } * scale[i];
            new[i] = if size > largest[i] { size } else { largest[i] };
        }
        largest = new;
    }
    largest.iter().fold(T::zero(), |a, &b| if b > a { b } else { a })
}
