//! Finds the port that the agent guards, and transfers its name to the agent.
//!
//! A Service with a named target port uses the container that has a port of that name. So the agent's port gets the
//! name. References to the name in the app's container (probes, hooks) are changed to the number, so that they still
//! reach the app. The port is never guessed: a pod with several candidates must name the port.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde_json::Value;

use super::annotations::PortName;

/// The annotation that names a pod's main container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
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
            choose(&ports().filter(|port| port.container == Some(main)).collect::<Vec<_>>())?
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
        let Some(container) = self.container.map(|index| &spec.containers[index]) else { return false };
        let probes = [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
        probes.into_iter().flatten().any(|probe| {
            let ports = [probe.http_get.as_ref().map(|get| &get.port), probe.tcp_socket.as_ref().map(|tcp| &tcp.port)];
            let asked = ports.into_iter().flatten().any(|port| {
                use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
                match port {
                    IntOrString::Int(number) => *number == i32::from(self.number),
                    IntOrString::String(name) => Some(name) == self.name.as_ref(),
                }
            });
            asked || probe.grpc.as_ref().is_some_and(|grpc| grpc.port == i32::from(self.number))
        })
    }
}
