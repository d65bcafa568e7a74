//! The channel to the operator: snapshots come in, acknowledgements and statuses go out.
//!
//! The agent's first message is its status. After that it answers all snapshots, in their order, so operator and agent
//! always agree on which snapshot an answer is about. Lowering a snapshot can take long. Meanwhile the agent continues
//! to send questions and statuses and to read answers. Only a second snapshot waits, and every message after it.
//!
//! After the first snapshot that comes into force, the agent asks this operator about its rules of scope Fleet. The
//! agent never asks a previous leader, because it refuses the snapshots of that leader.

use std::{future::pending, io::ErrorKind, pin::pin, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{Fuse, FusedFuture},
};
use rand::Rng;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep_until,
};
use weir_channel::{Channel, ChannelError, ToAgent, ToOperator};
use weir_store::OperatorChannel;
use weir_wire::{Goodbye, LevelsSent, MOST_QUESTIONS, Question};

use super::{
    Control, apply_snapshot,
    status::{EVERY_MILLIS, tag, until_next},
};
use crate::clock;

/// The timeout for sending a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that a client that is not the operator should wait before it retries, in milliseconds.
const STRANGER_RETRY: u64 = 1000;

/// Serves the operator until the channel ends. It calls `writing` for each snapshot, and drops the returned value when
/// the snapshot is answered.
///
/// # Errors
///
/// Returns the reason why the channel ended.
pub(crate) async fn serve<W>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    control: Arc<Control>,
    writing: impl Fn() -> W,
) -> Result<(), ChannelError> {
    let mut channel = Channel::new(stream);
    let mut sent = None;
    send_status(&mut channel, &control, &mut sent).await?;
    let mut every = None;
    let mut operator: Option<OperatorChannel> = None;
    let mut next_at = clock::now();
    let mut releases = 0;
    let (mut waiting, mut applying) = (None, pin!(Fuse::terminated()));
    loop {
        if applying.is_terminated()
            && let Some((body, writing)) = waiting.take()
        {
            applying.set(apply(Arc::clone(&control), body, writing).fuse());
        }
        tokio::select! {
            frame = channel.next(), if waiting.is_none() => match ToAgent::parse(frame.inspect_err(|error| closed(operator.as_mut(), error))?)? {
                ToAgent::Snapshot(body) => waiting = Some((body, writing())),
                ToAgent::StatusRequest(request) => {
                    let (least, most) = EVERY_MILLIS;
                    let interval = Duration::from_millis(request.every_millis.clamp(least, most));
                    every = Some(interval);
                    if let Some(operator) = &operator {
                        operator.status_interval(interval);
                    }
                    // The first delay is random, so that agents that connected at the same time do not all send at the
                    // same time.
                    let first = interval.mul_f64(rand::rng().random_range(0.0..=1.0));
                    next_at = clock::now() + until_next(first, clock::wall());
                }
                ToAgent::Answers(answers) => {
                    let Some(operator) = &operator else { continue };
                    releases += u64::from(answers.is_empty());
                    if answers.is_empty() && operator.begin_asking() {
                        let sent = LevelsSent { is_complete: true, time: None, releases };
                        report(&mut channel, &control.snapshots.stores().end_shares(), sent).await?;
                    }
                    operator.answer(answers);
                }
                ToAgent::Hello => {}
                ToAgent::Unknown(tag) => tracing::debug!(tag, "skipped a message of a later version"),
            },
            (answer, writing) = &mut applying => {
                let is_leader = matches!(answer, ToOperator::Acknowledgement(_));
                send(&mut channel, &answer).await?;
                operator.iter().for_each(OperatorChannel::message_sent);
                drop(writing);
                if is_leader && operator.is_none() {
                    operator = Some(join(&mut channel, &control, every).await?);
                }
            }
            questions = questions(&mut operator) => send(&mut channel, &ToOperator::Questions(questions)).await?,
            () = sleep_until(next_at), if every.is_some() => {
                if !operator.as_ref().is_some_and(OperatorChannel::is_quiet) {
                    send_status(&mut channel, &control, &mut sent).await?;
                }
                // After a delayed status, the agent still waits a whole interval.
                next_at = clock::now() + every.map_or(Duration::ZERO, |every| until_next(every, clock::wall()));
            }
        }
    }
}

/// Applies a snapshot. Returns the answer, and `writing` unchanged.
async fn apply<W>(control: Arc<Control>, body: Vec<u8>, writing: W) -> (ToOperator, W) {
    let answer = match apply_snapshot(control, Some(body)).await {
        Ok(reply) => ToOperator::Acknowledgement(reply),
        Err(rejection) => ToOperator::Rejection(Box::new(rejection)),
    };
    (answer, writing)
}

/// Begins to use the operator: reports the levels that this agent knows. When the operator has the levels of all agents,
/// it sends a message without answers.
async fn join<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    control: &Control,
    every: Option<Duration>,
) -> Result<OperatorChannel, ChannelError> {
    let stores = control.snapshots.stores();
    let operator = stores.join_operator();
    if let Some(interval) = every {
        operator.status_interval(interval);
    }
    let (levels, sent) = stores.levels();
    report(channel, &levels, sent).await?;
    Ok(operator)
}

/// Sends questions that expect no answers, and then that these were all.
async fn report<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    questions: &[Question],
    sent: LevelsSent,
) -> Result<(), ChannelError> {
    for part in questions.chunks(MOST_QUESTIONS) {
        send(channel, &ToOperator::Questions(part.to_vec())).await?;
    }
    send(channel, &ToOperator::LevelsSent(sent)).await
}

/// Waits for questions to the operator. Without such a channel, it waits forever.
async fn questions(operator: &mut Option<OperatorChannel>) -> Vec<Question> {
    match operator {
        Some(operator) => operator.questions().await,
        None => pending().await,
    }
}

/// Records that the operator closed the channel, if that is the reason of this error. Then the operator knows that the
/// agent no longer reaches it.
fn closed(operator: Option<&mut OperatorChannel>, error: &ChannelError) {
    let is_closed = match error {
        ChannelError::Closed => true,
        ChannelError::Io(error) => matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
        _ => false,
    };
    if let Some(operator) = operator.filter(|_| is_closed) {
        operator.closed_by_operator();
    }
}

/// Refuses a client and sends it the reason.
///
/// # Errors
///
/// Returns an error if the client did not read the reason.
pub(crate) async fn refuse(stream: impl AsyncRead + AsyncWrite + Unpin, reason: String) -> Result<(), ChannelError> {
    let mut channel = Channel::new(stream);
    send(&mut channel, &ToOperator::Goodbye(Goodbye { reason, retry_after_millis: STRANGER_RETRY })).await?;
    // Closing a socket with unread data resets the connection, and the client could lose the reason. So this function
    // waits until the client closes the connection.
    let _ = tokio::time::timeout(WRITE_TIMEOUT, channel.next()).await;
    Ok(())
}

/// Sends the status, or `unchanged` if it equals the last one.
async fn send_status<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    control: &Control,
    sent: &mut Option<u64>,
) -> Result<(), ChannelError> {
    let status = control.status();
    let tag = tag(&status);
    let message = if *sent == Some(tag) { ToOperator::Unchanged } else { ToOperator::Status(Box::new(status)) };
    *sent = Some(tag);
    send(channel, &message).await
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    channel: &mut Channel<S>,
    message: &ToOperator,
) -> Result<(), ChannelError> {
    let frame = message.frame().ok_or_else(|| std::io::Error::other("the message does not fit into a frame"))?;
    channel.send(frame, WRITE_TIMEOUT).await
}
