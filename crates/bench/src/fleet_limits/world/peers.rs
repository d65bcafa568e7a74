//! The peers of scope Fleet in a world: a central limiter without a network, equal parts of the limit, and parts by
//! gossip.

use std::collections::BTreeMap;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{
    decisions::{Decision, Run},
    traffic::{MILLI, SECOND, Traffic},
};
use crate::stats::float;

/// The time between two estimates of the demand.
const ESTIMATE: u64 = 50 * MILLI;
/// The weight of the newest demand in the average.
const NEWEST: f64 = 0.1;
/// The number of other pods to which a pod sends its estimate.
const BRANCHES: usize = 3;

/// Decides on all requests in one place, in whole numbers. This is what the limit allows.
pub(in super::super) fn central(traffic: &Traffic) -> Run {
    // A request is as many units as there are microseconds in a second.
    let (limit, mut at) = (traffic.limit, 0);
    let (full, mut units) = (limit * SECOND, limit * SECOND);
    let mut decide = |request_at: u64| {
        units = full.min(units + limit * (request_at - at));
        at = request_at;
        let is_admitted = units >= SECOND;
        units -= if is_admitted { SECOND } else { 0 };
        is_admitted
    };
    let decisions = traffic.requests.iter().map(|request| Decision::at_once(request.at, decide(request.at)));
    // Each request asks and gets an answer.
    Run { decisions: decisions.collect(), messages: 2 * traffic.requests.len() as u64 }
}

/// A bucket whose part of the limit can change.
struct Bucket {
    units: f64,
    /// Requests per second, which are also the burst.
    rate: f64,
    at: u64,
}

impl Bucket {
    /// A full bucket.
    fn new(rate: f64, at: u64) -> Self {
        Self { units: rate, rate, at }
    }

    fn change(&mut self, rate: f64, at: u64) {
        self.refill(at);
        self.rate = rate;
        self.units = self.units.min(rate);
    }

    fn refill(&mut self, at: u64) {
        self.units = (self.units + self.rate * seconds(at - self.at)).min(self.rate);
        self.at = at;
    }

    fn admits(&mut self, at: u64) -> bool {
        self.refill(at);
        let is_admitted = self.units >= 1.0;
        self.units -= if is_admitted { 1.0 } else { 0.0 };
        is_admitted
    }
}

/// Each pod has an equal part of the limit, as in Envoy's local cluster rate limit. All pods immediately know how many
/// there are.
pub(in super::super) fn parts(traffic: &Traffic) -> Run {
    let mut buckets: BTreeMap<usize, Bucket> = BTreeMap::new();
    let mut pods = 0;
    let decide = |request: &super::traffic::Request| {
        let now = traffic.count_at(request.at);
        let rate = float(traffic.limit) / float(now);
        if now != pods {
            pods = now;
            buckets.values_mut().for_each(|bucket| bucket.change(rate, request.at));
        }
        let bucket = buckets.entry(request.pod).or_insert_with(|| Bucket::new(rate, request.at));
        Decision::at_once(request.at, bucket.admits(request.at))
    };
    Run { decisions: traffic.requests.iter().map(decide).collect(), messages: 0 }
}

/// A pod that gossips.
struct Gossiper {
    bucket: Bucket,
    /// Requests since the last estimate.
    requests: f64,
    /// The average demand, in requests per second.
    demand: f64,
    /// The sum of demands and the weight that this pod has. Their ratio is the average demand of all pods.
    sum: f64,
    weight: f64,
    next: u64,
}

/// Each pod has a part of the limit in proportion to its demand. It learns the demand of all pods by gossip (Kempe,
/// Dobra and Gehrke, 2003), as in "Cloud control with distributed rate limiting" (Raghavan et al., 2007).
pub(in super::super) fn gossip(traffic: &Traffic, round_trip: u64, seed: u64) -> Run {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pods: BTreeMap<usize, Gossiper> = BTreeMap::new();
    let mut mail: BTreeMap<(u64, u64), (usize, f64, f64)> = BTreeMap::new();
    let (mut messages, mut at) = (0, 0);
    let mut decisions = Vec::with_capacity(traffic.requests.len());
    for request in &traffic.requests {
        // Work in steps of a millisecond until this request.
        while at < request.at {
            at = request.at.min(at + MILLI);
            change_pods(traffic, at, &mut pods, &mut random);
            while let Some(first) = mail.first_entry().filter(|entry| entry.key().0 <= at) {
                let (pod, sum, weight) = first.remove();
                // The mail of a pod that has ended goes to another one, so that no demand is lost.
                let pod = if pods.contains_key(&pod) { Some(pod) } else { any(&pods, &mut random) };
                if let Some(pod) = pod.and_then(|pod| pods.get_mut(&pod)) {
                    pod.sum += sum;
                    pod.weight += weight;
                }
            }
            let due: Vec<usize> = pods.iter().filter(|(_, pod)| pod.next <= at).map(|(number, _)| *number).collect();
            let all: Vec<usize> = pods.keys().copied().collect();
            for number in due {
                let pod = pods.get_mut(&number).expect("a pod");
                pod.estimate(at, float(all.len()), float(traffic.limit));
                let share = 1.0 / float(BRANCHES + 1);
                let sent = (pod.sum * share, pod.weight * share);
                for _ in 0..BRANCHES.min(all.len() - 1) {
                    let other = loop {
                        let other = all[random.random_range(0..all.len())];
                        if other != number {
                            break other;
                        }
                    };
                    pod.sum -= sent.0;
                    pod.weight -= sent.1;
                    messages += 1;
                    mail.insert((at + round_trip / 2, messages), (other, sent.0, sent.1));
                }
            }
        }
        let pod = pods.get_mut(&request.pod).expect("a pod");
        pod.requests += 1.0;
        decisions.push(Decision::at_once(request.at, pod.bucket.admits(request.at)));
    }
    Run { decisions, messages }
}

fn any(pods: &BTreeMap<usize, Gossiper>, random: &mut StdRng) -> Option<usize> {
    pods.keys().nth(random.random_range(0..pods.len().max(1))).copied()
}

fn change_pods(traffic: &Traffic, at: u64, pods: &mut BTreeMap<usize, Gossiper>, random: &mut StdRng) {
    for (number, pod) in traffic.pods.iter().enumerate() {
        let exists = pod.from <= at && at < pod.until;
        if exists && !pods.contains_key(&number) {
            let now = traffic.count_at(at);
            let next = at + random.random_range(0..ESTIMATE);
            let bucket = Bucket::new(float(traffic.limit) / float(now), at);
            pods.insert(number, Gossiper { bucket, requests: 0.0, demand: 0.0, sum: 0.0, weight: 1.0, next });
        } else if !exists && let Some(ended) = pods.remove(&number) {
            // Another pod takes over what it has, without its own demand.
            if let Some(other) = any(pods, random).and_then(|other| pods.get_mut(&other)) {
                other.sum += ended.sum - ended.demand;
                other.weight += ended.weight - 1.0;
            }
        }
    }
}

impl Gossiper {
    /// Estimates the demand, and sets this pod's part of the limit.
    fn estimate(&mut self, at: u64, pods: f64, limit: f64) {
        let demand = self.requests / seconds(ESTIMATE);
        let demand = NEWEST * demand + (1.0 - NEWEST) * self.demand;
        self.sum += demand - self.demand;
        (self.demand, self.requests, self.next) = (demand, 0.0, at + ESTIMATE);
        let all = if self.weight > 0.0 { pods * self.sum / self.weight } else { 0.0 };
        let part = if demand > 0.0 { demand / all.max(demand) } else { 1.0 / pods };
        self.bucket.change(limit * part, at);
    }
}

fn seconds(micros: u64) -> f64 {
    float(micros) / 1e6
}

#[cfg(test)]
mod tests {
    use super::{
        super::{judge::excess_of, traffic::SCENARIOS},
        *,
    };

    fn admitted(run: &Run) -> f64 {
        float(run.decisions.iter().filter(|decision| decision.is_admitted).count())
    }

    #[test]
    fn the_central_limiter_uses_the_whole_limit_and_no_more() {
        let scenario = SCENARIOS[1];
        let traffic = scenario.traffic(7);
        let run = central(&traffic);
        assert_eq!(excess_of(&traffic, &run), 0);
        let allowed = float(scenario.limit) * float(scenario.ends() / SECOND - 2 + 1);
        assert!(admitted(&run) > 0.999 * allowed && admitted(&run) <= allowed, "{} of {allowed}", admitted(&run));
    }

    #[test]
    fn equal_parts_use_the_limit_only_if_the_load_is_even() {
        let [even, skewed] = [SCENARIOS[1], SCENARIOS[3]].map(|scenario| {
            let traffic = scenario.traffic(7);
            let run = parts(&traffic);
            assert_eq!(excess_of(&traffic, &run), 0);
            admitted(&run) / admitted(&central(&traffic))
        });
        assert!(even > 0.99, "{even}");
        assert!(skewed < 0.35, "{skewed}");
    }

    #[test]
    fn gossip_finds_the_pod_with_the_load() {
        let traffic = SCENARIOS[3].traffic(7);
        let run = gossip(&traffic, 5 * MILLI, 7);
        let used = admitted(&run) / admitted(&central(&traffic));
        assert!(used > 0.85, "{used}");
        assert!(run.messages > 40 * 3 * 20 * 15, "{}", run.messages);
    }
}
