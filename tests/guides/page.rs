//! A page in Markdown: its headings, links and blocks of code.
use super::commands;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

pub struct Page {
    /// In the repository.
    pub path: PathBuf,
    /// As links name them.
    pub headings: Vec<String>,
    /// Targets of links.
    pub links: Vec<String>,
    /// Blocks of code with their languages.
    pub blocks: Vec<(String, String)>,
    /// Code within lines.
    spans: Vec<String>,
    pub faults: Vec<String>,
}

impl Page {
    pub fn read(root: &Path, path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut page = Self {
            path: path.strip_prefix(root).unwrap().to_owned(),
            headings: vec![],
            links: vec![],
            blocks: vec![],
            spans: vec![],
            faults: vec![],
        };
        let mut prose = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                let block: Vec<_> =
                    lines.by_ref().take_while(|line| !line.trim_start().starts_with("```")).collect();
                page.blocks.push((language.to_owned(), block.join("\n")));
                continue;
            }
            if line.starts_with('#') {
                page.headings.push(anchor(line.trim_start_matches('#')));
            }
            prose += line;
            prose.push('\n');
        }
        page.read_prose(&prose);
        page
    }

    fn read_prose(&mut self, prose: &str) {
        // What is between backquotes is code, and no link.
        let mut text = String::new();
        for (i, part) in prose.split('`').enumerate() {
            match i % 2 {
                0 => text += part,
                _ => self.spans.push(part.split_whitespace().collect::<Vec<_>>().join(" ")),
            }
        }
        let mut named = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with('[')) {
            if let Some((name, to)) = line[1..].split_once("]: ") {
                named.insert(name.to_owned(), to.trim().to_owned());
            }
        }
        for part in text.split("](").skip(1) {
            self.links.push(part.split(')').next().unwrap().to_owned());
        }
        let mut used = vec![];
        for part in text.split("][").skip(1) {
            let name = part.split(']').next().unwrap();
            match named.get(name) {
                Some(_) => used.push(name.to_owned()),
                None => self.faults.push(format!("[{name}] is not said")),
            }
        }
        self.faults.extend(
            named.keys().filter(|name| !used.contains(name)).map(|name| format!("[{name}] is not used")),
        );
        self.links.extend(named.into_values());
    }

    /// Commands in blocks for a shell, one a line, and whole ones within lines.
    pub fn commands(&self) -> Vec<String> {
        let blocks = self.blocks.iter().filter(|(language, _)| language == "sh");
        let lines = blocks.flat_map(|(_, block)| {
            let block = block.replace("\\\n", " ");
            block.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        let named = self.spans.iter().filter(|span| commands::is_whole(span));
        let named = named.flat_map(|span| commands::each(span));
        lines.chain(named).filter(|line| !line.trim().is_empty()).collect()
    }
}

/// A heading as links name it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The path without `..`.
pub fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}
