//! Finds the ports of Services that lead through the agent, and those that bypass it.
//!
//! This module does no I/O and reads no clock. Its inputs are a Service's ports, a pod's named ports, and the ports on
//! which the pod's agent and app listen. The pods of one template have the same ports. An agent cannot refuse requests
//! that reach the app directly over the pod's network, so Weir can only report such a bypass.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::util::intstr::IntOrString};
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

/// The agent's program, and the usual name of its container.
const AGENT: &str = "weir-agent";
/// The subcommand of the agent's program that serves Envoy.
const SERVICE: &str = "rls";
/// The addresses of an agent.
const LISTEN: Setting = Setting { flag: "--listen", variable: "WEIR_LISTEN", default: "[::]:8480" };
const UPSTREAM: Setting = Setting { flag: "--upstream", variable: "WEIR_UPSTREAM", default: "127.0.0.1:8080" };
/// The most bytes of an address: a host name, and a port.
const LONGEST_ADDRESS: usize = 260;
/// The init container that redirects requests for the guarded port to the agent.
const REDIRECT: &str = "weir-redirect";
/// The annotation `allowed` of a Service that bypasses the agent intentionally.
pub const BYPASS_ANNOTATION: &str = "weir.dev/bypass";

/// A flag of the agent, its variable and its default.
struct Setting {
    flag: &'static str,
    variable: &'static str,
    default: &'static str,
}

/// The ports of a pod's agent and of the app behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodPorts {
    /// The app's port that the agent guards, if clients can reach it directly.
    pub guarded: Option<u16>,
    /// The agent's port for clients.
    pub agent: u16,
    /// The numbers of the named container ports.
    pub names: BTreeMap<String, u16>,
    /// The port of the node that leads to the guarded port.
    pub host_port: Option<u16>,
}

/// The parts of a container that concern ports.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    name: String,
    restart_policy: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default, deserialize_with = "short_variables")]
    env: Vec<Variable>,
    #[serde(default)]
    ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Deserialize)]
struct Variable {
    name: String,
    /// `None` if the value comes from another object.
    value: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
    host_port: Option<u16>,
    protocol: Option<String>,
}

impl PodPorts {
    /// Returns the ports of a pod with these containers. The agent is the container with an upstream on loopback, in its
    /// flags or variables. The container with the agent's name or program can omit them.
    pub fn of(containers: &[Container], init_containers: &[Container]) -> Self {
        let all = || containers.iter().chain(init_containers);
        let named = |is_named: bool| all().filter(move |container| (container.name == AGENT) == is_named);
        let agent = named(true).chain(named(false)).find_map(|container| {
            let [listen, upstream] = container.addresses()?;
            is_loopback(&upstream).then_some((port(&listen)?, port(&upstream)?))
        });
        let Some((agent, guarded)) = agent else { return Self::default() };
        // A Service looks in the containers first, and not in init containers that complete.
        let sidecars = init_containers.iter().filter(|container| container.restart_policy.as_deref() == Some("Always"));
        let named = containers.iter().chain(sidecars).flat_map(|container| &container.ports);
        let mut names = BTreeMap::new();
        for (name, number) in named.clone().filter_map(|port| Some((port.name.clone()?, port.container_port))) {
            names.entry(name).or_insert(number);
        }
        if init_containers.iter().any(|container| container.name == REDIRECT) {
            return Self { guarded: None, agent, names, host_port: None };
        }
        let is_open = |port: &&ContainerPort| port.container_port == guarded && is_tcp(port.protocol.as_deref());
        let host_port = named.filter(is_open).find_map(|port| port.host_port.filter(|number| *number > 0));
        Self { guarded: Some(guarded), agent, names, host_port }
    }
}

/// Returns the name of the agent's container, if the pod shows it: the usual name, the control port among its ports, or
/// an upstream on loopback.
pub fn agent_container<'a>(
    containers: &'a [Container],
    init_containers: &'a [Container],
    control: u16,
) -> Option<&'a str> {
    let find = |is_agent: fn(&Container, u16) -> bool| {
        containers.iter().chain(init_containers).find(|container| is_agent(container, control))
    };
    let agent = find(|container, _| container.name == AGENT)
        .or_else(|| find(|container, control| container.ports.iter().any(|port| port.container_port == control)))
        .or_else(|| find(|container, _| container.addresses().is_some_and(|[_, upstream]| is_loopback(&upstream))));
    agent.map(|container| container.name.as_str())
}

impl Container {
    /// Returns the addresses of an agent: on which it listens, and of the app. `None` if the container is no agent, or
    /// if another object contains an address.
    fn addresses(&self) -> Option<[String; 2]> {
        let program = self.command.first().map(|program| program.rsplit('/').next().unwrap_or_default());
        let has_upstream = self.flag(UPSTREAM.flag).is_some() || self.variable(UPSTREAM.variable).is_some();
        // The rate limit service has no app.
        let is_service = self.command.iter().chain(&self.args).any(|word| word == SERVICE);
        let is_agent = !is_service && (has_upstream || self.name == AGENT || program == Some(AGENT));
        if is_agent { Some([self.address(&LISTEN)?, self.address(&UPSTREAM)?]) } else { None }
    }

    fn address(&self, setting: &Setting) -> Option<String> {
        let text = match (self.flag(setting.flag), self.variable(setting.variable)) {
            (Some(value), _) => value,
            (None, Some(variable)) => variable.value.as_deref()?,
            (None, None) => setting.default,
        };
        self.expanded(text)
    }

    /// Returns a text with the values of variables in place of each `$(NAME)`, as the kubelet does. A reference without
    /// a value here stays as it is. The author of a pod chooses the text. `None` if it is too long for an address.
    fn expanded(&self, text: &str) -> Option<String> {
        if text.len() > LONGEST_ADDRESS {
            return None;
        }
        let Some((before, rest)) = text.split_once("$(") else { return Some(text.to_owned()) };
        let Some((name, after)) = rest.split_once(')') else { return Some(text.to_owned()) };
        let after = self.expanded(after)?;
        Some(match self.variable(name).and_then(|variable| variable.value.as_deref()) {
            Some(value) => format!("{before}{value}{after}"),
            None => format!("{before}$({name}){after}"),
        })
    }

    /// Returns the variable of this name. The last one counts.
    fn variable(&self, name: &str) -> Option<&Variable> {
        self.env.iter().rev().find(|variable| variable.name == name)
    }

    /// Returns the value of `--flag=value` or `--flag value`.
    fn flag(&self, flag: &str) -> Option<&str> {
        let words: Vec<&str> = self.command.iter().chain(&self.args).map(String::as_str).collect();
        let with_equals = || words.iter().find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
        let next = || words.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1]);
        with_equals().or_else(next)
    }
}

/// Reads the variables that can be a part of an address. Others, such as a snapshot, can be large, and a page of a listing
/// has hundreds of pods.
fn short_variables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Variable>, D::Error> {
    struct ShortVariables;

    impl<'de> Visitor<'de> for ShortVariables {
        type Value = Vec<Variable>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of variables")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut variables = Vec::new();
            while let Some(variable) = list.next_element::<Variable>()? {
                if variable.value.as_ref().is_none_or(|value| value.len() <= LONGEST_ADDRESS) {
                    variables.push(variable);
                }
            }
            Ok(variables)
        }
    }

    deserializer.deserialize_seq(ShortVariables)
}

fn port(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == "TCP")
}

fn is_loopback(address: &str) -> bool {
    ["127.", "[::1]", "localhost"].iter().any(|host| address.starts_with(host))
}

/// The parts of a Service that matter, in addition to its selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// True if the Service's name resolves to the pods themselves, for any ports of the Service.
    headless: bool,
    /// True if the Service's owner declared the bypass as intended.
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

/// A way for requests to bypass the agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bypass {
    /// A port of a Service that leads to the app.
    Port {
        /// The name of the Service.
        service: String,
        /// The Service's port.
        port: u16,
        /// The app's port.
        app: u16,
        /// The agent's port.
        agent: u16,
    },
    /// The name of a headless Service resolves to the pods, so a client that uses the app's port bypasses the agent.
    Names {
        /// The name of the Service.
        service: String,
        /// The app's port.
        app: u16,
        /// The agent's port.
        agent: u16,
    },
    /// A port of the node that leads to the app.
    HostPort {
        /// The node's port.
        port: u16,
        /// The app's port.
        app: u16,
    },
    /// A Bypass rule of another policy on the same pods. It exempts every request.
    Policy {
        /// The name of that policy, after its namespace and a slash if it is in another namespace.
        policy: String,
        /// The name of the rule.
        rule: String,
    },
}

impl Bypass {
    /// Returns true if clients usually take this way, so that the policy cannot count as enforced. Usually only the
    /// pods themselves use the name of a headless Service.
    pub fn is_main_way(&self) -> bool {
        !matches!(self, Self::Names { .. })
    }
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { service, port, app, agent } => write!(
                f,
                "port {port} of Service {service} leads to port {app} of the pods, past the agent: set its targetPort to \
                 {agent}, or to the agent's name for that port"
            ),
            Self::Names { service, app, agent } => write!(
                f,
                "the names of headless Service {service} lead to the pods, where port {app} is the app's, past the agent: let \
                 clients use port {agent}, let the app listen on 127.0.0.1 only, or set weir.dev/redirect: enabled on the pods"
            ),
            Self::HostPort { port, app } => write!(
                f,
                "hostPort {port} of the nodes leads to port {app} of the pods, past the agent: remove the hostPort and use a \
                 Service, or set weir.dev/redirect: enabled on the pods; with hostNetwork, do not declare the app's port"
            ),
            Self::Policy { policy, rule } => write!(
                f,
                "rule {rule} of policy {policy} lets every request to these pods through: give it a narrower match, or remove it"
            ),
        }
    }
}

impl PodPorts {
    /// Returns the bypass that the pods themselves open.
    pub fn bypass(&self) -> Option<Bypass> {
        Some(Bypass::HostPort { port: self.host_port?, app: self.guarded? })
    }
}

/// Returns true if a Service only gives another name to a host. It can still have a selector, from before.
pub fn is_only_a_name(spec: &core::ServiceSpec) -> bool {
    spec.type_.as_deref() == Some("ExternalName")
}

impl Service {
    /// Converts the Kubernetes object.
    pub fn of(object: &core::Service) -> Self {
        // The apiserver ignores the ports of a Service that is only a name.
        let spec = object.spec.as_ref().filter(|spec| !is_only_a_name(spec));
        let annotations = object.metadata.annotations.as_ref();
        let port = |port: &core::ServicePort| {
            let number = u16::try_from(port.port).ok()?;
            let target = match &port.target_port {
                None => Target::Number(number),
                Some(IntOrString::Int(target)) => Target::Number(u16::try_from(*target).ok()?),
                Some(IntOrString::String(name)) => Target::Name(name.clone()),
            };
            is_tcp(port.protocol.as_deref()).then_some(Port { number, target })
        };
        Self {
            headless: spec.and_then(|spec| spec.cluster_ip.as_deref()) == Some("None"),
            allowed: annotations.and_then(|it| it.get(BYPASS_ANNOTATION)).is_some_and(|value| value == "allowed"),
            ports: spec.iter().flat_map(|spec| spec.ports.iter().flatten()).filter_map(port).collect(),
        }
    }

    /// Returns the bypasses that this Service, with this name, opens to pods with these ports.
    pub fn bypasses(&self, name: &str, pod_ports: &PodPorts) -> Vec<Bypass> {
        let Some(app) = pod_ports.guarded.filter(|_| !self.allowed) else { return Vec::new() };
        let (service, agent) = (name.to_owned(), pod_ports.agent);
        let leads_to_app = |port: &&Port| match &port.target {
            Target::Number(number) => *number == app,
            Target::Name(name) => pod_ports.names.get(name) == Some(&app),
        };
        if self.headless {
            // DNS names resolve to the pod's address, without any port mapping by the Service.
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
