//! Reads the modules of a crate and the imports between them from the source code.
//!
//! An import is a `use`, or a path in the code, that refers to the same crate: `crate::…`, `super::…`, `self::…`, or
//! the name of a child module. It counts as an import from the module that defines the named item, not from a module
//! that re-exports it. Code for tests is ignored. Paths that a macro composes are not detected.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, ImplItem, Item, Meta, Stmt, UseTree,
    ext::IdentExt as _,
    spanned::Spanned as _,
    visit::{self, Visit},
};

/// The path of a module in its crate. Empty for the root.
pub(super) type Module = Vec<String>;

/// An import of one module from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    pub(super) from: Module,
    pub(super) to: Module,
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

/// The modules of a crate, and the imports between them.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) modules: BTreeSet<Module>,
    pub(super) imports: Vec<Import>,
}

/// The maximum number of re-exports that are followed for one name.
const MOST_REEXPORTS: usize = 16;

/// Reads a crate from its root file, such as `src/lib.rs`.
pub(super) fn read(root: &Path) -> anyhow::Result<Source> {
    let mut modules = BTreeMap::new();
    let folder = root.parent().context("the file has no folder")?;
    read_file(root, folder, &Module::new(), &mut modules)?;
    let mut imports = BTreeSet::new();
    for (from, scope) in &modules {
        for path in &scope.paths {
            let to = resolve(&modules, from, &path.names, 0);
            if let Some(to) = to.filter(|to| to != from) {
                imports.insert(Import { from: from.clone(), to, file: scope.file.clone(), line: path.line });
            }
        }
    }
    Ok(Source { modules: modules.into_keys().collect(), imports: imports.into_iter().collect() })
}

/// The contents of one module.
#[derive(Debug, Default)]
struct Scope {
    file: PathBuf,
    /// The paths of imports, by the name that they have in this module.
    names: BTreeMap<String, Vec<String>>,
    paths: Vec<Named>,
}

#[derive(Debug)]
struct Named {
    names: Vec<String>,
    line: usize,
}

fn read_file(
    file: &Path,
    children: &Path,
    module: &Module,
    modules: &mut BTreeMap<Module, Scope>,
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("parse {}", file.display()))?;
    read_items(&parsed.items, file, children, module, modules)
}

/// Reads the items of a module. `children` is the folder with the files of the modules that are declared here.
fn read_items(
    items: &[Item],
    file: &Path,
    children: &Path,
    module: &Module,
    modules: &mut BTreeMap<Module, Scope>,
) -> anyhow::Result<()> {
    let mut reader = Reader { scope: Scope { file: file.to_owned(), ..Scope::default() }, inner: Vec::new() };
    for item in items {
        reader.visit_item(item);
    }
    let Reader { scope, inner } = reader;
    modules.insert(module.clone(), scope);
    for item in inner {
        let name = item.ident.unraw().to_string();
        ensure!(
            !item.attrs.iter().any(|attribute| attribute.path().is_ident("path")),
            "{}: #[path] on module {name} is not read: use the default path of the module",
            file.display()
        );
        let child = [&module[..], std::slice::from_ref(&name)].concat();
        let folder = children.join(&name);
        match &item.content {
            Some((_, items)) => read_items(items, file, &folder, &child, modules)?,
            None => {
                read_file(&children.join(format!("{name}.rs")), &folder, &child, modules)?;
            }
        }
    }
    Ok(())
}

/// Returns true if the item is compiled for tests only.
pub(in crate::tidy) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let Meta::List(list) = &attribute.meta else { return false };
        attribute.path().is_ident("cfg") && asks_for_test(list.tokens.clone())
    })
}

/// Returns true if the condition is `test`, or `all(…)` with `test` in it.
fn asks_for_test(condition: TokenStream) -> bool {
    let mut tokens = condition.into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Ident(word)), None) => word == "test",
        (Some(TokenTree::Ident(word)), Some(TokenTree::Group(group))) if word == "all" => {
            let mut part = TokenStream::new();
            let mut parts = Vec::new();
            for token in group.stream() {
                match token {
                    TokenTree::Punct(comma) if comma.as_char() == ',' => parts.push(std::mem::take(&mut part)),
                    other => part.extend([other]),
                }
            }
            parts.push(part);
            parts.into_iter().any(asks_for_test)
        }
        _ => false,
    }
}

/// Collects the paths of one module, and the modules that are declared in it.
struct Reader<'ast> {
    scope: Scope,
    inner: Vec<&'ast syn::ItemMod>,
}

impl Reader<'_> {
    fn note(&mut self, names: Vec<String>, line: usize) {
        self.scope.paths.push(Named { names, line });
    }

    /// Records each name that a `use` imports.
    fn bring(&mut self, tree: &UseTree, mut before: Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.unraw().to_string());
                self.bring(&path.tree, before);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.bring(tree, before.clone())),
            UseTree::Glob(_) => self.note(before, tree.span().start().line),
            UseTree::Name(name) => self.bring_as(&name.ident, &name.ident, before),
            UseTree::Rename(rename) => self.bring_as(&rename.ident, &rename.rename, before),
        }
    }

    fn bring_as(&mut self, name: &syn::Ident, here: &syn::Ident, mut path: Vec<String>) {
        let mut here = here.unraw().to_string();
        if name == "self" {
            // `use a::{self}` imports `a`.
            if here == "self" {
                here = path.last().cloned().unwrap_or_default();
            }
        } else {
            path.push(name.unraw().to_string());
        }
        self.scope.names.insert(here, path.clone());
        self.note(path, name.span().start().line);
    }

    /// Finds paths in the tokens of a macro, which are not parsed.
    fn look_into(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_of(&mut path, line);
                        line = ident.span().start().line;
                    }
                    path.push(ident.unraw().to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.end_of(&mut path, line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.look_into(group.stream());
                    }
                }
            }
        }
        self.end_of(&mut path, line);
    }

    /// Records the path, unless it is a single word, which can be a variable or a field.
    fn end_of(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.note(path, line);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'ast> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inner.push(item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.bring(&item.tree, Vec::new());
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Fn(it) => &it.attrs[..],
            ImplItem::Const(it) => &it.attrs,
            ImplItem::Type(it) => &it.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes = match statement {
            Stmt::Local(it) => &it.attrs[..],
            Stmt::Macro(it) => &it.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.unraw().to_string()).collect();
            self.note(names, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {
        // Paths in attributes, such as `derive(serde::Serialize)`, name other crates, so they are no imports of
        // modules.
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // Visibilities such as `pub(super)` and `pub(in crate::a)` are not imports.
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.look_into(invocation.tokens.clone());
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::ExternCrate(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::ForeignMod(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::TraitAlias(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Union(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// Returns the module that defines the item of a path. None if the item is in another crate, or if this is not a path
/// of a module.
fn resolve(modules: &BTreeMap<Module, Scope>, from: &Module, path: &[String], depth: usize) -> Option<Module> {
    let mut rest = path.iter().map(String::as_str).peekable();
    let mut here = match *rest.peek()? {
        "crate" => {
            rest.next();
            Module::new()
        }
        "self" => {
            rest.next();
            // `self` alone is a value: the receiver of a method.
            rest.peek()?;
            from.clone()
        }
        "super" => {
            let mut here = from.clone();
            while rest.next_if(|name| *name == "super").is_some() {
                here.pop()?;
            }
            here
        }
        name => {
            let child = [&from[..], &[name.to_owned()]].concat();
            let brought = modules[from].names.get(name).filter(|brought| brought.len() > 1 || brought[0] != *name);
            if !modules.contains_key(&child) {
                // If the name comes from a `use` and the path continues, the path is resolved through that `use`.
                let rest: Vec<_> = path[1..].to_vec();
                let brought = brought.filter(|_| !rest.is_empty() && depth < MOST_REEXPORTS)?;
                return resolve(modules, from, &[&brought[..], &rest].concat(), depth + 1);
            }
            from.clone()
        }
    };
    while let Some(name) = rest.next() {
        let child = [&here[..], &[name.to_owned()]].concat();
        if modules.contains_key(&child) {
            here = child;
            continue;
        }
        if let Some(brought) = modules[&here].names.get(name).filter(|_| depth < MOST_REEXPORTS) {
            let path: Vec<_> = brought.iter().cloned().chain(rest.map(str::to_owned)).collect();
            // If the path cannot be resolved further, this module re-exports a name of another crate.
            return resolve(modules, &here, &path, depth + 1).or(Some(here));
        }
        break;
    }
    Some(here)
}
