//! One end of a connection.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use crate::{
    frame::{Decoder, Frame, InvalidFrame, Outgoing},
    message::InvalidMessage,
};

/// A channel, which sends and receives frames over a stream. It buffers only the frame that is arriving.
#[derive(Debug)]
pub struct Channel<S> {
    stream: S,
    decoder: Decoder,
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
        Self { stream, decoder: Decoder::default() }
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
            let count = self.stream.read(self.decoder.space()).await?;
            if count == 0 {
                return Err(if self.decoder.is_within_frame() {
                    ChannelError::Io(io::ErrorKind::UnexpectedEof.into())
                } else {
                    ChannelError::Closed
                });
            }
            if let Some(frame) = self.decoder.filled(count)? {
                return Ok(frame);
            }
        }
    }

    /// Sends a frame. This method is not cancel safe: a cancelled call possibly has sent a part of the frame. Never
    /// call it in a branch of `select!`, only in the branch's handler.
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
    async fn the_longest_frame_arrives_whatever_the_reader_gives_up_in_between() {
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
    async fn a_peer_that_does_not_read_is_given_up() {
        let (here, _there) = duplex(64);
        let mut here = Channel::new(here);
        here.send(frame(1, 20), LIMIT).await.unwrap();
        assert!(matches!(here.send(frame(1, 200), LIMIT).await, Err(ChannelError::Stuck(LIMIT))));
    }
}
