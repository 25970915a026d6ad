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
//!
//! Source: Nocedal and Wright, "Numerical Optimization", second edition, 2006, algorithms 3.5 and
//! 3.6 and equation 3.59; the bounds of the extrapolation are those of Moré and Thuente, "Line
//! search algorithms with guaranteed sufficient decrease", TOMS 20, 1994.
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

/// Extrapolation by these multiples of the last stretch, at least and at most.
const WIDEN: (f64, f64) = (1.1, 4.);
/// A trial keeps this share of the bracket from its ends.
const MARGIN: f64 = 0.1;

impl Point {
    fn is_finite(&self) -> bool {
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
}
