//! One layout of imports, for each module of each file.
//!
//! - The `use` items stand together, before all other items except `mod` and `extern crate`.
//! - They form up to four groups, with one blank line between two of them: std, core and alloc; external crates;
//!   `crate`, `super` and `self`; re-exports.
//! - The first name of a path says its group. So a path into a child module or an enum beside it begins with `self`.
//! - Each first name has one `use`, which is one tree. Other attributes or another visibility make another `use`.
//!
//! rustfmt has `group_imports` and `imports_granularity` for this, but only on a nightly toolchain. `use` items in
//! functions and in macros are not read. Neither is a `use` of a `macro_rules!` of its module, because it must stand
//! below that.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, ensure};
use syn::{Ident, Item, ItemEnum, ItemMod, ItemUse, UseTree, Visibility, spanned::Spanned as _};

use super::{Violation, sources};
use crate::workspace::Workspace;

const FIX: &str = "run `cargo xtask tidy --fix-imports`";

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for path in files(workspace)? {
        violations.extend(check_text(&sources::place(workspace, &path), &sources::read(&path)?)?);
    }
    Ok(violations)
}

/// Rewrites the files whose imports have another layout: all of them, or none if one of them cannot be rewritten.
pub(super) fn fix(workspace: &Workspace) -> anyhow::Result<()> {
    let mut rewritten = Vec::new();
    for path in files(workspace)? {
        let text = sources::read(&path)?;
        let new = rewrite(&sources::place(workspace, &path), &text)?;
        if new != text {
            rewritten.push((path, new));
        }
    }
    println!("tidy: rewriting the imports of {} files", rewritten.len());
    for (path, text) in &rewritten {
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        // `cargo fmt` leaves out the packages below `tests` that are not of the workspace.
        let status = Command::new("rustfmt").arg(path).status().context("run rustfmt")?;
        ensure!(status.success(), "rustfmt failed on {}", path.display());
    }
    Ok(())
}

fn files(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for package in workspace.metadata.workspace_packages() {
        let folder = package.manifest_path.as_std_path().parent().context("a manifest is in a folder")?;
        for sub in sources::FOLDERS {
            files.extend(sources::rust_files(&folder.join(sub))?);
        }
    }
    Ok(files)
}

fn check_text(place: &str, text: &str) -> anyhow::Result<Vec<Violation>> {
    let modules = modules(text).with_context(|| format!("parse {place}"))?;
    let faults = modules.iter().flat_map(|module| module.faults(text));
    Ok(faults.map(|(line, fault)| Violation::new(format!("{place}:{line}"), fault, FIX)).collect())
}

/// The text with all imports in the layout. rustfmt has to follow: it indents, breaks and sorts.
fn rewrite(place: &str, text: &str) -> anyhow::Result<String> {
    let mut edits = Vec::new();
    for module in modules(text).with_context(|| format!("parse {place}"))? {
        if !module.faults(text).is_empty() {
            for import in &module.imports {
                ensure!(
                    !import.has_comment,
                    "{place}:{}: the comment at this import would lose its place: move it above all imports, with a \
                     blank line below it",
                    import.line
                );
            }
            edits.extend(module.edits(text));
        }
    }
    edits.sort_by_key(|(range, _)| range.start);
    let mut rewritten = text.to_owned();
    for (range, new) in edits.into_iter().rev() {
        rewritten.replace_range(range, &new);
    }
    let left = check_text(place, &rewritten)?;
    ensure!(left.is_empty(), "{place}: change these imports by hand, a rewriting is not enough: {left:?}");
    Ok(rewritten)
}

/// In their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Std,
    External,
    Own,
    Reexports,
}

const GROUPS: [&str; 4] = ["std, core and alloc", "external crates", "crate, super and self", "re-exports"];

/// A `use` item.
struct Import {
    /// Its place among the items of its module.
    index: usize,
    /// With its attributes.
    range: Range<usize>,
    line: usize,
    /// The text before the word `use`: attributes, visibility.
    head: String,
    is_reexport: bool,
    /// As it is written, sorted.
    tree: String,
    /// The names of each path; the last is `A`, `A as B`, `self` or `*`.
    paths: Vec<Vec<String>>,
    /// Whether there is a comment above, inside or behind it. A rewriting cannot keep it there.
    has_comment: bool,
}

impl Import {
    /// `own` are the names of modules and enums beside it.
    fn read(text: &str, index: usize, item: &ItemUse, own: &BTreeSet<String>) -> Self {
        let range = item.span().byte_range();
        let keyword = item.use_token.span.byte_range().start;
        let above = text[..range.start].trim_end_matches(' ').lines().next_back().unwrap_or_default().trim();
        let line_end = range.end + text[range.end..].find('\n').unwrap_or(0);
        let has_comment = |text: &str| text.contains("//") || text.contains("/*");
        let colons = if item.leading_colon.is_some() { "::" } else { "" };
        let mut paths = Vec::new();
        flatten(&item.tree, &[], &mut paths);
        for path in &mut paths {
            path[0].insert_str(0, colons);
            if own.contains(first_word(&path[0])) {
                path.insert(0, "self".to_owned());
            }
        }
        Self {
            index,
            line: item.use_token.span.start().line,
            head: text[range.start..keyword].to_owned(),
            is_reexport: !matches!(item.vis, Visibility::Inherited),
            tree: format!("{colons}{}", sorted(&item.tree)),
            paths,
            has_comment: has_comment(&text[keyword..line_end])
                || above.ends_with("*/")
                || above.starts_with("//") && !above.starts_with("//!"),
            range,
        }
    }

    fn group(&self, path: &[String]) -> Group {
        match first_word(&path[0]).trim_start_matches(':') {
            _ if self.is_reexport => Group::Reexports,
            "std" | "core" | "alloc" => Group::Std,
            "crate" | "super" | "self" => Group::Own,
            _ => Group::External,
        }
    }
}

/// Of `A as B`, the `A`.
fn first_word(name: &str) -> &str {
    name.split(' ').next().unwrap_or_default()
}

fn flatten(tree: &UseTree, before: &[String], paths: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &[before, &[path.ident.to_string()]].concat(), paths),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, paths)),
        leaf => paths.push([before, &[sorted(leaf)]].concat()),
    }
}

/// The text of a tree, which does not depend on the order in which it was written.
fn sorted(tree: &UseTree) -> String {
    match tree {
        UseTree::Path(path) => format!("{}::{}", path.ident, sorted(&path.tree)),
        UseTree::Name(name) => name.ident.to_string(),
        UseTree::Rename(rename) => format!("{} as {}", rename.ident, rename.rename),
        UseTree::Glob(_) => "*".to_owned(),
        UseTree::Group(group) => braces(group.items.iter().map(sorted).collect()),
    }
}

fn braces(mut trees: Vec<String>) -> String {
    trees.sort();
    format!("{{{}}}", trees.join(", "))
}

/// One tree of all paths, sorted as by [`sorted`]. `a` and `a::b` become `a::{b, self}`.
fn merged(paths: Vec<&[String]>) -> String {
    let mut deeper: BTreeMap<&str, Vec<&[String]>> = BTreeMap::new();
    for path in paths {
        let (name, rest) = path.split_first().map_or(("self", path), |(name, rest)| (name, rest));
        deeper.entry(name).or_default().push(rest);
    }
    let tree = |(name, rests): (&str, Vec<&[String]>)| {
        let is_end = rests.iter().all(|rest| rest.is_empty());
        if is_end { name.to_owned() } else { format!("{name}::{}", merged(rests)) }
    };
    let trees: Vec<_> = deeper.into_iter().map(tree).collect();
    match &trees[..] {
        [one] if first_word(one) != "self" => one.clone(),
        _ => braces(trees),
    }
}

/// The imports of one module.
struct Module {
    imports: Vec<Import>,
    /// The place of the first item that imports must not stand below.
    others: usize,
    /// The end of what stands above that item.
    top: usize,
}

/// Those of a file.
fn modules(text: &str) -> syn::Result<Vec<Module>> {
    let file = syn::parse_file(text)?;
    let mut modules = Vec::new();
    read(text, &file.items, file.attrs.last().map_or(0, |attribute| attribute.span().byte_range().end), &mut modules);
    Ok(modules)
}

fn read(text: &str, items: &[Item], start: usize, modules: &mut Vec<Module>) {
    let names = |name: fn(&Item) -> Option<&Ident>| items.iter().filter_map(name).map(Ident::to_string).collect();
    let macros: BTreeSet<String> = names(|item| if let Item::Macro(it) = item { it.ident.as_ref() } else { None });
    let own: BTreeSet<String> = names(|item| match item {
        Item::Mod(ItemMod { ident, .. }) | Item::Enum(ItemEnum { ident, .. }) => Some(ident),
        _ => None,
    });
    let mut module = Module { imports: Vec::new(), others: items.len(), top: start };
    for (index, item) in items.iter().enumerate() {
        match item {
            Item::Use(it) if !macros.contains(first_word(&sorted(&it.tree))) => {
                module.imports.push(Import::read(text, index, it, &own));
            }
            Item::Mod(ItemMod { content: None, .. }) | Item::ExternCrate(_) => {}
            _ => module.others = module.others.min(index),
        }
        if let Item::Mod(ItemMod { content: Some((braces, items)), .. }) = item {
            read(text, items, braces.span.open().byte_range().end, modules);
        }
    }
    if let Some(above) = module.others.checked_sub(1) {
        module.top = items[above].span().byte_range().end;
    }
    modules.push(module);
}

impl Module {
    /// Each with its line.
    fn faults(&self, text: &str) -> Vec<(usize, String)> {
        let mut faults = Vec::new();
        let mut seen = BTreeSet::new();
        let mut previous: Option<(&Import, Group)> = None;
        for import in &self.imports {
            let mut found = |fault: String| faults.push((import.line, fault));
            // rustfmt removes a `use` that imports nothing.
            let Some(path) = import.paths.first() else { continue };
            let group = import.group(path);
            if import.index > self.others {
                found("an import below items that are no imports".to_owned());
            } else if let Some((before, its_group)) = previous {
                let is_apart = text[before.range.end..import.range.start].contains("\n\n");
                let (name, its_name) = (GROUPS[group as usize], GROUPS[its_group as usize]);
                if import.index > before.index + 1 {
                    found("modules stand between the imports".to_owned());
                } else if group < its_group {
                    found(format!("the group of {name} is below the one of {its_name}"));
                } else if is_apart && group == its_group {
                    found(format!("a blank line inside the group of {name}"));
                } else if !is_apart && group != its_group {
                    found(format!("no blank line between the groups of {its_name} and of {name}"));
                }
            }
            if !seen.insert((group, &import.head, &path[0])) {
                found(format!("a second `use` of `{}`", path[0]));
            }
            let tree = merged(import.paths.iter().map(Vec::as_slice).collect());
            if tree.starts_with('{') {
                found("a `use` of several crates".to_owned());
            } else if tree != import.tree {
                found(format!("`use {}` where the layout has `use {tree}`", import.tree));
            }
            previous = Some((import, group));
        }
        faults
    }

    /// All imports in the layout.
    fn block(&self) -> String {
        let mut items: BTreeMap<(Group, &str, &str), Vec<&[String]>> = BTreeMap::new();
        for import in &self.imports {
            for path in &import.paths {
                items.entry((import.group(path), &import.head, &path[0])).or_default().push(path);
            }
        }
        let (mut block, mut group_above) = (String::new(), None);
        for ((group, head, _), paths) in items {
            if group_above.replace(group).is_some_and(|above| above != group) {
                block.push('\n');
            }
            block += &format!("{head}use {};\n", merged(paths));
        }
        block
    }

    /// What to replace in the text: the first import by all of them, the others by nothing.
    fn edits(&self, text: &str) -> Vec<(Range<usize>, String)> {
        let mut edits: Vec<_> = self.imports.iter().map(|import| (import.range.clone(), String::new())).collect();
        for (range, _) in &mut edits {
            range.end += usize::from(text[range.end..].starts_with('\n'));
        }
        if self.imports[0].index > self.others {
            let rest_of_line = if self.top > 0 { text[self.top..].find('\n').unwrap_or(0) } else { 0 };
            let at = self.top + rest_of_line;
            edits.push((at..at, format!("\n\n{}\n", self.block())));
        } else {
            edits[0].1 = self.block();
        }
        edits
    }
}

#[cfg(test)]
mod tests;
