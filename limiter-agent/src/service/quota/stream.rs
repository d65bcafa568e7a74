//! The stream of one data plane: reads reports, and writes assignments.

use std::{
    future::{Ready, ready},
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures::{Stream, future::join_all, stream::unfold};
use prost::Message;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Status, Streaming, server::StreamingService};
use weir_enforce::{MAX_DOMAIN_BYTES, RulesInForce};

use super::{
    allocator::{Assignment, Bucket, Expired, MAX_BUCKET_BYTES, MAX_BUCKETS, StreamId, TooManyBuckets, Usage},
    charge,
    messages::{
        Abandon, Action, BlanketRule, BucketAction, BucketId, BucketUsage, QuotaAssignment, QuotaResponse,
        RateLimitStrategy, Strategy, TokenBucket, UsageReports, usages,
    },
    reports::Reports,
    standing,
};
use crate::service::{
    RateLimitService,
    answer::MAX_ENTRIES,
    call::{SEND_BUFFER, WINDOW},
    messages,
};

/// The interval at which a stream looks for buckets that need an assignment.
const TICK: Duration = Duration::from_millis(100);

/// The time in which an assigned token bucket gets one more token. Envoy has no bucket that is never refilled, and an assignment
/// lives an hour at most.
const REFILL_SECONDS: i64 = 100 * 366 * 86_400;

/// The maximum number of buckets to abandon for one part of a report. The other ones are in the next report again.
const MAX_ABANDONED: usize = 1_000;

/// The maximum memory for the actions of one message, in bytes.
const MAX_ACTIONS: usize = 64 * 1024;

/// The memory that a stream can take while hyper does not ask for a message: the reports in the window of HTTP/2, and
/// the messages that the client does not read.
const UNREAD: usize = WINDOW as usize + SEND_BUFFER;

/// The only method of the gRPC service.
pub(crate) struct StreamRateLimitQuotas {
    pub(crate) service: Arc<RateLimitService>,
    /// Taken by the call.
    pub(crate) reports: Option<Reports>,
}

impl StreamingService<()> for StreamRateLimitQuotas {
    type Response = QuotaResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<QuotaResponse, Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    /// The request of tonic has no messages, because [`Reports`] reads them.
    fn call(&mut self, _: tonic::Request<Streaming<()>>) -> Self::Future {
        let reports = self.reports.take().expect("there is one call");
        let stream = QuotaStream::open(Arc::clone(&self.service), reports);
        let answers = unfold(Some(stream), async |stream| {
            let mut stream = stream?;
            match stream.next().await {
                Ok(response) => Some((Ok(response?), Some(stream))),
                Err(status) => Some((Err(status), None)),
            }
        });
        ready(Ok(tonic::Response::new(Box::pin(answers))))
    }
}

/// A data plane with its connection. It leaves the allocator when this value is dropped.
struct QuotaStream {
    service: Arc<RateLimitService>,
    reports: Reports,
    id: StreamId,
    domain: Option<Arc<str>>,
    /// The rules for which the assignments were made.
    rules: Arc<RulesInForce>,
    ticks: Interval,
    /// Whether the last message had no room for more buckets.
    has_more: bool,
    /// The size of the largest message. The encoder keeps a buffer of this size.
    largest: usize,
}

impl QuotaStream {
    fn open(service: Arc<RateLimitService>, reports: Reports) -> Self {
        let (id, rules) = (service.quotas.allocator().open(), service.rules.load());
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        reports.call().hold(UNREAD);
        Self { service, reports, id, domain: None, rules, ticks, has_more: false, largest: 0 }
    }

    /// Returns the next message for the data plane. `None` at the end of the stream.
    ///
    /// hyper asks for one message more than the client has taken, even if the client takes none. While it asks, the
    /// stream reads its reports. Otherwise they stay in the window of HTTP/2, and count as its size.
    async fn next(&mut self) -> Result<Option<QuotaResponse>, Status> {
        self.reports.call().release(UNREAD);
        self.reports.resume();
        loop {
            tokio::select! {
                () = self.service.drain.cancelled() => return Ok(None),
                part = self.reports.next() => {
                    let Some(part) = part? else { return Ok(None) };
                    let refused = self.read(&part).map_err(Status::invalid_argument)?;
                    if !refused.is_empty() {
                        return Ok(Some(self.response(refused)));
                    }
                }
                () = ready(()), if self.has_more => {}
                _ = self.ticks.tick() => {}
            }
            let actions = self.actions().await;
            if !actions.is_empty() {
                return Ok(Some(self.response(actions)));
            }
        }
    }

    /// Returns the message with these actions, whose memory counts until the client has taken it.
    fn response(&mut self, bucket_action: Vec<BucketAction>) -> QuotaResponse {
        let response = QuotaResponse { bucket_action };
        let larger = response.encoded_len().saturating_sub(self.largest);
        self.largest += larger;
        self.reports.call().hold(larger + UNREAD);
        // This also frees memory if all clients have stopped reading.
        self.reports.call().evict_above_the_bound();
        response
    }

    /// Reads a part of a report, or returns what is wrong with it. Returns actions that abandon the buckets without room: a
    /// data plane repeats a bucket in each report until it gets an action for it.
    fn read(&mut self, part: &[u8]) -> Result<Vec<BucketAction>, String> {
        let reports = UsageReports::decode(part).map_err(|error| error.to_string())?;
        let domain = match &self.domain {
            Some(known) if reports.domain.is_empty() || *reports.domain == **known => Arc::clone(known),
            Some(known) => {
                return Err(format!("domain: is {}, and was {known}: open a stream for each domain", reports.domain));
            }
            None if reports.domain.is_empty() => {
                return Err("domain: must not be empty: set domain in the proxy's rate limit quota filter".to_owned());
            }
            None if reports.domain.len() > MAX_DOMAIN_BYTES => {
                return Err(format!("domain: has more than {MAX_DOMAIN_BYTES} bytes, so no policy has it"));
            }
            None => Arc::clone(self.domain.insert(reports.domain.into())),
        };
        let now = self.service.clock.now();
        let quotas = &self.service.quotas;
        let mut refused = Vec::new();
        for usage in usages(part) {
            const PATH: &str = "bucket_quota_usages.bucket_id.bucket";
            let (usage, count) = usage.map_err(|error| error.to_string())?;
            if count == 0 {
                return Err(format!("{PATH}: must not be empty: set bucket_id_builder in the proxy's filter"));
            }
            if count > MAX_ENTRIES {
                return Err(format!("{PATH}: has {count}, and at most {MAX_ENTRIES} are allowed"));
            }
            let usage = BucketUsage::decode(usage).map_err(|error| error.to_string())?;
            let BucketUsage { bucket_id, num_requests_allowed: allowed, num_requests_denied: denied } = usage;
            let id = bucket_id.unwrap_or_default();
            if id.bucket.contains_key("") {
                return Err(format!("{PATH}: a key must not be empty"));
            }
            // A larger number is wrong, and would make the counter overflow.
            quotas.allowed.fetch_add(allowed.min(u32::MAX.into()), Relaxed);
            quotas.denied.fetch_add(denied.min(u32::MAX.into()), Relaxed);
            let has_room = match id.texts() {
                Some(entries) => {
                    let bucket = Bucket { domain: Arc::clone(&domain), entries };
                    let reported = quotas.allocator().report(self.id, bucket, Usage { allowed, denied }, now);
                    if let Err(TooManyBuckets(bucket)) = &reported
                        && refused.len() < MAX_ABANDONED
                    {
                        refused.push(action(bucket, Action::Abandon(Abandon {})));
                    }
                    reported.is_ok()
                }
                // Envoy ends a stream if an action is not UTF-8, so this bucket gets no action.
                None => false,
            };
            if !has_room && quotas.refused_buckets.fetch_add(1, Relaxed) == 0 {
                tracing::warn!(
                    "a data plane has more than {MAX_BUCKETS} quota buckets, all data planes have too many for the memory, \
                     or a bucket has more than {MAX_BUCKET_BYTES} bytes or a value that is not UTF-8: such a bucket gets no \
                     assignment; let the matchers of the proxy put such requests into one bucket"
                );
            }
        }
        quotas.count_abandoned(refused.len());
        Ok(refused)
    }

    /// Returns the assignments that are due, after their charge, as many as one message may have.
    async fn actions(&mut self) -> Vec<BucketAction> {
        let Self { service, id, .. } = self;
        let (quotas, rules, now) = (&service.quotas, service.rules.load(), service.clock.now());
        let Expired { idle, due, has_more } = {
            let mut allocator = quotas.allocator();
            if !Arc::ptr_eq(&rules, &self.rules) {
                self.rules = rules;
                allocator.rules_changed(*id, now);
            }
            allocator.expired(*id, now, MAX_ACTIONS)
        };
        self.has_more = has_more;
        quotas.count_abandoned(idle.len());
        let abandoned = idle.iter().map(|bucket| action(bucket, Action::Abandon(Abandon {})));
        let assigned = due.iter().map(async |bucket| {
            let (standing, remaining) = standing(&service.rules, bucket);
            let wanted =
                quotas.allocator().wanted(*id, bucket, (standing, remaining.unwrap_or(0)), service.clock.now())?;
            let units = match remaining {
                Some(remaining) => charge(&service.rules, bucket, wanted, remaining).await,
                None => 0,
            };
            let assignment = quotas.allocator().charged(*id, bucket, (standing, units), service.clock.now())?;
            quotas.count(&assignment);
            Some((bucket, assignment))
        });
        let assigned = join_all(assigned).await.into_iter().flatten();
        abandoned.chain(assigned.flat_map(|(bucket, assignment)| assign(bucket, assignment))).collect()
    }
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        self.service.quotas.allocator().close(self.id);
    }
}

fn action(bucket: &Bucket, action: Action) -> BucketAction {
    BucketAction { bucket_id: Some(BucketId { bucket: bucket.entries.clone() }), action: Some(action) }
}

/// Envoy applies the actions of a message in order, and workers see only the last one. If a token bucket replaces another one,
/// the new one has no tokens (Envoy 1.40). So each token bucket replaces a rule that denies all requests.
fn assign(bucket: &Bucket, assignment: Assignment) -> impl Iterator<Item = BucketAction> {
    let before = match assignment {
        Assignment::Tokens { life, .. } => Some(Assignment::DenyAll { life }),
        Assignment::AllowAll { .. } | Assignment::DenyAll { .. } => None,
    };
    before.into_iter().chain([assignment]).map(|assignment| action(bucket, Action::Assignment(assignment.into())))
}

impl From<Assignment> for QuotaAssignment {
    fn from(assignment: Assignment) -> Self {
        let (life, strategy) = match assignment {
            Assignment::AllowAll { life } => (life, Strategy::Blanket(BlanketRule::AllowAll.into())),
            Assignment::DenyAll { life } => (life, Strategy::Blanket(BlanketRule::DenyAll.into())),
            Assignment::Tokens { tokens, life, number } => {
                // Envoy compares tokens and nanoseconds. If both are equal, it keeps the tokens that are left.
                let nanos = number.try_into().unwrap_or(0);
                let fill_interval = Some(messages::Duration { seconds: REFILL_SECONDS, nanos });
                let bucket = TokenBucket { max_tokens: tokens, tokens_per_fill: Some(1), fill_interval };
                (life, Strategy::TokenBucket(bucket))
            }
        };
        let rate_limit_strategy = Some(RateLimitStrategy { strategy: Some(strategy) });
        Self { assignment_time_to_live: Some(life.into()), rate_limit_strategy }
    }
}
