//! Bounds the memory of uploads that the app does not read.
//!
//! Such an upload holds the buffers between its client and the app, for as long as the app is slow. So if the app has
//! accepted nothing of an upload for [`PATIENCE`], the upload counts as stalled, and the process has at most [`MOST`]
//! stalled uploads. Beyond that, the agent selects the client address with the most stalled uploads, and gives up the
//! oldest of them. The client gets 503, and its other requests continue. If the response has begun, it breaks off over
//! HTTP/1. Over HTTP/2 to the app, an upload no longer counts once the response has begun: h2 cannot end it alone, and a
//! stream with messages in both directions can be slow for good reasons.
//!
//! Over HTTP/1, the app accepts nothing if its socket is full (`app_stream`). Over HTTP/2, the app can close the window of
//! a stream, and hyper then polls for no more data of the body (`streams`).

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::task::AtomicWaker;
use tokio::{
    task_local,
    time::{Sleep, sleep},
};

use super::read_progress::ReadProgress;

/// The longest pause of an app that reads an upload. If an app's socket is full, the
/// kernel asks for more only after the app has read a sixteenth of its buffer, up to 400 KB. By this number, an app that
/// reads 64 KiB a second makes no such pause.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum number of stalled uploads. Each takes up to about 256 KiB, so all of them take 32 MiB.
pub(super) const MOST: usize = 128;

task_local! {
    /// The upload that the current task has begun to send to the app.
    pub(super) static CURRENT: RefCell<Option<Arc<Upload>>>;
}

/// The stalled uploads of all workers.
#[derive(Debug, Default)]
pub(crate) struct StalledUploads(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// In the order in which they stalled.
    stalled: BTreeMap<u64, Arc<Upload>>,
}

/// A request body on its way to the app.
#[derive(Debug)]
pub(super) struct Upload {
    all: Arc<StalledUploads>,
    peer: IpAddr,
    /// Over HTTP/2, whether the app accepts the body.
    pub(super) progress: ReadProgress,
    is_given_up: AtomicBool,
    /// Whether the upload no longer counts.
    is_exempt: AtomicBool,
    /// The task that waits for the response, and the task that sends the body.
    request: AtomicWaker,
    writer: AtomicWaker,
}

/// A pause of the app that reads an upload. Drop this value when the pause is over.
#[derive(Debug)]
pub(super) struct Stall {
    upload: Arc<Upload>,
    patience: Pin<Box<Sleep>>,
    /// The number of the upload in the table.
    number: Option<u64>,
}

impl StalledUploads {
    /// Counts a stalled upload. Gives up another one, or this one, if there are too many.
    fn count(&self, upload: &Arc<Upload>) -> u64 {
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.stalled.insert(number, Arc::clone(upload));
        if table.stalled.len() > MOST {
            let mut peers = HashMap::<IpAddr, usize>::new();
            for upload in table.stalled.values() {
                *peers.entry(upload.peer).or_default() += 1;
            }
            let worst = table.stalled.iter().max_by_key(|(number, upload)| (peers[&upload.peer], Reverse(**number)));
            if let Some(upload) = worst.map(|(number, _)| *number).and_then(|number| table.stalled.remove(&number)) {
                upload.give_up();
            }
        }
        number
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No operation under this lock can panic and leave an inconsistent table.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    pub(super) fn new(all: &Arc<StalledUploads>, peer: IpAddr) -> Arc<Self> {
        let (progress, is_given_up, is_exempt, request, writer) = Default::default();
        Arc::new(Self { all: Arc::clone(all), peer, progress, is_given_up, is_exempt, request, writer })
    }

    /// Makes this upload the one of the current task.
    pub(super) fn enter(self: &Arc<Self>) {
        let _ = CURRENT.try_with(|current| current.replace(Some(Arc::clone(self))));
    }

    /// Lets the agent never give the upload up, because its response has begun over HTTP/2.
    pub(super) fn exempt(&self) {
        self.is_exempt.store(true, Ordering::Release);
        self.writer.wake();
    }

    /// Returns ready once the agent has given the upload up. Only the task that waits for the response is allowed to
    /// call this function.
    pub(super) fn poll_given_up(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll_with(&self.request, cx)
    }

    fn give_up(&self) {
        tracing::debug!("the app does not read an upload");
        self.is_given_up.store(true, Ordering::Release);
        self.request.wake();
        self.writer.wake();
    }

    fn poll_with(&self, waker: &AtomicWaker, cx: &Context<'_>) -> Poll<()> {
        waker.register(cx.waker());
        if self.is_given_up.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Stall {
    /// Begins when the app has not accepted a part of the upload.
    pub(super) fn new(upload: &Arc<Upload>) -> Self {
        Self { upload: Arc::clone(upload), patience: Box::pin(sleep(PATIENCE)), number: None }
    }

    /// Counts the upload if the pause lasts too long. Returns ready once the agent has given the upload up.
    pub(super) fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.upload.is_exempt.load(Ordering::Acquire) {
            self.leave();
            return Poll::Pending;
        }
        if self.number.is_none() && self.patience.as_mut().poll(cx).is_ready() {
            self.number = Some(self.upload.all.count(&self.upload));
        }
        self.upload.poll_with(&self.upload.writer, cx)
    }

    fn leave(&mut self) {
        if let Some(number) = self.number.take() {
            self.upload.all.lock().stalled.remove(&number);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
impl StalledUploads {
    /// The number of stalled uploads now.
    pub(super) fn number(&self) -> usize {
        self.lock().stalled.len()
    }

    /// Gives up all stalled uploads.
    pub(super) fn give_up_all(&self) {
        std::mem::take(&mut self.lock().stalled).values().for_each(|upload| upload.give_up());
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, net::Ipv4Addr};

    use futures::FutureExt;

    use super::*;

    fn is_given_up(stall: &mut Stall) -> bool {
        poll_fn(|cx| stall.poll_given_up(cx)).now_or_never().is_some()
    }

    async fn stalled(all: &Arc<StalledUploads>, peer: u8) -> Stall {
        let mut stall = Stall::new(&Upload::new(all, Ipv4Addr::new(10, 0, 0, peer).into()));
        assert!(!is_given_up(&mut stall));
        sleep(PATIENCE).await;
        // The uploads of one moment are counted in this order.
        let _ = is_given_up(&mut stall);
        stall
    }

    #[tokio::test(start_paused = true)]
    async fn of_the_address_with_the_most_the_upload_that_stalled_first_is_given_up() {
        let all = Arc::<StalledUploads>::default();
        let mut single = stalled(&all, 1).await;
        let mut crowd = Vec::new();
        for _ in 0..MOST - 1 {
            crowd.push(stalled(&all, 2).await);
        }
        assert!(!is_given_up(&mut single) && !crowd.iter_mut().any(is_given_up), "exactly at the bound");
        for _ in 0..3 {
            crowd.push(stalled(&all, 2).await);
        }
        let mut newcomer = stalled(&all, 3).await;
        let gone: Vec<usize> = (0..crowd.len()).filter(|&number| is_given_up(&mut crowd[number])).collect();
        assert_eq!(gone, [0, 1, 2, 3]);
        assert!(!is_given_up(&mut single) && !is_given_up(&mut newcomer));
        assert_eq!(all.number(), MOST);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_counts_after_a_pause_until_the_app_reads_on() {
        let all = Arc::<StalledUploads>::default();
        let mut stall = Stall::new(&Upload::new(&all, Ipv4Addr::LOCALHOST.into()));
        assert!(!is_given_up(&mut stall));
        sleep(PATIENCE - Duration::from_millis(10)).await;
        assert!(!is_given_up(&mut stall) && all.number() == 0);
        sleep(Duration::from_millis(10)).await;
        assert!(!is_given_up(&mut stall) && all.number() == 1);
        drop(stall);
        assert_eq!(all.number(), 0);
    }

    /// Over HTTP/2, the response has begun.
    #[tokio::test(start_paused = true)]
    async fn an_exempt_upload_does_not_count_and_is_not_given_up() {
        let all = Arc::<StalledUploads>::default();
        let mut stall = stalled(&all, 1).await;
        assert_eq!(all.number(), 1);
        stall.upload.exempt();
        assert!(!is_given_up(&mut stall) && all.number() == 0);
        all.give_up_all();
        sleep(2 * PATIENCE).await;
        assert!(!is_given_up(&mut stall) && all.number() == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn both_tasks_of_an_upload_learn_that_it_was_given_up() {
        let all = Arc::<StalledUploads>::default();
        let upload = Upload::new(&all, Ipv4Addr::LOCALHOST.into());
        let mut stall = Stall::new(&upload);
        let give_up = async {
            sleep(2 * PATIENCE).await;
            all.give_up_all();
        };
        tokio::join!(poll_fn(|cx| upload.poll_given_up(cx)), poll_fn(|cx| stall.poll_given_up(cx)), give_up);
    }
}
