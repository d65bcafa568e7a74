//! The apiserver as a source: one watch per kind and namespace.
//!
//! Objects are reduced to the fields that the world needs when they arrive. This module stores only their names, so
//! that a new listing shows which objects were deleted.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::StreamExt;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    core::v1::Service,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::NamespaceResourceScope,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use weir_api::{RateLimitPolicy, RateLimitStore};

use super::{
    objects::{self, IdentityProof},
    pod::Pod,
    watch::{warn, watch},
};
use crate::world::{Change, ObjectKey, Update, WorkloadKind};

const STORE: &str = "RateLimitStore";

/// The number of watches that have not sent their first listing.
type Unlisted = Arc<AtomicUsize>;

/// Watches until `updates` is closed. If `namespaces` is empty, watches all namespaces.
pub async fn run(client: Client, namespaces: Vec<String>, proof: IdentityProof, updates: mpsc::Sender<Update>) {
    let scopes: Vec<Option<String>> =
        if namespaces.is_empty() { vec![None] } else { namespaces.into_iter().map(Some).collect() };
    let mut watches = tokio::task::JoinSet::new();
    let unlisted: Unlisted = Arc::new(AtomicUsize::new(scopes.len() * 7));
    for scope in scopes {
        let namespace = scope.as_deref();
        let policies = ApiResource::erase::<RateLimitPolicy>(&());
        let policies: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &policies),
            None => Api::all_with(client.clone(), &policies),
        };
        let stores = ApiResource::erase::<RateLimitStore>(&());
        let stores: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &stores),
            None => Api::all_with(client.clone(), &stores),
        };
        let sender = UpdateSender { updates: updates.clone(), unlisted: unlisted.clone() };
        let gone = |key| Change::Store(key, None);
        watches.spawn(follow(STORE, stores, sender.clone(), objects::store, gone));
        let gone = |key| Change::Policy(key, None);
        watches.spawn(follow("RateLimitPolicy", policies, sender.clone(), objects::policy, gone));
        let pod = move |key, pod| objects::pod(key, pod, proof);
        watches.spawn(follow("Pod", api::<Pod>(&client, namespace), sender.clone(), pod, |key| Change::Pod(key, None)));
        watches.spawn(follow(
            "Deployment",
            api::<Deployment>(&client, namespace),
            sender.clone(),
            objects::deployment,
            |key| objects::workload_gone(WorkloadKind::Deployment, key),
        ));
        watches.spawn(follow(
            "StatefulSet",
            api::<StatefulSet>(&client, namespace),
            sender.clone(),
            objects::stateful_set,
            |key| objects::workload_gone(WorkloadKind::StatefulSet, key),
        ));
        watches.spawn(follow(
            "DaemonSet",
            api::<DaemonSet>(&client, namespace),
            sender.clone(),
            objects::daemon_set,
            |key| objects::workload_gone(WorkloadKind::DaemonSet, key),
        ));
        let gone = |key| Change::Service(key, None);
        watches.spawn(follow("Service", api::<Service>(&client, namespace), sender, objects::service, gone));
    }
    drop(updates);
    // If a watch panics, the source ends, and the operator with it.
    while let Some(Ok(())) = watches.join_next().await {}
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

#[derive(Clone)]
struct UpdateSender {
    updates: mpsc::Sender<Update>,
    unlisted: Unlisted,
}

impl UpdateSender {
    async fn send(&self, changes: Vec<Change>) -> bool {
        self.updates.send(Update { changes, complete: false }).await.is_ok()
    }

    /// Records that one watch has sent its first listing. The last one makes the world complete: the others have
    /// already sent their listings through the same channel.
    async fn listed(&self) -> bool {
        if self.unlisted.fetch_sub(1, Ordering::AcqRel) > 1 {
            return true;
        }
        self.updates.send(Update { changes: Vec::new(), complete: true }).await.is_ok()
    }
}

async fn follow<K>(
    kind: &'static str,
    api: Api<K>,
    sender: UpdateSender,
    present: impl Fn(ObjectKey, K) -> Change + Send,
    gone: impl Fn(ObjectKey) -> Change + Send,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = watch(api, watcher::Config::default()).boxed();
    let mut known = BTreeSet::new();
    let mut listing = Vec::new();
    let mut first = true;
    while let Some(event) = events.next().await {
        if event.is_err() {
            // The next listing starts again.
            listing.clear();
        }
        let sent = match event {
            // `watch` leaves it out.
            Ok(Event::Init) => true,
            Ok(Event::InitApply(object)) => {
                let key = key_of(&object);
                listing.push((key.clone(), present(key, object)));
                true
            }
            Ok(Event::InitDone) => {
                let listed: BTreeSet<ObjectKey> = listing.iter().map(|(key, _)| key.clone()).collect();
                let lost = known.difference(&listed).cloned().map(&gone);
                // The listing is moved out, so that its memory is freed: a listing is the largest value in a cold
                // start.
                let changes = lost.chain(std::mem::take(&mut listing).into_iter().map(|(_, change)| change)).collect();
                known = listed;
                sender.send(changes).await && (!std::mem::take(&mut first) || sender.listed().await)
            }
            Ok(Event::Apply(object)) => {
                let key = key_of(&object);
                known.insert(key.clone());
                sender.send(vec![present(key, object)]).await
            }
            Ok(Event::Delete(object)) => {
                let key = key_of(&object);
                known.remove(&key);
                sender.send(vec![gone(key)]).await
            }
            Err(error) if is_undefined(&error) => {
                tracing::warn!(kind, "the cluster does not serve this kind, trying again: {}", what_is_missing(kind));
                // An older chart of CRDs has no stores. Policies without stores must not wait for their CRD.
                if kind == STORE && std::mem::take(&mut first) {
                    sender.listed().await
                } else {
                    !sender.updates.is_closed()
                }
            }
            Err(error) => {
                warn(kind, &error);
                !sender.updates.is_closed()
            }
        };
        if !sent {
            return;
        }
    }
}

/// Returns true if the apiserver does not serve the watched kind.
fn is_undefined(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn what_is_missing(kind: &str) -> &'static str {
    if kind == "RateLimitPolicy" || kind == STORE {
        "its CRD is missing; install or upgrade the chart weir-crds. Until then agents keep their rules"
    } else {
        "every Kubernetes cluster serves it; is this the apiserver of a cluster?"
    }
}

fn key_of(object: &impl ResourceExt) -> ObjectKey {
    ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kind_that_is_not_served_is_undefined() {
        for (code, expected) in [(404, true), (403, false), (500, false)] {
            let status = serde_json::json!({"status": "Failure", "message": "", "reason": "", "code": code});
            let error = || kube::Error::Api(serde_json::from_value(status.clone()).unwrap());
            assert_eq!(is_undefined(&watcher::Error::InitialListFailed(error())), expected, "{code}");
            assert_eq!(is_undefined(&watcher::Error::WatchStartFailed(error())), expected, "{code}");
        }
        assert!(!is_undefined(&watcher::Error::NoResourceVersion));
    }
}
