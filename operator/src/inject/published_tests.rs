use serde_json::json;

use super::*;

fn webhook(clients: &[Value]) -> MutatingWebhookConfiguration {
    let hooks: Vec<Value> = (clients.iter().enumerate())
        .map(|(i, client)| {
            json!({"name": format!("{i}.weir.dev"), "clientConfig": client, "sideEffects": "None",
                "admissionReviewVersions": ["v1"]})
        })
        .collect();
    serde_json::from_value(json!({"metadata": {"name": "weir"}, "webhooks": hooks})).unwrap()
}

#[test]
fn names_are_the_hosts_that_the_apiserver_calls() {
    let service = json!({"service": {"name": "hook", "namespace": "weir-system"}});
    for (clients, expected) in [
        (vec![service.clone(), service.clone()], vec!["hook.weir-system.svc"]),
        (vec![json!({"url": "https://127.0.0.1:9443/x"}), service], vec!["127.0.0.1", "hook.weir-system.svc"]),
        (vec![json!({"url": "https://[::1]:9443/"})], vec!["::1"]),
        (vec![json!({"url": "://"})], vec![]),
        (vec![], vec![]),
    ] {
        assert_eq!(names(&webhook(&clients)), expected, "{clients:?}");
    }
}

#[test]
fn only_what_differs_is_applied() {
    let bundle = STANDARD.encode("PEM");
    let of_service = |path: &str, bundle: &str| json!({"service": {"name": "a", "namespace": "b", "path": path}, "caBundle": bundle});
    assert_eq!(registered(&webhook(&[of_service("/p", &bundle)]), Some("PEM"), "/p"), None);
    let url = json!({"url": "https://127.0.0.1:9443/p", "caBundle": bundle});
    assert_eq!(registered(&webhook(std::slice::from_ref(&url)), Some("PEM"), "/p"), None);
    for (clients, expected) in [
        (json!({"service": {"name": "a", "namespace": "b"}}), json!({"caBundle": bundle, "service": {"path": "/p"}})),
        (of_service("/old", &bundle), json!({"caBundle": bundle, "service": {"path": "/p"}})),
        (of_service("/p", &STANDARD.encode("old")), json!({"caBundle": bundle, "service": {"path": "/p"}})),
        (json!({"url": "https://127.0.0.1:9443"}), json!({"caBundle": bundle, "url": "https://127.0.0.1:9443/p"})),
    ] {
        let patch = registered(&webhook(&[clients, url.clone()]), Some("PEM"), "/p").expect("it must change");
        // The patch must contain all fields, because server-side apply removes missing ones.
        assert_eq!(patch["webhooks"][0], json!({"name": "0.weir.dev", "clientConfig": expected}));
        assert_eq!(patch["webhooks"][1]["clientConfig"], url);
        assert_eq!(patch["metadata"], json!({"name": "weir"}));
    }
}

#[test]
fn an_external_issuer_keeps_its_ca_bundle() {
    let url = |path: &str, bundle: &str| json!({"url": format!("https://127.0.0.1:9443{path}"), "caBundle": STANDARD.encode(bundle)});
    assert_eq!(registered(&webhook(&[url("/p", "theirs")]), None, "/p"), None);
    let patch = registered(&webhook(&[url("/old", "theirs")]), None, "/p").expect("the configuration must change");
    assert_eq!(patch["webhooks"][0]["clientConfig"], json!({"url": "https://127.0.0.1:9443/p"}));
}

#[test]
fn a_secret_keeps_what_was_put_into_it() {
    let authorities = Authorities::none(LIFECYCLE).renewed(1_800_000_000).unwrap().unwrap();
    let empty: Secret = serde_json::from_value(json!({"metadata": {"name": "s", "resourceVersion": "7"}})).unwrap();
    assert_eq!(token(&empty), "");
    let written = secret_with(&empty, &authorities, "secret");
    assert_eq!(written["metadata"], json!({"name": "s", "resourceVersion": "7"}));
    let full: Secret = serde_json::from_value(written).unwrap();
    assert_eq!(token(&full), "secret");
    assert_eq!(secret::authorities(LIFECYCLE, &full).0.certificates(), authorities.certificates());
    assert_ne!(fresh_token(), fresh_token());
    assert_eq!(fresh_token().len(), 64);
}

/// Such a token is replaced: the apiserver would refuse the path, or call another one.
#[test]
fn a_token_that_cannot_be_in_a_path_counts_as_none() {
    for (text, expected) in [("abc123", "abc123"), ("abc123\n", ""), ("a b/c?d#e", ""), ("", "")] {
        let secret = serde_json::from_value(json!({"data": {"token": STANDARD.encode(text)}})).unwrap();
        assert_eq!(token(&secret), expected, "{text:?}");
    }
}
