//! Checks the layout of the imports in each module of each file.
//!
//! - All `use` items are in one place, before all other items except `mod` and `extern crate`.
//! - They form up to four groups, with one blank line between two groups: std, core and alloc; external crates;
//!   `crate`, `super` and `self`; re-exports.
//! - The first name of a path determines its group. So a path into a child module, or into an enum of the same module,
//!   begins with `self`.
//! - Each first name has one `use`, which is one tree. A different attribute or visibility requires another `use`.
//!
//! rustfmt has `group_imports` and `imports_granularity` for this, but only in nightly toolchains. This module ignores
//! `use` items in functions and in macros. It also ignores a `use` of a `macro_rules!` of the same module, which must
//! be below the macro.

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

/// Rewrites all files whose imports violate the layout. If one file cannot be rewritten, it changes no file.
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
        // `cargo fmt` does not format the packages below `tests` that are not in the workspace.
        let status = Command::new("rustfmt").arg(path).status().context("run rustfmt")?;
        ensure!(status.success(), "rustfmt failed on {}", path.display());
    }
    Ok(())
}

fn files(workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for package in workspace.metadata.workspace_packages() {
        let folder = package.manifest_path.as_std_path().parent().context("a manifest has no folder")?;
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

/// Returns the text with all imports in the layout. rustfmt must run afterwards, to indent, break and sort them.
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
    ensure!(left.is_empty(), "{place}: change these imports by hand: {left:?}");
    Ok(rewritten)
}

/// The groups, in their order.
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
    /// The index among the items of the module.
    index: usize,
    /// The position in the text, including attributes.
    range: Range<usize>,
    line: usize,
    /// The text before the word `use`: attributes and visibility.
    head: String,
    is_reexport: bool,
    /// The tree as it is written, but sorted.
    tree: String,
    /// The names of each path. The last name is `A`, `A as B`, `self` or `*`.
    paths: Vec<Vec<String>>,
    /// True if a comment is above, inside or after the import. A rewrite would separate the comment from the import.
    has_comment: bool,
}

impl Import {
    /// Reads a `use` item. `own` are the names of modules and enums of the same module.
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

/// Returns the `A` of `A as B`.
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

/// Formats a tree in a fixed order.
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

/// Merges all paths into one tree, in the order of [`sorted`]. `a` and `a::b` become `a::{b, self}`.
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
    /// The index of the first item that must be below all imports.
    others: usize,
    /// The end of the text above that item.
    top: usize,
}

/// Reads the modules of a file.
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
    /// Lists the violations, each with its line.
    fn faults(&self, text: &str) -> Vec<(usize, String)> {
        let mut faults = Vec::new();
        let mut seen = BTreeSet::new();
        let mut previous: Option<(&Import, Group)> = None;
        for import in &self.imports {
            let mut found = |fault: String| faults.push((import.line, fault));
            // A `use` without paths is ignored, because rustfmt removes it.
            let Some(path) = import.paths.first() else { continue };
            let group = import.group(path);
            if import.index > self.others {
                found("an import below other items".to_owned());
            } else if let Some((before, its_group)) = previous {
                let is_apart = text[before.range.end..import.range.start].contains("\n\n");
                let (name, its_name) = (GROUPS[group as usize], GROUPS[its_group as usize]);
                if import.index > before.index + 1 {
                    found("modules between the imports".to_owned());
                } else if group < its_group {
                    found(format!("the group of {name} is below the group of {its_name}"));
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
                found(format!("`use {}` must be `use {tree}`", import.tree));
            }
            previous = Some((import, group));
        }
        faults
    }

    /// Formats all imports in the layout.
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

    /// The replacements in the text: the first import becomes the whole block, and the others become empty.
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
