//! One type for all kinds of stores.

#[cfg(test)]
pub(crate) mod faulty;

use std::{sync::Arc, time::Duration};

use weir_seats::{Key, MemoryStore, Reply, StoreError, StoreTerms, Take};

use crate::{memcached::MemcachedStore, operator::OperatorStore, redis::RedisStore};

/// A store of any kind.
#[derive(Debug)]
pub enum Backend {
    /// Redis or Valkey.
    Redis(RedisStore),
    /// Memcached.
    Memcached(MemcachedStore),
    /// The operator, over the program's channel.
    Operator(Arc<OperatorStore>),
    /// The memory of this process.
    Memory(Arc<MemoryStore>),
    /// The memory of this process, with faults.
    #[cfg(test)]
    Faulty(faulty::Faulty),
}

impl Backend {
    /// Asks the store. `clock` returns microseconds since the Unix epoch, for stores that do not report the time.
    pub(crate) async fn take(
        &self,
        key: &Key,
        question: &Take<'_>,
        clock: impl Fn() -> u64,
        deadline: Duration,
    ) -> Result<Reply, StoreError> {
        match self {
            Self::Redis(store) => store.take(key, question, deadline).await,
            Self::Memcached(store) => store.take(key, question, clock, deadline).await,
            Self::Operator(store) => store.take(key, question, deadline).await,
            Self::Memory(store) => store.take(key, question, clock),
            #[cfg(test)]
            Self::Faulty(store) => store.take(key, question, clock, deadline).await,
        }
    }

    /// Forgets the count and the ban of a key, which then has its full credit. `now` is the caller's time in microseconds
    /// since the Unix epoch. The operator does not support this.
    pub(crate) async fn forget(
        &self,
        key: &Key,
        terms: &StoreTerms,
        now: u64,
        deadline: Duration,
    ) -> Result<(), StoreError> {
        match self {
            Self::Redis(store) => store.forget(key, deadline).await,
            Self::Memcached(store) => store.forget(key, terms, now, deadline).await,
            Self::Operator(_) => Err(StoreError::Unsupported("a reset of scope Fleet")),
            Self::Memory(store) => {
                store.forget(key);
                Ok(())
            }
            #[cfg(test)]
            Self::Faulty(store) => {
                store.store.forget(key);
                Ok(())
            }
        }
    }

    /// The operator, if it is this store.
    pub(crate) fn operator(&self) -> Option<&Arc<OperatorStore>> {
        if let Self::Operator(store) = self { Some(store) } else { None }
    }

    /// Returns true if both stores have the same configuration, with the same secrets. Only Redis has secrets.
    pub(crate) fn is_configured_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Redis(this), Self::Redis(other)) => this.is_configured_like(other),
            _ => true,
        }
    }

    /// Returns true if the connection is open, as far as this is known.
    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Redis(store) => store.is_connected(),
            _ => true,
        }
    }

    /// Returns true if the store takes unused seats back.
    pub(crate) fn takes_back(&self) -> bool {
        match self {
            Self::Memcached(_) => false,
            Self::Redis(store) => !store.is_cluster(),
            Self::Operator(_) | Self::Memory(_) => true,
            #[cfg(test)]
            Self::Faulty(store) => store.takes_back,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{RedisConfig, Topology};

    /// A cluster gets no seats in a question, so its answer does not mean that it has taken them back.
    #[test]
    fn a_cluster_takes_no_seats_back() {
        for (topology, takes_back) in [(Topology::Standalone, true), (Topology::Cluster, false)] {
            let endpoints = vec!["192.0.2.1:6379".to_owned()];
            let store = RedisStore::new(RedisConfig { topology, endpoints, tls: None, credentials: None });
            assert_eq!(Backend::Redis(store.expect("a valid configuration")).takes_back(), takes_back);
        }
    }
}
