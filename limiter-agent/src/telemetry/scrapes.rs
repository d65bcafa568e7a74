//! Bounds what scrapes take.
//!
//! Each client can scrape, and the thread that renders the metrics also serves probes and the operator. So scrapes that
//! arrive together share one text, and there is a pause after each rendering. Each scrape still gets a text that was
//! rendered after it arrived.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use bytes::Bytes;
use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use crate::clock;

/// The pause after a rendering, as a multiple of its time. So rendering takes at most a fifth of the thread's time.
const PAUSE: u32 = 4;

/// The longest pause. Otherwise an agent that was suspended during a rendering would have no metrics for four times as long.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The largest sum of the texts that are in memory, because their clients do not read them.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// A text, or a status with the reason why there is none.
pub(super) type Scrape = Result<Bytes, (StatusCode, String)>;

/// The newest text, which scrapes share.
#[derive(Debug)]
pub(super) struct Scrapes {
    /// Locked during a rendering and the pause before it.
    last: Mutex<Option<Last>>,
    /// A permit for each byte of a text.
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Last {
    began: Instant,
    next_at: Instant,
    scrape: Scrape,
}

/// A text whose bytes count until its last reader has sent it.
struct Counted {
    text: String,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Default for Scrapes {
    fn default() -> Self {
        Self { last: Mutex::default(), room: Arc::new(Semaphore::new(MOST_BYTES)) }
    }
}

impl Scrapes {
    /// Returns what `render` returns now or soon, to this call or to another one that waits.
    pub(super) async fn scrape(&self, render: impl FnOnce() -> Result<String, prometheus::Error>) -> Scrape {
        let asked = clock::now();
        let mut last = self.last.lock().await;
        if let Some(Last { began, next_at, scrape }) = &*last {
            if *began >= asked {
                return scrape.clone();
            }
            sleep_until(*next_at).await;
        }
        *last = None;
        let began = clock::now();
        let scrape = match render() {
            Ok(text) => self.counted(text),
            Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))),
        };
        let ended = clock::now();
        *last = Some(Last { began, next_at: ended + pause(ended - began), scrape: scrape.clone() });
        scrape
    }

    fn counted(&self, text: String) -> Scrape {
        let bytes = u32::try_from(text.len().min(MOST_BYTES)).unwrap_or(u32::MAX);
        match Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            Ok(permit) => Ok(Bytes::from_owner(Counted { text, _permit: permit })),
            Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "too many clients do not read their metrics\n".to_owned())),
        }
    }
}

/// Returns the pause after a rendering of this length.
fn pause(rendering: Duration) -> Duration {
    LONGEST_PAUSE.min(PAUSE * rendering)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, iter, thread};

    use futures::future::join_all;

    use super::*;

    /// The first scrape is alone. All others arrive before the second rendering.
    #[tokio::test]
    async fn scrapes_that_arrive_together_share_one_rendering() {
        let (scrapes, renderings) = (Scrapes::default(), RefCell::new(Vec::new()));
        let render = || {
            let began = Instant::now();
            thread::sleep(Duration::from_millis(10));
            renderings.borrow_mut().push((began, Instant::now()));
            Ok(renderings.borrow().len().to_string())
        };
        let texts = join_all((0..100).map(|_| scrapes.scrape(render))).await;
        let wanted: Vec<_> = iter::once("1").chain(iter::repeat_n("2", 99)).map(|text| Ok(text.into())).collect();
        assert_eq!(texts, wanted);
        let [(began, ended), (next, _)] = renderings.borrow()[..] else { panic!("{renderings:?}") };
        assert!(next - ended >= pause(ended - began), "{renderings:?}");
        assert_eq!(scrapes.scrape(render).await, Ok("3".into()), "a later scrape gets a later text");
    }

    #[tokio::test]
    async fn the_texts_that_clients_do_not_read_have_a_bound() {
        let scrapes = Scrapes::default();
        let scrape = async |length: usize| scrapes.scrape(|| Ok("x".repeat(length))).await;
        let status = |scrape: Scrape| scrape.map_err(|(status, _)| status.as_u16());
        let unread = [scrape(MOST_BYTES / 2).await, scrape(MOST_BYTES / 2).await];
        assert!(unread.iter().all(Result::is_ok));
        assert_eq!(status(scrape(1).await), Err(503));
        drop(unread);
        assert_eq!(status(scrape(1).await), Ok("x".into()));
        for _ in 0..2 {
            assert!(scrape(2 * MOST_BYTES).await.is_ok(), "one text always has room");
        }
    }
}
