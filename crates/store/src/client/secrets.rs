//! Changed secrets of a store: a new password, or another authority of its certificate.

use std::{sync::Arc, time::Duration};

use super::StoreClient;
use crate::{backend::Backend, lock::lock};

/// The shortest time between two reads of the configuration because of refusals.
const BETWEEN_READS: Duration = Duration::from_secs(1);

impl StoreClient {
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
        let new = Arc::new((self.parts.open)().ok()?);
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
