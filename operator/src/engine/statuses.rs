//! Computes the reports about each policy: its status, Events and metrics. This module does no I/O and returns the
//! values to write.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

use super::{
    event::{EngineAction, EngineMoment},
    machine::EngineMachine,
};
use crate::{
    compile::{Compiled, compile_store, store_key},
    engine::policy_record::{PolicyRecord, StatusInputs},
    fleet::Usage,
    leader::Term,
    metrics::PodCounts,
    observed::{ANSWER_TIME, Convergence, Observed, Wanted},
    plan::Plan,
    report::{Announcement, Message, Report, StoreReport},
    status::{
        self, Facts, Tally,
        fleet::FleetCounts,
        stores::{CutOffPod, LostConnections, LostStore, build_store},
    },
    traffic::{Counts, Traffic},
    world::{AgentAddress, ObjectKey, World},
};

impl EngineMachine {
    /// Reports the policies that changed, if this operator leads.
    pub(super) fn report(&mut self, at: EngineMoment, usage: &Usage, actions: &mut Vec<EngineAction>) {
        let (Some(complete_at), Some((term, leads_since))) = (self.complete_at, &self.term) else { return };
        let (now, since) = (at.now, complete_at.max(*leads_since));
        let compiled = self.compiler.compiled();
        let (dirty_policies, all) = (std::mem::take(&mut self.dirty_policies), std::mem::take(&mut self.ticked));
        let looked_at: Vec<_> = if all {
            compiled.iter().collect()
        } else {
            dirty_policies.iter().filter_map(|key| compiled.get_key_value(key)).collect()
        };
        let PodStates { pods, mut others } =
            judge(now, &self.unconverged_pods, &self.world, &self.plan, compiled, &self.policies, &self.observed);
        for (key, compiled) in looked_at {
            let Some(record) = self.policies.get_mut(key) else { continue };
            let targets = self.plan.targets(key).expect("every compiled policy is planned");
            let others = others.remove(key).unwrap_or_default();
            let is_idle = !self.traffic.has(&compiled.uid);
            let lost = lost_connections(key, compiled, &self.world, &self.plan, &self.observed);
            let fleet =
                compiled.policy.as_ref().map(|policy| FleetCounts::of(policy, usage, at.timestamp)).unwrap_or_default();
            if others.is_empty() && is_idle && record.is_at_rest(now, targets.changes, &lost, &fleet) {
                continue;
            }
            let inputs = StatusInputs {
                changes: targets.changes,
                rules: rule_traffic(now, compiled, &self.traffic),
                all: self.traffic.policy(now, &compiled.uid),
                lost,
                fleet,
            };
            if others.is_empty() && record.is_same(now, &inputs) {
                continue;
            }
            // After a start, agents have not answered yet. Until they do, the stored status is better than "Pending".
            let just_started = now.duration_since(since) < ANSWER_TIME;
            let unheard = |pod: &ObjectKey| {
                matches!(self.world.pods[pod].agent, AgentAddress::At(_)) && !self.observed.received(pod)
            };
            if just_started && others.iter().any(|(pod, _)| unheard(pod)) {
                continue;
            }
            let facts = Facts {
                compiled,
                missing: &targets.missing,
                podless: &targets.podless,
                bypasses: &targets.bypasses,
                left_out: self.plan.left_out(key),
                targeted: targets.pods,
                others: &others,
                traffic: (&inputs.rules, inputs.all),
                lost: &inputs.lost,
                fleet: &inputs.fleet,
            };
            let status = report_policy(at, key, record, &facts, term, actions);
            let is_complete = others.is_empty() && !record.announcer.holds_back();
            record.record_report(&status, is_complete.then_some(inputs));
        }
        if all {
            let accepted = compiled.values().filter(|compiled| compiled.faults.is_empty()).count();
            actions.push(EngineAction::CountPolicies { accepted, refused: compiled.len() - accepted });
        }
        actions.push(EngineAction::CountPods(pods));
        // After a start, agents have not answered yet.
        if now.duration_since(since) >= ANSWER_TIME {
            self.report_stores(at, actions);
        }
    }

    /// Reports the stores whose state has changed.
    fn report_stores(&mut self, at: EngineMoment, actions: &mut Vec<EngineAction>) {
        let Some((term, _)) = &self.term else { return };
        self.dirty_stores.extend(self.observed.take_news().iter().filter_map(|name| store_key(name)));
        for key in std::mem::take(&mut self.dirty_stores) {
            let Some(store) = self.world.stores.get(&key) else {
                self.store_statuses.remove(&key);
                continue;
            };
            let name = key.to_string();
            let secrets = store.spec.as_ref().ok().and_then(|spec| compile_store(&key, spec).1);
            let lost = self.observed.stores().lost(&name).filter_map(|(pod, said)| {
                let of = self.world.pods.get(pod)?;
                let needs_restart = secrets.as_ref().is_some_and(|secrets| secrets.are_missing_in(of));
                Some(LostStore::new(pod, key.clone(), said, needs_restart))
            });
            let lost: Vec<LostStore> = lost.collect();
            let known = self.store_statuses.entry(key.clone()).or_default();
            let previous = known.newest();
            let status = build_store(store, self.observed.stores().using(&name), &lost, previous, at.timestamp);
            if previous != Some(&status) {
                known.send(status.clone());
                let report = StoreReport { key, uid: store.uid.clone(), status, term: term.clone() };
                actions.push(EngineAction::Send(Message::Store(Box::new(report))));
            }
        }
    }
}

/// Reports one policy: its metrics, Events about what is new, and its status if it changed. Returns the status.
fn report_policy(
    at: EngineMoment,
    key: &ObjectKey,
    record: &mut PolicyRecord,
    facts: &Facts<'_>,
    term: &Term,
    actions: &mut Vec<EngineAction>,
) -> RateLimitPolicyStatus {
    let EngineMoment { now, timestamp } = at;
    let Compiled { uid, file, changed, .. } = facts.compiled;
    let tally = Tally::of(facts.targeted, facts.others);
    let Tally { enforcing, pending, drifted, .. } = tally;
    actions.push(EngineAction::CountPolicyPods(key.clone(), PodCounts { enforcing, pending, drifted }));
    let (_, reason, message) = status::enforced(facts, tally);
    let bypassable = status::bypassable(facts.bypasses).map(|(_, _, message)| message);
    let notices = [record.announcer.announce(now, reason, &message, tally), record.announcer.bypass(bypassable)];
    for notice in notices.into_iter().flatten() {
        actions.extend(notice.took.map(EngineAction::CountPropagated));
        let announcement = Announcement { key: key.clone(), uid: uid.clone(), notice, term: term.clone() };
        actions.push(EngineAction::Send(Message::Announce(Box::new(announcement))));
    }
    let status = status::build(facts, record.pace.written(), timestamp);
    if let Some(number) = record.start_write(now, &status, tally.pending > 0) {
        let (key, uid, file) = (key.clone(), uid.clone(), file.clone());
        let (version, term, status) = (record.version.clone(), term.clone(), status.clone());
        let report = Report { key, uid, file, changed: *changed, number, status, version, term };
        actions.push(EngineAction::Send(Message::Status(Box::new(report))));
    }
    status
}

struct PodStates<'a> {
    /// All targeted pods. Each pod counts once, in the state of its policy with the worst state.
    pods: PodCounts,
    /// For each policy, the pods that do not enforce it.
    others: HashMap<&'a ObjectKey, Vec<(&'a ObjectKey, Convergence)>>,
}

/// Judges the pods that are not known to enforce all their policies.
fn judge<'a>(
    now: Instant,
    unconverged_pods: &'a BTreeSet<ObjectKey>,
    world: &World,
    plan: &'a Plan,
    compiled: &BTreeMap<ObjectKey, Compiled>,
    policies: &HashMap<ObjectKey, PolicyRecord>,
    observed: &Observed,
) -> PodStates<'a> {
    let (mut others, mut pending, mut drifted) = (HashMap::<_, Vec<_>>::new(), 0, 0);
    for key in unconverged_pods {
        let Some((pod, cohort)) = world.pods.get(key).zip(plan.cohort(key)) else { continue };
        let mut worst = 0;
        for policy in &cohort.policies {
            let Some((compiled, record)) = compiled.get(policy).zip(policies.get(policy)) else { continue };
            let revision = compiled.policy.as_ref().map_or("", |policy| &policy.revision);
            let wanted = Wanted { uid: &compiled.uid, revision, since: record.announcer.since() };
            let convergence = observed.convergence(now, key, pod, wanted);
            worst = worst.max(convergence.severity());
            if convergence != Convergence::Enforcing {
                others.entry(policy).or_default().push((key, convergence));
            }
        }
        match worst {
            0 => {}
            1 => pending += 1,
            _ => drifted += 1,
        }
    }
    let enforcing = plan.targeted().saturating_sub(pending + drifted);
    PodStates { pods: PodCounts { enforcing, pending, drifted }, others }
}

/// Returns the pods of a policy that do not reach one of its stores, or the operator.
fn lost_connections(
    policy: &ObjectKey,
    compiled: &Compiled,
    world: &World,
    plan: &Plan,
    observed: &Observed,
) -> LostConnections {
    let mut lost = LostConnections::default();
    let Some(rules) = &compiled.policy else { return lost };
    let is_targeted = |pod: &ObjectKey| plan.cohort(pod).is_some_and(|cohort| cohort.policies.contains(policy));
    for store in &rules.stores {
        if store.is_operator() {
            let cut_off = observed.stores().lost_in(&store.name, &policy.namespace).filter(|(pod, _)| is_targeted(pod));
            lost.operator.extend(cut_off.map(|(pod, said)| CutOffPod {
                name: pod.name.clone(),
                since_unix_millis: said.since_unix_millis,
                error: said.error.clone(),
            }));
            continue;
        }
        let secrets = store.secrets.as_ref().and_then(|name| rules.secrets.iter().find(|it| it.directory == *name));
        for (pod, said) in observed.stores().lost(&store.name) {
            if let (true, Some(key), Some(of)) = (is_targeted(pod), store_key(&store.name), world.pods.get(pod)) {
                let needs_restart = secrets.is_some_and(|secrets| secrets.are_missing_in(of));
                lost.stores.push(LostStore::new(pod, key, said, needs_restart));
            }
        }
    }
    lost
}

fn rule_traffic(now: Instant, compiled: &Compiled, traffic: &Traffic) -> Vec<(String, Counts)> {
    let rules = compiled.policy.iter().flat_map(|policy| &policy.rules);
    rules.map(|rule| (rule.name.clone(), traffic.rule(now, &compiled.uid, &rule.name))).collect()
}
