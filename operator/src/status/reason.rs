//! The reasons of the conditions of policies and stores. The page `docs/concepts.md` explains each of them.

macro_rules! reasons {
    ($($name:ident),+ $(,)?) => {
        /// The reason of a condition, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "docs/concepts.md explains them")]
        pub enum Reason {
            $($name,)+
        }

        impl Reason {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the word in the condition.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }
        }
    };
}

reasons!(
    Accepted, Bypassed, Counted, CountsUnknown, CutOff, Drifted, Enforced, HeadlessService, HostPort, Invalid, NoPods,
    OtherPolicy, Pending, PodsCutOff, Programmed, Reached, Reconciling, Refused, RestartNeeded, ServicePort,
    SnapshotTooLarge, StoreNotFound, TargetNotFound, Unused,
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use weir_api::DriftReason;

    use super::*;

    #[test]
    fn the_manual_lists_each_reason_and_no_other() {
        let page = include_str!("../../../docs/concepts.md");
        let in_code = |text: &'static str| text.split('`').skip(1).step_by(2);
        let all: BTreeSet<&str> = in_code(page).collect();
        let missing: Vec<_> = Reason::ALL.iter().filter(|reason| !all.contains(reason.as_str())).collect();
        assert!(missing.is_empty(), "not in docs/concepts.md: {missing:?}");

        let (_, table) = page.split_once("\n| condition | True | otherwise |\n").expect("a table of conditions");
        let rows: Vec<&str> = table.lines().skip(1).take_while(|line| line.starts_with("| `")).collect();
        let conditions: BTreeSet<&str> = rows.iter().filter_map(|row| in_code(row).next()).collect();
        let is_reason = |word: &str| Reason::ALL.iter().any(|reason| reason.as_str() == word);
        let is_of_pod = |word: &str| serde_json::from_value::<DriftReason>(word.into()).is_ok();
        let words = rows.iter().flat_map(|row| in_code(row));
        let unknown: Vec<_> =
            words.filter(|word| !conditions.contains(word) && !is_reason(word) && !is_of_pod(word)).collect();
        assert!(unknown.is_empty(), "no operator writes these reasons: {unknown:?}");
    }
}
