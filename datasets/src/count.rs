//! Numbers with their nouns, in messages.

/// A number and its noun, in the plural unless the number is 1: for messages of this crate and of
/// programs.
///
/// The plural ends in `s`, in `es` after `s`, `x`, `tch` and `sh`, and in `ies` in place of a `y`
/// after a consonant. Of several words the last one takes it.
///
/// ```
/// use chandlery_datasets::count;
///
/// assert_eq!(count(1, "training row"), "1 training row");
/// assert_eq!(count(0, "class"), "0 classes");
/// assert_eq!(count(12, "entry"), "12 entries");
/// ```
pub fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {}", plural(noun)) }
}

fn plural(noun: &str) -> String {
    let hisses = ["s", "x", "tch", "sh"].iter().any(|end| noun.ends_with(end));
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ if hisses => format!("{noun}es"),
        _ => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_all_other_numbers_plural() {
        let cases = [
            (1, "epoch", "1 epoch"),
            (2, "epoch", "2 epochs"),
            (0, "row", "0 rows"),
            (2, "patch", "2 patches"),
            (3, "key", "3 keys"),
            (3, "category", "3 categories"),
        ];
        for (n, noun, want) in cases {
            assert_eq!(count(n, noun), want);
        }
    }
}
