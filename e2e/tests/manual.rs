//! Sends every object of the manual and of the examples to a real apiserver, which must accept it. So no field is
//! misspelled.
//!
//! Two kinds of blocks are skipped: objects of other programs, which are marked `yaml foreign`, and parts of objects.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize as _;
use serde_json::{Value, json};
use weir_testbed::ControlPlane;

const PLACES: [&str; 4] = ["docs", "examples", "charts", "README.md"];

#[tokio::test]
async fn an_apiserver_takes_every_object_of_the_manual() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    control_plane.install_crd().await?;
    let files = tempfile::tempdir()?;
    let dry_run = |object: &Value| -> Result<Option<String>> {
        let file = files.path().join("object.json");
        fs::write(&file, object.to_string())?;
        let mut kubectl: Command = control_plane.kubectl();
        kubectl.args([
            "apply", "--namespace=default", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-",
        ]);
        let output = kubectl.stdin(Stdio::from(fs::File::open(&file)?)).output().context("run kubectl")?;
        Ok((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let mut objects = objects()?;
    ensure!(objects.len() > 25, "only {} objects were found", objects.len());
    for (place, object) in &objects {
        let fault = dry_run(object)?;
        ensure!(fault.is_none(), "{place}: {}", fault.unwrap_or_default());
    }
    // Checks that this test detects a misspelled field.
    let (_, first) = objects.first_mut().context("no object was found")?;
    first["spec"]["tragetRefs"] = json!([]);
    ensure!(dry_run(first)?.is_some_and(|fault| fault.contains("tragetRefs")), "a misspelled field was accepted");
    Ok(())
}

/// Finds every object, with its position in the pages. Policies come first.
fn objects() -> Result<Vec<(String, Value)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut objects = Vec::new();
    let mut places: Vec<PathBuf> = PLACES.iter().map(|place| root.join(place)).collect();
    while let Some(place) = places.pop() {
        let extension = place.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let name = place.display().to_string();
        if place.is_dir() {
            places.extend(fs::read_dir(&place)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?);
        } else if extension == "md" {
            for block in blocks(&fs::read_to_string(&place)?) {
                read(&name, &block, &mut objects)?;
            }
        } else if extension == "yaml" && name.contains("/examples/") {
            read(&name, &fs::read_to_string(&place)?, &mut objects)?;
        }
    }
    objects.sort_by_key(|(_, object)| object["kind"] != "RateLimitPolicy");
    Ok(objects)
}

/// Finds the blocks of a page that are marked exactly as `yaml`.
fn blocks(page: &str) -> Vec<String> {
    let parts = page.split("\n```").enumerate().filter(|(index, _)| index % 2 == 1);
    parts.filter_map(|(_, block)| block.strip_prefix("yaml\n")).map(str::to_owned).collect()
}

fn read(place: &str, text: &str, objects: &mut Vec<(String, Value)>) -> Result<()> {
    for document in serde_yaml::Deserializer::from_str(text) {
        let object = Value::deserialize(document).with_context(|| place.to_owned())?;
        objects.push((place.to_owned(), object));
    }
    Ok(())
}
