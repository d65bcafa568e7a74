//! A world of pods, requests and channels in virtual time. The same seed gives the same decisions, on any machine and with
//! any load.

mod decisions;
mod judge;
mod peers;
mod tables;
mod traffic;
mod weir;

pub(super) use self::{
    decisions::{Decision, Run},
    judge::{FIGURES, MESSAGES, Value, Verdict, judge, spread},
    traffic::{AT, MILLI, OF_PODS, ON_CLUSTER, Request, SECOND, Scenario, Traffic, on_pods},
};
use self::{
    judge::rates,
    traffic::{FAULTS, SCENARIOS},
};
use crate::report::Part;

pub(super) const ABOUT: &str = "\
Pods get requests as a Poisson process, in virtual time: the figures do not depend on the machine, and a run with the \
same seed decides the same. The limit is a bucket of 2,000 requests a second that holds 2,000. *weir* is the code of \
the agents (`weir-store`) and the operator's counter, with channels between them that delay each message by half of \
the round trip. *equal parts* gives each pod its part of the limit, as Envoy's local cluster rate limit does, and all \
pods know at once how many they are. *gossip* gives each pod a part in proportion to its demand, which pods learn from \
each other as in \"Cloud control with distributed rate limiting\" (Raghavan et al., SIGCOMM 2007): an estimate each \
50 ms as a moving average, sent to three other pods. *central* is one limiter without a network, which is what is \
possible. *Limit used* is what a contender admits, in percent of what the central limiter admits of the same requests, \
from the fifth second on. *Excess* is the most by which all admissions exceed the limit between any two moments, in \
whole numbers, from the begin on. *False refusals* are requests that the contender refuses and the central limiter \
admits, in percent of all requests, if the load is below the limit. A *message* goes in one direction; statuses, which \
agents send in any case, do not count. *First second* is the limit used in the second after the load has moved to \
another pod, and *until 90 %* the time after which half a second uses 90 % of the limit. Each table uses 40 pods, \
unless it gives another number. A pod's channel opens one round trip before its first request, which is when the pod \
becomes ready; the channels of the first pods open with the first requests. *Largest sum*, each 10 ms, is the sum of \
what can be admitted at a moment: the shares of all agents that may use one, and what the counter has not reserved; \
the limit is 1.";

/// The round trips of channels, in microseconds.
const ROUND_TRIPS: [u64; 3] = [MILLI / 2, 5 * MILLI, 67 * MILLI];

/// A contender, with its round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Central,
    Parts,
    Gossip(u64),
    Weir(u64),
}

impl Contender {
    fn all() -> Vec<Self> {
        let all = [Self::Central, Self::Parts].into_iter();
        all.chain(ROUND_TRIPS.map(Self::Gossip)).chain(ROUND_TRIPS.map(Self::Weir)).collect()
    }

    fn name(self) -> String {
        let millis = |micros: u64| if micros < MILLI { "0.5".to_owned() } else { (micros / MILLI).to_string() };
        match self {
            Self::Central => "central".to_owned(),
            Self::Parts => "equal parts".to_owned(),
            Self::Gossip(round_trip) => format!("gossip, {} ms", millis(round_trip)),
            Self::Weir(round_trip) => format!("weir, {} ms", millis(round_trip)),
        }
    }

    fn run(self, scenario: &Scenario, traffic: &Traffic, seed: u64) -> anyhow::Result<weir::Found> {
        let alone = |run: Run| weir::Found { run, largest_sum: 0.0 };
        Ok(match self {
            Self::Central => alone(peers::central(traffic)),
            Self::Parts => alone(peers::parts(traffic)),
            Self::Gossip(round_trip) => alone(peers::gossip(traffic, round_trip, seed)),
            Self::Weir(round_trip) => weir::run(scenario, traffic, round_trip, seed)?,
        })
    }
}

/// The figures of one contender in one scenario.
struct Figures {
    contender: Contender,
    verdicts: Vec<Verdict>,
    largest_sum: f64,
    /// Admitted requests per second over the time, of the first seed.
    rates: Vec<(f64, f64)>,
}

/// The figures of all contenders in one scenario.
struct Measured {
    scenario: Scenario,
    figures: Vec<Figures>,
}

pub(super) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    let seeds = if quick { 1 } else { 3 };
    let mut found = Vec::new();
    for scenario in SCENARIOS.iter().chain(&FAULTS) {
        let scenario = if quick { scenario.shortened() } else { *scenario };
        eprintln!("fleet-limits: {}", scenario.name);
        let is_fault = scenario.fault.is_some();
        let mut figures = Vec::new();
        for contender in Contender::all() {
            // Only an operator can fail.
            if is_fault && !matches!(contender, Contender::Weir(_) | Contender::Central) {
                continue;
            }
            let mut all = Figures { contender, verdicts: Vec::new(), largest_sum: 0.0, rates: Vec::new() };
            for seed in 1..=seeds {
                let traffic = scenario.traffic(seed);
                let one = contender.run(&scenario, &traffic, seed)?;
                all.verdicts.push(judge(&traffic, &one.run));
                all.largest_sum = all.largest_sum.max(one.largest_sum);
                if all.rates.is_empty() {
                    all.rates = rates(&one.run);
                }
            }
            eprintln!("fleet-limits: {}: {}", contender.name(), tables::line(&all));
            figures.push(all);
        }
        found.push(Measured { scenario, figures });
    }
    tables::write(&found, part);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_with_the_same_seed_decides_the_same() {
        let scenario = SCENARIOS[4].shortened();
        let traffic = scenario.traffic(9);
        let [one, other] = [(), ()].map(|()| weir::run(&scenario, &traffic, 5 * MILLI, 9).expect("a run"));
        assert_eq!(one.run.decisions, other.run.decisions);
        assert_eq!(one.run.messages, other.run.messages);
    }

    /// Most requests need no round trip to the operator, so a round trip of 67 ms costs little.
    #[test]
    fn a_far_operator_costs_little() {
        let run = |scenario: Scenario| {
            let traffic = scenario.traffic(9);
            judge(&traffic, &weir::run(&scenario, &traffic, 67 * MILLI, 9).expect("a run").run)
        };
        let [below, above] = [SCENARIOS[0], SCENARIOS[1]].map(|scenario| run(scenario.shortened().smaller()));
        assert!(below.excess == 0.0 && below.false_refusals <= 1.0, "{below:?}");
        assert!(above.excess == 0.0 && above.used >= 93.0, "{above:?}");
    }

    #[test]
    fn no_fault_lets_all_pods_exceed_the_limit() {
        for scenario in FAULTS {
            let scenario = scenario.smaller();
            let traffic = scenario.traffic(9);
            let found = weir::run(&scenario, &traffic, 5 * MILLI, 9).expect("a run");
            let verdict = judge(&traffic, &found.run);
            assert_eq!(verdict.excess, 0.0, "{}", scenario.name);
            assert!(verdict.used > 50.0 && verdict.used < 100.0, "{}: {verdict:?}", scenario.name);
            assert!(found.largest_sum > 0.5 && found.largest_sum <= 1.0, "{}: {}", scenario.name, found.largest_sum);
        }
    }
}
