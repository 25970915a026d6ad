//! The modules of a crate, and which files the paths in their code lead to.
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{Attribute, Item, UseTree, Visibility};

/// A file, by its number.
pub type Place = usize;

/// A module: a file or, in braces, a part of one.
struct Module {
    file: Place,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// What it defines itself.
    items: BTreeSet<String>,
    /// What `use` binds here: a name, and the path that it stands for.
    uses: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
    /// The paths in its code.
    paths: Vec<Vec<String>>,
}

/// A crate's modules, the root first.
pub struct Crate {
    files: Vec<String>,
    modules: Vec<Module>,
}

/// What a path leads to.
enum Target {
    Module(usize),
    Item(Place, String),
}

impl Crate {
    /// Reads `lib.rs` below `root` and every file that it declares.
    pub fn read(root: &Path) -> Self {
        let mut read = Self { files: vec![], modules: vec![] };
        read.file(root, &root.join("lib.rs"), root.to_owned(), None);
        read
    }

    /// A file's name below the root.
    pub fn name(&self, place: Place) -> &str {
        &self.files[place]
    }

    fn file(&mut self, root: &Path, path: &Path, below: PathBuf, parent: Option<usize>) -> usize {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.files.push(path.strip_prefix(root).unwrap().display().to_string());
        self.module(root, parsed.items, below, self.files.len() - 1, parent)
    }

    fn module(
        &mut self,
        root: &Path,
        items: Vec<Item>,
        below: PathBuf,
        file: Place,
        parent: Option<usize>,
    ) -> usize {
        let here = self.modules.len();
        self.modules.push(Module {
            file,
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            uses: vec![],
            globs: vec![],
            paths: vec![],
        });
        for item in items {
            match item {
                Item::Mod(item) if is_test(&item.attrs) => {}
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let folder = below.join(&name);
                    let child = match item.content {
                        Some((_, items)) => self.module(root, items, folder, file, Some(here)),
                        None => {
                            let flat = below.join(format!("{name}.rs"));
                            let path = if flat.is_file() { flat } else { folder.join("mod.rs") };
                            self.file(root, &path, folder, Some(here))
                        }
                    };
                    self.modules[here].children.insert(name, child);
                }
                Item::Use(item) => {
                    let module = &mut self.modules[here];
                    let before = module.uses.len();
                    bind(&item.tree, &mut vec![], module);
                    if !matches!(item.vis, Visibility::Public(_)) {
                        let new =
                            module.uses[before..].iter().map(|(_, path)| path.clone()).collect::<Vec<_>>();
                        module.paths.extend(new);
                    }
                }
                item => {
                    let module = &mut self.modules[here];
                    module.items.extend(defined(&item));
                    scan(item.to_token_stream(), &[], &mut module.paths);
                }
            }
        }
        here
    }

    /// The arrows from each file to others, with the names that they stand for.
    pub fn arrows(&self) -> BTreeMap<Place, BTreeMap<Place, Vec<String>>> {
        let mut arrows = BTreeMap::<Place, BTreeMap<Place, BTreeSet<String>>>::new();
        for (at, module) in self.modules.iter().enumerate() {
            let to = arrows.entry(module.file).or_default();
            for path in &module.paths {
                let (place, name) = match self.follow(at, path, 0) {
                    Some(Target::Item(place, name)) => (place, name),
                    Some(Target::Module(module)) => {
                        (self.modules[module].file, path.last().cloned().unwrap_or_default())
                    }
                    None => continue,
                };
                if place != module.file && !self.is_above(place, module.file) {
                    to.entry(place).or_default().insert(name);
                }
            }
        }
        let listed = |(to, names): (Place, BTreeSet<String>)| (to, names.into_iter().collect());
        arrows.into_iter().map(|(from, to)| (from, to.into_iter().map(listed).collect())).collect()
    }

    /// Whether `upper` is the file of a module that contains the module of `lower`.
    fn is_above(&self, upper: Place, lower: Place) -> bool {
        let at = self.modules.iter().position(|module| module.file == lower);
        let mut above = at.and_then(|at| self.modules[at].parent);
        while let Some(at) = above {
            if self.modules[at].file == upper {
                return true;
            }
            above = self.modules[at].parent;
        }
        false
    }

    /// What `path`, written in the module `at`, leads to; none where that is outside of the crate
    /// or not told from a type's member.
    fn follow(&self, at: usize, path: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.inside(0, rest, depth),
            "self" => self.inside(at, rest, depth),
            "super" => self.follow_up(self.modules[at].parent?, rest, depth),
            _ => self.inside(at, path, depth),
        }
    }

    fn follow_up(&self, at: usize, path: &[String], depth: usize) -> Option<Target> {
        match path.split_first() {
            Some((first, rest)) if first == "super" => self.follow_up(self.modules[at].parent?, rest, depth),
            _ => self.inside(at, path, depth),
        }
    }

    fn inside(&self, at: usize, path: &[String], depth: usize) -> Option<Target> {
        let module = &self.modules[at];
        let Some((first, rest)) = path.split_first() else { return Some(Target::Module(at)) };
        if depth > 20 {
            return None;
        }
        if module.items.contains(first) {
            return Some(Target::Item(module.file, first.clone()));
        }
        if let Some(&child) = module.children.get(first) {
            return self.inside(child, rest, depth);
        }
        let bound = module.uses.iter().filter(|(name, _)| name == first);
        let globs = module.globs.iter();
        let mut longer = bound
            .map(|(_, path)| [path.as_slice(), rest].concat())
            .chain(globs.map(|glob| [glob.as_slice(), path].concat()));
        // A path that begins with its own name is one of another crate.
        longer.find_map(|longer| if longer == path { None } else { self.follow(at, &longer, depth + 1) })
    }
}

/// Whether `#[cfg(test)]` stands there.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("cfg") && a.to_token_stream().to_string().contains("test"))
}

/// The name that an item gives to its module.
fn defined(item: &Item) -> Option<String> {
    Some(
        match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Macro(item) => item.ident.as_ref()?,
            _ => return None,
        }
        .to_string(),
    )
}

/// What a `use` binds.
fn bind(tree: &UseTree, path: &mut Vec<String>, module: &mut Module) {
    let mut end = |name: &dyn ToString, last: &dyn ToString| {
        let (name, last) = (name.to_string(), last.to_string());
        if last == "self" {
            let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
            module.uses.push((name, path.clone()));
        } else {
            module.uses.push((name, [path.as_slice(), &[last]].concat()));
        }
    };
    match tree {
        UseTree::Name(tree) => end(&tree.ident, &tree.ident),
        UseTree::Rename(tree) => end(&tree.rename, &tree.ident),
        UseTree::Glob(_) => module.globs.push(path.clone()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| bind(tree, path, module)),
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            bind(&tree.tree, path, module);
            path.pop();
        }
    }
}

/// Every `a::b` in code, braces after `::` opened.
fn scan(code: TokenStream, before: &[String], paths: &mut Vec<Vec<String>>) {
    let tokens: Vec<_> = code.into_iter().collect();
    let is_colon = |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(first) => {
                let mut path = before.to_vec();
                path.push(first.to_string());
                at += 1;
                while is_colon(at) && is_colon(at + 1) {
                    match tokens.get(at + 2) {
                        Some(TokenTree::Ident(next)) => path.push(next.to_string()),
                        Some(TokenTree::Group(group)) => {
                            scan(group.stream(), &path, paths);
                            at += 3;
                            break;
                        }
                        _ => break,
                    }
                    at += 3;
                }
                // A name alone may be a variable; imported ones were seen where they are imported.
                if path.len() > 1 {
                    paths.push(path);
                }
            }
            TokenTree::Group(group) => {
                scan(group.stream(), before, paths);
                at += 1;
            }
            _ => at += 1,
        }
    }
}
