//! Metric families about the snapshot in force, the control port, and keys for tokens.

use prometheus::proto::{MetricFamily, MetricType};
use weir_enforce::RulesInForce;

use super::family::{counter, family, gauge};
use crate::{
    apply::{OUTCOMES, Snapshots, unix_millis},
    control::{HANDSHAKES, RELOADS, Tls},
    jwks::{LOADS, Loads},
};

pub(super) fn snapshots(rules: &RulesInForce, snapshots: &Snapshots) -> [MetricFamily; 4] {
    let in_force = rules.snapshot();
    let info = in_force.zip(snapshots.origin()).map(|((snapshot, _), origin)| {
        gauge(&[("revision", snapshot.revision.as_str()), ("origin", origin.name())], 1)
    });
    [
        family(
            "weir_snapshot_info",
            "The revision in force, and whether it was pushed, or is from the bootstrap snapshot or the cache.",
            MetricType::GAUGE,
            info.into_iter().collect(),
        ),
        family(
            "weir_snapshot_sequence",
            "Sequence of the snapshot in force; 0 before the first.",
            MetricType::GAUGE,
            vec![gauge(&[], in_force.map_or(0, |(snapshot, _)| snapshot.sequence))],
        ),
        family(
            "weir_snapshot_in_force_since_timestamp_seconds",
            "Unix time at which the revision in force came into force.",
            MetricType::GAUGE,
            in_force.map(|(_, since)| gauge(&[], unix_millis(since) / 1000)).into_iter().collect(),
        ),
        family(
            "weir_snapshots_total",
            "Snapshots put to the control port, by result.",
            MetricType::COUNTER,
            OUTCOMES.iter().zip(snapshots.outcomes()).map(|(result, n)| counter(&[("result", result)], n)).collect(),
        ),
    ]
}

pub(super) fn tls(tls: &Tls) -> [MetricFamily; 3] {
    let counters = |names: &[&str], label, counts: &[u64]| {
        names.iter().zip(counts).map(|(name, n)| counter(&[(label, name)], *n)).collect()
    };
    [
        family(
            "weir_control_certificate_expiry_timestamp_seconds",
            "Unix time at which the control port's certificate expires.",
            MetricType::GAUGE,
            tls.not_after().map(|not_after| gauge(&[], not_after)).into_iter().collect(),
        ),
        family(
            "weir_control_certificate_reloads_total",
            "Reloads of the control port's certificate, by result; after a failure the previous one stays in use.",
            MetricType::COUNTER,
            counters(&RELOADS, "result", &tls.reloads()),
        ),
        family(
            "weir_control_handshakes_total",
            "TLS handshakes on the control port, by result.",
            MetricType::COUNTER,
            counters(&HANDSHAKES, "result", &tls.handshakes()),
        ),
    ]
}

pub(super) fn jwks(loads: &Loads) -> [MetricFamily; 2] {
    let source = ("source", loads.source);
    [
        family(
            "weir_jwks_loads_total",
            "Attempts to load keys for tokens, by source and result; after a failure the previous keys stay in use.",
            MetricType::COUNTER,
            LOADS.iter().zip(loads.counts()).map(|(result, n)| counter(&[source, ("result", result)], n)).collect(),
        ),
        family(
            "weir_jwks_last_load_successful",
            "1 if the last attempt to load keys for tokens succeeded, 0 if it failed.",
            MetricType::GAUGE,
            loads.last_succeeded().map(|succeeded| gauge(&[source], succeeded.into())).into_iter().collect(),
        ),
    ]
}
