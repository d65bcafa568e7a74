//! Watches one object of the apiserver by its name.

use std::fmt::Debug;

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;

use super::watch::ShortBackoff;

/// Returns the object whenever it changes; `None` while it does not exist.
pub(crate) fn object<K>(api: &Api<K>, name: &str) -> impl Stream<Item = Option<K>> + use<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher::watch_object(api.clone(), name).backoff(ShortBackoff::default());
    events.filter_map(|event| async {
        event.inspect_err(|error| tracing::warn!(%error, "watch failed, trying again")).ok()
    })
}
