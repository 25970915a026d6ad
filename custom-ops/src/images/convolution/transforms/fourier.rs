//! Fourier transforms of `T` places, several at once: one in each lane.
//!
//! ```text
//! forward     X(k) = Σ_j x(j) e^(−2πi jk/T)
//! backward    x(j) = Σ_k X(k) e^(2πi jk/T)       T times what it was
//! ```
//!
//! By steps of four, and one of two for `T = 32` (Cooley and Tukey, "An algorithm for the machine
//! calculation of complex Fourier series", 1965). Frequencies lie where the steps leave them, see
//! [`Order`]; the way back takes them from there, so that none is moved.
use crate::core::fused::fma;
use std::f64::consts::TAU;
use std::sync::LazyLock;

/// The most places of a transform.
pub(super) const LONGEST: usize = 32;

/// `e^(−2πi j/32)`.
pub(super) type Roots = [[f32; 2]; LONGEST];

/// The roots of all transforms.
pub(super) fn roots() -> &'static Roots {
    static ROOTS: LazyLock<Roots> = LazyLock::new(|| {
        std::array::from_fn(|j| {
            let (sin, cos) = (TAU * j as f64 / LONGEST as f64).sin_cos();
            [cos as f32, -sin as f32]
        })
    });
    &ROOTS
}

/// Real or imaginary parts of `T` places.
pub(super) type Part<const L: usize, const T: usize> = [[f32; L]; T];

/// Where frequencies lie.
pub(super) struct Order<const T: usize>;

impl<const T: usize> Order<T> {
    /// The place of each frequency.
    pub(super) const PLACES: [usize; T] = {
        let mut places = [0; T];
        let mut place = 0;
        while place < T {
            let (mut rest, mut span, mut unit, mut frequency) = (place, T, 1, 0);
            while span >= 4 {
                span /= 4;
                frequency += rest / span * unit;
                rest %= span;
                unit *= 4;
            }
            places[frequency + rest * unit] = place;
            place += 1;
        }
        places
    };
}

/// `x` to `X`.
#[inline(always)]
pub(super) fn forward<const L: usize, const T: usize, const FUSED: bool>(
    re: &mut Part<L, T>,
    im: &mut Part<L, T>,
    roots: &Roots,
) {
    let mut span = T;
    while span >= 4 {
        let quarter = span / 4;
        for start in (0..T).step_by(span) {
            split_four::<L, T, FUSED, false>(re, im, [start, quarter], [[0.; 2]; 3]);
        }
        for j in 1..quarter {
            let turns = [1, 2, 3].map(|s| roots[s * j * (LONGEST / span)]);
            for start in (0..T).step_by(span) {
                split_four::<L, T, FUSED, true>(re, im, [start + j, quarter], turns);
            }
        }
        span = quarter;
    }
    if span == 2 {
        halves(re, im);
    }
}

/// `X` to `T x`.
#[inline(always)]
pub(super) fn backward<const L: usize, const T: usize, const FUSED: bool>(
    re: &mut Part<L, T>,
    im: &mut Part<L, T>,
    roots: &Roots,
) {
    let mut span = 4;
    if T.trailing_zeros() % 2 == 1 {
        halves(re, im);
        span = 8;
    }
    while span <= T {
        let quarter = span / 4;
        for start in (0..T).step_by(span) {
            join_four::<L, T, FUSED, false>(re, im, [start, quarter], [[0.; 2]; 3]);
        }
        for j in 1..quarter {
            let turns = [1, 2, 3].map(|s| roots[s * j * (LONGEST / span)]);
            for start in (0..T).step_by(span) {
                join_four::<L, T, FUSED, true>(re, im, [start + j, quarter], turns);
            }
        }
        span *= 4;
    }
}

/// Sums and differences of neighbours.
#[inline(always)]
fn halves<const L: usize, const T: usize>(re: &mut Part<L, T>, im: &mut Part<L, T>) {
    for part in [re, im] {
        for pair in part.as_chunks_mut::<2>().0 {
            let [a, b] = *pair;
            for l in 0..L {
                pair[0][l] = a[l] + b[l];
                pair[1][l] = a[l] - b[l];
            }
        }
    }
}

/// `(re + i im) (c + i s)`.
#[inline(always)]
fn turned<const FUSED: bool>([re, im]: [f32; 2], [c, s]: [f32; 2]) -> [f32; 2] {
    [fma::<f32, FUSED>(re, c, -(im * s)), fma::<f32, FUSED>(re, s, im * c)]
}

/// The transform of four numbers, forward.
#[inline(always)]
fn four([a, b, c, d]: [[f32; 2]; 4]) -> [[f32; 2]; 4] {
    let (even, odd) = ([a[0] + c[0], a[1] + c[1]], [b[0] + d[0], b[1] + d[1]]);
    let (across, beside) = ([a[0] - c[0], a[1] - c[1]], [b[0] - d[0], b[1] - d[1]]);
    [
        [even[0] + odd[0], even[1] + odd[1]],
        [across[0] + beside[1], across[1] - beside[0]],
        [even[0] - odd[0], even[1] - odd[1]],
        [across[0] - beside[1], across[1] + beside[0]],
    ]
}

/// A step of four numbers, `quarter` places apart; the last three are then turned.
#[inline(always)]
fn split_four<const L: usize, const T: usize, const FUSED: bool, const TURN: bool>(
    re: &mut Part<L, T>,
    im: &mut Part<L, T>,
    [first, quarter]: [usize; 2],
    turns: [[f32; 2]; 3],
) {
    let at = [0, 1, 2, 3].map(|s| first + s * quarter);
    let (r, i) = (at.map(|at| re[at]), at.map(|at| im[at]));
    let (mut to_r, mut to_i) = (r, i);
    for l in 0..L {
        let mut to = four([0, 1, 2, 3].map(|s| [r[s][l], i[s][l]]));
        if TURN {
            for s in 1..4 {
                to[s] = turned::<FUSED>(to[s], turns[s - 1]);
            }
        }
        for s in 0..4 {
            [to_r[s][l], to_i[s][l]] = to[s];
        }
    }
    for s in 0..4 {
        (re[at[s]], im[at[s]]) = (to_r[s], to_i[s]);
    }
}

/// The step back: the last three are first turned the other way.
#[inline(always)]
fn join_four<const L: usize, const T: usize, const FUSED: bool, const TURN: bool>(
    re: &mut Part<L, T>,
    im: &mut Part<L, T>,
    [first, quarter]: [usize; 2],
    turns: [[f32; 2]; 3],
) {
    let at = [0, 1, 2, 3].map(|s| first + s * quarter);
    let (r, i) = (at.map(|at| re[at]), at.map(|at| im[at]));
    let (mut to_r, mut to_i) = (r, i);
    for l in 0..L {
        let mut from = [0, 1, 2, 3].map(|s| [r[s][l], i[s][l]]);
        if TURN {
            for s in 1..4 {
                let [c, s_] = turns[s - 1];
                from[s] = turned::<FUSED>(from[s], [c, -s_]);
            }
        }
        // The other way the second and the last are exchanged.
        let [x0, x3, x2, x1] = four(from);
        let to = [x0, x1, x2, x3];
        for s in 0..4 {
            [to_r[s][l], to_i[s][l]] = to[s];
        }
    }
    for s in 0..4 {
        (re[at[s]], im[at[s]]) = (to_r[s], to_i[s]);
    }
}
