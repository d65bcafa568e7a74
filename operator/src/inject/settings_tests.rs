use std::collections::BTreeSet;

use super::*;

fn overridden(settings: &str, annotations: &[(&str, &str)]) -> Result<Settings, String> {
    let annotations = annotations.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut faults = Vec::new();
    let settings = Settings::parse(settings).unwrap().overridden(&annotations, &mut faults);
    if faults.is_empty() { Ok(settings) } else { Err(faults.join("; ")) }
}

#[test]
fn without_settings_the_agents_own_defaults_apply() {
    let nothing = r#"{"logFormat": "", "logLevel": "", "drain": "", "env": [],
        "jwks": {"configMap": "", "url": "", "refresh": "", "caConfigMap": ""}}"#;
    assert_eq!(Settings::parse("{}").unwrap(), Settings::default());
    assert_eq!(Settings::parse(nothing).unwrap(), Settings::default());
    assert_eq!(overridden("{}", &[]).unwrap(), Settings::default());
    assert!(Settings::default().args().is_empty());
}

#[test]
fn an_invalid_chart_value_is_named_with_the_fix() {
    for (json, expected) in [
        (r#"{"logFormats": "json"}"#, "unknown field `logFormats`"),
        (r#"{"logFormat": "yaml"}"#, r#"logFormat is "yaml": it must be text or json"#),
        (r#"{"logLevel": "info,=="}"#, "it must be a level such as info"),
        (r#"{"maxConnections": 0}"#, "it must be a number of connections from 1"),
        (r#"{"drain": "500ms"}"#, r#"drain is "500ms": it must be whole seconds"#),
        (r#"{"drain": "0s"}"#, "from 1s to 999999999s"),
        (r#"{"drain": "300000h"}"#, "from 1s to 999999999s"),
        (
            r#"{"jwks": {"url": "https://a/keys", "caConfigMap": "a", "refresh": "1000000000s"}}"#,
            r#"jwks.refresh is "1000000000s": it must be whole seconds"#,
        ),
        (
            r#"{"jwks": {"configMap": "a/b/c"}}"#,
            "jwks.configMap is \"a/b/c\": it must be the name of a ConfigMap, or NAME/KEY",
        ),
        (r#"{"jwks": {"url": "http://a/keys", "caConfigMap": "a"}}"#, "it must be an https URL"),
        (r#"{"jwks": {"url": "https://ann@a/keys", "caConfigMap": "a"}}"#, "it must be an https URL without a user"),
        (r#"{"jwks": {"url": "https://a..b/keys", "caConfigMap": "a"}}"#, "it must be an https URL"),
        (r#"{"jwks": {"url": "https://a/keys"}}"#, "jwks.url: name in jwks.caConfigMap the authorities"),
        (r#"{"jwks": {"configMap": "a", "url": "https://a/keys"}}"#, "both set the source of the keys: remove one"),
        (r#"{"jwks": {"refresh": "5m"}}"#, "are valid only with jwks.url"),
        (r#"{"env": [{"name": "A", "valu": "b"}]}"#, "env: it must be a list of variables in JSON"),
        (r#"{"env": [{"name": "WEIR_LISTEN", "value": "b"}]}"#, "without WEIR_LISTEN, which Weir sets itself"),
        (r#"{"env": [{"name": "WEIR_DRAIN", "value": "b"}]}"#, "a setting of its own: weir.dev/agent-drain"),
        (
            r#"{"securityContext": {"runAsUsers": 1}}"#,
            "securityContext: it must be a container's securityContext in JSON",
        ),
    ] {
        let error = Settings::parse(json).unwrap_err();
        assert!(error.contains(expected), "{json}: {error}");
    }
}

#[test]
fn each_invalid_annotation_is_named_with_the_fix() {
    for (name, value, expected) in [
        ("weir.dev/agent-log-format", "", "it must be text or json"),
        ("weir.dev/agent-log-level", "", "it must be a level such as info"),
        ("weir.dev/agent-max-connections", "many", "it must be a number of connections from 1 to 4294967295"),
        ("weir.dev/agent-drain", "1 hour", "it must be whole seconds or minutes such as 20s"),
        ("weir.dev/agent-drain", "1000000000s", "from 1s to 999999999s"),
        ("weir.dev/agent-cache", "true", "it must be enabled or disabled"),
        ("weir.dev/agent-env", "A=b", "it must be a list of variables in JSON"),
        (
            "weir.dev/agent-env",
            r#"[{"name": "WEIR_UPSTREAM", "value": "x"}]"#,
            "without WEIR_UPSTREAM, which Weir sets itself",
        ),
        ("weir.dev/agent-security-context", "1000", "it must be a container's securityContext in JSON"),
        ("weir.dev/agent-security-context", r#"{"user": 1}"#, "it must be a container's securityContext in JSON"),
        ("weir.dev/agent-jwks-configmap", "../x", "it must be the name of a ConfigMap, or NAME/KEY"),
        ("weir.dev/agent-jwks-configmap", "My_Map", "it must be the name of a ConfigMap, or NAME/KEY"),
        ("weir.dev/agent-jwks-ca-configmap", "a/..b", "it must be the name of a ConfigMap, or NAME/KEY"),
        ("weir.dev/agent-jwks-url", "https://a..b/k", "it must be an https URL"),
        ("weir.dev/agent-jwks-url", "https://-/k", "it must be an https URL"),
        ("weir.dev/agent-jwks-url", "https://:443/k", "it must be an https URL"),
        ("weir.dev/agent-jwks-url", "https://a:99999/k", "with a port from 1 to 65535"),
        ("weir.dev/agent-jwks-url", "https://a:0/k", "it must be an https URL"),
        ("weir.dev/agent-jwks-url", "https://a:+80/k", "it must be an https URL"),
        ("weir.dev/agent-jwks-url", "https://ann@a/k", "without a user"),
        ("weir.dev/agent-jwks-url", "https://a@a/k", "without a user"),
        ("weir.dev/agent-jwks-refresh", "5m", "are valid only with annotation weir.dev/agent-jwks-url"),
    ] {
        let error = overridden("{}", &[(name, value)]).unwrap_err();
        assert!(error.contains(name) && error.contains(expected), "{name}: {error}");
    }
    let two = overridden("{}", &[("weir.dev/agent-cache", "no"), ("weir.dev/agent-log-format", "no")]).unwrap_err();
    assert!(two.contains("weir.dev/agent-cache") && two.contains("weir.dev/agent-log-format"), "{two}");
}

/// The apiserver would refuse the pod, or the agent would not start.
#[test]
fn a_value_that_the_apiserver_would_refuse_is_named() {
    let (env, context) = ("weir.dev/agent-env", "weir.dev/agent-security-context");
    for (name, value, expected) in [
        (env, r#"[{"name":""}]"#, r#""" is not a name"#),
        (env, r#"[{"name":"A=B","value":"x"}]"#, r#""A=B" is not a name"#),
        (env, r#"[{"name":"A","valueFrom":{}}]"#, "valueFrom of A: it must have one of configMapKeyRef"),
        (
            env,
            r#"[{"name":"A","value":"x","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]"#,
            "A has value and valueFrom: remove one",
        ),
        (env, r#"[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"bogus"}}}]"#, r#"fieldPath "bogus" is none of"#),
        (
            env,
            r#"[{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":""}}}]"#,
            "secretKeyRef needs a name and a key",
        ),
        (
            env,
            r#"[{"name":"A","valueFrom":{"configMapKeyRef":{"name":"My_Map","key":"k"}}}]"#,
            r#"configMapKeyRef has the name "My_Map", which no object can have"#,
        ),
        (
            env,
            r#"[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a..b","key":"k"}}}]"#,
            r#"secretKeyRef has the name "a..b""#,
        ),
        (
            env,
            r#"[{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"."}}}]"#,
            r#"secretKeyRef has the key ".", which no object can have"#,
        ),
        (env, r#"[{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"..k"}}}]"#, r#"the key "..k""#),
        (env, r#"[{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"a b"}}}]"#, r#"the key "a b""#),
        (
            env,
            r#"[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['']"}}}]"#,
            r#"fieldPath "metadata.labels['']" is none of"#,
        ),
        (
            env,
            r#"[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a/b/c']"}}}]"#,
            r#"fieldPath "metadata.labels['a/b/c']" is none of"#,
        ),
        (
            env,
            r#"[{"name":"A","valueFrom":{"fieldRef":{"apiVersion":"v2","fieldPath":"metadata.name"}}}]"#,
            r#"the apiVersion "v2" of fieldRef must be v1"#,
        ),
        (env, r#"[{"name":"WEIR_CONTROL_CERT","value":"x"}]"#, "without WEIR_CONTROL_CERT"),
        (env, r#"[{"name":"WEIR_STORE_SECRETS","value":"x"}]"#, "without WEIR_STORE_SECRETS"),
        (context, r#"{"privileged":true}"#, "privileged contradicts allowPrivilegeEscalation false"),
        (context, r#"{"runAsUser":-1}"#, "runAsUser is not a number from 0"),
        (context, r#"{"runAsUser":0}"#, "runAsUser 0 contradicts runAsNonRoot true"),
        (context, r#"{"seccompProfile":{"type":"Foo"}}"#, "the type of seccompProfile is RuntimeDefault"),
        (context, r#"{"appArmorProfile":{"type":"Localhost"}}"#, "the type of appArmorProfile is"),
        (
            context,
            r#"{"seccompProfile":{"type":"Localhost","localhostProfile":"/a.json"}}"#,
            "the localhostProfile of seccompProfile must be a relative path without ..",
        ),
        (
            context,
            r#"{"seccompProfile":{"type":"Localhost","localhostProfile":"a/../b.json"}}"#,
            "the localhostProfile of seccompProfile must be a relative path",
        ),
        (
            context,
            r#"{"appArmorProfile":{"type":"Localhost","localhostProfile":" a"}}"#,
            "the localhostProfile of appArmorProfile must not begin or end with a blank",
        ),
        (context, r#"{"procMount":"Foo"}"#, "procMount is Default"),
        ("weir.dev/agent-log-level", "bogus", "it must be a level such as info"),
        ("weir.dev/agent-log-level", "info,debgu", "it must be a level such as info"),
    ] {
        let error = overridden("{}", &[(name, value)]).unwrap_err();
        assert!(error.contains(name) && error.contains(expected), "{value}: {error}");
    }
    for (name, value) in [
        (env, r#"[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['app']"}}}]"#),
        (env, r#"[{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}]"#),
        (env, r#"[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.annotations['Example.com/A_b.c']"}}}]"#),
        (env, r#"[{"name":"A","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.labels['a.b/C']"}}}]"#),
        (env, r#"[{"name":"A","valueFrom":{"secretKeyRef":{"name":"a-1.b","key":".k_.-Z"}}}]"#),
        (context, r#"{"seccompProfile":{"type":"Localhost","localhostProfile":"a/b..c.json"}}"#),
        (context, r#"{"appArmorProfile":{"type":"Localhost","localhostProfile":"/a"}}"#),
        (context, r#"{"privileged":true,"allowPrivilegeEscalation":null}"#),
        (context, r#"{"runAsUser":0,"runAsNonRoot":false}"#),
        (context, r#"{"seccompProfile":null}"#),
        ("weir.dev/agent-log-level", "INFO,weir_client::control=debug,weir_http"),
    ] {
        assert_eq!(overridden("{}", &[(name, value)]).map(|_| ()), Ok(()), "{value}");
    }
}

#[test]
fn a_pods_own_source_of_keys_replaces_the_clusters() {
    let url = r#"{"jwks": {"url": "https://a/keys", "refresh": "1m", "caConfigMap": "roots"}}"#;
    let args = |annotations: &[(&str, &str)]| overridden(url, annotations).map(|settings| settings.args().join(" "));
    assert_eq!(
        args(&[]).unwrap(),
        "--jwks-url=https://a/keys --jwks-ca=/var/run/weir.dev/jwks-ca/ca.crt --jwks-refresh=60s"
    );
    let slower = args(&[("weir.dev/agent-jwks-refresh", "1h")]).unwrap();
    assert_eq!(slower, "--jwks-url=https://a/keys --jwks-ca=/var/run/weir.dev/jwks-ca/ca.crt --jwks-refresh=3600s");
    let other = args(&[("weir.dev/agent-jwks-url", "https://b/keys")]).unwrap();
    assert!(other.starts_with("--jwks-url=https://b/keys --jwks-ca="), "{other}");
    for good in ["https://[::1]:8443/k", "https://10.0.0.1/k", "https://a_b.c:65535/k", "https://a:/k"] {
        assert!(args(&[("weir.dev/agent-jwks-url", good)]).unwrap().contains(good), "{good}");
    }
    let dollars = args(&[("weir.dev/agent-jwks-url", "https://b/$(HOME)$$")]).unwrap();
    assert!(dollars.starts_with("--jwks-url=https://b/$$(HOME)$$$$ "), "the kubelet would change the URL: {dollars}");
    let file = args(&[("weir.dev/agent-jwks-configmap", "own")]).unwrap();
    assert_eq!(file, "--jwks=/var/run/weir.dev/jwks/jwks.json");
}

#[test]
fn the_chart_refuses_the_same_variables() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/weir/templates/requirements.yaml");
    let text = std::fs::read_to_string(file).expect(file);
    for name in RESERVED.into_iter().chain(SETTINGS.map(|(name, _)| name)) {
        assert!(text.contains(&format!("\"{name}\"")), "{name} is not in {file}");
    }
}

#[test]
fn every_variable_that_the_agent_reads_is_known() {
    let mut read = BTreeSet::new();
    for file in
        ["limiter-agent/src/config/flags.rs", "limiter-agent/src/proxy/settings.rs", "crates/client/src/options.rs"]
    {
        let text = std::fs::read_to_string(format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"))).expect(file);
        let names = text.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next());
        // Only the rate limit service reads the variables of its TLS.
        read.extend(names.filter(|name| !name.starts_with("WEIR_TLS_")).map(str::to_owned));
    }
    let known = RESERVED.into_iter().chain(SETTINGS.map(|(name, _)| name)).chain(OPTIONAL);
    assert_eq!(read, known.map(str::to_owned).collect());
}
