//! `weir-operator check`: are these policies good? The answer that the cluster would give, without a cluster.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::documents;
use crate::source::listing::is_input;

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every policy is good.
    Good,
    /// Some policy has faults.
    Faulty,
    /// Some file cannot be read, or holds no policy at all.
    Unreadable,
}

/// Checks files, directories of files, and `-` for standard input. Writes a line per fault, or `ok` per file, to `out`;
/// what cannot be read goes to `err`.
///
/// # Errors
///
/// `out` or `err` cannot be written to.
pub fn check(paths: &[PathBuf], out: &mut impl Write, err: &mut impl Write) -> io::Result<Verdict> {
    let mut faulty = false;
    let mut unreadable = false;
    for path in paths {
        match files(path) {
            Err(error) => {
                unreadable = true;
                writeln!(err, "{}: {error}", path.display())?;
            }
            Ok(files) => {
                for (name, text) in files {
                    match text {
                        Ok(text) => faulty |= !check_text(&name, &text, out)?,
                        Err(error) => {
                            unreadable = true;
                            writeln!(err, "{name}: {error}")?;
                        }
                    }
                }
            }
        }
    }
    Ok(match (unreadable, faulty) {
        (true, _) => Verdict::Unreadable,
        (false, true) => Verdict::Faulty,
        (false, false) => Verdict::Good,
    })
}

type Named = (String, io::Result<String>);

fn files(path: &Path) -> io::Result<Vec<Named>> {
    if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text)?;
        return Ok(vec![("-".to_owned(), Ok(text))]);
    }
    if !path.is_dir() {
        return Ok(vec![(path.display().to_string(), std::fs::read_to_string(path))]);
    }
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    found.retain(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_input));
    found.sort();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no .yaml, .yml or .json file in this directory"));
    }
    Ok(found.into_iter().map(|path| (path.display().to_string(), std::fs::read_to_string(&path))).collect())
}

fn check_text(name: &str, text: &str, out: &mut impl Write) -> io::Result<bool> {
    let text = documents::read(text);
    let policies = text.policies.len();
    match text.policies() {
        Ok(_) => {
            let noun = if policies == 1 { "policy" } else { "policies" };
            writeln!(out, "{name}: ok ({policies} {noun})")?;
            Ok(true)
        }
        Err(broken) => {
            for finding in broken.findings {
                writeln!(out, "{name}:{finding}")?;
            }
            Ok(false)
        }
    }
}
