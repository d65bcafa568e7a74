//! Watches objects of the apiserver, with delays after failures.

use std::{
    fmt::Debug,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{Stream, TryStreamExt};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, Event, watcher},
    },
};
use rand::Rng;
use serde::de::DeserializeOwned;

use crate::wording::chain;

/// The time after which the apiserver ends a watch, in seconds. The next watch continues it. If an apiserver disappears
/// without closing its connections, its watches end 5 s later. Bookmarks do not show that a watch is alive: a new
/// apiserver sends none for a kind without changes.
const WATCH_SECONDS: u32 = 60;

/// The number of objects in a response to a listing. All of them are in memory with their managed fields, of which the
/// operator keeps nothing: 500 pods need more than 10 MiB.
const PAGE: u32 = 100;

/// Returns the events of the objects, without [`Event::Init`]. This event precedes each attempt to list, so it would
/// end the delays even if each attempt fails. If a listing fails, the stream returns the error and starts the next
/// listing from the beginning. The first pages of a listing do not end the delays either, because its next page can
/// fail each time.
pub(crate) fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let backoff = ShortBackoff::default();
    let is_listing = backoff.is_listing.clone();
    let events = watcher(api, config.timeout(WATCH_SECONDS).page_size(PAGE));
    let events = events.inspect_ok(move |event| is_listing.store(matches!(event, Event::InitApply(_)), Relaxed));
    events.try_filter(|event| ready(!matches!(event, Event::Init))).backoff(backoff)
}

/// Logs that a watch failed, with the cause at the end of the chain, such as "connection refused".
pub(crate) fn warn(kind: &str, error: &watcher::Error) {
    tracing::warn!(kind, error = chain(error), "watch failed, trying again");
}

/// Jittered delays of at most a few seconds. So a CRD that is installed after the operator, or an apiserver that
/// becomes available again, is noticed within seconds.
#[derive(Default)]
pub(crate) struct ShortBackoff {
    failures: u32,
    /// True while a listing is not complete. It does not end the delays.
    is_listing: Arc<AtomicBool>,
}

impl Iterator for ShortBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let most = Duration::from_millis(200).saturating_mul(1 << self.failures.min(5)).min(Duration::from_secs(5));
        self.failures += 1;
        Some(most.mul_f64(rand::rng().random_range(0.5..=1.0)))
    }
}

impl Backoff for ShortBackoff {
    fn reset(&mut self) {
        if !self.is_listing.load(Relaxed) {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::atomic::AtomicUsize};

    use bytes::Bytes;
    use futures::{StreamExt, stream, stream::BoxStream};
    use http::{Request, Response, StatusCode};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use k8s_openapi::api::core::v1::Service;
    use kube::{Client, client::Body};

    use super::{super::object::object, *};

    /// Each listing is forbidden. In a minute, there are some dozen attempts, not thousands.
    #[tokio::test(start_paused = true)]
    async fn failed_listings_are_repeated_with_delays() {
        let requests = Arc::new(AtomicUsize::new(0));
        let apiserver = tower::service_fn({
            let requests = Arc::clone(&requests);
            move |_: Request<Body>| {
                requests.fetch_add(1, Relaxed);
                let status =
                    r#"{"kind": "Status", "status": "Failure", "message": "", "reason": "Forbidden", "code": 403}"#;
                let response = Response::builder().status(StatusCode::FORBIDDEN);
                async { response.body(Body::from(status.as_bytes().to_vec())) }
            }
        });
        let services: Api<Service> = Api::all(Client::new(apiserver, "default"));
        let mut events = watch(services, watcher::Config::default()).boxed();
        let minute = async {
            loop {
                let event = events.next().await;
                assert!(matches!(event, Some(Err(watcher::Error::InitialListFailed(_)))), "{event:?}");
            }
        };
        let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(60), minute).await;
        assert!((10..40).contains(&requests.load(Relaxed)), "{requests:?} requests");
    }

    /// The first page of each listing succeeds, and the second one fails.
    #[tokio::test(start_paused = true)]
    async fn incomplete_listings_are_repeated_with_delays() {
        let pages = Arc::new(AtomicUsize::new(0));
        let apiserver = tower::service_fn({
            let pages = Arc::clone(&pages);
            move |request: Request<Body>| {
                pages.fetch_add(1, Relaxed);
                let is_second = request.uri().query().unwrap_or_default().contains("continue=");
                let (status, text) = if is_second {
                    let text = r#"{"kind": "Status", "status": "Failure", "message": "", "reason": "", "code": 500}"#;
                    (StatusCode::INTERNAL_SERVER_ERROR, text)
                } else {
                    let text = r#"{"metadata": {"resourceVersion": "7", "continue": "2"},
                        "items": [{"metadata": {"name": "web"}}, {"metadata": {"name": "db"}}]}"#;
                    (StatusCode::OK, text)
                };
                async move { Response::builder().status(status).body(Body::from(text.as_bytes().to_vec())) }
            }
        });
        let services: Api<Service> = Api::all(Client::new(apiserver, "default"));
        let mut events = watch(services, watcher::Config::default()).boxed();
        let minute = async {
            loop {
                let event = events.next().await;
                assert!(!matches!(event, Some(Ok(Event::InitDone)) | None), "{event:?}");
            }
        };
        let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(60), minute).await;
        assert!((20..80).contains(&pages.load(Relaxed)), "{pages:?} pages");
    }

    /// The apiserver disappears without closing the connection of a watch. Its requests get the last known version.
    #[tokio::test(start_paused = true)]
    async fn a_silent_watch_is_repeated() {
        let watches = Arc::new(AtomicUsize::new(0));
        let apiserver = tower::service_fn({
            let watches = Arc::clone(&watches);
            move |request: Request<Body>| {
                let query = request.uri().query().unwrap_or_default();
                let body: BoxStream<'_, Result<Frame<Bytes>, Infallible>> = if query.contains("watch=true") {
                    assert!(query.contains("timeoutSeconds=60") && query.contains("resourceVersion=7"), "{query}");
                    watches.fetch_add(1, Relaxed);
                    stream::pending().boxed()
                } else {
                    let list = r#"{"metadata": {"resourceVersion": "7"}, "items": []}"#;
                    stream::iter([Ok(Frame::data(Bytes::from_static(list.as_bytes())))]).boxed()
                };
                async { Response::builder().body(StreamBody::new(body)) }
            }
        });
        let services: Api<Service> = Api::all(Client::new(apiserver, "default"));
        let of_one = object(&services, "web").map(|service| assert_eq!(service, None)).boxed();
        let of_all = watch(services, watcher::Config::default());
        let of_all = of_all.map(|event| assert!(matches!(event, Ok(Event::InitDone)), "{event:?}")).boxed();
        for events in [of_one, of_all] {
            let ended = tokio::time::timeout(Duration::from_secs(140), events.for_each(ready)).await;
            assert_eq!((ended.is_err(), watches.swap(0, Relaxed)), (true, 3));
        }
    }
}
