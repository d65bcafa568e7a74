use super::*;
use crate::{
    compile::Compiler,
    documents::tests::{policy, store},
    world::{DirtySet, World},
};

const TIME: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn empty() -> (Instant, Folder) {
    (Instant::now(), Folder::default())
}

fn listing(files: &[(&str, &str)]) -> Listing {
    files.iter().map(|&(name, text)| (name.into(), Ok(text.into()))).collect()
}

fn kept_file(policy: Kept) -> KeptFile {
    KeptFile { policies: vec![policy], ..KeptFile::default() }
}

/// Formats each change as `name generation requests`, `name generation invalid` or `name gone`.
fn said(update: &FolderUpdate) -> Vec<String> {
    let say = |change: &Change| match change {
        Change::Policy(key, None) => format!("{} gone", key.name),
        Change::Policy(key, Some((policy, _))) => {
            let content = policy.spec.as_ref().map_or_else(
                |_| "invalid".to_owned(),
                |spec| spec.rules[0].limits[0].requests.unwrap_or_default().to_string(),
            );
            format!("{} {} {content}", key.name, policy.generation)
        }
        Change::Store(key, None) => format!("store {} gone", key.name),
        Change::Store(key, Some((store, _))) => {
            let servers = &store.spec.as_ref().unwrap().memcached.as_ref().unwrap().servers;
            format!("store {} {} {}", key.name, store.generation, servers.join(" "))
        }
        other => panic!("a folder has only policies and stores, not {other:?}"),
    };
    update.changes.iter().map(say).collect()
}

fn notices(update: &FolderUpdate) -> Vec<String> {
    update.notices.iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn only_changed_content_is_a_change() {
    let (now, mut folder) = empty();
    let [fifty, hundred] = ["50", "100"].map(|requests| policy("p", requests));
    assert_eq!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &fifty)]))), ["p 1 50"]);
    assert!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &fifty)]))).is_empty());
    let commented = format!("# the same\n{fifty}");
    assert!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &commented)]))).is_empty());
    assert_eq!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &hundred)]))), ["p 2 100"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_replaced_or_truncated_for_a_moment_loses_nothing() {
    let now = Instant::now();
    let text = policy("p", "50");
    for moment in [listing(&[]), listing(&[("a.yaml", "")]), listing(&[("a.yaml", &text[..text.len() / 2])])] {
        let mut folder = Folder::default();
        folder.absorb(now, TIME, listing(&[("a.yaml", &text)]));
        let update = folder.absorb(now, TIME, moment.clone());
        assert!(update.changes.is_empty() && update.notices.is_empty(), "{moment:?}: {update:?}");
        assert_eq!(update.look_again, Some(now + CONFIRM), "{moment:?}");
        let update = folder.absorb(now + CONFIRM / 2, TIME, listing(&[("a.yaml", &text)]));
        assert!(update.changes.is_empty() && update.look_again.is_none(), "{moment:?}: {update:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stores_are_read_next_to_policies() {
    let (now, mut folder) = empty();
    let both = format!("{}---\n{}", store("s", "m:1"), policy("p", "50"));
    assert_eq!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &both)]))), ["store s 1 m:1", "p 1 50"]);
    assert!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &format!("# the same\n{both}"))]))).is_empty());
    let moved = format!("{}---\n{}", store("s", "m:2"), policy("p", "50"));
    let second = store("s", "m:3");
    let update = folder.absorb(now, TIME, listing(&[("a.yaml", &moved), ("b.yaml", &second)]));
    assert_eq!(said(&update), ["store s 2 m:2"]);
    assert_eq!(notices(&update), ["b.yaml: store shop/s is ignored: it is already in a.yaml"]);
    // A broken file keeps its store.
    let broken = format!("{}---\n{}", store("s", "m"), policy("p", "50"));
    folder.absorb(now, TIME, listing(&[("a.yaml", &broken)]));
    let update = folder.absorb(now + CONFIRM, TIME, listing(&[("a.yaml", &broken)]));
    assert_eq!(said(&update), ["p 2 invalid"]);
    assert!(
        notices(&update)[0].starts_with("a.yaml:4:20: spec.memcached.servers: servers must have a host"),
        "{update:?}"
    );
    // A store that is missing for a short time is not removed.
    let alone = policy("p", "50");
    assert_eq!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &alone)]))), ["p 3 50"]);
    assert_eq!(said(&folder.absorb(now + CONFIRM, TIME, listing(&[("a.yaml", &alone)]))), ["store s gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_stays_away_is_removed() {
    let (now, mut folder) = empty();
    let both = format!("{}---\n{}", policy("p", "50"), policy("q", "60"));
    assert_eq!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &both)]))), ["p 1 50", "q 1 60"]);
    let one = policy("p", "50");
    assert!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &one)]))).is_empty());
    assert_eq!(said(&folder.absorb(now + CONFIRM, TIME, listing(&[("a.yaml", &one)]))), ["q gone"]);
    folder.absorb(now + CONFIRM, TIME, listing(&[]));
    assert_eq!(said(&folder.absorb(now + CONFIRM * 2, TIME, listing(&[]))), ["p gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_file_makes_its_policies_invalid_and_says_so_once() {
    let (now, mut folder) = empty();
    let good = policy("p", "50");
    let broken = listing(&[("a.yaml", &policy("p", "0"))]);
    folder.absorb(now, TIME, listing(&[("a.yaml", &good)]));
    assert!(notices(&folder.absorb(now, TIME, broken.clone())).is_empty());
    let update = folder.absorb(now + CONFIRM, TIME, broken.clone());
    assert_eq!(said(&update), ["p 2 invalid"]);
    let told = notices(&update);
    assert!(told[0].starts_with("a.yaml:9:17: spec.rules[0].limits[0].requests: "), "{told:?}");
    assert_eq!(told.last().map(String::as_str), Some("a.yaml: its last good content stays in force"));
    let again = folder.absorb(now + CONFIRM * 2, TIME, broken);
    assert!(again.changes.is_empty() && again.notices.is_empty());
    let fixed = folder.absorb(now + CONFIRM * 3, TIME, listing(&[("a.yaml", &good)]));
    assert_eq!((said(&fixed), notices(&fixed)), (vec!["p 3 50".to_owned()], vec!["a.yaml: is valid again".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_policy_in_two_files_is_taken_from_the_first() {
    let (now, mut folder) = empty();
    let (first, second) = (policy("p", "50"), policy("p", "60"));
    let files = listing(&[("a.yaml", &first), ("b.yaml", &second)]);
    let update = folder.absorb(now, TIME, files.clone());
    assert_eq!(said(&update), ["p 1 50"]);
    assert_eq!(notices(&update), ["b.yaml: policy shop/p is ignored: it is already in a.yaml"]);
    assert!(notices(&folder.absorb(now, TIME, files)).is_empty(), "a duplicate must be reported once");
    assert_eq!(
        said(&folder.absorb(now, TIME, listing(&[("b.yaml", &second)]))),
        ["p 2 60"],
        "the policy moved and was never missing"
    );
}

/// The texts are results of a full disk and of an interrupted copy.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_emptied_or_cut_off_keeps_its_policies() {
    let now = Instant::now();
    let text = format!("{}---\n{}", policy("p", "50"), policy("q", "600"));
    let cut = text.rfind("00, per").unwrap();
    for (what, left, told) in [
        (
            "emptied",
            String::new(),
            "a.yaml:1:1: is empty, and its last good content stays in force: delete the file to remove its policies",
        ),
        (
            "only comments",
            "# a\n".to_owned(),
            "a.yaml:1:1: is empty, and its last good content stays in force: delete the file to remove its policies",
        ),
        (
            "cut off between fields",
            text[..text.len() - 1].to_owned(),
            "a.yaml:19:40: ends within a line, as if it were cut off: end the last line with a line break",
        ),
        ("cut off in a number", text[..cut].to_owned(), "a.yaml:19:"),
    ] {
        let mut folder = Folder::default();
        assert_eq!(said(&folder.absorb(now, TIME, listing(&[("a.yaml", &text)]))), ["p 1 50", "q 1 600"]);
        let left = listing(&[("a.yaml", &left)]);
        folder.absorb(now, TIME, left.clone());
        let update = folder.absorb(now + CONFIRM, TIME, left.clone());
        assert_eq!(said(&update), ["p 2 invalid", "q 2 invalid"], "{what}");
        assert!(notices(&update)[0].starts_with(told), "{what}: {:?}", notices(&update));
        assert_eq!(folder.counts(), FileCounts { kept: 1, ..FileCounts::default() });
        let later = folder.absorb(now + CONFIRM * 1000, TIME, left);
        assert!(later.changes.is_empty(), "{what}: {:?}", later.changes);
        let again = folder.absorb(now + CONFIRM * 1001, TIME, listing(&[("a.yaml", &text)]));
        assert_eq!(said(&again), ["p 3 50", "q 3 600"], "{what}");
        // Only deleting the file removes its policies.
        folder.absorb(now + CONFIRM * 1002, TIME, listing(&[]));
        assert_eq!(said(&folder.absorb(now + CONFIRM * 1003, TIME, listing(&[]))), ["p gone", "q gone"], "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_may_move_out_of_a_file_that_stays_empty() {
    let (now, mut folder) = empty();
    let text = policy("p", "50");
    folder.absorb(now, TIME, listing(&[("a.yaml", &text)]));
    let moved = listing(&[("a.yaml", ""), ("b.yaml", &policy("p", "60"))]);
    folder.absorb(now, TIME, moved.clone());
    assert_eq!(said(&folder.absorb(now + CONFIRM, TIME, moved.clone())), ["p 2 60"]);
    assert!(said(&folder.absorb(now + CONFIRM * 2, TIME, moved)).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_broken_file_affects_no_other_and_never_valid_policies_are_reported() {
    let (now, mut folder) = empty();
    let files = listing(&[
        ("a.yaml", "a: ["),
        ("b.yaml", &policy("p", "50")),
        ("c.yaml", &policy("q", "0")),
        ("d.yaml", "kind: ConfigMap\napiVersion: v1\n"),
        ("e.yaml", ""),
    ]);
    let first = folder.absorb(now, TIME, files.clone());
    assert_eq!((said(&first), first.look_again), (vec!["p 1 50".to_owned()], Some(now + CONFIRM)));
    let update = folder.absorb(now + CONFIRM, TIME, files);
    assert_eq!(said(&update), ["a.yaml 1 invalid", "q 1 invalid"]);
    assert_eq!(folder.counts(), FileCounts { good: 3, kept: 0, broken: 2 });
    let last = "c.yaml: none of its policies is in force, because no good content is known";
    assert_eq!(notices(&update).last().map(String::as_str), Some(last));
    let well = listing(&[("a.yaml", ""), ("b.yaml", &policy("p", "50")), ("c.yaml", &policy("q", "5"))]);
    assert_eq!(said(&folder.absorb(now + CONFIRM * 2, TIME, well.clone())), ["q 2 5"]);
    assert_eq!(said(&folder.absorb(now + CONFIRM * 3, TIME, well)), ["a.yaml gone"]);
}

#[tokio::test(start_paused = true)]
async fn the_last_good_content_survives_a_restart_while_the_file_is_broken() {
    let now = Instant::now();
    let spec = |text: &str| documents::read(text).policies().unwrap().into_values().next().unwrap();
    let kept = |name: &str, generation, requests: &str| Kept {
        changed: None,
        key: ObjectKey::new("shop", name),
        generation,
        spec: Ok(spec(&policy(name, requests))),
    };
    let mut folder = Folder::new(BTreeMap::from([
        ("a.yaml".into(), kept_file(kept("p", 7, "50"))),
        ("b.yaml".into(), kept_file(kept("q", 3, "60"))),
        ("c.yaml".into(), kept_file(kept("r", 4, "70"))),
        ("gone.yaml".into(), kept_file(kept("s", 1, "80"))),
    ]));
    // One file is broken, one is unchanged, one has changed, one was deleted.
    let files = listing(&[("a.yaml", "a: ["), ("b.yaml", &policy("q", "60")), ("c.yaml", &policy("r", "71"))]);
    let update = folder.absorb(now, TIME, files.clone());
    assert_eq!(said(&update), ["p 7 50", "q 3 60", "r 5 71"]);
    assert_eq!(update.forgotten, [ObjectKey::new("shop", "s")]);
    assert_eq!(said(&folder.absorb(now + CONFIRM, TIME, files)), ["p 8 invalid"]);
    assert_eq!(folder.counts(), FileCounts { good: 2, kept: 1, broken: 0 });
}

#[tokio::test(start_paused = true)]
async fn stores_survive_a_restart_while_their_file_is_broken() {
    let now = Instant::now();
    let stores = |text: &str| documents::read(text).stores;
    let told = |update: &FolderUpdate| {
        let names = |stores: &StoreSpecs| stores.keys().map(|key| key.name.to_string()).collect::<Vec<_>>().join(" ");
        let files = update.stores.iter().map(|(file, stores)| format!("{file}: {}", names(stores)));
        files.collect::<Vec<_>>()
    };
    let (one, both) = (store("s", "m:1"), format!("{}---\n{}", store("s", "m:1"), store("t", "m:2")));
    let mut folder = Folder::default();
    let files = listing(&[("a.yaml", &one), ("b.yaml", &policy("p", "50"))]);
    assert_eq!(told(&folder.absorb(now, TIME, files.clone())), ["a.yaml: s"]);
    assert!(folder.absorb(now, TIME, files).stores.is_empty());
    assert_eq!(told(&folder.absorb(now, TIME, listing(&[("a.yaml", &both)]))), Vec::<String>::new(), "b.yaml is away");
    assert_eq!(told(&folder.absorb(now + CONFIRM, TIME, listing(&[("a.yaml", &both)]))), ["a.yaml: s t"]);

    for seen in [Ok("a: [".into()), Ok("".into()), Err("its volume is not mounted".to_owned())] {
        let kept = KeptFile { stores: stores(&both), ..KeptFile::default() };
        let mut folder = Folder::new(BTreeMap::from([("a.yaml".into(), kept.clone()), ("gone.yaml".into(), kept)]));
        let broken = Listing::from([("a.yaml".into(), seen)]);
        assert_eq!(said(&folder.absorb(now, TIME, broken.clone())), ["store s 1 m:1", "store t 1 m:2"]);
        let update = folder.absorb(now + CONFIRM, TIME, broken);
        assert!(update.changes.is_empty(), "{update:?}");
        assert_eq!(told(&update), ["gone.yaml: "]);
        assert_eq!(folder.counts(), FileCounts { kept: 1, ..FileCounts::default() });
        let fixed = listing(&[("a.yaml", &one)]);
        assert!(folder.absorb(now + CONFIRM * 2, TIME, fixed.clone()).stores.is_empty());
        let update = folder.absorb(now + CONFIRM * 3, TIME, fixed);
        assert_eq!((said(&update), told(&update)), (vec!["store t gone".to_owned()], vec!["a.yaml: s".to_owned()]));
    }
}

/// The operator was rolled back. Agents keep the rules of such a policy only if the world contains it.
#[tokio::test(start_paused = true)]
async fn a_generation_of_a_newer_operator_is_kept_while_the_file_is_broken() {
    let now = Instant::now();
    let key = ObjectKey::new("shop", "p");
    let kept = Kept { key: key.clone(), generation: 7, changed: None, spec: Err("{\"newer\": 1}".to_owned()) };
    let folder = || Folder::new(BTreeMap::from([("a.yaml".into(), kept_file(kept.clone()))]));
    let newer = policy("p", "50, newer: 1");
    let files: [(&str, Result<Arc<str>, String>); 4] = [
        ("an unknown field", Ok(newer.into())),
        ("another fault", Ok("a: [".into())),
        ("emptied", Ok("".into())),
        ("cannot be read", Err("its volume is not mounted".to_owned())),
    ];
    for (what, seen) in files {
        let (mut folder, broken) = (folder(), Listing::from([("a.yaml".into(), seen)]));
        let update = folder.absorb(now, TIME, broken.clone());
        assert!(update.changes.is_empty() && update.forgotten.is_empty(), "{what}: {update:?}");
        let update = folder.absorb(now + CONFIRM, TIME, broken);
        assert_eq!(said(&update), ["p 8 invalid"], "{what}");
        let Change::Policy(_, Some((_, stored))) = &update.changes[0] else { panic!("{what}: {update:?}") };
        let good = stored.status.as_ref().and_then(|status| status.last_known_good.as_ref());
        assert_eq!(good.map(|good| (good.generation, &*good.spec)), Some((7, "{\"newer\": 1}")), "{what}");
        assert_eq!(folder.counts(), FileCounts { kept: 1, ..FileCounts::default() }, "{what}");
        let fixed = folder.absorb(now + CONFIRM * 2, TIME, listing(&[("a.yaml", &policy("p", "60"))]));
        assert_eq!(said(&fixed), ["p 9 60"], "{what}");
    }
    assert_eq!(folder().absorb(now, TIME, listing(&[])).forgotten, [key], "its file was deleted");
}

/// The operator was rolled back. Policies of a store end if the world does not contain the store.
#[tokio::test(start_paused = true)]
async fn a_store_of_a_newer_operator_is_kept_while_its_file_is_broken() {
    let now = Instant::now();
    let spec = documents::read(&policy("p", "50")).policies().unwrap().into_values().next().unwrap();
    let generation = Kept { key: ObjectKey::new("shop", "p"), generation: 7, changed: None, spec: Ok(spec) };
    let unread_stores = BTreeSet::from([ObjectKey::new("shop", "s")]);
    let kept = KeptFile { unread_stores, ..KeptFile::default() };
    let kept = || BTreeMap::from([("a.yaml".into(), kept.clone()), ("b.yaml".into(), kept_file(generation.clone()))]);
    let files = |stores: &str| listing(&[("a.yaml", stores), ("b.yaml", &policy("p", "50"))]);
    let (mut folder, broken) = (Folder::new(kept()), files("a: ["));
    let update = folder.absorb(now, TIME, broken.clone());
    let [Change::Store(key, Some((found, None))), Change::Policy(_, Some((_, stored)))] = &update.changes[..] else {
        panic!("{update:?}")
    };
    assert_eq!((&*key.name, found.spec.is_err()), ("s", true));
    let good = stored.status.as_ref().and_then(|status| status.last_known_good.as_ref());
    assert_eq!(good.map(|good| good.generation), Some(7), "the policy does not compile without the store");
    let update = folder.absorb(now + CONFIRM, TIME, broken);
    assert!(update.changes.is_empty() && update.stores.is_empty(), "{update:?}");
    assert_eq!(folder.counts(), FileCounts { good: 1, kept: 1, broken: 0 });
    let update = folder.absorb(now + CONFIRM * 2, TIME, files(&store("s", "m:1")));
    assert_eq!((said(&update), update.stores.len()), (vec!["store s 2 m:1".to_owned()], 1));

    let update = Folder::new(kept()).absorb(now, TIME, listing(&[("b.yaml", &policy("p", "50"))]));
    assert_eq!((said(&update), update.stores.len()), (vec!["p 7 50".to_owned()], 1), "its file was deleted");
}

/// The stores compare stamps. After any change of a file, limits that are read later have a larger stamp.
#[tokio::test(start_paused = true)]
async fn limits_that_are_read_later_have_a_larger_stamp() {
    let now = Instant::now();
    let fleet = |requests: &str| policy("p", requests).replace("- name: all", "- name: all\n    scope: Fleet");
    let file = |text: &str| listing(&[("a.yaml", text)]);
    let stamp = |update: &FolderUpdate| {
        let key = ObjectKey::new("shop", "p");
        let Some(Change::Policy(_, Some((policy, _)))) = update.changes.last() else {
            panic!("the policy must change: {update:?}")
        };
        let world = World::of_policies(BTreeMap::from([(key.clone(), policy.clone())]));
        let mut compiler = Compiler::default();
        compiler.update(&world, &mut DirtySet { policies: [key.clone()].into(), ..DirtySet::default() }, |_| None);
        let rules = compiler.compiled()[&key].policy.clone().expect("the policy must compile");
        (policy.changed, rules.rules[0].shared.as_ref().expect("the scope is Fleet").stamp)
    };
    let minute = SignedDuration::from_mins(1);
    let mut folder = Folder::default();
    let (changed, first) = stamp(&folder.absorb(now, TIME, file(&fleet("50"))));
    let (_, second) = stamp(&folder.absorb(now, TIME, file(&fleet("60"))));
    let (_, slow) = stamp(&folder.absorb(now, TIME - minute, file(&fleet("70"))));
    assert!(first < second && second < slow, "a change: {first} {second} {slow}");
    // The file is deleted and created again within a second.
    folder.absorb(now, TIME, listing(&[]));
    assert_eq!(said(&folder.absorb(now + CONFIRM, TIME, listing(&[]))), ["p gone"]);
    let (_, again) = stamp(&folder.absorb(now + CONFIRM, TIME, file(&fleet("80"))));
    assert!(slow < again, "created again: {slow} {again}");

    // The status of the first generation was stored, and the operator starts again.
    let kept = |requests: &str| Kept {
        key: ObjectKey::new("shop", "p"),
        generation: 1,
        changed,
        spec: Ok(documents::read(&fleet(requests)).policies().unwrap().into_values().next().unwrap()),
    };
    let mut folder = Folder::new(BTreeMap::from([("a.yaml".into(), kept_file(kept("50")))]));
    let (_, same) = stamp(&folder.absorb(now, TIME + minute, file(&fleet("50"))));
    assert_eq!(same, first, "the stamp must survive a restart");
    let (_, changed) = stamp(&folder.absorb(now, TIME + minute, file(&fleet("60"))));
    // The file was deleted and created again while no operator ran, so that no status is stored.
    let (_, lost) = stamp(&Folder::default().absorb(now, TIME + minute * 2, file(&fleet("70"))));
    assert!(same < changed && changed < lost, "a new start: {same} {changed} {lost}");
}
