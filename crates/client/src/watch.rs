//! Watches files that other programs can replace while the agent runs.
//!
//! The module reads the files once per second and compares their content. It does not rely on modification times or
//! notifications: Kubernetes swaps a symbolic link two folders above, editors rename files, and network volumes send no
//! notifications. It returns the content that it compared, so it misses no change between two reads.

use std::{fs, path::PathBuf, time::Duration};

use sha2::{Digest, Sha256};
use tokio::time::{Interval, MissedTickBehavior};

/// The interval between two reads of the files.
const PERIOD: Duration = Duration::from_secs(1);

/// The content of some files, or the errors of reading them.
pub type Contents<const N: usize> = [Result<Vec<u8>, String>; N];

/// Some files, and a digest of their content when they were read last.
#[derive(Debug)]
pub struct Watched<const N: usize> {
    paths: [PathBuf; N],
    seen: [u8; 32],
    ticks: Option<Interval>,
}

impl<const N: usize> Watched<N> {
    /// Reads the files for the first time.
    pub fn read(paths: [PathBuf; N]) -> (Self, Contents<N>) {
        let contents = read(&paths);
        let seen = digest(&contents);
        (Self { paths, seen, ticks: None }, contents)
    }

    /// Waits until the files differ from the last read, and returns their content.
    pub async fn changed(&mut self) -> Contents<N> {
        let ticks = self.ticks.get_or_insert_with(|| {
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        loop {
            ticks.tick().await;
            let contents = read(&self.paths);
            let now = digest(&contents);
            if now != self.seen {
                self.seen = now;
                return contents;
            }
        }
    }
}

fn read<const N: usize>(paths: &[PathBuf; N]) -> Contents<N> {
    paths.each_ref().map(|path| fs::read(path).map_err(|error| format!("cannot be read: {error}")))
}

/// A digest of the contents, for the next comparison. A copy of the contents would keep private keys in memory.
fn digest<const N: usize>(contents: &Contents<N>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for content in contents {
        let (mark, bytes) = match content {
            Ok(bytes) => (b'+', bytes.as_slice()),
            Err(problem) => (b'-', problem.as_bytes()),
        };
        digest.update([mark]);
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn swapped_folders_and_rewritten_or_deleted_files_are_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, content) in [("one", "1"), ("two", "2")] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("file"), content).unwrap();
        }
        // Like the kubelet, the test uses a link to the current folder and swaps it by a rename.
        let link = |to: &str| {
            std::os::unix::fs::symlink(path(to), path("link")).unwrap();
            fs::rename(path("link"), path("data")).unwrap();
        };
        link("one");
        let (mut watched, contents) = Watched::read([path("data").join("file")]);
        assert_eq!(contents, [Ok(b"1".to_vec())]);
        link("two");
        assert_eq!(watched.changed().await, [Ok(b"2".to_vec())]);
        fs::write(path("two").join("file"), "3").unwrap();
        assert_eq!(watched.changed().await, [Ok(b"3".to_vec())]);
        fs::remove_file(path("two").join("file")).unwrap();
        assert!(watched.changed().await[0].is_err());
        let unchanged = tokio::time::timeout(PERIOD * 100, watched.changed()).await;
        assert!(unchanged.is_err(), "the same failure is reported once");
    }
}
