//! Waits until a condition is true. If the condition never becomes true, the error contains the last state.
//!
//! Scenarios must wait with this module, and never for a fixed time. A failed probe counts as "not yet", because the
//! apiserver answers 404, 500 and 503 while pods start and stop.

use std::{fmt::Display, future::Future, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{sleep, timeout_at};

use crate::clock;

const PAUSE: Duration = Duration::from_millis(50);

/// The result of one probe.
pub(crate) enum Seen<T> {
    /// The expected value.
    Done(T),
    /// Another state, as text.
    NotYet(String),
}

impl Seen<()> {
    /// Done if `condition` is true, otherwise not yet, with `instead` as the state.
    pub(crate) fn when(condition: bool, instead: impl Display) -> Self {
        if condition { Self::Done(()) } else { Self::NotYet(instead.to_string()) }
    }
}

/// Repeats the probe until its result is done.
///
/// # Errors
/// The result is not done after `within`. The error contains the condition and the last state.
pub(crate) async fn wait_for<T, F>(what: &str, within: Duration, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Seen<T>>>,
{
    let deadline = clock::now() + within;
    let mut last = "nothing: the first probe took longer than that".to_owned();
    loop {
        // A hanging probe must not outlast the deadline.
        match timeout_at(deadline, look()).await {
            Ok(Ok(Seen::Done(value))) => return Ok(value),
            Ok(Ok(Seen::NotYet(instead))) => last = instead,
            Ok(Err(error)) => last = format!("{error:#}"),
            Err(_) => bail!("waited {within:?} for {what}; last seen: {last}"),
        }
        if timeout_at(deadline, sleep(PAUSE)).await.is_err() {
            bail!("waited {within:?} for {what}; last seen: {last}");
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_the_value_once_it_is_there() {
        let mut looks = 0;
        let value = wait_for("the third look", Duration::from_secs(1), || {
            looks += 1;
            let seen = if looks == 3 { Ok(Seen::Done("here")) } else { Err(anyhow!("not found")) };
            async move { seen }
        });
        assert_eq!(value.await.expect("the third look has it"), "here");
        assert_eq!(looks, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn past_the_deadline_it_says_what_it_saw_last() {
        let mut looks = 0;
        let error = wait_for("a pod", Duration::from_secs(1), || {
            looks += 1;
            let seen: Seen<()> = Seen::when(false, format!("look {looks}"));
            async move { Ok(seen) }
        });
        let error = error.await.expect_err("it never comes").to_string();
        assert_eq!(error, format!("waited 1s for a pod; last seen: look {looks}"));
        assert!(looks > 10, "{looks} looks in 1 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_does_not_hang_the_wait() {
        let hanging = || std::future::pending::<Result<Seen<()>>>();
        let error = wait_for("an answer", Duration::from_secs(1), hanging).await.expect_err("it never comes");
        assert!(error.to_string().contains("waited 1s for an answer"), "{error}");
    }
}
