//! What a policy or a rule does with requests beyond a limit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens to requests beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// They are refused.
    #[default]
    Enforce,
    /// They are counted and admitted.
    Shadow,
    /// Limits are not evaluated.
    Disabled,
}
