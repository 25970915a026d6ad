//! Names of files that every system can check out: Windows reserves some, and neither it nor macOS
//! tells upper from lower case.
use std::collections::BTreeMap;
use std::path::Path;

/// Devices of Windows, with any extension; `com` and `lpt` have a digit.
const RESERVED: [&str; 4] = ["con", "prn", "aux", "nul"];

/// Folders that git does not know.
const OUTSIDE: [&str; 4] = [".git", ".gpu", "target", "runs"];

/// What is wrong with the name of a file or folder.
fn fault(name: &str) -> Option<&'static str> {
    let stem = name.split('.').next().unwrap_or(name).to_lowercase();
    let numbered =
        |device| stem.strip_prefix(device).is_some_and(|n| n.len() == 1 && ("1"..="9").contains(&n));
    match () {
        () if RESERVED.contains(&stem.as_str()) || numbered("com") || numbered("lpt") => Some("a device"),
        () if name.contains(|c: char| c.is_control() || "<>:\"|?*\\".contains(c)) => Some("a letter"),
        () if name.ends_with([' ', '.']) => Some("its end"),
        () => None,
    }
}

/// The faults of a folder's names, and of two that differ by case alone.
fn faults(names: &[String]) -> Vec<String> {
    let mut seen = BTreeMap::new();
    let mut found = vec![];
    for name in names {
        found.extend(fault(name).map(|fault| format!("{name}: {fault} that Windows reserves")));
        if let Some(other) = seen.insert(name.to_lowercase(), name) {
            found.push(format!("{name} and {other} differ by case alone"));
        }
    }
    found
}

/// The same of all folders below.
fn below(folder: &Path, found: &mut Vec<String>) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let entries: Vec<_> =
        entries.filter(|entry| !OUTSIDE.iter().any(|&name| entry.file_name() == name)).collect();
    let names: Vec<_> = entries.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
    found.extend(faults(&names).iter().map(|fault| format!("{}: {fault}", folder.display())));
    let folders = entries.iter().filter(|entry| entry.file_type().unwrap().is_dir());
    names.len() + folders.map(|entry| below(&entry.path(), found)).sum::<usize>()
}

#[test]
fn every_system_can_check_out_the_files() {
    let mut found = vec![];
    let n = below(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    assert!(n > 500, "{n} files");
    assert!(found.is_empty(), "{} names\n{}", found.len(), found.join("\n"));
}

#[test]
fn names_that_some_system_refuses_are_seen() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    for bad in ["aux.rs", "Nul", "con.tar.gz", "com1.txt", "LPT9", "a:b", "what?", "end.", "end "] {
        assert_eq!(faults(&names(&[bad])).len(), 1, "{bad}");
    }
    for good in ["auxiliary.rs", "console.rs", "common", "com.rs", "com10.rs", "a-b_c.d", ".gitignore"] {
        assert_eq!(faults(&names(&[good])), Vec::<String>::new(), "{good}");
    }
    assert_eq!(faults(&names(&["Page.rs", "a.rs", "page.rs"])), ["page.rs and Page.rs differ by case alone"]);
}
