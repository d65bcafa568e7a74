//! Builds the manual as a site with mdBook, and checks every link of its pages.
//!
//! mdBook does not report broken links, and it renames pages. This is not a stage of `cargo xtask test`, because
//! compiling mdBook takes minutes on a new machine. The links of the source pages are checked without mdBook.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, bail, ensure};

use super::{Fault, markdown::relative_to};
use crate::{debian::Missing, workspace::files_below};

/// The output folder in book.toml.
const SITE: &str = "target/manual";
/// The page for unknown addresses. Its links are relative to the root of the site.
const ANYWHERE: &str = "404.html";

/// The command that installs mdBook, for which Debian has no package.
const INSTALL: &str = "cargo install mdbook --locked";

/// Builds the site. Returns the number of its pages, and the faults.
pub(super) fn build(root: &Path) -> anyhow::Result<(usize, Vec<Fault>)> {
    match Command::new("mdbook").arg("build").current_dir(root).status() {
        Ok(status) => ensure!(status.success(), "mdbook build: {status}"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = format!("mdbook is not in the PATH; install it with: {INSTALL} (takes some minutes)");
            return Err(Missing(text).into());
        }
        Err(error) => bail!("run mdbook: {error}"),
    }
    let pages = read(&root.join(SITE))?;
    let faults = follow(&root.join(SITE), &pages);
    Ok((pages.len(), faults))
}

/// The links of a page of the site, and its anchors.
#[derive(Default)]
struct Page {
    /// The links, with their lines.
    links: Vec<(usize, String)>,
    places: BTreeSet<String>,
}

impl Page {
    fn parse(html: &str) -> Self {
        let mut page = Self::default();
        for (index, line) in html.lines().enumerate() {
            for name in ["href", "src"] {
                page.links.extend(values(line, name).map(|link| (index + 1, link.to_owned())));
            }
            page.places.extend(values(line, "id").map(str::to_owned));
        }
        page
    }
}

/// The values of an attribute in a line of HTML, in the format of mdBook.
fn values<'a>(line: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let parts: Vec<&str> = line.split(begin.as_str()).skip(1).collect();
    parts.into_iter().filter_map(|rest| rest.split_once('"').map(|(value, _)| value))
}

/// Reads all pages, by their path within the site.
fn read(site: &Path) -> anyhow::Result<BTreeMap<String, Page>> {
    let mut pages = BTreeMap::new();
    for place in files_below(site)?.into_iter().filter(|place| place.extension().is_some_and(|it| it == "html")) {
        let html = fs::read_to_string(&place).with_context(|| format!("read {}", place.display()))?;
        let name = place.strip_prefix(site).unwrap_or(&place).display().to_string();
        pages.insert(name, Page::parse(&html));
    }
    Ok(pages)
}

/// Finds the links within the site whose file or anchor does not exist.
fn follow(site: &Path, pages: &BTreeMap<String, Page>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (name, page) in pages.iter().filter(|(name, _)| *name != ANYWHERE) {
        for (line, link) in &page.links {
            if link.contains(':') || link.starts_with("//") {
                continue;
            }
            let (file, place) = link.split_once('#').map_or((link.as_str(), ""), |(file, place)| (file, place));
            let file = if file.is_empty() { name.clone() } else { relative_to(name, file) };
            let there = match pages.get(&file) {
                Some(page) => place.is_empty() || page.places.contains(place),
                None => site.join(&file).is_file(),
            };
            if !there {
                let what = format!("the link {link} is broken");
                faults.push(Fault { page: format!("{SITE}/{name}"), line: *line, what });
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_site_lead_to_files_and_places() {
        let site = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(site.path().join("guides")).expect("a folder");
        fs::write(site.path().join("a.svg"), "").expect("a picture");
        let page = |name: &str, html: &str| fs::write(site.path().join(name), html).expect("a page");
        page("index.html", "<h1 id=\"top\"><a class=\"x\" href=\"#top\">\n<a href=\"https://example.com/#b\">");
        page("guides/b.html", "<img alt=\"\" src=\"../a.svg\"><a href=\"../index.html#top\"></a>\n<img src=\"c.svg\">");
        page("c.html", "\n<a href=\"index.html#none\"></a> <a href=\"guides/b.md\"></a>");
        page(ANYWHERE, "<base href=\"/\"><a href=\"nothing.html\"></a>");
        let pages = read(site.path()).expect("a site");
        let told: Vec<_> = follow(site.path(), &pages)
            .into_iter()
            .map(|fault| format!("{}:{}: {}", fault.page, fault.line, fault.what))
            .collect();
        assert_eq!(
            told,
            [
                "target/manual/c.html:2: the link index.html#none is broken",
                "target/manual/c.html:2: the link guides/b.md is broken",
                "target/manual/guides/b.html:2: the link c.svg is broken",
            ]
        );
    }
}
