//! A step length that satisfies the strong Wolfe conditions.
//!
//! ```text
//! φ(t) = f(x + t p)
//! φ(t) ≤ φ(0) + c₁ t φ'(0)            sufficient decrease
//! |φ'(t)| ≤ c₂ |φ'(0)|                curvature
//! ```
//!
//! A bracket is widened until it holds such a step, and then narrowed by the minimum of the cubic
//! through its ends. Every third narrowing takes the middle, so that the bracket cannot stall.
//! [`backtrack`] asks for the first condition alone.
//!
//! Source: Nocedal and Wright, "Numerical Optimization", second edition, 2006, algorithms 3.1, 3.5
//! and 3.6 and equation 3.59; the bounds of the extrapolation are those of Moré and Thuente, "Line
//! search algorithms with guaranteed sufficient decrease", TOMS 20, 1994.
use crate::check::{at_least_one, range};
use candle::Result;

/// The function along the line at one step length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// `t`
    pub step: f64,
    /// `φ(t)`
    pub value: f64,
    /// `φ'(t)`
    pub slope: f64,
}

/// The constants of the conditions, `0 < c₁ < c₂ < 1`, and the most evaluations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub decrease: f64,
    pub curvature: f64,
    pub evaluations: usize,
}

impl Rule {
    /// Refuses what is out of range, in the name of the configuration `op`.
    pub fn validate(&self, op: &str) -> Result<()> {
        at_least_one(op, "evaluations", self.evaluations)?;
        range(op, "sufficient_decrease", self.decrease, "in (0, 0.5)", |x| x > 0. && x < 0.5)?;
        range(op, "curvature", self.curvature, "above sufficient_decrease and below 1", |x| {
            x > self.decrease && x < 1.
        })
    }
}

/// Extrapolation by these multiples of the last stretch, at least and at most.
const WIDEN: (f64, f64) = (1.1, 4.);
/// A trial keeps this share of the bracket from its ends.
const MARGIN: f64 = 0.1;

impl Point {
    pub fn is_finite(&self) -> bool {
        self.value.is_finite() && self.slope.is_finite()
    }
}

/// The last point that was evaluated, when it satisfies the conditions; none when no evaluation
/// did.
///
/// `start` is the point at 0, with a slope below 0; `first` is the first step to try.
pub(super) fn search(
    start: Point,
    first: f64,
    rule: Rule,
    mut at: impl FnMut(f64) -> Result<Point>,
) -> Result<Option<Point>> {
    // The lower end satisfies the first condition; a point that satisfies both lies between the
    // ends.
    let (mut low, mut before, mut high) = (start, start, None::<Point>);
    let mut step = first;
    for trial in 0..rule.evaluations {
        let point = at(step)?;
        let decreased = point.value <= start.value + rule.decrease * step * start.slope;
        if !point.is_finite() || !decreased || (low.step > 0. && point.value > low.value) {
            high = Some(point);
        } else if point.slope.abs() <= -rule.curvature * start.slope {
            return Ok(Some(point));
        } else {
            let side = high.map_or(1., |high| high.step - low.step);
            if point.slope * side >= 0. {
                high = Some(low);
            }
            (before, low) = (low, point);
        }
        step = match high {
            None => extrapolate(before, low),
            Some(high) if (high.step - low.step).abs() <= f64::EPSILON * high.step.max(low.step) => break,
            Some(high) if trial % 3 == 2 || !high.is_finite() => low.step + 0.5 * (high.step - low.step),
            Some(high) => interpolate(low, high),
        };
    }
    Ok(None)
}

/// The last point that was evaluated, when it satisfies the first condition with `c₁ = decrease`;
/// none when none of so many evaluations did. Each trial is half as long as the last.
pub(super) fn backtrack(
    start: Point,
    first: f64,
    decrease: f64,
    evaluations: usize,
    mut at: impl FnMut(f64) -> Result<Point>,
) -> Result<Option<Point>> {
    let mut step = first;
    for _ in 0..evaluations {
        let point = at(step)?;
        if point.is_finite() && point.value <= start.value + decrease * step * start.slope {
            return Ok(Some(point));
        }
        step *= 0.5;
    }
    Ok(None)
}

/// Where the cubic through two points with their slopes is least; not finite where it has no
/// minimum.
fn cubic_minimum(a: Point, b: Point) -> f64 {
    let d1 = a.slope + b.slope - 3. * (a.value - b.value) / (a.step - b.step);
    let d2 = (b.step - a.step).signum() * (d1 * d1 - a.slope * b.slope).sqrt();
    b.step - (b.step - a.step) * (b.slope + d2 - d1) / (b.slope - a.slope + 2. * d2)
}

/// A step within the bracket, away from its ends.
fn interpolate(low: Point, high: Point) -> f64 {
    let width = high.step - low.step;
    let (one, other) = (low.step + MARGIN * width, high.step - MARGIN * width);
    match cubic_minimum(low, high) {
        step if step.is_finite() => step.clamp(one.min(other), one.max(other)),
        _ => low.step + 0.5 * width,
    }
}

/// A step beyond two points that go down.
fn extrapolate(before: Point, low: Point) -> f64 {
    let stretch = low.step - before.step;
    let (least, most) = (low.step + WIDEN.0 * stretch, low.step + WIDEN.1 * stretch);
    match cubic_minimum(before, low) {
        step if step.is_finite() && step > low.step => step.clamp(least, most),
        _ => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { decrease: 1e-4, curvature: 0.1, evaluations: 40 };

    /// Searches along a function that is given with its derivative, and checks both conditions.
    fn check(name: &str, first: f64, f: impl Fn(f64) -> (f64, f64)) -> (f64, usize) {
        let point = |step| {
            let (value, slope) = f(step);
            Point { step, value, slope }
        };
        let (start, mut evaluations) = (point(0.), 0);
        let found = search(start, first, RULE, |step| {
            evaluations += 1;
            Ok(point(step))
        });
        let Ok(Some(found)) = found else { panic!("{name} from {first}: {found:?}") };
        assert_eq!(found, point(found.step), "the step that was evaluated");
        assert!(found.value <= start.value + RULE.decrease * found.step * start.slope, "{name}: {found:?}");
        assert!(found.slope.abs() <= RULE.curvature * start.slope.abs(), "{name}: {found:?}");
        (found.step, evaluations)
    }

    #[test]
    fn both_conditions_hold_from_first_steps_far_too_short_and_far_too_long() {
        for first in [1e-3, 0.1, 1., 10., 1e3] {
            // The first three functions of Moré and Thuente; b and β as there.
            check("rational", first, |t| {
                let b = 2.;
                (-t / (t * t + b), (t * t - b) / ((t * t + b) * (t * t + b)))
            });
            check("quintic", first, |t| {
                let s = t + 0.004;
                (s.powi(5) - 2. * s.powi(4), 5. * s.powi(4) - 8. * s.powi(3))
            });
            check("parabola", first, |t| ((t - 3.) * (t - 3.), 2. * (t - 3.)));
            check("flat then steep", first, |t| (t.powi(8) - 1e-2 * t, 8. * t.powi(7) - 1e-2));
        }
    }

    #[test]
    fn a_parabola_is_solved_by_its_first_interpolation() {
        let (step, evaluations) = check("parabola", 10., |t| ((t - 3.) * (t - 3.), 2. * (t - 3.)));
        assert!((step - 3.).abs() < 1e-12 && evaluations == 2, "{step} after {evaluations}");
    }

    #[test]
    fn steps_to_where_the_function_is_not_finite_are_taken_back() {
        for beyond in [f64::NAN, f64::INFINITY] {
            check("a wall at 1", 64., |t| {
                if t >= 1. { (beyond, beyond) } else { ((t - 0.5) * (t - 0.5), 2. * (t - 0.5)) }
            });
        }
    }

    #[test]
    fn a_function_without_a_minimum_ends_without_a_step() -> Result<()> {
        let start = Point { step: 0., value: 0., slope: -1. };
        let down = search(start, 1., RULE, |step| Ok(Point { step, value: -step, slope: -1. }))?;
        let up = search(start, 1., RULE, |step| Ok(Point { step, value: step, slope: 1. }))?;
        assert_eq!((down, up), (None, None));
        Ok(())
    }

    #[test]
    fn backtracking_takes_the_first_half_that_lowers_enough() -> Result<()> {
        let at = |t: f64| Point { step: t, value: (t - 3.) * (t - 3.), slope: 2. * (t - 3.) };
        // 16 and 8 are higher than 0; at 4 the value is 1, below 9 − 1e-4 · 4 · 6.
        let found = backtrack(at(0.), 16., 1e-4, 30, |t| Ok(at(t)))?;
        assert_eq!(found, Some(at(4.)));
        assert_eq!(backtrack(at(0.), 16., 1e-4, 2, |t| Ok(at(t)))?, None);
        let wall = |t: f64| Ok(if t > 1. { Point { value: f64::NAN, ..at(t) } } else { at(t) });
        assert_eq!(backtrack(at(0.), 16., 1e-4, 30, wall)?, Some(at(1.)));
        Ok(())
    }
}
