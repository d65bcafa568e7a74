//! The stores of the directory's files.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{Duplicates, File, FolderUpdate, Missing};
use crate::world::{Change, Fault, ObjectKey, Store};

/// All stores, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct StoresOfFolder {
    current: BTreeMap<ObjectKey, Store>,
    gone: Missing,
    doubled: Duplicates,
}

impl StoresOfFolder {
    /// Compares the files with the previous state.
    pub(super) fn update(&mut self, now: Instant, files: &BTreeMap<Arc<str>, File>, update: &mut FolderUpdate) {
        let mut wanted = BTreeMap::new();
        let mut doubled = Duplicates::default();
        for (file, key, spec) in
            files.iter().flat_map(|(name, file)| file.stores.iter().map(move |it| (name, it.0, it.1)))
        {
            let Some((first, _)) = wanted.get(key) else {
                wanted.insert(key, (file, Ok(spec.clone())));
                continue;
            };
            self.doubled.report("store", key, file, first, &mut doubled, update);
        }
        self.doubled = doubled;
        // The world must contain these stores: the policies of a store that is missing end.
        for (name, file) in files {
            let unread = || {
                let message = "this operator cannot read the last good content of the store's file".to_owned();
                Err(vec![Fault { path: "spec".to_owned(), message }])
            };
            for key in &file.unread_stores {
                wanted.entry(key).or_insert_with(|| (name, unread()));
            }
        }
        let lost = self.gone.take(now, &mut self.current, |key| wanted.contains_key(key), update);
        update.changes.extend(lost.into_iter().map(|(key, _)| Change::Store(key, None)));
        for (key, (_, spec)) in wanted {
            let known = self.current.get(key);
            if known.is_some_and(|known| known.spec == spec) {
                continue;
            }
            let generation = known.map_or(1, |known| known.generation + 1);
            let store = Store { uid: String::new(), generation, spec };
            self.current.insert(key.clone(), store.clone());
            update.changes.push(Change::Store(key.clone(), Some((store, None))));
        }
    }
}
