//! No two files of a crate need each other: the arrows from a file to those that define what it
//! names form no circle.
//!
//! An arrow is a path in code, also within macros: `use super::shape::Shape` in `cuda.rs` is one
//! from `cuda.rs` to the file that defines `Shape`, through whatever re-exports it. Declarations
//! (`mod cuda;`) and re-exports are none, unit tests do not count, and a file may name what the
//! files of the modules around it define: they contain it.
#![allow(clippy::unwrap_used)]
mod file_names;
mod module;

use module::{Crate, Place};
use std::collections::BTreeMap;
use std::path::Path;

const CRATES: [&str; 5] = ["custom-ops", "datasets", "models", "bins", "bins/python"];

/// Files that lie on one circle, by Tarjan's algorithm: the components of more than one file.
fn circles(arrows: &BTreeMap<Place, BTreeMap<Place, Vec<String>>>) -> Vec<Vec<Place>> {
    struct Walk<'a> {
        arrows: &'a BTreeMap<Place, BTreeMap<Place, Vec<String>>>,
        seen: BTreeMap<Place, (usize, usize)>,
        stack: Vec<Place>,
        found: Vec<Vec<Place>>,
    }
    impl Walk<'_> {
        fn visit(&mut self, at: Place) -> usize {
            let number = self.seen.len();
            self.seen.insert(at, (number, number));
            self.stack.push(at);
            let mut low = number;
            for &to in self.arrows.get(&at).into_iter().flat_map(BTreeMap::keys) {
                match self.seen.get(&to) {
                    None => low = low.min(self.visit(to)),
                    Some(&(other, _)) if self.stack.contains(&to) => low = low.min(other),
                    Some(_) => {}
                }
            }
            if low == number {
                let start = self.stack.iter().position(|&place| place == at).unwrap();
                let circle = self.stack.split_off(start);
                if circle.len() > 1 {
                    self.found.push(circle);
                }
            }
            low
        }
    }
    let mut walk = Walk { arrows, seen: BTreeMap::new(), stack: vec![], found: vec![] };
    for &at in arrows.keys() {
        if !walk.seen.contains_key(&at) {
            walk.visit(at);
        }
    }
    walk.found
}

/// The circles of a crate in words: each arrow with the names that it stands for.
fn words(of: &Crate) -> Vec<String> {
    let arrows = of.arrows();
    let told = |circle: Vec<Place>| {
        let lines = circle.iter().flat_map(|from| {
            let inside = arrows[from].iter().filter(|(to, _)| circle.contains(to));
            inside
                .map(|(to, names)| format!("  {} -> {}: {}", of.name(*from), of.name(*to), names.join(", ")))
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    circles(&arrows).into_iter().map(told).collect()
}

#[test]
fn no_file_needs_one_that_needs_it() {
    let mut found = vec![];
    for name in CRATES {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let read = Crate::read(&root);
        assert!(read.arrows().len() > 5, "{name}: {} files with arrows", read.arrows().len());
        found.extend(words(&read).into_iter().map(|circle| format!("{name}:\n{circle}")));
    }
    assert!(found.is_empty(), "{} circles of files\n{}", found.len(), found.join("\n"));
}

/// Rooms of the ops by the floor that they stand on; each uses those of lower floors alone.
const FLOORS: [(&str, usize); 6] =
    [("core", 0), ("arrays", 1), ("layers", 2), ("codes", 2), ("images", 3), ("tsne", 3)];

#[test]
fn rooms_of_ops_use_those_below() {
    let ops = Crate::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../custom-ops/src"));
    let room = |place: Place| {
        let name = ops.name(place);
        FLOORS.iter().find(|(room, _)| name.split('/').next() == Some(room))
    };
    let mut wrong = vec![];
    for (from, to) in ops.arrows() {
        for (to, names) in to {
            let (Some((of, floor)), Some((into, below))) = (room(from), room(to)) else { continue };
            if of != into && below >= floor {
                wrong.push(format!("{} -> {}: {}", ops.name(from), ops.name(to), names.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} arrows go up\n{}", wrong.len(), wrong.join("\n"));
}

/// A crate of the given files, in a folder of its own.
fn made(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    words(&Crate::read(folder.path()))
}

#[test]
fn circles_are_seen_through_re_exports_globs_and_macros() {
    let lib = ("lib.rs", "mod a; mod b; mod c; pub use b::B;");
    let b = ("b.rs", "use super::a::{self, Other}; pub struct B; fn f() { println!(\"{}\", a::g()) }");
    let direct = made(&[lib, ("a.rs", "use crate::b::B; pub struct Other; pub fn g() {}"), b, ("c.rs", "")]);
    assert_eq!(direct, ["  a.rs -> b.rs: B\n  b.rs -> a.rs: Other, a, g"]);
    let exported = made(&[lib, ("a.rs", "use crate::B; pub struct Other;"), b, ("c.rs", "")]);
    assert_eq!(exported.len(), 1, "{exported:?}");
    let c = ("c.rs", "pub use super::b::*;");
    let by_glob = made(&[lib, ("a.rs", "fn f() { bail!(\"{}\", crate::c::B) } pub struct Other;"), b, c]);
    assert_eq!(by_glob.len(), 1, "{by_glob:?}");
    // Neither a unit test nor a declaration nor a comment is an arrow.
    let a = ("a.rs", "// crate::b::B\n pub struct Other; #[cfg(test)] mod tests { use crate::b::B; }");
    assert_eq!(made(&[lib, a, b, c]), Vec::<String>::new());
}
