//! Runs the program with `--quick`, and checks that it measures and writes everything.

use std::{path::Path, process::Command};

use serde_json::Value;

const SUITES: [&str; 4] = ["core", "tower", "burst", "sla"];

fn read(folder: &Path, file: &str) -> String {
    std::fs::read_to_string(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// All checks use one run, because a run takes seconds, and two parallel runs would disturb each other.
#[test]
fn a_quick_run_measures_everything_and_writes_it() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("benchmarks");
    let output = Command::new(env!("CARGO_BIN_EXE_weir-bench")).arg("--quick").arg("--out").arg(&folder).output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    for suite in SUITES {
        let json: Value = serde_json::from_str(&read(&folder, &format!("{suite}.json"))).expect("valid JSON");
        assert_eq!(json["name"], suite);
        assert_eq!(json["quick"], true);
        for key in ["cpu", "cores", "kernel", "rustc"] {
            assert!(!json["machine"][key].is_null(), "{suite}: {key}");
        }
        let tables = json["tables"].as_array().expect("a list");
        assert!(!tables.is_empty(), "{suite}");
        for table in tables {
            let columns = table["columns"].as_array().expect("a list").len();
            let rows = table["rows"].as_array().expect("a list");
            assert!(!rows.is_empty(), "{suite}: {}", table["title"]);
            for row in rows {
                assert_eq!(row["cells"].as_array().expect("a list").len(), columns, "{suite}: {row}");
            }
        }

        let markdown = read(&folder, &format!("{suite}.md"));
        assert!(markdown.contains("its figures are not meaningful"), "{suite}");
        let charts: Vec<_> = markdown.lines().filter_map(|line| line.strip_prefix("![")?.split_once("](")).collect();
        assert!(!charts.is_empty(), "{suite}");
        for (title, file) in charts {
            let svg = read(&folder, file.trim_end_matches(')'));
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{title}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{title}: {svg}");
        }
    }

    // This aim must be met in any run, independent of its duration and the load of the machine.
    let core: Value = serde_json::from_str(&read(&folder, "core.json")).expect("valid JSON");
    let aims = core["aims"].as_array().expect("a list");
    let exact = aims.iter().find(|aim| aim["aim"].as_str().is_some_and(|aim| aim.contains("more than is allowed")));
    assert_eq!(exact.expect("the aim is always measured")["met"], true, "{exact:?}");
}
