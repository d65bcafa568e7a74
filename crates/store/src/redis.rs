//! Redis and Valkey: one script for each question, over one connection that all questions share.
//!
//! One task connects, and questions watch it. So a question waits no longer than it may take, and holds no lock while it
//! waits. After an error that means another server (a lost connection, `READONLY` after a failover),
//! the next question connects again, through Sentinel if there is one. Redis Cluster has a client of its own, which
//! follows slots as they move.

mod config;
pub(crate) mod script;

use std::{sync::Arc, time::Duration};

use redis::{
    ErrorKind, RedisError, RetryMethod, Script, ServerErrorKind,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::ClusterConnection,
};

use self::config::Connect;
use crate::{
    error::StoreError,
    key::Key,
    link::Link,
    take::{Ask, Reply, Take},
};

pub use self::config::{Credentials, InvalidRedis, RedisConfig, RedisTls, Topology};

/// A store in Redis 6.2, Valkey 7.2, or later ones. It connects with the first question, in the runtime of tokio that
/// asks it.
#[derive(Debug)]
pub struct RedisStore {
    connect: Arc<Connect>,
    link: Arc<Link<Connection>>,
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
    /// A store at these servers.
    ///
    /// # Errors
    ///
    /// [`InvalidRedis`] if the configuration names no server, or has certificates that cannot be read.
    pub fn new(config: RedisConfig) -> Result<Self, InvalidRedis> {
        let connect = Arc::new(Connect::new(config)?);
        Ok(Self { connect, link: Arc::default(), script: Script::new(script::SOURCE) })
    }

    /// Asks the store, which decides at an instant of its own clock. To cancel it is safe: what it charged is lost.
    ///
    /// A client of a cluster repeats a question whose connection is lost. So seats that are given back to a cluster are
    /// lost.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; [`StoreError::Late`] after `deadline`.
    pub async fn take(&self, key: &Key, question: &Take<'_>, deadline: Duration) -> Result<Reply, StoreError> {
        let ask = question.ask().ok_or(StoreError::Cost)?;
        self.link.by(deadline, self.ask(key, ask)).await
    }

    async fn ask(&self, key: &Key, mut ask: Ask) -> Result<Reply, StoreError> {
        let connect = || {
            let connect = Arc::clone(&self.connect);
            async move { connect.connect().await.map_err(|error| failure(&error)) }
        };
        let connection = self.link.connection(connect).await?;
        if let Connection::Cluster(_) = connection {
            ask.returned = None;
        }
        let raw = match connection {
            Connection::One(connection) => self.evaluate(connection, key, &ask).await,
            Connection::Cluster(connection) => self.evaluate(connection, key, &ask).await,
        };
        let raw = raw.map_err(|error| {
            if is_of_other_server(&error) {
                self.link.disconnect();
            }
            failure(&error)
        })?;
        script::answer(&raw, &ask).and_then(|answer| answer.reply(&ask)).ok_or(StoreError::Garbled)
    }

    /// Runs the script by its hash. A server that does not know it receives the source, and knows it from then on.
    async fn evaluate(
        &self,
        mut connection: impl ConnectionLike,
        key: &Key,
        ask: &Ask,
    ) -> Result<redis::Value, RedisError> {
        let arguments = script::arguments(ask);
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

/// Whether another server may answer after this error, or another connection to the same one.
fn is_of_other_server(error: &RedisError) -> bool {
    let is_replica = matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown));
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
