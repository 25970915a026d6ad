//! Products of numbers that are sums of two 16-bit numbers.
use super::{Factors, Precision, gemm_};
use candle::{DType, Result, Tensor};

const OP: &str = "gemm_parts_";
/// Terms that tensor cores sum before an f32 addition that rounds: each of their own sums is cut
/// off, not rounded, at about 2⁻²⁴ of it, and the loss adds up.
const EXACT_TERMS: usize = 64;
/// The same where `a` has one part, such as states of 0 and 1: most terms are small, and what is
/// cut off is less.
const EXACT_STATE_TERMS: usize = 2048;

/// The sizes of a product of numbers in parts: `[a_parts, m, k]` times `[b_parts, k, n]`.
pub(crate) struct PartSizes {
    pub a_parts: usize,
    pub b_parts: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

impl PartSizes {
    pub(crate) fn of(a: &Tensor, b: &Tensor) -> Result<Self> {
        let (a_parts, m, k) = match *a.dims() {
            [parts @ (1 | 2), m, k] => (parts, m, k),
            _ => candle::bail!("{OP}: a must have shape [1 or 2, m, k], got {:?}", a.dims()),
        };
        let (b_parts, n) = match *b.dims() {
            [parts @ (1 | 2), b_k, n] if b_k == k => (parts, n),
            _ => candle::bail!("{OP}: b must have shape [1 or 2, {k}, n], got {:?}", b.dims()),
        };
        if k == 0 {
            candle::bail!("{OP}: k must be at least 1, got a {:?} and b {:?}", a.dims(), b.dims())
        }
        if let Some(t) = [a, b].into_iter().find(|t| !matches!(t.dtype(), DType::BF16 | DType::F16)) {
            candle::bail!("{OP}: a and b must be bf16 or f16, got {:?}", t.dtype())
        }
        Ok(Self { a_parts, b_parts, m, k, n })
    }
}

/// `c ← scale · (Σ a_i) (Σ b_j)`. The product of the two second parts is skipped, because it is
/// below the last bit of f32.
///
/// `c` is contiguous f32 `[m, n]`; `a` is `[1 or 2, m, k]` and `b` `[1 or 2, k, n]`, bf16 or f16,
/// each part contiguous or the transposed view of a contiguous matrix. With two parts in `b`, made
/// by [`split_into_`](crate::arrays::split_into_), the relative error is at most that of an f32
/// product: long sums are split, since tensor cores truncate where f32 rounds. With one part each,
/// it is [`gemm_`] with bf16 or f16 operands.
///
/// Cost: `2mnk` FLOP of the tensor cores for each pair of parts.
///
/// # Errors
/// When shapes, types, devices or layouts do not fit.
pub fn gemm_parts_(c: &Tensor, a: &Tensor, b: &Tensor, scale: f32) -> Result<()> {
    let PartSizes { a_parts, b_parts, k, .. } = PartSizes::of(a, b)?;
    let mut beta = 0.;
    let mut add = |a: &Tensor, b: &Tensor| {
        let factors = Factors::Host { alpha: scale.into(), beta };
        beta = 1.;
        gemm_(c, a, b, factors, Precision::F32)
    };
    // Not `get`, which copies where a part is a transposed view.
    let part = |t: &Tensor, i: usize| t.narrow(0, i, 1)?.squeeze(0);
    let (a_high, b_high) = (part(a, 0)?, part(b, 0)?);
    // The small ones first.
    if b_parts == 2 {
        add(&a_high, &part(b, 1)?)?;
    }
    if a_parts == 2 {
        add(&part(a, 1)?, &b_high)?;
    }
    let longest = match (a_parts, b_parts) {
        (1, 1) => k.max(1),
        (1, _) => EXACT_STATE_TERMS,
        _ => EXACT_TERMS,
    };
    let length = k.div_ceil(k.div_ceil(longest)).next_multiple_of(16);
    for start in (0..k).step_by(length) {
        let n = length.min(k - start);
        add(&a_high.narrow(1, start, n)?, &b_high.narrow(0, start, n)?)?;
    }
    Ok(())
}
