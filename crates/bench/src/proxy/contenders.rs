//! The contenders, and their configurations for the same work.

use std::{env, fs, net::SocketAddr, path::Path, process::Command};

use anyhow::Context as _;

use super::{
    process::{Cores, Process, free_address},
    scenarios::Scenario,
    template::fill,
    weir::{self, UNREACHED},
};

const NGINX: &str = include_str!("peers/nginx.conf");
const HAPROXY: &str = include_str!("peers/haproxy.cfg");
const ENVOY: &str = include_str!("peers/envoy.yaml");
/// The environment variable with the path of an earlier agent.
const BEFORE: &str = "WEIR_AGENT_BEFORE";

/// The number of client connections that each contender must accept: the idle ones, and some more.
const CONNECTIONS: usize = 12_000;
/// The limit of descriptors. The agent counts two for each client connection, and keeps some for others, so it serves
/// 7,932 connections.
pub(super) const FILES: u64 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Nginx,
    Haproxy,
    Envoy,
    Weir,
    /// An agent of an earlier commit: the program that `WEIR_AGENT_BEFORE` names.
    Before,
}

const ALL: [Contender; 5] =
    [Contender::Nginx, Contender::Haproxy, Contender::Envoy, Contender::Weir, Contender::Before];

/// The contenders in the order of the tables: the reference peer is the first one. The earlier agent is the last one,
/// and only if the user names its program.
pub(super) fn contenders() -> &'static [Contender] {
    &ALL[..ALL.len() - usize::from(env::var_os(BEFORE).is_none())]
}

/// A running contender.
pub(super) struct Proxy {
    pub(super) process: Process,
    pub(super) http1: SocketAddr,
    pub(super) http2: SocketAddr,
}

impl Contender {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Envoy => "Envoy",
            Self::Weir => "weir-agent",
            Self::Before => "weir-agent of an earlier commit",
        }
    }

    /// Starts the contender with the limits of the scenario.
    pub(super) fn start(self, scenario: Scenario, upstream: SocketAddr, folder: &Path) -> anyhow::Result<Proxy> {
        let http1 = free_address()?;
        // nginx and HAProxy need a separate port for each protocol.
        let http2 = if matches!(self, Self::Nginx | Self::Haproxy) { free_address()? } else { http1 };
        let values = values(scenario, upstream, http1, http2, folder);
        let put = |file: &str, template: &str| {
            let path = folder.join(file);
            fs::write(&path, fill(template, &values, &scenario.rule_prefixes()))
                .with_context(|| format!("write {}", path.display()))?;
            anyhow::Ok(path)
        };
        let at = weir::Addresses { listen: http1, ..weir::Addresses::free()? };
        let mut command = Command::new(match self {
            Self::Nginx => "nginx".into(),
            Self::Haproxy => "haproxy".into(),
            Self::Envoy => "envoy".into(),
            Self::Weir => weir::agent_program()?.into(),
            Self::Before => env::var_os(BEFORE).context(BEFORE)?,
        });
        match self {
            Self::Nginx => command.arg("-c").arg(put("nginx.conf", NGINX)?),
            Self::Haproxy => {
                put("rules.map", "# each rule\n{{path}} {{rule}}\n# end\n")?;
                command.args(["-db", "-f"]).arg(put("haproxy.cfg", HAPROXY)?)
            }
            Self::Envoy => {
                command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]);
                command.arg("-c").arg(put("envoy.yaml", ENVOY)?)
            }
            Self::Weir | Self::Before => {
                command.args(at.flags()).args(["--upstream", &upstream.to_string(), "--workers", "1"])
            }
        };
        let log = folder.join(format!("{}.log", self.name()));
        let process = Process::start(self.name(), &command, Cores::Own, &log, http1)?;
        if matches!(self, Self::Weir | Self::Before) {
            weir::configure(at.control, scenario)?;
        }
        Ok(Proxy { process, http1, http2 })
    }
}

fn values(
    scenario: Scenario,
    upstream: SocketAddr,
    http1: SocketAddr,
    http2: SocketAddr,
    folder: &Path,
) -> Vec<(&'static str, String)> {
    let many_keys = scenario.keys > 1;
    let zone = if many_keys { "256m" } else { "64k" };
    let haproxy_key = if scenario.rules == 1 {
        "http-request track-sc0 req.hdr(x-key)".to_owned()
    } else {
        format!(
            "http-request set-var(txn.rule) path,map_beg({}/rules.map)\n    \
             http-request track-sc0 req.hdr(x-key),concat(:,txn.rule) if {{ var(txn.rule) -m found }}",
            folder.display()
        )
    };
    let envoy_bucket = |tokens: u64, every: &str| {
        format!("{{ max_tokens: {tokens}, tokens_per_fill: {tokens}, fill_interval: {every} }}")
    };
    vec![
        ("files", FILES.to_string()),
        ("connections", CONNECTIONS.to_string()),
        ("folder", folder.display().to_string()),
        ("upstream", upstream.to_string()),
        ("upstream_ip", upstream.ip().to_string()),
        ("upstream_port", upstream.port().to_string()),
        ("listen", http1.to_string()),
        ("listen_port", http1.port().to_string()),
        ("listen_http2", http2.to_string()),
        ("zone", zone.to_owned()),
        // The lowest rate of nginx is one request per minute.
        ("nginx_rate", if scenario.refused { "1r/m".to_owned() } else { format!("{UNREACHED}r/s") }),
        ("nginx_burst", if scenario.refused { String::new() } else { format!(" burst={UNREACHED} nodelay") }),
        ("table", (scenario.keys + 100_000).to_string()),
        ("haproxy_key", haproxy_key),
        ("haproxy_period", if scenario.refused { "1d" } else { "1s" }.to_owned()),
        ("haproxy_limit", if scenario.refused { 1 } else { UNREACHED }.to_string()),
        ("envoy_bucket", if scenario.refused { envoy_bucket(1, "86400s") } else { envoy_bucket(UNREACHED, "1s") }),
        ("envoy_keys", scenario.keys.max(100).to_string()),
    ]
}

/// Reads the versions of the programs.
pub(super) fn versions() -> Vec<(String, String)> {
    let programs = [("nginx", "-v"), ("HAProxy", "-v"), ("Envoy", "--version"), ("wrk", "-v"), ("h2load", "--version")];
    let versions = programs.map(|(name, flag)| {
        let output = Command::new(name.to_ascii_lowercase()).arg(flag).output().ok();
        let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        (name.to_owned(), version_in(&String::from_utf8_lossy(&said)).unwrap_or("unknown").to_owned())
    });
    versions.into()
}

/// Finds the first version in a text, such as `1.22.1`, or `1.40.0` between slashes.
fn version_in(text: &str) -> Option<&str> {
    let mut words = text.split(|at: char| at.is_whitespace() || matches!(at, '/' | '[' | ']' | '-'));
    words.find(|word| {
        let mut parts = word.split('.');
        parts.clone().count() >= 2 && parts.all(|part| !part.is_empty() && part.bytes().all(|at| at.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::{super::scenarios::SCENARIOS, *};

    #[test]
    fn versions_are_found_in_what_programs_say() {
        assert_eq!(version_in("nginx version: nginx/1.22.1\n"), Some("1.22.1"));
        assert_eq!(version_in("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://x/"), Some("2.6.12"));
        assert_eq!(version_in("envoy  version: 9e55/1.40.0/Clean"), Some("1.40.0"));
        assert_eq!(version_in("wrk debian/4.1.0-3+b2 [epoll]"), Some("4.1.0"));
        assert_eq!(version_in("none"), None);
    }

    #[test]
    fn no_gap_is_left_in_any_configuration() {
        let at: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        for scenario in SCENARIOS {
            let values = values(scenario, at, at, at, Path::new("/tmp"));
            for template in [NGINX, HAPROXY, ENVOY] {
                let filled = fill(template, &values, &scenario.rule_prefixes());
                let gaps: Vec<_> =
                    filled.lines().filter(|line| line.contains("{{") && !line.trim_start().starts_with('#')).collect();
                assert!(gaps.is_empty(), "{}: {gaps:?}", scenario.name);
            }
        }
    }
}
