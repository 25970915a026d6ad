//! The page BENCHMARKS.md, and the tables in it.
use anyhow::{Context, Result};
use clap::Args;
use std::path::PathBuf;

/// The page of this version.
pub(super) const PAGE: &str = include_str!("../../BENCHMARKS.md");

/// The page that a command reads.
#[derive(Debug, Args)]
pub(super) struct PageArgs {
    /// The page that is read. Default: BENCHMARKS.md of this version.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

impl PageArgs {
    /// Its text.
    pub fn read(&self) -> Result<String> {
        match &self.page {
            Some(path) => {
                std::fs::read_to_string(path).with_context(|| format!("{}: cannot read", path.display()))
            }
            None => Ok(PAGE.to_owned()),
        }
    }
}

/// A table of the page.
#[derive(Debug, PartialEq)]
pub(super) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The first table below the heading `section` that has a column `head`. An empty first cell
    /// means what the one above it says.
    pub fn read(page: &str, section: &str, head: &str) -> Result<Self> {
        let below = page.split("\n## ").find_map(|part| part.strip_prefix(section)?.strip_prefix('\n'));
        let below = below.with_context(|| format!("--page: no section {section:?}"))?;
        let tables = below.split("\n\n").filter(|block| block.starts_with('|')).map(Self::parse);
        let mut tables = tables.filter(|table| table.heads.iter().any(|of| of == head));
        tables.next().with_context(|| format!("--page: {section}: no table with a column {head:?}"))
    }

    fn parse(block: &str) -> Self {
        let cells = |line: &str| -> Vec<String> {
            let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
            inner.split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let mut lines = block.lines().take_while(|line| line.starts_with('|'));
        let heads = lines.next().map(cells).unwrap_or_default();
        let mut rows: Vec<Vec<String>> = vec![];
        for mut row in lines.skip(1).map(cells) {
            let above = rows.last().and_then(|row| row.first());
            if let (Some(first), Some(above)) = (row.first_mut().filter(|first| first.is_empty()), above) {
                first.clone_from(above);
            }
            rows.push(row);
        }
        Self { heads, rows }
    }

    /// Columns as rows.
    pub fn turned(&self) -> Self {
        let column = |at: usize| self.rows.iter().map(move |row| row.get(at).cloned().unwrap_or_default());
        let with_head =
            |(at, head): (usize, &String)| std::iter::once(head.clone()).chain(column(at)).collect();
        let mut lines = self.heads.iter().enumerate().map(with_head);
        Self { heads: lines.next().unwrap_or_default(), rows: lines.collect() }
    }

    /// The rows, from above.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { heads: &self.heads, cells })
    }
}

/// A row of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    heads: &'a [String],
    cells: &'a [String],
}

impl<'a> Row<'a> {
    /// Its first cell.
    pub fn name(&self) -> &'a str {
        self.cells.first().map_or("", String::as_str)
    }

    /// The cell below a head; empty where there is none.
    pub fn cell(&self, head: &str) -> &'a str {
        let at = self.heads.iter().position(|of| of == head);
        at.and_then(|at| self.cells.get(at)).map_or("", String::as_str)
    }

    /// The number in the cell below a head.
    pub fn number(&self, head: &str) -> Option<f64> {
        number(self.cell(head))
    }
}

/// The first number of a text, without its sign: 1500.5 of `about **1,500.5** s`.
pub(super) fn number(text: &str) -> Option<f64> {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let bytes = || text.bytes().enumerate();
    let (start, _) = bytes().find(|&(at, byte)| is_digit(at) || byte == b'.' && is_digit(at + 1))?;
    let is_part = |&(at, byte): &(usize, u8)| is_digit(at) || b".,".contains(&byte) && is_digit(at + 1);
    let digits = bytes().skip(start).take_while(is_part).map(|(_, byte)| char::from(byte));
    digits.filter(|&digit| digit != ',').collect::<String>().parse().ok()
}

/// The product of a size such as `768 × 24,576, 32`, of what stands on both sides of the signs.
pub(super) fn product(size: &str) -> Option<f64> {
    size.contains('×').then(|| size.split('×').map(number).product()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_are_those_of_the_cells() {
        let cases = [("**.161**", 0.161), ("1.70 (1.69–1.87)", 1.7), ("70,000×784", 7e4), ("3, 4", 3.)];
        for (text, want) in cases {
            assert_eq!(number(text), Some(want), "{text}");
        }
        assert_eq!((number("-"), number(""), number("...")), (None, None, None));
        assert_eq!(product("768 × 24,576, 32"), Some(768. * 24576.));
        assert_eq!((product("768"), product("a × 2")), (None, None));
    }

    #[test]
    fn a_table_is_found_by_its_section_and_a_column() -> Result<()> {
        let page = "# Page\n\n## One\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n## One more\n\ntext\n\n\
                    | a | c |\n|---|---|\n| x | 3 |\n| | 4 |\n";
        let table = Table::read(page, "One more", "c")?;
        let cells = |table: &Table, head| -> Vec<_> {
            table.rows().map(|row| (row.name().to_owned(), row.number(head))).collect()
        };
        assert_eq!(cells(&table, "c"), [("x".to_owned(), Some(3.)), ("x".to_owned(), Some(4.))]);
        assert_eq!(cells(&table.turned(), "x"), [("c".to_owned(), Some(3.))]);
        assert_eq!(table.turned().turned(), table);
        for (section, head, said) in [("Two", "a", "no section"), ("One", "c", "no table with a column")] {
            let error = Table::read(page, section, head).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains(said)), "{section} {head}");
        }
        Ok(())
    }
}
