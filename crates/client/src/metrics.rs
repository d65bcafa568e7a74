//! The metrics for Prometheus of rules, stores, snapshots and the control port.
//!
//! This module counts nothing. A scrape reads the counters that the rules in force and the control port keep for other
//! purposes. So metrics and status agree, labels cost no time in requests, and the series of a rule disappear with the
//! rule. Labels come from policies and closed sets, never from a request: no key, path or address is a label.
//!
//! | metric | labels | what |
//! |---|---|---|
//! | `weir_predicates_over_budget_total` | | predicates and regular expressions that were not run because they would have taken too long |
//! | `weir_requests_total` | rule, `decision` | requests and messages that a rule decided; a refused one counts only for the rule that refuses it |
//! | `weir_unmatched_requests_total` | | requests that no rule matched |
//! | `weir_wait_seconds` | rule | histogram: how long admitted requests waited for their turn |
//! | `weir_deadline_expired_total` | rule | requests that the policy's deadline ended before the app answered |
//! | `weir_limit_requests` | rule, `limit`, `scope` | the units that the limit admits in each period |
//! | `weir_limit_period_seconds` | rule, `limit`, `scope` | the limit's period |
//! | `weir_limit_burst` | rule, `limit`, `scope` | the limit's burst; absent for windows |
//! | `weir_rule_weighted` | rule | 1 if a request can cost other than one unit; absent for other rules |
//! | `weir_rule_headroom_ratio` | rule | for a rule without a key: the remaining share of the limit with the smallest part of its requests left; of a rule that a store counts, as the pod knows it, and absent while the store is lost |
//! | `weir_limit_in_flight_requests` | rule, `limit` | a concurrent limit: maximum requests in flight of one key |
//! | `weir_in_flight_requests` | rule, `limit` | its requests in flight now, of all keys |
//! | `weir_key_table_keys` | rule | keys tracked now |
//! | `weir_key_table_capacity` | rule | the maximum number of tracked keys |
//! | `weir_key_headroom_ratio` | rule | headroom share of the key nearest to its limit, of up to 4,096 examined |
//! | `weir_key_exhausted_ratio` | rule | the share of these keys without headroom |
//! | `weir_key_evictions_total` | rule | idle keys evicted for others |
//! | `weir_key_overflow_total` | rule | requests counted without a cell because the table was full |
//! | `weir_banned_keys` | rule | keys that the rule has banned now |
//! | `weir_bans_started_total` | rule | bans that began |
//! | `weir_ban_requests_total` | rule, `decision` | requests of banned keys, which are refused (`limited`), or only counted (`shadow_limited`); each also counts in `weir_requests_total` |
//! | `weir_ban_overflow_total` | rule | refusals that did not count because `maxKeys` other keys had refusals or bans |
//! | `weir_policy_info` | `namespace`, `policy`, `revision`, `mode` | 1 for each policy in force |
//! | `weir_store_up` | `store` | for each store that rules use: 1 if the store answers, 0 if it is lost or refuses all questions of a rule |
//! | `weir_store_trips_total` | `store` | round trips to the store |
//! | `weir_store_seats_leased_total` | `store` | seats that the store granted for future requests |
//! | `weir_store_seats_returned_total` | `store` | seats that were given back |
//! | `weir_store_seats_lost_total` | `store` | seats that expired or were dropped, unused |
//! | `weir_store_latency_seconds` | `store` | histogram: the time of a round trip |
//! | `weir_snapshot_info` | `revision`, `origin` | 1 for the snapshot in force |
//! | `weir_snapshot_sequence` | | the sequence of the snapshot in force; 0 before the first |
//! | `weir_snapshot_in_force_since_timestamp_seconds` | | when the revision in force came into force |
//! | `weir_snapshots_total` | `result` | snapshots put to the control port |
//! | `weir_control_certificate_expiry_timestamp_seconds` | | with TLS: expiry of the control port's certificate |
//! | `weir_control_certificate_reloads_total` | `result` | reloads of the control port's certificate, and failures |
//! | `weir_control_handshakes_total` | `result` | TLS handshakes on the control port |
//! | `weir_jwks_loads_total` | `source`, `result` | with token keys: attempts to load them from the file or URL |
//! | `weir_jwks_last_load_successful` | `source` | 1 if the last attempt loaded keys, 0 if it failed |
//! | `weir_build_info` | `version` | 1 |
//!
//! "rule" stands for the labels `namespace`, `policy` and `rule`. A limit's numbers are those without overrides. With the
//! `scope` Pod, each pod has the limit, so the limits of the pods add up. With Shared and Fleet, all pods together have
//! one limit, and each pod reports the whole limit.

mod control;
mod family;
mod rules;
mod stores;

use prometheus::{TEXT_FORMAT, TextEncoder, proto::MetricFamily};
use weir_core::Time;
use weir_enforce::RulesInForce;

pub use self::family::{counter, counters, gauge, gauges, histogram};
use crate::{control::Tls, jwks::Loads, snapshots::Snapshots};

/// The content type of [`text`].
pub(crate) const CONTENT_TYPE: &str = TEXT_FORMAT;

/// Returns families in the text format of Prometheus.
///
/// # Errors
///
/// Returns an error if a family is invalid.
pub fn text(mut families: Vec<MetricFamily>) -> Result<String, prometheus::Error> {
    // The encoder refuses a family without metrics.
    families.retain(|family| !family.get_metric().is_empty());
    TextEncoder::new().encode_to_string(&families)
}

/// Returns all families of this module. A family can be empty.
pub(crate) fn families(
    rules: &RulesInForce,
    snapshots: &Snapshots,
    tls: Option<&Tls>,
    jwks: Option<&Loads>,
    now: Time,
) -> Vec<MetricFamily> {
    let mut families = rules::families(rules, now).to_vec();
    families.extend(stores::families(snapshots.stores()));
    families.extend(control::snapshots(rules, snapshots));
    families.extend(tls.into_iter().flat_map(control::tls));
    families.extend(jwks.into_iter().flat_map(control::jwks));
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    families.push(gauges("weir_build_info", "The version of Weir.", [(version, 1_u64)]));
    families
}
