//! The reports of one data plane, as they arrive. A report contains all buckets of a data plane, including those of
//! hostile clients, so it can have any size. It is read in parts: some whole fields of a message are a message, too. A
//! part takes memory only until it was read. The reader of tonic keeps a buffer of the size of the largest message
//! until the stream ends.

use std::sync::Arc;

use axum::body::Body;
use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};
use tonic::Status;

use crate::{
    clock,
    service::{
        call::{Call, TIMEOUT, WINDOW},
        wire::whole_fields,
    },
};

/// The maximum size of a field of a report, in bytes. A field contains one bucket.
const MAX_FIELD: usize = 1024 * 1024;

/// If an incomplete report has at least this size, in bytes, its whole fields are read, because it does not fit in the
/// window.
const LARGE: usize = WINDOW as usize;

/// The size of what comes before each message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The largest message whose memory the next ones may use.
const SMALL: usize = 16 * 1024;

/// The messages of a stream.
pub(in crate::service) struct Reports {
    body: Body,
    call: Arc<Call>,
    /// What has arrived and is not read.
    bytes: BytesMut,
    /// The number of bytes of the current message that are not read. `None` before its prefix.
    unread: Option<usize>,
    /// The time limit for the next part of this message. `None` between messages.
    deadline: Option<Instant>,
}

impl Reports {
    pub(in crate::service) fn new(body: Body, call: Arc<Call>) -> Self {
        Self { body, call, bytes: BytesMut::new(), unread: None, deadline: None }
    }

    pub(super) fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// Continues to read. The time limit of an incomplete message starts again, because the stream was not read in the
    /// meantime.
    pub(super) fn resume(&mut self) {
        if self.deadline.is_some() {
            self.deadline = Some(clock::now() + TIMEOUT);
        }
    }

    /// Returns the next message, or some whole fields of it. `None` at the end of the stream. If the caller drops the future,
    /// nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(part) = self.part()? {
                self.call.begin();
                return Ok(Some(part));
            }
            if self.call.evict_above_the_bound() {
                yield_now().await;
            }
            let frame = self.body.frame();
            let frame = match self.deadline {
                None => frame.await,
                Some(deadline) => timeout_at(deadline, frame).await.map_err(|_elapsed| {
                    Status::deadline_exceeded(format!("the report was incomplete after {TIMEOUT:?}"))
                })?,
            };
            match frame.transpose().map_err(|error| Status::from_error(error.into()))? {
                Some(frame) => self.append(&frame.into_data().unwrap_or_default()),
                None if self.bytes.is_empty() && self.unread.is_none() => return Ok(None),
                None => return Err(Status::internal("the stream ended in the middle of a report")),
            }
        }
    }

    fn append(&mut self, data: &[u8]) {
        self.call.hold(data.len());
        self.bytes.extend_from_slice(data);
        if !self.bytes.is_empty() && self.deadline.is_none() {
            self.deadline = Some(clock::now() + TIMEOUT);
        }
    }

    /// Takes the rest of a message if it has arrived, or the whole fields of a large one.
    fn part(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(unread) = self.unread()? else { return Ok(None) };
        let length = if self.bytes.len() >= unread {
            unread
        } else if self.bytes.len() >= LARGE {
            match whole_fields(&self.bytes) {
                0 if self.bytes.len() > MAX_FIELD => {
                    return Err(Status::out_of_range(format!(
                        "a field of the report has more than {MAX_FIELD} bytes, or is malformed: use shorter values in \
                         bucket_id_builder"
                    )));
                }
                0 => return Ok(None),
                length => length,
            }
        } else {
            return Ok(None);
        };
        let part = self.bytes.split_to(length).freeze();
        self.call.release(length);
        if length > SMALL || self.bytes.is_empty() {
            // Bytes of the next part would keep the memory of this one.
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        self.unread = Some(unread - length).filter(|unread| *unread > 0);
        let is_between = self.unread.is_none() && self.bytes.is_empty();
        self.deadline = (!is_between).then(|| clock::now() + TIMEOUT);
        Ok(Some(part))
    }

    /// Returns the number of bytes of the current message that are not read. `None` if its prefix has not arrived.
    fn unread(&mut self) -> Result<Option<usize>, Status> {
        if self.unread.is_none()
            && let Some(([compression, length @ ..], _)) = self.bytes.split_first_chunk::<PREFIX>()
        {
            if *compression != 0 {
                return Err(Status::unimplemented("the report is compressed: send reports without compression"));
            }
            self.unread = Some(u32::from_be_bytes(*length) as usize);
            self.bytes.advance(PREFIX);
            self.call.release(PREFIX);
        }
        Ok(self.unread)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, net::Ipv4Addr, time::Duration};

    use futures::{FutureExt, StreamExt, stream};
    use tokio::time::sleep;
    use tonic::Code;
    use weir_client::agent::{ConnectionSlots, Rank, Requests};
    use weir_tower::MonotonicClock;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// The reports in these pieces of a stream, each of which arrives after a pause. The stream does not end.
    fn reports(pieces: Vec<(Duration, Vec<u8>)>) -> Reports {
        let clock = MonotonicClock::start();
        let slot = ConnectionSlots::new(1, 1).try_take(Ipv4Addr::LOCALHOST.into(), Rank::Idle, clock.now());
        let call = Call::new(&Requests::new(slot.expect("a free slot"), clock));
        let arrives = async |(pause, piece): (Duration, Vec<u8>)| {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            Ok::<_, Infallible>(piece)
        };
        let pieces = stream::iter(pieces).then(arrives).chain(stream::pending());
        Reports::new(Body::from_stream(pieces), call)
    }

    fn message(length: usize) -> Vec<u8> {
        let prefix = u32::try_from(length).expect("short").to_be_bytes();
        [&[0], &prefix[..], &vec![7; length]].concat()
    }

    #[tokio::test]
    async fn messages_arrive_whole_however_they_are_split_and_leave_no_memory() {
        const LENGTHS: [usize; 6] = [0, 1, 100_000, 3, 40_000, 7];
        let stream = LENGTHS.map(message).concat();
        for size in [1, 2, 5, 7, 1_000, 16_384, stream.len()] {
            let pieces = stream.chunks(size).map(|piece| (Duration::ZERO, piece.to_vec())).collect();
            let mut reports = reports(pieces);
            for length in LENGTHS {
                let message = reports.next().await.expect("valid").expect("a message");
                assert!(message.len() == length && message.iter().all(|byte| *byte == 7), "{length} of {size}");
            }
            assert!(reports.next().now_or_never().is_none());
            assert!(reports.bytes.capacity() == 0 && reports.deadline.is_none(), "{size}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_report_that_has_begun_has_a_time_limit() {
        let mut reports = reports(vec![
            (LONG, message(10)),
            (LONG, message(10)[..3].to_vec()),
            (Duration::from_secs(9), message(10)[3..].to_vec()),
            (LONG, message(10)[..14].to_vec()),
        ]);
        let begun = clock::now();
        for _ in 0..2 {
            assert_eq!(reports.next().await.expect("in time").expect("a message").len(), 10);
        }
        let late = reports.next().await.expect_err("the last byte does not arrive");
        assert_eq!(late.code(), Code::DeadlineExceeded);
        let seconds = (3 * LONG + Duration::from_secs(9) + TIMEOUT).as_secs();
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_has_its_whole_time_after_a_pause_of_the_reader() {
        let first = (Duration::ZERO, message(10)[..3].to_vec());
        let mut reports = reports(vec![first, (Duration::from_secs(15), message(10)[3..].to_vec())]);
        assert!(reports.next().now_or_never().is_none());
        tokio::time::advance(Duration::from_secs(9)).await;
        reports.resume();
        assert_eq!(reports.next().await.expect("in time").expect("a message").len(), 10);
    }

    #[tokio::test]
    async fn a_large_report_arrives_in_parts_of_whole_fields() {
        const FIELDS: usize = 500;
        const FIELD: usize = 1_003;
        let field = [&[2 << 3 | 2, 0xe8, 0x07], &[7; 1_000][..]].concat();
        let report =
            [message(0), message(FIELDS * FIELD)[..PREFIX].to_vec(), field.repeat(FIELDS), message(3)].concat();
        for size in [1_000, 16_384, report.len()] {
            let pieces = report.chunks(size).map(|piece| (Duration::ZERO, piece.to_vec())).collect();
            let mut reports = reports(pieces);
            assert!(reports.next().await.expect("valid").expect("a message").is_empty());
            let mut fields = 0;
            while fields < FIELDS {
                let part = reports.next().await.expect("valid").expect("a part");
                assert!(!part.is_empty() && part.len().is_multiple_of(FIELD) && part.len() < LARGE + size, "{size}");
                assert!(part.chunks(FIELD).all(|one| one == field), "{size}");
                fields += part.len() / FIELD;
            }
            assert_eq!(reports.next().await.expect("valid").expect("a message").len(), 3);
            assert!(reports.bytes.capacity() == 0 && reports.deadline.is_none(), "{size}");
        }
    }

    #[tokio::test]
    async fn a_field_that_is_too_large_and_a_compressed_report_are_refused() {
        let large = [&[0, 255, 0, 0, 0, 2 << 3 | 2, 0xff, 0xff, 0xff, 0x0f], &vec![7; MAX_FIELD][..]].concat();
        for (bytes, code) in [(large, Code::OutOfRange), (vec![1, 0, 0, 0, 1], Code::Unimplemented)] {
            let mut reports = reports(bytes.chunks(16_384).map(|piece| (Duration::ZERO, piece.to_vec())).collect());
            assert_eq!(reports.next().await.expect_err("refused").code(), code);
        }
    }
}
