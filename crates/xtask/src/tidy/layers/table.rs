//! The layers of each crate.

/// A crate and the layers of its modules.
#[derive(Debug)]
pub(super) struct Crate {
    /// Its root file.
    pub(super) root: &'static str,
    /// The modules at its top, the lowest layer first. A module imports from lower layers only, never from its own.
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
            &["in_flight", "supply", "terms", "windows", "word"],
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
            &["clock", "exceeded"],
            &["answer", "waiting"],
            &["deadline", "latency"],
            &["throughput"],
            &["keyed", "shared"],
            &["rate_limit"],
        ],
    },
    Crate {
        root: "crates/wire/src/lib.rs",
        layers: &[
            &["identity", "report", "status", "store"],
            &["snapshot"],
            &["everything", "explain", "logs", "reply"],
        ],
    },
    Crate { root: "crates/channel/src/lib.rs", layers: &[&["frame"], &["message"], &["channel"]] },
    Crate { root: "crates/expressions/src/lib.rs", layers: &[&["language", "path_regex", "weight"], &["predicate"]] },
    Crate {
        root: "crates/api/src/lib.rs",
        layers: &[
            &["duration", "names", "status", "store_status"],
            &["key", "limit", "matching", "on_limit", "store", "target"],
            &["cost"],
            &["rule"],
            &["policy"],
            &["crd"],
            &["check"],
        ],
    },
    Crate {
        root: "crates/enforce/src/lib.rs",
        layers: &[
            &["byte_set", "fields", "histogram", "sampled"],
            &["counters", "matching"],
            &["client_ip", "cost", "jwt"],
            &["key", "refusal_text"],
            &["lower"],
            &["rule"],
            &["refusal", "removed", "rule_set"],
            &["in_force"],
            &["charge"],
            &["deferred", "outcome"],
            &["follow_up"],
            &["wait"],
            &["verdict"],
            &["decide"],
            &["explain", "log"],
            &["gate"],
            &["layer", "messages"],
            &["live"],
        ],
    },
    Crate {
        root: "crates/store/src/lib.rs",
        layers: &[
            &["bounds", "breaker", "deadline", "error", "key", "terms"],
            &["bucket"],
            &["state"],
            &["seats", "value"],
            &["take"],
            &["link", "model"],
            &["memcached", "memory", "redis"],
        ],
    },
    Crate {
        root: "limiter-agent/src/lib.rs",
        layers: &[
            &["cache", "clock", "duration", "listen", "logs", "ready", "slots", "watch"],
            &["apply", "proxy"],
            &["bootstrap"],
            &["control"],
            &["identity", "jwks", "serve"],
            &["config", "metrics"],
            &["leave", "telemetry"],
            &["agent"],
        ],
    },
    Crate {
        root: "operator/src/lib.rs",
        layers: &[
            &[
                "apiserver",
                "authority",
                "calling",
                "changes",
                "clock",
                "host",
                "labels",
                "log_once",
                "pod_ports",
                "open_files",
                "prove",
                "pulled",
                "serve",
            ],
            &["world"],
            &["compile", "metrics", "traffic"],
            &["documents", "plan", "telemetry"],
            &["source"],
            &["check", "identity", "leader"],
            &["inject", "link", "report"],
            &["observed"],
            &["status"],
            &["announcer", "bypasses"],
            &["policy_record"],
            &["engine"],
            &["operator"],
            &["cli"],
        ],
    },
];
