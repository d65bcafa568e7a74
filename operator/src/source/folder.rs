//! What a directory of policy files means, listing by listing. Pure: text and time in, changes out.
//!
//! Editors replace files by renaming, truncate them before they write, and save halves. So nothing that got worse is
//! believed at first sight: a policy that is gone, or a file that no longer parses, must still be so after
//! [`CONFIRM`]. A broken file never takes its policies out of force; it makes them invalid, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicySpec;

use crate::compile::revision_of;
use crate::documents;
use crate::world::{Beside, Change, Fault, ObjectKey, Policy};

/// How long something bad must last to be believed.
pub(super) const CONFIRM: Duration = Duration::from_millis(250);

/// File name to text, or to why it cannot be read.
pub(super) type Listing = BTreeMap<Arc<str>, Result<String, String>>;

/// Something to tell the person at the keyboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The file meant.
    pub file: Arc<str>,
    /// What about it.
    pub message: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.message)
    }
}

/// What follows from a listing.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) changes: Vec<Change>,
    pub(super) notices: Vec<Notice>,
    /// When to look again although nothing moves.
    pub(super) look_again: Option<Instant>,
}

/// The directory as it was last understood.
#[derive(Debug, Default)]
pub(super) struct Folder {
    files: BTreeMap<Arc<str>, File>,
    current: BTreeMap<ObjectKey, Policy>,
    gone_since: BTreeMap<ObjectKey, Instant>,
    /// Policies that are in a second file as well, so that it is told once.
    doubled: BTreeSet<(ObjectKey, Arc<str>)>,
}

type Specs = BTreeMap<ObjectKey, Arc<RateLimitPolicySpec>>;

#[derive(Debug)]
struct File {
    seen: Result<String, String>,
    /// The last good content.
    good: Specs,
    broken: Option<Broken>,
}

#[derive(Debug)]
struct Broken {
    since: Instant,
    faults: Vec<Fault>,
    told: bool,
}

impl Folder {
    /// The faults of a first listing. With nothing known to be good before, a broken file cannot be bridged.
    pub(super) fn faults(listing: &Listing) -> Vec<Notice> {
        let mut notices = Vec::new();
        for (file, text) in listing {
            let faults = read(text).err().unwrap_or_default();
            notices.extend(faults.iter().map(|fault| Notice { file: file.clone(), message: fault.to_string() }));
        }
        notices
    }

    /// Compares a listing with what was known.
    pub(super) fn absorb(&mut self, now: Instant, listing: Listing) -> Outcome {
        let mut outcome = Outcome::default();
        self.files.retain(|file, _| listing.contains_key(file));
        for (file, seen) in listing {
            if self.files.get(&file).is_none_or(|known| known.seen != seen) {
                self.reread(now, file, seen, &mut outcome);
            }
        }
        for (name, file) in &mut self.files {
            let Some(broken) = &mut file.broken else { continue };
            if now.duration_since(broken.since) < CONFIRM {
                outcome.look_again_at(broken.since + CONFIRM);
            } else if !std::mem::replace(&mut broken.told, true) {
                let tell = |message| Notice { file: name.clone(), message };
                outcome.notices.extend(broken.faults.iter().map(|fault| tell(fault.to_string())));
                if !file.good.is_empty() {
                    outcome.notices.push(tell("its last good content stays in force".to_owned()));
                }
            }
        }
        let wanted = self.wanted(&mut outcome);
        self.remove_lost(now, &wanted, &mut outcome);
        for (key, (file, spec)) in wanted {
            self.gone_since.remove(&key);
            self.set(key, file, spec, &mut outcome);
        }
        outcome
    }

    fn reread(&mut self, now: Instant, name: Arc<str>, seen: Result<String, String>, outcome: &mut Outcome) {
        let known = self.files.remove(&name);
        let file = match read(&seen) {
            Ok(good) => {
                if known.as_ref().and_then(|file| file.broken.as_ref()).is_some_and(|broken| broken.told) {
                    outcome.notices.push(Notice { file: name.clone(), message: "reads well again".into() });
                }
                File { seen, good, broken: None }
            }
            Err(faults) => {
                let since = known.as_ref().and_then(|file| file.broken.as_ref()).map_or(now, |broken| broken.since);
                let good = known.map(|file| file.good).unwrap_or_default();
                File { seen, good, broken: Some(Broken { since, faults, told: false }) }
            }
        };
        self.files.insert(name, file);
    }

    #[expect(clippy::type_complexity, reason = "a spec or its faults, with the file that they are from")]
    fn wanted(
        &mut self,
        outcome: &mut Outcome,
    ) -> BTreeMap<ObjectKey, (Arc<str>, Result<Arc<RateLimitPolicySpec>, Vec<Fault>>)> {
        let mut wanted: BTreeMap<ObjectKey, (Arc<str>, _)> = BTreeMap::new();
        let mut doubled = BTreeSet::new();
        for (name, file) in &self.files {
            for (key, spec) in &file.good {
                if let Some((first, _)) = wanted.get(key) {
                    let double = (key.clone(), name.clone());
                    if !self.doubled.contains(&double) {
                        let message = format!("policy {key} is ignored: it is in {first} already");
                        outcome.notices.push(Notice { file: name.clone(), message });
                    }
                    doubled.insert(double);
                    continue;
                }
                let spec = match &file.broken {
                    Some(broken) if broken.told => Err(broken.faults.clone()),
                    _ => Ok(spec.clone()),
                };
                wanted.insert(key.clone(), (name.clone(), spec));
            }
        }
        self.doubled = doubled;
        wanted
    }

    fn remove_lost<V>(&mut self, now: Instant, wanted: &BTreeMap<ObjectKey, V>, outcome: &mut Outcome) {
        let lost: Vec<ObjectKey> = self.current.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in lost {
            let since = *self.gone_since.entry(key.clone()).or_insert(now);
            if now.duration_since(since) < CONFIRM {
                outcome.look_again_at(since + CONFIRM);
            } else {
                self.gone_since.remove(&key);
                self.current.remove(&key);
                outcome.changes.push(Change::Policy(key, None));
            }
        }
    }

    fn set(
        &mut self,
        key: ObjectKey,
        file: Arc<str>,
        spec: Result<Arc<RateLimitPolicySpec>, Vec<Fault>>,
        outcome: &mut Outcome,
    ) {
        let generation = match self.current.get(&key) {
            Some(known) if known.spec == spec && known.file.as_ref() == Some(&file) => return,
            Some(known) if known.spec == spec => known.generation,
            Some(known) => known.generation + 1,
            None => 1,
        };
        // The same name gives the same UID, also after a restart: the agents' counters belong to it.
        let uid = revision_of(&(&key.namespace, &key.name));
        let policy = Policy { uid, generation, created: None, spec, file: Some(file) };
        self.current.insert(key.clone(), policy.clone());
        outcome.changes.push(Change::Policy(key, Some((policy, Beside::default()))));
    }
}

impl Outcome {
    fn look_again_at(&mut self, at: Instant) {
        self.look_again = Some(self.look_again.map_or(at, |earlier| earlier.min(at)));
    }
}

fn read(seen: &Result<String, String>) -> Result<Specs, Vec<Fault>> {
    match seen {
        Ok(text) => documents::policies(text),
        Err(error) => Err(vec![Fault { path: String::new(), message: format!("cannot be read: {error}") }]),
    }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
