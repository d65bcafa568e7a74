//! Reads the annotations of a pod. An invalid value is an error that names the annotation and the fix. No value is
//! guessed.

use std::collections::BTreeMap;

use super::{
    keys,
    ports::{PROXY_PORT, TELEMETRY_PORT},
    quantity::{LEAST_MEMORY, Quantity, least_memory},
    settings::{self, Settings},
    values::{AnnotationReader, shown},
};
use crate::labels::{CONTROL_ANNOTATION, CONTROL_PORT_ANNOTATION, INJECT, NOT_INJECTED};

const PREFIX: &str = "weir.dev/";
const PORT: &str = "weir.dev/port";
const REDIRECT: &str = "weir.dev/redirect";
const NATIVE_SIDECAR: &str = "weir.dev/native-sidecar";
const IMAGE: &str = "weir.dev/agent-image";
const CPU_REQUEST: &str = "weir.dev/agent-cpu-request";
const CPU_LIMIT: &str = "weir.dev/agent-cpu-limit";
const MEMORY_REQUEST: &str = "weir.dev/agent-memory-request";
const MEMORY_LIMIT: &str = "weir.dev/agent-memory-limit";
/// The annotations for users, except those of the agent's settings.
const KNOWN: [&str; 11] = [
    INJECT, PORT, REDIRECT, NATIVE_SIDECAR, IMAGE, CPU_REQUEST, CPU_LIMIT, MEMORY_REQUEST, MEMORY_LIMIT,
    CONTROL_ANNOTATION, CONTROL_PORT_ANNOTATION,
];

/// A port of the app, as a user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortName {
    Name(String),
    Number(u16),
}

/// The requests and limits of the agent's container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Resources {
    pub(super) cpu: Bounds,
    pub(super) memory: Bounds,
    /// Ephemeral storage: set only where the namespace has a quota for it.
    pub(super) storage: Bounds,
}

/// The request and limit of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bounds {
    pub(super) request: Option<Quantity>,
    pub(super) limit: Option<Quantity>,
}

impl Bounds {
    /// Returns these bounds, completed from `defaults`. A default that contradicts an explicit value is adjusted.
    fn or(self, defaults: &Self) -> Self {
        let contradicts = |request: &Quantity, limit: &Quantity| request.exceeds(limit);
        match (self.request, self.limit) {
            (Some(request), None) => {
                let limit = defaults.limit.as_ref();
                let limit = limit.map(|limit| if contradicts(&request, limit) { &request } else { limit }.clone());
                Self { limit, request: Some(request) }
            }
            (None, Some(limit)) => {
                let request = defaults.request.as_ref();
                let request =
                    request.map(|request| if contradicts(request, &limit) { &limit } else { request }.clone());
                Self { request, limit: Some(limit) }
            }
            (None, None) => defaults.clone(),
            both => Self { request: both.0, limit: both.1 },
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodSettings {
    /// The port to guard; `None` to find it.
    pub(super) port: Option<PortName>,
    /// True to redirect requests for the port's number to the agent.
    pub(super) redirect: bool,
    /// True to make the agent an ordinary container, also where it could be a native sidecar.
    pub(super) ordinary: bool,
    pub(super) image: Option<String>,
    /// The port on which the operator reaches the agent.
    pub(super) control_port: Option<u16>,
    /// True if the agent's control port serves every client without TLS and proof of identity.
    pub(super) plaintext: bool,
    pub(super) resources: Resources,
    pub(super) settings: Settings,
}

impl PodSettings {
    /// Reads the annotations, and returns warnings about unknown names. `misnamed` returns the reason why the pod
    /// has no such port.
    ///
    /// # Errors
    ///
    /// Some values are invalid: one sentence for each.
    pub(super) fn read(
        annotations: &BTreeMap<String, String>,
        defaults: &Resources,
        settings: &Settings,
        misnamed: impl FnOnce(&PortName) -> Option<String>,
    ) -> Result<(Self, Vec<String>), String> {
        let mut faults = Vec::new();
        let mut of = AnnotationReader { annotations, faults: &mut faults };
        let port = of.value(PORT, "the name or the number (1 to 65535) of a container port", |text| {
            let number = text.bytes().all(|byte| byte.is_ascii_digit());
            if number { port_number(text).map(PortName::Number) } else { Some(PortName::Name(text.to_owned())) }
        });
        of.faults.extend(port.as_ref().and_then(misnamed));
        let redirect = of.value(REDIRECT, "enabled or disabled", |text| match text {
            "enabled" => Some(true),
            "disabled" => Some(false),
            _ => None,
        });
        let ordinary = of.value(NATIVE_SIDECAR, "disabled, or absent", |text| (text == "disabled").then_some(true));
        let image = of.value(IMAGE, "an image such as registry.example/weir/agent:0.1.0", |text| {
            (!text.is_empty() && !text.contains(char::is_whitespace)).then(|| text.to_owned())
        });
        let free = format!("a number from 1 to 65535, but not {PROXY_PORT} or {TELEMETRY_PORT}, which the agent uses");
        let control_port = of.value(CONTROL_PORT_ANNOTATION, &free, |text| {
            port_number(text).filter(|port| ![PROXY_PORT, TELEMETRY_PORT].contains(port))
        });
        let plaintext =
            of.value(CONTROL_ANNOTATION, "plaintext, or absent", |text| (text == "plaintext").then_some(true));
        let cpu = bounds(&mut of, CPU_REQUEST, CPU_LIMIT, "a quantity of CPU such as 100m");
        let memory = bounds(&mut of, MEMORY_REQUEST, MEMORY_LIMIT, "a quantity of memory such as 64Mi");
        if let Some(limit) = memory.limit.as_ref().filter(|limit| limit.value() < LEAST_MEMORY) {
            let least = least_memory();
            of.faults.push(format!(
                "annotation {MEMORY_LIMIT} is {:?}: it must be {least} or more, because the agent needs that",
                shown(limit.text())
            ));
        }
        let settings = settings.overridden(annotations, of.faults);
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        let storage = defaults.storage.clone();
        let resources = Resources { cpu: cpu.or(&defaults.cpu), memory: memory.or(&defaults.memory), storage };
        let known = [&KNOWN[..], &settings::ANNOTATIONS, &keys::ANNOTATIONS].concat();
        let unknown = |name: &&String| {
            name.starts_with(PREFIX) && !known.contains(&name.as_str()) && name.as_str() != NOT_INJECTED
        };
        let warnings = annotations
            .keys()
            .filter(unknown)
            .map(|name| format!("annotation {name} is unknown to Weir; these are known: {}", known.join(", ")))
            .chain(settings.unknown_variables());
        let warnings = warnings.collect();
        let wishes = Self {
            port,
            redirect: redirect.unwrap_or(false),
            ordinary: ordinary.unwrap_or(false),
            image,
            control_port,
            plaintext: plaintext.unwrap_or(false),
            resources,
            settings,
        };
        Ok((wishes, warnings))
    }
}

fn bounds(of: &mut AnnotationReader<'_, '_>, request: &str, limit: &str, expected: &str) -> Bounds {
    let bounds = Bounds {
        request: of.value(request, expected, |text| text.parse().ok()),
        limit: of.value(limit, expected, |text| text.parse().ok()),
    };
    if let Bounds { request: Some(asked), limit: Some(most) } = &bounds
        && asked.exceeds(most)
    {
        let (asked, most) = (asked.text(), most.text());
        of.faults
            .push(format!("annotation {request} is {asked:?}: it must not be more than {limit}, which is {most:?}"));
    }
    bounds
}

fn port_number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Option<Quantity> {
        Some(text.parse().unwrap())
    }

    fn defaults() -> Resources {
        Resources {
            cpu: Bounds { request: quantity("10m"), limit: None },
            memory: Bounds { request: quantity("48Mi"), limit: quantity("128Mi") },
            storage: Bounds::default(),
        }
    }

    fn read(pairs: &[(&str, &str)]) -> Result<(PodSettings, Vec<String>), String> {
        let annotations = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        PodSettings::read(&annotations, &defaults(), &Settings::default(), |_| None)
    }

    #[test]
    fn without_annotations_the_defaults_apply() {
        let expected = PodSettings {
            port: None,
            redirect: false,
            ordinary: false,
            image: None,
            control_port: None,
            plaintext: false,
            resources: defaults(),
            settings: Settings::default(),
        };
        assert_eq!(read(&[("other.example/port", "x")]), Ok((expected, Vec::new())));
    }

    #[test]
    fn every_annotation_is_read() {
        let (wishes, warnings) = read(&[
            ("weir.dev/port", "web"),
            ("weir.dev/redirect", "enabled"),
            ("weir.dev/agent-image", "a/b:c"),
            ("weir.dev/control-port", "9481"),
            ("weir.dev/agent-cpu-limit", "1"),
            ("weir.dev/agent-memory-request", "64Mi"),
        ])
        .unwrap();
        assert_eq!(warnings, [""; 0]);
        assert_eq!(wishes.port, Some(PortName::Name("web".to_owned())));
        assert_eq!((wishes.redirect, wishes.image.as_deref(), wishes.control_port), (true, Some("a/b:c"), Some(9481)));
        let Resources { cpu, memory, .. } = wishes.resources;
        assert_eq!(cpu, Bounds { request: quantity("10m"), limit: quantity("1") });
        assert_eq!(memory, Bounds { request: quantity("64Mi"), limit: quantity("128Mi") });
    }

    #[test]
    fn an_explicit_value_overrides_a_contradicting_default() {
        let memory = |pairs| read(pairs).unwrap().0.resources.memory;
        let more = memory(&[("weir.dev/agent-memory-request", "1Gi")]);
        assert_eq!(more, Bounds { request: quantity("1Gi"), limit: quantity("1Gi") });
        let less = memory(&[("weir.dev/agent-memory-limit", "32Mi")]);
        assert_eq!(less, Bounds { request: quantity("32Mi"), limit: quantity("32Mi") });
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_annotation_and_the_fix() {
        for (name, value, fix) in [
            ("weir.dev/port", "0", "it must be the name or the number (1 to 65535) of a container port"),
            ("weir.dev/port", "70000", "it must be the name or the number"),
            ("weir.dev/redirect", "true", "it must be enabled or disabled"),
            ("weir.dev/native-sidecar", "enabled", "it must be disabled, or absent"),
            ("weir.dev/agent-image", "", "it must be an image"),
            ("weir.dev/agent-image", "a b", "it must be an image"),
            ("weir.dev/control", "tls", "it must be plaintext, or absent"),
            ("weir.dev/control-port", "http", "it must be a number from 1 to 65535"),
            ("weir.dev/control-port", "0", "it must be a number from 1 to 65535"),
            ("weir.dev/control-port", "8482", "it must be a number from 1 to 65535, but not 8480 or 8482"),
            ("weir.dev/agent-cpu-request", "lots", "it must be a quantity of CPU such as 100m"),
            ("weir.dev/agent-memory-limit", "64MB", "it must be a quantity of memory such as 64Mi"),
            ("weir.dev/agent-memory-limit", "100m", "it must be 16Mi or more"),
            ("weir.dev/agent-memory-limit", "1", "it must be 16Mi or more"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("annotation {name} is {value:?}: {fix}")), "{error}");
        }
        for name in ["weir.dev/redirect", "weir.dev/agent-env"] {
            let long = read(&[(name, &"\u{e4}".repeat(70_000))]).unwrap_err();
            assert!(long.len() < 800 && long.contains("..."), "{} bytes", long.len());
        }
        let both = read(&[("weir.dev/port", "0"), ("weir.dev/redirect", "on")]).unwrap_err();
        assert!(both.contains("weir.dev/port") && both.contains("; annotation weir.dev/redirect"), "{both}");
        let crossed = [("weir.dev/agent-cpu-request", "2"), ("weir.dev/agent-cpu-limit", "100m")];
        let error = read(&crossed).unwrap_err();
        assert!(error.contains("it must not be more than weir.dev/agent-cpu-limit, which is \"100m\""), "{error}");
    }

    #[test]
    fn an_unknown_annotation_of_ours_is_a_warning() {
        let (_, warnings) = read(&[("weir.dev/ports", "http"), ("weir.dev/not-injected", "why")]).unwrap();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].starts_with("annotation weir.dev/ports is unknown to Weir; these are known: "));
    }
}
