//! Parses a Markdown page: its blocks, links and headings.

use std::collections::BTreeSet;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

pub(super) struct Page {
    pub(super) blocks: Vec<Block>,
    /// The links, with their lines.
    pub(super) links: Vec<(usize, String)>,
    /// The anchors of the headings, in the form that links use.
    pub(super) headings: BTreeSet<String>,
    /// All texts in backquotes, which are names that the page introduces.
    pub(super) quoted: BTreeSet<String>,
}

pub(super) struct Block {
    /// The line of the opening fence.
    pub(super) line: usize,
    /// The text after the opening fence.
    pub(super) info: String,
    pub(super) text: String,
}

impl Page {
    pub(super) fn parse(text: &str) -> Self {
        let mut page =
            Self { blocks: Vec::new(), links: Vec::new(), headings: BTreeSet::new(), quoted: BTreeSet::new() };
        let (mut block, mut heading) = (None::<Block>, None::<String>);
        for (event, at) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..at.start].matches('\n').count();
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let info = if let CodeBlockKind::Fenced(info) = &kind { info.trim() } else { "" };
                    block = Some(Block { line, info: info.to_owned(), text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.headings.extend(heading.take().map(|text| anchor(&text))),
                Event::Text(text) => {
                    block
                        .as_mut()
                        .map(|block| &mut block.text)
                        .or(heading.as_mut())
                        .into_iter()
                        .for_each(|to| to.push_str(&text));
                }
                Event::Code(name) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&name));
                    page.quoted.insert(name.into_string());
                }
                _ => {}
            }
        }
        page
    }
}

impl Block {
    /// The commands of a console block. Each command is a list of words, or an error.
    pub(super) fn commands(&self) -> Vec<(usize, Result<Vec<String>, String>)> {
        let lines = self.text.lines().enumerate();
        lines.filter_map(|(index, line)| Some((self.line + 1 + index, words(line.strip_prefix("$ ")?)))).collect()
    }
}

/// Splits a line into words like a shell, for the syntax that the pages use.
fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is not closed".to_owned()) } else { Ok(words) }
}

/// Returns the anchor of a heading, as GitHub and mdBook create it.
fn anchor(heading: &str) -> String {
    let letters = heading.to_lowercase();
    letters
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ => letter.is_alphanumeric().then_some(letter),
        })
        .collect()
}

/// Returns the path of a linked file. The link is relative to the page that contains it.
pub(super) fn relative_to(page: &str, file: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_blocks_links_and_headings() {
        let page = Page::parse(
            "# What `x` is, and why\n[a](b.md#c) and `[no](link)` ![p](q.svg)\n```yaml part\nx: [1](2)\n```\nsee `f.yaml`, [in\ntwo lines](r.md)\n",
        );
        assert_eq!(page.links, [(2, "b.md#c".to_owned()), (2, "q.svg".to_owned()), (6, "r.md".to_owned())]);
        assert_eq!(page.headings, BTreeSet::from(["what-x-is-and-why".to_owned()]));
        assert!(page.quoted.contains("f.yaml") && page.quoted.contains("x"));
        let [block] = &page.blocks[..] else { panic!("one block") };
        assert_eq!((block.line, &*block.info, &*block.text), (3, "yaml part", "x: [1](2)\n"));
    }

    #[test]
    fn commands_are_split_as_a_shell_does() {
        let page = Page::parse("```console\n$ a -p '{\"b\": 1}' \"c d\"   # why\noutput\n$ e 'f\n```\n");
        let commands = page.blocks[0].commands();
        assert_eq!(commands[0], (2, Ok(["a", "-p", "{\"b\": 1}", "c d"].map(str::to_owned).to_vec())));
        assert_eq!(commands[1].0, 4);
        assert!(commands[1].1.is_err() && commands.len() == 2);
    }

    #[test]
    fn links_start_where_they_stand() {
        assert_eq!(relative_to("docs/guides/a.md", "../api.md"), "docs/api.md");
        assert_eq!(relative_to("README.md", "docs/a.md"), "docs/a.md");
        assert_eq!(relative_to("docs/a.md", "../README.md"), "README.md");
    }
}
