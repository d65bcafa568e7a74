//! The errors of a question to a store.

/// The reason why a question has no answer. The store may have charged the question, except for [`StoreError::Cost`]
/// and [`StoreError::Unsupported`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The cost is zero, or more than 2^20.
    #[error("the cost of a request in a store must be 1 to 1,048,576")]
    Cost,
    /// The store does not support this strategy or this kind of request.
    #[error("this store cannot count {0}")]
    Unsupported(&'static str),
    /// The answer is invalid, or does not fit the question.
    #[error("the store's answer does not fit the question")]
    Garbled,
    /// The answer did not arrive before the deadline.
    #[error("the store did not answer in time")]
    Late,
    /// The store cannot be reached, or the connection was closed.
    #[error("the store is lost: {0}")]
    Lost(String),
    /// The store answered with an error.
    #[error("the store refuses: {0}")]
    Refused(String),
}
