//! An orthonormal basis of the leading directions of rows, by subspace iteration on some of them.
use super::vectors::dot;
use crate::layers::gemm::Order;
use crate::layers::gemm::cpu::{Operands, product};
use rayon::prelude::*;

/// Rows of the sample.
const SAMPLE: usize = 2048;
/// Products with `XᵀX`; the directions need not be exact.
const ITERATIONS: usize = 3;

/// `count` orthonormal directions, `[count, d]`, of centred rows `[n, d]`, and the squares' share
/// of the sample that the first `leading` hold. A direction is zero where the sample has no more.
/// Bounds need them orthonormal, not leading.
pub(super) fn directions(rows: &[f32], d: usize, count: usize, leading: usize) -> (Vec<f32>, f64) {
    let step = (rows.len() / d).div_ceil(SAMPLE).max(1);
    let sample: Vec<f32> = rows.chunks_exact(d).step_by(step).flatten().copied().collect();
    let n = sample.len() / d;
    let mut basis = sample[..count.min(n) * d].to_vec();
    basis.resize(count * d, 0.);
    let mut shares = vec![0f32; count * n];
    let (line, transposed) = (Order::RowMajor { line: d }, Order::ColumnMajor { line: d });
    let plain = |a_order, b_order, cols, depth| {
        Operands::of((&[][..], a_order), (&[][..], b_order), [count, cols, depth])
    };
    let (to_shares, to_basis) =
        (plain(line, transposed, n, d), plain(Order::RowMajor { line: n }, line, d, n));
    orthonormalize(&mut basis, d);
    for _ in 0..ITERATIONS {
        product(&mut shares, Operands { a: &basis, b: &sample, ..to_shares });
        product(&mut basis, Operands { a: &shares, b: &sample, ..to_basis });
        orthonormalize(&mut basis, d);
    }
    // Once more for what rounding left in the first pass.
    orthonormalize(&mut basis, d);
    product(&mut shares, Operands { a: &basis, b: &sample, ..to_shares });
    let squares = |x: &[f32]| x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    let share = squares(&shares[..leading * n]) / squares(&sample);
    (basis, share)
}

/// Gram-Schmidt, each row taken out of all later ones; what is left of dependent rows becomes zero.
fn orthonormalize(basis: &mut [f32], d: usize) {
    /// What rounding leaves of a dependent row, as a share of its length.
    const REST: f32 = 1e-5;
    let lengths: Vec<f32> = basis.chunks(d).map(|row| dot(row, row).sqrt()).collect();
    for (i, length) in lengths.iter().enumerate() {
        let (before, after) = basis.split_at_mut((i + 1) * d);
        let own = &mut before[i * d..];
        let left = dot(own, own).sqrt();
        let scale = if left > REST * length { 1. / left } else { 0. };
        own.iter_mut().for_each(|x| *x *= scale);
        after.par_chunks_mut(d).with_min_len(16).for_each(|row| {
            let share = dot(own, row);
            row.iter_mut().zip(&*own).for_each(|(x, own)| *x -= share * own);
        });
    }
}
