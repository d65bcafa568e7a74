//! Reads a directory of policy files. An unchanged file is not read again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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

/// The device and the inode of a directory.
type Inode = (u64, u64);

fn inode(metadata: &Metadata) -> Inode {
    (metadata.dev(), metadata.ino())
}

/// Reads a directory repeatedly.
#[derive(Debug)]
pub(super) struct Reader {
    directory: PathBuf,
    recursive: bool,
    /// The directory when it last contained a policy file.
    held: Option<Inode>,
    /// Files that were good before the operator started, if their statuses are in another directory and the directory
    /// was empty at the start. Each is awaited until it appears, because files can be copied slowly.
    awaited: Vec<Arc<str>>,
    /// The files of the last listing, or of an earlier run of the operator.
    listed: BTreeSet<Arc<str>>,
    /// What the last listing could not read, so that it is logged once.
    unreadable: BTreeSet<String>,
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
    /// Returns a reader. `listed` are the files of an earlier run of the operator.
    pub(super) fn new(directory: &Path, recursive: bool, listed: BTreeSet<Arc<str>>, awaited: Vec<Arc<str>>) -> Self {
        let (directory, known, unreadable) = (directory.to_owned(), HashMap::new(), BTreeSet::new());
        Self { directory, recursive, held: None, awaited, listed, unreadable, known }
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
    /// is an entry of the listing, and so is each file that an unreadable subdirectory contained.
    pub(super) fn list(&mut self, now: SystemTime) -> io::Result<Listing> {
        let mut listing = Listing::new();
        let directory = inode(&fs::metadata(&self.directory)?);
        let Found { names, hidden } = find(&self.directory, self.recursive)?;
        let unreadable = hidden.iter().map(|(below, error)| format!("{below}: {error}")).collect::<BTreeSet<_>>();
        for problem in unreadable.difference(&self.unreadable) {
            tracing::warn!(problem, "cannot read a part of the directory of policies");
        }
        self.unreadable = unreadable;
        for (below, error) in &hidden {
            let is_below = |name: &&Arc<str>| name.strip_prefix(&**below).is_some_and(|rest| rest.starts_with('/'));
            let error = format!("directory {below}: {error}");
            listing.extend(self.listed.iter().filter(is_below).map(|name| (name.clone(), Err(error.clone()))));
        }
        if !names.is_empty() || !listing.is_empty() {
            self.held = Some(directory);
        } else if self.held.is_some_and(|held| held != directory) {
            return Err(io::Error::other(
                "it is empty, and not the directory that contained the policies, as if a volume had been unmounted: restore \
                 the earlier directory, or restart the operator to remove the policies",
            ));
        }
        self.awaited.retain(|name| names.binary_search(name).is_err());
        for name in &self.awaited {
            let missing = "its file has not appeared since the operator started with an empty directory of policies: mount the \
                           volume, or, to remove the policy, stop the operator, delete the policy's status file, and start \
                           the operator";
            listing.insert(name.clone(), Err(missing.to_owned()));
        }
        for name in names {
            let path = self.directory.join(&*name);
            let seen = fs::metadata(&path).and_then(|metadata| {
                let signature = Signature::of(&metadata);
                let text = match self.known.get(&name) {
                    Some((known, text)) if *known == signature => text.clone(),
                    _ => match read(&path) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                        text => text.map(Arc::from).map_err(|error| error.to_string()),
                    },
                };
                Ok((metadata, signature, text))
            });
            let (metadata, signature, text) = match seen {
                Ok(seen) => seen,
                Err(_) if is_gone(&path) => continue,
                Err(error) => {
                    listing.insert(name, Err(unseen(&error)));
                    continue;
                }
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
        self.listed = listing.keys().cloned().collect();
        Ok(listing)
    }
}

/// Returns true if a file was deleted. A link without a target still exists, and so do the files below it: the target can
/// come back.
fn is_gone(path: &Path) -> bool {
    let has_parent = || path.parent().is_none_or(|parent| fs::metadata(parent).is_ok());
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) && has_parent()
}

/// Returns the reason why an existing file has no metadata.
fn unseen(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        return "it is a link without a target: restore the target, or delete the link to remove its policies"
            .to_owned();
    }
    error.to_string()
}

/// Returns the names of the input files of a directory, in order.
///
/// # Errors
///
/// The directory cannot be read. An unreadable subdirectory is ignored.
pub fn names(directory: &Path, recursive: bool) -> io::Result<Vec<Arc<str>>> {
    find(directory, recursive).map(|found| found.names)
}

/// The content of a directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The names of the input files, in order.
    pub(crate) names: Vec<Arc<str>>,
    /// Subdirectories, and links that may lead to one, whose files cannot be seen, with the reasons.
    pub(crate) hidden: Vec<(String, io::Error)>,
}

/// Returns the content of a directory.
///
/// # Errors
///
/// The directory cannot be read.
pub(crate) fn find(directory: &Path, recursive: bool) -> io::Result<Found> {
    let mut found = Found::default();
    let above = [inode(&fs::metadata(directory)?)];
    collect(directory, "", &above, recursive, &mut found)?;
    found.names.sort();
    Ok(found)
}

/// Adds the files of a directory. `above` are the directories from the first one to this one.
fn collect(directory: &Path, prefix: &str, above: &[Inode], recursive: bool, found: &mut Found) -> io::Result<()> {
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
        let metadata = fs::metadata(&path);
        if let Some(directory) = metadata.as_ref().ok().filter(|it| it.is_dir()).map(inode) {
            // A link to a directory above this one would lead back here.
            if !recursive || above.contains(&directory) {
                continue;
            }
            let read = if above.len() > DEPTH {
                Err(invalid(format!("is more than {DEPTH} directories deep: move it up")))
            } else {
                collect(&path, &format!("{below}/"), &[above, &[directory]].concat(), recursive, found)
            };
            if let Err(error) = read {
                found.hidden.push((below, error));
            }
            continue;
        }
        if is_input(name) {
            found.names.push(below.as_str().into());
        }
        if recursive && let Err(error) = metadata {
            found.hidden.push((below, error));
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
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("is not a regular file".to_owned()));
    }
    bounded(fs::File::open(path)?)
}

/// Reads a text of at most [`LARGEST`] bytes.
///
/// # Errors
///
/// The text cannot be read, is too large, or is not UTF-8.
pub(crate) fn bounded(source: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(invalid(format!("is larger than {LARGEST} bytes: split it")));
    }
    String::from_utf8(bytes).map_err(|error| {
        invalid(format!("is not UTF-8 from byte {} on: save it as UTF-8", error.utf8_error().valid_up_to()))
    })
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Returns true if a file of this name is input.
pub(crate) fn is_input(name: &str) -> bool {
    let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml") || name.ends_with(".json");
    is_yaml && !name.starts_with('.') && !name.ends_with(STATUS_SUFFIX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_empty_directory_in_place_of_another_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let (policies, aside) = (path("policies"), path("aside"));
        fs::create_dir(&policies).unwrap();
        let mut reader = Reader::new(&policies, false, BTreeSet::new(), Vec::new());
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

    /// Returns each file with its text, or with the reason why it cannot be read.
    fn listed(reader: &mut Reader) -> Vec<(String, String)> {
        let listing = reader.list(SystemTime::UNIX_EPOCH).unwrap();
        let said = |text: Text| text.map_or_else(|error| format!("cannot: {error}"), |text| text.to_string());
        listing.into_iter().map(|(name, text)| (name.to_string(), said(text))).collect()
    }

    #[test]
    fn only_a_file_that_does_not_exist_is_deleted() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("..1")).unwrap();
        fs::write(path("..1/a.yaml"), "a").unwrap();
        symlink("..1", path("..data")).unwrap();
        symlink("..data/a.yaml", path("a.yaml")).unwrap();
        let mut reader = Reader::new(root.path(), false, BTreeSet::new(), Vec::new());
        let mut is_listed = |what: &str, expected: &str| {
            let [(_, text)] = &listed(&mut reader)[..] else { panic!("{what}: the file must be listed") };
            assert!(text.starts_with(expected), "{what}: {text}");
        };
        is_listed("a link", "a");
        fs::remove_file(path("..data")).unwrap();
        is_listed("a link without a target", "cannot: it is a link without a target: restore the target, or delete");
        symlink("..data", path("..data")).unwrap();
        is_listed("a loop", "cannot: ");
        fs::remove_file(path("..data")).unwrap();
        symlink("..1", path("..data")).unwrap();
        is_listed("the link again", "a");
        fs::remove_file(path("a.yaml")).unwrap();
        assert_eq!(listed(&mut reader), []);
    }

    #[test]
    fn a_link_to_a_directory_above_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("policies/team")).unwrap();
        fs::write(path("policies/team/a.yaml"), "a").unwrap();
        symlink(".", path("policies/self")).unwrap();
        symlink("..", path("policies/team/up")).unwrap();
        symlink("team", path("policies/other")).unwrap();
        let names = names(&path("policies"), true).unwrap();
        assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), ["other/a.yaml", "team/a.yaml"]);
    }

    #[test]
    fn each_awaited_file_is_awaited_until_it_appears() {
        let root = tempfile::tempdir().unwrap();
        let awaited = vec!["a.yaml".into(), "b.yaml".into()];
        let mut reader = Reader::new(root.path(), false, BTreeSet::new(), awaited);
        let mut read =
            || listed(&mut reader).into_iter().map(|(name, text)| (name, text.len() == 1)).collect::<Vec<_>>();
        let pair = |name: &str, is_text| (name.to_owned(), is_text);
        assert_eq!(read(), [pair("a.yaml", false), pair("b.yaml", false)]);
        fs::write(root.path().join("a.yaml"), "a").unwrap();
        fs::write(root.path().join("c.yaml"), "c").unwrap();
        assert_eq!(read(), [pair("a.yaml", true), pair("b.yaml", false), pair("c.yaml", true)], "a slow copy");
        fs::write(root.path().join("b.yaml"), "b").unwrap();
        fs::remove_file(root.path().join("a.yaml")).unwrap();
        assert_eq!(read(), [pair("b.yaml", true), pair("c.yaml", true)], "a file that appeared can be deleted");
    }

    #[test]
    fn files_of_a_subdirectory_that_cannot_be_read_are_not_deleted() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("team")).unwrap();
        fs::create_dir_all(path("policies")).unwrap();
        fs::write(path("team/b.yaml"), "b").unwrap();
        fs::write(path("policies/teams.yaml"), "c").unwrap();
        symlink(path("team"), path("policies/team")).unwrap();
        let mut reader = Reader::new(&path("policies"), true, BTreeSet::new(), Vec::new());
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(listed(&mut reader), [pair("team/b.yaml", "b"), pair("teams.yaml", "c")]);

        fs::rename(path("team"), path("away")).unwrap();
        let missing = "cannot: directory team: No such file or directory (os error 2)";
        let expected = [pair("team/b.yaml", missing), pair("teams.yaml", "c")];
        for moment in ["at once", "later"] {
            assert_eq!(listed(&mut reader), expected, "{moment}");
        }
        let earlier = ["team/b.yaml".into(), "other/b.yaml".into()].into();
        let mut restarted = Reader::new(&path("policies"), true, earlier, Vec::new());
        assert_eq!(listed(&mut restarted), expected, "after a restart");

        fs::remove_file(path("policies/team")).unwrap();
        assert_eq!(listed(&mut reader), [pair("teams.yaml", "c")], "the subdirectory was deleted");
    }
}
