//! One end of the channel: sends and receives messages over a connection.

use std::{io, pin::Pin, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Sleep, sleep, timeout},
};

use crate::{
    frame::{Decoder, Frame, InvalidFrame, Outgoing},
    message::InvalidMessage,
};

/// The time that a frame may take from its first bytes to its last. A sender gives up much earlier.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// A channel, which sends and receives frames over a stream. It buffers only the frame that is arriving.
#[derive(Debug)]
pub struct Channel<S> {
    stream: S,
    decoder: Decoder,
    /// Ends [`FRAME_TIMEOUT`] after the first bytes of the frame that is arriving. `None` between frames.
    frame_timeout: Option<Pin<Box<Sleep>>>,
}

/// The reason why a channel cannot be used again.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer closed the connection between two frames.
    #[error("the connection was closed")]
    Closed,
    /// The connection failed, or ended within a frame.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The peer did not read a frame in time.
    #[error("the peer did not read a frame within {0:?}")]
    Stuck(Duration),
    /// The peer began a frame and did not complete it.
    #[error("the peer did not complete a frame within {FRAME_TIMEOUT:?}")]
    Incomplete,
    /// The peer sent bytes that are not frames of this protocol.
    #[error(transparent)]
    Frame(#[from] InvalidFrame),
    /// The peer sent a message with invalid content.
    #[error(transparent)]
    Message(#[from] InvalidMessage),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    /// Returns a channel over a stream that has not carried any data yet.
    pub fn new(stream: S) -> Self {
        Self { stream, decoder: Decoder::default(), frame_timeout: None }
    }

    /// Returns the underlying stream.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Waits for the next frame. This method is cancel safe: a frame that has arrived in part is kept.
    ///
    /// # Errors
    ///
    /// [`ChannelError`]. After an error, the channel cannot be used again.
    pub async fn next(&mut self) -> Result<Frame, ChannelError> {
        loop {
            let read = self.stream.read(self.decoder.space());
            let count = match &mut self.frame_timeout {
                None => read.await?,
                Some(timeout) => tokio::select! {
                    biased;
                    count = read => count?,
                    () = timeout => return Err(ChannelError::Incomplete),
                },
            };
            if count == 0 {
                return Err(if self.decoder.is_within_frame() {
                    ChannelError::Io(io::ErrorKind::UnexpectedEof.into())
                } else {
                    ChannelError::Closed
                });
            }
            if let Some(frame) = self.decoder.filled(count)? {
                self.frame_timeout = None;
                return Ok(frame);
            }
            self.frame_timeout.get_or_insert_with(|| Box::pin(sleep(FRAME_TIMEOUT)));
        }
    }

    /// Sends a frame. This method is not cancel safe: a cancelled call may have sent a part of the frame. Never call it
    /// in a branch of `select!`, only in the branch's handler.
    ///
    /// # Errors
    ///
    /// [`ChannelError`], if the peer did not read the frame within `limit`, or the connection failed. After an error,
    /// the channel cannot be used again.
    pub async fn send(&mut self, frame: Outgoing, limit: Duration) -> Result<(), ChannelError> {
        let write = async {
            self.stream.write_all_buf(&mut frame.into_buf()).await?;
            self.stream.flush().await
        };
        match timeout(limit, write).await {
            Ok(written) => Ok(written?),
            Err(_) => Err(ChannelError::Stuck(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::MAX_PAYLOAD_BYTES;

    const LIMIT: Duration = Duration::from_secs(5);

    fn frame(tag: u8, length: usize) -> Outgoing {
        Outgoing::new(tag, &vec![tag; length]).unwrap()
    }

    #[tokio::test]
    async fn both_ends_send_at_the_same_time() {
        let (here, there) = duplex(64);
        let (mut here, mut there) = (Channel::new(here), Channel::new(there));
        let talk = async |channel: &mut Channel<_>| {
            for round in 0..20 {
                channel.send(frame(round, 3), LIMIT).await.unwrap();
                let heard = channel.next().await.unwrap();
                assert_eq!((heard.tag, heard.payload), (round, vec![round; 3]));
            }
        };
        tokio::join!(talk(&mut here), talk(&mut there));
        drop(there);
        assert!(matches!(here.next().await, Err(ChannelError::Closed)));
    }

    #[tokio::test]
    async fn the_longest_frame_arrives_after_any_cancelled_read() {
        let (here, there) = duplex(1000);
        let (mut here, mut there) = (Channel::new(here), Channel::new(there));
        let sending = tokio::spawn(async move { here.send(frame(7, MAX_PAYLOAD_BYTES), LIMIT).await });
        let mut given_up = 0;
        let heard = loop {
            tokio::select! {
                biased;
                heard = there.next() => break heard.unwrap(),
                () = tokio::task::yield_now() => given_up += 1,
            }
        };
        assert!(heard.payload.len() == MAX_PAYLOAD_BYTES && heard.payload.iter().all(|byte| *byte == 7));
        assert!(given_up > 10, "{given_up}");
        sending.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_end_within_a_frame_is_an_error_of_its_own() {
        let (mut here, there) = duplex(64);
        let mut there = Channel::new(there);
        here.write_all(&[0, 0, 0, 9, 1, 2]).await.unwrap();
        drop(here);
        let error = there.next().await.unwrap_err();
        assert!(matches!(&error, ChannelError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_without_an_end_is_given_up_even_if_the_reader_does_other_things_in_between() {
        let (mut here, there) = duplex(64);
        let mut there = Channel::new(there);
        let second = Duration::from_secs(1);
        assert!(timeout(3 * FRAME_TIMEOUT, there.next()).await.is_err(), "a quiet peer is no error");
        here.write_all(&[0, 0, 0, 9]).await.unwrap();
        let mut seconds = 0;
        let error = loop {
            match timeout(second, there.next()).await {
                Err(_) => seconds += 1,
                Ok(heard) => break heard.unwrap_err(),
            }
            here.write_all(&[0; 1][..usize::from(seconds % 8 == 0)]).await.unwrap();
        };
        assert!(matches!(error, ChannelError::Incomplete) && (29..=30).contains(&seconds), "{error:?}, {seconds} s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_frame_begins_with_the_frame() {
        let (here, there) = duplex(64);
        let (mut here, mut there) = (Channel::new(here), Channel::new(there));
        for round in 0..4 {
            here.send(frame(round, 3), LIMIT).await.unwrap();
            assert_eq!(there.next().await.unwrap().tag, round);
            assert!(timeout(FRAME_TIMEOUT / 2, there.next()).await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_given_up() {
        let (here, _there) = duplex(64);
        let mut here = Channel::new(here);
        here.send(frame(1, 20), LIMIT).await.unwrap();
        assert!(matches!(here.send(frame(1, 200), LIMIT).await, Err(ChannelError::Stuck(LIMIT))));
    }
}
