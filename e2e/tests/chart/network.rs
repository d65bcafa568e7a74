//! Evaluates the chart's NetworkPolicy by the rules of Kubernetes.
//!
//! These tests have no network that enforces policies, so they evaluate the rendered objects. They fail if a policy
//! selects other pods, names a port that no container has, or does not allow a peer that it must allow.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::core::{Selector, SelectorExt as _};

use super::*;

type Labels = BTreeMap<String, String>;

/// The other end of a connection: a pod, or an address outside of the cluster.
#[derive(Debug)]
struct End {
    pod: Option<(&'static str, Labels)>,
    address: IpAddr,
}

fn pod(namespace: &'static str, labels: &[(&str, &str)]) -> End {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    End { pod: Some((namespace, labels)), address: IpAddr::from([10, 244, 0, 7]) }
}

fn machine(address: &str) -> End {
    End { pod: None, address: address.parse().expect("an address") }
}

const AGENT: &[(&str, &str)] = &[("weir.dev/agent", "enabled"), ("app", "web")];

/// A policy, and the named ports of the pods that it selects.
struct Rules {
    policy: NetworkPolicy,
    ports: BTreeMap<String, i32>,
}

impl Rules {
    fn spec(&self) -> &k8s_openapi::api::networking::v1::NetworkPolicySpec {
        self.policy.spec.as_ref().expect("a policy has a spec")
    }

    /// Returns true if this end is allowed to connect to the pods on a port.
    fn admits(&self, from: &End, port: i32, protocol: &str) -> bool {
        self.spec()
            .ingress
            .iter()
            .flatten()
            .any(|rule| self.is_of(rule.ports.as_deref(), port, protocol) && self.is_from(rule.from.as_deref(), from))
    }

    /// Returns true if the pods are allowed to connect to this end on a port.
    fn lets_out(&self, to: &End, port: i32, protocol: &str) -> bool {
        self.spec()
            .egress
            .iter()
            .flatten()
            .any(|rule| self.is_of(rule.ports.as_deref(), port, protocol) && self.is_from(rule.to.as_deref(), to))
    }

    /// Returns true if the list contains the port. A missing or empty list contains every port.
    fn is_of(&self, ports: Option<&[NetworkPolicyPort]>, port: i32, protocol: &str) -> bool {
        let Some(ports) = ports.filter(|ports| !ports.is_empty()) else { return true };
        ports.iter().any(|it| {
            let is_it = match &it.port {
                None => true,
                Some(IntOrString::Int(number)) => *number == port && it.end_port.is_none(),
                Some(IntOrString::String(name)) => self.ports.get(name) == Some(&port),
            };
            is_it && it.protocol.as_deref().unwrap_or("TCP") == protocol
        })
    }

    /// Returns true if the list contains the peer. A missing or empty list contains every peer.
    fn is_from(&self, peers: Option<&[NetworkPolicyPeer]>, end: &End) -> bool {
        let Some(peers) = peers.filter(|peers| !peers.is_empty()) else { return true };
        peers.iter().any(|peer| {
            if let Some(block) = &peer.ip_block {
                return is_in(block, end.address);
            }
            let Some((namespace, labels)) = &end.pod else { return false };
            let is_there = match &peer.namespace_selector {
                None => self.policy.metadata.namespace.as_deref() == Some(*namespace),
                Some(selector) => {
                    let name = ("kubernetes.io/metadata.name".to_owned(), (*namespace).to_owned());
                    selects(selector, &Labels::from([name]))
                }
            };
            is_there && peer.pod_selector.as_ref().is_none_or(|selector| selects(selector, labels))
        })
    }
}

fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    Selector::try_from(selector.clone()).expect("a selector that Kubernetes takes").matches(labels)
}

fn is_in(block: &IPBlock, address: IpAddr) -> bool {
    assert!(block.except.is_none(), "the chart has no exceptions");
    let (base, bits) = block.cidr.split_once('/').expect("a CIDR");
    let bits: u32 = bits.parse().expect("a number of bits");
    match (base.parse().expect("an address"), address) {
        (IpAddr::V4(base), IpAddr::V4(it)) => (base.to_bits() ^ it.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0,
        (IpAddr::V6(base), IpAddr::V6(it)) => (base.to_bits() ^ it.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0,
        _ => false,
    }
}

/// Renders the policy for the operators with these values, and the ports of their Deployment.
fn rules(settings: &[&str]) -> Result<Rules> {
    rules_of("weir-operator", &[&["networkPolicy.enabled=true"], settings].concat())
}

/// Renders the policy and the Deployment with this name, with these values.
fn rules_of(name: &str, settings: &[&str]) -> Result<Rules> {
    let objects = known(&render(&chart("weir")?, settings)?)?;
    let of = |kind: &str| {
        let object = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        object.cloned().with_context(|| kind.to_owned())
    };
    let policy: NetworkPolicy = serde_json::from_value(of("NetworkPolicy")?)?;
    let deployment: Deployment = serde_json::from_value(of("Deployment")?)?;
    let template = deployment.spec.context("a spec")?.template;

    let labels = template.metadata.and_then(|metadata| metadata.labels).context("labels")?;
    let spec = policy.spec.as_ref().context("a spec")?;
    let selector = spec.pod_selector.as_ref().context("a selector")?;
    ensure!(selects(selector, &labels), "the policy does not select the pods: {labels:?}");
    ensure!(!selects(selector, &Labels::from([("app".to_owned(), "web".to_owned())])), "the policy selects other pods");
    ensure!(spec.policy_types.as_deref() == Some(&["Ingress".to_owned(), "Egress".to_owned()]), "{spec:?}");
    let ports = template.spec.context("a spec")?.containers.into_iter().flat_map(|it| it.ports.unwrap_or_default());
    let ports = ports.filter_map(|port| Some((port.name?, port.container_port))).collect();
    Ok(Rules { policy, ports })
}

#[test]
fn the_network_policy_lets_through_what_the_operator_needs_and_nothing_else() -> Result<()> {
    let (webhook, identity, telemetry) = (8491, 8492, 8490);
    let apiserver = || machine("172.18.0.2");
    let monitoring =
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring";
    for (settings, from, port, expected) in [
        (&[][..], apiserver(), webhook, true),
        (&[], pod("shop", &[]), webhook, true),
        (&["injection.enabled=false"], apiserver(), webhook, false),
        (&[], pod("shop", AGENT), identity, true),
        (&[], pod(NAMESPACE, AGENT), identity, true),
        (&[], pod("shop", &[("app", "web")]), identity, false),
        (&[], apiserver(), identity, false),
        (&["identity.enabled=false"], pod("shop", AGENT), identity, false),
        (&[], pod("shop", &[]), telemetry, true),
        (&[monitoring], pod("shop", &[]), telemetry, false),
        (&[monitoring], pod("monitoring", &[]), telemetry, true),
        (&[monitoring], apiserver(), webhook, true),
        (&[], pod("shop", AGENT), 22, false),
    ] {
        let rules = rules(settings)?;
        ensure!(rules.admits(&from, port, "TCP") == expected, "{settings:?}: {from:?} to {port} is not {expected}");
        ensure!(!rules.admits(&from, port, "UDP"), "{settings:?}: {from:?} to {port} over UDP");
    }
    let names = machine("10.96.0.10");
    let cidrs = "networkPolicy.apiServer.cidrs={10.0.0.0/24,fd00::/64}";
    for (settings, to, port, protocol, expected) in [
        // The operator is allowed to connect to every port of an agent's pod.
        (&[][..], pod("shop", AGENT), 8481, "TCP", true),
        (&[], pod("shop", AGENT), 9000, "TCP", true),
        (&[], pod("shop", &[("app", "web")]), 8481, "TCP", false),
        (&["watchNamespaces={shop}"], pod("shop", AGENT), 8481, "TCP", true),
        (&["watchNamespaces={shop}"], pod("bank", AGENT), 8481, "TCP", false),
        (&[], apiserver(), 6443, "TCP", true),
        (&[], machine("10.96.0.1"), 443, "TCP", true),
        (&[], apiserver(), 22, "TCP", false),
        (&["networkPolicy.apiServer.ports={6444}"], apiserver(), 6443, "TCP", false),
        (&[cidrs], machine("10.0.0.1"), 443, "TCP", true),
        (&[cidrs], machine("fd00::1"), 443, "TCP", true),
        (&[cidrs], machine("10.0.1.1"), 443, "TCP", false),
        (&[cidrs], machine("fd00:0:0:1::1"), 443, "TCP", false),
        (&[], names, 53, "UDP", true),
        (&[], pod("kube-system", &[]), 53, "TCP", true),
        (&[], pod("openshift-dns", &[]), 5353, "TCP", true),
        (&[], pod("shop", &[("app", "web")]), 8080, "TCP", false),
    ] {
        let said = rules(settings)?.lets_out(&to, port, protocol);
        ensure!(said == expected, "{settings:?}: out to {to:?} on {port} over {protocol} is {said}");
    }
    Ok(())
}

#[test]
fn only_the_operator_reaches_the_control_port_of_the_rate_limit_service() -> Result<()> {
    let operator = || {
        let labels = ["name", "instance", "component"].map(|it| format!("app.kubernetes.io/{it}"));
        let labels: Labels = labels.into_iter().zip(["weir", "weir", "operator"].map(str::to_owned)).collect();
        End { pod: Some((NAMESPACE, labels)), address: IpAddr::from([10, 244, 0, 8]) }
    };
    let rules = |settings: &[&str]| {
        let enabled = ["rateLimitService.enabled=true", "rateLimitService.networkPolicy.enabled=true"];
        rules_of("weir-operator-rate-limit", &[&enabled[..], settings].concat())
    };
    let edge =
        "rateLimitService.networkPolicy.from[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=edge";
    let on_nodes = "hostNetwork=true";
    for (settings, from, port, expected) in [
        (&[][..], operator(), 8481, true),
        (&[], pod(NAMESPACE, AGENT), 8481, false),
        (&[], pod("shop", &[]), 8481, false),
        (&[], machine("172.18.0.2"), 8481, false),
        // The operator is no pod of the network. Its certificate still protects the control port.
        (&[on_nodes], machine("172.18.0.2"), 8481, true),
        (&[], pod("shop", &[]), 8081, true),
        (&[edge], pod("shop", &[]), 8081, false),
        (&[edge], pod("edge", &[]), 8081, true),
        (&[edge], pod("shop", &[]), 8482, true),
        (&[], pod("shop", &[]), 22, false),
    ] {
        ensure!(
            rules(settings)?.admits(&from, port, "TCP") == expected,
            "{settings:?}: {from:?} to {port} is not {expected}"
        );
    }
    let redis = "rateLimitService.networkPolicy.egress[0].ports[0].port=6379";
    for (settings, to, port, protocol, expected) in [
        (&[][..], operator(), 8492, "TCP", true),
        (&[], operator(), 8490, "TCP", false),
        (&["identity.enabled=false"], operator(), 8492, "TCP", false),
        (&[], pod("shop", &[]), 8492, "TCP", false),
        (&[on_nodes], machine("172.18.0.2"), 8492, "TCP", true),
        (&[], machine("10.96.0.10"), 53, "UDP", true),
        (&[], pod("openshift-dns", &[]), 5353, "UDP", true),
        (&[], pod("shop", &[]), 6379, "TCP", false),
        (&[redis], pod("shop", &[]), 6379, "TCP", true),
    ] {
        let said = rules(settings)?.lets_out(&to, port, protocol);
        ensure!(said == expected, "{settings:?}: out to {to:?} on {port} over {protocol} is {said}");
    }
    // The operator's own policy allows both directions, too.
    let rules = self::rules(&["rateLimitService.enabled=true"])?;
    let service = || pod(NAMESPACE, &[("weir.dev/agent", "enabled"), ("weir.dev/rate-limit-service", "enabled")]);
    ensure!(rules.admits(&service(), 8492, "TCP") && rules.lets_out(&service(), 8481, "TCP"), "{:?}", rules.policy);
    Ok(())
}

/// The control port of an agent without TLS accepts limits from every client that reaches it. So the example's policy
/// allows only the operator to connect.
#[test]
fn the_example_for_agents_in_plain_text_lets_nobody_but_the_operator_set_limits() -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/workload/hello.yaml");
    let objects = known(&fs::read_to_string(file)?)?;
    let policy = objects.iter().find(|it| it["kind"] == "NetworkPolicy").context("a policy")?;
    let ports = [("http", 8480), ("control", 8481), ("telemetry", 8482)];
    let rules = Rules {
        policy: serde_json::from_value(policy.clone())?,
        ports: ports.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect(),
    };
    for (from, port, expected) in [
        (pod("shop", &[]), 8480, true),
        (pod("shop", &[]), 8482, true),
        (pod("shop", &[]), 8481, false),
        (machine("172.18.0.2"), 8481, false),
        (pod(NAMESPACE, &[]), 8481, true),
    ] {
        ensure!(rules.admits(&from, port, "TCP") == expected, "{from:?} to {port} is not {expected}");
    }
    Ok(())
}
