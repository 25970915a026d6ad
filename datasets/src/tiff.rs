//! What must hold of a TIFF before it is handed to its decoder.
//!
//! Version 0.11 of the `tiff` crate takes memory for as many values as a field says that it has, up to 256 MiB and before a limit can
//! be set. In a file that is whole, each value takes a byte or more.

/// The largest number of values that a field of the first directory says that it has and cannot have; none for other files.
pub(crate) fn impossible_count(bytes: &[u8]) -> Option<u64> {
    let little = match bytes.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let number = |at: usize, width: usize| -> Option<u64> {
        let word = bytes.get(at..at.checked_add(width)?)?;
        let push = |number: u64, &b: &u8| number << 8 | u64::from(b);
        Some(if little { word.iter().rev().fold(0, push) } else { word.iter().fold(0, push) })
    };
    // Version 42 counts in four bytes, version 43 in eight.
    let (width, first) = match number(2, 2)? {
        42 => (4, number(4, 4)?),
        43 => (8, number(8, 8)?),
        _ => return None,
    };
    let first = usize::try_from(first).ok()?;
    let before = if width == 4 { 2 } else { 8 };
    let n_fields = usize::try_from(number(first, before)?).ok()?;
    // A field has a name and a type of two bytes each, its number of values, and these or their place.
    let counts = (0..n_fields).map_while(|field| {
        let start = field.checked_mul(4 + 2 * width)?.checked_add(first.checked_add(before + 4)?)?;
        number(start, width)
    });
    counts.max().filter(|&count| count > bytes.len() as u64)
}
