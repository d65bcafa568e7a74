//! Compares the parameters of a query with the form parser of the URL standard.

use weir_fuzz::{Choices, Target};

use crate::matching::{Headers, RequestView};

const PIECES: &[&str] = &[
    "a", "b", "page", "=", "=", "&", "&", "%61", "%26", "%3D", "%3d", "%25", "%2561", "%", "%4", "%zz", "%00", "%ff",
    "%c3%a9", "+", "%2B", "%20", ";", "?", "/", "~", "[]", "\"", "1", "\u{e9}",
];

#[test]
fn any_query_has_the_parameters_that_others_read() {
    Target::new("queries").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let query = choices.text(PIECES, 16);
        let peer = std::net::Ipv4Addr::LOCALHOST.into();
        let view = RequestView::of_target("GET", ("/", Some(&query)), Headers::Lines(&[]), peer);
        let others: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let names = others.iter().map(|(name, _)| name.as_str()).chain(["a", "b", "page", "", "absent", "1", "+", " "]);
        // Names that are not UTF-8 cannot be compared: Weir keeps their bytes, and the form parser replaces them.
        for name in names.filter(|name| !name.contains('\u{fffd}')) {
            let found = view.query(name.as_bytes());
            let found: Vec<String> = found.map(|value| String::from_utf8_lossy(&value).into_owned()).collect();
            let expected: Vec<&String> =
                others.iter().filter(|(known, _)| known == name).map(|(_, value)| value).collect();
            if found.iter().ne(expected.iter().copied()) {
                return Err(format!("{name:?} of {query:?} is {found:?}, and should be {expected:?}"));
            }
        }
    }
    Ok(())
}
