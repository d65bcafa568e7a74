//! The limits of one rule, by name, and the other quotas of keys with an override.

use std::{collections::HashMap, error::Error, fmt};

use crate::Quota;

/// The largest number of limits in a rule.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{InvalidTerms, MAX_LIMITS, Quota, Strategy, Terms};
/// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
///
/// let limits = |count| (0..count).map(|number: usize| (number.to_string(), per_second(10).expect("valid")));
/// assert!(Terms::new(limits(MAX_LIMITS)).is_ok());
/// assert_eq!(Terms::new(limits(MAX_LIMITS + 1)), Err(InvalidTerms::TooManyLimits));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub const MAX_LIMITS: usize = 8;

/// The limits of one rule, which a [`RuleLimiter`](crate::RuleLimiter) enforces. A limit is identified by its name:
/// when the terms change, counts stay with the name.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{InvalidTerms, Quota, Strategy, Terms};
///
/// let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
/// let terms = Terms::new([("burst", per_second(100)?)])?
///     .with_override([b"gold".as_slice()], [("burst", per_second(1000)?)])?;
/// assert_eq!(terms.limits().collect::<Vec<_>>(), [("burst", per_second(100)?)]);
/// assert_eq!(terms.override_of(b"gold"), Some(0));
/// assert_eq!(terms.quotas(Some(0)), [per_second(1000)?]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    names: Vec<Box<str>>,
    quotas: Vec<Quota>,
    /// Quotas in the order of `names`, one list for each override.
    overrides: Vec<Vec<Quota>>,
    keys: HashMap<Box<[u8]>, usize>,
}

impl Terms {
    /// Returns terms with these limits, which must all admit a request. If several limits refuse, the first in order is
    /// reported.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{InvalidTerms, Quota, Strategy, Terms};
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    ///
    /// let terms = Terms::new([("burst", per_second(10)?), ("wide", per_second(100)?)])?;
    /// assert_eq!(terms.limits().len(), 2);
    /// assert_eq!(Terms::new::<&str>([]), Err(InvalidTerms::NoLimit));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidTerms`] if there is no limit, if there are more than [`MAX_LIMITS`] limits, or if two limits have the
    /// same name.
    pub fn new<N: Into<Box<str>>>(limits: impl IntoIterator<Item = (N, Quota)>) -> Result<Self, InvalidTerms> {
        let mut terms = Self { names: Vec::new(), quotas: Vec::new(), overrides: Vec::new(), keys: HashMap::new() };
        for (name, quota) in limits {
            let name = name.into();
            if terms.names.contains(&name) {
                return Err(InvalidTerms::NameTwice(name));
            }
            terms.names.push(name);
            terms.quotas.push(quota);
        }
        match terms.names.len() {
            0 => Err(InvalidTerms::NoLimit),
            1..=MAX_LIMITS => Ok(terms),
            _ => Err(InvalidTerms::TooManyLimits),
        }
    }

    /// Adds an override: for these keys, the limits with these names have other quotas.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{InvalidTerms, Quota, Strategy, Terms};
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    ///
    /// let terms = Terms::new([("burst", per_second(10)?)])?.with_override([b"gold".as_slice(), b"silver"], [("burst", per_second(100)?)])?;
    /// assert_eq!(terms.override_of(b"silver"), Some(0));
    /// let wrong = terms.with_override([b"bronze".as_slice()], [("brust", per_second(20)?)]).unwrap_err();
    /// assert_eq!(wrong, InvalidTerms::UnknownName("brust".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidTerms`] if a name is repeated or is not the name of a limit, or if a key already has an override.
    pub fn with_override<K: Into<Box<[u8]>>, N: Into<Box<str>>>(
        mut self,
        keys: impl IntoIterator<Item = K>,
        limits: impl IntoIterator<Item = (N, Quota)>,
    ) -> Result<Self, InvalidTerms> {
        let mut set = self.quotas.clone();
        let mut replaced = vec![false; set.len()];
        for (name, quota) in limits {
            let name = name.into();
            let Some(index) = self.names.iter().position(|known| *known == name) else {
                return Err(InvalidTerms::UnknownName(name));
            };
            if std::mem::replace(&mut replaced[index], true) {
                return Err(InvalidTerms::NameTwice(name));
            }
            set[index] = quota;
        }
        for key in keys {
            if self.keys.insert(key.into(), self.overrides.len()).is_some() {
                return Err(InvalidTerms::KeyTwice);
            }
        }
        self.overrides.push(set);
        Ok(self)
    }

    /// Returns the names and quotas in order, without overrides.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy, Terms};
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    ///
    /// let terms = Terms::new([("burst", per_second(10)?)])?;
    /// assert!(terms.limits().eq([("burst", per_second(10)?)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(&self) -> impl ExactSizeIterator<Item = (&str, Quota)> {
        self.names.iter().map(AsRef::as_ref).zip(self.quotas.iter().copied())
    }

    /// Returns the index of a key's override, in the order in which overrides were added.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy, Terms};
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    ///
    /// let terms = Terms::new([("burst", per_second(10)?)])?.with_override([b"gold".as_slice()], [("burst", per_second(100)?)])?;
    /// assert_eq!((terms.override_of(b"gold"), terms.override_of(b"ann")), (Some(0), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn override_of(&self, key: &[u8]) -> Option<usize> {
        self.keys.get(key).copied()
    }

    /// Returns the quotas of an override, or of all other keys for `None`, in the order of the limits.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy, Terms};
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    ///
    /// let terms = Terms::new([("burst", per_second(10)?)])?.with_override([b"gold".as_slice()], [("burst", per_second(100)?)])?;
    /// assert_eq!(terms.quotas(terms.override_of(b"gold")), [per_second(100)?]);
    /// assert_eq!(terms.quotas(terms.override_of(b"ann")), [per_second(10)?]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such override.
    pub fn quotas(&self, override_index: Option<usize>) -> &[Quota] {
        override_index.map_or(&self.quotas, |index| &self.overrides[index])
    }

    /// Returns the number of overrides.
    pub(crate) fn overrides(&self) -> usize {
        self.overrides.len()
    }

    /// Returns all keys with an override, each with the index of its override.
    pub(crate) fn overridden(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.keys.iter().map(|(key, &index)| (&**key, index))
    }

    /// Returns the index in `old` of each limit, matched by name.
    pub(crate) fn places_in(&self, old: &Self) -> Vec<Option<usize>> {
        self.names.iter().map(|name| old.names.iter().position(|known| known == name)).collect()
    }
}

/// The reason why limits and overrides are not valid [`Terms`].
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{InvalidTerms, Quota, Strategy, Terms};
/// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
///
/// let invalid = Terms::new([("burst", per_second(10)?), ("burst", per_second(20)?)]).unwrap_err();
/// assert_eq!(invalid, InvalidTerms::NameTwice("burst".into()));
/// assert_eq!(invalid.to_string(), "two limits are named burst: give each its own name");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidTerms {
    /// There is no limit.
    NoLimit,
    /// There are more than [`MAX_LIMITS`] limits.
    TooManyLimits,
    /// Two limits of the rule or of one override have this name.
    NameTwice(Box<str>),
    /// An override names a limit that the rule does not have.
    UnknownName(Box<str>),
    /// A key has two overrides.
    KeyTwice,
}

impl fmt::Display for InvalidTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLimit => f.write_str("a rule needs at least one limit"),
            Self::TooManyLimits => write!(f, "a rule has at most {MAX_LIMITS} limits: move some to another rule"),
            Self::NameTwice(name) => write!(f, "two limits are named {name}: give each its own name"),
            Self::UnknownName(name) => {
                write!(f, "{name} is not a limit of this rule: an override replaces limits of the same name")
            }
            Self::KeyTwice => f.write_str("a key has two overrides: keep it in one of them"),
        }
    }
}

impl Error for InvalidTerms {}
