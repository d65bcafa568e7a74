//! Fills in configuration files with placeholders. `{{name}}` is replaced by a value. The lines from `# each rule` to
//! `# end` are repeated for every rule, where `{{rule}}` is the number of the rule, and `{{path}}` is its path prefix.

/// The values of placeholders, by name.
pub(super) type Values<'a> = [(&'a str, String)];

pub(super) fn fill(template: &str, values: &Values<'_>, prefixes: &[String]) -> String {
    let mut text = String::new();
    let mut lines = template.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "# each rule" {
            push(&mut text, line, values);
            continue;
        }
        let block: Vec<_> = lines.by_ref().take_while(|line| line.trim() != "# end").collect();
        for (rule, path) in prefixes.iter().enumerate() {
            let of_rule = [("rule", rule.to_string()), ("path", path.clone())];
            for line in &block {
                push(&mut text, &put(line, &of_rule), values);
            }
        }
    }
    text
}

fn push(text: &mut String, line: &str, values: &Values<'_>) {
    // Placeholders in comments are not replaced.
    let line = if line.trim_start().starts_with('#') { line.to_owned() } else { put(line, values) };
    text.push_str(&line);
    text.push('\n');
}

fn put(line: &str, values: &Values<'_>) -> String {
    values.iter().fold(line.to_owned(), |line, (name, value)| line.replace(&format!("{{{{{name}}}}}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_blocks_repeated() {
        let template = "# {{a}}\nx {{a}}\n  # each rule\n  {{rule}} {{path}} {{a}}\n  # end\ny\n";
        let filled = fill(template, &[("a", "1".to_owned())], &["/p".to_owned(), "/q".to_owned()]);
        assert_eq!(filled, "# {{a}}\nx 1\n  0 /p 1\n  1 /q 1\ny\n");
    }
}
