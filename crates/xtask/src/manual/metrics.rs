//! Writes the page of the manual that lists all metrics, from the tables in the sources. Tests compare these tables with
//! the metrics that the programs export.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};

/// The path of the page.
pub(super) const PAGE: &str = "docs/metrics.md";

/// The lines before the tables.
const HEAD: &str = "<!-- Written by `cargo xtask manual --metrics` from the tables in the sources: edit those, not this file. -->

# Metrics

Agents and operators export metrics for Prometheus as `/metrics` on their telemetry ports. In the tables, *rule* stands for the labels `namespace`, `policy` and
`rule`. No label contains a key, a path or an address of a client. [Dashboards](operations/dashboards.md) and [alerts](alerts.md) use most of them.

Both programs also export the `process_*` metrics that Prometheus recommends, such as `process_cpu_seconds_total` and `process_resident_memory_bytes`.
";

/// The sections: their headings, their first paragraphs, and the sources with their tables.
const SECTIONS: [(&str, &str, &str); 3] = [
    (
        "Rules, snapshots and stores",
        "Agents export these metrics, and also Rust programs [without a sidecar](guides/library-client.md). The numbers of a limit are those without overrides. With
the `scope` Pod, each pod has the limit, so the limits of the pods add up. With Shared and Fleet, all pods together have one limit, and each pod reports the whole
limit.",
        "crates/client/src/metrics.rs",
    ),
    ("Connections and the rate limit service", "Only agents export these metrics.", "limiter-agent/src/metrics.rs"),
    ("The operator", "Only operators export these metrics.", "operator/src/metrics.rs"),
];

/// Creates the page.
pub(super) fn page(root: &Path) -> anyhow::Result<String> {
    let mut page = HEAD.to_owned();
    for (heading, text, source) in SECTIONS {
        let code = fs::read_to_string(root.join(source)).with_context(|| format!("read {source}"))?;
        let rows = table(&code);
        ensure!(rows.lines().count() > 2, "{source} has no table of metrics");
        page += &format!("\n## {heading}\n\n{text}\n\n{rows}");
    }
    Ok(page)
}

/// Returns the table in the docs of a module.
fn table(code: &str) -> String {
    let rows = code.lines().filter_map(|line| line.strip_prefix("//! ")).filter(|line| line.starts_with('|'));
    rows.flat_map(|row| [row, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_copied_as_it_is() {
        let code = "//! Metrics.\n//!\n//! | metric | labels | what |\n//! |---|---|---|\n//! | `a` | `b` | c |\n//!\n//! Text.\nuse x;\n";
        assert_eq!(table(code), "| metric | labels | what |\n|---|---|---|\n| `a` | `b` | c |\n");
    }
}
