//! The exact minimiser of the objective along a direction.
//!
//! The derivative at `a + t d` is `A t − e`, with `A = dᵀ G d` and `e = d·(q − β sign a)`, and
//! `2 βⱼ |dⱼ|` more from the point on where `aⱼ + t dⱼ` changes its sign. The minimum is where it
//! passes 0: in between such points, or at one, where that coefficient is 0. `A` is not taken to be
//! `e`, which it is for an exact Newton direction: the objective falls for any.

/// A coefficient, its direction `d`, and `G d`.
#[derive(Debug, Clone, Copy)]
pub(in crate::codes::lasso) struct Along {
    pub a: f64,
    pub d: f64,
    pub gd: f64,
    pub q: f64,
    pub beta: f64,
}

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::codes::lasso) struct Step {
    /// `t`
    pub length: f64,
    /// The entry that becomes exactly 0.
    pub zero: Option<usize>,
    /// Whether no coefficient changed its sign on the way to the minimum of the first quadratic.
    pub is_whole: bool,
}

/// The minimiser over `t ≥ 0`; with `POSITIVE` no coefficient may change its sign.
pub(in crate::codes::lasso) fn minimise<const POSITIVE: bool>(
    along: impl Iterator<Item = Along> + Clone,
) -> Step {
    let (mut curvature, mut descent) = (0., 0.);
    for Along { a, d, gd, q, beta } in along.clone() {
        curvature += d * gd;
        // From 0 a coefficient takes the sign of its direction.
        descent += d * (q - beta.copysign(if a == 0. { d } else { a }));
    }
    let whole = descent / curvature;
    if !(curvature > 0. && descent > 0. && whole.is_finite()) {
        return Step { length: 0., zero: None, is_whole: true };
    }
    // Where a coefficient is 0, its number, and by how much the derivative grows there.
    let mut crossings: Vec<(f64, usize, f64)> = vec![];
    for (i, Along { a, d, beta, .. }) in along.enumerate() {
        if a * d < 0. && a.abs() < whole * d.abs() {
            let growth = if POSITIVE { f64::INFINITY } else { 2. * beta * d.abs() };
            crossings.push((-a / d, i, growth));
        }
    }
    crossings.sort_unstable_by(|x, y| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1)));
    let is_whole = crossings.is_empty();
    let mut grown = 0.;
    for (t, i, growth) in crossings {
        let derivative = curvature * t - descent + grown;
        if derivative >= 0. {
            break;
        }
        if derivative + growth >= 0. {
            return Step { length: t, zero: Some(i), is_whole };
        }
        grown += growth;
    }
    Step { length: (descent - grown) / curvature, zero: None, is_whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Along `d` with the curvature 1 · d² of one atom of length 1: `q` is chosen such that `d` is
    /// the Newton step.
    fn one(a: f64, d: f64, beta: f64) -> Along {
        Along { a, d, gd: d, q: d + beta.copysign(a), beta }
    }

    #[test]
    fn a_step_without_crossings_is_whole() {
        let step = minimise::<false>([one(1., 0.5, 1.), one(-2., 1., 1.)].into_iter());
        assert_eq!(step, Step { length: 1., zero: None, is_whole: true });
    }

    #[test]
    fn a_large_penalty_stops_at_zero_and_a_small_one_lets_through() {
        // a = 1, d = −4: zero at t = 1/4, where the slope is 16 (1/4 − 1) = −12 and grows by 8 β.
        let at = |beta| minimise::<false>([one(1., -4., beta)].into_iter());
        assert_eq!(at(2.), Step { length: 0.25, zero: Some(0), is_whole: false });
        assert_eq!(at(1.), Step { length: 0.5, zero: None, is_whole: false });
        assert_eq!(
            minimise::<true>([one(1., -4., 1.)].into_iter()),
            Step { length: 0.25, zero: Some(0), is_whole: false }
        );
    }

    #[test]
    fn the_minimum_between_two_crossings_is_found() {
        // Zeros at 1/4 and 3/4; slopes: A = 16 + 16; after the first, −24 + 16 = −8; 0 at 1/2.
        let step = minimise::<false>([one(1., -4., 2.), one(3., -4., 2.)].into_iter());
        assert_eq!(step, Step { length: 0.5, zero: None, is_whole: false });
    }

    #[test]
    fn a_direction_of_the_wrong_length_is_corrected() {
        let Along { a, d, gd, q, beta } = one(1., 0.5, 1.);
        let double = Along { a, d: 2. * d, gd: 2. * gd, q, beta };
        let step = minimise::<false>([double].into_iter());
        assert_eq!(step, Step { length: 0.5, zero: None, is_whole: true });
    }

    #[test]
    fn a_direction_without_descent_is_not_taken() {
        let still = Step { length: 0., zero: None, is_whole: true };
        assert_eq!(minimise::<false>([one(1., 0., 1.)].into_iter()), still);
        assert_eq!(minimise::<false>([one(1., f64::NAN, 1.)].into_iter()), still);
        let uphill = Along { gd: 1., ..one(1., -1., 1.) };
        assert_eq!(minimise::<false>([Along { q: 2., ..uphill }].into_iter()), still);
    }
}
