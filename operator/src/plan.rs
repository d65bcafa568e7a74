//! What every agent should enforce and which pods every policy targets, from the world and the compiled policies.
//!
//! Pure: the same world gives the same plan, down to the bytes. Pods with the same policies share one [`Content`],
//! which is put into JSON once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::core::SelectorExt;
use weir_wire::PolicyRules;

use crate::compile::{Compiled, Target, revision_of};
use crate::world::{Agent, Membership, ObjectKey, Pod, Workload, World};

/// The policies of one or more agents: a snapshot without its sequence.
#[derive(Debug)]
pub struct Content {
    /// Names the content.
    pub revision: String,
    /// Oldest policy first, then by name.
    pub policies: Vec<Arc<PolicyRules>>,
    /// The same as JSON.
    json: String,
}

impl Content {
    fn new(revision: String, policies: Vec<Arc<PolicyRules>>) -> Self {
        let plain: Vec<&PolicyRules> = policies.iter().map(AsRef::as_ref).collect();
        let json = serde_json::to_string(&plain).expect("rules are plain data, which always has a JSON form");
        Self { revision, policies, json }
    }

    /// The body of `PUT /v1/config`.
    pub fn body(&self, sequence: u64) -> String {
        format!(
            r#"{{"wireVersion":{},"sequence":{sequence},"revision":"{}","policies":{}}}"#,
            weir_wire::WIRE_VERSION,
            self.revision,
            self.json
        )
    }
}

/// What one agent should enforce.
#[derive(Clone, Debug)]
pub struct AgentPlan {
    /// UID of its pod.
    pub pod_uid: String,
    /// Base URL of its control API.
    pub url: Arc<str>,
    /// What it should enforce.
    pub content: Arc<Content>,
}

/// What one policy targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The pods, with or without an agent.
    pub pods: Vec<ObjectKey>,
    /// The workloads that it names and that do not exist.
    pub missing: Vec<Workload>,
}

/// Who should enforce what.
#[derive(Debug, Default)]
pub struct Plan {
    /// Every agent with an address, by pod.
    pub agents: BTreeMap<ObjectKey, AgentPlan>,
    /// Every policy, also those with nothing in force.
    pub policies: BTreeMap<ObjectKey, Targets>,
}

/// Makes a plan. Contents of the `previous` one that are still needed are taken over.
pub fn plan(world: &World, compiled: &BTreeMap<ObjectKey, Compiled>, previous: &Plan) -> Plan {
    let mut contents: HashMap<String, Arc<Content>> =
        previous.agents.values().map(|agent| (agent.content.revision.clone(), agent.content.clone())).collect();

    let mut policies: BTreeMap<ObjectKey, Targets> = BTreeMap::new();
    let mut by_pod: BTreeMap<&ObjectKey, Vec<(&ObjectKey, &Compiled)>> = BTreeMap::new();
    for (key, policy) in compiled {
        let targets = targets(world, key, policy);
        for pod in &targets.pods {
            let (pod, _) = world.pods.get_key_value(pod).expect("targets are pods of this world");
            by_pod.entry(pod).or_default().push((key, policy));
        }
        policies.insert(key.clone(), targets);
    }

    let mut agents = BTreeMap::new();
    for (key, pod) in &world.pods {
        let Agent::At(url) = &pod.agent else { continue };
        let mut on_pod = by_pod.remove(key).unwrap_or_default();
        on_pod.sort_by_key(|(key, policy)| (policy.created, *key));
        let rules: Vec<Arc<PolicyRules>> = on_pod.iter().filter_map(|(_, policy)| policy.rules.clone()).collect();
        let revision = snapshot_revision(&rules);
        let content =
            contents.entry(revision.clone()).or_insert_with(|| Arc::new(Content::new(revision, rules))).clone();
        agents.insert(key.clone(), AgentPlan { pod_uid: pod.uid.clone(), url: url.clone(), content });
    }
    Plan { agents, policies }
}

/// What a pod of this namespace with these labels will have to enforce once it exists.
pub fn foresee(
    world: &World,
    compiled: &BTreeMap<ObjectKey, Compiled>,
    namespace: &str,
    labels: BTreeMap<String, String>,
) -> Content {
    let key = ObjectKey::new(namespace, "");
    let pod = Pod { uid: String::new(), membership: Membership::Pod(labels), agent: Agent::Pending };
    // Sorted by namespace: others' policies are not even looked at.
    let of_namespace = compiled.range(key.clone()..).take_while(|(policy, _)| policy.namespace == namespace);
    let mut on_pod: Vec<(&ObjectKey, &Compiled)> = of_namespace
        .filter(|(policy, compiled)| {
            compiled.target.as_ref().is_some_and(|target| selects(world, policy, target, &key, &pod))
        })
        .collect();
    on_pod.sort_by_key(|(key, policy)| (policy.created, *key));
    let rules: Vec<Arc<PolicyRules>> = on_pod.iter().filter_map(|(_, policy)| policy.rules.clone()).collect();
    Content::new(snapshot_revision(&rules), rules)
}

/// Names a list of policies, in whatever order they come.
fn snapshot_revision(policies: &[Arc<PolicyRules>]) -> String {
    let mut names: Vec<(&str, &str)> = policies.iter().map(|p| (p.uid.as_str(), p.revision.as_str())).collect();
    names.sort_unstable();
    revision_of(&names)
}

fn targets(world: &World, policy: &ObjectKey, compiled: &Compiled) -> Targets {
    let missing = match &compiled.target {
        // Without workloads there is no cluster to look them up in: standalone agents have none.
        Some(Target::Workloads(wanted)) => wanted
            .iter()
            .filter(|workload| !world.workloads.contains_key(*workload) && !is_standalone(world))
            .cloned()
            .collect(),
        _ => Vec::new(),
    };
    let pods = world
        .pods
        .iter()
        .filter(|(key, pod)| compiled.target.as_ref().is_some_and(|target| selects(world, policy, target, key, pod)))
        .map(|(key, _)| key.clone())
        .collect();
    Targets { pods, missing }
}

fn is_standalone(world: &World) -> bool {
    world.pods.values().any(|pod| !matches!(pod.membership, Membership::Pod(_)))
}

fn selects(world: &World, policy: &ObjectKey, target: &Target, key: &ObjectKey, pod: &Pod) -> bool {
    match (&pod.membership, target) {
        (Membership::Everything, _) => true,
        (Membership::Labelled(labels), Target::Labels(selector)) => selector.matches(labels),
        (Membership::Labelled(_), Target::Workloads(_)) => false,
        (Membership::Pod(_), _) if key.namespace != policy.namespace => false,
        (Membership::Pod(labels), Target::Labels(selector)) => selector.matches(labels),
        (Membership::Pod(labels), Target::Workloads(workloads)) => workloads
            .iter()
            .filter_map(|workload| world.workloads.get(workload)?.as_ref())
            .any(|selector| selector.matches(labels)),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
