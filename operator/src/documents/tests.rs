use super::*;

pub(crate) fn policy(name: &str, requests: &str) -> String {
    format!(
        "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: web}}}}\n  rules:\n  - name: all\n    limits:\n    \
         - {{name: a, requests: {requests}, per: 1s}}\n"
    )
}

pub(crate) fn store(name: &str, server: &str) -> String {
    format!(
        "apiVersion: weir.dev/v1alpha1\nkind: RateLimitStore\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{memcached: {{servers: [\"{server}\"]}}}}\n"
    )
}

fn findings(text: &str) -> Vec<String> {
    let broken = read(text).policies().err().unwrap_or_default();
    broken.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn policies_in_a_list_are_found() {
    let item = policy("p", "0").replace('\n', "\n  ");
    let text = format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n- kind: ConfigMap\n  apiVersion: v1\n");
    let found = findings(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("12:19: items[0].spec.rules[0].limits[0].requests: "), "{found:?}");
    let names = |text: &str| read(text).policies().unwrap().into_keys().collect::<Vec<_>>();
    assert_eq!(names(&text.replace("requests: 0", "requests: 5")), [ObjectKey::new("shop", "p")]);
}

#[test]
fn a_wrong_type_in_metadata_is_found_at_its_line() {
    let text = policy("p", "5").replace("metadata: {", "metadata: {labels: {\n  version: 5}, ");
    let found = findings(&text);
    assert_eq!(found, ["4:3: metadata.labels.version: invalid type: integer `5`, expected a string"]);
    assert_eq!(findings(&policy("5", "5")), ["3:12: metadata.name: must be text, not 5"]);
}

#[test]
fn other_documents_of_a_broken_text_are_still_checked() {
    let text = format!("{}---\na: [\n---\n{}", policy("p", "0"), policy("q", "-1"));
    let found = findings(&text);
    let starts = ["9:17: spec.rules[0].limits[0].requests", "1", "21:17: spec.rules[0].limits[0].requests"];
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().zip(starts).all(|(found, start)| found.starts_with(start)), "{found:?}");
    let named: Vec<_> = read(&text).policies().unwrap_err().named.into_iter().collect();
    assert_eq!(named, [ObjectKey::new("shop", "p"), ObjectKey::new("shop", "q")]);
}

#[test]
fn a_duplicate_name_is_reported_at_the_second_policy() {
    let text = format!("{}---\n{}", policy("p", "5"), policy("p", "5"));
    assert_eq!(findings(&text), ["13:12: metadata.name: policy shop/p occurs twice: give one of them another name"]);
}

#[test]
fn only_a_text_without_documents_is_empty() {
    for (text, empty) in [
        ("", true),
        ("\n\n", true),
        ("# a\n---\n# b\n", true),
        ("kind: A\napiVersion: v1\n", false),
        ("a", false),
        ("[", false),
    ] {
        assert_eq!(read(text).is_empty(), empty, "{text:?}");
    }
}

#[test]
fn stores_are_found_next_to_policies_and_checked_like_them() {
    let good = format!("{}---\n{}", store("s", "m:1"), policy("p", "5"));
    let text = read(&good);
    assert_eq!(text.stores.keys().collect::<Vec<_>>(), [&ObjectKey::new("shop", "s")]);
    assert_eq!((text.policies.len(), text.others, text.is_empty()), (1, 0, false));
    assert!(text.policies().is_ok());
    assert!(!read(&store("s", "m:1")).is_empty(), "a text with only a store is not empty");

    let twice = format!("{}---\n{}", store("s", "m:1"), store("s", "m:2"));
    assert_eq!(findings(&twice), ["8:12: metadata.name: store shop/s occurs twice: give one of them another name"]);
    let found = findings(&format!("{}---\n{}", policy("p", "5"), store("s", "m")));
    assert!(found.len() == 1 && found[0].starts_with("14:20: spec.memcached.servers: servers must"), "{found:?}");
}
