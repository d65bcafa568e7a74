//! Reads a directory of policy files. An unchanged file is not read again.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The suffix of the operator's status files.
pub const STATUS_SUFFIX: &str = ".status.yaml";
/// The maximum size of a file. A policy that fits a cluster is smaller than 1.5 MiB.
pub(crate) const LARGEST: u64 = 8 * 1024 * 1024;
/// The maximum depth of directories.
const DEPTH: usize = 16;
/// The age below which a changed file is read again. It could change again with the same signature, because clocks of
/// file systems are coarse.
const COARSE: Duration = Duration::from_secs(2);

/// The text of each file, or the reason why it cannot be read, by the file's path below the directory.
pub(super) type Listing = BTreeMap<Arc<str>, Text>;

type Text = Result<Arc<str>, String>;

/// Reads a directory repeatedly.
#[derive(Debug)]
pub(super) struct Reader {
    directory: PathBuf,
    recursive: bool,
    /// The directory's device and inode when it last contained a policy file.
    held: Option<(u64, u64)>,
    /// Files that were good before the operator started, if their statuses are in another directory.
    awaited: Vec<Arc<str>>,
    /// The last text of each file.
    known: HashMap<Arc<str>, (Signature, Text)>,
}

/// The metadata that changes when a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    device: u64,
    inode: u64,
    length: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Signature {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl Reader {
    pub(super) fn new(directory: &Path, recursive: bool, awaited: Vec<Arc<str>>) -> Self {
        Self { directory: directory.to_owned(), recursive, held: None, awaited, known: HashMap::new() }
    }

    /// Pretends that a file was read before, with this text and its current metadata.
    #[cfg(test)]
    pub(super) fn believe(&mut self, name: &str, text: &str) {
        let metadata = fs::metadata(self.directory.join(name)).expect("the file exists");
        self.known.insert(name.into(), (Signature::of(&metadata), Ok(text.into())));
    }

    /// Makes the next listing read every file, even if its metadata is unchanged.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Returns the files at this time.
    ///
    /// # Errors
    ///
    /// The directory cannot be read, or an empty directory has replaced the one with the policies. An unreadable file
    /// is an entry of the listing.
    pub(super) fn list(&mut self, now: SystemTime) -> io::Result<Listing> {
        let mut listing = Listing::new();
        let directory = fs::metadata(&self.directory)?;
        let directory = (directory.dev(), directory.ino());
        let names = names(&self.directory, self.recursive)?;
        if !names.is_empty() {
            self.held = Some(directory);
        } else if self.held.is_some_and(|held| held != directory) {
            return Err(io::Error::other(
                "it is empty, and not the directory that contained the policies, as if a volume had been unmounted: restore \
                 that one, or restart the operator to remove the policies",
            ));
        } else if self.held.is_none() {
            let missing = "the directory of policies is empty, as if its volume were not mounted: mount it, or, to end the policy, \
                           delete its status file and restart the operator";
            return Ok(self.awaited.iter().map(|name| (name.clone(), Err(missing.to_owned()))).collect());
        }
        for name in names {
            let path = self.directory.join(&*name);
            let Ok(metadata) = fs::metadata(&path) else {
                // The file was deleted in the meantime, or is a dangling link.
                continue;
            };
            let signature = Signature::of(&metadata);
            let text = match self.known.get(&name) {
                Some((known, text)) if *known == signature => text.clone(),
                _ => match read(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    text => text.map(Arc::from).map_err(|error| error.to_string()),
                },
            };
            let has_converged =
                metadata.modified().is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > COARSE));
            if has_converged && text.is_ok() {
                self.known.insert(name.clone(), (signature, text.clone()));
            } else {
                self.known.remove(&name);
            }
            listing.insert(name, text);
        }
        self.known.retain(|name, _| listing.contains_key(name));
        Ok(listing)
    }
}

/// Returns the names of the input files of a directory, in order.
///
/// # Errors
///
/// The directory cannot be read. An unreadable subdirectory is logged and ignored.
pub fn names(directory: &Path, recursive: bool) -> io::Result<Vec<Arc<str>>> {
    let mut names = Vec::new();
    collect(directory, "", if recursive { DEPTH } else { 0 }, &mut names)?;
    names.sort();
    Ok(names)
}

fn collect(directory: &Path, prefix: &str, depth: usize, names: &mut Vec<Arc<str>>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            tracing::debug!(path = %path.display(), "ignoring a file: its name is not UTF-8");
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        let below = format!("{prefix}{name}");
        if path.is_dir() {
            if depth > 0
                && let Err(error) = collect(&path, &format!("{below}/"), depth - 1, names)
            {
                tracing::warn!(path = %path.display(), %error, "cannot read a directory of policies");
            }
        } else if is_input(name) {
            names.push(below.into());
        }
    }
    Ok(())
}

/// Returns the text of a file.
///
/// # Errors
///
/// The file cannot be read, is too large, or is not a regular file: a pipe would block the reader.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("is not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(invalid(format!("is larger than {LARGEST} bytes: split it")));
    }
    String::from_utf8(bytes).map_err(|error| {
        invalid(format!("is not UTF-8 from byte {} on: save it as UTF-8", error.utf8_error().valid_up_to()))
    })
}

/// Returns true if a file of this name is input.
pub(crate) fn is_input(name: &str) -> bool {
    let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".json");
    is_yaml && !name.starts_with('.') && !name.ends_with(STATUS_SUFFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_in_place_of_another_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let (policies, aside) = (path("policies"), path("aside"));
        fs::create_dir(&policies).unwrap();
        let mut reader = Reader::new(&policies, false, Vec::new());
        let mut list = || reader.list(SystemTime::UNIX_EPOCH).map(|listing| listing.len());
        assert_eq!(list().unwrap(), 0, "a directory may be empty at first");
        fs::write(policies.join("a.yaml"), "a").unwrap();
        assert_eq!(list().unwrap(), 1);

        // An unmounted volume leaves an empty mount point.
        fs::rename(&policies, &aside).unwrap();
        assert_eq!(list().unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir(&policies).unwrap();
        let error = list().unwrap_err().to_string();
        assert!(error.contains("as if a volume had been unmounted"), "{error}");
        fs::remove_dir(&policies).unwrap();
        fs::rename(&aside, &policies).unwrap();
        assert_eq!(list().unwrap(), 1);

        // Another release of the same policies replaces the directory, and then the last file is deleted.
        fs::rename(&policies, &aside).unwrap();
        fs::create_dir(&policies).unwrap();
        fs::write(policies.join("a.yaml"), "b").unwrap();
        assert_eq!(list().unwrap(), 1);
        fs::remove_file(policies.join("a.yaml")).unwrap();
        assert_eq!(list().unwrap(), 0, "a deleted file must be accepted");
    }
}
