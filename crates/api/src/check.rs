//! Checks a document without a cluster: reports whether the apiserver would accept it, and the messages of a refusal.
//!
//! The checks have the order of the apiserver: unknown fields (which kubectl requests), nulls and defaults, the
//! structural schema, unique list keys, CEL rules. They use the schema that [`crate::crd`] installs, so rules and
//! messages have one source. As in the apiserver, unknown fields end the check, and CEL rules do not run while the
//! structure is wrong.
//!
//! [`review`] reports the same faults with messages for users. There, an unknown field does not end the check, and its
//! message contains the most similar known name. Each message quotes the value found.
//!
//! Only the name is checked of the metadata. The messages are those of Kubernetes 1.36; in messages of CEL rules, older
//! versions quote the type of a value instead of the value.

mod cel;
mod defaults;
mod metadata;
mod review;
mod structure;
mod unique;
mod unknown;

use std::{fmt, sync::LazyLock};

use kube::core::cel::{CompiledSchema, compile_schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::review::{review, review_store};
use crate::{Definition, RateLimitPolicy, RateLimitStore};

/// A fault in a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The path of the field, such as `spec.rules[0].limits[1].per`, or `<nil>` for the document as a whole.
    pub path: String,
    /// The apiserver's message.
    pub message: String,
    /// The kind of the fault, for programs.
    pub kind: FaultKind,
}

/// The kinds of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The schema does not have the field.
    UnknownField,
    /// The schema has a list of values for the field, and this value is not one of them.
    UnknownValue,
    /// A value is missing, or breaks another rule of the schema.
    Invalid,
}

impl Fault {
    fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), kind: FaultKind::Invalid }
    }

    fn unknown_field(path: String, message: String) -> Self {
        Self { path, message, kind: FaultKind::UnknownField }
    }

    fn unknown_value(path: &str, message: String) -> Self {
        Self { path: path.to_owned(), message, kind: FaultKind::UnknownValue }
    }

    fn invalid(path: impl Into<String>, value: impl fmt::Display, detail: impl fmt::Display) -> Self {
        Self::new(path, format!("Invalid value: {value}: {detail}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A structural fault, and whether CEL rules can still run.
enum Finding {
    Harmless(Fault),
    Blocking(Fault),
}

impl Finding {
    fn into_fault(self) -> Fault {
        let (Self::Harmless(fault) | Self::Blocking(fault)) = self;
        fault
    }
}

/// The path that the apiserver uses for faults of the document as a whole.
const WHOLE: &str = "<nil>";

/// A kind that can be checked.
struct Kind {
    name: &'static str,
    /// The kind in words.
    words: &'static str,
    schema: Value,
    /// The compiled CEL rules. They are compiled once, because compilation takes much longer than evaluation and there
    /// can be thousands of documents.
    rules: CompiledSchema,
}

impl Kind {
    fn new(name: &'static str, words: &'static str, definition: Definition) -> Self {
        let mut crd = serde_json::to_value(definition.value()).expect("a definition can be serialised");
        let schema =
            crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").expect("every version has a schema").take();
        let rules = compile_schema(&schema);
        Self { name, words, schema, rules }
    }
}

static POLICY: LazyLock<Kind> = LazyLock::new(|| Kind::new("RateLimitPolicy", "rate limit policy", Definition::Policy));
static STORE: LazyLock<Kind> = LazyLock::new(|| Kind::new("RateLimitStore", "rate limit store", Definition::Store));

/// Returns the kind of a document: a store if the document declares that kind, otherwise a policy.
fn kind_of(document: &Value) -> &'static Kind {
    if document.get("kind").and_then(Value::as_str) == Some(STORE.name) { &STORE } else { &POLICY }
}

/// Returns all faults of a document that should be a `RateLimitPolicy` or a `RateLimitStore`. The list is empty if a
/// cluster would accept the document.
#[must_use]
pub fn document(document: &Value) -> Vec<Fault> {
    let kind = kind_of(document);
    let stored = examine(document, kind, Rules::Checked).and_then(|stored| {
        if kind.name == STORE.name {
            typed::<RateLimitStore>(stored).map(drop)
        } else {
            typed::<RateLimitPolicy>(stored).map(drop)
        }
    });
    stored.err().unwrap_or_default()
}

/// Returns the policy that a cluster would store for this document, with defaults.
///
/// # Errors
///
/// All faults of the document, as [`document`] returns them.
pub fn parse(document: &Value) -> Result<RateLimitPolicy, Vec<Fault>> {
    typed(examine(document, &POLICY, Rules::Checked)?)
}

/// Returns the `RateLimitStore` that a cluster would store for this document, with defaults.
///
/// # Errors
///
/// All faults of the document, as [`document`] returns them.
pub fn parse_store(document: &Value) -> Result<RateLimitStore, Vec<Fault>> {
    typed(examine(document, &STORE, Rules::Checked)?)
}

/// Returns the policy in a document that a cluster has stored, perhaps under another definition. The CEL rules do not
/// run: they take most of the time, and a source of policies gets each policy after every change of its status.
///
/// # Errors
///
/// All faults of the document except those of CEL rules.
pub fn parse_stored(document: &Value) -> Result<RateLimitPolicy, Vec<Fault>> {
    typed(examine(document, &POLICY, Rules::Skipped)?)
}

/// Returns the `RateLimitStore` in a document that a cluster has stored, as [`parse_stored`] does.
///
/// # Errors
///
/// All faults of the document except those of CEL rules.
pub fn parse_stored_store(document: &Value) -> Result<RateLimitStore, Vec<Fault>> {
    typed(examine(document, &STORE, Rules::Skipped)?)
}

/// Whether the CEL rules run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    Checked,
    Skipped,
}

fn typed<T: DeserializeOwned>(stored: Value) -> Result<T, Vec<Fault>> {
    serde_json::from_value(stored).map_err(|error| vec![Fault::new(WHOLE, error.to_string())])
}

/// Returns the document as a cluster would store it.
fn examine(document: &Value, kind: &Kind, rules: Rules) -> Result<Value, Vec<Fault>> {
    let schema = &kind.schema;
    metadata::check_kind(document, kind)?;
    let faults = unknown::check(document, schema);
    if !faults.is_empty() {
        return Err(faults);
    }

    let mut object = document.clone();
    defaults::apply(&mut object, schema);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status"); // only the operator writes the status
    }

    let mut findings = metadata::check_name(&object);
    findings.extend(structure::check(&object, schema));
    let blocked = findings.iter().any(|finding| matches!(finding, Finding::Blocking(_)));
    let mut faults: Vec<_> = findings.into_iter().map(Finding::into_fault).collect();
    faults.extend(unique::check(&object, schema));
    if rules == Rules::Skipped {
        return if faults.is_empty() { Ok(object) } else { Err(faults) };
    }
    if blocked {
        faults.push(Fault::invalid(
            WHOLE,
            "null",
            "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
        ));
    } else {
        faults.extend(cel::check(&object, kind));
    }
    if faults.is_empty() { Ok(object) } else { Err(faults) }
}

/// Quotes a value as the apiserver does in messages: strings as in Go, other values as JSON.
fn quoted(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\x07' => quoted.push_str("\\a"),
            '\x08' => quoted.push_str("\\b"),
            '\t' => quoted.push_str("\\t"),
            '\n' => quoted.push_str("\\n"),
            '\x0b' => quoted.push_str("\\v"),
            '\x0c' => quoted.push_str("\\f"),
            '\r' => quoted.push_str("\\r"),
            '\0'..' ' | '\x7f' => quoted.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns `path.field`, or `field` at the root.
fn child(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}
