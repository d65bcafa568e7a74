use serde_json::json;

use super::*;
use crate::inject::tokens::is_published;

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
fn a_path_is_published_with_a_service_or_a_url() {
    let service = |path: &str| json!({"service": {"name": "a", "namespace": "b", "path": path}});
    for (client, expected) in [
        (service("/p"), true),
        (service("/other"), false),
        (json!({"url": "https://127.0.0.1:9443/p"}), true),
        (json!({"url": "https://127.0.0.1:9443"}), false),
        (json!({"service": {"name": "a", "namespace": "b"}}), false),
    ] {
        assert_eq!(is_published(&webhook(std::slice::from_ref(&client)), "/p"), expected, "{client}");
    }
}

#[test]
fn a_secret_keeps_what_was_put_into_it() {
    let authorities = Authorities::none(LIFECYCLE).renewed(1_800_000_000).unwrap().unwrap();
    let empty: Secret = serde_json::from_value(json!({"metadata": {"name": "s", "resourceVersion": "7"}})).unwrap();
    assert_eq!(Tokens::of(&empty), Tokens::default());
    let first = Tokens::default().renewed(&webhook(&[]), 1_800_000_000).expect("there is no token");
    let tokens = first.renewed(&webhook(&[]), 1_900_000_000).expect("the token is old");
    let written = secret_with(&empty, &authorities, &tokens);
    assert_eq!(written["metadata"], json!({"name": "s", "resourceVersion": "7"}));
    let full: Secret = serde_json::from_value(written).unwrap();
    assert_eq!(Tokens::of(&full), tokens);
    assert_eq!(secret::authorities(LIFECYCLE, &full).0.certificates(), authorities.certificates());
}
