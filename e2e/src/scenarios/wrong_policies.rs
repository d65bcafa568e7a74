//! Policies that are wrong in ten ways. Each must be refused by `kubectl apply`, with the path of the field and a word
//! on how to mend it, and none may leave an object behind.

use anyhow::{Result, ensure};

use crate::{namespace::Space, report};

struct Wrong {
    what: &'static str,
    spec: &'static str,
    /// Path of the field, as the message gives it.
    field: &'static str,
    /// From the message: how to mend it.
    mend: &'static str,
}

/// A spec that is right: each of the wrong ones differs from it in one thing.
const RIGHT: &str = "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s}]
";

const WRONG: [Wrong; 10] = [
    Wrong {
        what: "zero requests",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 0, per: 1s}]
",
        field: "spec.rules[0].limits[0].requests",
        mend: "remove it or use action Bypass",
    },
    Wrong {
        what: "a period that is no duration",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: second}]
",
        field: "spec.rules[0].limits[0].per",
        mend: "such as 500ms, 1s or 1h30m",
    },
    Wrong {
        what: "a period longer than a day",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 25h}]
",
        field: "spec.rules[0].limits[0].per",
        mend: "between 1ms and 24h",
    },
    Wrong {
        what: "no target at all",
        spec: "
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s}]
",
        field: "spec",
        mend: "targetRefs to name workloads or Services, selector to choose pods by label",
    },
    Wrong {
        what: "a kind that has no pods of its own",
        spec: "
  targetRefs: [{kind: ConfigMap, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s}]
",
        field: "spec.targetRefs[0].kind",
        mend: r#"supported values: "Deployment", "StatefulSet", "DaemonSet", "Service""#,
    },
    Wrong {
        what: "a burst where nothing is saved up",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s, burst: 100, strategy: FixedWindow}]
",
        field: "spec.rules[0].limits[0].burst",
        mend: "leave burst out, or use strategy TokenBucket or GCRA",
    },
    Wrong {
        what: "a rule that limits nothing",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    key: [{header: x-api-key}]
",
        field: "spec.rules[0].limits",
        mend: "add one, or use action Bypass",
    },
    Wrong {
        what: "a path that can never match",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    match: [{paths: [api/**]}]
    limits: [{name: per-pod, requests: 50, per: 1s}]
",
        field: "spec.rules[0].match[0].paths[0]",
        mend: "must begin with '/'",
    },
    Wrong {
        what: "other numbers for keys that are not told apart",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s}]
    overrides: [{keys: [[gold]], limits: [{name: per-pod, requests: 500, per: 1s}]}]
",
        field: "spec.rules[0].overrides",
        mend: "add key to say what requests are told apart by",
    },
    Wrong {
        what: "a field that does not exist",
        spec: "
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s, brust: 100}]
",
        field: "spec.rules[0].limits[0].brust",
        mend: "unknown field",
    },
];

pub(crate) async fn run(space: &Space) -> Result<()> {
    // If this one were refused, so would be the others, and for the wrong reason.
    space.apply(&policy("right", RIGHT)).await?;
    for Wrong { what, spec, field, mend } in WRONG {
        let outcome =
            space.cluster.kubectl.try_run(&space.namespace, &["apply", "-f", "-"], &policy("wrong", spec)).await?;
        let message = outcome.stderr.trim();
        ensure!(!outcome.success, "{what}: accepted");
        // "spec.rules[0].limits" must not pass for "spec.rules[0].limits[0].per", nor "spec" for anything at all.
        let names_field = [format!("{field}: "), format!("{field}\"")].iter().any(|end| message.contains(end));
        ensure!(names_field, "{what}: the message does not name {field}: {message}");
        ensure!(message.contains(mend), "{what}: the message does not say `{mend}`: {message}");
    }
    let left = space.kubectl(&["get", "ratelimitpolicies", "--output=name"]).await?;
    ensure!(left.trim() == "ratelimitpolicy.weir.dev/right", "there are {left:?}");
    report::note(format!("{} wrong policies refused, each with its field and the mend", WRONG.len()));
    Ok(())
}

fn policy(name: &str, spec: &str) -> String {
    format!("apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}}}\nspec:{spec}")
}
