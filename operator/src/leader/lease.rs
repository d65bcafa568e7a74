//! Reads, claims and watches the Lease in the apiserver. This module makes no decisions.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::{Lease, LeaseSpec},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher::{self, Event},
};
use serde_json::{Value, json};

use super::election::{ClaimResult, LeaseClaim, Record};
use crate::{
    clock,
    source::watch::{warn, watch},
};

/// The annotation that reserves sequences for the holder: its snapshots use smaller ones, and later holders use
/// larger ones.
pub const SEQUENCES_BELOW: &str = "weir.dev/sequences-below";
const FIELD_MANAGER: &str = "weir-operator";
/// The label that names the release. The Lease gets the label's value from its owner.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// The namespace and name of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The Deployment that owns the Lease. Without an owner, an operator that still runs would create the Lease again
    /// after helm has deleted it, and the next installation would wait for that operator.
    pub owner: Option<String>,
}

#[derive(Clone)]
pub(super) struct Store {
    leases: Api<Lease>,
    name: String,
    deployments: Api<Deployment>,
    owner: Option<String>,
    /// The owner that was read last. If a leader creates the Lease again after its Deployment was deleted, this owner
    /// causes the deletion of the Lease, too.
    known: Arc<Mutex<Option<Owner>>>,
}

#[derive(Clone, Debug)]
struct Owner {
    reference: OwnerReference,
    instance: Option<String>,
}

impl Store {
    pub(super) fn new(client: Client, lease: &LeaseName) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), &lease.namespace),
            name: lease.name.clone(),
            deployments: Api::namespaced(client, &lease.namespace),
            owner: lease.owner.clone(),
            known: Arc::default(),
        }
    }

    pub(super) async fn read(&self) -> Result<Option<Record>, kube::Error> {
        Ok(self.leases.get_opt(&self.name).await?.map(record))
    }

    pub(super) async fn claim(&self, claim: &LeaseClaim) -> Result<ClaimResult, kube::Error> {
        let owner = if claim.acquires { self.owner().await } else { None };
        let stored = match &claim.version {
            None => self.leases.create(&PostParams::default(), &self.first(claim, owner)).await,
            Some(version) => {
                let has_owner = owner.is_some();
                match self.patch(claim, version, owner).await {
                    // The admission plugin OwnerReferencesPermissionEnforcement requires the right to delete Leases.
                    Err(kube::Error::Api(status)) if status.code == 403 && has_owner => {
                        tracing::warn!(error = %status.message, "the owner of the lease cannot be set: the lease will not be deleted with the Deployment");
                        self.patch(claim, version, None).await
                    }
                    answer => answer,
                }
            }
        };
        match stored {
            Ok(lease) => Ok(ClaimResult::Stored(record(lease))),
            // Another writer has changed, created or deleted the Lease in the meantime.
            Err(kube::Error::Api(status)) if status.code == 409 || (status.code == 404 && claim.version.is_some()) => {
                Ok(ClaimResult::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    async fn patch(&self, claim: &LeaseClaim, version: &str, owner: Option<Owner>) -> Result<Lease, kube::Error> {
        let patch = Patch::Merge(patch(claim, version, owner));
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.leases.patch(&self.name, &parameters, &patch).await
    }

    /// Returns a stream of the Lease's changes, which never ends. `None` means that the Lease was deleted.
    pub(super) fn changes(&self) -> BoxStream<'static, Option<Record>> {
        let this_one = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let events = watch(self.leases.clone(), this_one);
        let changes = events.filter_map(|event| async {
            match event {
                Ok(Event::InitApply(lease) | Event::Apply(lease)) => Some(Some(record(lease))),
                Ok(Event::Delete(_)) => Some(None),
                Ok(Event::Init | Event::InitDone) => None,
                Err(error) => {
                    warn("Lease", &error);
                    None
                }
            }
        });
        changes.chain(stream::pending()).boxed()
    }

    /// Returns the owner. A replica that cannot read the Deployment can still lead. The Deployment can have been created
    /// again since the last call, and a Lease with the earlier UID would be deleted as garbage.
    async fn owner(&self) -> Option<Owner> {
        let name = self.owner.as_deref()?;
        let read = async || {
            let deployment = self.deployments.get_metadata(name).await?;
            let reference = OwnerReference {
                api_version: "apps/v1".to_owned(),
                kind: "Deployment".to_owned(),
                name: name.to_owned(),
                uid: deployment.metadata.uid.unwrap_or_default(),
                ..OwnerReference::default()
            };
            let instance = deployment.metadata.labels.and_then(|mut labels| labels.remove(INSTANCE));
            Ok::<_, kube::Error>(Owner { reference, instance })
        };
        let answer = read().await;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(owner) => *known = Some(owner),
            Err(error) if known.is_none() => {
                tracing::warn!(deployment = name, %error, "--lease-owner cannot be read: the lease will not be deleted with the Deployment");
            }
            Err(_) => {}
        }
        known.clone()
    }

    fn first(&self, claim: &LeaseClaim, owner: Option<Owner>) -> Lease {
        let now = Some(MicroTime(clock::timestamp()));
        let labels = [("app.kubernetes.io/name", "weir"), ("app.kubernetes.io/managed-by", FIELD_MANAGER)];
        let instance = owner.as_ref().and_then(|owner| Some((INSTANCE, owner.instance.as_deref()?)));
        let labels = labels.into_iter().chain(instance).map(|(name, value)| (name.to_owned(), value.to_owned()));
        let reserved = BTreeMap::from([(SEQUENCES_BELOW.to_owned(), claim.sequences_below.to_string())]);
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(labels.collect()),
                annotations: Some(reserved),
                owner_references: owner.map(|owner| vec![owner.reference]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: claim.holder.clone(),
                lease_duration_seconds: Some(seconds(claim.lease)),
                lease_transitions: Some(claim.transitions),
                acquire_time: now.clone(),
                renew_time: now,
                ..LeaseSpec::default()
            }),
        }
    }
}

/// Returns the changed fields. The times are for people: no candidate reads them.
fn patch(claim: &LeaseClaim, version: &str, owner: Option<Owner>) -> Value {
    let now = MicroTime(clock::timestamp());
    let mut spec = json!({
        "holderIdentity": claim.holder.as_deref().unwrap_or_default(),
        "leaseDurationSeconds": seconds(claim.lease),
        "leaseTransitions": claim.transitions,
        "renewTime": now,
    });
    if claim.acquires {
        spec["acquireTime"] = json!(now);
    }
    let reserved = json!({ SEQUENCES_BELOW: claim.sequences_below.to_string() });
    let mut metadata = json!({"resourceVersion": version, "annotations": reserved});
    if let Some(owner) = owner {
        metadata["ownerReferences"] = json!([owner.reference]);
    }
    json!({"metadata": metadata, "spec": spec})
}

/// Extracts the values that a candidate needs. Every Lease is readable, even one that a person wrote: missing and
/// invalid fields have defaults.
fn record(lease: Lease) -> Record {
    let spec = lease.spec.unwrap_or_default();
    let annotations = lease.metadata.annotations.unwrap_or_default();
    Record {
        version: lease.metadata.resource_version.unwrap_or_default(),
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        lease: Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0)),
        transitions: spec.lease_transitions.unwrap_or(0),
        sequences_below: annotations.get(SEQUENCES_BELOW).and_then(|text| text.parse().ok()).unwrap_or(0),
    }
}

fn seconds(lease: Duration) -> i32 {
    i32::try_from(lease.as_secs()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use tower::service_fn;

    use super::{
        super::{
            election::{Election, Step},
            timing::LeaseTiming,
        },
        *,
    };

    /// The Lease exists without an owner. An admission plugin refuses to set one.
    #[tokio::test]
    async fn a_lease_whose_owner_cannot_be_set_is_claimed() {
        let apiserver = service_fn(async |request: Request<Body>| {
            let is_patch = request.method() == Method::PATCH;
            let body = request.into_body().collect().await?.to_bytes();
            let patch: Value = if is_patch { serde_json::from_slice(&body)? } else { Value::Null };
            let (status, answer) = if patch["metadata"]["ownerReferences"].is_null() {
                (200, json!({"metadata": {"name": "weir", "resourceVersion": "8"}, "spec": patch["spec"]}))
            } else {
                let message = "cannot set an ownerRef on a resource you can't delete";
                (403, json!({"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}))
            };
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?)
        });
        let store = store(Client::new(apiserver, "weir-system"));
        assert!(store.owner().await.is_some(), "the Deployment must be readable");
        let claim = claim(read(json!({"metadata": {"name": "weir", "resourceVersion": "7"}})));
        let Ok(ClaimResult::Stored(stored)) = store.claim(&claim).await else { panic!("the claim must succeed") };
        assert_eq!(stored.holder.as_deref(), Some("a"));
    }

    /// The Deployment is deleted without its pods, created again, and deleted again.
    #[tokio::test]
    async fn the_owner_is_read_again_for_each_claim() {
        let uids = Arc::new(Mutex::new(vec![None, Some("new"), Some("old")]));
        let apiserver = service_fn(move |_: Request<Body>| {
            let uid = uids.lock().unwrap().pop().flatten();
            let metadata = json!({"metadata": {"name": "weir", "uid": uid}});
            let missing = json!({"status": "Failure", "message": "", "reason": "NotFound", "code": 404});
            let (status, answer) = if uid.is_some() { (200, metadata) } else { (404, missing) };
            let body = Body::from(answer.to_string().into_bytes());
            async move { Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?) }
        });
        let store = store(Client::new(apiserver, "weir-system"));
        for expected in ["old", "new", "new"] {
            assert_eq!(store.owner().await.map(|owner| owner.reference.uid).as_deref(), Some(expected));
        }
    }

    fn store(client: Client) -> Store {
        let owner = Some("weir".to_owned());
        Store::new(client, &LeaseName { namespace: "weir-system".to_owned(), name: "weir".to_owned(), owner })
    }

    /// Returns the claim of the candidate `a` that finds this Lease.
    fn claim(record: Record) -> LeaseClaim {
        let timing = LeaseTiming::new(Duration::from_secs(8), Duration::from_secs(2)).expect("a valid timing");
        let mut election = Election::new("a".to_owned(), timing, 1);
        election.read(Duration::ZERO, Ok(Some(record)));
        let Step::Claim(claim) = election.next(Duration::ZERO, 1) else { panic!("a Lease without a holder is free") };
        claim
    }

    fn read(lease: Value) -> Record {
        record(serde_json::from_value(lease).unwrap())
    }

    #[test]
    fn every_content_of_a_lease_has_a_meaning() {
        let held = json!({"metadata": {"resourceVersion": "7", "annotations": {SEQUENCES_BELOW: "99"}},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 8, "leaseTransitions": 3}});
        let expected = Record {
            version: "7".to_owned(),
            holder: Some("a".to_owned()),
            lease: Duration::from_secs(8),
            transitions: 3,
            sequences_below: 99,
        };
        assert_eq!(read(held), expected);
        let odd = json!({"metadata": {"annotations": {SEQUENCES_BELOW: "-5"}},
            "spec": {"holderIdentity": "b", "leaseDurationSeconds": -1}});
        for (lease, holder) in [
            (json!({"metadata": {"resourceVersion": "8"}}), None),
            (json!({"metadata": {}, "spec": {"holderIdentity": ""}}), None),
            (odd, Some("b")),
        ] {
            let record = read(lease);
            assert_eq!((record.holder.as_deref(), record.lease, record.sequences_below), (holder, Duration::ZERO, 0));
        }
    }
}
