//! Metric families about the stores that count for several pods.

use prometheus::proto::MetricFamily;
use weir_store::StoreStats;

use super::family::{counters, gauges, histograms};
use crate::stores::StoreClients;

pub(super) fn families(stores: &StoreClients) -> [MetricFamily; 6] {
    let scraped = stores.scrape();
    let each = || scraped.iter().map(|store| ([("store", store.name.as_str())], store));
    let counts = |name, help, count: fn(&StoreStats) -> u64| {
        counters(name, help, each().map(|(labels, store)| (labels, count(&store.stats))))
    };
    [
        gauges(
            "weir_store_up",
            "1 if the store answers, 0 if it is lost or refuses all questions of a rule.",
            each().map(|(labels, store)| (labels, u64::from(store.is_up))),
        ),
        counts("weir_store_trips_total", "Round trips to the store.", |stats| stats.trips),
        counts("weir_store_seats_leased_total", "Seats that the store granted for future requests.", |stats| {
            stats.prefetched
        }),
        counts("weir_store_seats_returned_total", "Seats that were given back to the store.", |stats| stats.returned),
        counts("weir_store_seats_lost_total", "Seats that expired or were dropped, unused.", |stats| stats.lost),
        histograms(
            "weir_store_latency_seconds",
            "Time of a round trip to the store.",
            each().map(|(labels, store)| (labels, store.took)),
        ),
    ]
}
