//! The layers of each crate.

/// A crate, and the layers of its modules.
#[derive(Debug)]
pub(super) struct Crate {
    /// The root file of the crate.
    pub(super) root: &'static str,
    /// The top-level modules, with the lowest layer first. A module imports only from lower layers, never from its own
    /// layer.
    pub(super) layers: &'static [&'static [&'static str]],
}

pub(super) const CRATES: &[Crate] = &[
    Crate {
        root: "crates/fuzz/src/lib.rs",
        layers: &[&["clock", "random", "smaller"], &["choices", "mutate"], &["json"]],
    },
    Crate {
        root: "crates/core/src/lib.rs",
        layers: &[
            &["divisor", "quota", "sync", "time"],
            &["chain", "in_flight", "supply", "terms", "windows", "word"],
            &["standing"],
            &["meter"],
            &["forecast", "lease"],
            &["queue"],
            &["limiter"],
            &["refused"],
            &["all"],
            &["answer"],
            &["keyed"],
            &["rule"],
            &["rules"],
        ],
    },
    Crate {
        root: "crates/tower/src/lib.rs",
        layers: &[
            &["clock", "cost", "exceeded", "inner", "timed"],
            &["answer", "waiting"],
            &["deadline", "latency"],
            &["throughput"],
            &["keyed", "single"],
            &["rate_limit"],
        ],
    },
    Crate {
        root: "crates/wire/src/lib.rs",
        layers: &[
            &["bans", "channel", "identity", "question", "status", "store", "times"],
            &["snapshot"],
            &["explain", "logs", "reply", "takes_all"],
        ],
    },
    Crate { root: "crates/channel/src/lib.rs", layers: &[&["frame"], &["message"], &["channel"]] },
    Crate {
        root: "crates/expressions/src/lib.rs",
        layers: &[
            &["cost", "named", "network", "signs", "template"],
            &["pattern"],
            &["language", "path_regex"],
            &["weight"],
            &["predicate"],
        ],
    },
    Crate {
        root: "crates/api/src/lib.rs",
        layers: &[
            &["duration", "mode", "names", "status", "store_status"],
            &["ban", "key", "limit", "matching", "response_header", "store", "target"],
            &["cost", "on_deadline", "on_limit"],
            &["rule"],
            &["policy"],
            &["crd"],
            &["check"],
        ],
    },
    Crate {
        root: "crates/enforce/src/lib.rs",
        layers: &[
            &["byte_set", "histogram", "own_header", "policy_deadline", "sampled"],
            &["matching", "quota_headers", "statistics"],
            &["cost", "format", "jwt"],
            &["key", "prepared_refusal"],
            &["lower"],
            &["ban", "concurrency"],
            &["rule"],
            &["removed", "rule_set"],
            &["in_force"],
            &["decide"],
            &["ban_list", "explain", "log"],
            &["reset"],
            &["gate"],
            &["layer"],
            &["live"],
            &["descriptors", "messages"],
        ],
    },
    Crate {
        root: "crates/seats/src/lib.rs",
        layers: &[
            &["bounds", "error", "key", "terms"],
            &["ban", "bucket"],
            &["state"],
            &["seats", "value"],
            &["take"],
            &["model"],
            &["memory", "message", "reserve"],
        ],
    },
    Crate {
        root: "crates/store/src/lib.rs",
        layers: &[
            &["breaker", "connection", "deadline", "lock", "store_rule"],
            &["budget", "memcached", "operator", "redis"],
            &["backend"],
            &["client"],
            &["shared"],
        ],
    },
    Crate {
        root: "crates/client/src/lib.rs",
        layers: &[
            &["cache", "clock", "leaving", "listen", "options", "slots", "watch"],
            &["stores"],
            &["snapshots"],
            &["bootstrap", "control"],
            &["https", "serve"],
            &["identity", "jwks"],
            &["config", "metrics"],
            &["client"],
            &["agent"],
        ],
    },
    Crate {
        root: "limiter-agent/src/lib.rs",
        layers: &[
            &["clock", "commands", "logs", "open_files", "ready", "resets"],
            &["proxy"],
            &["service"],
            &["front"],
            &["config", "metrics"],
            &["telemetry"],
            &["agent"],
        ],
    },
    Crate {
        root: "operator/src/lib.rs",
        layers: &[
            &[
                "apiserver", "authority", "clock", "dialing", "host", "labels", "log_filter", "log_once", "pod_ports",
                "open_files", "serve", "wording",
            ],
            &["world"],
            &["compile", "metrics", "traffic"],
            &["documents", "plan", "telemetry"],
            &["source"],
            &["identity", "leader"],
            &["fleet"],
            &["inject", "link"],
            &["observed"],
            &["status"],
            &["report"],
            &["engine"],
            &["operator"],
            &["commands"],
            &["cli"],
        ],
    },
];
