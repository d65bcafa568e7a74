//! Reads and writes a socket with one system call and little overhead.
//!
//! tokio queries the runtime before each call, and calls through libc, whose cancellation points cost four locked
//! instructions. This module calls the kernel directly if the last event reported that the socket is ready. It uses the
//! runtime only to wake the task. Otherwise it behaves like tokio: after a call that transfers fewer bytes than
//! requested, it waits for the next event, and each call counts against the task's budget.
//!
//! Functions that run for every small request are inlined into the task. A system call clears the CPU's return stack,
//! so the CPU would mispredict each return afterwards.

use std::{
    io,
    task::{Context, Poll, ready},
};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::{io::Interest, net::TcpStream, task::coop};

/// Reads available bytes. Returns 0 at the end of the stream.
#[inline(always)] // see the docs of this module
pub(super) fn poll_read(stream: &TcpStream, room: &mut [u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    let most = room.len();
    let ask = |cx: &mut Context<'_>| stream.poll_read_ready(cx);
    poll(stream, Interest::READABLE, most, ask, cx, || {
        let (_, count) = recv(stream, &mut *room, RecvFlags::empty())?;
        Ok(count)
    })
}

/// Writes as many bytes as the socket accepts.
pub(super) fn poll_write(stream: &TcpStream, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    let ask = |cx: &mut Context<'_>| stream.poll_write_ready(cx);
    poll(stream, Interest::WRITABLE, bytes.len(), ask, cx, || Ok(send(stream, bytes, SendFlags::NOSIGNAL)?))
}

/// Writes as many bytes as the socket accepts, without waiting and without counting against the task's budget. Returns
/// 0 if the socket accepts no bytes.
#[inline(always)] // see the docs of this module
pub(super) fn write_at_once(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match once(stream, Interest::WRITABLE, bytes.len(), || Ok(send(stream, bytes, SendFlags::NOSIGNAL)?)) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        outcome => outcome,
    }
}

#[inline(always)] // compiled once for each kind of call
fn poll(
    stream: &TcpStream,
    interest: Interest,
    most: usize,
    ask: impl Fn(&mut Context<'_>) -> Poll<io::Result<()>>,
    cx: &mut Context<'_>,
    mut call: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    let share = ready!(coop::poll_proceed(cx));
    loop {
        let outcome = match once(stream, interest, most, &mut call) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready!(ask(cx))?;
                continue;
            }
            outcome => outcome,
        };
        share.made_progress();
        return Poll::Ready(outcome);
    }
}

/// Makes the call if the last event reported that the socket is ready. Returns `WouldBlock` if the socket is not ready,
/// or if the call returns it.
#[inline(always)] // see the docs of this module
fn once(
    stream: &TcpStream,
    interest: Interest,
    most: usize,
    mut call: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut last = None;
    let outcome = stream.try_io(interest, || match call() {
        Ok(count) if 0 < count && count < most => {
            last = Some(count);
            // Makes the runtime wait for the next event.
            Err(io::ErrorKind::WouldBlock.into())
        }
        outcome => outcome,
    });
    last.map_or(outcome, Ok)
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin};

    use futures::poll;
    use tokio::{io::AsyncWriteExt, net::TcpListener, task};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        (ours.expect("connected"), theirs.expect("accepted").0)
    }

    async fn read(stream: &TcpStream, most: usize) -> io::Result<Vec<u8>> {
        let mut room = vec![0; most];
        let count = poll_fn(|cx| poll_read(stream, &mut room, cx)).await?;
        Ok(room[..count].to_vec())
    }

    #[tokio::test]
    async fn everything_is_read_with_any_buffer_size() {
        let (ours, mut theirs) = pair().await;
        assert!(poll!(pin!(read(&ours, 4))).is_pending());
        theirs.write_all(b"0123456789").await.expect("sent");
        let mut all = Vec::new();
        while all.len() < 10 {
            all.extend(read(&ours, 4).await.expect("more bytes"));
        }
        assert_eq!(all, b"0123456789");
        assert!(poll!(pin!(read(&ours, 4))).is_pending());
        theirs.write_all(b"ab").await.expect("sent");
        assert_eq!(read(&ours, 4).await.expect("woken"), b"ab");
        drop(theirs);
        assert_eq!(read(&ours, 4).await.expect("the end of the stream"), b"");
        assert_eq!(read(&ours, 4).await.expect("the end of the stream again"), b"");
    }

    #[tokio::test]
    async fn a_write_waits_for_space_in_the_socket() {
        let (ours, theirs) = pair().await;
        let bytes = vec![7; 1 << 20];
        let mut sent = 0;
        while let Poll::Ready(count) = poll!(pin!(poll_fn(|cx| poll_write(&ours, &bytes, cx)))) {
            sent += count.expect("the socket is open");
            // A task that never yields would use up its budget.
            task::yield_now().await;
        }
        let rest = async { poll_fn(|cx| poll_write(&ours, b"end", cx)).await.expect("the socket is open") };
        let heard = async {
            let mut heard = 0;
            while heard < sent {
                heard += read(&theirs, 1 << 20).await.expect("more bytes").len();
            }
            heard
        };
        let (rest, heard) = tokio::join!(rest, heard);
        assert_eq!((rest, heard >= sent), (3, true));
        drop(theirs);
        let gone = async {
            while poll_fn(|cx| poll_write(&ours, b"more", cx)).await.is_ok() {
                task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(90), gone)
            .await
            .expect("an error, and no signal that ends the process");
    }

    #[tokio::test]
    async fn write_at_once_fills_the_space_in_the_socket() {
        let (ours, theirs) = pair().await;
        ours.writable().await.expect("the socket is open");
        let bytes = vec![7; 1 << 20];
        let mut sent = 0;
        loop {
            match write_at_once(&ours, &bytes).expect("the socket is open") {
                0 => break,
                count => sent += count,
            }
        }
        assert!(sent > 0);
        let mut heard = 0;
        while heard < sent {
            heard += read(&theirs, 1 << 20).await.expect("more bytes").len();
        }
        assert_eq!(heard, sent);
        ours.writable().await.expect("the socket has space again");
        assert_eq!(write_at_once(&ours, b"end").expect("the socket is open"), 3);
    }

    #[tokio::test]
    async fn a_task_without_budget_yields() {
        let (ours, mut theirs) = pair().await;
        theirs.write_all(b"0").await.expect("sent");
        ours.readable().await.expect("the byte has arrived");
        while poll!(pin!(coop::consume_budget())).is_ready() {}
        assert!(poll!(pin!(read(&ours, 4))).is_pending());
        task::yield_now().await;
        assert_eq!(read(&ours, 4).await.expect("the byte is unread"), b"0");
    }
}
