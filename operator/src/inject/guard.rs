//! Finds the port that the agent guards, and transfers its name to the agent.
//!
//! A Service with a named target port uses the container that has a port of that name. So the agent's port gets the
//! name. References to the name in the app's container (probes, hooks) are changed to the number, so that they still
//! reach the app. The port is never guessed: a pod with several candidates must name the port. Without an annotation, a
//! port whose name, number or probe shows another protocol than plain HTTP is no candidate, because the agent would
//! break a database or an app with TLS.

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;

use super::annotations::PortName;

/// The annotation that names a pod's main container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// The first parts of port names that name another protocol, as in the convention of service meshes:
/// `<protocol>[-<suffix>]`.
const OTHER_PROTOCOLS: [&str; 22] = [
    "amqp",
    "amqps",
    "cassandra",
    "cql",
    "https",
    "kafka",
    "ldap",
    "ldaps",
    "memcached",
    "mongo",
    "mongodb",
    "mqtt",
    "mysql",
    "nats",
    "postgres",
    "postgresql",
    "redis",
    "smtp",
    "ssh",
    "tcp",
    "tls",
    "udp",
];
/// Ports that are reserved for another protocol.
const OTHER_PORTS: [(u16, &str); 12] = [
    (22, "SSH"),
    (25, "SMTP"),
    (443, "TLS"),
    (587, "SMTP"),
    (1433, "SQL Server"),
    (3306, "MySQL"),
    (5432, "PostgreSQL"),
    (5672, "AMQP"),
    (6379, "Redis"),
    (9092, "Kafka"),
    (11211, "Memcached"),
    (27017, "MongoDB"),
];
/// The preferred name if several ports have names.
const CONVENTIONAL: &str = "http";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guarded {
    /// The number of the port, on which the app listens.
    pub(super) number: u16,
    /// The name that the agent takes over.
    pub(super) name: Option<String>,
    /// The index of the container that declares the port; `None` if no container does.
    pub(super) container: Option<usize>,
}

/// Finds the port to guard.
///
/// # Errors
///
/// There is no such port. The message explains why, and how to fix it.
pub(super) fn find(
    spec: &PodSpec,
    annotations: impl Fn(&str) -> Option<String>,
    wanted: Option<&PortName>,
) -> Result<Guarded, String> {
    let ports = || spec.containers.iter().enumerate().flat_map(|(index, container)| tcp_ports(index, container));
    let guarded = match wanted {
        Some(PortName::Number(number)) => {
            let declared = ports().find(|port| port.number == *number);
            declared.unwrap_or(Guarded { number: *number, name: None, container: None })
        }
        Some(PortName::Name(name)) => ports().find(|port| port.name.as_ref() == Some(name)).ok_or_else(|| {
            let there: Vec<String> = ports().filter_map(|port| port.name).collect();
            let there = if there.is_empty() { "none has a name".to_owned() } else { there.join(", ") };
            format!("annotation weir.dev/port is {name:?}: no container has a TCP port of that name ({there})")
        })?,
        None => {
            let main = annotations(DEFAULT_CONTAINER);
            let main = spec.containers.iter().position(|container| Some(&container.name) == main.as_ref()).unwrap_or(0);
            let all: Vec<Guarded> = ports().filter(|port| port.container == Some(main)).collect();
            let is_http = |port: &&Guarded| port.other_protocol(spec).is_none();
            let http: Vec<Guarded> = all.iter().filter(is_http).cloned().collect();
            match all.first().and_then(|port| Some((port, port.other_protocol(spec)?))) {
                Some((port, why)) if http.is_empty() => return Err(unreadable(port, &why)),
                _ => choose(&http)?,
            }
        }
    };
    if let Some(name) = &guarded.name
        && let Some(other) =
            ports().find(|port| port.name.as_ref() == Some(name) && port.container != guarded.container)
    {
        let container = |index: Option<usize>| index.map_or("?", |index| &spec.containers[index].name);
        return Err(format!(
            "port name {name} is in containers {} and {}: a Service would not find the agent behind it; give each a name of \
             its own",
            container(guarded.container),
            container(other.container),
        ));
    }
    Ok(guarded)
}

fn unreadable(port: &Guarded, why: &str) -> String {
    format!(
        "port {} is not plain HTTP ({why}), and the agent reads only plain HTTP: set weir.dev/inject: disabled, or, if the \
         app speaks HTTP there, name the port in annotation weir.dev/port",
        port.name.as_ref().map_or_else(|| port.number.to_string(), Clone::clone),
    )
}

fn choose(ports: &[Guarded]) -> Result<Guarded, String> {
    let mut named: Vec<Guarded> = ports.iter().filter(|port| port.name.is_some()).cloned().collect();
    if let Some(http) = named.iter().position(|port| port.name.as_deref() == Some(CONVENTIONAL)) {
        return Ok(named.swap_remove(http));
    }
    match (named.pop(), ports.len()) {
        (Some(only), 1) => Ok(only),
        (None, 0) => Err("no container port to guard: declare the app's port with a name, or give its number in \
                          annotation weir.dev/port"
            .to_owned()),
        (None, _) => Err("its ports have no names: give a name to the one that Services use and target it by that \
                          name, or give its number in annotation weir.dev/port"
            .to_owned()),
        (Some(last), _) if named.is_empty() => Ok(last),
        (Some(last), _) => {
            let names: Vec<String> = named.into_iter().chain([last]).filter_map(|port| port.name).collect();
            Err(format!("several ports are possible ({}): name one in annotation weir.dev/port", names.join(", ")))
        }
    }
}

fn tcp_ports(index: usize, container: &Container) -> impl Iterator<Item = Guarded> {
    let tcp = |protocol: Option<&str>| protocol.is_none_or(|protocol| protocol == "TCP");
    let ports = container.ports.iter().flatten().filter(move |port| tcp(port.protocol.as_deref()));
    ports.filter_map(move |port| {
        let number = u16::try_from(port.container_port).ok()?;
        Some(Guarded { number, name: port.name.clone().filter(|name| !name.is_empty()), container: Some(index) })
    })
}

impl Guarded {
    /// Returns the reason why the port is not plain HTTP, if something shows that.
    fn other_protocol(&self, spec: &PodSpec) -> Option<String> {
        let protocol = self.name.as_deref().and_then(|name| name.split('-').next());
        if let Some(protocol) = protocol.filter(|protocol| OTHER_PROTOCOLS.contains(protocol)) {
            return Some(format!("its name begins with {protocol}"));
        }
        let is_https = |probe: &&Probe| {
            let get = probe.http_get.as_ref().filter(|get| self.is(&get.port));
            get.is_some_and(|get| get.scheme.as_deref() == Some("HTTPS"))
        };
        if self.probes(spec).any(|probe| is_https(&probe)) {
            return Some("its probe uses HTTPS".to_owned());
        }
        // A name that says HTTP counts more than the number.
        if protocol.is_some_and(|protocol| protocol.starts_with("http") || protocol.starts_with("grpc")) {
            return None;
        }
        let (_, other) = OTHER_PORTS.iter().find(|(number, _)| *number == self.number)?;
        Some(format!("{} is the port of {other}", self.number))
    }

    /// Removes the name from the app's container, and writes the number into its probes and hooks.
    pub(super) fn take_over(&self, containers: &mut [Value]) {
        let (Some(name), Some(container)) = (&self.name, self.container) else { return };
        let container = &mut containers[container];
        for port in container["ports"].as_array_mut().into_iter().flatten() {
            if port["name"] == name.as_str()
                && let Some(port) = port.as_object_mut()
            {
                port.remove("name");
            }
        }
        for place in [
            "/livenessProbe/httpGet",
            "/livenessProbe/tcpSocket",
            "/readinessProbe/httpGet",
            "/readinessProbe/tcpSocket",
            "/startupProbe/httpGet",
            "/startupProbe/tcpSocket",
            "/lifecycle/postStart/httpGet",
            "/lifecycle/postStart/tcpSocket",
            "/lifecycle/preStop/httpGet",
            "/lifecycle/preStop/tcpSocket",
        ] {
            if let Some(port) = container.pointer_mut(place).and_then(|action| action.get_mut("port"))
                && port == name.as_str()
            {
                *port = self.number.into();
            }
        }
    }

    /// Returns true if the kubelet probes this port. A redirect sends such probes to the agent.
    pub(super) fn is_probed(&self, spec: &PodSpec) -> bool {
        self.probes(spec).any(|probe| {
            let ports = [probe.http_get.as_ref().map(|get| &get.port), probe.tcp_socket.as_ref().map(|tcp| &tcp.port)];
            let grpc = probe.grpc.as_ref().is_some_and(|grpc| grpc.port == i32::from(self.number));
            grpc || ports.into_iter().flatten().any(|port| self.is(port))
        })
    }

    /// Returns the probes of the container that declares the port.
    fn probes<'a>(&self, spec: &'a PodSpec) -> impl Iterator<Item = &'a Probe> {
        let container = self.container.and_then(|index| spec.containers.get(index));
        let probes = container.map(|it| [&it.liveness_probe, &it.readiness_probe, &it.startup_probe]);
        probes.into_iter().flatten().flatten()
    }

    /// Whether a probe with this port reaches the guarded port.
    fn is(&self, port: &IntOrString) -> bool {
        match port {
            IntOrString::Int(number) => *number == i32::from(self.number),
            IntOrString::String(name) => Some(name) == self.name.as_ref(),
        }
    }
}
