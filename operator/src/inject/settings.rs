//! The settings of an agent except its ports and its policies: the cluster owner's defaults, and the pod's overrides.
//!
//! The same parsers read both, so a value means the same in the chart and in an annotation, and an error names the
//! invalid value and the fix. The values that Weir itself decides (ports, the app, the bootstrap snapshot, the
//! identity) cannot be set here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, SecurityContext};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::{
    container_fields,
    keys::{self, Keys, KeysJson},
    values::{AnnotationReader, read, seconds},
};

/// Variables that Weir sets, or that its flags override.
const RESERVED: [&str; 17] = [
    "WEIR_ADDRESSES_FILE", "WEIR_BOOTSTRAP", "WEIR_CONTROL", "WEIR_CONTROL_CERT", "WEIR_CONTROL_CLIENT_CA",
    "WEIR_CONTROL_CLIENT_NAME", "WEIR_CONTROL_KEY", "WEIR_CONTROL_PLAINTEXT", "WEIR_IDENTITY_CA",
    "WEIR_IDENTITY_TOKEN_FILE", "WEIR_IDENTITY_URL", "WEIR_LISTEN", "WEIR_SNAPSHOT_CACHE", "WEIR_STORE_SECRETS",
    "WEIR_TELEMETRY", "WEIR_UPSTREAM", "WEIR_WAIT_FOR_CONFIG",
];
/// Variables that have a separate setting, with its annotation.
const SETTINGS: [(&str, &str); 8] = [
    ("WEIR_DRAIN", ANNOTATIONS[3]),
    ("WEIR_JWKS", keys::ANNOTATIONS[0]),
    ("WEIR_JWKS_CA", keys::ANNOTATIONS[3]),
    ("WEIR_JWKS_REFRESH", keys::ANNOTATIONS[2]),
    ("WEIR_JWKS_URL", keys::ANNOTATIONS[1]),
    ("WEIR_LOG_FORMAT", ANNOTATIONS[0]),
    ("WEIR_LOG_LEVEL", ANNOTATIONS[1]),
    ("WEIR_MAX_CONNECTIONS", ANNOTATIONS[2]),
];
/// The other variables that an agent reads.
const OPTIONAL: [&str; 12] = [
    "WEIR_AMBIGUOUS_PATHS", "WEIR_HEADER_TIMEOUT", "WEIR_IDLE_TIMEOUT", "WEIR_IN_PLACE", "WEIR_LOG_KEYS",
    "WEIR_MAX_HEADERS", "WEIR_MAX_HEADER_BYTES", "WEIR_MAX_STREAMS", "WEIR_RESPONSE_TIMEOUT", "WEIR_STALL_TIMEOUT",
    "WEIR_UPSTREAM_HTTP2", "WEIR_WORKERS",
];

/// Returns the security context that the restricted Pod Security Standard requires.
fn restricted() -> Map<String, Value> {
    let context = json!({
        "runAsNonRoot": true,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    context.as_object().cloned().unwrap_or_default()
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) log_format: Option<String>,
    pub(super) log_level: Option<String>,
    pub(super) max_connections: Option<u32>,
    /// The duration of the drain in seconds; `None` to use as much as the pod's grace period allows.
    pub(super) drain: Option<i64>,
    /// True if the duration of the drain comes from the pod.
    pub(super) drain_is_own: bool,
    /// True to keep the last snapshot for the next start of the container.
    pub(super) cache: bool,
    pub(super) keys: Option<Keys>,
    /// Variables in the form of a container's `env`.
    pub(super) env: Vec<Value>,
    pub(super) security_context: Map<String, Value>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            log_format: None,
            log_level: None,
            max_connections: None,
            drain: None,
            drain_is_own: false,
            cache: true,
            keys: None,
            env: Vec::new(),
            security_context: restricted(),
        }
    }
}

/// The chart's JSON. An empty string means that a value is absent.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Json {
    log_format: String,
    log_level: String,
    max_connections: Option<Value>,
    drain: String,
    cache: Option<bool>,
    jwks: KeysJson,
    env: Value,
    security_context: Option<Value>,
}

impl Settings {
    /// Parses the chart's settings.
    ///
    /// # Errors
    ///
    /// A value is invalid. The message names it, and the values that are allowed.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let json: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let plain = Self::default();
        let security_context = match json.security_context {
            None | Some(Value::Null) => plain.security_context,
            Some(context) => security_context(&context, &Map::new()).map_err(|why| wrong("securityContext", &why))?,
        };
        let env = if json.env.is_null() { Vec::new() } else { env(&json.env).map_err(|why| wrong("env", &why))? };
        Ok(Self {
            log_format: read("logFormat", given(json.log_format), LOG_FORMAT, log_format)?,
            log_level: read("logLevel", given(json.log_level), LOG_LEVEL, log_level)?,
            max_connections: read(
                "maxConnections",
                json.max_connections.filter(|it| !it.is_null()).map(|it| it.to_string()),
                MAX_CONNECTIONS,
                max_connections,
            )?,
            drain: read("drain", given(json.drain), DRAIN, seconds)?,
            drain_is_own: false,
            cache: json.cache.unwrap_or(plain.cache),
            keys: json.jwks.read()?,
            env,
            security_context,
        })
    }

    /// Returns these settings with the overrides of the pod's annotations. Invalid values are added to `faults`.
    pub(super) fn overridden(&self, annotations: &BTreeMap<String, String>, faults: &mut Vec<String>) -> Self {
        let mut of = AnnotationReader { annotations, faults };
        let log_format = of.value(ANNOTATIONS[0], LOG_FORMAT, log_format);
        let log_level = of.value(ANNOTATIONS[1], LOG_LEVEL, log_level);
        let max_connections = of.value(ANNOTATIONS[2], MAX_CONNECTIONS, max_connections);
        let drain = of.value(ANNOTATIONS[3], DRAIN, seconds);
        let cache = of.value(ANNOTATIONS[4], "enabled or disabled", |text| match text {
            "enabled" => Some(true),
            "disabled" => Some(false),
            _ => None,
        });
        let own_env = of.fallible(ANNOTATIONS[5], |text| {
            let json = serde_json::from_str(text).map_err(|_| ENV.to_owned())?;
            env(&json)
        });
        let own_context = of.fallible(ANNOTATIONS[6], |text| {
            let json = serde_json::from_str(text).map_err(|_| SECURITY_CONTEXT.to_owned())?;
            security_context(&json, &self.security_context)
        });
        let keys = Keys::overridden(self.keys.as_ref(), annotations, of.faults);
        let mut env = self.env.clone();
        for variable in own_env.into_iter().flatten() {
            env.retain(|other| other["name"] != variable["name"]);
            env.push(variable);
        }
        let mut security_context = self.security_context.clone();
        security_context.extend(own_context.into_iter().flatten());
        security_context.retain(|_, value| !value.is_null());
        Self {
            log_format: log_format.or_else(|| self.log_format.clone()),
            log_level: log_level.or_else(|| self.log_level.clone()),
            max_connections: max_connections.or(self.max_connections),
            drain: drain.or(self.drain),
            drain_is_own: drain.is_some(),
            cache: cache.unwrap_or(self.cache),
            keys,
            env,
            security_context,
        }
    }

    /// Returns a warning for each variable whose name begins with `WEIR_` and that agents of this version do not read. The agent can be of
    /// another version, so this is no fault.
    pub(super) fn unknown_variables(&self) -> impl Iterator<Item = String> {
        let names = self.env.iter().filter_map(|variable| variable["name"].as_str());
        names.filter(|name| name.starts_with("WEIR_") && !OPTIONAL.contains(name)).map(|name| {
            format!(
                "variable {name} in annotation {}, or in the chart's injection.agent.env, is unknown to Weir; these are \
                 known: {}",
                ANNOTATIONS[5],
                OPTIONAL.join(", ")
            )
        })
    }

    pub(super) fn args(&self) -> Vec<String> {
        let mut args = Vec::new();
        args.extend(self.log_format.as_ref().map(|format| format!("--log-format={format}")));
        args.extend(self.log_level.as_ref().map(|level| format!("--log-level={level}")));
        args.extend(self.max_connections.map(|most| format!("--max-connections={most}")));
        args.extend(self.keys.iter().flat_map(Keys::args));
        // The kubelet expands $(NAME) in arguments, and replaces $$ by $.
        args.into_iter().map(|arg| arg.replace('$', "$$")).collect()
    }
}

/// The annotations for users, in the order in which they are read.
pub(super) const ANNOTATIONS: [&str; 7] = [
    "weir.dev/agent-log-format", "weir.dev/agent-log-level", "weir.dev/agent-max-connections", "weir.dev/agent-drain",
    "weir.dev/agent-cache", "weir.dev/agent-env", "weir.dev/agent-security-context",
];

const LOG_FORMAT: &str = "text or json";
const LOG_LEVEL: &str = "a level such as info, or levels by module such as info,weir_client::control=debug";
const MAX_CONNECTIONS: &str = "a number of connections from 1 to 4294967295";
const DRAIN: &str = "whole seconds or minutes such as 20s, from 1s to 999999999s";
const ENV: &str =
    "a list of variables in JSON, as in a container's env: [{\"name\": \"WEIR_IDLE_TIMEOUT\", \"value\": \"30s\"}]";
const SECURITY_CONTEXT: &str = "a container's securityContext in JSON, such as {\"runAsUser\": 1000}";

fn wrong(name: &str, expected: &str) -> String {
    format!("{name}: it must be {expected}")
}

fn log_format(text: &str) -> Option<String> {
    ["text", "json"].contains(&text).then(|| text.to_owned())
}

/// The agent and the chart have the same rule: a bare word that is no level would be a filter that shows nothing.
fn log_level(text: &str) -> Option<String> {
    let is_level = |part: &str| part.parse::<LevelFilter>().is_ok();
    let plain = text.split(',').all(|part| part.contains(['=', '_']) || part.contains("::") || is_level(part));
    text.parse::<Targets>().is_ok_and(|_| plain && !text.is_empty()).then(|| text.to_owned())
}

fn max_connections(text: &str) -> Option<u32> {
    text.parse().ok().filter(|most| *most > 0)
}

/// Parses a list of variables that Weir does not set in another way. The error describes the allowed values.
fn env(list: &Value) -> Result<Vec<Value>, String> {
    let typed: Vec<EnvVar> = serde_json::from_value(list.clone()).map_err(|_| ENV.to_owned())?;
    if serde_json::to_value(&typed).is_ok_and(|again| again != *list) {
        return Err(ENV.to_owned());
    }
    for variable in &typed {
        if let Some(fault) = container_fields::variable(variable) {
            return Err(format!("{ENV}; {fault}"));
        }
        let name = &variable.name;
        if RESERVED.contains(&name.as_str()) {
            return Err(format!("without {name}, which Weir sets itself"));
        }
        if let Some((_, setting)) = SETTINGS.iter().find(|(variable, _)| variable == name) {
            return Err(format!("without {name}, which has a setting of its own: {setting}"));
        }
    }
    Ok(list.as_array().cloned().unwrap_or_default())
}

/// Parses the fields of a container's security context that replace those of `defaults`. A null removes a field. The
/// error describes the allowed values.
fn security_context(value: &Value, defaults: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let given = value.as_object().ok_or_else(|| SECURITY_CONTEXT.to_owned())?;
    let set = |map: Map<String, Value>| map.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>();
    let own = Value::Object(set(given.clone()));
    // The typed form drops unknown fields, so a comparison finds them.
    let typed = serde_json::from_value::<SecurityContext>(own.clone()).ok();
    if typed.and_then(|typed| serde_json::to_value(typed).ok()) != Some(own) {
        return Err(SECURITY_CONTEXT.to_owned());
    }
    let mut merged = defaults.clone();
    merged.extend(given.clone());
    let merged = serde_json::from_value(Value::Object(set(merged))).map_err(|_| SECURITY_CONTEXT.to_owned())?;
    match container_fields::security_context(&merged) {
        None => Ok(given.clone()),
        Some(fault) => Err(format!("{SECURITY_CONTEXT}, that the apiserver accepts; {fault}")),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
