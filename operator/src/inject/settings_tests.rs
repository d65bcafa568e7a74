use std::collections::BTreeSet;

use super::*;
use crate::tables::rows;

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
    for [json, expected] in rows(
        r#"
        {"logFormats": "json"} | unknown field `logFormats`
        {"logFormat": "yaml"} | logFormat is "yaml": it must be text or json
        {"logLevel": "info,=="} | it must be a level such as info
        {"maxConnections": 0} | it must be a number of connections from 1
        {"drain": "500ms"} | drain is "500ms": it must be whole seconds
        {"drain": "0s"} | from 1s to 999999999s
        {"drain": "300000h"} | from 1s to 999999999s
        {"jwks": {"url": "https://a/keys", "caConfigMap": "a", "refresh": "1000000000s"}} | jwks.refresh is "1000000000s": it must be whole seconds
        {"jwks": {"configMap": "a/b/c"}} | jwks.configMap is "a/b/c": it must be the name of a ConfigMap, or NAME/KEY
        {"jwks": {"url": "http://a/keys", "caConfigMap": "a"}} | it must be an https URL
        {"jwks": {"url": "https://ann@a/keys", "caConfigMap": "a"}} | it must be an https URL without a user
        {"jwks": {"url": "https://a..b/keys", "caConfigMap": "a"}} | it must be an https URL
        {"jwks": {"url": "https://a/keys"}} | jwks.url: name in jwks.caConfigMap the authorities
        {"jwks": {"configMap": "a", "url": "https://a/keys"}} | both set the source of the keys: remove one
        {"jwks": {"refresh": "5m"}} | are valid only with jwks.url
        {"env": [{"name": "A", "valu": "b"}]} | env: it must be a list of variables in JSON
        {"env": [{"name": "WEIR_LISTEN", "value": "b"}]} | without WEIR_LISTEN, which Weir sets itself
        {"env": [{"name": "WEIR_DRAIN", "value": "b"}]} | a setting of its own: weir.dev/agent-drain
        {"securityContext": {"runAsUsers": 1}} | securityContext: it must be a container's securityContext in JSON
        "#,
    ) {
        let error = Settings::parse(json).unwrap_err();
        assert!(error.contains(expected), "{json}: {error}");
    }
}

#[test]
fn each_invalid_annotation_is_named_with_the_fix() {
    for [name, value, expected] in rows(
        r#"
        agent-log-format | | it must be text or json
        agent-log-level | | it must be a level such as info
        agent-log-level | bogus | it must be a level such as info
        agent-log-level | info,debgu | it must be a level such as info
        agent-max-connections | many | it must be a number of connections from 1 to 4294967295
        agent-drain | 1 hour | it must be whole seconds or minutes such as 20s
        agent-drain | 1000000000s | from 1s to 999999999s
        agent-cache | true | it must be enabled or disabled
        agent-env | A=b | it must be a list of variables in JSON
        agent-env | [{"name": "WEIR_UPSTREAM", "value": "x"}] | without WEIR_UPSTREAM, which Weir sets itself
        agent-security-context | 1000 | it must be a container's securityContext in JSON
        agent-security-context | {"user": 1} | it must be a container's securityContext in JSON
        agent-jwks-configmap | ../x | it must be the name of a ConfigMap, or NAME/KEY
        agent-jwks-configmap | My_Map | it must be the name of a ConfigMap, or NAME/KEY
        agent-jwks-ca-configmap | a/..b | it must be the name of a ConfigMap, or NAME/KEY
        agent-jwks-url | https://a..b/k | it must be an https URL
        agent-jwks-url | https://-/k | it must be an https URL
        agent-jwks-url | https://:443/k | it must be an https URL
        agent-jwks-url | https://a:99999/k | with a port from 1 to 65535
        agent-jwks-url | https://a:0/k | it must be an https URL
        agent-jwks-url | https://a:+80/k | it must be an https URL
        agent-jwks-url | https://ann@a/k | without a user
        agent-jwks-url | https://a@a/k | without a user
        agent-jwks-refresh | 5m | are valid only with annotation weir.dev/agent-jwks-url
        # The apiserver would refuse the pod, or the agent would not start.
        agent-env | [{"name":""}] | "" is not a name
        agent-env | [{"name":"A=B","value":"x"}] | "A=B" is not a name
        agent-env | [{"name":"A","valueFrom":{}}] | valueFrom of A: it must have one of configMapKeyRef
        agent-env | [{"name":"A","value":"x","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}] | A has value and valueFrom: remove one
        agent-env | [{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"bogus"}}}] | fieldPath "bogus" is none of
        agent-env | [{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":""}}}] | secretKeyRef needs a name and a key
        agent-env | [{"name":"A","valueFrom":{"configMapKeyRef":{"name":"My_Map","key":"k"}}}] | configMapKeyRef has the name "My_Map", which no object can have
        agent-env | [{"name":"A","valueFrom":{"secretKeyRef":{"name":"a..b","key":"k"}}}] | secretKeyRef has the name "a..b"
        agent-env | [{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"."}}}] | secretKeyRef has the key ".", which no object can have
        agent-env | [{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"..k"}}}] | the key "..k"
        agent-env | [{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"a b"}}}] | the key "a b"
        agent-env | [{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['']"}}}] | fieldPath "metadata.labels['']" is none of
        agent-env | [{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a/b/c']"}}}] | fieldPath "metadata.labels['a/b/c']" is none of
        agent-env | [{"name":"A","valueFrom":{"fieldRef":{"apiVersion":"v2","fieldPath":"metadata.name"}}}] | the apiVersion "v2" of fieldRef must be v1
        agent-env | [{"name":"WEIR_CONTROL_CERT","value":"x"}] | without WEIR_CONTROL_CERT
        agent-env | [{"name":"WEIR_STORE_SECRETS","value":"x"}] | without WEIR_STORE_SECRETS
        agent-security-context | {"privileged":true} | privileged contradicts allowPrivilegeEscalation false
        agent-security-context | {"runAsUser":-1} | runAsUser is not a number from 0
        agent-security-context | {"runAsUser":0} | runAsUser 0 contradicts runAsNonRoot true
        agent-security-context | {"seccompProfile":{"type":"Foo"}} | the type of seccompProfile is RuntimeDefault
        agent-security-context | {"appArmorProfile":{"type":"Localhost"}} | the type of appArmorProfile is
        agent-security-context | {"seccompProfile":{"type":"Localhost","localhostProfile":"/a.json"}} | the localhostProfile of seccompProfile must be a relative path without ..
        agent-security-context | {"seccompProfile":{"type":"Localhost","localhostProfile":"a/../b.json"}} | the localhostProfile of seccompProfile must be a relative path
        agent-security-context | {"appArmorProfile":{"type":"Localhost","localhostProfile":" a"}} | the localhostProfile of appArmorProfile must not begin or end with a blank
        agent-security-context | {"procMount":"Foo"} | procMount is Default
        "#,
    ) {
        let name = format!("weir.dev/{name}");
        let error = overridden("{}", &[(&name, value)]).unwrap_err();
        assert!(error.contains(&name) && error.contains(expected), "{name} {value}: {error}");
    }
    let two = overridden("{}", &[("weir.dev/agent-cache", "no"), ("weir.dev/agent-log-format", "no")]).unwrap_err();
    assert!(two.contains("weir.dev/agent-cache") && two.contains("weir.dev/agent-log-format"), "{two}");
}

#[test]
fn values_that_the_apiserver_accepts_are_accepted() {
    for [name, value] in rows(
        r#"
        agent-env | [{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['app']"}}}]
        agent-env | [{"name":"A","valueFrom":{"resourceFieldRef":{"resource":"limits.cpu"}}}]
        agent-env | [{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.annotations['Example.com/A_b.c']"}}}]
        agent-env | [{"name":"A","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.labels['a.b/C']"}}}]
        agent-env | [{"name":"A","valueFrom":{"secretKeyRef":{"name":"a-1.b","key":".k_.-Z"}}}]
        agent-security-context | {"seccompProfile":{"type":"Localhost","localhostProfile":"a/b..c.json"}}
        agent-security-context | {"appArmorProfile":{"type":"Localhost","localhostProfile":"/a"}}
        agent-security-context | {"privileged":true,"allowPrivilegeEscalation":null}
        agent-security-context | {"runAsUser":0,"runAsNonRoot":false}
        agent-security-context | {"seccompProfile":null}
        agent-log-level | INFO,weir_client::control=debug,weir_http
        "#,
    ) {
        let name = format!("weir.dev/{name}");
        assert_eq!(overridden("{}", &[(&name, value)]).map(|_| ()), Ok(()), "{name} {value}");
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
