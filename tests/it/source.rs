//! Rust source as the tidy rules see it: code without comments and literals, and the paths that it names.
//!
//! It is no parser: it knows comments, literals, identifiers, `::` and braces, and does not know types. All its results
//! keep the line numbers.

/// The text with every comment and every literal blanked out. It keeps the number of lines.
pub(crate) fn code_of(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    while let Some(first) = rest.chars().next() {
        let (kept, skipped) = match prose_at(rest, code.chars().next_back()) {
            0 => (first.len_utf8(), 0),
            bytes => (0, bytes),
        };
        code.push_str(&rest[..kept]);
        code.extend(rest[..skipped].chars().map(blank));
        rest = &rest[kept + skipped..];
    }
    code
}

fn blank(character: char) -> char {
    if character == '\n' { '\n' } else { ' ' }
}

/// Length in bytes of the comment or literal that begins here, 0 if code does. `before` is the character before.
fn prose_at(rest: &str, before: Option<char>) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    let inside_a_word = before.is_some_and(is_word);
    if inside_a_word { 0 } else { raw_string(rest) }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else {
            at += 1;
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// A literal in `quote`s, where a backslash hides what follows it.
fn quoted(rest: &str, quote: char) -> usize {
    let mut hidden = false;
    for (at, character) in rest.char_indices().skip(1) {
        if !hidden && character == quote {
            return at + quote.len_utf8();
        }
        hidden = !hidden && character == '\\';
    }
    rest.len()
}

/// A character literal. 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut following = rest.chars().skip(1);
    match (following.next(), following.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(rest, '\''),
        _ => 0,
    }
}

/// A raw string with its prefix. 0 for any other text.
fn raw_string(rest: &str) -> usize {
    let Some(prefix) = ["r", "br", "cr"].into_iter().find(|prefix| rest.starts_with(prefix)) else {
        return 0;
    };
    let hashes = rest[prefix.len()..].bytes().take_while(|&byte| byte == b'#').count();
    let body = prefix.len() + hashes;
    if !rest[body..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    rest[body + 1..].find(&end).map_or(rest.len(), |at| body + 1 + at + end.len())
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The code with each inline module that is only built for tests blanked out.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = test_attribute(rest) {
        let attribute = &rest[at..];
        let header = attribute.find(['{', ';']).unwrap_or(attribute.len());
        let end = match attribute[header..].chars().next() {
            Some('{') => header + braces(&attribute[header..]),
            _ => header,
        };
        kept.push_str(&rest[..at]);
        kept.extend(attribute[..end].chars().map(blank));
        rest = &attribute[end..];
    }
    kept + rest
}

/// The start of the next item that is only built for tests.
fn test_attribute(code: &str) -> Option<usize> {
    code.match_indices("#[cfg(").find(|&(at, _)| builds_only_for_tests(&code[at..])).map(|(at, _)| at)
}

/// Whether this attribute asks for `test`, and not the opposite.
fn builds_only_for_tests(attribute: &str) -> bool {
    let condition = attribute.split(']').next().unwrap_or_default();
    let Some((before, negated)) = condition.split_once("not(") else {
        return words(condition).any(|(_, word)| word == "test");
    };
    let mut depth = 1;
    let after = negated.trim_start_matches(|character| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        depth > 0
    });
    builds_only_for_tests(before) || builds_only_for_tests(after)
}

/// Bytes from an opening brace to the brace that closes it.
pub(crate) fn braces(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, character) in code.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Modules in files of their own that this code builds only for tests.
pub(crate) fn test_modules(code: &str) -> Vec<String> {
    code.match_indices("#[cfg(")
        .filter(|&(at, _)| builds_only_for_tests(&code[at..]))
        .filter_map(|(at, _)| {
            let header = code[at..].split(['{', ';']).next()?;
            let declares = code[at + header.len()..].starts_with(';');
            let mut names = words(header.split(']').nth(1)?).map(|(_, word)| word);
            (declares && names.any(|word| word == "mod")).then(|| names.next())?
        })
        .map(str::to_owned)
        .collect()
}

/// The identifiers and keywords of a piece of code, with their places in it.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + code[at..].find(is_word)?;
        let bytes = code[start..].find(|character| !is_word(character));
        at = bytes.map_or(code.len(), |bytes| start + bytes);
        Some((start, &code[start..at]))
    })
}

/// The line, from 1, of a place in a text.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// A path that code names, such as `crate::tables::Batch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    /// The line of its first segment, from 1.
    pub(crate) line: usize,
    /// Its segments. Those of a group in braces are each a path of their own.
    pub(crate) segments: Vec<String>,
    /// It is in a `use` or `extern crate`.
    pub(crate) imported: bool,
}

/// All paths that the code names, single identifiers among them.
pub(crate) fn paths(code: &str) -> Vec<NamedPath> {
    let mut found = Vec::new();
    let mut after = 0;
    for (at, _) in words(code) {
        if at < after {
            continue;
        }
        let before = code[..at].trim_end();
        let imported = before.ends_with("use") || before.ends_with("extern crate");
        let mut branches = Vec::new();
        after = branch(code, at, &mut Vec::new(), &mut branches);
        found.extend(branches.into_iter().map(|segments| NamedPath { line: line_of(code, at), segments, imported }));
    }
    found
}

/// Reads a path from its segment at `at` on. Returns its end.
fn branch(code: &str, at: usize, prefix: &mut Vec<String>, branches: &mut Vec<Vec<String>>) -> usize {
    let segment: String = code[at..].chars().take_while(|&c| is_word(c)).collect();
    let mut end = at + segment.len();
    prefix.push(segment);
    let blanks = |from: usize| from + (code[from..].len() - code[from..].trim_start().len());
    if code[blanks(end)..].starts_with("::") {
        let next = blanks(blanks(end) + 2);
        if code[next..].starts_with('{') {
            end = next + braces(&code[next..]);
            group(code, next + 1, end - 1, prefix, branches);
            prefix.pop();
            return end;
        }
        if code[next..].starts_with(is_word) {
            end = branch(code, next, prefix, branches);
            prefix.pop();
            return end;
        }
    }
    branches.push(prefix.clone());
    prefix.pop();
    end
}

/// Reads the paths of a group between its braces.
fn group(code: &str, mut at: usize, end: usize, prefix: &mut Vec<String>, branches: &mut Vec<Vec<String>>) {
    while let Some(start) = code[at..end].find(is_word) {
        at = branch(code, at + start, prefix, branches);
        // The rest of the branch, such as `as name`, goes with its comma.
        at = code[at..end].find(',').map_or(end, |comma| at + comma + 1);
    }
}

#[test]
fn comments_and_literals_are_blanked_and_lines_stay() {
    let text = "a /* b /* c */ \n d */ e // f\n\"g \\\" h\" i r#\"j\"k\"# l 'm' n '\\'' o<'p> br\"q\" for";
    let code = code_of(text);
    assert_eq!(code.matches('\n').count(), text.matches('\n').count());
    let seen: Vec<&str> = words(&code).map(|(_, word)| word).collect();
    assert_eq!(seen, ["a", "e", "i", "l", "n", "o", "p", "for"]);
}

#[test]
fn test_modules_are_blanked_or_named() {
    let code = "x\n#[cfg(test)]\nmod tests { y { z } }\n#[cfg(all(test, loom))]\nmod model;\n#[cfg(not(test))]\nmod real;\n\
         #[cfg(all(test, not(loom)))]\nmod small { q }\n#[cfg(not(all(test, loom)))]\nfn f;\n";
    let kept: Vec<String> = words(&without_tests(code)).map(|(_, word)| word.to_owned()).collect();
    let standing = "x cfg not test mod real cfg not all test loom fn f";
    assert_eq!(kept.join(" "), standing);
    assert_eq!(test_modules(code), ["model"]);
}

#[test]
fn paths_are_found_in_groups_and_in_the_midst_of_code() {
    let code = "use crate::{clock::{self, Now}, tables as t};\nlet a = b::<c::D>(crate :: wheel::X);\nuse zmq;";
    let found: Vec<String> = paths(code)
        .into_iter()
        .filter(|path| path.segments.len() > 1 || path.imported)
        .map(|path| format!("{}:{}", path.line, path.segments.join("::")))
        .collect();
    assert_eq!(
        found,
        ["1:crate::clock::self", "1:crate::clock::Now", "1:crate::tables", "2:c::D", "2:crate::wheel::X", "3:zmq"]
    );
}
