//! The rules that match every request, by the form of their conditions. Agents skip such conditions. The operator warns
//! of rules that turn off other limits. Agents and operator use this definition.

use crate::{Match, Rule};

impl Rule {
    /// Returns true if every request matches.
    pub fn takes_all(&self) -> bool {
        self.matches.is_empty() || self.matches.iter().any(Match::takes_all)
    }
}

impl Match {
    /// Returns true if every request meets the conditions. Regular expressions and predicates always count as
    /// conditions, even if every request meets them.
    pub fn takes_all(&self) -> bool {
        let Self {
            methods,
            hosts,
            paths,
            path_regexes,
            headers,
            query,
            client_cidrs,
            trusted_hops: _,
            predicate,
            descriptor,
        } = self;
        let every_path = path_regexes.is_empty() && (paths.is_empty() || takes_every_path(paths));
        let every_field = headers.is_empty() && query.is_empty();
        methods.is_empty()
            && hosts.is_empty()
            && every_path
            && every_field
            && client_cidrs.is_empty()
            && predicate.is_none()
            && descriptor.is_empty()
    }
}

/// Returns true if every path matches one of these globs.
///
/// ```
/// # use weir_wire::takes_every_path;
/// assert!(takes_every_path(&["/api/**", "/**"]));
/// assert!(takes_every_path(&["/**/*"]), "the root is one empty segment");
/// assert!(!takes_every_path(&["/*/*/**"]), "/a has one segment");
/// assert!(!takes_every_path(&["/*"]) && !takes_every_path(&["/api/**"]));
/// ```
pub fn takes_every_path(globs: &[impl AsRef<str>]) -> bool {
    globs.iter().any(|glob| {
        let segments = || glob.as_ref().strip_prefix('/').into_iter().flat_map(|relative| relative.split('/'));
        let count = |wanted: &str| segments().filter(|segment| *segment == wanted).count();
        let (any, one) = (count("**"), count("*"));
        any > 0 && one <= 1 && any + one == segments().count()
    })
}
