//! The head of an HTTP/1 request that arrives slowly. It takes only the memory of its bytes until it is complete.
//!
//! hyper's state of a connection and its buffers take 20 kB, and twice the bytes of a long head. So hyper gets a request
//! only when its head is complete or too long, or when its first line or its framing shows that it will be refused.
//! Until then the connection can be evicted, before idle ones, and all such heads together have a bound.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use tokio::{net::TcpStream, task::yield_now, time::timeout};
use weir_client::agent::{Eviction, Rank};

use super::strict::Strict;
use crate::proxy::{hand_over::End, open_connection::OpenConnection, state::Proxy};

/// The maximum number of bytes of all incomplete heads of the process. Beyond it, the oldest one is evicted.
pub(super) const MOST_BYTES: usize = 16 * 1024 * 1024;

/// The time for the rest of a head that had begun when its connection was evicted as an idle one.
pub(super) const EVICTED_TIMEOUT: Duration = Duration::from_secs(1);

/// The most bytes to read at once.
const PIECE: usize = 16 * 1024;

/// Waits for the rest of a head that begins with `before`, which can be empty lines. If nothing was read before, the
/// connection goes to hyper immediately, except if `is_first` says that no other path could read the head. Returns the
/// bytes for hyper: they contain a whole head, or one that hyper refuses.
///
/// # Errors
///
/// Returns the end of the connection if the rest does not arrive.
pub(in super::super) async fn rest(
    stream: TcpStream,
    before: Bytes,
    is_first: bool,
    open: &Arc<OpenConnection>,
) -> Result<(TcpStream, Bytes), End> {
    let proxy = &open.proxy;
    let most = proxy.settings.max_header_bytes as usize;
    let (mut strict, mut first_line) = (Strict::default(), FirstLine::default());
    let is_over = (before.is_empty() && !is_first) || before.len() > most || first_line.is_refused(&before);
    if is_over || strict.check(&before).is_some() || !strict.is_in_first_head() {
        return Ok((stream, before));
    }
    open.begin_slowly(proxy.clock.now());
    let mut head = Head { bytes: before.to_vec(), counted: 0, proxy };
    drop(before);
    head.count(&strict);
    let arrives = async {
        loop {
            stream.readable().await?;
            if head.is_over_the_bound() {
                // Evicted connections end before this one reads on, even if many heads arrive together.
                yield_now().await;
            }
            let Some(read) = head.read(&stream)? else { continue };
            let new = &head.bytes[head.bytes.len() - read..];
            // After the first bytes, only a complete line is parsed. Otherwise, single bytes would cost the square of their
            // number.
            let is_refused = (read == head.bytes.len() || new.contains(&b'\n')) && first_line.is_refused(&head.bytes);
            // At the end of the stream, hyper closes the connection.
            let is_over = read == 0 || is_refused || head.bytes.len() > most;
            if is_over || strict.check(new).is_some() || !strict.is_in_first_head() {
                return io::Result::Ok(());
            }
            head.count(&strict);
        }
    };
    let is_evicted = open.is_evicted();
    let longest = if is_evicted { EVICTED_TIMEOUT } else { Duration::MAX };
    let ended = tokio::select! {
        ended = timeout(proxy.settings.header_timeout.min(longest), arrives) => ended,
        () = open.evicted(), if !is_evicted => {
            return if open.eviction() == Eviction::AtOnce { Err(End::Closed) } else { Err(End::Leave(stream)) };
        }
    };
    match ended {
        Ok(Ok(())) if open.set_busy() => Ok((stream, std::mem::take(&mut head.bytes).into())),
        Ok(_) => Err(End::Closed),
        Err(_elapsed) => Err(End::Leave(stream)),
    }
}

/// What is known about the first line of a head.
#[derive(Default)]
struct FirstLine {
    /// The number of bytes of empty lines before it.
    start: usize,
    is_complete: bool,
}

impl FirstLine {
    /// Whether hyper refuses the first line of these bytes, such as the greeting of another protocol. A complete line is
    /// parsed only once.
    fn is_refused(&mut self, head: &[u8]) -> bool {
        if self.is_complete {
            return false;
        }
        let empty = head[self.start..].iter().take_while(|byte| b"\r\n".contains(byte)).count();
        self.start += empty;
        let line = &head[self.start..];
        let end = line.iter().position(|byte| *byte == b'\n');
        self.is_complete = end.is_some();
        httparse::Request::new(&mut []).parse(&line[..end.map_or(line.len(), |end| end + 1)]).is_err()
    }
}

/// The bytes of a head so far. They count until this value is dropped.
struct Head<'p> {
    bytes: Vec<u8>,
    counted: usize,
    proxy: &'p Proxy,
}

impl Head<'_> {
    /// Reads available bytes. Returns 0 at the end of the stream, and `None` if no bytes are available.
    fn read(&mut self, stream: &TcpStream) -> io::Result<Option<usize>> {
        let mut piece = [0; PIECE];
        let read = match stream.try_read(&mut piece) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        // A vector that doubled would take up to twice the bytes.
        if self.bytes.capacity() - self.bytes.len() < read {
            self.bytes.reserve_exact(read + self.bytes.len() / 8);
        }
        self.bytes.extend_from_slice(&piece[..read]);
        Ok(Some(read))
    }

    /// Whether all incomplete heads together have too many bytes.
    fn is_over_the_bound(&self) -> bool {
        self.proxy.partial_heads.load(Relaxed) > MOST_BYTES
    }

    fn count(&mut self, strict: &Strict) {
        let now = self.bytes.capacity() + strict.kept();
        let more = now.saturating_sub(self.counted);
        self.proxy.partial_heads.fetch_add(more, Relaxed);
        self.counted += more;
        if self.is_over_the_bound() {
            self.proxy.slots.make_room(Rank::Silent);
        }
    }
}

impl Drop for Head<'_> {
    fn drop(&mut self) {
        self.proxy.partial_heads.fetch_sub(self.counted, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a head of short lines after a long first one would cost the square of its length.
    #[test]
    fn a_complete_first_line_is_parsed_once() {
        let mut line = FirstLine::default();
        assert!(!line.is_refused(b"\r\n"));
        assert!(!line.is_refused(b"\r\n\r\nGET / HT"));
        assert_eq!((line.start, line.is_complete), (4, false));
        assert!(!line.is_refused(b"\r\n\r\nGET / HTTP/1.1\r\n"));
        assert!(!line.is_refused(b"\r\n\r\nnot parsed again\r\n"));
        assert!(FirstLine::default().is_refused(b"\r\n\r\nnot parsed again\r\n"));
    }
}
