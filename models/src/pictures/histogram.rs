//! Histograms as curves.
use super::curves::Curve;

impl Curve {
    /// The outline of a histogram: how many of `values` lie in each of so many intervals of one
    /// width between the least and the largest; values that are not finite are left out.
    pub fn histogram(name: impl Into<String>, values: &[f64], intervals: usize) -> Self {
        let finite = || values.iter().copied().filter(|x| x.is_finite());
        let (low, high) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
        if low > high || intervals == 0 {
            return Self { marked: false, ..Self::new(name, []) };
        }
        // Values that are all alike get an interval about them.
        let (low, width, n) = match high > low {
            true => (low, (high - low) / intervals as f64, intervals),
            false => (low - 0.5, 1., 1),
        };
        let mut counts = vec![0usize; n];
        let last = counts.len() - 1;
        for x in finite() {
            if let Some(count) = counts.get_mut((((x - low) / width) as usize).min(last)) {
                *count += 1;
            }
        }
        let edge = |i: usize| low + i as f64 * width;
        let stairs =
            counts.iter().enumerate().flat_map(|(i, &n)| [(edge(i), n as f64), (edge(i + 1), n as f64)]);
        let ends = [(edge(0), 0.), (edge(counts.len()), 0.)];
        Self {
            marked: false,
            ..Self::new(name, ends[..1].iter().copied().chain(stairs).chain(ends[1..].iter().copied()))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::curves::{Panel, draw};
    use super::*;

    #[test]
    fn a_histogram_counts_every_finite_value_once() {
        let curve = Curve::histogram("n", &[0., 1., 1.5, 4., 4., f64::NAN, f64::NEG_INFINITY], 4);
        let want = [
            (0., 0.),
            (0., 1.),
            (1., 1.),
            (1., 2.),
            (2., 2.),
            (2., 0.),
            (3., 0.),
            (3., 2.),
            (4., 2.),
            (4., 0.),
        ];
        assert_eq!(curve.points, want);
        assert_eq!(Curve::histogram("n", &[3.; 5], 4).points, [(2.5, 0.), (2.5, 5.), (3.5, 5.), (3.5, 0.)]);
        assert!(Curve::histogram("n", &[f64::NAN], 4).points.is_empty());
        assert!(!draw(&[Panel::new("t", "x", "y", vec![curve])]).unwrap().contains("<circle"));
    }
}
