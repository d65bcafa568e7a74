//! The apiserver as a source: one watch per kind and namespace.
//!
//! Objects are reduced to the fields that the world needs when they arrive. This module stores only their names, so
//! that a new listing shows which objects were deleted.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
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
    first_listings::FirstListings,
    objects::{self, AnnotationFaults, IdentityProof},
    pod::Pod,
    watch::{warn, watch},
};
use crate::{
    clock,
    metrics::Metrics,
    world::{Change, ObjectKey, Update, WorkloadKind},
};

const POLICY: &str = "RateLimitPolicy";
const STORE: &str = "RateLimitStore";
/// The watched kinds.
const KINDS: [&str; 7] = [POLICY, STORE, "Pod", "Deployment", "StatefulSet", "DaemonSet", "Service"];

/// Watches until `updates` is closed. If `namespaces` is empty, watches all namespaces.
pub async fn run(
    client: Client,
    namespaces: Vec<String>,
    proof: IdentityProof,
    updates: mpsc::Sender<Update>,
    metrics: Metrics,
) {
    let scopes: Vec<Option<String>> =
        if namespaces.is_empty() { vec![None] } else { namespaces.into_iter().map(Some).collect() };
    let mut watches = tokio::task::JoinSet::new();
    let listings = Arc::new(Mutex::new(FirstListings::new(&scopes, &KINDS)));
    for (number, scope) in scopes.into_iter().enumerate() {
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
        let (updates, listings, metrics) = (updates.clone(), listings.clone(), metrics.clone());
        let sender = UpdateSender { updates, listings, scope: number, namespace: scope.clone(), metrics };
        let gone = |key| Change::Store(key, None);
        watches.spawn(follow(STORE, stores, sender.clone(), objects::store, gone));
        let gone = |key| Change::Policy(key, None);
        watches.spawn(follow(POLICY, policies, sender.clone(), objects::policy, gone));
        let faults = Arc::new(AnnotationFaults::default());
        let of_gone = faults.clone();
        let pod = move |key, pod| {
            faults.log(&key, &pod, proof);
            objects::pod(key, pod, proof)
        };
        let gone = move |key| {
            of_gone.forget(&key);
            Change::Pod(key, None)
        };
        watches.spawn(follow("Pod", api::<Pod>(&client, namespace), sender.clone(), pod, gone));
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
    listings: Arc<Mutex<FirstListings>>,
    /// The index of this scope in `listings`.
    scope: usize,
    namespace: Option<String>,
    metrics: Metrics,
}

impl UpdateSender {
    /// Sends the update of a step, in the order of the steps of all watches. Returns false if the receiver is gone.
    async fn send(&self, step: impl FnOnce(&mut FirstListings) -> Update) -> bool {
        let Ok(permit) = self.updates.reserve().await else { return false };
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        let was_lost = listings.is_lost(self.scope);
        let update = step(&mut listings);
        let is_lost = listings.is_lost(self.scope);
        if is_lost != was_lost {
            let namespace = self.namespace.as_deref();
            if is_lost {
                tracing::warn!(
                    namespace,
                    "the operator may not list all kinds in this namespace: continuing without it; restore its Role and \
                     RoleBinding, or remove it from the watched namespaces"
                );
            } else {
                tracing::info!(namespace, "the operator has listed this namespace");
            }
            self.metrics.set_lost_namespaces(listings.lost());
        }
        if update.complete || !update.changes.is_empty() {
            permit.send(update);
        }
        true
    }

    async fn change(&self, changes: Vec<Change>) -> bool {
        self.send(|listings| listings.change(self.scope, changes)).await
    }

    async fn listed(&self, kind: &'static str) -> bool {
        self.send(|listings| listings.listed(self.scope, kind)).await
    }

    /// Records a failed watch. The refusals of a lost namespace are not logged.
    async fn failed(&self, kind: &'static str, error: &watcher::Error) -> bool {
        if !is_forbidden(error) {
            warn(kind, error);
            self.listings.lock().unwrap_or_else(PoisonError::into_inner).failed(self.scope, kind);
            return !self.updates.is_closed();
        }
        let mut is_lost = false;
        let is_open = self
            .send(|listings| {
                is_lost = listings.is_lost(self.scope);
                listings.refused(clock::now(), self.scope, kind)
            })
            .await;
        if !is_lost {
            warn(kind, error);
        }
        is_open
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
                sender.change(changes).await && (!std::mem::take(&mut first) || sender.listed(kind).await)
            }
            Ok(Event::Apply(object)) => {
                let key = key_of(&object);
                known.insert(key.clone());
                sender.change(vec![present(key, object)]).await
            }
            Ok(Event::Delete(object)) => {
                let key = key_of(&object);
                known.remove(&key);
                sender.change(vec![gone(key)]).await
            }
            Err(error) if is_undefined(&error) => {
                tracing::warn!(kind, "the cluster does not serve this kind, trying again: {}", what_is_missing(kind));
                // An older chart of CRDs has no stores. Policies without stores must not wait for their CRD.
                if kind == STORE && std::mem::take(&mut first) {
                    sender.listed(kind).await
                } else {
                    !sender.updates.is_closed()
                }
            }
            Err(error) => sender.failed(kind, &error).await,
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
    has_code(error, 404)
}

/// Returns true if the operator has no right to list the watched kind.
fn is_forbidden(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(error) if has_code(error, 403))
}

fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn what_is_missing(kind: &str) -> &'static str {
    if kind == POLICY || kind == STORE {
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
    use std::{convert::Infallible, time::Duration};

    use bytes::Bytes;
    use futures::stream::{self, BoxStream};
    use http::{Request, Response, StatusCode};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use kube::client::Body;
    use serde_json::json;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// The apiserver refuses the listings of the namespace `lost`. Later it permits them kind by kind.
    #[tokio::test(start_paused = true)]
    async fn a_lost_namespace_does_not_hold_back_the_others() {
        let permitted = Arc::new(Mutex::new(Vec::new()));
        let apiserver = tower::service_fn({
            let permitted = permitted.clone();
            move |request: Request<Body>| {
                let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
                let kind = path.rsplit('/').next().unwrap_or_default();
                let is_lost = path.contains("/namespaces/lost/");
                let is_permitted = !is_lost || permitted.lock().unwrap().contains(&kind.to_owned());
                let pod = json!({"metadata": {"name": "web", "namespace": "lost", "uid": "1"}});
                let items = if is_lost && kind == "pods" { vec![pod] } else { Vec::new() };
                let (status, text) = if is_permitted {
                    (StatusCode::OK, json!({"metadata": {"resourceVersion": "7"}, "items": items}))
                } else {
                    let failure = json!({"kind": "Status", "status": "Failure", "message": "", "reason": "Forbidden",
                        "code": 403});
                    (StatusCode::FORBIDDEN, failure)
                };
                let text = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(text.to_string())))]);
                let body: BoxStream<'_, _> =
                    if query.contains("watch=true") { stream::pending().boxed() } else { text.boxed() };
                async move { Response::builder().status(status).body(StreamBody::new(body)) }
            }
        });
        let (sender, mut updates) = mpsc::channel(64);
        let (namespaces, metrics) = (["kept", "lost"].map(str::to_owned).to_vec(), Metrics::default());
        let client = Client::new(apiserver, "default");
        let lost = |count| format!("weir_operator_lost_namespaces {count}\n");
        let begun = Instant::now();
        tokio::spawn(run(client, namespaces, IdentityProof::NotRequired, sender, metrics.clone()));

        let first = updates.recv().await.expect("the source runs");
        assert!(matches!(&first.changes[..], [Change::Lost(namespace, true)] if **namespace == *"lost"), "{first:?}");
        assert!(first.complete && (30..60).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert!(metrics.render(Duration::ZERO).contains(&lost(1)));

        permitted.lock().unwrap().push("pods".to_owned());
        sleep(Duration::from_secs(60)).await;
        let early = updates.try_recv();
        assert!(early.is_err(), "the policies of this pod are not listed: {early:?}");
        let others = ["ratelimitpolicies", "ratelimitstores", "deployments", "statefulsets", "daemonsets", "services"];
        permitted.lock().unwrap().extend(others.map(str::to_owned));
        let Update { changes, complete } = updates.recv().await.expect("the source runs");
        assert!(matches!(changes[..], [Change::Pod(..), Change::Lost(_, false)]) && !complete, "{changes:?}");
        assert!(metrics.render(Duration::ZERO).contains(&lost(0)));
    }

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
