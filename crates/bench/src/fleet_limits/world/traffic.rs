//! The requests of a world, and the pods that get them. The same seed gives the same requests.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crate::stats::float;

pub(in super::super) const MILLI: u64 = 1_000;
pub(in super::super) const SECOND: u64 = 1_000_000;

/// The requests per second of the limit in virtual time.
const LIMIT: u64 = 2_000;
/// The number of pods of the scenarios in virtual time that change no pods.
const PODS: usize = 40;
/// The time before the figures of a scenario begin.
const WARM: u64 = 5 * SECOND;

/// A request of one pod. Times are microseconds since the begin of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Request {
    pub(in super::super) at: u64,
    pub(in super::super) pod: usize,
}

/// The time in which a pod gets requests.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Pod {
    pub(in super::super) from: u64,
    pub(in super::super) until: u64,
}

/// What happens to the operator and the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Fault {
    /// The leader is killed. The next one leads this long afterwards.
    Killed { next_after: u64 },
    /// The leader is suspended for this time. The next one can lead before it resumes.
    Suspended { resumes_after: u64, next_after: u64 },
    /// The channels of the first pods lose all messages for this time.
    CutOff { pods: usize, lasts: u64 },
}

/// How a load spreads over the pods.
#[derive(Clone, Copy, Debug)]
enum Spread {
    Even,
    /// This part of the load is on one pod. It moves to another pod at the time, if there is one.
    Skewed {
        part: f64,
        moves_at: Option<u64>,
    },
}

/// How the number of pods changes.
#[derive(Clone, Copy, Debug)]
enum Pods {
    Fixed(usize),
    /// From the first number to the second one within 15 s.
    Up(usize, usize),
    /// From the first number to the second one within 20 s, and back within 20 s after a pause of 10 s.
    UpAndDown(usize, usize),
}

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Scenario {
    pub(in super::super) name: &'static str,
    /// The requests per second of the limit, which are also its burst.
    pub(in super::super) limit: u64,
    /// The load as a multiple of the limit.
    pub(in super::super) load: f64,
    spread: Spread,
    pods: Pods,
    pub(in super::super) fault: Option<(u64, Fault)>,
    seconds: u64,
}

/// The time of what happens in a scenario.
pub(in super::super) const AT: u64 = 12 * SECOND;
const BELOW: f64 = 0.8;
const ABOVE: f64 = 3.0;
const MOVES: Spread = Spread::Skewed { part: 0.9, moves_at: Some(AT) };
const STAYS: Spread = Spread::Skewed { part: 0.9, moves_at: None };

const fn scenario(name: &'static str, load: f64, spread: Spread, pods: Pods) -> Scenario {
    Scenario { name, limit: LIMIT, load, spread, pods, fault: None, seconds: 20 }
}

const fn with_fault(name: &'static str, fault: Fault) -> Scenario {
    let scenario = scenario(name, ABOVE, Spread::Even, Pods::Fixed(PODS));
    Scenario { fault: Some((AT, fault)), seconds: 60, ..scenario }
}

const fn on_cluster(scenario: Scenario) -> Scenario {
    Scenario { limit: 400, pods: Pods::Fixed(ON_CLUSTER), ..scenario }
}

pub(in super::super) const SCENARIOS: [Scenario; 9] = [
    scenario("even, 0.8 of the limit", BELOW, Spread::Even, Pods::Fixed(PODS)),
    scenario("even, 3 times the limit", ABOVE, Spread::Even, Pods::Fixed(PODS)),
    scenario("90 % on one pod, 0.8 of the limit", BELOW, STAYS, Pods::Fixed(PODS)),
    scenario("90 % on one pod, 3 times the limit", ABOVE, STAYS, Pods::Fixed(PODS)),
    scenario("the load moves, 0.8 of the limit", BELOW, MOVES, Pods::Fixed(PODS)),
    scenario("the load moves, 3 times the limit", ABOVE, MOVES, Pods::Fixed(PODS)),
    scenario("3 to 150 pods in 15 s, 3 times the limit", ABOVE, Spread::Even, Pods::Up(3, 150)),
    Scenario {
        seconds: 60,
        ..scenario("3 to 300 pods and back, 0.8 of the limit", BELOW, Spread::Even, Pods::UpAndDown(3, 300))
    },
    Scenario {
        seconds: 60,
        ..scenario("3 to 300 pods and back, 3 times the limit", ABOVE, Spread::Even, Pods::UpAndDown(3, 300))
    },
];

/// Scenarios that only an operator has.
pub(in super::super) const FAULTS: [Scenario; 3] = [
    with_fault("leader killed, the next one after 8 s", Fault::Killed { next_after: 8 * SECOND }),
    with_fault(
        "leader suspended for 20 s, the next one after 8 s",
        Fault::Suspended { resumes_after: 20 * SECOND, next_after: 8 * SECOND },
    ),
    with_fault("10 of 40 pods cut off for 20 s", Fault::CutOff { pods: 10, lasts: 20 * SECOND }),
];

/// The number of pods on a cluster.
pub(in super::super) const ON_CLUSTER: usize = 10;
/// Many more than the pods on a cluster, so that each of them gets about the same part of an even load.
const PARTS: usize = 1_000;

/// The scenarios of pods on a cluster to which nothing happens.
pub(in super::super) const OF_PODS: [Scenario; 3] = [
    on_cluster(scenario("90 % on one pod, 0.8 of the limit", BELOW, STAYS, Pods::Fixed(PODS))),
    on_cluster(scenario("90 % on one pod, 3 times the limit", ABOVE, STAYS, Pods::Fixed(PODS))),
    on_cluster(scenario("the load moves, 3 times the limit", ABOVE, MOVES, Pods::Fixed(PODS))),
];

/// A scenario of pods on a cluster, whose even load is above the limit. Something happens to the cluster at [`AT`].
pub(in super::super) const fn on_pods(name: &'static str, seconds: u64) -> Scenario {
    let scenario = scenario(name, ABOVE, Spread::Even, Pods::Fixed(PARTS));
    Scenario { limit: OF_PODS[0].limit, seconds, ..scenario }
}

/// The requests of a run.
#[derive(Debug)]
pub(in super::super) struct Traffic {
    /// The requests per second of the limit, which are also its burst.
    pub(in super::super) limit: u64,
    pub(in super::super) pods: Vec<Pod>,
    pub(in super::super) requests: Vec<Request>,
    /// The figures are those of this time.
    pub(in super::super) measured: (u64, u64),
    /// The time at which the load moves.
    pub(in super::super) moves_at: Option<u64>,
}

impl Scenario {
    /// The time at which the world ends.
    pub(in super::super) fn ends(&self) -> u64 {
        self.seconds * SECOND
    }

    /// The same scenario in less time, as far as it has the same events.
    pub(in super::super) fn shortened(self) -> Self {
        Self { seconds: self.seconds.min(16), ..self }
    }

    /// The same scenario with a fourth of the requests.
    #[cfg(test)]
    pub(in super::super) fn smaller(self) -> Self {
        Self { limit: self.limit / 4, ..self }
    }

    pub(in super::super) fn traffic(&self, seed: u64) -> Traffic {
        let mut random = StdRng::seed_from_u64(seed);
        let (pods, ends) = (self.pods(), self.ends());
        let moves_at = match self.spread {
            Spread::Skewed { moves_at, .. } => moves_at,
            Spread::Even => None,
        };
        let gap = 1e6 / (self.load * float(self.limit));
        let mut requests = Vec::new();
        let mut at = 2.0 * 1e6;
        loop {
            // The gaps of a Poisson process.
            at += -gap * (1.0 - random.random::<f64>()).ln();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of seconds")]
            let time = at as u64;
            if time >= ends {
                break;
            }
            let hot = match self.spread {
                Spread::Skewed { part, .. } if random.random_bool(part) => {
                    Some(usize::from(moves_at.is_some_and(|moves| time >= moves)))
                }
                _ => None,
            };
            let pod = hot.unwrap_or_else(|| {
                loop {
                    let pod = random.random_range(0..pods.len());
                    if pods[pod].from <= time && time < pods[pod].until {
                        break pod;
                    }
                }
            });
            requests.push(Request { at: time, pod });
        }
        Traffic { limit: self.limit, pods, requests, measured: (WARM, ends), moves_at }
    }

    fn pods(&self) -> Vec<Pod> {
        let (always, never) = (0, u64::MAX);
        let spaced = |from: usize, to: usize, starts: u64, lasts: u64| {
            let count = (to - from) as u64;
            (0..count).map(move |number| starts + lasts * number / count)
        };
        let first = |count: usize| (0..count).map(move |_| Pod { from: always, until: never });
        match self.pods {
            Pods::Fixed(count) => first(count).collect(),
            Pods::Up(from, to) => {
                let added = spaced(from, to, WARM, 15 * SECOND).map(|from| Pod { from, until: never });
                first(from).chain(added).collect()
            }
            Pods::UpAndDown(from, to) => {
                let added = spaced(from, to, WARM, 20 * SECOND);
                // The newest pod ends first.
                let removed = spaced(from, to, WARM + 30 * SECOND, 20 * SECOND).collect::<Vec<_>>().into_iter().rev();
                let added = added.zip(removed).map(|(from, until)| Pod { from, until });
                first(from).chain(added).collect()
            }
        }
    }
}

impl Traffic {
    /// The number of pods that get requests at this time.
    pub(in super::super) fn count_at(&self, at: u64) -> usize {
        self.pods.iter().filter(|pod| pod.from <= at && at < pod.until).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_requests_at_the_rate_of_the_load() {
        for scenario in SCENARIOS {
            let traffic = scenario.traffic(7);
            assert_eq!(traffic.requests, scenario.traffic(7).requests);
            let seconds = float(scenario.ends() / SECOND - 2);
            let rate = float(traffic.requests.len()) / seconds;
            let expected = scenario.load * float(scenario.limit);
            assert!((rate / expected - 1.0).abs() < 0.02, "{}: {rate} of {expected}", scenario.name);
            for request in &traffic.requests {
                let pod = traffic.pods[request.pod];
                assert!(pod.from <= request.at && request.at < pod.until, "{}: {request:?}", scenario.name);
            }
        }
    }

    #[test]
    fn most_of_a_skewed_load_is_on_one_pod_and_moves() {
        let traffic = SCENARIOS[4].traffic(7);
        let on = |pod: usize, from: u64, until: u64| {
            let all: Vec<_> = traffic.requests.iter().filter(|it| it.at >= from && it.at < until).collect();
            float(all.iter().filter(|it| it.pod == pod).count()) / float(all.len())
        };
        assert!(on(0, 0, AT) > 0.88 && on(1, 0, AT) < 0.02);
        assert!(on(1, AT, 20 * SECOND) > 0.88 && on(0, AT, 20 * SECOND) < 0.02);
    }

    #[test]
    fn pods_come_and_go() {
        let traffic = SCENARIOS[7].traffic(7);
        assert_eq!([1, 25, 34, 59].map(|second| traffic.count_at(second * SECOND)), [3, 300, 300, 3]);
        let traffic = SCENARIOS[6].traffic(7);
        assert_eq!([1, 19].map(|second| traffic.count_at(second * SECOND)), [3, 141]);
    }
}
