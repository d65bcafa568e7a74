//! `cargo xtask sbom`: writes the components of each program of Weir as a CycloneDX file, from cargo's metadata.
//!
//! A file lists only packages that are linked into the program, without those for tests and builds. The same lock file
//! always gives the same bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context as _, ensure};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde_json::{Value, json};

use crate::workspace::Workspace;

/// The programs in images.
const PROGRAMS: [&str; 2] = ["weir-operator", "weir-agent"];
/// The platform of the images.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

#[derive(clap::Args)]
pub(crate) struct SbomArgs {
    /// Folder for the files PROGRAM.cdx.json
    #[arg(long, value_name = "DIR", default_value = "target/sbom")]
    out: PathBuf,
}

pub(crate) fn run(workspace: &Workspace, args: &SbomArgs) -> anyhow::Result<ExitCode> {
    let root = workspace.root();
    let metadata = MetadataCommand::new()
        .current_dir(root)
        .other_options(["--locked", "--filter-platform", PLATFORM].map(str::to_owned).to_vec())
        .exec()
        .context("cargo metadata")?;
    let checksums = checksums(&fs::read_to_string(root.join("Cargo.lock")).context("read Cargo.lock")?);
    let out = root.join(&args.out);
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    for program in PROGRAMS {
        let bill = bill(&metadata, &checksums, program)?;
        let components = bill["components"].as_array().map_or(0, Vec::len);
        let file = out.join(format!("{program}.cdx.json"));
        fs::write(&file, serde_json::to_string_pretty(&bill)? + "\n")
            .with_context(|| format!("write {}", file.display()))?;
        println!("{}: {components} components", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates the CycloneDX 1.5 document of a program.
fn bill(metadata: &Metadata, checksums: &BTreeMap<(String, String), String>, program: &str) -> anyhow::Result<Value> {
    let packages: BTreeMap<&PackageId, &Package> =
        metadata.packages.iter().map(|package| (&package.id, package)).collect();
    let resolve = metadata.resolve.as_ref().context("cargo metadata contains no dependency graph")?;
    let linked: BTreeMap<&PackageId, Vec<&PackageId>> = resolve
        .nodes
        .iter()
        .map(|node| {
            let normal =
                node.deps.iter().filter(|it| it.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal));
            (&node.id, normal.map(|it| &it.pkg).collect())
        })
        .collect();
    let root = metadata.packages.iter().find(|package| package.name.as_str() == program).context("no such program")?;
    let (mut seen, mut todo) = (BTreeSet::new(), vec![&root.id]);
    while let Some(id) = todo.pop() {
        if seen.insert(id) {
            todo.extend(&linked[id]);
        }
    }
    let component = |id: &&PackageId| component(packages[*id], checksums);
    let components: Vec<Value> = seen.iter().filter(|id| **id != &root.id).map(component).collect();
    ensure!(components.len() > 10, "{program} consists of only {} packages", components.len());
    let dependencies = seen.iter().map(|id| {
        let mut below: Vec<String> = linked[*id].iter().map(|id| purl(packages[*id])).collect();
        below.sort();
        json!({"ref": purl(packages[*id]), "dependsOn": below})
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(&&root.id)},
        "components": components,
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

fn component(package: &Package, checksums: &BTreeMap<(String, String), String>) -> Value {
    let mut component = json!({
        "type": if package.source.is_none() && package.targets.iter().any(cargo_metadata::Target::is_bin) { "application" } else { "library" },
        "bom-ref": purl(package),
        "name": package.name,
        "version": package.version,
        "purl": purl(package),
    });
    if let Some(license) = &package.license {
        // Some packages use an old form, in which a slash means a choice.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(package.name.to_string(), package.version.to_string())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// The package URL (purl) of a package.
fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

/// Reads the checksum of each registry package from a lock file.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut checksums = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
            line.map(|line| line.trim_end_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(checksum)) = (field("name"), field("version"), field("checksum")) {
            checksums.insert((name, version), checksum);
        }
    }
    checksums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_lists_what_is_linked_with_its_hash_and_licence() {
        let workspace = Workspace::find().expect("the workspace");
        let lock = fs::read_to_string(workspace.root().join("Cargo.lock")).expect("a lock file");
        let bill = bill(&workspace.metadata, &checksums(&lock), "weir-agent").expect("a program");
        let components = bill["components"].as_array().expect("a list");
        let named = |name: &str| components.iter().find(|component| component["name"] == name);
        let hyper = named("hyper").expect("the agent links hyper");
        assert_eq!(hyper["licenses"][0]["expression"], "MIT");
        assert_eq!(hyper["hashes"][0]["content"].as_str().map(str::len), Some(64));
        assert!(
            named("weir-core").is_some_and(|core| core.get("hashes").is_none()),
            "a workspace package has a checksum"
        );
        assert!(named("kube").is_none() && named("proptest").is_none(), "a package of the operator or of tests");
        let known: std::collections::HashSet<_> = components.iter().map(|component| &component["bom-ref"]).collect();
        assert_eq!(known.len(), components.len(), "a component exists twice");
        for dependency in bill["dependencies"].as_array().expect("a list") {
            for below in dependency["dependsOn"].as_array().expect("a list") {
                assert!(known.contains(below), "{below} is not a component");
            }
        }
    }

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        let expected = BTreeMap::from([(("a".to_owned(), "1.0.0".to_owned()), "ab".to_owned())]);
        assert_eq!(checksums(lock), expected);
    }
}
