//! Tests single decisions of the counter.
