//! Parsers that check the ranges of numbers.

/// Numbers of things are below this: floats hold them all, and no program comes to an end of more.
pub const MOST_COUNT: u64 = 1 << 53;

/// A whole number of at least 1, below 2⁵³.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match whole_number(text) {
        Ok(n) if n >= 1 => Ok(n),
        Err(err) if text.parse::<u64>().is_ok() => Err(err),
        _ => Err("must be a whole number of at least 1".to_owned()),
    }
}

/// A whole number below 2⁵³.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn whole_number(text: &str) -> Result<usize, String> {
    match text.parse::<u64>() {
        Ok(n) if n < MOST_COUNT => usize::try_from(n).map_err(|err| err.to_string()),
        Ok(_) => Err("must be a whole number below 2^53".to_owned()),
        Err(_) => Err("must be a whole number".to_owned()),
    }
}

/// A finite number above 0.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn above_zero(text: &str) -> Result<f64, String> {
    real(text, |x| x > 0., "above 0")
}

/// A number of bytes, as a whole number or with a unit: `64MiB`, `1.5GB`.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn bytes(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, f64); 9] = [
        ("KiB", 1024.),
        ("MiB", 1_048_576.),
        ("GiB", 1_073_741_824.),
        ("TiB", 1_099_511_627_776.),
        ("KB", 1e3),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
    ];
    let (number, unit) = UNITS
        .iter()
        .find_map(|&(name, unit)| Some((text.strip_suffix(name)?.trim_end(), unit)))
        .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1.));
    let value =
        number.parse::<f64>().ok().filter(|n| *n >= 0. && number.starts_with(|c: char| c.is_ascii_digit()));
    value
        .map(|n| n * unit)
        .filter(|n| *n < 2f64.powi(53) && (unit > 1. || n.fract() == 0.))
        .map(|n| n as usize)
        .ok_or_else(|| format!("must be a number of bytes, such as 500000, 64MiB or 2GB, got {text}"))
}

/// A finite number of at least 0.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn not_negative(text: &str) -> Result<f64, String> {
    real(text, |x| x >= 0., "of at least 0")
}

/// A number in `[0, 1)`.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn below_one(text: &str) -> Result<f64, String> {
    real(text, |x| (0. ..1.).contains(&x), "of at least 0 and below 1")
}

/// A number in `(0, 1)`.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn inside_zero_one(text: &str) -> Result<f64, String> {
    real(text, |x| x > 0. && x < 1., "above 0 and below 1")
}

/// A number in `(0, 1]`.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn at_most_one(text: &str) -> Result<f64, String> {
    real(text, |x| x > 0. && x <= 1., "above 0 and at most 1")
}

fn real(text: &str, holds: impl Fn(f64) -> bool, what: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if f64::is_finite(x) && holds(x) => Ok(x),
        _ => Err(format!("must be a number {what}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bytes_are_numbers_with_or_without_a_unit() {
        let cases = [
            ("0", 0),
            ("500000", 500_000),
            ("12B", 12),
            ("64MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2 GB", 2_000_000_000),
            ("3KB", 3000),
            ("1TiB", 1 << 40),
        ];
        for (text, want) in cases {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        for text in ["", "-1", "1.5", "MiB", "1e3x", "5 apples", "1mb", "inf", "NaN", "99999999TiB", "+5"] {
            let err = bytes(text).unwrap_err();
            assert_eq!(err, format!("must be a number of bytes, such as 500000, 64MiB or 2GB, got {text}"));
        }
    }
}
