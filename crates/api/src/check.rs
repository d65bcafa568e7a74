//! Checks a document without a cluster: whether the apiserver would accept it and, if not, what it would answer.
//!
//! The stages are those of the apiserver, in its order. They use the schema that [`crate::crd`] installs, so rules and
//! messages have one source: unknown fields, as kubectl asks for; nulls and defaults; the structural schema; unique
//! list keys; CEL. As in the apiserver, unknown fields end the check, and CEL rules do not run while the structure is
//! wrong.
//!
//! [`review`] reports the same faults in words for people. An unknown field hides no other fault and comes with the
//! nearest known name, and each message quotes the value that was found.
//!
//! Of the metadata, only the name is checked. The texts are those of Kubernetes 1.36; in messages of CEL rules, older
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

use crate::{Definition, RateLimitPolicy, RateLimitStore};

pub use self::review::{review, review_store};

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Path of the field: `spec.rules[0].limits[1].per`. `<nil>` for the document as a whole.
    pub path: String,
    /// What is wrong, as the apiserver words it.
    pub message: String,
}

impl Fault {
    fn invalid(path: impl Into<String>, value: impl fmt::Display, detail: impl fmt::Display) -> Self {
        Self { path: path.into(), message: format!("Invalid value: {value}: {detail}") }
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

/// The path of faults that are about the document as a whole, as the apiserver writes it.
const WHOLE: &str = "<nil>";

/// A kind that can be checked.
struct Kind {
    name: &'static str,
    /// The kind in words.
    words: &'static str,
    schema: Value,
    /// Compiled once: that takes far longer than to run the rules, and there may be thousands of documents.
    rules: CompiledSchema,
}

impl Kind {
    fn new(name: &'static str, words: &'static str, definition: Definition) -> Self {
        let mut crd = serde_json::to_value(definition.value()).expect("a definition is plain data, which serialises");
        let schema =
            crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").expect("every version has a schema").take();
        let rules = compile_schema(&schema);
        Self { name, words, schema, rules }
    }
}

static POLICY: LazyLock<Kind> = LazyLock::new(|| Kind::new("RateLimitPolicy", "rate limit policy", Definition::Policy));
static STORE: LazyLock<Kind> = LazyLock::new(|| Kind::new("RateLimitStore", "rate limit store", Definition::Store));

/// The kind that a document wants to be: a policy, unless it says otherwise.
fn kind_of(document: &Value) -> &'static Kind {
    if document.get("kind").and_then(Value::as_str) == Some(STORE.name) { &STORE } else { &POLICY }
}

/// Every fault of a document that should be a `RateLimitPolicy` or a `RateLimitStore`. Empty if a cluster accepts it.
#[must_use]
pub fn document(document: &Value) -> Vec<Fault> {
    let kind = kind_of(document);
    let stored = examine(document, kind).and_then(|stored| {
        if kind.name == STORE.name {
            typed::<RateLimitStore>(stored).map(drop)
        } else {
            typed::<RateLimitPolicy>(stored).map(drop)
        }
    });
    stored.err().unwrap_or_default()
}

/// The policy that a cluster would store for this document, with its defaults.
///
/// # Errors
///
/// Every fault of the document, as [`document`] returns it.
pub fn parse(document: &Value) -> Result<RateLimitPolicy, Vec<Fault>> {
    typed(examine(document, &POLICY)?)
}

/// The store that a cluster would store for this document, with its defaults.
///
/// # Errors
///
/// Every fault of the document, as [`document`] returns it.
pub fn parse_store(document: &Value) -> Result<RateLimitStore, Vec<Fault>> {
    typed(examine(document, &STORE)?)
}

fn typed<T: DeserializeOwned>(stored: Value) -> Result<T, Vec<Fault>> {
    serde_json::from_value(stored).map_err(|error| vec![Fault { path: WHOLE.to_owned(), message: error.to_string() }])
}

/// The document as a cluster would store it.
fn examine(document: &Value, kind: &Kind) -> Result<Value, Vec<Fault>> {
    let schema = &kind.schema;
    metadata::check_kind(document, kind)?;
    let faults = unknown::check(document, schema);
    if !faults.is_empty() {
        return Err(faults);
    }

    let mut object = document.clone();
    defaults::apply(&mut object, schema);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status"); // only the operator writes it
    }

    let mut findings = metadata::check_name(&object);
    findings.extend(structure::check(&object, schema));
    let blocked = findings.iter().any(|finding| matches!(finding, Finding::Blocking(_)));
    let mut faults: Vec<_> = findings.into_iter().map(Finding::into_fault).collect();
    faults.extend(unique::check(&object, schema));
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

/// How the apiserver quotes a value in a message: strings as Go does, anything else as JSON.
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

/// `path.field`, or `field` at the root.
fn child(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}
