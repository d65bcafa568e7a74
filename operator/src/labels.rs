//! The labels and annotations of pods that both the sources and injection read or write.

/// The label of pods: if it is `enabled`, the pod has an agent, which is a sidecar or the app itself (`weir-client`).
pub(crate) const AGENT_LABEL: &str = "weir.dev/agent";
/// The label of agents, in a cluster and in standalone mode: if it is `enabled`, the agent is a rate limit service.
/// Policies with a domain target only such agents, and other policies only other agents.
pub(crate) const SERVICE_LABEL: &str = "weir.dev/rate-limit-service";
/// The annotation that names the agent's control port.
pub(crate) const CONTROL_PORT_ANNOTATION: &str = "weir.dev/control-port";
/// The annotation `plaintext` of pods whose agent's control port has no TLS, while other agents prove their
/// identity.
pub(crate) const CONTROL_ANNOTATION: &str = "weir.dev/control";
/// The annotation of injected pods that lists the Secrets of stores that their agent can read.
pub(crate) const STORE_SECRETS: &str = "weir.dev/store-secrets";
/// The label of namespaces and pods that controls injection. On a pod, an annotation with this name and the value
/// `disabled` also works.
pub(crate) const INJECT: &str = "weir.dev/inject";
/// The annotation of pods without an agent: the reason, and the fix.
pub(crate) const NOT_INJECTED: &str = "weir.dev/not-injected";
