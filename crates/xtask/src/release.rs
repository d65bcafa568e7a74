//! `cargo xtask release VERSION`: changes the versions of crates, images and charts together.
//!
//! The command only changes files. A person commits, tags and publishes.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail, ensure};
use cargo_metadata::semver::Version;

use crate::workspace::Workspace;

/// The exit code for wrong usage, or for a checkout with changes.
const WRONG: u8 = 2;

/// The images of Weir, as they are written before a tag.
const IMAGES: [&str; 3] = ["weir.dev/operator:", "weir.dev/agent:", "weir.dev/testapp:"];

const CHANGELOG: &str = "CHANGELOG.md";
const UNRELEASED: &str = "## Unreleased\n";

#[derive(clap::Args)]
pub(crate) struct ReleaseArgs {
    /// The new version, such as 1.2.3 or 1.2.3-rc.1, which must be later than the current one
    version: String,
    /// Print the changes, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A version in a file.
#[derive(Debug, PartialEq, Eq)]
struct VersionInFile {
    line: usize,
    /// The offset of the version in the text.
    start: usize,
    version: String,
}

pub(crate) fn run(workspace: &Workspace, args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    let root = workspace.root();
    let old = present(root)?;
    let new = match next(&old, &args.version) {
        Ok(new) => new,
        Err(error) => return Ok(wrong(&error)),
    };
    let changed = git(root, &["status", "--porcelain"])?;
    if !args.dry_run && !changed.is_empty() {
        return Ok(wrong(&anyhow::anyhow!("the checkout has uncommitted changes: commit or revert them\n{changed}")));
    }
    let mut texts = Vec::new();
    for file in tracked(root)? {
        let Ok(text) = fs::read_to_string(root.join(&file)) else { continue };
        let versions = versions(&file, &text);
        if let Some(found) = versions.iter().find(|found| found.version != old.to_string()) {
            return Ok(wrong(&anyhow::anyhow!("{file}:{}: the version is {}, not {old}", found.line, found.version)));
        }
        let text = match file.as_str() {
            CHANGELOG => released(&text, &new)?,
            _ if versions.is_empty() => continue,
            _ => moved(&text, &versions, &new),
        };
        println!("{file}: {}", if versions.is_empty() { 1 } else { versions.len() });
        texts.push((file, text));
    }
    if args.dry_run {
        println!("dry run, no file is changed: {old} would become {new}");
        return Ok(ExitCode::SUCCESS);
    }
    for (file, text) in texts {
        fs::write(root.join(&file), text).with_context(|| format!("write {file}"))?;
    }
    let status =
        Command::new(env!("CARGO")).args(["update", "--workspace", "--offline", "--quiet"]).current_dir(root).status();
    ensure!(status.context("run cargo update")?.success(), "cargo update did not write Cargo.lock");
    println!("changed {old} to {new}. Next: cargo xtask test, git commit --all, git tag v{new}");
    Ok(ExitCode::SUCCESS)
}

/// Reads the current version of the crates.
fn present(root: &Path) -> anyhow::Result<Version> {
    let text = fs::read_to_string(root.join("Cargo.toml")).context("read Cargo.toml")?;
    let versions = versions("Cargo.toml", &text);
    let [found] = &versions[..] else { bail!("Cargo.toml has {} versions of the workspace", versions.len()) };
    Ok(found.version.parse()?)
}

/// Lists every file in git except this one, whose tests contain made-up versions.
fn tracked(root: &Path) -> anyhow::Result<Vec<String>> {
    let files = git(root, &["ls-files"])?;
    Ok(files.lines().filter(|file| *file != "crates/xtask/src/release.rs").map(str::to_owned).collect())
}

/// Finds all versions of Weir in a file.
fn versions(file: &str, text: &str) -> Vec<VersionInFile> {
    let (mut versions, mut start, mut section) = (Vec::new(), 0, "");
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let mut found = |at: usize| {
            let length = line[at..].find(|letter: char| !(letter.is_ascii_alphanumeric() || "-.".contains(letter)));
            let version = line[at..].get(..length.unwrap_or(line.len() - at)).unwrap_or_default().trim_end_matches('.');
            if version.starts_with(|first: char| first.is_ascii_digit()) {
                versions.push(VersionInFile { line: index + 1, start: start + at, version: version.to_owned() });
            }
        };
        if line.starts_with('[') {
            section = line.trim_end();
        }
        let field = match file {
            "Cargo.toml" if section == "[workspace.package]" => Some("version = \""),
            _ if file.starts_with("charts/") && file.ends_with("/Chart.yaml") => {
                Some(if line.starts_with("app") { "appVersion: " } else { "version: " })
            }
            _ => None,
        };
        if let Some(field) = field.filter(|field| line.starts_with(field)) {
            found(field.len());
        }
        for image in IMAGES {
            line.match_indices(image).for_each(|(at, _)| found(at + image.len()));
        }
        start += line.len();
    }
    versions
}

/// Parses the new version, which must be later than the old one.
fn next(old: &Version, text: &str) -> anyhow::Result<Version> {
    let new: Version =
        text.parse().with_context(|| format!("{text} is not a version: write it as 1.2.3 or 1.2.3-rc.1"))?;
    ensure!(new.build.is_empty(), "{text}: a tag of an image cannot contain build metadata: omit +{}", new.build);
    ensure!(new > *old, "{text} is not later than {old}");
    Ok(new)
}

fn moved(text: &str, versions: &[VersionInFile], new: &Version) -> String {
    let (mut out, mut done) = (String::new(), 0);
    let mut versions: Vec<_> = versions.iter().collect();
    versions.sort_by_key(|found| found.start);
    for found in versions {
        out.push_str(&text[done..found.start]);
        out.push_str(&new.to_string());
        done = found.start + found.version.len();
    }
    out + &text[done..]
}

/// Moves the unreleased changes of the changelog to this version.
fn released(changelog: &str, new: &Version) -> anyhow::Result<String> {
    let (head, tail) =
        changelog.split_once(UNRELEASED).with_context(|| format!("{CHANGELOG} has no heading {UNRELEASED:?}"))?;
    Ok(format!("{head}{UNRELEASED}\n## {new}\n{tail}"))
}

fn git(root: &Path, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(args).current_dir(root).output().context("run git")?;
    ensure!(output.status.success(), "git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn wrong(error: &anyhow::Error) -> ExitCode {
    eprintln!("release: {error:#}");
    ExitCode::from(WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_and_versions(file: &str, text: &str) -> Vec<(usize, String)> {
        versions(file, text).into_iter().map(|found| (found.line, found.version)).collect()
    }

    #[test]
    fn versions_are_found_where_they_are_ours() {
        let cargo = "[workspace]\nversion = \"9\"\n[workspace.package]\nversion = \"0.1.0\"\n[workspace.dependencies]\nversion = \"2\"\n";
        assert_eq!(lines_and_versions("Cargo.toml", cargo), [(4, "0.1.0".to_owned())]);
        let chart =
            "apiVersion: v2\nversion: 0.1.0\nappVersion: 0.1.0\nkubeVersion: 1.29\n  image: weir.dev/agent:0.1.0\n";
        let found = [(2, "0.1.0".to_owned()), (3, "0.1.0".to_owned()), (5, "0.1.0".to_owned())];
        assert_eq!(lines_and_versions("charts/weir/Chart.yaml", chart), found);
        assert_eq!(
            lines_and_versions("a.md", "weir.dev/agent:1.2.3-rc.1, weir.dev/operator:{tag} version: 7.\n"),
            [(1, "1.2.3-rc.1".to_owned())]
        );
    }

    #[test]
    fn all_of_them_move() {
        let text = "a weir.dev/agent:0.1.0 weir.dev/operator:0.1.0.\n";
        let new = Version::new(1, 0, 0);
        assert_eq!(moved(text, &versions("a.md", text), &new), "a weir.dev/agent:1.0.0 weir.dev/operator:1.0.0.\n");
        assert_eq!(
            released("# C\n\n## Unreleased\n\n- x\n", &new).expect("a heading"),
            "# C\n\n## Unreleased\n\n## 1.0.0\n\n- x\n"
        );
        assert!(released("# C\n", &new).is_err());
    }

    #[test]
    fn a_version_is_later_than_the_present_one() {
        let old = Version::new(0, 1, 0);
        for good in ["0.1.1", "0.2.0-rc.1", "1.0.0"] {
            next(&old, good).expect(good);
        }
        for bad in ["0.1.0", "0.1.0-rc.1", "0.0.9", "1.0", "v1.0.0", "1.0.0+build", "later", ""] {
            assert!(next(&old, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn everything_is_of_one_version_today() {
        let workspace = Workspace::find().expect("the workspace");
        let version = present(workspace.root()).expect("a version").to_string();
        let mut found = 0;
        for file in tracked(workspace.root()).expect("a checkout") {
            let Ok(text) = fs::read_to_string(workspace.root().join(&file)) else { continue };
            for it in versions(&file, &text) {
                assert_eq!(it.version, version, "{file}:{}", it.line);
                found += 1;
            }
        }
        assert!(found > 10, "only {found} versions");
    }
}
