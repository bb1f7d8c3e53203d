//! The texts are read once: their sentences chain few pronouns, and they use the words of the field.
//!
//! ```text
//! file ─► blocks of prose (a page, or the lines of a doc comment) ─► paragraphs ─► sentences ─► pronouns, counted
//! ```
//! Some words are avoided altogether. Blocks of code, code in backticks and the targets of links are not counted. A cell
//! of a table, a heading and an item of a list are paragraphs of their own. This file does not judge grammar.

use std::path::{Path, PathBuf};

/// Words that point at some other word. A sentence with many of them is a riddle.
const PRONOUNS: [&str; 10] = ["that", "those", "one", "which", "it", "them", "what", "other", "such", "who"];
/// Pronouns of a sentence, at most.
const PRONOUNS_MAX: usize = 3;

/// Words that the texts do not use: they say replace, represent or selected.
const AVOIDED: [&str; 5] = ["meant", "stand for", "stands for", "stood for", "for who you are"];
/// Words that neither the texts nor the code use, in names or alone: they say report, publish, notify or receive.
const AVOIDED_EVERYWHERE: [&str; 10] =
    ["tell", "tells", "told", "telling", "untold", "hear", "hears", "heard", "hearing", "unheard"];

/// A line of prose with its number, from 1.
type Line<'a> = (usize, &'a str);

/// A sentence, and the line on which it begins.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sentence {
    line: usize,
    /// Its words, with spaces between them.
    text: String,
    /// The same, without code and the targets of links.
    visible: String,
}

/// The prose of a file: all lines of a page, and each doc comment of Rust.
fn blocks<'a>(path: &str, text: &'a str) -> Vec<Vec<Line<'a>>> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    if path.ends_with(".md") {
        return vec![lines.collect()];
    }
    let mut blocks: Vec<Vec<Line>> = vec![Vec::new()];
    let mut before = None;
    for (number, line) in lines {
        let line = line.trim_start();
        let mark = ["//!", "///"].into_iter().find(|mark| line.starts_with(mark) && !line.starts_with("////"));
        if mark != before {
            blocks.push(Vec::new());
        }
        before = mark;
        if let (Some(mark), Some(block)) = (mark, blocks.last_mut()) {
            block.push((number, &line[mark.len()..]));
        }
    }
    blocks
}

/// The paragraphs of a block, without its code.
fn paragraphs<'a>(block: &[Line<'a>]) -> Vec<Vec<Line<'a>>> {
    let mut found: Vec<Vec<Line>> = vec![Vec::new()];
    let mut is_code = false;
    for &(number, line) in block {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_fence || is_code || line.is_empty() {
            found.push(Vec::new());
        } else if line.starts_with('|') {
            found.extend(line.split('|').map(|cell| vec![(number, cell)]));
            found.push(Vec::new());
        } else {
            if begins_an_item(line) {
                found.push(Vec::new());
            }
            if let Some(paragraph) = found.last_mut() {
                paragraph.push((number, line));
            }
            if line.starts_with('#') {
                found.push(Vec::new());
            }
        }
    }
    found
}

/// Whether a heading or an item of a list begins here.
fn begins_an_item(line: &str) -> bool {
    let number = line.trim_start_matches(|character: char| character.is_ascii_digit());
    let is_numbered = number.len() < line.len() && number.starts_with(". ");
    is_numbered || ["#", "- ", "* "].into_iter().any(|mark| line.starts_with(mark))
}

/// The sentences of a paragraph.
fn sentences(paragraph: &[Line]) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut sentence = Sentence::default();
    let mut is_code = false;
    let words = paragraph.iter().flat_map(|(number, line)| line.split_whitespace().map(|word| (*number, word)));
    for (line, word) in words {
        let mut visible = String::new();
        for part in word.split_inclusive('`') {
            visible.push_str(if is_code { "" } else { part.trim_end_matches('`') });
            is_code ^= part.ends_with('`');
        }
        if sentence.text.is_empty() {
            sentence.line = line;
        }
        sentence.text += &format!("{word} ");
        sentence.visible += &format!("{visible} ");
        let end = visible.trim_end_matches([')', '*', '"', '”', '_', ']']);
        if !is_code && end.ends_with(['.', '?', '!']) {
            found.push(std::mem::take(&mut sentence));
        }
    }
    found.push(sentence);
    found
}

/// The pronouns of a sentence.
fn pronouns(sentence: &Sentence) -> usize {
    let text = without_targets(&sentence.visible);
    let words = text.split(|character: char| !character.is_alphanumeric() && !"_'’".contains(character));
    words.filter(|word| PRONOUNS.contains(&&*word.to_lowercase())).count()
}

/// The text without the targets of links.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| kept + " " + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// The sentences of a file that chain too many pronouns, as `path:line: sentence`.
fn riddles(path: &str, text: &str) -> Vec<String> {
    let paragraphs = blocks(path, text).into_iter().flat_map(|block| paragraphs(&block));
    let sentences = paragraphs.flat_map(|paragraph| sentences(&paragraph));
    let faults = sentences.filter(|sentence| pronouns(sentence) > PRONOUNS_MAX);
    faults.map(|sentence| format!("{path}:{}: {}", sentence.line, sentence.text.trim_end())).collect()
}

/// The words to avoid in a file, as `path:line: word: sentence`.
fn avoided_words(path: &str, text: &str) -> Vec<String> {
    let paragraphs = blocks(path, text).into_iter().flat_map(|block| paragraphs(&block));
    let sentences = paragraphs.flat_map(|paragraph| sentences(&paragraph));
    let faults = sentences.flat_map(|sentence| {
        let visible = without_targets(&sentence.visible).to_lowercase();
        let words: Vec<&str> = visible.split(|character: char| !character.is_alphanumeric()).collect();
        let spaced = format!(" {} ", words.join(" "));
        let has = |word: &&&str| spaced.contains(&format!(" {word} "));
        let found: Vec<&str> = AVOIDED.iter().chain(&AVOIDED_EVERYWHERE).filter(has).copied().collect();
        let shown = |word| format!("{path}:{}: {word}: {}", sentence.line, sentence.text.trim_end());
        found.into_iter().map(shown).collect::<Vec<_>>()
    });
    faults.collect()
}

/// The words to avoid in the code of a file, as `path:line: word`. A name in snake case or camel case has several words.
fn avoided_names(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut spaced = String::new();
        for character in line.chars() {
            let begins = character.is_uppercase() && spaced.ends_with(char::is_lowercase);
            spaced.push_str(if begins { " " } else { "" });
            spaced.push(character);
        }
        let spaced = spaced.to_lowercase();
        let words = spaced.split(|character: char| !character.is_alphanumeric());
        let avoided = words.filter(|word| AVOIDED_EVERYWHERE.contains(word));
        found.extend(avoided.map(|word| format!("{path}:{}: {word}", index + 1)));
    }
    found
}

/// The files below the root with texts: the pages, and the source of the crate.
pub(crate) fn texts() -> Vec<(String, String)> {
    files(&["README.md", "src", "perf"], &["md", "rs"])
}

/// The files in these places with these extensions.
fn files(places: &[&str], extensions: &[&str]) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = places.iter().map(|name| root.join(name)).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one)) {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn no_sentence_of_the_texts_is_a_riddle() {
    let texts = texts();
    assert!(texts.iter().filter(|(path, _)| path.ends_with(".md")).count() > 10, "the pages are elsewhere");
    assert!(texts.len() > 100, "the source is elsewhere");
    let found: Vec<String> = texts.iter().flat_map(|(path, text)| riddles(path, text)).collect();
    assert!(found.is_empty(), "more than {PRONOUNS_MAX} of {PRONOUNS:?}:\n{}", found.join("\n"));
}

#[test]
fn the_texts_use_the_words_of_the_field() {
    let found: Vec<String> = texts().iter().flat_map(|(path, text)| avoided_words(path, text)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_names_use_the_words_of_the_field() {
    let mut code = files(&["src", "tests", "benches", "perf"], &["rs", "py", "toml"]);
    code.retain(|(path, _)| path != "tests/it/sentences.rs");
    let found: Vec<String> = code.iter().flat_map(|(path, text)| avoided_names(path, text)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_riddle_is_found_in_a_page_and_in_a_doc_comment() {
    let riddle = "The one that has\nit is such as it.";
    assert_eq!(riddles("a.md", &format!("# A\n\n{riddle}")), ["a.md:3: The one that has it is such as it."]);
    let comment =
        "fn f() {}\n    /// Fine. The one that has\n    /// it is such as it. Fine.\n    // that that that that\n";
    assert_eq!(riddles("a.rs", comment), ["a.rs:2: The one that has it is such as it."]);
    assert_eq!(riddles("a.rs", "//! - One that\n//!   has what it has.\n").len(), 1);
}

#[test]
fn code_links_and_sentences_side_by_side_are_no_riddle() {
    let fine = [
        "That one is it. That is it (as one). Which one is it?",
        "```text\nthat that that that\n```\n",
        "`that that\nthat` that [this](that/that/one.md), with other",
        "| that one | it | them |\n|---|---|---|\n| that one | it | them |",
        "# That one\nit is\n- that one\n1. that one\n",
    ];
    for text in fine {
        assert_eq!(riddles("a.md", text), [""; 0], "{text}");
    }
    assert_eq!(riddles("a.rs", "/// That one\nfn f() {}\n/// is what it is\n"), [""; 0]);
}

#[test]
fn a_word_to_avoid_is_found_in_names() {
    assert_eq!(
        avoided_names("a.rs", "let x = is_told;\nstruct LastHeard; // shear"),
        ["a.rs:1: told", "a.rs:2: heard"]
    );
    assert_eq!(avoided_names("a.rs", "const TOLD_MAX: usize = 8;"), ["a.rs:1: told"]);
}

#[test]
fn a_word_to_avoid_is_found_outside_of_code() {
    assert_eq!(
        avoided_words("a.md", "So it is.\nA subscriber *hears*, and `heard` is code."),
        ["a.md:2: hears: A subscriber *hears*, and `heard` is code."]
    );
    assert_eq!(avoided_words("a.md", "It is told.").len(), 1);
    assert_eq!(
        avoided_words("a.rs", "/// It is told.\n/// It stands\n/// for all.\nlet heard = 1; // hears\n").len(),
        2
    );
    assert_eq!(avoided_words("a.md", "`told` [here](told.md), and a shearing\n```text\nhears\n```\n"), [""; 0]);
}
