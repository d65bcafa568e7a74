//! The labels and annotations of pods that both the sources and injection read or write.

/// A pod has an agent if this label is `enabled`.
pub(crate) const AGENT_LABEL: &str = "weir.dev/agent";
/// The annotation that names the agent's control port.
pub(crate) const CONTROL_PORT_ANNOTATION: &str = "weir.dev/control-port";
/// The annotation of pods whose agent's control port is plain HTTP, while other agents prove their identity:
/// `plaintext`.
pub(crate) const CONTROL_ANNOTATION: &str = "weir.dev/control";
/// The annotation of injected pods that lists the Secrets of stores that their agent can read.
pub(crate) const STORE_SECRETS: &str = "weir.dev/store-secrets";
/// The label of namespaces and pods. On a pod, the annotation works as well for `disabled`.
pub(crate) const INJECT: &str = "weir.dev/inject";
/// The annotation of pods without an agent: why, and how to fix it.
pub(crate) const NOT_INJECTED: &str = "weir.dev/not-injected";
