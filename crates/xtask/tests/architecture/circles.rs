//! Files of a crate that import each other in a circle: none of them can be read, tested or moved without the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::{Attribute, Item, UseTree, Visibility};

/// The path of a module: the names from the crate's root.
type Place = Vec<String>;

/// The imports between the files of a crate.
#[derive(Default)]
pub(crate) struct Imports {
    modules: BTreeMap<Place, Module>,
}

#[derive(Default)]
struct Module {
    uses: BTreeSet<Place>,
    /// Re-exports: the original path by the name here. An import of the name counts as an import of the original.
    handed_on: BTreeMap<String, Place>,
}

impl Imports {
    /// Reads the source folder of a crate, without its tests.
    pub(crate) fn read(source: &Path) -> Self {
        let mut imports = Self::default();
        imports.read_folder(source, &Place::new());
        let known: BTreeSet<Place> = imports.modules.keys().cloned().collect();
        for (place, module) in &mut imports.modules {
            let absolute = |path: Place| absolute(place, &path, &known);
            module.uses = std::mem::take(&mut module.uses)
                .into_iter()
                .filter_map(absolute)
                .collect();
            let handed_on = std::mem::take(&mut module.handed_on).into_iter();
            module.handed_on = handed_on
                .filter_map(|(name, path)| Some((name, absolute(path)?)))
                .collect();
        }
        imports
    }

    fn read_folder(&mut self, folder: &Path, place: &Place) {
        let entries = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        for path in entries {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if name == "tests" {
                continue;
            }
            let mut of = place.clone();
            let is_root = matches!(name.as_str(), "lib" | "main") && place.is_empty();
            if name != "mod" && !is_root {
                of.push(name);
            }
            if path.is_dir() {
                self.read_folder(&path, &of);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap();
                let module = self.modules.entry(of).or_default();
                file.items.iter().for_each(|item| module.take(item));
            }
        }
    }

    /// Returns the files of the largest circle.
    pub(crate) fn largest_circle(&self) -> Vec<String> {
        let modules = self.modules.keys();
        let imported: BTreeMap<&Place, BTreeSet<&Place>> = modules
            .map(|place| (place, self.imported(place).collect()))
            .collect();
        let reached: BTreeMap<&Place, BTreeSet<&Place>> = imported
            .keys()
            .map(|place| (*place, reached(place, &imported)))
            .collect();
        let circle = |place: &Place| -> Vec<String> {
            let back = reached[place]
                .iter()
                .filter(|other| reached[**other].contains(place));
            back.map(|other| other.join("::")).collect()
        };
        let circles = self.modules.keys().map(circle);
        circles.max_by_key(Vec::len).unwrap_or_default()
    }

    fn imported<'a>(&'a self, from: &'a Place) -> impl Iterator<Item = &'a Place> {
        let used = self.modules[from]
            .uses
            .iter()
            .filter_map(|path| self.module_of(path));
        used.filter(move |place| *place != from)
    }

    /// Returns the module that defines what a path names.
    fn module_of(&self, path: &[String]) -> Option<&Place> {
        let length = (0..=path.len())
            .rev()
            .find(|length| self.modules.contains_key(&path[..*length]))?;
        let (place, module) = self.modules.get_key_value(&path[..length])?;
        match path.get(length).and_then(|name| module.handed_on.get(name)) {
            Some(from) if from.as_slice() != path => self.module_of(from),
            _ => Some(place),
        }
    }
}

/// Returns the modules that a module imports, directly or through others.
fn reached<'a>(from: &Place, imported: &BTreeMap<&'a Place, BTreeSet<&'a Place>>) -> BTreeSet<&'a Place> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<&Place> = imported[from].iter().copied().collect();
    while let Some(place) = waiting.pop() {
        if reached.insert(place) {
            waiting.extend(&imported[place]);
        }
    }
    reached
}

impl Module {
    fn take(&mut self, item: &Item) {
        match item {
            Item::Use(item) if !is_for_tests(&item.attrs) => {
                let is_handed_on = !matches!(item.vis, Visibility::Inherited);
                self.take_tree(&item.tree, &mut Place::new(), is_handed_on);
            }
            Item::Mod(inner) if !is_for_tests(&inner.attrs) => {
                let items = inner.content.iter().flat_map(|(_, items)| items);
                items.for_each(|item| self.take(item));
            }
            _ => {}
        }
    }

    fn take_tree(&mut self, tree: &UseTree, path: &mut Place, is_handed_on: bool) {
        let (name, known_as) = match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.take_tree(&inner.tree, path, is_handed_on);
                path.pop();
                return;
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take_tree(tree, path, is_handed_on);
                }
                return;
            }
            UseTree::Glob(_) => (None, None),
            UseTree::Name(name) => (Some(name.ident.to_string()), Some(name.ident.to_string())),
            UseTree::Rename(name) => (Some(name.ident.to_string()), Some(name.rename.to_string())),
        };
        let mut named = path.clone();
        named.extend(name.filter(|name| name != "self"));
        match known_as {
            Some(known_as) if is_handed_on => {
                self.handed_on.insert(known_as, named);
            }
            _ => {
                self.uses.insert(named);
            }
        }
    }
}

/// Returns true for `cfg(test)`, also among other conditions.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_for_tests = |attribute: &Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        _ => false,
    };
    attributes.iter().any(is_for_tests)
}

/// Returns a path from the crate's root; `None` if it leaves the crate.
fn absolute(place: &Place, path: &[String], known: &BTreeSet<Place>) -> Option<Place> {
    let first = path.first()?;
    let mut from = place.clone();
    let mut rest = path;
    match first.as_str() {
        "crate" => (from, rest) = (Place::new(), &path[1..]),
        "self" | "super" => {
            while let Some(step) = rest
                .first()
                .filter(|step| matches!(step.as_str(), "self" | "super"))
            {
                if step == "super" {
                    from.pop();
                }
                rest = &rest[1..];
            }
        }
        child => {
            let mut of = from.clone();
            of.push(child.to_owned());
            if !known.contains(&of) {
                return None;
            }
        }
    }
    from.extend_from_slice(rest);
    Some(from)
}
