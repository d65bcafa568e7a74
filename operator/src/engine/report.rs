//! What the engine says of each policy: to its status, to people, to metrics. It only puts together; what is judged is
//! judged by pure modules.

use std::collections::HashMap;

use tokio::time::Instant;

use super::Engine;
use crate::clock;
use crate::compile::Compiled;
use crate::metrics::PodCounts;
use crate::observed::{PATIENCE, Standing, Wanted};
use crate::report::{Announcement, Message, Report};
use crate::status::{self, Facts, Tally};
use crate::story::Telling;
use crate::traffic::{Counts, Traffic};
use crate::world::ObjectKey;

impl Engine {
    /// Looks at every policy and reports what is new.
    pub(super) fn report(&mut self, now: Instant, since: Instant) {
        let mut pods: HashMap<&ObjectKey, Standing> = HashMap::new();
        let mut accepted = 0;
        for (key, compiled) in self.compiler.compiled() {
            let Some(followed) = self.policies.get_mut(key) else { continue };
            let targets = self.plan.policies.get(key).expect("every compiled policy is planned");
            accepted += usize::from(compiled.faults.is_empty());
            let wanted_since = followed.story.since();
            let revision = compiled.rules.as_ref().map_or("", |rules| &rules.revision);
            let wanted = Wanted { uid: &compiled.uid, revision, since: wanted_since };
            let standings: Vec<(&ObjectKey, Standing)> = (targets.pods.iter())
                .map(|pod| (pod, self.observed.standing(now, pod, &self.world.pods[pod], wanted)))
                .collect();
            for (pod, standing) in &standings {
                let worst = pods.entry(pod).or_insert(Standing::Enforcing);
                if standing.severity() > worst.severity() {
                    *worst = standing.clone();
                }
            }
            // After a start nothing is known of any pod; what the status says is better than "Pending" until it is.
            let just_started = now.duration_since(since) < PATIENCE;
            let unheard = |pod: &ObjectKey| self.plan.agents.contains_key(pod) && !self.observed.heard(pod);
            if just_started && targets.pods.iter().any(unheard) {
                continue;
            }
            self.metrics.set_policy_pods(key, count(standings.iter().map(|(_, standing)| standing)));
            let rules = rule_traffic(now, compiled, &self.traffic);
            let facts = Facts {
                compiled,
                targets,
                standings: &standings,
                traffic: (&rules, self.traffic.policy(now, &compiled.uid)),
            };
            let tally = Tally::of(&standings);
            let (_, reason, message) = status::enforced(&facts, tally);
            if let Some(telling) = followed.story.tell(now, reason, &message, tally) {
                if let Some(took) = telling.took {
                    self.metrics.propagated(took);
                }
                let (key, uid, term) = (key.clone(), compiled.uid.clone(), self.shared.term.clone());
                let Telling { warning, reason, note, .. } = telling;
                let announcement = Announcement { key, uid, warning, reason, note, term };
                let _ = self.reports.send(Message::Announce(announcement));
            }
            let status = status::build(&facts, followed.pace.written(), clock::timestamp());
            if let Some(number) = followed.writes(now, &status) {
                let (key, uid, file) = (key.clone(), compiled.uid.clone(), compiled.file.clone());
                let (version, term) = (followed.version.clone(), self.shared.term.clone());
                let report = Report { key, uid, file, number, status, version, term };
                let _ = self.reports.send(Message::Status(Box::new(report)));
            }
        }
        self.metrics.set_policies(accepted, self.compiler.compiled().len() - accepted);
        self.metrics.set_pods(count(pods.values()));
    }
}

fn rule_traffic(now: Instant, compiled: &Compiled, traffic: &Traffic) -> Vec<(String, Counts)> {
    let rules = compiled.rules.iter().flat_map(|rules| &rules.rules);
    rules.map(|rule| (rule.name.clone(), traffic.rule(now, &compiled.uid, &rule.name))).collect()
}

fn count<'a>(standings: impl Iterator<Item = &'a Standing>) -> PodCounts {
    let mut counts = PodCounts::default();
    for standing in standings {
        match standing {
            Standing::Enforcing => counts.enforcing += 1,
            Standing::Waiting(..) => counts.pending += 1,
            Standing::Drifted(..) => counts.drifted += 1,
        }
    }
    counts
}
