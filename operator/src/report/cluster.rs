//! Writes statuses by server-side apply, and announcements as Events.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use weir_api::{RateLimitPolicy, RateLimitStore};

use super::{Announcement, Pending, SinkError, undeclared::remove_undeclared};
use crate::{
    clock, source::objects::take_policy_status, status::announcer::Notice, wording::shorten, world::StoredStatus,
};

/// The field manager of statuses, and the reporter of Events.
const FIELD_MANAGER: &str = "weir-operator";
const CONTROLLER: &str = "weir.dev/operator";

/// Writes to the apiserver.
#[derive(Clone)]
pub struct ClusterSink {
    client: Client,
    /// The name of this operator in Events.
    instance: String,
    /// The fields of statuses that the cluster's definitions do not have, as writes have shown.
    undeclared: Arc<Mutex<BTreeSet<String>>>,
}

impl std::fmt::Debug for ClusterSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterSink").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl ClusterSink {
    /// Returns a sink. `instance` is the name of this operator among several: its pod.
    pub fn new(client: Client, instance: String) -> Self {
        Self { client, instance, undeclared: Arc::default() }
    }

    pub(super) async fn write(&self, pending: &Pending) -> Result<StoredStatus, SinkError> {
        let (resource, key, uid, version, status) = match pending {
            Pending::Policy(report) => {
                let resource = ApiResource::erase::<RateLimitPolicy>(&());
                (resource, &report.key, &report.uid, report.version.as_ref(), json!(report.status))
            }
            Pending::Store(report) => {
                (ApiResource::erase::<RateLimitStore>(&()), &report.key, &report.uid, None, json!(report.status))
            }
            Pending::File(_) => return Err(SinkError::Gone),
        };
        // Only the status of the response is parsed, because an unknown field in the spec must not make a write fail.
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let mut patch = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": &*key.name, "namespace": &*key.namespace, "uid": uid},
            "status": status,
        });
        if let Some(version) = version {
            patch["metadata"]["resourceVersion"] = json!(version);
        }
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let apply = async |patch: &Value| objects.patch_status(&key.name, &parameters, &Patch::Apply(patch)).await;
        let mut answer = apply(&patch).await;
        while let Err(kube::Error::Api(error)) = &answer {
            let removed = remove_undeclared(&mut patch, &error.message);
            if removed.is_empty() {
                break;
            }
            self.warn(&resource.kind, removed);
            answer = apply(&patch).await;
        }
        match answer {
            Ok(mut object) => {
                let status = take_policy_status(&mut object);
                Ok(StoredStatus { status, version: object.metadata.resource_version })
            }
            // Any other 404 comes from an apiserver that does not serve these objects at present.
            Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Err(SinkError::Gone),
            // Either a new object has this name, or another write was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // The code uses a list instead of a get, because the operator may only list these objects.
                let named = ListParams::default().fields(&format!("metadata.name={}", key.name));
                let found = objects.list_metadata(&named).await.map_err(Box::new)?.items.pop();
                match found.map(|object| object.metadata) {
                    Some(found) if found.uid.as_deref() == Some(uid) => {
                        Err(SinkError::Conflict { version: found.resource_version })
                    }
                    _ => Err(SinkError::Gone),
                }
            }
            Err(error) => Err(SinkError::Api(Box::new(error))),
        }
    }

    /// Logs the fields that the cluster's definition of this kind does not have, each of them once.
    fn warn(&self, kind: &str, fields: BTreeSet<String>) {
        let mut known = self.undeclared.lock().unwrap_or_else(PoisonError::into_inner);
        for field in fields {
            if known.insert(format!("{kind} {field}")) {
                tracing::warn!(
                    "the cluster's definition of {kind} is older than this operator: no {field} is stored; upgrade the \
                     chart weir-crds"
                );
            }
        }
    }

    /// Returns the Event for an announcement. The name is fixed here, so a repeated write does not create a second
    /// Event.
    pub(super) fn event(&self, announcement: &Announcement) -> Event {
        let Announcement { key, uid, notice: Notice { warning, reason, note, .. }, .. } = announcement;
        let now = clock::timestamp();
        tracing::info!(policy = %key, reason, note, "event");
        Event {
            metadata: ObjectMeta {
                // Each announcement gets a new Event, because a series would keep the first note for different facts.
                name: Some(format!("{}.{:x}", beginning(&key.name), now.as_nanosecond())),
                namespace: Some(key.namespace.to_string()),
                ..ObjectMeta::default()
            },
            type_: Some(if *warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some((*reason).to_owned()),
            action: Some("Enforce".to_owned()),
            // The apiserver refuses notes above 1024 bytes.
            note: Some(shorten(note.clone(), 1000)),
            event_time: Some(MicroTime(now)),
            regarding: Some(ObjectReference {
                api_version: Some(RateLimitPolicy::api_version(&()).into_owned()),
                kind: Some(RateLimitPolicy::kind(&()).into_owned()),
                namespace: Some(key.namespace.to_string()),
                name: Some(key.name.to_string()),
                uid: Some(uid.clone()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }

    /// Writes an Event, unless it already exists.
    pub(super) async fn announce(&self, event: &Event) -> Result<(), kube::Error> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match events.create(&PostParams::default(), event).await {
            // An earlier attempt succeeded, and its response was lost.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// Returns the part of a policy's name that fits in the name of an Event, which has 253 bytes at most.
fn beginning(name: &str) -> &str {
    name.get(..200).unwrap_or(name).trim_end_matches(['-', '.'])
}
