//! The dependency rules: the allowed dependencies between the crates of the workspace, and the crates that they must
//! never link.
//!
//! The rules are tables in this file, so that reviewers see each change of the rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Context as _;
use cargo_metadata::{DependencyKind, Metadata, PackageId};

use super::Violation;

/// The crates of the workspace. Each crate is allowed to depend on these other crates of the workspace, in code and in
/// tests. Spaces separate the names.
const ALLOWED_DEPENDENCIES: &[(&str, &str)] = &[
    ("weir-fuzz", ""),
    ("weir-core", "weir-fuzz"),
    ("weir-tower", "weir-core weir-fuzz"),
    ("weir-wire", "weir-fuzz"),
    ("weir-channel", "weir-fuzz weir-wire"),
    ("weir-duration", "weir-fuzz"),
    ("weir-expressions", "weir-fuzz"),
    ("weir-api", "weir-duration"),
    ("weir-enforce", "weir-core weir-expressions weir-fuzz weir-store weir-tower weir-wire"),
    ("weir-seats", "weir-core weir-fuzz weir-wire"),
    ("weir-store", "weir-core weir-fuzz weir-seats weir-wire"),
    ("weir-client", "weir-channel weir-core weir-duration weir-enforce weir-fuzz weir-store weir-tower weir-wire"),
    (
        "weir-agent",
        "weir-channel weir-client weir-core weir-duration weir-enforce weir-fuzz weir-seats weir-tower weir-wire",
    ),
    ("weir-operator", "weir-api weir-channel weir-core weir-duration weir-expressions weir-fuzz weir-seats weir-wire"),
    ("weir-testbed", "weir-api"),
    ("weir-bench", "weir-api weir-channel weir-core weir-operator weir-store weir-testbed weir-tower weir-wire"),
    ("xtask", "weir-api"),
    ("weir-e2e", "weir-api weir-testbed weir-wire"),
    ("weir-testapp", ""),
];

/// The crates for tests. Only tests are allowed to depend on them.
const ONLY_FOR_TESTS: &[&str] = &["weir-fuzz"];

/// The crates that must not be linked, not even indirectly, and the reason.
const MUST_NOT_LINK: &[(&str, &[&str], &str)] = &[
    ("weir-agent", &["kube", "kube-core", "kube-client", "k8s-openapi"], "the agent never talks to the apiserver"),
    (
        "weir-client",
        &["kube", "kube-core", "kube-client", "k8s-openapi", "tonic", "tracing-subscriber"],
        "the library works in any program, without Kubernetes and without a proxy",
    ),
    (
        "weir-operator",
        &["weir-enforce", "weir-store", "weir-tower"],
        "the operator makes no decisions about requests: it counts seats for agents",
    ),
    ("weir-wire", &["kube", "kube-core", "k8s-openapi", "tokio"], "the wire format is plain data"),
    ("weir-channel", &["hyper", "kube", "rustls"], "the channel works on any stream"),
    ("weir-enforce", &["axum", "hyper", "kube", "tonic"], "the engine decides without a server and without a socket"),
    ("weir-seats", &["kube", "redis", "tokio"], "the arithmetic of seats has no I/O"),
    ("weir-store", &["axum", "hyper", "kube", "weir-tower"], "the crate is a client of stores, without a server"),
    // weir-tower links tokio for timers and their clock, because a program that waits already has a runtime.
    ("weir-tower", &["axum", "hyper", "kube", "tonic"], "the layers work in any program, without a server"),
];

/// The features that a crate must not enable, and the reason. This checks the manifests, because cargo unites the
/// features of all crates of a workspace.
const MUST_NOT_ENABLE: &[(&str, &str, &[&str], &str)] =
    &[("weir-api", "kube", &["client", "config", "runtime"], "the Kubernetes types contain no client")];

/// The packages of the workspace and their dependencies.
pub(super) struct Tree {
    members: Vec<Member>,
}

struct Member {
    name: String,
    manifest: String,
    direct: Vec<Direct>,
    /// All packages that are linked into the crate: its normal dependencies, and their dependencies.
    linked: BTreeSet<String>,
}

struct Direct {
    name: String,
    kind: DependencyKind,
    features: Vec<String>,
    /// True if this is a dependency only with `--cfg loom`.
    only_loom: bool,
}

impl Tree {
    pub(super) fn read(metadata: &Metadata) -> anyhow::Result<Self> {
        let resolve = metadata.resolve.as_ref().context("cargo metadata contains no dependency graph")?;
        let names: HashMap<&PackageId, &str> =
            metadata.packages.iter().map(|package| (&package.id, package.name.as_str())).collect();
        let below: HashMap<&PackageId, Vec<&PackageId>> = resolve
            .nodes
            .iter()
            .map(|node| {
                let normal = node.deps.iter().filter(|dependency| {
                    dependency
                        .dep_kinds
                        .iter()
                        .any(|kind| kind.kind == DependencyKind::Normal && !is_loom(kind.target.as_ref()))
                });
                (&node.id, normal.map(|dependency| &dependency.pkg).collect())
            })
            .collect();
        let members = metadata
            .workspace_packages()
            .into_iter()
            .map(|package| Member {
                name: package.name.to_string(),
                manifest: relative(metadata, package.manifest_path.as_str()),
                direct: package
                    .dependencies
                    .iter()
                    .map(|dependency| Direct {
                        name: dependency.name.clone(),
                        kind: dependency.kind,
                        features: dependency.features.clone(),
                        only_loom: is_loom(dependency.target.as_ref()),
                    })
                    .collect(),
                linked: closure(&package.id, &below).into_iter().map(|id| names[id].to_owned()).collect(),
            })
            .collect();
        Ok(Self { members })
    }
}

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let known: BTreeMap<_, Vec<_>> =
        ALLOWED_DEPENDENCIES.iter().map(|(name, allowed)| (*name, allowed.split_whitespace().collect())).collect();
    for member in &tree.members {
        let Some(allowed) = known.get(member.name.as_str()) else {
            violations.push(Violation::new(
                &member.manifest,
                format!("{} is not in the dependency rule", member.name),
                "add it to ALLOWED_DEPENDENCIES in crates/xtask/src/tidy/dependencies.rs",
            ));
            continue;
        };
        for direct in member.direct.iter().filter(|direct| known.contains_key(direct.name.as_str())) {
            if !allowed.contains(&direct.name.as_str()) {
                violations.push(Violation::new(
                    &member.manifest,
                    format!("{} must not depend on {}", member.name, direct.name),
                    format!("remove the dependency; {} may depend on {}", member.name, list(allowed)),
                ));
            } else if ONLY_FOR_TESTS.contains(&direct.name.as_str()) && direct.kind != DependencyKind::Development {
                violations.push(Violation::new(
                    &member.manifest,
                    format!("{} must depend on {} for its tests only", member.name, direct.name),
                    "move it to [dev-dependencies]",
                ));
            }
        }
    }
    violations.extend(core_has_no_dependencies(tree));
    violations.extend(must_not_link(tree));
    violations.extend(must_not_enable(tree));
    violations
}

fn core_has_no_dependencies(tree: &Tree) -> impl Iterator<Item = Violation> {
    let core = tree.members.iter().filter(|member| member.name == "weir-core");
    core.flat_map(|member| {
        let normal = member.direct.iter().filter(|direct| direct.kind != DependencyKind::Development);
        normal.filter(|direct| !direct.only_loom).map(|direct| {
            Violation::new(
                &member.manifest,
                format!("weir-core must have no dependencies, but it depends on {}", direct.name),
                "remove it, or move it to [dev-dependencies] or [target.'cfg(loom)'.dependencies]",
            )
        })
    })
}

fn must_not_link(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, forbidden, reason) in MUST_NOT_LINK {
        for member in tree.members.iter().filter(|member| member.name == *name) {
            for linked in forbidden.iter().filter(|linked| member.linked.contains(**linked)) {
                violations.push(Violation::new(
                    &member.manifest,
                    format!("{name} links {linked}, but {reason}"),
                    format!(
                        "find the path with `cargo tree -p {name} -e normal -i {linked}`, and remove a dependency on it"
                    ),
                ));
            }
        }
    }
    violations
}

fn must_not_enable(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, dependency, forbidden, reason) in MUST_NOT_ENABLE {
        for member in tree.members.iter().filter(|member| member.name == *name) {
            let direct = member.direct.iter().filter(|direct| direct.name == *dependency);
            let features = direct.flat_map(|direct| &direct.features);
            for feature in features.filter(|feature| forbidden.contains(&feature.as_str())) {
                violations.push(Violation::new(
                    &member.manifest,
                    format!("{name} enables feature {feature} of {dependency}, but {reason}"),
                    format!("remove {feature}; the crate that needs the feature enables it"),
                ));
            }
        }
    }
    violations
}

fn closure<'a>(start: &'a PackageId, below: &HashMap<&'a PackageId, Vec<&'a PackageId>>) -> BTreeSet<&'a PackageId> {
    let mut seen = BTreeSet::new();
    let mut rest = vec![start];
    while let Some(id) = rest.pop() {
        for next in below.get(id).into_iter().flatten() {
            if seen.insert(*next) {
                rest.push(next);
            }
        }
    }
    seen
}

fn is_loom(target: Option<&cargo_metadata::cargo_platform::Platform>) -> bool {
    target.is_some_and(|platform| platform.to_string() == "cfg(loom)")
}

fn relative(metadata: &Metadata, path: &str) -> String {
    path.strip_prefix(metadata.workspace_root.as_str()).map_or(path, |rest| rest.trim_start_matches('/')).to_owned()
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "no crate of the workspace".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(name: &str) -> Direct {
        Direct { name: name.to_owned(), kind: DependencyKind::Normal, features: Vec::new(), only_loom: false }
    }

    fn member(name: &str, direct: Vec<Direct>, linked: &[&str]) -> Member {
        let linked = linked.iter().map(ToString::to_string).collect();
        Member { name: name.to_owned(), manifest: format!("{name}/Cargo.toml"), direct, linked }
    }

    fn faults(members: Vec<Member>) -> Vec<String> {
        check(&Tree { members }).into_iter().map(|violation| violation.fault).collect()
    }

    #[test]
    fn what_is_allowed_passes() {
        let members = vec![
            member("weir-core", vec![], &[]),
            member("weir-tower", vec![direct("weir-core"), direct("http")], &["weir-core", "http"]),
            member("weir-agent", vec![direct("weir-wire")], &["weir-wire", "serde", "tokio"]),
        ];
        assert_eq!(faults(members), [""; 0]);
    }

    #[test]
    fn crates_that_must_not_know_each_other_are_named() {
        let members = vec![
            member("weir-core", vec![direct("weir-wire")], &[]),
            member("weir-operator", vec![direct("weir-agent")], &[]),
            member("weir-testapp", vec![direct("weir-wire")], &[]),
        ];
        assert_eq!(
            faults(members),
            [
                "weir-core must not depend on weir-wire",
                "weir-operator must not depend on weir-agent",
                "weir-testapp must not depend on weir-wire",
                "weir-core must have no dependencies, but it depends on weir-wire",
            ]
        );
    }

    #[test]
    fn the_rule_holds_for_tests_too() {
        let dependency = Direct { kind: DependencyKind::Development, ..direct("weir-store") };
        let members = vec![member("weir-operator", vec![dependency], &[])];
        assert_eq!(faults(members), ["weir-operator must not depend on weir-store"]);
    }

    #[test]
    fn a_crate_for_tests_is_in_no_program() {
        let dev = Direct { kind: DependencyKind::Development, ..direct("weir-fuzz") };
        assert_eq!(faults(vec![member("weir-wire", vec![dev], &[])]), [""; 0]);
        assert_eq!(
            faults(vec![member("weir-wire", vec![direct("weir-fuzz")], &[])]),
            ["weir-wire must depend on weir-fuzz for its tests only"]
        );
    }

    #[test]
    fn core_may_have_loom_and_dev_dependencies_only() {
        let loom = Direct { only_loom: true, ..direct("loom") };
        let dev = Direct { kind: DependencyKind::Development, ..direct("proptest") };
        let build = Direct { kind: DependencyKind::Build, ..direct("cc") };
        assert_eq!(
            faults(vec![member("weir-core", vec![loom, dev, build], &[])]),
            ["weir-core must have no dependencies, but it depends on cc"]
        );
    }

    #[test]
    fn a_forbidden_crate_is_found_however_deep() {
        let members = vec![
            member("weir-agent", vec![], &["axum", "k8s-openapi"]),
            member("weir-operator", vec![], &["weir-tower"]),
        ];
        assert_eq!(
            faults(members),
            [
                "weir-agent links k8s-openapi, but the agent never talks to the apiserver",
                "weir-operator links weir-tower, but the operator makes no decisions about requests: it counts seats for \
                 agents",
            ]
        );
    }

    #[test]
    fn a_client_among_the_types_is_found_by_its_feature() {
        let kube = Direct { features: vec!["derive".to_owned(), "client".to_owned()], ..direct("kube") };
        assert_eq!(
            faults(vec![member("weir-api", vec![kube], &["kube-client"])]),
            ["weir-api enables feature client of kube, but the Kubernetes types contain no client"]
        );
    }

    #[test]
    fn a_new_crate_must_be_in_the_rule() {
        assert_eq!(faults(vec![member("weir-new", vec![], &[])]), ["weir-new is not in the dependency rule"]);
    }

    #[test]
    fn the_closure_goes_all_the_way_down_and_ends_on_cycles() {
        let id = |name: &str| PackageId { repr: name.to_owned() };
        let (a, b, c) = (id("a"), id("b"), id("c"));
        let below = HashMap::from([(&a, vec![&b]), (&b, vec![&c, &a])]);
        assert_eq!(closure(&a, &below), BTreeSet::from([&a, &b, &c]));
    }
}
