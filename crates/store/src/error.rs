//! How a question to a store fails.

/// Why a store gave no answer. The question may have been counted nevertheless, except for [`StoreError::Cost`] and
/// [`StoreError::Unsupported`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A cost of zero, or more than 2^20.
    #[error("the cost of a request in a store is 1 to 1,048,576")]
    Cost,
    /// This store cannot count this.
    #[error("this store cannot count {0}")]
    Unsupported(&'static str),
    /// The answer is none to this question.
    #[error("the store gave an answer that does not fit the question")]
    Garbled,
    /// No answer before the deadline.
    #[error("the store did not answer in time")]
    Late,
    /// The store cannot be reached, or the connection ended.
    #[error("the store is lost: {0}")]
    Lost(String),
    /// The store answered with an error.
    #[error("the store refuses: {0}")]
    Refused(String),
}
