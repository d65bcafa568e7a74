//! Runs a fuzz target with random input for a given time, or until it fails. Each target is a test that `cargo test`
//! runs briefly. `weir-core` has a separate fuzz program, which is built in release mode. CONTRIBUTING.md lists the
//! parsers, their targets and their oracles.

use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct FuzzArgs {
    /// Target to fuzz
    #[arg(value_enum, required_unless_present = "list")]
    target: Option<Target>,
    /// List all targets with their descriptions
    #[arg(long)]
    list: bool,
    /// Seconds to run
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Run only this input, as a failure has printed it: in hex, or as a seed of `http` and `protocols`
    #[arg(long, value_name = "HEX|SEED")]
    replay: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Addresses in `X-Forwarded-For`
    Addresses,
    /// Pods of admission reviews
    Admissions,
    /// Lines of an agents file
    Agents,
    /// `Host`, `:authority` and targets that name a host
    Authorities,
    /// Certificates in PEM
    Certificates,
    /// Frames and messages of the channel between operator and agents
    Channel,
    /// Queries of the control API
    Controls,
    /// Cookies
    Cookies,
    /// Quotas, retunes and decisions of `weir-core`
    Core,
    /// Costs in a header
    Costs,
    /// Certificate requests of pods
    Csrs,
    /// Durations of policies
    Durations,
    /// Requests to `/v1/explain`, which are only described
    Explain,
    /// `X-Forwarded-*`, `Forwarded` and the headers of a connection
    Forwarded,
    /// Frames of WebSocket
    Frames,
    /// Hosts of requests, and patterns of hosts
    Hosts,
    /// Connections of HTTP/1.1 through both paths of the agent, which must behave the same
    Http,
    /// JSON Web Key Sets
    Jwks,
    /// Status files that an operator reads at its start
    Kept,
    /// Responses of Memcached
    Memcached,
    /// Messages between operator and agents, except statuses
    Messages,
    /// Normalized paths, globs and the index of rules
    Paths,
    /// YAML of policies
    Policies,
    /// Predicates in CEL
    Predicates,
    /// Requests of HTTP/2 and of HTTP/1.1, which must mean the same
    Protocols,
    /// Quantities of resources
    Quantities,
    /// Parameters of a query
    Queries,
    /// Questions to the rate limit service, in binary form and as JSON
    Questions,
    /// Regular expressions for paths
    Regexes,
    /// Snapshots, which are refused with a path or enforced without a panic
    Snapshot,
    /// Cache files and bootstrap snapshots
    Starts,
    /// Statuses of agents
    Statuses,
    /// JSON Web Tokens
    Tokens,
    /// Requests for WebSocket and other protocols
    Upgrades,
}

impl Target {
    /// The test of this target: its package, the kind of its binary, and its name.
    fn test(self) -> Option<[&'static str; 3]> {
        let lib = |package, test| Some([package, "--lib", test]);
        match self {
            Self::Core => None,
            Self::Http => Some(["weir-agent", "--test=agent", "any_connection_behaves_alike_on_both_paths"]),
            Self::Protocols => Some(["weir-agent", "--test=agent", "any_request_is_the_same_in_both_protocols"]),
            Self::Channel => lib("weir-channel", "any_bytes_are_frames_or_refused"),
            Self::Statuses => Some(["weir-wire", "--test=fuzz", "any_status_is_refused_or_read_as_it_was_written"]),
            Self::Messages => Some(["weir-wire", "--test=fuzz", "any_message_is_refused_or_read_as_it_was_written"]),
            Self::Snapshot => lib("weir-client", "any_snapshot_is_refused_or_enforced"),
            Self::Memcached => lib("weir-store", "any_bytes_are_responses_or_refused"),
            Self::Frames => lib("weir-agent", "any_frames_are_read_as_others_read_them"),
            Self::Questions => lib("weir-agent", "any_question_is_refused_or_answered_as_the_model_does"),
            Self::Authorities => lib("weir-agent", "any_authority_has_one_reading_or_is_refused"),
            Self::Forwarded => lib("weir-agent", "any_forwarded_field_is_continued_by_the_peer"),
            Self::Upgrades => lib("weir-agent", "any_upgrade_is_counted_or_passed_on_as_an_app_takes_it"),
            Self::Controls => {
                lib("weir-client", "any_query_of_the_control_api_has_the_values_of_its_definition_or_is_refused")
            }
            Self::Certificates => lib("weir-client", "any_certificate_is_refused_or_read_as_others_read_it"),
            Self::Starts => lib("weir-client", "any_start_is_with_the_first_snapshot_that_can_be_enforced"),
            Self::Paths => lib("weir-enforce", "any_path_and_glob_agree_with_the_definition"),
            Self::Addresses => lib("weir-enforce", "any_forwarded_for_names_the_client_that_the_definition_names"),
            Self::Cookies => lib("weir-enforce", "any_cookie_is_the_one_that_the_definition_finds"),
            Self::Costs => lib("weir-enforce", "any_told_cost_is_the_number_of_the_definition"),
            Self::Explain => lib("weir-enforce", "any_described_request_is_refused_or_explained_as_it_is_decided"),
            Self::Hosts => lib("weir-enforce", "any_host_and_pattern_agree_with_the_definition"),
            Self::Jwks => lib("weir-enforce", "any_key_set_is_refused_or_verifies_what_its_keys_signed"),
            Self::Queries => lib("weir-enforce", "any_query_has_the_parameters_that_others_read"),
            Self::Tokens => lib("weir-enforce", "any_token_has_the_claims_that_were_signed_or_none"),
            Self::Predicates => lib("weir-expressions", "any_predicate_is_refused_or_runs_within_its_budget"),
            Self::Regexes => lib("weir-expressions", "any_regex_is_refused_in_one_line_or_matches_by_its_definition"),
            Self::Durations => lib("weir-duration", "any_duration_is_the_sum_of_its_parts_or_none"),
            Self::Admissions => lib("weir-operator", "any_pod_is_left_alone_or_given_one_agent"),
            Self::Csrs => lib("weir-operator", "any_certificate_request_is_refused_or_is_what_its_key_signed"),
            Self::Kept => lib("weir-operator", "any_status_file_is_ignored_or_holds_what_an_operator_wrote"),
            Self::Agents => lib("weir-operator", "any_agent_is_called_at_the_url_that_was_written_or_refused"),
            Self::Policies => lib("weir-operator", "any_text_is_read_within_bounds_and_as_another_library_reads_it"),
            Self::Quantities => lib("weir-operator", "any_quantity_is_the_number_of_its_definition"),
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn about(self) -> String {
        self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }
}

pub(crate) fn run(workspace: &Workspace, args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    let Some(target) = args.target.filter(|_| !args.list) else {
        for target in Target::value_variants() {
            println!("{:14}{}", target.name(), target.about());
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root()).env("WEIR_FUZZ_SECONDS", args.seconds.to_string());
    if let Some(replay) = &args.replay {
        command.env("WEIR_FUZZ_REPLAY", replay);
    }
    if let Some([package, place, test]) = target.test() {
        // The tests run in a debug build, because debug builds detect overflows, and `cargo test` has built them
        // already.
        command.args(["test", "--quiet", "-p", package, place, test, "--", "--nocapture"]);
    } else {
        command.args(["run", "--quiet", "--release", "-p", "weir-core", "--example", "fuzz"]);
    }
    let status = command.status().context("run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use clap::CommandFactory as _;

    use super::*;
    use crate::workspace::files_below;

    /// Reads the rows of the table: the parser, its target and its oracle.
    fn rows(contributing: &str) -> Vec<[String; 3]> {
        let table = contributing.split("\n## Fuzzing\n").nth(1).unwrap_or_default();
        let table = table.split("\n## ").next().unwrap_or_default();
        let lines = table.lines().filter(|line| line.starts_with('|')).skip(2);
        let cells =
            |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        lines.map(|line| cells(line).try_into().unwrap_or_else(|cells| panic!("{cells:?} is not a row"))).collect()
    }

    #[test]
    fn the_table_names_every_target_once_and_no_other() {
        let workspace = Workspace::find().expect("the workspace");
        let text = fs::read_to_string(workspace.root().join("CONTRIBUTING.md")).expect("CONTRIBUTING.md");
        let rows = rows(&text);
        let mut named: Vec<String> = rows.iter().map(|[_, target, _]| target.trim_matches('`').to_owned()).collect();
        named.sort();
        let mut targets: Vec<String> = Target::value_variants().iter().map(|target| target.name()).collect();
        targets.sort();
        assert_eq!(named, targets);
        assert!(rows.iter().flatten().all(|cell| !cell.is_empty()), "{rows:?}");
        assert!(Target::value_variants().iter().all(|target| !target.about().is_empty()));
    }

    /// The test of every target exists, and every test that uses the harness belongs to a target.
    #[test]
    fn the_tests_that_exist_are_those_of_the_targets() {
        let workspace = Workspace::find().expect("the workspace");
        let mut found = BTreeSet::new();
        for folder in ["crates", "limiter-agent", "operator"] {
            collect(&workspace.root().join(folder), &mut found);
        }
        let targets = Target::value_variants().iter().filter(|target| target.test().is_some());
        let harness = targets.clone().filter(|target| !matches!(target, Target::Http | Target::Protocols));
        let named = harness.map(|target| {
            let [_, _, test] = target.test().expect("a test");
            (target.name(), test.to_owned())
        });
        assert_eq!(found, named.collect());
        for (target, file) in [
            (Target::Http, "limiter-agent/tests/agent/differential.rs"),
            (Target::Protocols, "limiter-agent/tests/agent/hostile.rs"),
        ] {
            let [_, _, test] = target.test().expect("a test");
            let text = fs::read_to_string(workspace.root().join(file)).expect(file);
            assert!(text.contains(&format!("async fn {test}()")), "{file} has no {test}");
            assert!(
                text.contains(&format!("cargo xtask fuzz {}", target.name())),
                "{file} does not contain the command that runs it"
            );
        }
    }

    /// Collects the names of the target and the test for every `Target::new` in a test file.
    fn collect(folder: &Path, found: &mut BTreeSet<(String, String)>) {
        for path in files_below(folder).expect("a folder") {
            let name = path.display().to_string();
            let is_target = name.ends_with("fuzz.rs") || name.contains("/fuzz/");
            let is_own =
                name.contains("crates/xtask/") || name.contains("crates/fuzz/") || name.contains("crates/core/");
            if !is_target || is_own || !name.ends_with(".rs") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a file");
            for (at, call) in text.match_indices("Target::new(\"") {
                let target = text[at + call.len()..].split('"').next().unwrap_or_default();
                let test =
                    text[..at].rsplit("\nfn ").next().and_then(|rest| rest.split('(').next()).unwrap_or_default();
                let before = text[..at].rsplit_once(&format!("\nfn {test}")).map_or("", |(before, _)| before);
                assert!(before.ends_with("#[test]"), "{name}: the function {test} is not a test");
                assert!(found.insert((target.to_owned(), test.to_owned())), "{name}: {target} exists twice");
            }
        }
    }

    #[test]
    fn a_target_or_the_list_is_asked_for() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: FuzzArgs,
        }
        let parse = |words: &[&str]| <Line as clap::Parser>::try_parse_from(words);
        assert!(parse(&["fuzz"]).is_err() && parse(&["fuzz", "nothing"]).is_err());
        assert!(parse(&["fuzz", "--list"]).is_ok_and(|line| line.args.list));
        assert!(parse(&["fuzz", "statuses"]).is_ok_and(|line| line.args.target == Some(Target::Statuses)));
        assert!(Line::command().render_long_help().to_string().contains("--list"));
    }
}
