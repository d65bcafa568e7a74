//! The ways to a pod's app: which ports of Services lead through the agent, and which past it.
//!
//! Pure. Of a Service it knows the ports, of a pod where its agent listens, which port it guards, and what its container
//! ports are called. Pods of one template have the same pod_ports. An agent on the pod's own network cannot refuse what
//! comes to the app directly, so the most that can be done is to say so.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

/// The init container that sends what comes to the guarded port to the agent.
const REDIRECT: &str = "weir-redirect";
/// The annotation of a Service that is meant to lead past the agent: `allowed`.
pub const BYPASS_ANNOTATION: &str = "weir.dev/bypass";

/// Where a pod's agent and the app behind it are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodPorts {
    /// The app's port that the agent guards, if somebody can come to it directly.
    pub guarded: Option<u16>,
    /// Where the agent listens for clients.
    pub agent: u16,
    /// Numbers of the container ports that have a name.
    pub names: BTreeMap<String, u16>,
}

/// A container as far as it says something about ports.
#[derive(Clone, Debug, Deserialize)]
pub struct Container {
    name: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
}

impl PodPorts {
    /// Those of a pod with these containers. The agent is the one with a `--listen` and an `--upstream` on loopback.
    pub fn of(containers: &[Container], init_containers: &[Container]) -> Self {
        let all = || containers.iter().chain(init_containers);
        let agent = all().find_map(|container| {
            let upstream = container.flag("--upstream").filter(|upstream| is_loopback(upstream))?;
            Some((port(container.flag("--listen")?)?, port(upstream)?))
        });
        let Some((agent, guarded)) = agent else { return Self::default() };
        let named = all().flat_map(|container| &container.ports);
        let names = named.filter_map(|port| Some((port.name.clone()?, port.container_port))).collect();
        let is_redirected = init_containers.iter().any(|container| container.name == REDIRECT);
        Self { guarded: (!is_redirected).then_some(guarded), agent, names }
    }
}

impl Container {
    /// The value of `--flag=value` or `--flag value`.
    fn flag(&self, flag: &str) -> Option<&str> {
        let words: Vec<&str> = self.command.iter().chain(&self.args).map(String::as_str).collect();
        let with_equals = || words.iter().find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
        let next = || words.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1]);
        with_equals().or_else(next)
    }
}

fn port(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

fn is_loopback(address: &str) -> bool {
    ["127.", "[::1]", "localhost"].iter().any(|host| address.starts_with(host))
}

/// What matters of a Service besides its selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Its name leads to the pods themselves, whatever its ports say.
    headless: bool,
    /// Its owner says that it is meant to lead past the agent.
    allowed: bool,
    ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    number: u16,
    target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Number(u16),
    Name(String),
}

/// A way past the agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bypass {
    /// A port of a Service that leads to the app.
    Port {
        /// Name of the Service.
        service: String,
        /// The port of it.
        port: u16,
        /// Where the app listens.
        app: u16,
        /// Where the agent listens.
        agent: u16,
    },
    /// The names of a headless Service are those of the pods: a client that knows the app's port reaches it.
    Names {
        /// Name of the Service.
        service: String,
        /// Where the app listens.
        app: u16,
        /// Where the agent listens.
        agent: u16,
    },
    /// A rule of another policy on the same pods that lets every request through.
    Policy {
        /// Name of that policy.
        policy: String,
        /// Name of the rule.
        rule: String,
    },
}

impl Bypass {
    /// Whether this is how clients are meant to come, so that nobody can say that the policy is enforced. The names of
    /// headless Services are mostly there for the pods themselves.
    pub fn is_main_way(&self) -> bool {
        !matches!(self, Self::Names { .. })
    }
}

impl std::fmt::Display for Bypass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port { service, port, app, agent } => write!(
                f,
                "port {port} of Service {service} leads to port {app} of the pods, past the agent: let its targetPort be \
                 {agent}, or the name that the agent has for it"
            ),
            Self::Names { service, app, agent } => write!(
                f,
                "the names of headless Service {service} lead to the pods, where port {app} is the app's, past the agent: let \
                 clients use port {agent}, the app listen on 127.0.0.1 only, or the pods say weir.dev/redirect: enabled"
            ),
            Self::Policy { policy, rule } => write!(
                f,
                "rule {rule} of policy {policy} lets every request to these pods through: give it a match, or take it away"
            ),
        }
    }
}

impl Service {
    /// From the object.
    pub fn of(object: &core::Service) -> Self {
        let spec = object.spec.as_ref();
        let annotations = object.metadata.annotations.as_ref();
        let port = |port: &core::ServicePort| {
            let number = u16::try_from(port.port).ok()?;
            let is_tcp = port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
            let target = match &port.target_port {
                None => Target::Number(number),
                Some(IntOrString::Int(target)) => Target::Number(u16::try_from(*target).ok()?),
                Some(IntOrString::String(name)) => Target::Name(name.clone()),
            };
            is_tcp.then_some(Port { number, target })
        };
        Self {
            headless: spec.and_then(|spec| spec.cluster_ip.as_deref()) == Some("None"),
            allowed: annotations.and_then(|it| it.get(BYPASS_ANNOTATION)).is_some_and(|value| value == "allowed"),
            ports: spec.iter().flat_map(|spec| spec.ports.iter().flatten()).filter_map(port).collect(),
        }
    }

    /// The ways past the agent of pods with these pod_ports that this Service, of this name, opens.
    pub fn bypasses(&self, name: &str, pod_ports: &PodPorts) -> Vec<Bypass> {
        let Some(app) = pod_ports.guarded.filter(|_| !self.allowed) else { return Vec::new() };
        let (service, agent) = (name.to_owned(), pod_ports.agent);
        let leads_to_app = |port: &&Port| match &port.target {
            Target::Number(number) => *number == app,
            Target::Name(name) => pod_ports.names.get(name) == Some(&app),
        };
        if self.headless {
            // No port of the Service stands between a name and the pod: its number is the pod's.
            let is_open =
                self.ports.is_empty() || self.ports.iter().any(|port| port.number == app || leads_to_app(&port));
            return if is_open { vec![Bypass::Names { service, app, agent }] } else { Vec::new() };
        }
        let past = self.ports.iter().filter(leads_to_app);
        past.map(|port| Bypass::Port { service: service.clone(), port: port.number, app, agent }).collect()
    }
}

#[cfg(test)]
#[path = "pod_ports_tests.rs"]
mod tests;
