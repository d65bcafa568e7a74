//! The unit in which the costs of all expressions are counted, and the budget of a request.

/// The cost of one step of the interpreter, and of copying one value. The unit of all costs is the time for copying one
/// byte of a text.
pub(crate) const STEP: u64 = 1024;

/// The cost of one byte for a function that reads a text.
pub(crate) const READ: u64 = 32;

/// The cost of one byte for each state of a regular expression without a table.
pub(crate) const SIMULATED: u64 = 128;

/// The maximum cost of all expressions of one request: some milliseconds, and at most about 20.
pub const BUDGET: u64 = 1 << 28;
