//! Elementary functions in f32 that give the same bits on the CPU and on CUDA.
//!
//! Every function is a fixed sequence of IEEE additions, products, quotients and square roots, each
//! rounded to nearest: there are no fused operations, no calls of vendor libraries and no branches,
//! so that the compiler can vectorise a loop over them. `kernels/core/math.cuh` holds the same
//! sequences. A NaN argument gives a NaN (its payload may differ between devices).
//!
//! | function          | range of the argument | error against f64    |
//! |-------------------|-----------------------|----------------------|
//! | [`exp`]           | all                   | < 1.1 ulp            |
//! | [`ln`]            | all                   | < 1 ulp              |
//! | [`sigmoid`]       | all                   | < 2.5 ulp            |
//! | [`softplus`]      | all                   | < 2 ulp              |
//! | [`sin_cos_turns`] | ±2²⁰ turns            | < 1e-7 absolute      |
//!
//! Sources: exp, sin and cos use the range reduction and the polynomials of Cephes (Moshier 1989,
//! `expf.c`, `sinf.c`), ln those of FreeBSD's `e_logf.c` (Sun 1993).
//!
//! ```
//! use chandlery_ops::core::math::{exp, ln, sigmoid};
//! assert_eq!((exp(0.), ln(1.), sigmoid(0.)), (1., 0., 0.5));
//! assert_eq!(exp(-1e9), 0.);
//! assert!(exp(f32::NAN).is_nan());
//! ```

// The coefficients are written as their sources print them.
#![allow(clippy::excessive_precision)]

/// 1.5 · 2²³: adding it to a small number rounds that number to an integer, which is then in the
/// lowest bits.
const ROUNDER: f32 = 12_582_912.;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has 9 bits, so that its product with an exponent is exact.
const EXP_LN2_HI: f32 = 0.693_359_375;
const EXP_LN2_LO: f32 = -2.121_944_40e-4;
/// ln 2 in two parts, the split of `e_logf.c`.
const LOG_LN2_HI: f32 = 6.931_381_225_6e-1;
const LOG_LN2_LO: f32 = 9.058_000_614_5e-6;
/// The bits of sqrt(1/2), just below.
const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
const TAU: f32 = std::f32::consts::TAU;

/// `eˣ`: 0 below -103.98, infinite above 88.72, subnormal results rounded once.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Comparisons are written so that a NaN stays.
    let x = if x > 89.5 { 89.5 } else { x };
    let x = if x < -105. { -105. } else { x };
    let shifted = x * LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * EXP_LN2_HI;
    let r = r - n * EXP_LN2_LO;
    let p = 1.987_569_150_0e-4 * r + 1.398_199_950_7e-3;
    let p = p * r + 8.333_451_907_3e-3;
    let p = p * r + 4.166_579_589_4e-2;
    let p = p * r + 1.666_666_545_9e-1;
    let p = p * r + 5.000_000_120_1e-1;
    let y = (p * (r * r) + r) + 1.;
    // 2ⁿ in two factors: n runs from -151 to 129, further than one exponent reaches.
    let n = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
    let half = n >> 1;
    (y * power_of_two(half)) * power_of_two(n.wrapping_sub(half))
}

/// 2ⁿ for -126 ≤ n ≤ 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// The natural logarithm: -∞ at ±0, NaN for negative arguments, infinite at infinity; subnormal
/// arguments lose no accuracy.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 33_554_432. } else { x };
    let y = ln_normal(scaled, if tiny { -25. } else { 0. });
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0. { f32::NEG_INFINITY } else { y };
    // Also true for a NaN.
    if x >= 0. { y } else { f32::NAN }
}

/// `ln x + exponent · ln 2` for finite `x ≥ 2⁻¹²⁶`.
///
/// With `x = 2ᵏ m`, `m` in `[√½, √2)`, `f = m - 1`, `s = f / (2 + f)`:
/// `ln m = f - f²/2 + s (f²/2 + R(s²))`.
#[inline(always)]
fn ln_normal(x: f32, exponent: f32) -> f32 {
    let bits = x.to_bits().wrapping_add(0x3f80_0000 - SQRT_HALF_BITS);
    let k = ((bits >> 23) as i32 - 127) as f32 + exponent;
    let m = f32::from_bits((bits & 0x007f_ffff) + SQRT_HALF_BITS);
    let f = m - 1.;
    let s = f / (2. + f);
    let z = s * s;
    let w = z * z;
    let even = z * (0.666_666_626_93 + w * 0.284_987_866_88);
    let odd = w * (0.400_009_721_52 + w * 0.242_790_788_41);
    let r = even + odd;
    let half_square = 0.5 * f * f;
    s * (half_square + r) + k * LOG_LN2_LO - half_square + f + k * LOG_LN2_HI
}

/// `1 / (1 + e⁻ˣ)` in `[0, 1]`, with full relative accuracy for negative `x`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs()); // in [0, 1]
    let numerator = if x < 0. { e } else { 1. };
    // For a NaN the denominator is one.
    numerator / (1. + e)
}

/// `ln(1 + eˣ)`, the free energy of one binary unit up to its sign; equals `x` where that is the
/// nearest number.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let e = exp(-x.abs());
    let u = 1. + e;
    let lost = e - (u - 1.); // what rounding u lost; its part of the logarithm is lost / u
    let positive = if x > 0. { x } else { 0. };
    positive + (ln_normal(u, 0.) + lost / u)
}

/// `(sin 2πu, cos 2πu)`: an angle in turns, for `|u| ≤ 2²⁰`.
#[inline(always)]
pub fn sin_cos_turns(u: f32) -> (f32, f32) {
    let shifted = 4. * u + ROUNDER;
    let quarters = shifted - ROUNDER;
    let angle = (u - 0.25 * quarters) * TAU; // in [-π/4, π/4]; the difference is exact
    let z = angle * angle;
    let s = (-1.951_529_589_1e-4 * z + 8.332_160_873_6e-3) * z - 1.666_665_461_1e-1;
    let s = s * z * angle + angle;
    let c = (2.443_315_711_809_948e-5 * z - 1.388_731_625_493_765e-3) * z + 4.166_664_568_298_827e-2;
    let c = c * z * z - 0.5 * z + 1.;
    let quadrant = shifted.to_bits(); // its two lowest bits
    let odd = quadrant & 1 != 0;
    let (sin, cos) = (if odd { c } else { s }, if odd { s } else { c });
    let sin_sign = (quadrant & 2) << 30;
    let cos_sign = (quadrant.wrapping_add(1) & 2) << 30;
    (f32::from_bits(sin.to_bits() ^ sin_sign), f32::from_bits(cos.to_bits() ^ cos_sign))
}

/// A random word as a multiple of 2⁻²⁴ in `[0, 1)`: its upper 24 bits.
#[inline(always)]
pub fn uniform_of(word: u32) -> f32 {
    (word >> 8) as i32 as f32 * (1. / 16_777_216.)
}

/// Two random words as two independent draws from the normal distribution (Box and Muller 1958).
///
/// The radius takes all 32 bits of the first word, so that the tails reach 6.7 standard deviations.
#[inline(always)]
pub fn normal_of(word0: u32, word1: u32) -> (f32, f32) {
    const SCALE: f32 = 1. / 4_294_967_296.;
    let u = word0 as f32 * SCALE + 0.5 * SCALE; // in (0, 1]
    let radius = (-2. * ln_normal(u, 0.)).sqrt();
    let (sin, cos) = sin_cos_turns(uniform_of(word1));
    (radius * cos, radius * sin)
}
