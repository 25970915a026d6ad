//! What stands in a table.
use serde::{Serialize, Serializer};

/// A cell: its text, and its number if it has one.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::bench) struct Cell {
    text: String,
    value: Option<f64>,
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), value: None }
    }

    /// Seconds, with a unit that suits them.
    pub fn seconds(seconds: f64) -> Self {
        let text = match seconds {
            s if s < 1e-3 => format!("{} µs", three_digits(1e6 * s)),
            s if s < 1. => format!("{} ms", three_digits(1e3 * s)),
            s => format!("{} s", three_digits(s)),
        };
        Self::valued(text, seconds)
    }

    /// A number with so many decimals.
    pub fn number(number: f64, decimals: usize) -> Self {
        Self::valued(format!("{number:.decimals$}"), number)
    }

    /// How many times as fast.
    pub fn factor(factor: f64) -> Self {
        Self::valued(format!("{}×", three_digits(factor)), factor)
    }

    /// What was not measured.
    pub fn none() -> Self {
        Self { text: "–".to_owned(), value: None }
    }

    /// This, or [`none`](Self::none).
    pub fn or_none<T>(value: Option<T>, cell: impl FnOnce(T) -> Self) -> Self {
        value.map_or_else(Self::none, cell)
    }

    /// As it is printed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// A number that is not finite is one that was not measured.
    fn valued(text: String, value: f64) -> Self {
        if value.is_finite() { Self { text, value: Some(value) } } else { Self::none() }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Some(value) => serializer.serialize_f64(value),
            None if *self == Self::none() => serializer.serialize_none(),
            None => serializer.serialize_str(&self.text),
        }
    }
}

/// Three significant digits, more before the point.
fn three_digits(x: f64) -> String {
    match x.abs() {
        a if a >= 99.95 => format!("{x:.0}"),
        a if a >= 9.995 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// The size from which `fast` takes less time than `slow`, straight between the logarithms of two
/// neighbours; none if it does so at none of the sizes, the first size if it does so at all.
///
/// `sizes` ascend.
pub(in crate::bench) fn break_even(sizes: &[f64], slow: &[f64], fast: &[f64]) -> Option<f64> {
    let points: Vec<(f64, f64)> = sizes
        .iter()
        .zip(slow.iter().zip(fast))
        .map(|(size, (slow, fast))| (size.ln(), (slow / fast).ln()))
        .filter(|(_, gain)| gain.is_finite())
        .collect();
    // From there on all are faster.
    let first = points.iter().rposition(|(_, gain)| *gain <= 0.).map_or(0, |last| last + 1);
    let &(to, gain) = points.get(first)?;
    let log = match first.checked_sub(1).and_then(|before| points.get(before)) {
        Some(&(from, loss)) => from + (to - from) * loss / (loss - gain),
        None => to,
    };
    Some(log.exp())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cell_has_a_unit_that_suits_it() {
        let texts = [Cell::seconds(2.5e-6), Cell::seconds(0.0123), Cell::seconds(61.25), Cell::factor(312.4)];
        assert_eq!(texts.map(|cell| cell.text), ["2.50 µs", "12.3 ms", "61.2 s", "312×"]);
        assert_eq!(Cell::number(f64::NAN, 2), Cell::none());
        let json = serde_json::to_string(&[Cell::text("a"), Cell::number(1.5, 0), Cell::none()]).unwrap();
        assert_eq!(json, "[\"a\",1.5,null]");
    }

    #[test]
    fn the_break_even_lies_between_the_sizes_around_it() {
        let sizes = [1., 10., 100.];
        // Twice as slow at 10, twice as fast at 100: half way in logarithms.
        let at = break_even(&sizes, &[1., 1., 4.], &[4., 2., 2.]).unwrap();
        assert!((at - 10f64.powf(1.5)).abs() < 1e-9, "{at}");
        assert_eq!(break_even(&sizes, &[1.; 3], &[2.; 3]), None);
        assert_eq!(break_even(&sizes, &[2.; 3], &[1.; 3]).map(f64::round), Some(1.));
    }
}
