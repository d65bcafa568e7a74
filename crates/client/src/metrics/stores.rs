//! Metric families about the stores that count for several pods.

use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::family::{counter, family, gauge, histogram};
use crate::stores::{Scraped, Stores};

pub(super) fn families(stores: &Stores) -> [MetricFamily; 6] {
    let scraped = stores.scrape();
    let each = |metric: fn(&[(&str, &str)], &Scraped) -> Metric| {
        scraped.iter().map(|store| metric(&[("store", &store.name)], store)).collect::<Vec<_>>()
    };
    [
        family(
            "weir_store_up",
            "1 if the store answers, 0 if it is lost.",
            MetricType::GAUGE,
            each(|labels, store| gauge(labels, store.is_up.into())),
        ),
        family(
            "weir_store_trips_total",
            "Round trips to the store.",
            MetricType::COUNTER,
            each(|labels, store| counter(labels, store.stats.trips)),
        ),
        family(
            "weir_store_seats_leased_total",
            "Seats that the store granted for future requests.",
            MetricType::COUNTER,
            each(|labels, store| counter(labels, store.stats.leased)),
        ),
        family(
            "weir_store_seats_returned_total",
            "Seats that were given back to the store.",
            MetricType::COUNTER,
            each(|labels, store| counter(labels, store.stats.returned)),
        ),
        family(
            "weir_store_seats_lost_total",
            "Seats that expired unused.",
            MetricType::COUNTER,
            each(|labels, store| counter(labels, store.stats.lost)),
        ),
        family(
            "weir_store_latency_seconds",
            "Time of a round trip to the store.",
            MetricType::HISTOGRAM,
            each(|labels, store| histogram(labels, &store.took)),
        ),
    ]
}
