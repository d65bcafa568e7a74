//! The source of the keys with which an agent verifies tokens: a ConfigMap in the pod's namespace, or a URL.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    container_fields::{is_key, is_subdomain},
    values::{AnnotationReader, read, seconds},
};
use crate::host;

pub(super) const ANNOTATIONS: [&str; 4] = [
    "weir.dev/agent-jwks-configmap", "weir.dev/agent-jwks-url", "weir.dev/agent-jwks-refresh",
    "weir.dev/agent-jwks-ca-configmap",
];

/// The names of the volumes, and their mount paths in the agent.
const KEYS: (&str, &str) = ("weir-jwks", "/var/run/weir.dev/jwks");
const AUTHORITIES: (&str, &str) = ("weir-jwks-ca", "/var/run/weir.dev/jwks-ca");
/// The default key in a ConfigMap.
const KEYS_FILE: &str = "jwks.json";
const AUTHORITIES_FILE: &str = "ca.crt";

const CONFIG_MAP: &str = "the name of a ConfigMap, or NAME/KEY";
const URL: &str = "an https URL without a user, and with a port from 1 to 65535 if it has one, such as \
                   https://issuer.example/.well-known/jwks.json";
const REFRESH: &str = "whole seconds or minutes such as 5m, from 1s to 999999999s";

/// A file in a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    name: String,
    key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// A ConfigMap; the kubelet updates the file.
    ConfigMap(File),
    /// A URL, fetched regularly.
    Url {
        url: String,
        /// The interval between two fetches, in seconds, or `None` for the agent's default.
        refresh: Option<i64>,
        /// The authorities that sign the server's certificate.
        authorities: File,
    },
}

/// The chart's JSON. An empty string means that a value is absent.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct KeysJson {
    config_map: String,
    url: String,
    refresh: String,
    ca_config_map: String,
}

impl KeysJson {
    /// Checks the values of the chart.
    ///
    /// # Errors
    ///
    /// A value is invalid. The message names it, and the values that are allowed.
    pub(super) fn read(self) -> Result<Option<Keys>, String> {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let file = |default| move |text: &str| file(text, default);
        let settings = KeySettings {
            config_map: read("jwks.configMap", given(self.config_map), CONFIG_MAP, file(KEYS_FILE))?,
            url: read("jwks.url", given(self.url), URL, url)?,
            refresh: read("jwks.refresh", given(self.refresh), REFRESH, seconds)?,
            authorities: read("jwks.caConfigMap", given(self.ca_config_map), CONFIG_MAP, file(AUTHORITIES_FILE))?,
        };
        settings.decide(["jwks.configMap", "jwks.url", "jwks.refresh", "jwks.caConfigMap"])
    }
}

struct KeySettings {
    config_map: Option<File>,
    url: Option<String>,
    refresh: Option<i64>,
    authorities: Option<File>,
}

impl KeySettings {
    fn decide(self, [config_map, url, refresh, ca]: [&str; 4]) -> Result<Option<Keys>, String> {
        match (self.config_map, self.url, self.authorities) {
            (Some(_), Some(_), _) => Err(format!("{config_map} and {url} both set the source of the keys: remove one")),
            (None, Some(_), None) => Err(format!("{url}: name in {ca} the authorities that sign its certificate")),
            (None, Some(url), Some(authorities)) => Ok(Some(Keys::Url { url, refresh: self.refresh, authorities })),
            (_, None, authorities) if self.refresh.is_some() || authorities.is_some() => {
                Err(format!("{refresh} and {ca} are valid only with {url}: remove them, or set it"))
            }
            (config_map, None, _) => Ok(config_map.map(Keys::ConfigMap)),
        }
    }
}

impl Keys {
    /// Returns the pod's settings merged with `default`. A source in the pod replaces the default source. If the
    /// default is a URL, the pod's URL inherits its refresh interval and authorities, unless the pod sets them.
    pub(super) fn overridden(
        default: Option<&Self>,
        annotations: &BTreeMap<String, String>,
        faults: &mut Vec<String>,
    ) -> Option<Self> {
        if !ANNOTATIONS.iter().any(|name| annotations.contains_key(*name)) {
            return default.cloned();
        }
        let before = faults.len();
        let mut of = AnnotationReader { annotations, faults };
        let mut settings = KeySettings {
            config_map: of.value(ANNOTATIONS[0], CONFIG_MAP, |text| file(text, KEYS_FILE)),
            url: of.value(ANNOTATIONS[1], URL, url),
            refresh: of.value(ANNOTATIONS[2], REFRESH, seconds),
            authorities: of.value(ANNOTATIONS[3], CONFIG_MAP, |text| file(text, AUTHORITIES_FILE)),
        };
        if let (None, Some(Self::Url { url, refresh, authorities })) = (&settings.config_map, default) {
            settings.url.get_or_insert_with(|| url.clone());
            settings.refresh = settings.refresh.or(*refresh);
            settings.authorities.get_or_insert_with(|| authorities.clone());
        }
        if faults.len() > before {
            return None;
        }
        let [config_map, url, refresh, ca] = ANNOTATIONS.map(|name| format!("annotation {name}"));
        settings.decide([&config_map, &url, &refresh, &ca]).map_err(|fault| faults.push(fault)).ok().flatten()
    }

    pub(super) fn args(&self) -> Vec<String> {
        match self {
            Self::ConfigMap(_) => vec![format!("--jwks={}/{KEYS_FILE}", KEYS.1)],
            Self::Url { url, refresh, .. } => {
                let mut args =
                    vec![format!("--jwks-url={url}"), format!("--jwks-ca={}/{AUTHORITIES_FILE}", AUTHORITIES.1)];
                args.extend(refresh.map(|seconds| format!("--jwks-refresh={seconds}s")));
                args
            }
        }
    }

    /// Returns the volume with the required file, and its mount.
    pub(super) fn volume(&self) -> (Value, Value) {
        let ((volume, folder), file, path) = match self {
            Self::ConfigMap(file) => (KEYS, file, KEYS_FILE),
            Self::Url { authorities, .. } => (AUTHORITIES, authorities, AUTHORITIES_FILE),
        };
        let items = json!([{"key": file.key, "path": path}]);
        (
            json!({"name": volume, "configMap": {"name": file.name, "items": items}}),
            json!({"name": volume, "mountPath": folder, "readOnly": true}),
        )
    }
}

fn file(text: &str, default: &str) -> Option<File> {
    let (name, key) = text.split_once('/').unwrap_or((text, default));
    (is_subdomain(name) && is_key(key)).then(|| File { name: name.to_owned(), key: key.to_owned() })
}

fn url(text: &str) -> Option<String> {
    host::of_https(&text.parse().ok()?).is_some().then(|| text.to_owned())
}
