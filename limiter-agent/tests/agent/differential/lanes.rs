//! Runs cases on two agents that differ only in the path that requests take.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{app::App, case::Case, client, outcome::Outcome, rules};
use crate::support::{Agent, json_of, snapshot, with};

/// The number of cases that run at the same time. Each lane has two agents.
const LANES: u64 = 6;

/// The maximum number of attempts to reproduce an outcome of the short path on hyper's path.
const LOOKS: usize = 25;

/// The maximum number of runs of a failing case, to reduce it.
const SHRINKS: usize = 300;

/// The time limit for connections to the app to become idle after the client has disconnected.
const SETTLE: Duration = Duration::from_secs(3);

/// One agent and its app.
struct Side {
    agent: Agent,
    app: App,
    sequence: u64,
    failures: BTreeMap<String, u64>,
}

/// Two agents that differ only in the path that requests take.
struct Lane {
    off: Side,
    on: Side,
    /// Cases with more than one outcome.
    again: u64,
}

impl Side {
    async fn start(in_place: &str) -> Self {
        let app = App::start().await;
        let agent = Agent::start(app.address, &["--workers", "1", "--in-place", in_place]);
        app.pulse.of(agent.addresses.listen);
        Self { agent, app, sequence: 0, failures: BTreeMap::new() }
    }

    async fn run(&mut self, case: &Case) -> Outcome {
        self.sequence += 1;
        // A new UID and a new namespace, so that no count of an earlier run remains. All names have the same length.
        let sequence = self.sequence;
        let namespace = format!("n{sequence:011}");
        let full = |policy: &Value| {
            let uid = format!("{}-{sequence}", policy["name"].as_str().expect("a name"));
            with(policy.clone(), json!({ "uid": uid, "namespace": namespace }))
        };
        let policies: Vec<Value> = rules::sets()[case.rules].iter().map(full).collect();
        self.agent.apply(&snapshot(sequence, &policies)).await;
        self.app.begin(&case.script);
        let seen = client::play(self.agent.addresses.listen, &case.sent, &self.app).await;
        let (heard, left) = self.app.end(SETTLE).await;
        let mut outcome = Outcome::new(&heard, left, &seen, &self.counts().await, case.ends_in_a_head());
        // A request without a host gets the app's address, which differs between the agents.
        outcome.text = outcome.text.replace(&self.app.address.to_string(), "app").replace(&namespace, "shop");
        outcome
    }

    async fn counts(&mut self) -> String {
        let status = json_of(&self.agent.control("GET", "/v1/status", "").await);
        let rules = status["policies"].as_array().into_iter().flatten().flat_map(|policy| {
            let rules = policy["rules"].as_array().expect("rules");
            rules
                .iter()
                .map(|rule| ["allowed", "limited", "shadowLimited"].map(|count| rule[count].to_string()).join(" "))
        });
        let rules: Vec<String> = rules.collect();
        let (_, metrics) = self.agent.telemetry("/metrics").await;
        let mut failures = BTreeMap::<String, u64>::new();
        for line in metrics.lines().filter(|line| line.starts_with("weir_upstream_errors_total{")) {
            let (name, count) = line.rsplit_once(' ').expect("a sample");
            let count: u64 = count.parse().expect("a count");
            let before = self.failures.insert(name.to_owned(), count).unwrap_or(0);
            // A response that is both truncated and invalid can be reported as either.
            let name = name.replace("\"closed\"", "\"protocol\"");
            *failures.entry(name).or_default() += count - before;
        }
        failures.retain(|_, count| *count > 0);
        format!("{}; {failures:?}", rules.join(", "))
    }
}

impl Lane {
    async fn start() -> Self {
        Self { off: Side::start("off").await, on: Side::start("on").await, again: 0 }
    }

    /// Runs a case on both paths.
    ///
    /// # Errors
    ///
    /// Returns a difference, or an outcome that is wrong on any path.
    async fn check(&mut self, case: &Case) -> Result<(), String> {
        let (mut off, on) = tokio::join!(self.off.run(case), self.on.run(case));
        for outcome in [&off, &on] {
            if let Some(wrong) = &outcome.wrong {
                return Err(format!("{wrong}\n{}", off.next_to(&on)));
            }
        }
        self.again += u64::from(off.text != on.text);
        let first = off.clone();
        for _ in 0..LOOKS {
            if off.text == on.text {
                return Ok(());
            }
            // Runs both again at the same time, which leads to other orders of events.
            (off, _) = tokio::join!(self.off.run(case), self.on.run(case));
        }
        Err(first.next_to(&on))
    }

    async fn smallest(&mut self, mut case: Case, mut wrong: String) -> (Case, String) {
        let mut left = SHRINKS;
        'smaller: loop {
            for smaller in case.smaller() {
                if left == 0 {
                    break 'smaller;
                }
                left -= 1;
                // The case runs twice, so that the reduction does not keep a rare event.
                if self.check(&smaller).await.is_err()
                    && let Err(still) = self.check(&smaller).await
                {
                    (case, wrong) = (smaller, still);
                    continue 'smaller;
                }
            }
            break;
        }
        (case, wrong)
    }

    async fn check_agreement(&mut self, name: &str, case: &Case) -> Result<(), String> {
        let Err(wrong) = self.check(case).await else { return Ok(()) };
        // The failure is printed before the reduction, which takes long.
        eprintln!("{name} fails:\n{case}{wrong}");
        let (case, wrong) = self.smallest(case.clone(), wrong).await;
        Err(format!("{name}, reduced:\n{case}{wrong}"))
    }
}

/// Gives the next case to each free lane.
pub(super) async fn in_lanes(
    next: impl Fn(u64) -> Option<(String, Case)> + Clone + Send + 'static,
) -> (u64, u64, Vec<String>) {
    let mut lanes = JoinSet::new();
    for number in 0..LANES {
        let next = next.clone();
        lanes.spawn(async move {
            let (mut lane, mut wrong, mut cases) = (Lane::start().await, Vec::new(), 0);
            while let Some((name, case)) = next(number + cases * LANES) {
                wrong.extend(lane.check_agreement(&name, &case).await.err());
                cases += 1;
                // One failure shows that there is a bug. A few more help to find the cause.
                if wrong.len() > 2 {
                    break;
                }
            }
            (cases, lane.again, wrong)
        });
    }
    let outcomes = lanes.join_all().await;
    let (cases, again) = outcomes.iter().fold((0, 0), |(cases, again), one| (cases + one.0, again + one.1));
    (cases, again, outcomes.into_iter().flat_map(|(.., wrong)| wrong).collect())
}
