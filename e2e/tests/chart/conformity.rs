//! Checks the objects of the charts with kubeconform and the schemas of the apiserver.
//!
//! Users run kubeconform in their pipelines. It checks objects by schemas only, and refuses unknown fields. It must
//! accept the objects that the apiserver accepts.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// The environment variable with the path of the program.
const PROGRAM: &str = "WEIR_KUBECONFORM";
/// The prefix of references to definitions in an OpenAPI document.
const DEFINITIONS: &str = "#/definitions/";

/// kubeconform, and a schema file for each kind of the apiserver.
pub(crate) struct Conformity {
    program: OsString,
    schemas: TempDir,
}

impl Conformity {
    /// Reads the schemas from the apiserver's /openapi/v2.
    pub(crate) fn read(openapi: &str) -> Result<Self> {
        let program = std::env::var_os(PROGRAM)
            .with_context(|| format!("{PROGRAM} is not set: cargo xtask test --only integration sets it"))?;
        let mut document: Value = serde_json::from_str(openapi).context("parse the apiserver's OpenAPI document")?;
        let Value::Object(mut definitions) = document["definitions"].take() else { anyhow::bail!("no definitions") };
        for (name, definition) in &mut definitions {
            close(name, definition);
        }
        let schemas = tempfile::tempdir()?;
        for (name, definition) in &definitions {
            for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
                let schema =
                    json!({"$ref": format!("{DEFINITIONS}{name}"), "definitions": closure(name, &definitions)});
                fs::write(schemas.path().join(file(kind)), schema.to_string())?;
            }
        }
        Ok(Self { program, schemas })
    }

    /// Checks these documents. The inner error is kubeconform's output.
    pub(crate) fn judge(&self, documents: &str) -> Result<std::result::Result<(), String>> {
        let location = self.schemas.path().join("{{ .ResourceKind }}{{ .KindSuffix }}.json");
        let mut child = Command::new(&self.program)
            .args(["-strict", "-summary", "-schema-location"])
            .arg(location)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("run kubeconform")?;
        child.stdin.take().context("the input of kubeconform is not piped")?.write_all(documents.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8(output.stdout)?;
        ensure!(said.contains("Summary: "), "kubeconform printed no summary: {said}");
        Ok(if output.status.success() { Ok(()) } else { Err(said) })
    }
}

/// The file name of a schema that kubeconform expects.
fn file(kind: &Value) -> String {
    let text = |field: &str| kind[field].as_str().unwrap_or_default().to_lowercase();
    let group = text("group");
    let group = group.split('.').next().filter(|group| !group.is_empty()).map(|group| format!("-{group}"));
    format!("{}{}-{}.json", text("kind"), group.unwrap_or_default(), text("version"))
}

/// Changes a definition so that it refuses unknown fields, and replaces Kubernetes' extensions of OpenAPI.
fn close(name: &str, schema: &mut Value) {
    if name.ends_with(".resource.Quantity") {
        *schema = json!({"oneOf": [{"type": "string"}, {"type": "number"}]});
        return;
    }
    match schema {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|format| format == "int-or-string")
                || fields.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
            {
                fields.remove("format");
                fields.remove("type");
                fields.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": "integer"}]));
            }
            let open = fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
            if fields.get("properties").is_some_and(|properties| !properties["type"].is_string()) && !open {
                fields.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            fields.values_mut().for_each(|value| close("", value));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| close("", value)),
        _ => {}
    }
}

/// Finds a definition and all definitions that it references.
fn closure<'a>(name: &'a str, definitions: &'a Map<String, Value>) -> BTreeMap<&'a str, &'a Value> {
    let mut found = BTreeMap::new();
    let mut next = vec![name];
    while let Some(name) = next.pop() {
        let Some(definition) = definitions.get(name) else { continue };
        if found.insert(name, definition).is_none() {
            references(definition, &mut next);
        }
    }
    found
}

fn references<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    match schema {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(DEFINITIONS));
            found.extend(name);
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
