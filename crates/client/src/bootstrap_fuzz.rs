//! Starts agents with a cache file and a bootstrap snapshot of random content. The agent must enforce the
//! cache, or the bootstrap snapshot if the cache is invalid, and report whether it enforces one of them.

use weir_enforce::{AmbiguousPaths, GateOptions, LiveRules};
use weir_fuzz::{Choices, Target, mutated};
use weir_tower::MonotonicClock;

use super::{Start, start};
use crate::{cache::Cache, snapshots::Snapshots};

const GOLDEN: &[u8] = include_bytes!("../../wire/tests/golden/snapshot.json");

#[test]
fn any_start_is_with_the_first_snapshot_that_can_be_enforced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("snapshot.json");
    Target::new("starts").run(60, |bytes| {
        let mut choices = Choices(bytes);
        let cache = Cache::new(path.clone());
        let kept = (!choices.rarely(3)).then(|| any(&mut choices));
        let given = (!choices.rarely(3)).then(|| any(&mut choices));
        match &kept {
            // A crash while the agent writes the cache leaves this partial file.
            Some(kept) if choices.rarely(2) => {
                cache.save(GOLDEN).map_err(|error| error.to_string())?;
                std::fs::write(path.with_extension("json.partial"), kept).map_err(|error| error.to_string())?;
                started(Some(GOLDEN), given.as_deref(), &cache)
            }
            Some(kept) => {
                cache.save(kept).map_err(|error| error.to_string())?;
                started(Some(kept), given.as_deref(), &cache)
            }
            None => {
                let _ = std::fs::remove_file(&path);
                started(None, given.as_deref(), &cache)
            }
        }
    });
}

fn any(choices: &mut Choices<'_>) -> Vec<u8> {
    match choices.below(4) {
        0 => GOLDEN.to_vec(),
        1 => (*choices.one(&["", "{}", "null", "[[[[", "\u{feff}{}"])).into(),
        _ => mutated(GOLDEN, GOLDEN, &mut choices.random()),
    }
}

fn agent() -> (LiveRules, Snapshots) {
    let clock = MonotonicClock::start();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    (rules.clone(), Snapshots::new(rules, clock, None))
}

fn started(kept: Option<&[u8]>, given: Option<&[u8]>, cache: &Cache) -> Result<(), String> {
    let (rules, snapshots) = agent();
    let found = start(&snapshots, given, Some(cache));
    let good = [kept, given].into_iter().flatten().find(|body| agent().1.apply_pushed(Some(body)).is_ok());
    let expected = match good {
        Some(_) => Start::Limited,
        None if kept.is_none() && given.is_none() => Start::Unlimited,
        None => Start::Faulty,
    };
    let rules = rules.load();
    let in_force = rules.snapshot().map(|(snapshot, _)| snapshot.clone());
    let wanted: Option<weir_wire::Snapshot> = good.and_then(|body| serde_json::from_slice(body).ok());
    if found != expected || in_force != wanted {
        let [kept, given] = [kept, given].map(|body| body.map(String::from_utf8_lossy));
        return Err(format!(
            "cache {kept:?}, bootstrap {given:?}: start {found:?} with {in_force:?}, expected {expected:?}"
        ));
    }
    Ok(())
}
