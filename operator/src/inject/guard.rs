//! Finds the port that the agent guards, and transfers its name to the agent.
//!
//! A Service with a named target port uses the container that has a port of that name. So the agent's port gets the
//! name. References to the name in the app's container (probes, hooks) are changed to the number, so that they still
//! reach the app. The operator never guesses the port: a pod with several candidates must name the port. If the name,
//! the number or a probe of a port shows another protocol than plain HTTP, the port is a candidate only if an
//! annotation names it. Otherwise the agent would break a database or an app with TLS.

use k8s_openapi::{
    api::core::v1::{Container, HTTPGetAction, PodSpec, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde_json::Value;

use super::{annotations::PortName, mesh, refusal::is_sidecar};

/// The annotation that names a pod's main container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// The first parts of port names that name another protocol, as in the convention of service meshes:
/// `<protocol>[-<suffix>]`.
const OTHER_PROTOCOLS: [&str; 38] = [
    "amqp", "amqps", "cassandra", "cql", "dns", "domain", "etcd", "ftp", "https", "imap", "imaps", "kafka", "ldap",
    "ldaps", "mariadb", "memcached", "mongo", "mongodb", "mqtt", "mqtts", "mssql", "mysql", "nats", "pop3", "postgres",
    "postgresql", "redis", "rediss", "smtp", "smtps", "ssh", "ssl", "tcp", "tls", "udp", "websecure", "wss",
    "zookeeper",
];
/// Ports that another protocol usually has.
const OTHER_PORTS: [(u16, &str); 28] = [
    (22, "SSH"),
    (25, "SMTP"),
    (53, "DNS"),
    (443, "TLS"),
    (465, "SMTP"),
    (587, "SMTP"),
    (636, "LDAP"),
    (853, "DNS"),
    (993, "IMAP"),
    (1433, "SQL Server"),
    (1883, "MQTT"),
    (2181, "ZooKeeper"),
    (2379, "etcd"),
    (2380, "etcd"),
    (3306, "MySQL"),
    (4222, "NATS"),
    (5432, "PostgreSQL"),
    (5671, "AMQP"),
    (5672, "AMQP"),
    (6379, "Redis"),
    (6443, "TLS"),
    (8443, "TLS"),
    (8883, "MQTT"),
    (9042, "Cassandra"),
    (9092, "Kafka"),
    (9443, "TLS"),
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
    /// The container that declares the port, or `None` if no container does.
    pub(super) container: Option<Place>,
}

/// A container that runs as long as the pod, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    App(usize),
    /// A native sidecar, by its index in the init containers.
    Sidecar(usize),
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
    let ports = || serving(spec).flat_map(|(place, container)| tcp_ports(place, container));
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
            let named = annotations(DEFAULT_CONTAINER);
            let main = spec.containers.iter().position(|container| Some(&container.name) == named.as_ref());
            // A mesh can put its proxy in front of the app's container.
            let main = main.or_else(|| spec.containers.iter().position(|container| !mesh::is_proxy(container)));
            let main = main.unwrap_or(0);
            let all: Vec<Guarded> = ports().filter(|port| port.container == Some(Place::App(main))).collect();
            let is_http = |port: &&Guarded| port.other_protocol(spec).is_none();
            let http: Vec<Guarded> = all.iter().filter(is_http).cloned().collect();
            match all.first().and_then(|port| Some((port, port.other_protocol(spec)?))) {
                Some((port, why)) if http.is_empty() => return Err(unreadable(port, &why)),
                _ => choose(&http)?,
            }
        }
    };
    if let Some(name) = &guarded.name
        && let Some(own) = guarded.declaring(spec)
        && let Some((_, other)) = serving(spec).find(|(place, other)| {
            let mut ports = tcp_ports(*place, other);
            other.name != own.name && ports.any(|port| port.name.as_ref() == Some(name))
        })
    {
        return Err(format!(
            "port name {name} is in containers {} and {}: a Service would not find the agent behind it; give each a name of \
             its own",
            own.name, other.name,
        ));
    }
    Ok(guarded)
}

/// The containers in which a Service looks for a named port.
fn serving(spec: &PodSpec) -> impl Iterator<Item = (Place, &Container)> {
    let sidecars = spec.init_containers.iter().flatten().enumerate();
    let sidecars = sidecars.filter(|(_, container)| is_sidecar(container));
    let sidecars = sidecars.map(|(index, container)| (Place::Sidecar(index), container));
    let apps = spec.containers.iter().enumerate().map(|(index, container)| (Place::App(index), container));
    apps.chain(sidecars)
}

fn unreadable(port: &Guarded, why: &str) -> String {
    format!(
        "port {} is not plain HTTP ({why}), and the agent reads only plain HTTP: set weir.dev/inject: disabled, or, if the \
         app speaks HTTP there, name the port in annotation weir.dev/port",
        port.shown(),
    )
}

fn choose(ports: &[Guarded]) -> Result<Guarded, String> {
    let mut named: Vec<Guarded> = ports.iter().filter(|port| port.name.is_some()).cloned().collect();
    if let Some(http) = named.iter().position(|port| port.name.as_deref() == Some(CONVENTIONAL)) {
        return Ok(named.swap_remove(http));
    }
    match (named.pop(), ports.len()) {
        (Some(only), 1) => Ok(only),
        // The other ports could be the app's, and this one could be for metrics.
        (Some(only), _) if named.is_empty() && only.says_http() => Ok(only),
        (None, 0) => Err("no container port to guard: declare the app's port with a name, or give its number in \
                          annotation weir.dev/port"
            .to_owned()),
        (None, _) => Err("its ports have no names: give a name to the one that Services use and target it by that \
                          name, or give its number in annotation weir.dev/port"
            .to_owned()),
        (Some(_), _) => {
            let ports: Vec<String> = ports.iter().map(Guarded::shown).collect();
            Err(format!("several ports are possible ({}): name one in annotation weir.dev/port", ports.join(", ")))
        }
    }
}

fn tcp_ports(place: Place, container: &Container) -> impl Iterator<Item = Guarded> {
    let tcp = |protocol: Option<&str>| protocol.is_none_or(|protocol| protocol == "TCP");
    let ports = container.ports.iter().flatten().filter(move |port| tcp(port.protocol.as_deref()));
    ports.filter_map(move |port| {
        let number = u16::try_from(port.container_port).ok()?;
        Some(Guarded { number, name: port.name.clone().filter(|name| !name.is_empty()), container: Some(place) })
    })
}

impl Guarded {
    /// Returns the reason why the port is not plain HTTP, if something shows that.
    fn other_protocol(&self, spec: &PodSpec) -> Option<String> {
        if let Some(protocol) = self.protocol().filter(|protocol| OTHER_PROTOCOLS.contains(protocol)) {
            return Some(format!("its name begins with {protocol}"));
        }
        let is_https = |get: &&HTTPGetAction| get.scheme.as_deref() == Some("HTTPS");
        if self.http_gets(spec).any(|get| is_https(&get)) {
            return Some("a probe or hook uses HTTPS there".to_owned());
        }
        // A name or a probe that says HTTP counts more than the number.
        if self.says_http() || self.http_gets(spec).next().is_some() {
            return None;
        }
        let (_, other) = OTHER_PORTS.iter().find(|(number, _)| *number == self.number)?;
        Some(format!("{} is the port of {other}", self.number))
    }

    /// Returns the part of the name that can be a protocol.
    fn protocol(&self) -> Option<&str> {
        self.name.as_deref()?.split('-').next()
    }

    fn says_http(&self) -> bool {
        self.protocol().is_some_and(|protocol| protocol.starts_with("http") || protocol.starts_with("grpc"))
    }

    /// Returns the name or the number, for messages.
    fn shown(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.number.to_string())
    }

    /// Removes the name from the app's container, and writes the number into its probes and hooks.
    pub(super) fn take_over(&self, spec: &mut Value) {
        let (Some(name), Some(place)) = (&self.name, self.container) else { return };
        let container = match place {
            Place::App(index) => &mut spec["containers"][index],
            Place::Sidecar(index) => &mut spec["initContainers"][index],
        };
        for port in container["ports"].as_array_mut().into_iter().flatten() {
            if port["name"] == name.as_str()
                && let Some(port) = port.as_object_mut()
            {
                port.remove("name");
            }
        }
        for place in [
            "/livenessProbe/httpGet", "/livenessProbe/tcpSocket", "/readinessProbe/httpGet",
            "/readinessProbe/tcpSocket", "/startupProbe/httpGet", "/startupProbe/tcpSocket",
            "/lifecycle/postStart/httpGet", "/lifecycle/postStart/tcpSocket", "/lifecycle/preStop/httpGet",
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
        serving(spec).any(|(place, container)| {
            probes(container).any(|probe| {
                let ports =
                    [probe.http_get.as_ref().map(|get| &get.port), probe.tcp_socket.as_ref().map(|tcp| &tcp.port)];
                let grpc = probe.grpc.as_ref().is_some_and(|grpc| grpc.port == i32::from(self.number));
                grpc || ports.into_iter().flatten().any(|port| self.is(port, place))
            })
        })
    }

    /// Returns the container that declares the port.
    pub(super) fn declaring<'a>(&self, spec: &'a PodSpec) -> Option<&'a Container> {
        match self.container? {
            Place::App(index) => spec.containers.get(index),
            Place::Sidecar(index) => spec.init_containers.as_ref()?.get(index),
        }
    }

    /// Returns the requests of probes and hooks to this port. Those of other containers reach it by its number.
    fn http_gets<'a>(&self, spec: &'a PodSpec) -> impl Iterator<Item = &'a HTTPGetAction> {
        serving(spec).flat_map(move |(place, container)| {
            let hooks = container.lifecycle.iter().flat_map(|it| [&it.post_start, &it.pre_stop]).flatten();
            let gets = probes(container).filter_map(|probe| probe.http_get.as_ref());
            let gets = gets.chain(hooks.filter_map(|hook| hook.http_get.as_ref()));
            gets.filter(move |get| get.host.is_none() && self.is(&get.port, place))
        })
    }

    /// Whether a probe of a container with this port reaches the guarded port.
    fn is(&self, port: &IntOrString, of: Place) -> bool {
        match port {
            IntOrString::Int(number) => *number == i32::from(self.number),
            IntOrString::String(name) => self.container == Some(of) && Some(name) == self.name.as_ref(),
        }
    }
}

fn probes(container: &Container) -> impl Iterator<Item = &Probe> {
    [&container.liveness_probe, &container.readiness_probe, &container.startup_probe].into_iter().flatten()
}
