use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::*;

/// Returns the values of a text, which must have no faults.
fn values(text: &str) -> Vec<Value> {
    let documents = read(text);
    documents
        .into_iter()
        .map(|tree| {
            assert_eq!(tree.faults, [], "{text}");
            tree.value.unwrap()
        })
        .collect()
}

fn faults(text: &str) -> Vec<String> {
    let trees = read(text);
    let faults = trees.iter().flat_map(|tree| &tree.faults);
    faults.map(|(place, path, message)| format!("{place} {path} {message}")).collect()
}

/// Another parser, which shares no code with this one, reads every policy of the project in the same way.
#[test]
fn policies_read_as_another_library_reads_them() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut files = 0;
    for directory in ["crates/api/tests/policies/good", "crates/api/tests/policies/bad", "examples", "crds"] {
        for entry in std::fs::read_dir(format!("{root}/{directory}")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let other: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
                .map(|document| Value::deserialize(document).unwrap())
                .collect();
            assert_eq!(values(&text), other, "{}", path.display());
            assert_eq!(values(&text.replace('\n', "\r\n")), other, "{} with CRLF", path.display());
            files += 1;
        }
    }
    assert!(files > 100, "{files}");
}

#[test]
fn scalars_read_as_another_library_reads_them() {
    for text in [
        "~", "null", "NULL", "true", "True", "yes", "on", "0", "-0", "7", "+7", "-7", "007", "0x1f", "-0x1f", "0o17",
        "1.5", "-1.5e3", "1e3", ".5", "5.", "1_000", "9223372036854775807", "18446744073709551615", "0.0", "1.0", "e3",
        "1.2.3", "--", "+", ".", "1s", "0x", "0xg", "'7'", "\"7\"", "2026-01-01", "1e", "!!str 7", "!!int 7", "1-2",
    ] {
        let other: Result<Value, _> = serde_yaml::from_str(&format!("a: {text}"));
        assert_eq!(values(&format!("a: {text}")), [other.unwrap()], "{text}");
    }
}

#[test]
fn every_field_has_its_place() {
    let text = "\u{feff}# first\nspec:\r\n  rules:\r\n  - name: a\r\n    limits: [{name: x, per: 1s}]\r\n";
    let tree = &read(text)[0];
    for (path, place) in [
        ("spec", "2:1"),
        ("spec.rules[0].name", "4:5"),
        ("spec.rules[0].limits[0].per", "5:24"),
        ("spec.rules[0].limits[0].requests", "5:14"),
        ("metadata.name", "2:1"),
    ] {
        assert_eq!(tree.place(path).to_string(), place, "{path}");
    }
}

#[test]
fn a_broken_document_does_not_affect_others() {
    for broken in ["a: [", "a: b: c", "\tx: 1", "a: 'x", "*none", "a: {b: 1]", "a:\n\tb: 1", "a:\n  \t- 1"] {
        let text = format!("first: 1\n---\n{broken}\n---\nthird: 3\n");
        let documents = read(&text);
        let seen: Vec<_> = documents.iter().map(|tree| tree.value.clone()).collect();
        assert_eq!(seen, [Some(json!({"first": 1})), None, Some(json!({"third": 3}))], "{broken:?}: {documents:?}");
        assert!(documents[1].faults[0].0.line >= 3, "{broken:?}: {:?}", documents[1].faults);
    }
}

#[test]
fn a_tab_may_stand_where_it_indents_nothing() {
    assert_eq!(
        values("a:\t1\nb: [\n  \t1,\n  \t2]\nc: |\n  x\n  \ty\n"),
        [json!({"a": 1, "b": [1, 2], "c": "x\n\ty\n"})]
    );
}

#[test]
fn a_field_that_is_given_twice_is_a_fault() {
    assert_eq!(faults("a: 1\nb: 2\na: 3\n"), ["3:1 a appears twice (first on line 1): keep one of them"]);
    assert_eq!(faults("x: {a: 1, a: 1}"), ["1:11 x.a appears twice (first on line 1): keep one of them"]);
    assert!(faults("x: {a: 1}\ny: {a: 1}").is_empty());
}

#[test]
fn anchors_and_merges_are_resolved() {
    let text = "base: &base {per: 1s, requests: 5}\none: *base\ntwo: {<<: *base, requests: 9}\nthree: {<<: [*base, {burst: 3}]}\n";
    let base = json!({"per": "1s", "requests": 5});
    let expected = json!({
        "base": base, "one": base, "two": {"per": "1s", "requests": 9}, "three": {"per": "1s", "requests": 5, "burst": 3},
    });
    assert_eq!(values(text), [expected]);
    // kubectl refuses these merges.
    for (text, told) in [
        ("a: {<<: 5, b: 1}", "1:5 a.<< must be a mapping or a list of mappings, not 5"),
        ("a: {<<: [{c: 1}, x]}", "1:5 a.<< must be a mapping or a list of mappings, not \"x\""),
        ("a: {<<: ~}", "1:5 a.<< must be a mapping or a list of mappings, not null"),
    ] {
        assert_eq!(faults(text), [told]);
    }
}

/// Without bounds, 400 KB of brackets take 60 s, and a bomb of aliases takes all memory.
#[test]
fn hostile_texts_are_refused_quickly() {
    let nested = |open: &str, count: usize| format!("a: {}", open.repeat(count));
    let bomb = {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..30 {
            let items = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
        }
        text
    };
    // Each level alone is allowed. It repeats the previous level one step deeper.
    let deep = {
        let mut text = "a0: &a0 [x]\n".to_owned();
        for level in 1..10_000 {
            text.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
        }
        text
    };
    for (what, text) in [
        ("brackets", nested("[", 400_000)),
        ("braces", nested("{a: ", 100_000)),
        ("dashes", format!("a:\n {}", "- ".repeat(200_000))),
        ("a bomb of aliases", bomb),
        ("aliases of aliases", deep),
        ("an alias within its own value", "a: &a [*a]".to_owned()),
    ] {
        let begun = crate::clock::now();
        let found = faults(&text);
        assert!(begun.elapsed() < Duration::from_secs(5), "{what} took {:?}", begun.elapsed());
        assert_eq!(found.len(), 1, "{what}: {found:?}");
    }
}
