//! Tables, figures and headlines of a paper as text, Markdown and JSON.
use super::cell::Cell;
use serde::Serialize;
use std::fmt::Write;

/// Where pictures and the pages of single papers stand, beside the page of all.
pub(super) const FOLDER: &str = "papers";

/// A table.
#[derive(Debug, Clone, Serialize)]
pub(in crate::bench) struct Table {
    /// What it shows, with the table's or figure's number in the paper.
    pub title: String,
    /// One for each column, with its unit.
    pub heads: Vec<String>,
    /// Cells of one row, as many as there are heads.
    pub rows: Vec<Vec<Cell>>,
    /// What a row means differently from the paper, and what else a reader must know.
    pub notes: Vec<String>,
}

impl Table {
    /// A table without rows and notes.
    pub fn new(title: impl Into<String>, heads: &[&str]) -> Self {
        let heads = heads.iter().map(|&head| head.to_owned()).collect();
        Self { title: title.into(), heads, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row; cells that it lacks were not measured.
    pub fn row(&mut self, mut cells: Vec<Cell>) {
        cells.resize(self.heads.len(), Cell::none());
        self.rows.push(cells);
    }

    /// Adds a note.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Columns of equal widths; the first stands to the left.
    pub(super) fn text(&self) -> String {
        let lines = || {
            let heads = self.heads.iter().map(String::as_str).collect::<Vec<_>>();
            std::iter::once(heads).chain(self.rows.iter().map(|row| row.iter().map(Cell::as_str).collect()))
        };
        let width = |column: usize| {
            lines().map(|cells| cells.get(column).map_or(0, |cell| cell.chars().count())).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        let mut text = format!("\n{}\n", self.title);
        for cells in lines() {
            let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        self.notes.iter().for_each(|note| {
            let _ = writeln!(text, "({note})"); // Writing to a String cannot fail.
        });
        text.pop();
        text
    }

    fn markdown(&self) -> String {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("**{}**\n\n", self.title);
        text.push_str(&line(self.heads.iter().map(String::as_str).collect()));
        text.push_str(&line(
            (0..self.heads.len()).map(|column| if column == 0 { "---" } else { "---:" }).collect(),
        ));
        for row in &self.rows {
            text.push_str(&line(row.iter().map(Cell::as_str).collect()));
        }
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "- {note}"); // Writing to a String cannot fail.
        }
        text
    }
}

/// A picture in a file beside the document.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Picture {
    pub file: String,
    pub caption: String,
}

/// A factor that a paper is known for.
#[derive(Debug, Clone, Serialize)]
pub(in crate::bench) struct Headline {
    /// What was compared.
    pub claim: String,
    /// The paper's factor.
    pub paper: String,
    /// That of the same algorithm here.
    pub same: String,
    /// That of our best.
    pub best: String,
}

/// What stands below the heading of a section.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Section {
    Table(Table),
    Picture(Picture),
}

/// Parts with one id.
#[derive(Debug, Clone, Serialize)]
struct Part {
    id: String,
    /// Seconds that it took to make.
    seconds: f64,
    content: Vec<Section>,
}

/// A paper's tables and figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Document {
    name: String,
    title: &'static str,
    device: String,
    threads: usize,
    quick: bool,
    headlines: Vec<Headline>,
    parts: Vec<Part>,
}

impl Document {
    pub fn new(name: String, title: &'static str, device: String, quick: bool) -> Self {
        let threads = rayon::current_num_threads();
        Self { name, title, device, threads, quick, headlines: Vec::new(), parts: Vec::new() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn headline(&mut self, headline: Headline) {
        self.headlines.push(headline);
    }

    /// Adds to the part `id`.
    pub fn add(&mut self, id: &str, section: Section) {
        match self.parts.iter_mut().find(|part| part.id == id) {
            Some(part) => part.content.push(section),
            None => self.parts.push(Part { id: id.to_owned(), seconds: 0., content: vec![section] }),
        }
    }

    /// Adds to the seconds of the part `id`.
    pub fn took(&mut self, id: &str, seconds: f64) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.id == id) {
            part.seconds += seconds;
        }
    }

    pub fn has(&self, id: &str) -> bool {
        self.parts.iter().any(|part| part.id == id)
    }

    /// The paper as a page.
    pub fn markdown(&self) -> String {
        let mut text =
            format!("## {}\n\nOn {}, CPU of {} threads.\n\n", self.title, self.device, self.threads);
        if !self.headlines.is_empty() {
            let line = |Headline { claim, paper, same, best }: &Headline| {
                format!("| {claim} | {paper} | {same} | {best} |\n")
            };
            text.push_str(&headlines(&self.headlines.iter().map(line).collect::<String>()));
        }
        for part in &self.parts {
            let quick = if self.quick { " --quick" } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "### {}\n\n`bench paper {} --only {}{quick}` ({:.1} s)\n\n",
                heading(&part.id),
                self.name,
                part.id,
                part.seconds
            );
            for section in &part.content {
                let content = match section {
                    Section::Table(table) => table.markdown(),
                    Section::Picture(picture) => {
                        format!("![{0}]({1})\n\n{0}\n", picture.caption, picture.file)
                    }
                };
                text.push_str(content.trim_end());
                text.push_str("\n\n");
            }
        }
        text
    }
}

/// `table-1` as a heading: `Table 1`.
fn heading(id: &str) -> String {
    let words = id.replace('-', " ");
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The lines above the headlines.
const HEADS: &str = "| Claim | the paper | the same algorithm here | our best |\n|---|---:|---:|---:|\n";

/// The table of what papers are known for, of lines that each end.
fn headlines(lines: &str) -> String {
    format!("{HEADS}{lines}\n")
}

/// All papers on one page: their own pages are `made`, and their pictures stand in [`FOLDER`].
pub(super) fn whole(made: &[String]) -> String {
    let lines = |page: &String| {
        let rest = page.split_once(HEADS)?.1;
        Some(rest.split("\n\n").next()?.to_owned() + "\n")
    };
    let mut text = "# The papers, reproduced\n\nEach table has the paper's own numbers, the same algorithm on this machine, and our best. \
                    `bench paper all` makes this page, and `bench paper NAME` its part of it.\n\n"
        .to_owned();
    text.push_str(&headlines(&made.iter().filter_map(lines).collect::<String>()));
    made.iter().for_each(|page| text.push_str(&page.replace("](", &format!("]({FOLDER}/"))));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_text_and_markdown() {
        let mut table = Table::new("Table 1: times", &["size", "s"]);
        table.row(vec![Cell::text("64x32"), Cell::seconds(1.5)]);
        table.row(vec![Cell::text("8x4")]);
        table.note("made rows");
        assert_eq!(
            table.text(),
            "\nTable 1: times\nsize        s\n64x32  1.50 s\n8x4         –\n(made rows)"
        );
        let mut document = Document::new("x".to_owned(), "X", "cpu".to_owned(), true);
        document.add("table-1", Section::Table(table));
        let page = document.markdown();
        assert!(page.contains("### Table 1\n\n`bench paper x --only table-1 --quick` (0.0 s)\n"), "{page}");
        assert!(page.contains("| size | s |\n| --- | ---: |\n| 64x32 | 1.50 s |\n"), "{page}");
        assert!(document.has("table-1") && !document.has("table-2"));
        document.headline(Headline {
            claim: "faster".to_owned(),
            paper: "2×".to_owned(),
            same: "3×".to_owned(),
            best: "4×".to_owned(),
        });
        document.add(
            "figure-1",
            Section::Picture(Picture { file: "x-1.png".to_owned(), caption: "times".to_owned() }),
        );
        let page = whole(&[document.markdown(), "## Y\n\n### Table 2\n\n".to_owned()]);
        let line = "| faster | 2× | 3× | 4× |\n\n";
        assert_eq!(page.matches(line).count(), 2, "{page}");
        assert!(page.contains("![times](papers/x-1.png)") && page.ends_with("### Table 2\n\n"), "{page}");
    }
}
