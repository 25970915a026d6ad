//! What fields are: numbers, texts or gaps; and what this says of the separator and of the first
//! line.
use crate::labels::{LABELS, is_missing};
use ::csv::StringRecord;

/// What a comment begins with.
pub(super) const COMMENTS: [u8; 2] = [b'#', b'%'];

/// Lines that the separator is found by.
const SAMPLE_LINES: usize = 20;

/// The number that a field writes; truth values are 1 and 0. Between semicolons a comma may stand
/// for the decimal point.
pub(super) fn number(field: &str, separator: u8) -> Option<f64> {
    if let Ok(number) = field.parse() {
        return Some(number);
    }
    match field {
        "true" | "True" | "TRUE" => Some(1.),
        "false" | "False" | "FALSE" => Some(0.),
        _ if separator == b';' && field.matches(',').count() == 1 && !field.contains('.') => {
            field.replace(',', ".").parse().ok()
        }
        _ => None,
    }
}

/// Whether a field is a text: no number, nor what stands for one that is missing, nor one that is
/// written wrong, such as 2,5.
pub(super) fn is_name(field: &str) -> bool {
    let like_number = |c: char| "+-.".contains(c) || c.is_ascii_digit();
    field.parse::<f32>().is_err() && !is_missing(field) && !field.starts_with(like_number)
}

/// What the first rows say of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Numbers,
    /// Texts, dates and the like.
    Texts,
    /// No row has a value.
    Gaps,
}

/// The kind of a column in some rows: that of most of its values.
pub(super) fn kind<'a>(rows: impl Iterator<Item = &'a StringRecord>, column: usize, separator: u8) -> Kind {
    let (mut numbers, mut texts) = (0, 0);
    for field in rows.filter_map(|row| row.get(column)) {
        match number(field, separator) {
            Some(_) => numbers += 1,
            None if is_missing(field) => {}
            None => texts += 1,
        }
    }
    match numbers >= texts {
        true if numbers > 0 => Kind::Numbers,
        true => Kind::Gaps,
        false => Kind::Texts,
    }
}

/// The separator: of tab, semicolon, comma, bar and spaces that which gives all lines as many
/// fields, and most of them numbers. The first line may have a field less, as R writes it.
pub(super) fn separator_of(head: &[u8]) -> u8 {
    let lines = head.split(|b| matches!(b, b'\n' | b'\r')).map(<[u8]>::trim_ascii);
    let lines = lines.filter(|line| line.first().is_some_and(|b| !COMMENTS.contains(b)));
    let mut lines: Vec<String> =
        lines.take(SAMPLE_LINES).map(|line| String::from_utf8_lossy(line).into()).collect();
    if lines.len() > 2 && lines.len() < SAMPLE_LINES && !head.ends_with(b"\n") {
        // It may go on beyond the head.
        lines.pop();
    }
    let score = |separator: u8| {
        let fields: Vec<Vec<&str>> = lines.iter().map(|line| bare_fields(line, separator)).collect();
        let n = fields.last().map_or(0, Vec::len);
        let first = fields.first().map_or(0, Vec::len);
        let rows = fields.get(1..).unwrap_or_default();
        let even = n > 1 && (first == n || first + 1 == n) && rows.iter().all(|row| row.len() == n);
        let is_number = |field: &&&str| number(field, separator).is_some();
        (even, fields.iter().map(|row| row.iter().filter(is_number).count()).sum::<usize>())
    };
    let scores = [b'\t', b';', b',', b'|', b' '].map(|separator| (score(separator), separator));
    // Texts alone are not parted at spaces.
    let fit =
        |&&((even, numbers), separator): &&((bool, usize), u8)| even && (numbers > 0 || separator != b' ');
    let most = |best: Option<((bool, usize), u8)>, &next: &((bool, usize), u8)| match best {
        Some(best) if best.0.1 >= next.0.1 => Some(best),
        _ => Some(next),
    };
    let best = scores.iter().filter(fit).fold(None, most);
    let parted = |&&(_, separator): &&((bool, usize), u8)| {
        separator != b' ' && lines.first().is_some_and(|line| bare_fields(line, separator).len() > 1)
    };
    best.or_else(|| scores.iter().find(parted).copied()).map_or(b',', |(_, separator)| separator)
}

/// The fields of a line; what lies between quotation marks is not parted.
pub(super) fn bare_fields(line: &str, separator: u8) -> Vec<&str> {
    let mut quoted = false;
    let fields = line.split(move |c: char| {
        quoted ^= c == '"';
        !quoted && (c == char::from(separator) || separator == b' ' && c == '\t')
    });
    let fields = fields.map(|field| field.trim().trim_matches('"'));
    match separator {
        b' ' => fields.filter(|field| !field.is_empty()).collect(),
        _ => fields.collect(),
    }
}

/// Why the first line is taken for a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// It has names, or a field less than the rows.
    Named,
    /// It counts the columns: 0, 1, 2, …
    Counts,
}

/// Whether the first line is a header of the rows below it.
pub(super) fn header(first: &StringRecord, rows: &[&StringRecord]) -> Option<Header> {
    let names = || first.iter().enumerate().filter(|(_, field)| is_name(field));
    let Some(second) = rows.first() else {
        return names().next().map(|_| Header::Named);
    };
    let below = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let recurs = |(column, name): (usize, &str)| below(column).any(|field| field == name);
    // A name above a number.
    let above_number = |(column, _): (usize, &str)| {
        below(column).find(|field| !is_missing(field)).is_some_and(|field| !is_name(field))
    };
    let is_label = |(_, name): (usize, &str)| LABELS.iter().any(|label| name.eq_ignore_ascii_case(label));
    // 1x1, 1x2, …: names of pixels.
    let is_text = |field: &str| field.parse::<f64>().is_err() && field.contains(char::is_alphabetic);
    let all_texts = first.iter().all(is_text) && second.iter().any(|below| below.parse::<f64>().is_ok());
    if first.len() + 1 == second.len()
        || all_texts
        || names().any(above_number)
        || names().any(|named| is_label(named) && !recurs(named))
    {
        return Some(Header::Named);
    }
    let counted: Vec<usize> = (0..first.len()).filter(|&column| !is_name(&first[column])).collect();
    let counted: Vec<usize> = counted.into_iter().filter(|&column| !first[column].is_empty()).collect();
    let counts = counted.iter().enumerate().all(|(i, &column)| first[column] == i.to_string());
    let is_whole = |field: &str| field.parse::<i64>().is_ok();
    let whole = counted.iter().all(|&column| below(column).all(is_whole));
    let bits = counted.iter().all(|&column| below(column).all(|field| matches!(field, "0" | "1")));
    // The row 0 1 is one of many in a table of bits.
    let likely = match counted.len() {
        0 => false,
        1 => !whole,
        2 => !bits,
        _ => true,
    };
    let same = rows.iter().any(|row| row.iter().eq(first.iter()));
    (counts && likely && !same && !names().any(recurs)).then_some(Header::Counts)
}
