//! Checks that texts do not use certain words. Each of these words has a plain replacement, which every reader knows.

use std::{ffi::OsStr, path::Path};

use anyhow::Context as _;

use super::Violation;
use crate::workspace::{Workspace, files_below};

/// A refused word, in lower case, and its replacement.
const WORDS: [(&str, &str); 35] = [
    ("whoever", "name the actor: a client, a caller, a user"),
    ("anew", "again"),
    ("afresh", "again"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("in vain", "without success"),
    ("told apart", "distinguished, or counted separately"),
    ("the same, but", "begin with the subject"),
    ("hears", "receives or detects"),
    ("is told", "gets, is reported, or name who reports it"),
    ("are told", "get, are reported, or name who reports them"),
    ("becomes of", "happens to"),
    ("became of", "happened to"),
    ("let go of", "release"),
    ("lets go of", "releases"),
    ("holds on to", "keeps"),
    ("for ever", "forever, or never ends"),
    ("but for", "except"),
    ("puts up with", "tolerates"),
    ("to be had", "available"),
    ("on top of it", "in addition"),
    ("beside", "next to, or in addition to"),
    ("besides", "except, or in addition to"),
    ("at rest this", "idle, with its subject"),
    ("until dropped", "until this value is dropped"),
    ("when dropped", "when this value is dropped"),
    ("must be told", "name who sends what"),
    ("were told", "name who sent what"),
    ("whatever", "for any, or even if"),
    ("the one before", "the previous one"),
    ("lull", "quiet period"),
    ("lulls", "quiet periods"),
    ("the leader before", "the previous leader"),
    ("module is pure", "say that it does no I/O and reads no clock"),
];

const EXTENSIONS: [&str; 12] = ["go", "lua", "md", "mjs", "rs", "sh", "toml", "tpl", "ts", "tsx", "txt", "yaml"];

/// The name of a Dockerfile, or its extension, as in `agent.Dockerfile`.
const DOCKERFILE: &str = "Dockerfile";

/// This file, which must contain the words.
const HERE: &str = "crates/xtask/src/tidy/words.rs";

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for path in files_below(workspace.root())?.into_iter().filter(|path| is_ours(path)) {
        let place = path.strip_prefix(workspace.root()).unwrap_or(&path).display().to_string();
        if place != HERE {
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            violations.extend(check_text(&place, &text));
        }
    }
    Ok(violations)
}

fn check_text(place: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for (word, instead) in WORDS.iter().filter(|(word, _)| holds(&line, word)) {
            let place = format!("{place}:{}", index + 1);
            violations.push(Violation::new(
                place,
                format!("{word:?} is not plain English"),
                format!("write: {instead}"),
            ));
        }
    }
    violations
}

/// Returns true if the line contains the word as a whole word.
fn holds(line: &str, word: &str) -> bool {
    let is_letter = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    line.match_indices(word)
        .any(|(at, _)| !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next()))
}

/// Returns true if this kind of file is checked.
fn is_ours(path: &Path) -> bool {
    let is_known = |extension: &OsStr| extension == DOCKERFILE || EXTENSIONS.iter().any(|known| extension == *known);
    path.file_name().is_some_and(|name| name == DOCKERFILE) || path.extension().is_some_and(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_images_and_scripts_are_read() {
        for path in ["Dockerfile", "e2e/images/redis.Dockerfile", "charts/weir/values.yaml", "a.tpl", "show.mjs"] {
            assert!(is_ours(Path::new(path)), "{path}");
        }
        for path in ["Cargo.lock", "core.json", "plot.svg", "Dockerfile.bak"] {
            assert!(!is_ours(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn whole_words_are_found_in_any_case() {
        let faults = check_text("a.md", "Fine.\nWhoever renews\nIn vain, a new one\namend, mending\n");
        let found: Vec<_> = faults.iter().map(|it| format!("{}: {}", it.place, it.fault)).collect();
        assert_eq!(found, ["a.md:2: \"whoever\" is not plain English", "a.md:3: \"in vain\" is not plain English"]);
    }
}
