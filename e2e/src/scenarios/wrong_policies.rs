//! Applies policies that are invalid in ten ways. `kubectl apply` must refuse each of them, with the path of the field
//! and the fix in the message. No refused policy may create an object.

use anyhow::{Result, ensure};

use crate::{namespace::TestNamespace, report};

struct Wrong {
    what: &'static str,
    /// The part of the valid spec, and its replacement.
    change: (&'static str, &'static str),
    /// The path of the field in the message.
    field: &'static str,
    /// The part of the message that describes the fix.
    fix: &'static str,
}

/// A valid spec. Each invalid spec differs from it in one part, which it contains once.
const RIGHT: &str = "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s}]
";

const WRONG: [Wrong; 10] = [
    Wrong {
        what: "zero requests",
        change: ("requests: 50", "requests: 0"),
        field: "spec.rules[0].limits[0].requests",
        fix: "remove it or use action Bypass",
    },
    Wrong {
        what: "a period that is no duration",
        change: ("per: 1s", "per: second"),
        field: "spec.rules[0].limits[0].per",
        fix: "such as 500ms, 1s or 1h30m",
    },
    Wrong {
        what: "a period longer than a day",
        change: ("per: 1s", "per: 25h"),
        field: "spec.rules[0].limits[0].per",
        fix: "between 1ms and 24h",
    },
    Wrong {
        what: "no target",
        change: ("\n  targetRefs: [{group: apps, kind: Deployment, name: web}]", ""),
        field: "spec",
        fix: "targetRefs to name workloads or Services, selector to choose pods by label",
    },
    Wrong {
        what: "a kind without pods",
        change: ("group: apps, kind: Deployment", "kind: ConfigMap"),
        field: "spec.targetRefs[0].kind",
        fix: r#"supported values: "Deployment", "StatefulSet", "DaemonSet", "Service""#,
    },
    Wrong {
        what: "a burst with a strategy that has none",
        change: ("per: 1s", "per: 1s, burst: 100, strategy: FixedWindow"),
        field: "spec.rules[0].limits[0].burst",
        fix: "remove burst, or use strategy TokenBucket or GCRA",
    },
    Wrong {
        what: "a rule that limits nothing",
        change: ("limits: [{name: per-pod, requests: 50, per: 1s}]", "key: [{header: x-api-key}]"),
        field: "spec.rules[0].limits",
        fix: "add one, or use action Bypass",
    },
    Wrong {
        what: "a path that can never match",
        change: ("limits:", "match: [{paths: [api/**]}]\n    limits:"),
        field: "spec.rules[0].match[0].paths[0]",
        fix: "must begin with '/'",
    },
    Wrong {
        what: "other numbers for keys of a rule without a key",
        change: (
            "per: 1s}]",
            "per: 1s}]\n    overrides: [{keys: [[gold]], limits: [{name: per-pod, requests: 500, per: 1s}]}]",
        ),
        field: "spec.rules[0].overrides",
        fix: "add key, by which requests are counted separately",
    },
    Wrong {
        what: "a field that does not exist",
        change: ("per: 1s", "per: 1s, brust: 100"),
        field: "spec.rules[0].limits[0].brust",
        fix: "unknown field",
    },
];

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    // The valid policy must be accepted. Otherwise the others would be refused for the wrong reason.
    space.apply(&policy("right", RIGHT)).await?;
    for Wrong { what, change: (part, replacement), field, fix } in WRONG {
        ensure!(RIGHT.matches(part).count() == 1, "{what}: no change");
        let wrong = policy("wrong", &RIGHT.replace(part, replacement));
        let outcome = space.cluster.kubectl.try_run(&space.namespace, &["apply", "-f", "-"], &wrong).await?;
        let message = outcome.stderr.trim();
        ensure!(!outcome.success, "{what}: accepted");
        // "spec.rules[0].limits" must not match "spec.rules[0].limits[0].per", and "spec" must not match everything.
        let names_field = [format!("{field}: "), format!("{field}\"")].iter().any(|end| message.contains(end));
        ensure!(names_field, "{what}: the message does not name {field}: {message}");
        ensure!(message.contains(fix), "{what}: the message does not contain `{fix}`: {message}");
    }
    let left = space.kubectl(&["get", "ratelimitpolicies", "--output=name"]).await?;
    ensure!(left.trim() == "ratelimitpolicy.weir.dev/right", "unexpected policies exist: {left:?}");
    report::note(format!("{} wrong policies refused, each with its field and the fix", WRONG.len()));
    Ok(())
}

fn policy(name: &str, spec: &str) -> String {
    format!("apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}}}\nspec:{spec}")
}
