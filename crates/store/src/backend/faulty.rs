//! A store in memory that is slow, or that answers some questions with errors.
#![expect(unreachable_pub, reason = "a variant of the public `Backend`, in tests only")]

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::sleep;
use weir_seats::{Key, MemoryStore, Reply, StoreError, Take};

/// Returns how long the answer to a question takes, or its error.
pub type Faults = Box<dyn Fn(&Key, &Take<'_>) -> Result<Duration, StoreError> + Send + Sync>;

pub struct Faulty {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) faults: Faults,
    pub(crate) takes_back: bool,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl Faulty {
    pub(crate) async fn take(
        &self,
        key: &Key,
        question: &Take<'_>,
        clock: impl Fn() -> u64,
        deadline: Duration,
    ) -> Result<Reply, StoreError> {
        let takes = (self.faults)(key, question)?;
        if takes > deadline {
            sleep(deadline).await;
            return Err(StoreError::Late);
        }
        sleep(takes).await;
        self.store.take(key, question, clock)
    }
}
