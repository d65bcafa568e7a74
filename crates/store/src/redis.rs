//! Redis and Valkey. Each question runs one script, over one connection that all questions share.
//!
//! A separate task opens the connection, and questions wait for it. So each question has its own deadline, and holds no
//! lock while it waits. Some errors mean that another server leads: a lost connection, or `READONLY` after a failover.
//! After such an error, the next question opens a new connection, through Sentinel if one is configured. Redis Cluster
//! has a separate client, which follows slots as they move.

mod config;
pub(crate) mod script;

use std::{sync::Arc, time::Duration};

use redis::{
    ErrorKind, RedisError, RetryMethod, Script, ServerErrorKind,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::ClusterConnection,
};
use weir_seats::{EncodedTake, Key, Reply, StoreError, Take};

use self::config::Connect;
pub use self::config::{Credentials, InvalidRedis, RedisConfig, RedisTls, Topology};
use crate::connection::StoreConnection;

/// A store in Redis 6.2 or later, or in Valkey 7.2 or later. The first question opens the connection, on the tokio
/// runtime of the caller.
#[derive(Debug)]
pub struct RedisStore {
    connect: Arc<Connect>,
    connection: Arc<StoreConnection<Connection>>,
    script: Script,
}

#[derive(Clone)]
pub(crate) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::One(_) => "One",
            Self::Cluster(_) => "Cluster",
        })
    }
}

impl RedisStore {
    /// Creates a store at the servers of this configuration. It does not connect yet.
    ///
    /// # Errors
    ///
    /// [`InvalidRedis`] if the configuration has no valid server, or if a certificate cannot be parsed.
    pub fn new(config: RedisConfig) -> Result<Self, InvalidRedis> {
        let connect = Arc::new(Connect::new(config)?);
        Ok(Self { connect, connection: Arc::default(), script: Script::new(script::SOURCE) })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_open()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.connect.is_cluster()
    }

    pub(crate) fn is_configured_like(&self, other: &Self) -> bool {
        self.connect.config() == other.connect.config()
    }

    /// Asks the store, which decides at an instant of its own clock. A caller can cancel the question, but then the
    /// charged seats are lost.
    ///
    /// The client of a cluster repeats a question if its connection is lost. So a cluster takes no seats back: seats in
    /// `returned` are lost.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; [`StoreError::Late`] after `deadline`.
    pub async fn take(&self, key: &Key, question: &Take<'_>, deadline: Duration) -> Result<Reply, StoreError> {
        let encoded = question.encode().ok_or(StoreError::Cost)?;
        self.connection.by(deadline, self.ask(key, encoded), || self.renew()).await
    }

    /// Forgets the count of a key.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; [`StoreError::Late`] after `deadline`.
    pub async fn forget(&self, key: &Key, deadline: Duration) -> Result<(), StoreError> {
        let forgotten = async {
            let mut delete = redis::cmd("DEL");
            delete.arg(key.as_str());
            match self.connection.get(|| self.open()).await? {
                Connection::One(mut connection) => delete.query_async(&mut connection).await,
                Connection::Cluster(mut connection) => delete.query_async(&mut connection).await,
            }
            .map_err(|error| self.failed(&error))
        };
        self.connection.by(deadline, forgotten, || self.renew()).await
    }

    /// Replaces a connection with late answers. They may be those of one master of a cluster, and the others must not
    /// wait for a new connection.
    fn renew(&self) {
        if self.is_cluster() { self.connection.replace(self.open()) } else { self.connection.disconnect() }
    }

    /// The client of a cluster connects to single nodes again, and keeps its connections to the others.
    fn failed(&self, error: &RedisError) -> StoreError {
        if !self.is_cluster() && is_of_other_server(error) {
            self.connection.disconnect();
        }
        failure(error)
    }

    fn open(&self) -> impl Future<Output = Result<Connection, StoreError>> + Send + 'static {
        let connect = Arc::clone(&self.connect);
        async move { connect.connect().await.map_err(|error| failure(&error)) }
    }

    async fn ask(&self, key: &Key, mut encoded: EncodedTake) -> Result<Reply, StoreError> {
        let connection = self.connection.get(|| self.open()).await?;
        if self.is_cluster() {
            encoded.returned = None;
        }
        let raw = match connection {
            Connection::One(connection) => self.evaluate(connection, key, &encoded).await,
            Connection::Cluster(connection) => self.evaluate(connection, key, &encoded).await,
        };
        let raw = raw.map_err(|error| self.failed(&error))?;
        script::answer(&raw, &encoded).and_then(|answer| answer.reply(&encoded)).ok_or(StoreError::Garbled)
    }

    /// Runs the script by its hash. A server that has not loaded the script receives the source, and then keeps it.
    async fn evaluate(
        &self,
        mut connection: impl ConnectionLike,
        key: &Key,
        encoded: &EncodedTake,
    ) -> Result<redis::Value, RedisError> {
        let arguments = script::arguments(encoded);
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(1).arg(key.as_str()).arg(&arguments[..]);
            command
        };
        match command("EVALSHA", self.script.get_hash()).query_async(&mut connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                command("EVAL", script::SOURCE).query_async(&mut connection).await
            }
            answer => answer,
        }
    }
}

/// Returns true if a new connection, to the same server or to another one, can help after this error.
fn is_of_other_server(error: &RedisError) -> bool {
    let is_replica = matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown));
    // Redis 6.2 reports an error of a script with the code ERR. Only the text contains the code of the command's error.
    let is_of_script = |code| error.detail().is_some_and(|text| text.contains(code));
    let is_replica = is_replica || is_of_script(": -READONLY ") || is_of_script(": -MASTERDOWN ");
    let reconnects =
        matches!(error.retry_method(), RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections);
    is_replica || reconnects || error.is_timeout()
}

fn failure(error: &RedisError) -> StoreError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => StoreError::Refused(text),
        _ => StoreError::Lost(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_replica_means_that_another_server_leads() {
        // In a script, Redis 6.2.14 and 7.0.15.
        let texts = [
            "ERR Error running script (call to f_63513ef721c1dcd34dc697552e11c6fa5356c64c): @user_script:613: @user_script: \
             613: -READONLY You can't write against a read only replica.",
            "READONLY You can't write against a read only replica. script: 63513ef721c1dcd34dc697552e11c6fa5356c64c, on \
             @user_script:613.",
            "ERR Error running script (call to f_63513ef721c1dcd34dc697552e11c6fa5356c64c): @user_script:613: @user_script: \
             613: -MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ];
        let other = "ERR Error running script (call to f_63513ef721c1dcd34dc697552e11c6fa5356c64c): @user_script:613: \
                     @user_script: 613: -OOM command not allowed when used memory > 'maxmemory'.";
        for (text, is_of_replica) in texts.map(|text| (text, true)).into_iter().chain([(other, false)]) {
            let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("a reply");
            let error = value.extract_error().expect_err("an error");
            assert_eq!(is_of_other_server(&error), is_of_replica, "{text}");
            assert!(matches!(failure(&error), StoreError::Refused(_)), "{text}");
        }
    }
}
