//! The head of an HTTP/2 request that arrives slowly.
//!
//! h2 decodes a head while its frames arrive, without a time limit and without a bound for all connections. Each frame
//! begins with its length and its type, so this module sees where a head begins and ends. It sets the limits of
//! `partial_head`: the header timeout, the bound for all incomplete heads, and eviction before idle connections.

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use tokio::time::{Sleep, sleep};
use weir_client::agent::Rank;

use super::partial_head::{EVICTED_TIMEOUT, MOST_BYTES};
use crate::proxy::open_connection::OpenConnection;

/// The length of the preface, which comes before the first frame.
const PREFACE: usize = 24;

/// The head of a frame (RFC 9113 section 4.1), two types of frames, and the flag of the last frame of a head.
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the heads of one HTTP/2 connection.
#[derive(Debug)]
pub(super) struct HeadFrames {
    frames: Frames,
    partial: Option<Partial>,
    open: Arc<OpenConnection>,
}

/// An incomplete head.
#[derive(Debug)]
struct Partial {
    over: Pin<Box<Sleep>>,
    /// The connection was evicted before this head began, so its client may complete the head.
    was_evicted: bool,
    /// The bytes of this connection in `Proxy::partial_heads`. `None` while other requests are in progress. Then the
    /// connection cannot be evicted.
    counted: Option<usize>,
}

impl HeadFrames {
    pub(super) fn new(open: &Arc<OpenConnection>) -> Self {
        Self { frames: Frames::default(), partial: None, open: Arc::clone(open) }
    }

    /// Follows the next bytes. `is_busy` says that requests are in progress.
    pub(super) fn follow(&mut self, new: &[u8], is_busy: bool) {
        let is_ended = self.frames.follow(new);
        let proxy = &self.open.proxy;
        let bytes = self.frames.partial(proxy.settings.max_header_bytes as usize);
        if is_ended || bytes.is_none() {
            // The same bytes can begin another head, which has its own time.
            if self.uncount() && bytes.is_none() && !is_busy {
                self.open.set_idle(proxy.clock.now());
            }
            self.partial = None;
        }
        let Some(bytes) = bytes else { return };
        let partial = self.partial.get_or_insert_with(|| {
            let was_evicted = self.open.is_evicted();
            let limit = proxy.settings.header_timeout;
            let limit = if was_evicted { limit.min(EVICTED_TIMEOUT) } else { limit };
            Partial { over: Box::pin(sleep(limit)), was_evicted, counted: None }
        });
        if is_busy {
            return;
        }
        let before = partial.counted.replace(bytes).unwrap_or_else(|| {
            self.open.begin_slowly(proxy.clock.now());
            0
        });
        proxy.partial_heads.fetch_add(bytes, Relaxed);
        if proxy.partial_heads.fetch_sub(before, Relaxed) - before > MOST_BYTES {
            proxy.slots.make_room(Rank::Silent);
        }
    }

    /// Fails if the rest of a head has not arrived in time, or if the connection was evicted in the meantime.
    pub(super) fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(partial) = &mut self.partial else { return Ok(()) };
        let is_over = matches!(partial.over.as_mut().poll(cx), Poll::Ready(()));
        if is_over || (!partial.was_evicted && self.open.is_evicted()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Ends the count of the bytes. Returns false if none were counted.
    fn uncount(&self) -> bool {
        let counted = self.partial.as_ref().and_then(|partial| partial.counted);
        self.open.proxy.partial_heads.fetch_sub(counted.unwrap_or(0), Relaxed);
        counted.is_some()
    }
}

impl Drop for HeadFrames {
    fn drop(&mut self) {
        self.uncount();
    }
}

/// The place of the last byte within the frames of a connection.
#[derive(Debug)]
struct Frames {
    /// The beginning of the next frame's head.
    head: [u8; FRAME_HEAD],
    have: usize,
    /// The type of the current frame, its length, and the bytes of it that have not arrived.
    kind: u8,
    length: usize,
    left: usize,
    /// Whether further frames belong to the last head.
    continues: bool,
}

impl Default for Frames {
    fn default() -> Self {
        // h2 does not decode the preface, and does not keep it.
        Self { head: [0; FRAME_HEAD], have: 0, kind: DATA, length: PREFACE, left: PREFACE, continues: false }
    }
}

impl Frames {
    /// Follows the next bytes. Returns true if a head, or a frame outside of a head, ends in them.
    fn follow(&mut self, mut new: &[u8]) -> bool {
        let mut is_ended = false;
        while !new.is_empty() {
            if self.left > 0 {
                let count = self.left.min(new.len());
                self.left -= count;
                new = &new[count..];
                is_ended |= self.left == 0 && !self.continues;
                continue;
            }
            let (head, rest) = new.split_at(new.len().min(FRAME_HEAD - self.have));
            self.head[self.have..][..head.len()].copy_from_slice(head);
            self.have += head.len();
            new = rest;
            if self.have == FRAME_HEAD {
                let [high, middle, low, kind, flags, ..] = self.head;
                self.length = u32::from_be_bytes([0, high, middle, low]) as usize;
                (self.have, self.left, self.kind) = (0, self.length, kind);
                if matches!(kind, HEADERS | CONTINUATION) {
                    self.continues = flags & END_HEADERS == 0;
                }
                is_ended |= self.left == 0 && !self.continues;
            }
        }
        is_ended
    }

    /// The bytes to count for an incomplete head, or `None` if there is none. An incomplete frame of another type than
    /// DATA is also one: h2 keeps its bytes. After the first frame of several, it is the most that h2 keeps of a head,
    /// because a few compressed bytes can be many headers.
    fn partial(&self, most: usize) -> Option<usize> {
        if self.continues || (self.kind == CONTINUATION && self.left > 0) {
            return Some(most);
        }
        let arrived = if self.left > 0 && self.kind != DATA { FRAME_HEAD + self.length - self.left } else { self.have };
        (arrived > 0).then_some(arrived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1_000_000;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(frame.len() + usize::from(length), 0xff);
        frame
    }

    #[test]
    fn a_head_begins_with_its_first_byte_and_ends_with_its_last_frame() {
        let (settings, data) = (frame(4, 0, 6), frame(DATA, 1, 200));
        let (whole, first) = (frame(HEADERS, END_HEADERS | 1, 50), frame(HEADERS, 1, 30));
        let (more, last) = (frame(CONTINUATION, 0, 20), frame(CONTINUATION, END_HEADERS, 10));
        let all = [vec![b'P'; PREFACE], settings, whole, data, first, more, last].concat();
        // By hand, from the lengths of the frames: the bytes at whose arrival no head is incomplete.
        let data_at = PREFACE + 15 + 59;
        let first_at = data_at + 209;
        let expected = |arrived: usize| match arrived {
            ..=PREFACE => None,
            _ if arrived < PREFACE + 15 => Some(arrived - PREFACE),
            _ if arrived == PREFACE + 15 => None,
            _ if arrived < data_at => Some(arrived - PREFACE - 15),
            _ if arrived == data_at || arrived == all.len() => None,
            // DATA is no part of a head once its type is known.
            _ if arrived < data_at + FRAME_HEAD => Some(arrived - data_at),
            _ if arrived <= first_at => None,
            _ if arrived < first_at + FRAME_HEAD => Some(arrived - first_at),
            _ => Some(MOST),
        };
        // The preface, the frames, and the head of two frames.
        let ends = [PREFACE, PREFACE + 15, data_at, first_at, all.len()];
        for piece in [1, 2, 7, 64, all.len()] {
            let mut frames = Frames::default();
            let mut arrived = 0;
            for bytes in all.chunks(piece) {
                let before = arrived;
                arrived += bytes.len();
                let is_ended = ends.iter().any(|end| (before + 1..=arrived).contains(end));
                assert_eq!(frames.follow(bytes), is_ended, "{arrived} bytes in pieces of {piece}");
                assert_eq!(frames.partial(MOST), expected(arrived), "{arrived} bytes in pieces of {piece}");
            }
        }
    }
}
