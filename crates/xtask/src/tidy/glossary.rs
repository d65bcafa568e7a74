//! Checks the glossary in ARCHITECTURE.md: it is short enough to be read, and its terms are in order.

use std::path::Path;

use super::{Violation, sources};

const PAGE: &str = "ARCHITECTURE.md";

/// The maximum number of terms. A newcomer reads all of them before the code.
const MOST: usize = 60;

pub(super) fn check(root: &Path) -> anyhow::Result<Vec<Violation>> {
    Ok(check_page(&sources::read(&root.join(PAGE))?))
}

fn check_page(text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let glossary = text.split_once("\n## Glossary\n").map_or("", |(_, below)| below);
    let rows = glossary.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let terms: Vec<_> = rows.map_while(|row| row.strip_prefix("| ")?.split(" | ").next()).collect();
    if !(1..=MOST).contains(&terms.len()) {
        let fault = format!("the glossary has {} terms, which must be 1 to {MOST}", terms.len());
        violations.push(Violation::new(PAGE, fault, "define a term of one module in the docs of this module"));
    }
    for pair in terms.windows(2).filter(|pair| pair[0].to_lowercase() >= pair[1].to_lowercase()) {
        let fault = format!("the term {} is not after {}", pair[1], pair[0]);
        violations.push(Violation::new(PAGE, fault, "sort the glossary"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(terms: &[String]) -> Vec<String> {
        let rows: String = terms.iter().map(|term| format!("| {term} | what it means |\n")).collect();
        let page = format!(
            "# Page\n\n| part | job |\n|---|---|\n| z | a |\n\n## Glossary\n\n| term | meaning |\n|---|---|\n{rows}"
        );
        check_page(&page).into_iter().map(|violation| violation.fault).collect()
    }

    #[test]
    fn a_glossary_is_short_and_sorted() {
        let terms: Vec<_> = (0..=MOST).map(|number| format!("term {number:03}")).collect();
        assert_eq!(faults(&terms[1..]), [""; 0]);
        assert_eq!(faults(&terms), ["the glossary has 61 terms, which must be 1 to 60"]);
        assert_eq!(faults(&[]), ["the glossary has 0 terms, which must be 1 to 60"]);
        let swapped = ["Lease", "key"].map(String::from);
        assert_eq!(faults(&swapped), ["the term key is not after Lease"]);
    }
}
