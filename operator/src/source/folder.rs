//! Interprets a directory of policy files, listing by listing. This module does no I/O: its inputs are texts and times,
//! and its output is changes.
//!
//! Editors replace files by renaming, truncate them before they write, and save partial files. So a bad change is not
//! accepted immediately: a missing policy, or a file that does not parse, must stay in this state for [`CONFIRM`]. A
//! broken file never removes its policies. It makes them invalid, and its status reports this. The same is true for a
//! file that was emptied or cut off, for example by a full disk. To remove a policy, users delete its file, or its
//! document in the file.
//!
//! A broken file never affects other files. At a start, its last good content comes from its status file, also the
//! stores: rules that are counted in a store cannot be restored without it.

mod stores;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use weir_api::{LastKnownGood, RateLimitPolicySpec, RateLimitPolicyStatus};

use self::stores::StoresOfFolder;
use super::listing::Listing;
use crate::{
    compile::revision_of,
    documents::{self, Broken as Faulty, Finding, Specs, StoreSpecs, TextPosition},
    metrics::FileCounts,
    world::{Change, Fault, ObjectKey, Policy, StoredStatus},
};

/// The time for which a bad state must last to be accepted.
pub(super) const CONFIRM: Duration = Duration::from_millis(250);

/// The namespace of the placeholder for a file without any readable policy.
const UNNAMED: &str = "default";

/// A message for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNotice {
    /// The file.
    pub file: Arc<str>,
    /// The place in the file, if there is one.
    pub place: Option<TextPosition>,
    /// The message.
    pub message: String,
}

impl fmt::Display for FileNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(place) => write!(f, "{}:{place}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

/// The last good generation of a policy, from a status file that an earlier run of the operator wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The policy.
    pub key: ObjectKey,
    /// The number of the generation.
    pub generation: i64,
    /// The time of its change, if it is known.
    pub changed: Option<Timestamp>,
    /// The spec of the generation. If this operator cannot read it, the JSON.
    pub spec: Result<Arc<RateLimitPolicySpec>, String>,
}

impl Kept {
    /// Returns the generation as a stored status would contain it.
    fn stored(&self) -> StoredStatus {
        let json = |spec| serde_json::to_string(spec).expect("a spec is plain data, which always serializes to JSON");
        let spec = self.spec.as_deref().map_or_else(String::clone, json);
        let last_known_good = Some(LastKnownGood { generation: self.generation, spec });
        let status = RateLimitPolicyStatus { last_known_good, ..RateLimitPolicyStatus::default() };
        StoredStatus { status: Some(Box::new(status)), version: None }
    }
}

/// The last good content of a file, from its status file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KeptFile {
    pub(crate) policies: Vec<Kept>,
    pub(crate) stores: StoreSpecs,
    /// The stores with a spec that this operator cannot read.
    pub(crate) unread_stores: BTreeSet<ObjectKey>,
}

#[derive(Debug, Default)]
pub(super) struct FolderUpdate {
    pub(super) changes: Vec<Change>,
    pub(super) notices: Vec<FileNotice>,
    /// Policies that were stored before the start and that no file contains.
    pub(super) forgotten: Vec<ObjectKey>,
    /// The stores of each file whose last good content has other stores than its status file.
    pub(super) stores: Vec<(Arc<str>, StoreSpecs)>,
    /// The time at which to read again, even without a change.
    pub(super) look_again: Option<Instant>,
}

/// The directory's policies and stores, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct Folder {
    files: BTreeMap<Arc<str>, File>,
    current: BTreeMap<ObjectKey, Policy>,
    gone: Missing,
    doubled: Duplicates,
    stores: StoresOfFolder,
    /// The stored content of each file, until the directory has been read.
    kept: BTreeMap<Arc<str>, KeptFile>,
    /// The stored generations by policy.
    generations: BTreeMap<ObjectKey, Kept>,
    /// The stores in the status file of each file that has stores.
    stored_stores: BTreeMap<Arc<str>, StoreSpecs>,
    /// The latest time of change of a policy that was deleted.
    deleted: Option<Timestamp>,
    /// True once everything that existed at the start was sent.
    is_complete: bool,
}

#[derive(Debug)]
struct File {
    seen: Result<Arc<str>, String>,
    /// The last good content.
    good: Specs,
    /// The stores of the last good content.
    stores: StoreSpecs,
    /// The policies whose stored generations this operator cannot read, while the file is broken.
    unread: BTreeSet<ObjectKey>,
    /// The same for stores.
    unread_stores: BTreeSet<ObjectKey>,
    /// True if the text of the file ended with a line break.
    has_last_line: bool,
    broken: Option<Broken>,
}

#[derive(Debug)]
struct Broken {
    since: Instant,
    faulty: Faulty,
    reported: bool,
}

impl Broken {
    fn faults(&self) -> Vec<Fault> {
        self.faulty.findings.iter().map(|finding| finding.fault.clone()).collect()
    }
}

impl File {
    fn is_empty(&self) -> bool {
        self.good.is_empty() && self.unread.is_empty() && !self.has_stores()
    }

    fn has_stores(&self) -> bool {
        !(self.stores.is_empty() && self.unread_stores.is_empty())
    }

    /// Returns true if the file has been broken for long enough to be reported.
    fn is_reported(&self) -> bool {
        self.broken.as_ref().is_some_and(|broken| broken.reported)
    }
}

impl Folder {
    /// Returns a folder with the stored content.
    pub(super) fn new(kept: BTreeMap<Arc<str>, KeptFile>) -> Self {
        let policies = kept.values().flat_map(|file| &file.policies);
        let generations = policies.map(|kept| (kept.key.clone(), kept.clone())).collect();
        let stores = kept.iter().filter(|(_, file)| !(file.stores.is_empty() && file.unread_stores.is_empty()));
        let stored_stores = stores.map(|(name, file)| (name.clone(), file.stores.clone())).collect();
        Self { kept, generations, stored_stores, ..Self::default() }
    }

    /// Records that everything that existed at the start was sent and compiled.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    pub(super) fn counts(&self) -> FileCounts {
        let mut counts = FileCounts::default();
        for file in self.files.values() {
            let state = match (file.is_reported(), file.is_empty()) {
                (false, _) => &mut counts.good,
                (true, false) => &mut counts.kept,
                (true, true) => &mut counts.broken,
            };
            *state += 1;
        }
        counts
    }

    /// Compares a listing with the previous state. `time` is the wall-clock time.
    pub(super) fn absorb(&mut self, now: Instant, time: Timestamp, listing: Listing) -> FolderUpdate {
        let mut update = FolderUpdate::default();
        self.files.retain(|file, _| listing.contains_key(file));
        for (file, seen) in listing {
            if self.files.get(&file).is_none_or(|known| known.seen != seen) {
                self.reread(now, file, seen, &mut update);
            }
        }
        for (name, file) in &mut self.files {
            let Some(broken) = &mut file.broken else { continue };
            if now.duration_since(broken.since) < CONFIRM {
                update.look_again_at(broken.since + CONFIRM);
            } else if !std::mem::replace(&mut broken.reported, true) {
                let tell = |place, message| FileNotice { file: name.clone(), place, message };
                let findings = broken.faulty.findings.iter();
                update.notices.extend(findings.map(|it| tell(Some(it.place), it.fault.to_string())));
                let rest = if file.is_empty() {
                    "none of its policies is in force, because no good content is known"
                } else {
                    "its last good content stays in force"
                };
                update.notices.push(tell(None, rest.to_owned()));
            }
        }
        self.stores.update(now, &self.files, &mut update);
        let wanted = self.wanted(&mut update);
        let gone = std::mem::take(&mut self.kept).into_values().flat_map(|file| file.policies);
        let is_unread = |key: &ObjectKey| self.files.values().any(|file| file.unread.contains(key));
        update.forgotten.extend(gone.map(|kept| kept.key).filter(|key| !wanted.contains_key(key) && !is_unread(key)));
        let lost = self.gone.take(now, &mut self.current, |key| wanted.contains_key(key), &mut update);
        for (key, policy) in lost {
            self.deleted = self.deleted.max(policy.changed);
            self.generations.remove(&key);
            update.changes.push(Change::Policy(key, None));
        }
        for (key, (file, spec)) in wanted {
            self.set(time, key, file, spec, &mut update);
        }
        // A file that is being replaced keeps its stored stores.
        if update.look_again.is_none() {
            self.store_stores(&mut update);
        }
        update
    }

    /// Lists the files whose stores must be stored.
    fn store_stores(&mut self, update: &mut FolderUpdate) {
        let with_stores = self.files.iter().filter(|(_, file)| file.has_stores());
        let now: BTreeMap<_, _> = with_stores.map(|(name, file)| (name.clone(), file.stores.clone())).collect();
        let before = std::mem::take(&mut self.stored_stores);
        let gone = before.keys().filter(|name| !now.contains_key(*name));
        update.stores.extend(gone.map(|name| (name.clone(), StoreSpecs::new())));
        let changed = now.iter().filter(|(name, stores)| before.get(*name) != Some(stores));
        update.stores.extend(changed.map(|(name, stores)| (name.clone(), stores.clone())));
        self.stored_stores = now;
    }

    fn reread(&mut self, now: Instant, name: Arc<str>, seen: Result<Arc<str>, String>, update: &mut FolderUpdate) {
        let known = self.files.remove(&name).or_else(|| {
            let KeptFile { policies, stores, unread_stores } = self.kept.get(&name)?;
            let kept = policies.iter();
            let unread = kept.clone().filter(|kept| kept.spec.is_err()).map(|kept| kept.key.clone()).collect();
            Some(File {
                seen: Ok("".into()),
                good: kept.filter_map(|kept| Some((kept.key.clone(), kept.spec.clone().ok()?))).collect(),
                stores: stores.clone(),
                unread,
                unread_stores: unread_stores.clone(),
                has_last_line: false,
                broken: None,
            })
        });
        let has_last_line = known.as_ref().is_some_and(|file| file.has_last_line);
        let file = match read(&seen, known.as_ref()) {
            Ok((good, stores)) => {
                if known.as_ref().is_some_and(File::is_reported) {
                    update.notices.push(FileNotice {
                        file: name.clone(),
                        place: None,
                        message: "is valid again".into(),
                    });
                }
                let has_last_line = seen.as_ref().is_ok_and(|text| text.ends_with('\n'));
                let (unread, unread_stores) = (BTreeSet::new(), BTreeSet::new());
                File { seen, good, stores, unread, unread_stores, has_last_line, broken: None }
            }
            Err(mut faulty) => {
                let since = known.as_ref().and_then(|file| file.broken.as_ref()).map_or(now, |broken| broken.since);
                let (good, stores, unread, unread_stores) =
                    known.map(|it| (it.good, it.stores, it.unread, it.unread_stores)).unwrap_or_default();
                // The world must contain these policies: agents keep the rules only of those.
                faulty.named.extend(unread.iter().cloned());
                let broken = Some(Broken { since, faulty, reported: false });
                File { seen, good, stores, unread, unread_stores, has_last_line, broken }
            }
        };
        self.files.insert(name, file);
    }

    /// Returns the policies that should be in force, and the faults of those that cannot be.
    #[expect(clippy::type_complexity, reason = "a spec or its faults, with the file that they are from")]
    fn wanted(
        &mut self,
        update: &mut FolderUpdate,
    ) -> BTreeMap<ObjectKey, (Arc<str>, Result<Arc<RateLimitPolicySpec>, Vec<Fault>>)> {
        let mut wanted: BTreeMap<ObjectKey, (Arc<str>, _)> = BTreeMap::new();
        let mut doubled = Duplicates::default();
        // A policy may have moved to another file before its first file was emptied or broken. Then the valid file
        // counts.
        let (reported, good): (Vec<_>, Vec<_>) = self.files.iter().partition(|(_, file)| file.is_reported());
        for (name, file) in good.iter().chain(&reported) {
            let name = *name;
            for (key, spec) in &file.good {
                if let Some((first, _)) = wanted.get(key) {
                    if file.is_reported() {
                        continue;
                    }
                    self.doubled.report("policy", key, name, first, &mut doubled, update);
                    continue;
                }
                let spec = match &file.broken {
                    Some(broken) if broken.reported => Err(broken.faults()),
                    _ => Ok(spec.clone()),
                };
                wanted.insert(key.clone(), (name.clone(), spec));
            }
        }
        // A policy that never was valid also has a status. A file without any readable policy gets a placeholder.
        for (name, file) in reported {
            let Some(broken) = &file.broken else { continue };
            let mut named: Vec<ObjectKey> = broken.faulty.named.iter().cloned().collect();
            if named.is_empty() && file.is_empty() {
                named.push(ObjectKey::new(UNNAMED, &**name));
            }
            for key in named {
                wanted.entry(key).or_insert_with(|| (name.clone(), Err(broken.faults())));
            }
        }
        self.doubled = doubled;
        wanted
    }

    fn set(
        &mut self,
        time: Timestamp,
        key: ObjectKey,
        file: Arc<str>,
        spec: Result<Arc<RateLimitPolicySpec>, Vec<Fault>>,
        update: &mut FolderUpdate,
    ) {
        // A stamp has whole seconds, and its generation may begin at 1 again. A clock that is set back must not make a
        // change look older. The generation that stays in force in place of a broken one keeps its time.
        let time = self
            .deleted
            .map_or(time, |deleted| time.max(deleted.checked_add(SignedDuration::from_secs(1)).unwrap_or(deleted)));
        let later = |before: Option<Timestamp>| if spec.is_ok() { before.max(Some(time)) } else { before };
        let (generation, changed) = match self.current.get(&key) {
            Some(known) if known.spec == spec && known.file.as_ref() == Some(&file) => return,
            Some(known) if known.spec == spec => (known.generation, known.changed),
            Some(known) => (known.generation + 1, later(known.changed)),
            None => match self.generations.get(&key) {
                Some(kept) if spec.is_ok() && spec.as_ref().ok() == kept.spec.as_ref().ok() => {
                    (kept.generation, kept.changed)
                }
                Some(kept) => (kept.generation + 1, later(kept.changed)),
                None => (1, later(None)),
            },
        };
        // The UID depends only on the name, so it stays the same after a restart. The agents' counters belong to the
        // UID.
        let uid = revision_of(&(&*key.namespace, &*key.name));
        let policy = Policy { uid, generation, created: None, changed, spec, file: Some(file) };
        // The stored status is needed only if the file, or that of a store, is broken before the engine has compiled the
        // good content.
        let is_needed = policy.spec.is_err() || self.files.values().any(|file| !file.unread_stores.is_empty());
        let kept = self.generations.get(&key).filter(|_| is_needed && !self.is_complete);
        let stored = kept.map(Kept::stored).unwrap_or_default();
        self.current.insert(key.clone(), policy.clone());
        update.changes.push(Change::Policy(key, Some((policy, stored))));
    }
}

impl FolderUpdate {
    fn look_again_at(&mut self, at: Instant) {
        self.look_again = Some(self.look_again.map_or(at, |earlier| earlier.min(at)));
    }
}

/// The policies or stores that no file contains, and the time since which they are missing. They are removed after
/// [`CONFIRM`].
#[derive(Debug, Default)]
struct Missing(BTreeMap<ObjectKey, Instant>);

impl Missing {
    /// Removes from `current` the entries that have been missing for long enough, and returns them.
    fn take<V>(
        &mut self,
        now: Instant,
        current: &mut BTreeMap<ObjectKey, V>,
        is_wanted: impl Fn(&ObjectKey) -> bool,
        update: &mut FolderUpdate,
    ) -> Vec<(ObjectKey, V)> {
        let before = std::mem::take(&mut self.0);
        let gone = current.keys().filter(|key| !is_wanted(key));
        let gone = gone.map(|key| (key.clone(), before.get(key).copied().unwrap_or(now)));
        let (lost, waiting): (BTreeMap<_, _>, _) = gone.partition(|(_, since)| now.duration_since(*since) >= CONFIRM);
        if let Some(since) = waiting.values().min() {
            update.look_again_at(*since + CONFIRM);
        }
        self.0 = waiting;
        lost.keys().filter_map(|key| current.remove_entry(key)).collect()
    }
}

/// Policies or stores that a second file also contains, so that each is reported once.
#[derive(Debug, Default)]
struct Duplicates(BTreeSet<(ObjectKey, Arc<str>)>);

impl Duplicates {
    fn report(
        &self,
        kind: &str,
        key: &ObjectKey,
        file: &Arc<str>,
        first: &Arc<str>,
        now: &mut Self,
        to: &mut FolderUpdate,
    ) {
        let double = (key.clone(), file.clone());
        if !self.0.contains(&double) {
            let message = format!("{kind} {key} is ignored: it is already in {first}");
            to.notices.push(FileNotice { file: file.clone(), place: None, message });
        }
        now.0.insert(double);
    }
}

/// Parses the policies and stores of a file. `known` is its earlier state.
fn read(seen: &Result<Arc<str>, String>, known: Option<&File>) -> Result<(Specs, StoreSpecs), Faulty> {
    let text = match seen {
        Ok(text) => text,
        Err(error) => return Err(faulty(TextPosition { line: 1, column: 1 }, format!("cannot be read: {error}"))),
    };
    let held_something = known.is_some_and(|file| !file.is_empty());
    let mut read = documents::read(text);
    if read.is_empty() && held_something {
        let message = "is empty, and its last good content stays in force: delete the file to remove its policies";
        return Err(faulty(TextPosition { line: 1, column: 1 }, message.to_owned()));
    }
    let stores = std::mem::take(&mut read.stores);
    let specs = read.policies()?;
    // A text in brackets that was cut off does not parse in any case.
    let is_block = !text.trim_start().starts_with(['{', '[']);
    if held_something && is_block && known.is_some_and(|file| file.has_last_line) && !text.ends_with('\n') {
        let last = text.lines().last().unwrap_or_default();
        let place = TextPosition { line: text.lines().count(), column: last.chars().count() + 1 };
        let message = "ends within a line, as if it were cut off: end the last line with a line break";
        return Err(faulty(place, message.to_owned()));
    }
    Ok((specs, stores))
}

fn faulty(place: TextPosition, message: String) -> Faulty {
    let fault = Fault { path: String::new(), message };
    Faulty { findings: vec![Finding { place, fault }], named: BTreeSet::new() }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
