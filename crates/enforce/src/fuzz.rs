//! Targets of `cargo xtask fuzz` for input from clients, apps and issuers of tokens. Each target compares a parser with
//! a second implementation that shares no code with it, or with a parser from another project. The target for paths and
//! globs is `matching/fuzz.rs`.

mod addresses;
mod cookies;
mod costs;
mod explain;
mod hosts;
mod jwks;
mod queries;
mod tokens;
