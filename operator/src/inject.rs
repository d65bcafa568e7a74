//! Injection: a mutating webhook that adds the agent to new pods that request it.
//!
//! ```text
//! apiserver ──AdmissionReview──► server ──► ContentRequest to the engine: what will target this pod?
//!                                  │              │ bootstrap snapshot
//!                                  └──► pod ◄─────┘  pure: pod in, pod out
//! registration: the Secret with the authorities ──► the webhook's caBundle, the server's certificate
//! ```
//!
//! The selectors of the MutatingWebhookConfiguration check the label `weir.dev/inject` of namespaces and pods. So the
//! apiserver sends only matching pods, and this module watches no namespaces. Every replica serves, leader or not. A
//! pod in which the agent cannot run starts without an agent. A warning and the annotation `weir.dev/not-injected` give
//! the reason, which also appears in the status of the policies that target the pod. The agent's resources are adapted
//! to the quotas and limits of the pod's namespace. A pod with an invalid annotation is refused only if the cluster's
//! owner configured that.

mod agent_start;
mod annotations;
mod bootstrap;
mod container_fields;
mod files;
mod flags;
mod guard;
mod keys;
mod mesh;
mod namespace_bounds;
mod pod;
mod pod_resources;
mod ports;
mod published;
mod quantity;
mod quota;
mod refusal;
mod registration;
mod server;
mod settings;
mod sidecar;
mod suits;
mod tokens;
mod values;

pub(crate) use self::registration::Injection;
pub use self::{bootstrap::ContentRequest, flags::InjectFlags};
