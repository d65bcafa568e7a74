//! Checks the objects of the charts with kubeconform, with schemas from the apiserver.
//!
//! kubeconform judges as users' pipelines do: with schemas alone, and refusing unknown fields. It must accept what the
//! apiserver accepts.

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

/// The variable with the path of the program.
const PROGRAM: &str = "WEIR_KUBECONFORM";
/// The prefix of references to definitions.
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
            .with_context(|| format!("{PROGRAM} names no program: cargo xtask test --only integration makes one"))?;
        let mut document: Value = serde_json::from_str(openapi).context("the apiserver's OpenAPI document")?;
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

    /// Judges these documents. The error is kubeconform's output.
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
        child.stdin.take().context("it reads")?.write_all(documents.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8(output.stdout)?;
        ensure!(said.contains("Summary: "), "kubeconform judged nothing: {said}");
        Ok(if output.status.success() { Ok(()) } else { Err(said) })
    }
}

/// The file name that kubeconform looks for.
fn file(kind: &Value) -> String {
    let text = |field: &str| kind[field].as_str().unwrap_or_default().to_lowercase();
    let group = text("group");
    let group = group.split('.').next().filter(|group| !group.is_empty()).map(|group| format!("-{group}"));
    format!("{}{}-{}.json", text("kind"), group.unwrap_or_default(), text("version"))
}

/// Makes a definition refuse unknown fields, and replaces Kubernetes' extensions of OpenAPI.
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

/// A definition with all its references.
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
