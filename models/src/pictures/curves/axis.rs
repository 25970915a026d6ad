//! Ranges, marks and numbers of axes.
use plotters::coord::ranged1d::{BoldPoints, DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use std::ops::Range;

/// An axis with its marks where they were asked for.
pub(super) struct Marked {
    axis: RangedCoordf64,
    marks: Vec<f64>,
}

impl Marked {
    /// Of values, or of their logarithms.
    pub fn new(range: Range<f64>, log: bool) -> Self {
        let marks = if log { log_marks(&range) } else { marks(&range) };
        Self { axis: range.into(), marks }
    }
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.axis.map(value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.axis.range()
    }
}

/// About how many marks an axis has.
const MARKS: usize = 6;

/// Round values in a range.
fn marks(range: &Range<f64>) -> Vec<f64> {
    RangedCoordf64::from(range.clone()).key_points(BoldPoints(MARKS))
}

/// Logarithms, in a range of logarithms, of powers of ten, with 2 and 5 times them where there is
/// room; of round values where the range is too narrow for three of those.
fn log_marks(range: &Range<f64>) -> Vec<f64> {
    let decades = range.start.floor() as i32..=range.end.ceil() as i32;
    let of = |digits: &[f64]| -> Vec<f64> {
        let all =
            decades.clone().flat_map(|decade| digits.iter().map(move |d| f64::from(decade) + d.log10()));
        all.filter(|at| range.contains(at)).collect()
    };
    let candidates = [of(&[1., 2., 5.]), of(&[1., 3.]), of(&[1.])];
    match candidates.into_iter().find(|at| (3..=MARKS + 3).contains(&at.len())) {
        Some(at) => at,
        None if range.end - range.start < 1.5 => {
            marks(&(10f64.powf(range.start)..10f64.powf(range.end))).into_iter().map(f64::log10).collect()
        }
        None => {
            let step = ((range.end - range.start) / MARKS as f64).ceil() as usize;
            decades.step_by(step).map(f64::from).filter(|at| range.contains(at)).collect()
        }
    }
}

/// The range of some values with a margin of a twentieth; never empty.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return 0.0..1.0;
    }
    let margin = if high > low { (high - low) / 20. } else { low.abs().max(1.) / 20. };
    low - margin..high + margin
}

/// A number in at most four significant digits, without trailing zeros.
pub(super) fn number(value: f64) -> String {
    if value == 0. {
        return "0".to_owned();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_a_logarithmic_axis_are_round() {
        let shown = |low: f64, high: f64| -> Vec<String> {
            log_marks(&(low.log10()..high.log10())).iter().map(|at| number(10f64.powf(*at))).collect()
        };
        assert_eq!(shown(0.04, 20.), ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        assert_eq!(shown(0.02, 200.), ["0.03", "0.1", "0.3", "1", "3", "10", "30", "100"]);
        assert_eq!(shown(1e-6, 2e3), ["0.000001", "0.0001", "0.01", "1", "100"]);
        assert_eq!(shown(6.1, 6.4), ["6.1", "6.2", "6.3", "6.4"]);
    }

    #[test]
    fn a_range_has_a_margin_and_is_never_empty() {
        assert_eq!(range([0., 20.].into_iter()), -1.0..21.0);
        assert_eq!(range([0.].into_iter()), -0.05..0.05);
        assert_eq!(range(std::iter::empty()), 0.0..1.0);
    }

    #[test]
    fn numbers_keep_what_matters() {
        let cases = [(0., "0"), (12., "12"), (0.05, "0.05"), (-1.25, "-1.25"), (1234.6, "1235")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(0.1 + 0.2), "0.3");
    }
}
