//! Buffers for bytes in transit. The worker lends a buffer only while there are bytes.
//!
//! A connection that waits for its next request owns no buffer. The worker lends the most recently returned buffer
//! first, so a busy worker reuses a few buffers that are in the CPU cache.

use std::{
    cell::RefCell,
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::net::TcpStream;

use super::calls;

/// The initial capacity of a request buffer.
pub(super) const SIZE: usize = 16 * 1024;

/// The initial capacity of a response buffer: it fits a head and a body of 64 KiB. A small response touches only the
/// first bytes. A client that does not read its response occupies one such buffer.
pub(super) const ANSWER_SIZE: usize = 80 * 1024;

/// The maximum number of spare buffers to keep. Thousands of busy connections can need more; those are freed.
const MAX_SPARE: usize = 256;
const MAX_SPARE_LARGE: usize = 32;
const LARGEST_SPARE: usize = 2 * ANSWER_SIZE;

/// The spare buffers of one worker.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    requests: RefCell<Vec<Vec<u8>>>,
    answers: RefCell<Vec<Vec<u8>>>,
    written: RefCell<Vec<Vec<u8>>>,
}

/// Bytes to send.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) bytes: Vec<u8>,
    home: Rc<Buffers>,
}

/// Bytes that were read but not yet used, with space for more after them.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    home: Rc<Buffers>,
}

impl Buffers {
    /// A buffer for a client's requests.
    pub(super) fn lend(self: &Rc<Self>) -> Buffer {
        self.buffer(&self.requests, SIZE)
    }

    /// A buffer for the app's response.
    pub(super) fn lend_for_answer(self: &Rc<Self>) -> Buffer {
        self.buffer(&self.answers, ANSWER_SIZE)
    }

    fn buffer(self: &Rc<Self>, spare: &RefCell<Vec<Vec<u8>>>, size: usize) -> Buffer {
        let bytes = spare.borrow_mut().pop().unwrap_or_else(|| vec![0; size]);
        Buffer { bytes, start: 0, end: 0, home: Rc::clone(self) }
    }

    /// An empty outbox.
    pub(super) fn outbox(self: &Rc<Self>) -> Outbox {
        Outbox { bytes: self.written.borrow_mut().pop().unwrap_or_default(), home: Rc::clone(self) }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let spare = &mut *self.home.written.borrow_mut();
        let most = match self.bytes.capacity() {
            small if small <= SIZE => MAX_SPARE,
            // The vector contained a piece of a chunked body, for which it may have doubled its capacity.
            large if large <= LARGEST_SPARE => MAX_SPARE_LARGE,
            _ => 0,
        };
        if spare.len() < most {
            self.bytes.clear();
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (spare, most) = match self.bytes.len() {
            SIZE => (&self.home.requests, MAX_SPARE),
            ANSWER_SIZE => (&self.home.answers, MAX_SPARE_LARGE),
            _ => return,
        };
        let spare = &mut *spare.borrow_mut();
        if spare.len() < most {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Buffer {
    /// The unused bytes.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Marks `count` bytes as used.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end, "more bytes used than read");
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Makes space after the bytes. Returns false if a buffer of `most` bytes is full.
    pub(super) fn make_room(&mut self, most: usize) -> bool {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() && self.end < most {
            self.bytes.resize(most.min(2 * self.end), 0);
        }
        self.end < self.bytes.len()
    }

    /// Appends bytes, as if they had been read.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let end = self.end + bytes.len();
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[self.end..end].copy_from_slice(bytes);
        self.end = end;
    }

    /// Reads the available bytes into the free space. Returns 0 at the end of the stream.
    #[inline(always)] // see the docs of `calls`
    pub(super) fn poll_fill(&mut self, stream: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let count = ready!(calls::poll_read(stream, &mut self.bytes[self.end..], cx))?;
        self.end += count;
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_in_order_however_they_come_and_go() {
        let buffers = Rc::new(Buffers::default());
        let mut buffer = buffers.lend();
        let bytes: Vec<u8> = (0..3 * SIZE).map(|at| u8::try_from(at % 251).expect("small")).collect();
        buffer.put(&bytes[..100]);
        buffer.consume(60);
        buffer.put(&bytes[100..]);
        assert_eq!(buffer.unread(), &bytes[60..]);
        buffer.consume(bytes.len() - 60);
        assert!(buffer.is_empty());
    }

    #[test]
    fn there_is_room_up_to_the_limit_and_no_more() {
        let buffers = Rc::new(Buffers::default());
        let mut buffer = buffers.lend();
        buffer.put(&[1; SIZE]);
        assert!(!buffer.make_room(SIZE));
        buffer.consume(1);
        assert!(buffer.make_room(SIZE), "the used byte makes space");
        buffer.put(&[2]);
        assert!(!buffer.make_room(SIZE));
        assert!(buffer.make_room(SIZE + 1));
        assert_eq!((buffer.unread().len(), buffer.unread().last()), (SIZE, Some(&2)));
    }

    #[test]
    fn returned_buffers_are_lent_again_unless_they_grew() {
        let buffers = Rc::new(Buffers::default());
        let (mut one, two, answer) = (buffers.lend(), buffers.lend(), buffers.lend_for_answer());
        one.put(&[1; SIZE + 1]);
        drop((one, two, answer));
        assert_eq!((buffers.requests.borrow().len(), buffers.answers.borrow().len()), (1, 1));
        assert!(buffers.lend().is_empty());
        assert_eq!(buffers.lend_for_answer().bytes.len(), ANSWER_SIZE);
    }

    #[test]
    fn only_a_few_large_buffers_are_kept() {
        let buffers = Rc::new(Buffers::default());
        let lent: Vec<_> = (0..=MAX_SPARE_LARGE).map(|_| buffers.lend_for_answer()).collect();
        drop(lent);
        assert_eq!(buffers.answers.borrow().len(), MAX_SPARE_LARGE);
        for (capacity, kept) in [(SIZE, MAX_SPARE), (2 * SIZE, MAX_SPARE_LARGE), (LARGEST_SPARE + 1, 0)] {
            buffers.written.borrow_mut().clear();
            let mut lent: Vec<_> = (0..=MAX_SPARE).map(|_| buffers.outbox()).collect();
            lent.iter_mut().for_each(|outbox| outbox.bytes = Vec::with_capacity(capacity));
            drop(lent);
            assert_eq!(buffers.written.borrow().len(), kept, "{capacity}");
        }
    }
}
