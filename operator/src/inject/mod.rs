//! Injection: a mutating webhook that gives the agent to pods that ask for it, before they exist.
//!
//! ```text
//! apiserver ──AdmissionReview──► server ──► Question to the engine: what will target this pod?
//!                                  │              │ bootstrap snapshot
//!                                  └──► pod ◄─────┘  pure: pod in, pod out
//! registration: the Secret with the authorities ──► the webhook's caBundle, the server's certificate
//! ```
//!
//! Who is asked for is the apiserver's business: the selectors of the MutatingWebhookConfiguration look at the label
//! `weir.dev/inject` of namespaces and pods, so nothing here watches namespaces. Every replica serves, leader or not. A
//! pod is never kept from starting because the agent does not suit it: it is left alone, and told why by a warning and
//! by the annotation `weir.dev/not-injected`, which ends up in the status of the policies that target it. What the agent asks for is
//! fitted to the quotas and limits of the pod's namespace. Only where the
//! cluster's owner said so is a pod with a wrong annotation refused.

mod annotations;
mod bootstrap;
mod files;
mod flags;
mod guard;
mod keys;
mod pod;
mod published;
mod quantity;
mod quota;
mod registration;
mod server;
mod settings;
mod sidecar;

pub use bootstrap::Question;
pub use flags::InjectFlags;

pub(crate) use registration::Injection;

/// The label of namespaces and pods. On a pod, the annotation works as well for `disabled`.
pub(crate) const INJECT: &str = "weir.dev/inject";
/// The annotation of pods without an agent: why, and how to fix it.
pub(crate) const NOT_INJECTED: &str = "weir.dev/not-injected";
