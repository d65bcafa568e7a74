//! The modes of policies and rules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether requests beyond a limit are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// Requests beyond a limit are refused.
    #[default]
    Enforce,
    /// Requests beyond a limit are counted and admitted.
    Shadow,
    /// The limits are not evaluated.
    Disabled,
}
