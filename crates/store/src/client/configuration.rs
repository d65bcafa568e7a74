//! The configuration of a store, which can change: other servers, a new password, or another authority of its certificate.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{OpenStore, StoreClient};
use crate::{backend::Backend, lock::lock};

/// The shortest time between two reads of the configuration because of refusals.
const BETWEEN_READS: Duration = Duration::from_secs(1);

impl StoreClient {
    /// Continues with another configuration of the store, for example with other servers. It must be the same kind of store.
    ///
    /// Rules keep what they know about their keys, and what they owe. The new servers may know less, as after a
    /// failover: the next question about each key reports the highest level that this program has received.
    pub fn change(&self, open: OpenStore) {
        let mut backend = lock(&self.backend);
        *lock(&self.changed) = Some(open);
        // A level from before this failure is sent again. No question reaches the new servers before it.
        self.failures.fetch_add(1, Relaxed);
        *backend = None;
        drop(backend);
        lock(&self.time).replace();
        lock(&self.condition).changed();
    }

    fn open(&self) -> Result<Backend, String> {
        let changed = lock(&self.changed);
        changed.as_ref().unwrap_or(&self.parts.open)()
    }

    pub(super) fn backend(&self) -> Result<Arc<Backend>, String> {
        let mut backend = lock(&self.backend);
        if let Some(backend) = &*backend {
            return Ok(Arc::clone(backend));
        }
        let new = Arc::new(self.open()?);
        *backend = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Returns the store with another configuration than that of `used`, for example with another password. None if there
    /// is none.
    ///
    /// Without a connection, the new configuration is in force immediately. On an open connection, the error has probably
    /// another cause, and the new secrets can be wrong. So the caller tries them first, and they are read at most once per
    /// [`BETWEEN_READS`].
    pub(super) fn renewed(&self, used: &Arc<Backend>) -> Option<Arc<Backend>> {
        let current = lock(&self.backend).clone()?;
        if !Arc::ptr_eq(&current, used) {
            return Some(current);
        }
        let is_connected = used.is_connected();
        if is_connected {
            let now = self.now();
            let read_at = &mut lock(&self.condition).configuration_read_at;
            if read_at.is_some_and(|read_at| now < read_at + BETWEEN_READS) {
                return None;
            }
            *read_at = Some(now);
        }
        let new = Arc::new(self.open().ok()?);
        if new.is_configured_like(used) {
            return None;
        }
        if !is_connected {
            self.replace(used, Arc::clone(&new));
        }
        Some(new)
    }

    /// Replaces the store, unless another question has replaced it.
    pub(super) fn replace(&self, used: &Arc<Backend>, new: Arc<Backend>) {
        let mut backend = lock(&self.backend);
        if backend.as_ref().is_some_and(|current| Arc::ptr_eq(current, used)) {
            *backend = Some(new);
        }
    }
}
