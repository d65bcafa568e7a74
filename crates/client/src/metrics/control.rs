//! Metric families about the snapshot in force, the control port, and keys for tokens.

use prometheus::proto::MetricFamily;
use weir_enforce::RulesInForce;

use super::family::{NO_LABELS, counters, gauge, gauges};
use crate::{
    control::{HANDSHAKES, RELOADS, Tls},
    jwks::{LOADS, Loads},
    snapshots::{PUSH_RESULTS, Snapshots, unix_millis},
};

pub(super) fn snapshots(rules: &RulesInForce, snapshots: &Snapshots) -> [MetricFamily; 4] {
    let in_force = rules.snapshot();
    let info = in_force
        .zip(snapshots.origin())
        .map(|((snapshot, _), origin)| ([("revision", snapshot.revision.as_str()), ("origin", origin.name())], 1_u64));
    [
        gauges(
            "weir_snapshot_info",
            "The revision in force, and whether it was pushed, or is from the bootstrap snapshot or the cache.",
            info,
        ),
        gauge(
            "weir_snapshot_sequence",
            "Sequence of the snapshot in force; 0 before the first.",
            in_force.map_or(0, |(snapshot, _)| snapshot.sequence),
        ),
        gauges(
            "weir_snapshot_in_force_since_timestamp_seconds",
            "Unix time at which the revision in force came into force.",
            in_force.map(|(_, since)| (NO_LABELS, unix_millis(since) / 1000)),
        ),
        counters(
            "weir_snapshots_total",
            "Snapshots put to the control port, by result.",
            PUSH_RESULTS.into_iter().zip(snapshots.push_results()).map(|(result, n)| ([("result", result)], n)),
        ),
    ]
}

pub(super) fn tls(tls: &Tls) -> [MetricFamily; 3] {
    let by_result = |(result, count)| ([("result", result)], count);
    [
        gauges(
            "weir_control_certificate_expiry_timestamp_seconds",
            "Unix time at which the control port's certificate expires.",
            tls.not_after().map(|not_after| (NO_LABELS, not_after)),
        ),
        counters(
            "weir_control_certificate_reloads_total",
            "Reloads of the control port's certificate, by result; after a failure the previous one stays in use.",
            RELOADS.into_iter().zip(tls.reloads()).map(by_result),
        ),
        counters(
            "weir_control_handshakes_total",
            "TLS handshakes on the control port, by result.",
            HANDSHAKES.into_iter().zip(tls.handshakes()).map(by_result),
        ),
    ]
}

pub(super) fn jwks(loads: &Loads) -> [MetricFamily; 2] {
    let source = ("source", loads.source);
    [
        counters(
            "weir_jwks_loads_total",
            "Attempts to load keys for tokens, by source and result; after a failure the previous keys stay in use.",
            LOADS.into_iter().zip(loads.counts()).map(|(result, n)| ([source, ("result", result)], n)),
        ),
        gauges(
            "weir_jwks_last_load_successful",
            "1 if the last attempt to load keys for tokens succeeded, 0 if it failed.",
            loads.last_succeeded().map(|succeeded| ([source], u64::from(succeeded))),
        ),
    ]
}
