use super::*;

fn policy(name: &str, requests: &str) -> String {
    format!(
        "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: web}}}}\n  rules:\n  - name: all\n    limits:\n    \
         - {{name: a, requests: {requests}, per: 1s}}\n"
    )
}

fn listing(files: &[(&str, &str)]) -> Listing {
    files.iter().map(|&(name, text)| (name.into(), Ok(text.to_owned()))).collect()
}

/// Each change as `name generation requests`, `name generation invalid` or `name gone`.
fn said(outcome: &Outcome) -> Vec<String> {
    let say = |change: &Change| match change {
        Change::Policy(key, None) => format!("{} gone", key.name),
        Change::Policy(key, Some((policy, _))) => {
            let content = policy
                .spec
                .as_ref()
                .map_or_else(|_| "invalid".to_owned(), |spec| spec.rules[0].limits[0].requests.to_string());
            format!("{} {} {content}", key.name, policy.generation)
        }
        other => panic!("a folder only has policies, not {other:?}"),
    };
    outcome.changes.iter().map(say).collect()
}

fn notices(outcome: &Outcome) -> Vec<String> {
    outcome.notices.iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn only_content_counts() {
    let now = Instant::now();
    let mut folder = Folder::default();
    let [fifty, hundred] = ["50", "100"].map(|requests| policy("p", requests));
    assert_eq!(said(&folder.absorb(now, listing(&[("a.yaml", &fifty)]))), ["p 1 50"]);
    assert!(said(&folder.absorb(now, listing(&[("a.yaml", &fifty)]))).is_empty());
    let commented = format!("# the same\n{fifty}");
    assert!(said(&folder.absorb(now, listing(&[("a.yaml", &commented)]))).is_empty());
    assert_eq!(said(&folder.absorb(now, listing(&[("a.yaml", &hundred)]))), ["p 2 100"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_replaced_or_truncated_for_a_moment_loses_nothing() {
    let now = Instant::now();
    let text = policy("p", "50");
    for moment in [listing(&[]), listing(&[("a.yaml", "")]), listing(&[("a.yaml", &text[..text.len() / 2])])] {
        let mut folder = Folder::default();
        folder.absorb(now, listing(&[("a.yaml", &text)]));
        let outcome = folder.absorb(now, moment.clone());
        assert!(outcome.changes.is_empty() && outcome.notices.is_empty(), "{moment:?}: {outcome:?}");
        assert_eq!(outcome.look_again, Some(now + CONFIRM), "{moment:?}");
        let outcome = folder.absorb(now + CONFIRM / 2, listing(&[("a.yaml", &text)]));
        assert!(outcome.changes.is_empty() && outcome.look_again.is_none(), "{moment:?}: {outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_stays_away_is_gone() {
    let now = Instant::now();
    let mut folder = Folder::default();
    let both = format!("{}---\n{}", policy("p", "50"), policy("q", "60"));
    assert_eq!(said(&folder.absorb(now, listing(&[("a.yaml", &both)]))), ["p 1 50", "q 1 60"]);
    let one = policy("p", "50");
    assert!(said(&folder.absorb(now, listing(&[("a.yaml", &one)]))).is_empty());
    assert_eq!(said(&folder.absorb(now + CONFIRM, listing(&[("a.yaml", &one)]))), ["q gone"]);
    folder.absorb(now + CONFIRM, listing(&[]));
    assert_eq!(said(&folder.absorb(now + CONFIRM * 2, listing(&[]))), ["p gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_file_makes_its_policies_invalid_and_says_so_once() {
    let now = Instant::now();
    let mut folder = Folder::default();
    let good = policy("p", "50");
    let broken = listing(&[("a.yaml", &policy("p", "0"))]);
    folder.absorb(now, listing(&[("a.yaml", &good)]));
    assert!(notices(&folder.absorb(now, broken.clone())).is_empty());
    let outcome = folder.absorb(now + CONFIRM, broken.clone());
    assert_eq!(said(&outcome), ["p 2 invalid"]);
    let told = notices(&outcome);
    assert!(told[0].starts_with("a.yaml: spec.rules[0].limits[0].requests: "), "{told:?}");
    assert_eq!(told.last().map(String::as_str), Some("a.yaml: its last good content stays in force"));
    let again = folder.absorb(now + CONFIRM * 2, broken);
    assert!(again.changes.is_empty() && again.notices.is_empty());
    let mended = folder.absorb(now + CONFIRM * 3, listing(&[("a.yaml", &good)]));
    assert_eq!(
        (said(&mended), notices(&mended)),
        (vec!["p 3 50".to_owned()], vec!["a.yaml: reads well again".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_in_two_files_is_taken_from_the_first() {
    let now = Instant::now();
    let mut folder = Folder::default();
    let (first, second) = (policy("p", "50"), policy("p", "60"));
    let files = listing(&[("a.yaml", &first), ("b.yaml", &second)]);
    let outcome = folder.absorb(now, files.clone());
    assert_eq!(said(&outcome), ["p 1 50"]);
    assert_eq!(notices(&outcome), ["b.yaml: policy shop/p is ignored: it is in a.yaml already"]);
    assert!(notices(&folder.absorb(now, files)).is_empty(), "told once");
    assert_eq!(said(&folder.absorb(now, listing(&[("b.yaml", &second)]))), ["p 2 60"], "it moved, and was never gone");
}

#[test]
fn every_fault_of_a_first_listing_is_told() {
    let files =
        listing(&[("a.yaml", "a: ["), ("b.yaml", &policy("p", "50")), ("c.yaml", "kind: ConfigMap\napiVersion: v1\n")]);
    let faults = Folder::faults(&files);
    assert_eq!(faults.iter().map(|notice| &*notice.file).collect::<Vec<_>>(), ["a.yaml"]);
}
