//! The guides say what is there: links lead somewhere, commands are read, examples are compiled.
#![allow(clippy::unwrap_used, missing_docs)]
mod commands;
mod page;

use page::Page;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where files of the repository are on the web, and folders of it.
const WEB: [&str; 2] = [
    "https://github.com/chandlery/chandlery/blob/main/",
    "https://github.com/chandlery/chandlery/tree/main/",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The pages of the repository, by their paths in it.
fn pages() -> Vec<Page> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !["target", "runs", ".git"].contains(&name.as_str()) {
                below(&path, found);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    let mut found = vec![];
    below(&root(), &mut found);
    found.sort();
    found.iter().map(|path| Page::read(&root(), path)).collect()
}

/// Asserts that there are no faults, or prints them all.
#[track_caller]
fn none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn links_lead_to_files_and_headings() {
    let pages = pages();
    assert!(pages.iter().any(|page| page.links.len() > 10));
    let mut faults = vec![];
    for page in &pages {
        faults.extend(page.faults.iter().map(|fault| format!("{}: {fault}", page.path.display())));
        for link in &page.links {
            let web = WEB.iter().find_map(|web| link.strip_prefix(web));
            if web.is_none() && link.contains("://") {
                continue;
            }
            let (file, anchor) = web.unwrap_or(link).split_once('#').unwrap_or((web.unwrap_or(link), ""));
            let from = if web.is_some() { Path::new("") } else { page.path.parent().unwrap() };
            let to = match file {
                "" => page.path.clone(),
                file => page::plain(&from.join(file)),
            };
            if !root().join(&to).exists() {
                faults.push(format!("{}: {link}: no such file", page.path.display()));
            } else if !anchor.is_empty() {
                let headings = pages.iter().find(|page| page.path == to).map(|page| &page.headings);
                if !headings.is_some_and(|headings| headings.iter().any(|heading| heading == anchor)) {
                    faults.push(format!("{}: {link}: no such heading", page.path.display()));
                }
            }
        }
    }
    none(&faults);
}

#[test]
fn pages_that_rustdoc_shows_too_have_no_relative_links() {
    let mut faults = vec![];
    for page in pages().iter().filter(|page| shown().contains(&page.path)) {
        let relative = page.links.iter().filter(|link| !link.contains("://") && !link.starts_with('#'));
        faults.extend(relative.map(|link| format!("{}: {link}", page.path.display())));
    }
    none(&faults);
}

#[test]
fn commands_are_those_of_the_programs() {
    let mut n = 0;
    let mut faults = vec![];
    for page in pages() {
        for command in page.commands() {
            n += 1;
            if let Err(fault) = commands::check(&root(), &command) {
                faults.push(format!("{}: {command}\n    {fault}", page.path.display()));
            }
        }
    }
    assert!(n > 100, "{n} commands");
    none(&faults);
}

/// The pages that a crate includes in its documentation, from its `src/lib.rs`.
fn shown() -> BTreeSet<PathBuf> {
    let crates = ["models", "datasets", "custom-ops", "bins"].map(|of| format!("{of}/src/lib.rs"));
    included(&crates)
}

/// What these files include as documentation.
fn included(files: &[String]) -> BTreeSet<PathBuf> {
    let mut pages = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        for part in text.split("#[doc = include_str!(\"").skip(1) {
            let page = Path::new(file).parent().unwrap().join(part.split('"').next().unwrap());
            pages.insert(page::plain(&page));
        }
    }
    pages
}

#[test]
fn rust_examples_are_doctests() {
    let mut tested = shown();
    tested.extend(included(&["tests/lib.rs".to_owned()]));
    let with_rust: BTreeSet<_> = pages()
        .into_iter()
        .filter(|page| page.blocks.iter().any(|(language, _)| language.starts_with("rust")))
        .map(|page| page.path)
        .collect();
    assert_eq!(with_rust, tested);
    for page in pages().iter().filter(|page| tested.contains(&page.path)) {
        assert!(page.blocks.iter().all(|(language, _)| !language.starts_with("rust,")), "{:?}", page.path);
    }
}

#[test]
fn the_readme_is_one_screen() {
    assert!(std::fs::metadata(root().join("README.md")).unwrap().len() <= 8 * 1024);
}
