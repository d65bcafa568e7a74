//! The addresses of the servers, and how to connect to them.

use std::{fmt, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo,
    RedisError, TlsCertificates, TlsMode,
    cluster::{ClusterClient, ClusterClientBuilder},
    sentinel::{SentinelClientBuilder, SentinelServerType},
};

use super::Connection;

/// The longest wait for a connection, and for the response to a command.
const PATIENCE: Duration = Duration::from_secs(2);

/// The configuration of a store in Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// The arrangement of the servers.
    pub topology: Topology,
    /// The servers, as `host:port`. With Sentinel, these are the sentinels. With Cluster, some of the nodes are enough.
    pub endpoints: Vec<String>,
    /// The certificates for TLS, which connections to sentinels also use. None for connections without TLS.
    pub tls: Option<RedisTls>,
    /// The user for the Redis or Valkey servers. Sentinels have separate credentials.
    pub credentials: Option<Credentials>,
}

/// The arrangement of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One server.
    Standalone,
    /// Sentinels report which server is the leader.
    Sentinel {
        /// The service name that is configured in the sentinels.
        service: String,
        /// The user for the sentinels.
        credentials: Option<Credentials>,
    },
    /// Redis Cluster.
    Cluster,
}

/// A user and its password. The `Debug` output omits the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name of the user. None for the default user.
    pub username: Option<String>,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// The certificates for TLS, in PEM format.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// The authorities that sign the servers' certificates. None for the public authorities.
    pub authorities: Option<Vec<u8>>,
    /// A certificate and its key, for servers that require a client certificate.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for RedisTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisTls").field("has_identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

/// The error for an invalid configuration of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRedis {
    /// No server, or several standalone servers.
    #[error("a standalone store must have exactly one endpoint, and every other store at least one")]
    Endpoints,
    /// An endpoint without a host or a valid port.
    #[error("{0:?} is not an endpoint: write host:port")]
    Endpoint(String),
    /// The Redis client refuses the configuration, for example because a certificate cannot be parsed.
    #[error("the store cannot be configured: {0}")]
    Other(String),
}

/// Opens connections.
pub(super) struct Connect {
    config: RedisConfig,
    addresses: Vec<ConnectionAddr>,
    /// The client of a cluster. None for other topologies.
    cluster: Option<ClusterClient>,
    /// The client of a standalone server. None for other topologies.
    client: Option<Client>,
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl Connect {
    pub(super) fn new(config: RedisConfig) -> Result<Self, InvalidRedis> {
        let is_one = matches!(config.topology, Topology::Standalone);
        if config.endpoints.is_empty() || (is_one && config.endpoints.len() > 1) {
            return Err(InvalidRedis::Endpoints);
        }
        let addresses = config.endpoints.iter().map(|endpoint| address(endpoint, config.tls.is_some()));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let mut connect = Self { config, addresses, cluster: None, client: None };
        match connect.config.topology {
            Topology::Standalone => connect.client = Some(connect.standalone().map_err(|error| other(&error))?),
            Topology::Cluster => connect.cluster = Some(connect.cluster_client().map_err(|error| other(&error))?),
            // Only checks the configuration. A Sentinel client keeps connections that can be stale, so each connection
            // uses a new client.
            Topology::Sentinel { .. } => drop(connect.sentinel().map_err(|error| other(&error))?),
        }
        Ok(connect)
    }

    pub(super) fn config(&self) -> &RedisConfig {
        &self.config
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    fn settings(&self) -> RedisConnectionInfo {
        let settings = RedisConnectionInfo::default();
        let Some(Credentials { username, password }) = &self.config.credentials else { return settings };
        let settings = settings.set_password(password);
        if let Some(username) = username { settings.set_username(username) } else { settings }
    }

    fn certificates(&self) -> Option<TlsCertificates> {
        let RedisTls { authorities, identity } = self.config.tls.clone()?;
        let client_tls = identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Some(TlsCertificates { client_tls, root_cert: authorities })
    }

    fn standalone(&self) -> Result<Client, RedisError> {
        let address = self.addresses[0].clone();
        let info = address.into_connection_info()?.set_redis_settings(self.settings());
        match self.certificates() {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        }
    }

    fn cluster_client(&self) -> Result<ClusterClient, RedisError> {
        let nodes = self.addresses.iter().map(|address| {
            Ok::<_, RedisError>(address.clone().into_connection_info()?.set_redis_settings(self.settings()))
        });
        let builder = ClusterClientBuilder::new(nodes.collect::<Result<Vec<_>, _>>()?)
            .connection_timeout(PATIENCE)
            .response_timeout(PATIENCE)
            .retries(4)
            .min_retry_wait(2)
            .max_retry_wait(20);
        match self.certificates() {
            Some(certificates) => builder.certs(certificates).build(),
            None => builder.build(),
        }
    }

    fn sentinel(&self) -> Result<redis::sentinel::SentinelClient, RedisError> {
        let Topology::Sentinel { service, credentials } = &self.config.topology else {
            return Err(RedisError::from((redis::ErrorKind::InvalidClientConfig, "not for Sentinel")));
        };
        let mut builder = SentinelClientBuilder::new(self.addresses.clone(), service, SentinelServerType::Master)?;
        if let Some(certificates) = self.certificates() {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_certificates(certificates);
        }
        if let Some(Credentials { username, password }) = &self.config.credentials {
            builder = builder.set_client_to_redis_password(password);
            builder = username.iter().fold(builder, SentinelClientBuilder::set_client_to_redis_username);
        }
        if let Some(Credentials { username, password }) = credentials {
            builder = builder.set_client_to_sentinel_password(password);
            builder = username.iter().fold(builder, SentinelClientBuilder::set_client_to_sentinel_username);
        }
        builder.build()
    }

    pub(super) async fn connect(&self) -> Result<Connection, RedisError> {
        let patience =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        if let Some(cluster) = &self.cluster {
            return cluster.get_async_connection().await.map(Connection::Cluster);
        }
        let connection = match &self.client {
            Some(client) => client.get_multiplexed_async_connection_with_config(&patience).await,
            None => self.sentinel()?.get_async_connection_with_config(&patience).await,
        };
        connection.map(Connection::One)
    }
}

fn address(endpoint: &str, tls: bool) -> Result<ConnectionAddr, InvalidRedis> {
    let invalid = || InvalidRedis::Endpoint(endpoint.to_owned());
    let (host, port) = endpoint.rsplit_once(':').ok_or_else(invalid)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
    let port = port.parse().map_err(|_| invalid())?;
    if host.is_empty() {
        return Err(invalid());
    }
    Ok(if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    })
}

fn other(error: &RedisError) -> InvalidRedis {
    InvalidRedis::Other(error.to_string())
}
