//! The folder below the user's cache for the programs that these commands install.

use std::path::PathBuf;

use anyhow::Context as _;

pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = cache.or_else(home).context("set XDG_CACHE_HOME or HOME, for a folder of programs")?;
    Ok(cache.join("weir"))
}
