use std::fs;

use serde_json::Value;

use super::*;
use crate::tables::rows;

fn policy(name: &str, rules: &str) -> String {
    format!(
        "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: web}}}}\n  rules:\n{rules}"
    )
}

fn rule(requests: &str) -> String {
    format!("  - name: all\n    limits: [{{name: a, requests: {requests}, per: 1s}}]\n")
}

/// Returns the result for these files, by their names in a directory.
fn report(files: &[(&str, &str)], options: &CheckOptions, format: OutputFormat) -> (CheckResult, String) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let report = CheckOptions { paths: vec![directory.path().to_owned()], ..options.clone() }.report();
    let prefix = format!("{}/", directory.path().display());
    (report.result(), report.render(format).replace(&prefix, "").replace(prefix.trim_end_matches('/'), "."))
}

fn text(files: &[(&str, &str)]) -> (CheckResult, String) {
    report(files, &CheckOptions::default(), OutputFormat::Text)
}

#[test]
fn every_fault_is_reported_at_its_place() {
    let good = policy("p", &rule("5"));
    assert_eq!(text(&[("a.yaml", &good)]), (CheckResult::Good, "a.yaml: ok (1 policy)\n".to_owned()));
    let broken = format!("\u{feff}{}---\r\nb: [\r\n---\r\n{}", policy("p", &rule("five")), policy("q", &rule("0")));
    let (result, said) = text(&[("a.yaml", &broken), ("b.yaml", &policy("r", &rule("7")))]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(result, CheckResult::Faulty);
    let first = "a.yaml:8:24: spec.rules[0].limits[0].requests: must be a whole number, not the text \"five\"";
    assert_eq!(lines[0], first);
    assert!(lines[1].starts_with("a.yaml:10:"), "{said}");
    assert!(lines[2].starts_with("a.yaml:19:24: spec.rules[0].limits[0].requests: is 0: "), "{said}");
    assert_eq!((lines[3], lines.len()), ("b.yaml: ok (1 policy)", 4), "{said}");
}

/// kubectl reads YAML 1.1, and a cluster checks labels.
#[test]
fn what_kubectl_refuses_or_reads_as_another_policy_is_a_fault() {
    let labels = "metadata: {name: p, labels: {on: a b}}";
    let policy = policy("p", &rule("5")).replace("metadata: {name: p}", labels).replace("app: web", "app: 1_000");
    let other = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: on}\n";
    let (result, said) = text(&[("a.yaml", &format!("{policy}{other}"))]);
    let expected = [
        "a.yaml:3:30: metadata.labels.on: kubectl reads the name on as true: write it in quotes",
        "a.yaml:3:30: metadata.labels.on: must be a valid value of a label: at most 63 letters, digits, '-', '_' and '.', \
         beginning and ending with a letter or digit",
        "a.yaml:5:33: spec.selector.matchLabels.app: kubectl reads 1_000 as 1000: write it in quotes",
    ];
    assert_eq!((result, said.lines().collect::<Vec<_>>()), (CheckResult::Faulty, expected.to_vec()));
    let quoted = policy.replace("on: a b", "'on': a-b").replace("1_000", "'1_000'");
    assert_eq!(text(&[("a.yaml", &quoted)]).0, CheckResult::Good);
}

#[test]
fn names_must_differ_within_a_directory() {
    let p = policy("p", &rule("5"));
    let (result, said) = text(&[("a.yaml", &p), ("b.yml", &p)]);
    let told = "b.yml:3:12: metadata.name: policy default/p is already in a.yaml: give one of them another name";
    assert_eq!((result, said.lines().nth(1)), (CheckResult::Faulty, Some(told)));
}

#[test]
fn stores_of_a_directory_must_have_different_names() {
    let store = documents::tests::store("s", "m:1");
    let (result, said) = text(&[("a.yaml", &store), ("b.yaml", &format!("# another file\n{store}"))]);
    let told = "b.yaml:4:12: metadata.name: store shop/s is already in a.yaml: give one of them another name";
    assert_eq!((result, said.lines().nth(1)), (CheckResult::Faulty, Some(told)), "{said}");
    let policy = policy("s", &rule("5")).replace("{name: s}", "{name: s, namespace: shop}");
    assert_eq!(text(&[("a.yaml", &store), ("b.yaml", &policy)]).0, CheckResult::Good);
}

/// Otherwise the check of a directory that cannot be read would succeed.
#[test]
fn a_subdirectory_that_cannot_be_read_is_unreadable() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.yaml"), policy("p", &rule("5"))).unwrap();
    let link = directory.path().join("team");
    std::os::unix::fs::symlink(directory.path().join("missing"), &link).unwrap();
    let options = |recursive| {
        CheckOptions { paths: vec![directory.path().to_owned()], recursive, ..CheckOptions::default() }.report()
    };
    assert_eq!(options(false).result(), CheckResult::Good);
    assert_eq!(options(true).result(), CheckResult::Unreadable);
    let last = format!("{}: No such file or directory (os error 2)", link.display());
    assert_eq!(options(true).render(OutputFormat::Text).lines().last(), Some(&*last));

    fs::remove_file(&link).unwrap();
    let deep = |levels: usize| directory.path().join(vec!["a"; levels].join("/"));
    fs::create_dir_all(deep(16)).unwrap();
    assert_eq!(options(true).result(), CheckResult::Good);
    fs::create_dir_all(deep(17)).unwrap();
    assert_eq!(options(true).result(), CheckResult::Unreadable);
    let last = format!("{}: is more than 16 directories deep: move it up", deep(17).display());
    assert_eq!(options(true).render(OutputFormat::Text).lines().last(), Some(&*last));
}

/// `weir-operator check policies/*.yaml` gets the status files, too.
#[test]
fn status_files_are_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let status = "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\n\
                  metadata: {name: p, namespace: shop, annotations: {weir.dev/file: a.yaml}}\nstatus: {}\n";
    fs::write(at("a.yaml"), policy("p", &rule("5"))).unwrap();
    fs::write(at("a.status.yaml"), status).unwrap();
    let paths = vec![at("a.yaml"), at("a.status.yaml")];
    let report = CheckOptions { paths, require_policies: true, ..CheckOptions::default() }.report();
    let said = report.render(OutputFormat::Text);
    assert_eq!(
        (report.result(), &*said),
        (CheckResult::Good, &*format!("{}: ok (1 policy)\n", at("a.yaml").display()))
    );
    // A policy in a file of such a name is checked.
    fs::write(at("a.status.yaml"), policy("p", &rule("0"))).unwrap();
    let report = CheckOptions { paths: vec![at("a.status.yaml")], ..CheckOptions::default() }.report();
    assert_eq!(report.result(), CheckResult::Faulty);
}

#[test]
fn invalid_utf8_is_a_fault_and_a_missing_file_is_unreadable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("latin.yaml");
    fs::write(&path, b"a: 1\nb: \xe9\n").unwrap();
    let report = CheckOptions { paths: vec![path], ..CheckOptions::default() }.report();
    assert_eq!(report.result(), CheckResult::Faulty);
    assert!(
        report.render(OutputFormat::Text).ends_with("latin.yaml:2:4: is not UTF-8 from here on: save it as UTF-8\n")
    );
    let report =
        CheckOptions { paths: vec![directory.path().join("nothing.yaml")], ..CheckOptions::default() }.report();
    assert_eq!(report.result(), CheckResult::Unreadable);
}

#[test]
fn policies_may_be_required() {
    let (other, policy) = ("kind: ConfigMap\napiVersion: v1\n", policy("p", &rule("5")));
    let required = CheckOptions { require_policies: true, ..CheckOptions::default() };
    let recursive = CheckOptions { recursive: true, ..required.clone() };
    let result = |files: &[(&str, &str)], options| report(files, options, OutputFormat::Text).0;
    let told = |files: &[(&str, &str)], line: &str| {
        let (result, said) = report(files, &required, OutputFormat::Text);
        assert_eq!((result, said.lines().last()), (CheckResult::Faulty, Some(line)));
    };
    assert_eq!(text(&[("a.yaml", other)]).0, CheckResult::Good);
    told(&[("a.yaml", other)], ".:1:1: no file in this directory contains a policy");
    assert_eq!(result(&[("a.yaml", other), ("b.yaml", &policy)], &required), CheckResult::Good);
    // A directory without files, as of a wrong path.
    assert_eq!(text(&[]).0, CheckResult::Unreadable);
    told(&[("a.txt", other)], ".:1:1: no .yaml, .yml or .json file is in this directory");
    let below = [("a.yaml", other), ("team/b.yaml", &policy)];
    assert_eq!(result(&below, &required), CheckResult::Faulty);
    assert_eq!(result(&below, &recursive), CheckResult::Good);
}

#[test]
fn machine_formats_report_the_same_faults() {
    let files = [("a,b.yaml", &*policy("p", &rule("\"5%\"")))];
    let message = "spec.rules[0].limits[0].requests: must be a whole number, not the text \"5%\"";
    let (_, json) = report(&files, &CheckOptions::default(), OutputFormat::Json);
    let json: Value = serde_json::from_str(&json).unwrap();
    let problem = &json["files"][0]["problems"][0];
    assert_eq!((&json["verdict"], &problem["line"], &problem["column"]), (&"faulty".into(), &8.into(), &24.into()));
    assert_eq!((&problem["severity"], &problem["path"]), (&"error".into(), &"spec.rules[0].limits[0].requests".into()));
    let (_, github) = report(&files, &CheckOptions::default(), OutputFormat::Github);
    assert_eq!(github, format!("::error file=a%2Cb.yaml,line=8,col=24::{}\n", message.replace('%', "%25")));
    let (_, sarif) = report(&files, &CheckOptions::default(), OutputFormat::Sarif);
    let sarif: Value = serde_json::from_str(&sarif).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(
        (&result["ruleId"], &result["level"], &result["message"]["text"]),
        (&"invalid".into(), &"error".into(), &message.into())
    );
    let region = &result["locations"][0]["physicalLocation"];
    assert_eq!((&region["artifactLocation"]["uri"], &region["region"]["startLine"]), (&"a%2Cb.yaml".into(), &8.into()));
    let rules = sarif["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["id"] == "invalid"));
}

#[test]
fn odd_policies_are_valid_with_a_warning() {
    // The columns: the warning, and the rules in YAML. LIMIT is a limit of ten requests per second.
    for [told, rules] in rows(
        r#"
        7:5: warning: spec.rules[0]: lets every request through | {name: open, action: Bypass}
        7:5: warning: spec.rules[0]: lets every request through | {name: open, action: Bypass, match: [{paths: [/**]}]}
        7:5: warning: spec.rules[0]: lets every request through | {name: open, action: Bypass, match: [{paths: [/a, /**]}]}
        7:5: warning: spec.rules[0]: lets every request through | {name: open, action: Bypass, mode: Enforce}
        8:5: warning: spec.rules[1]: can never refuse: rule "open" bypasses everything that it matches | {name: open, action: Bypass, match: [{paths: [/api/**]}]}; {name: x, match: [{paths: [/api/x], methods: [GET]}], limits: [LIMIT]}
        7:5: warning: spec.rules[0]: refuses every request | {name: shut, action: Deny}
        8:5: warning: spec.rules[1]: can never refuse: rule "shut" denies everything that it matches | {name: shut, action: Deny, match: [{paths: [/a/**]}]}; {name: x, match: [{paths: [/a/b]}], limits: [LIMIT]}
        7:58: warning: spec.rules[0].limits[1]: can never refuse: limit "a" always refuses first: remove it | {name: x, limits: [LIMIT, {name: b, requests: 601, per: 1m, burst: 700}]}
        7:58: warning: spec.rules[0].limits[1]: can never refuse | {name: x, limits: [LIMIT, {name: b, requests: 610, per: 1m, strategy: FixedWindow}]}
        7:40: warning: spec.rules[0].match[0].paths[2]: "/a" is a duplicate: remove it | {name: x, match: [{paths: [/a, /b, /a]}], limits: [LIMIT]}
        8:5: warning: spec.rules[1]: is the same as rule "x" and has no effect: remove it | {name: x, limits: [LIMIT]}; {name: z, limits: [LIMIT]}
        8:5: warning: spec.rules[1]: has the key and the limits of rule "x", and counts separately | {name: x, match: [{paths: [/a]}], limits: [LIMIT]}; {name: z, match: [{paths: [/b]}], limits: [LIMIT]}
        "#,
    ) {
        let (result, said) = text(&[("a.yaml", &policy("p", &in_lines(rules)))]);
        assert_eq!(result, CheckResult::Good, "{rules}: {said}");
        assert!(said.starts_with(&format!("a.yaml:{told}")), "{rules}: {said}");
        assert_eq!(said.lines().collect::<Vec<_>>()[1..], ["a.yaml: ok (1 policy)"], "{rules}: {said}");
    }
}

/// Returns rules that `; ` separates, as a list of YAML with one rule a line.
fn in_lines(rules: &str) -> String {
    let rules = rules.replace("LIMIT", "{name: a, requests: 10, per: 1s}");
    rules.split("; ").map(|rule| format!("  - {rule}\n")).collect()
}

#[test]
fn policies_that_may_be_intended_get_no_warning() {
    for [rules] in rows(
        "
        # 609 requests are fewer than the bucket admits in a minute: 10 at the start and 600 in sixty seconds.
        {name: x, limits: [LIMIT, {name: b, requests: 609, per: 1m, strategy: FixedWindow}]}
        {name: x, limits: [{name: a, requests: 10, per: 1s, burst: 20}, {name: b, requests: 20, per: 1s, burst: 10}]}
        {name: o, action: Bypass, match: [{paths: [/healthz]}]}; {name: x, match: [{paths: [/healthz/**]}], limits: [LIMIT]}
        {name: o, action: Bypass, match: [{paths: [/a], methods: [GET]}]}; {name: x, match: [{paths: [/a]}], limits: [LIMIT]}
        {name: o, action: Bypass, match: [{paths: [/a], pathRegexes: [x]}]}; {name: x, match: [{paths: [/a]}], limits: [LIMIT]}
        {name: o, action: Bypass, mode: Disabled}; {name: x, limits: [LIMIT]}
        {name: o, action: Deny, mode: Shadow, match: [{paths: [/a]}]}; {name: x, match: [{paths: [/a]}], limits: [LIMIT]}
        {name: x, limits: [LIMIT]}; {name: z, key: [{header: k}], limits: [LIMIT]}
        ",
    ) {
        let (_, said) = text(&[("a.yaml", &policy("p", &in_lines(rules)))]);
        assert_eq!(said, "a.yaml: ok (1 policy)\n", "{rules}");
    }
    // Two rules with the same limits that differ in another field.
    let limit = "key: [{header: k}], limits: [{name: a, requests: 10, per: 1s}]";
    for (first, second) in [
        ("mode: Disabled, ", ""),
        ("mode: Shadow, ", ""),
        ("", "mode: Shadow, "),
        ("", "responseHeaders: [{name: x-a, value: b}], "),
        ("", "ban: {after: 3, for: 1h}, "),
        ("", "scope: Fleet, "),
        ("onLimit: {action: Wait, maxWait: 1s}, ", ""),
        ("", "maxKeys: 7, "),
    ] {
        for matched in ["", "match: [{paths: [/b]}], "] {
            let rules = format!("  - {{name: x, {first}{limit}}}\n  - {{name: z, {second}{matched}{limit}}}\n");
            let (_, said) = text(&[("a.yaml", &policy("p", &rules))]);
            assert_eq!(said, "a.yaml: ok (1 policy)\n", "{rules}");
        }
    }
    // A bypass of one descriptor is no bypass of another one.
    let of_domain = |second: &str| {
        let rules = "{name: o, action: Bypass, match: [{descriptor: [{key: user, value: a}]}]}; \
                     {name: x, match: [{descriptor: [{key: user, value: SECOND}]}], limits: [LIMIT]}";
        let rules = in_lines(&rules.replace("SECOND", second));
        text(&[("a.yaml", &policy("p", &rules).replacen("spec:\n", "spec:\n  domain: shop\n", 1))]).1
    };
    assert_eq!(of_domain("b"), "a.yaml: ok (1 policy)\n");
    assert!(of_domain("a").contains("can never refuse: rule \"o\" bypasses everything that it matches"));
    let examples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"));
    let said = CheckOptions { paths: vec![examples.to_owned()], recursive: true, ..CheckOptions::default() }.report();
    assert!(!said.render(OutputFormat::Text).contains("warning"), "{}", said.render(OutputFormat::Text));
}
