use std::fs;

use super::*;
use crate::{documents::tests::policy, world::Change};

/// The limit of every wait. After it, the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the limits of the policies in the next update that contains any.
async fn next(updates: &mut mpsc::Receiver<Update>) -> Vec<i64> {
    let limit = |change: &Change| match change {
        Change::Policy(_, Some((policy, _))) => {
            policy.spec.as_ref().expect("the policy is valid").rules[0].limits[0].requests
        }
        _ => None,
    };
    loop {
        let update = timeout(PATIENCE, updates.recv())
            .await
            .expect("an update must arrive in time")
            .expect("the source must run");
        let limits: Vec<i64> = update.changes.iter().filter_map(limit).collect();
        if !limits.is_empty() {
            return limits;
        }
    }
}

/// The text changes and the metadata does not, as on some network file systems. No event and no rescan finds the
/// change.
#[tokio::test]
async fn a_reload_reads_files_that_look_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.yaml");
    fs::write(&path, policy("p", "60")).unwrap();
    let long_ago = SystemTime::from(clock::timestamp()) - Duration::from_secs(3600);
    fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    let inputs = StandaloneInputs {
        policies: directory.path().to_owned(),
        agents: vec!["http://127.0.0.1:9".parse().unwrap()],
        ..StandaloneInputs::default()
    };
    let mut source = Directory::open(&inputs).unwrap();
    source.files.as_mut().unwrap().reader.believe("p.yaml", &policy("p", "50"));

    let (sender, mut updates) = mpsc::channel(1);
    let reload = Arc::<Notify>::default();
    let source = tokio::spawn(source.run(sender, drop, Metrics::default(), reload.clone()));
    assert_eq!(next(&mut updates).await, [50]);
    reload.notify_one();
    assert_eq!(next(&mut updates).await, [60]);
    drop(updates);
    timeout(PATIENCE, source).await.expect("the source must end in time").unwrap();
}

/// With one directory that cannot be watched, the others are watched.
#[tokio::test]
async fn an_unwatched_directory_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (tell, mut moved) = mpsc::channel(1);
    let missing = directory.path().join("missing");
    let mode = RecursiveMode::NonRecursive;
    let _watcher = watch(&[(&missing, mode), (directory.path(), mode)], tell);
    fs::write(directory.path().join("p.yaml"), policy("p", "1")).unwrap();
    let change = timeout(PATIENCE, moved.recv()).await.expect("the change must be reported in time");
    assert_eq!(change, Some(()), "the directory must be watched");
}
