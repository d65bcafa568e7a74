//! Requests whose window in the store ends while they wait for another rule.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use weir_store::{Backend, MemoryStore, StoreClient, StoreParts};

use super::{waiting::passed, *};

const STORE: &str = "shop/limits";
const WINDOW: Duration = Duration::from_secs(10);

/// A rule that all programs share.
pub(super) fn shared(requests: u64) -> Value {
    let all = json!({"match": [{"paths": ["/shared"]}], "shared": {
        "store": STORE, "counters": "shop/p.all", "stamp": 1, "onStoreLoss": "LocalShare", "sharers": 2,
    }});
    rule("all", &[limit("FixedWindow", requests, 10_000, json!({}))], all)
}

/// Two programs with one store.
pub(super) struct World {
    pub(super) memory: Arc<MemoryStore>,
    begins: Duration,
    start: Instant,
    clock: MonotonicClock,
}

impl World {
    /// Starts the store's clock this long before the end of a window.
    pub(super) fn before_the_end(of_window: Duration) -> Self {
        let (clock, start) = (MonotonicClock::of_tokio(), Instant::now());
        let windows = clock.now().as_nanos() / u64::try_from(WINDOW.as_nanos()).expect("short");
        let ends = WINDOW * u32::try_from(windows + 2).expect("before the year 3330");
        Self { memory: Arc::default(), begins: ends - of_window, start, clock }
    }

    pub(super) fn program(&self, rules: &[Value]) -> Limits {
        let memory = Arc::clone(&self.memory);
        self.program_of(&[policy("p", rules)], move || Ok(Backend::Memory(Arc::clone(&memory))))
    }

    /// A program with these policies, which opens its store like this.
    pub(super) fn program_of(
        &self,
        policies: &[Value],
        open: impl Fn() -> Result<Backend, String> + Send + Sync + 'static,
    ) -> Limits {
        let limits = Limits::with_clock(self.clock, &[]);
        limits.apply_with(policies, &self.stores(open));
        limits
    }

    fn stores(&self, open: impl Fn() -> Result<Backend, String> + Send + Sync + 'static) -> Stores {
        let (begins, start) = (self.begins, self.start);
        let client = StoreClient::start(StoreParts::new(STORE, open, move || begins + start.elapsed()));
        HashMap::from([(STORE.to_owned(), client)])
    }
}

/// Sends requests at the same time. Returns the number of those that were allowed.
async fn allowed(limits: &Limits, count: usize) -> usize {
    let answers: Vec<_> = (0..count).map(|_| limits.send(get("/shared"), ok)).collect();
    let mut allowed = 0;
    for answer in answers {
        allowed += usize::from(answer.await.status() == 200);
    }
    allowed
}

/// Ten requests get all units of a window. Five of them go in this window, and the other five in the next one.
#[tokio::test(start_paused = true)]
async fn requests_that_go_in_a_later_window_count_there() {
    let world = World::before_the_end(Duration::from_secs(1));
    let slow = rule("slow", &[limit("GCRA", 5, 1_000, json!({}))], wait(3_000));
    let (waiting, other) = (world.program(&[shared(10), slow]), world.program(&[shared(10)]));
    assert_eq!(allowed(&waiting, 10).await, 10);
    assert_eq!(allowed(&other, 20).await, 5, "the rest of the next window");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_unit_of_the_later_window_gives_its_turn_back() {
    let world = World::before_the_end(Duration::from_millis(500));
    let slow = rule("slow", &[limit("GCRA", 1, 1_000, json!({}))], wait(3_000));
    let (waiting, other) = (world.program(&[shared(10), slow]), world.program(&[shared(10)]));
    assert_eq!(allowed(&waiting, 1).await, 1);
    let others = async {
        sleep(Duration::from_millis(600)).await;
        allowed(&other, 10).await
    };
    let (second, others) = tokio::join!(waiting.send(get("/shared"), ok), others);
    assert_eq!((second.status().as_u16(), others), (429, 10), "the others have the whole window");
    assert_eq!(second.headers()["retry-after"], "10", "not later than the next window");
    assert_eq!(waiting.counts(0, 1), [1, 0, 0, 0]);
    // Without a shared rule, the next request gets the turn, and does not wait for a second.
    let before = Instant::now();
    assert_eq!(waiting.status("/").await, 200);
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
}

/// The request has a seat of the window, and waits for the other shared rule until the window ends.
#[tokio::test(start_paused = true)]
async fn a_wait_for_another_shared_rule_can_end_a_window_too() {
    let world = World::before_the_end(Duration::from_secs(1));
    let bucket = json!({"shared": {
        "store": STORE, "counters": "shop/p.slow", "stamp": 1, "onStoreLoss": "LocalShare", "sharers": 2,
    }});
    let slow = rule("slow", &[limit("GCRA", 5, 1_000, json!({"burst": 1}))], with(bucket, wait(3_000)));
    let (waiting, other) = (world.program(&[shared(10), slow]), world.program(&[shared(10)]));
    let all = (0..10).map(|_| waiting.send(get("/shared"), ok));
    let statuses: Vec<_> = futures::future::join_all(all).await.iter().map(|answer| answer.status().as_u16()).collect();
    assert_eq!(statuses, [200; 10]);
    assert_eq!(allowed(&other, 20).await, 5, "the rest of the next window");
}

#[tokio::test(start_paused = true)]
async fn who_waits_keeps_its_turn_in_shadow_mode_next_to_a_shared_rule() {
    let world = World::before_the_end(Duration::from_secs(9));
    let memory = Arc::clone(&world.memory);
    let stores = world.stores(move || Ok(Backend::Memory(Arc::clone(&memory))));
    let slow = rule("slow", &[limit("GCRA", 5, 1_000, json!({}))], wait(3_000));
    let of = |mode: &str| [with(policy("p", &[shared(1_000), slow.clone()]), json!({"mode": mode}))];
    let limits = Limits::with_clock(world.clock, &[]);
    limits.apply_with(&of("Enforce"), &stores);
    let turns = futures::future::join_all((0..7).map(|_| passed(limits.send(get("/shared"), ok))));
    let in_shadow = async {
        sleep(Duration::from_millis(100)).await;
        limits.apply_with(&of("Shadow"), &stores);
        for _ in 0..40 {
            assert_eq!(limits.status("/shared").await, 200);
            sleep(Duration::from_millis(50)).await;
        }
    };
    let (turns, ()) = tokio::join!(turns, in_shadow);
    let took: Vec<_> = turns.iter().map(|(response, took)| (response.status().as_u16(), *took)).collect();
    assert!(took.iter().all(|(status, took)| *status == 200 && *took <= 1_300), "{took:?}");
}
