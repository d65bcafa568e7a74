//! Relays frames between client and app in both directions, decides on the client's messages, and inserts notices and
//! close frames where the protocol allows them.
//!
//! Memory is bounded. Each direction has one window, which is refilled only after its bytes were forwarded, so a peer
//! that does not read stops the other one. [`Between`] bounds the notices. Each side can close its half of the
//! connection while the other half continues.

use std::{io, time::Duration};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
use weir_enforce::MessageRefusal;

use super::{
    app::AppFrames,
    between::{Between, Closing},
    client::{ClientFrames, Step},
};

/// The number of bytes to read at a time in each direction, as in a tunnel without parsing.
const WINDOW: usize = 8 * 1024;

/// The time limit for both sides to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Relays frames between both sides, after their handshake, until both have closed. `decide` charges one message of the
/// client, or returns its refusal.
///
/// When `drain` is cancelled, the relay sends a close to both sides.
///
/// # Errors
///
/// Returns the error of the side that failed, or `TimedOut` if a close was not answered.
pub(in super::super) async fn relay(
    client: impl AsyncRead + AsyncWrite,
    app: impl AsyncRead + AsyncWrite,
    decide: impl Fn() -> Result<(), MessageRefusal>,
    drain: &CancellationToken,
) -> io::Result<()> {
    let (client_reads, client_writes) = tokio::io::split(client);
    let (app_reads, app_writes) = tokio::io::split(app);
    let between = Between::default();
    let to_app = async {
        match to_app(client_reads, app_writes, decide, &between).await {
            // Frames that the app sent before it disconnected, such as a close, must still reach the client.
            Err(Broken::App(error)) => {
                tracing::debug!(%error, "the app disconnected");
                Ok(())
            }
            Err(Broken::Client(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    };
    let passing = async { tokio::try_join!(to_app, to_client(app_reads, client_writes, &between)) };
    let closing = async {
        tokio::select! {
            () = drain.cancelled() => between.close(Closing::Drain),
            _ = between.closing() => {}
            // Nothing that the client sends can still reach the app.
            () = between.app_left() => {}
        }
        tokio::time::sleep(CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        biased;
        () = closing => Err(io::ErrorKind::TimedOut.into()),
        ended = passing => ended.map(drop),
    }
}

/// A side that can no longer be read or written.
#[derive(Debug)]
enum Broken {
    Client(io::Error),
    App(io::Error),
}

/// Relays from the client to the app.
async fn to_app(
    mut client: impl AsyncRead + Unpin,
    mut app: impl AsyncWrite + Unpin,
    decide: impl Fn() -> Result<(), MessageRefusal>,
    between: &Between,
) -> Result<(), Broken> {
    let mut frames = ClientFrames::default();
    let mut window = Window::default();
    let closing = loop {
        let read = tokio::select! {
            biased;
            closing = between.closing(), if frames.takes_control() => break closing,
            read = window.fill(&mut client) => read.map_err(Broken::Client)?,
        };
        if read == 0 {
            return app.shutdown().await.map_err(Broken::App);
        }
        let filled = window.filled();
        // Passed bytes are written in pieces that are as long as possible.
        let (mut run, mut at) = (0, 0);
        while !(between.is_closing() && frames.takes_control()) {
            match frames.next(&filled[at..]) {
                Ok(Step::More) => break,
                Ok(Step::Pass(length)) => at += length,
                Ok(Step::Drop(length)) => {
                    app.write_all(&filled[run..at]).await.map_err(Broken::App)?;
                    at += length;
                    run = at;
                }
                Ok(Step::Message) => match decide() {
                    Ok(()) => frames.admit(),
                    Err(MessageRefusal { notice, close: true }) => between.close(Closing::Refused(notice)),
                    Err(MessageRefusal { notice, close: false }) => {
                        frames.refuse();
                        app.write_all(&filled[run..at]).await.map_err(Broken::App)?;
                        run = at;
                        between.notice(&notice).await;
                    }
                },
                Err(violation) => between.close(Closing::Violation(violation)),
            }
        }
        app.write_all(&filled[run..at]).await.map_err(Broken::App)?;
        app.flush().await.map_err(Broken::App)?;
        window.consume(at);
    };

    app.write_all(&closing.to_app()).await.map_err(Broken::App)?;
    app.flush().await.map_err(Broken::App)?;
    // The loop waits for the client's close frame. After a violation, the agent cannot recognize a close frame. So the
    // loop reads until the client disconnects. If the agent closed the connection while bytes are unread, the kernel
    // would reset it, and the client might not receive the reason.
    let mut understood = !matches!(closing, Closing::Violation(_));
    loop {
        let mut at = 0;
        while understood {
            match frames.next(&window.filled()[at..]) {
                Ok(Step::Pass(length) | Step::Drop(length)) => at += length,
                Ok(Step::Message) => frames.refuse(),
                Ok(Step::More) => break,
                Err(_) => understood = false,
            }
        }
        if understood && frames.closed() {
            return Ok(());
        }
        window.consume(if understood { at } else { window.filled().len() });
        if window.fill(&mut client).await.map_err(Broken::Client)? == 0 {
            return Ok(());
        }
    }
}

/// Relays from the app to the client.
async fn to_client(
    mut app: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    between: &Between,
) -> io::Result<()> {
    let mut frames = AppFrames::default();
    let mut window = Window::default();
    let closing = loop {
        let read = tokio::select! {
            biased;
            closing = between.closing(), if frames.takes_control() => break closing,
            () = between.noticed(), if frames.takes_message() => None,
            read = window.fill(&mut app) => Some(read?),
        };
        if read == Some(0) {
            between.occupy(true);
            client.shutdown().await?;
            between.leave_app();
            return Ok(());
        }
        let filled = window.filled();
        let (mut run, mut at) = (0, 0);
        while !(between.is_closing() && frames.takes_control()) {
            if frames.takes_message() && between.has_notices() {
                client.write_all(&filled[run..at]).await?;
                run = at;
                client.write_all(&between.take_notices()).await?;
            }
            between.occupy(!frames.takes_message());
            match frames.next(&filled[at..]) {
                0 => break,
                length => at += length,
            }
        }
        client.write_all(&filled[run..at]).await?;
        client.flush().await?;
        window.consume(at);
    };

    between.occupy(true);
    if frames.takes_message() {
        client.write_all(&between.take_notices()).await?;
    }
    client.write_all(&closing.to_client()).await?;
    client.flush().await?;
    if matches!(closing, Closing::Violation(_)) {
        // The client's close cannot be recognized, so the client must not wait for this side to close.
        client.shutdown().await?;
    }
    loop {
        let mut at = 0;
        loop {
            match frames.next(&window.filled()[at..]) {
                0 => break,
                length => at += length,
            }
        }
        if frames.closed() {
            return Ok(());
        }
        window.consume(at);
        if window.fill(&mut app).await? == 0 {
            return Ok(());
        }
    }
}

/// Bytes that were read but not yet forwarded. Between two reads, they are at most a part of a header.
#[derive(Debug)]
struct Window {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { bytes: vec![0; WINDOW].into_boxed_slice(), filled: 0 }
    }
}

impl Window {
    /// Reads once. Returns 0 at the end of the stream. This function is cancel safe.
    async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        let read = from.read(&mut self.bytes[self.filled..]).await?;
        self.filled += read;
        Ok(read)
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    fn consume(&mut self, length: usize) {
        self.bytes.copy_within(length..self.filled, 0);
        self.filled -= length;
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
