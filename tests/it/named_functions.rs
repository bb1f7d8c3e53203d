//! A function that a comment or a page names with its type, such as `Type::function`, is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::sentences::texts;
use crate::source::{braces, code_of, words};

/// The names that each type of the project has: variants, functions, constants and types.
type Members = BTreeMap<String, BTreeSet<String>>;

/// Adds what one file declares.
fn declare(code: &str, members: &mut Members) {
    for (at, keyword) in words(code).filter(|(_, word)| ["impl", "enum", "trait", "struct"].contains(word)) {
        let head = &code[at + keyword.len()..];
        let Some(open) = head.find(['{', ';', '(']).filter(|open| head[*open..].starts_with('{')) else { continue };
        let body = &head[open..open + braces(&head[open..])];
        let is_declared = |pair: &[&str]| ["fn", "const", "type"].contains(&pair[0]);
        let inside: Vec<&str> = words(body).map(|(_, word)| word).collect();
        let names: BTreeSet<String> = match keyword {
            "enum" | "struct" => inside.iter().map(|name| (*name).to_owned()).collect(),
            _ => inside.windows(2).filter(|pair| is_declared(pair)).map(|pair| pair[1].to_owned()).collect(),
        };
        for (_, name) in words(&head[..open]).filter(|(_, name)| name.starts_with(char::is_uppercase)) {
            members.entry(name.to_owned()).or_default().extend(names.iter().cloned());
        }
    }
}

/// The pairs of a type and a name that a line has in backticks. Links are rustdoc's to check.
fn named(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = line.split('`').skip(1).step_by(2);
    let links: BTreeSet<&str> = line.split("[`").skip(1).filter_map(|rest| rest.split('`').next()).collect();
    quoted.filter(move |text| !links.contains(text)).filter_map(|text| {
        let (path, name) = text.trim_end_matches("()").rsplit_once("::")?;
        let owner = path.rsplit("::").next()?;
        let is_name = |text: &str| !text.is_empty() && words(text).next().is_some_and(|(_, word)| word == text);
        (owner.starts_with(char::is_uppercase) && is_name(owner) && is_name(name)).then_some((owner, name))
    })
}

/// What is named and is not there, of a type that the project declares.
fn missing<'a>(text: &'a str, is_page: bool, members: &'a Members) -> impl Iterator<Item = String> + 'a {
    let prose = text.lines().enumerate().filter(move |(_, line)| is_page || line.trim_start().starts_with("//"));
    prose.flat_map(|(index, line)| named(line).map(move |pair| (index + 1, pair))).filter_map(
        |(line, (owner, name))| {
            let is_missing = members.get(owner).is_some_and(|names| !names.contains(name));
            is_missing.then(|| format!("{line}: {owner}::{name}"))
        },
    )
}

#[test]
fn every_function_that_a_text_names_with_its_type_is_there() {
    let files = texts();
    let mut members = Members::new();
    // Types of libraries with the same names have more.
    for (_, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        declare(&code_of(text), &mut members);
    }
    ["Arc", "Box", "Option", "Result", "Vec", "Duration"].into_iter().for_each(|name| drop(members.remove(name)));
    let all = files.iter().flat_map(|(path, text)| {
        missing(text, path.ends_with(".md"), &members).map(move |what| format!("{path}:{what}"))
    });
    assert_eq!(all.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_function_that_is_gone_is_found_and_others_are_not() {
    let mut members = Members::new();
    declare(
        "struct A { b: u8 }\nimpl<T> C for A { const D: u8 = 1; pub const fn e() { f() } }\nenum G { H(u8) }",
        &mut members,
    );
    let text = "// `A::e`, `x::A::D`, `A::e()`, `A::b`, `G::H`, `Other::f`, [`A::z`], `A::f`\n`A::g`";
    assert_eq!(missing(text, false, &members).collect::<Vec<_>>(), ["1: A::f"]);
    assert_eq!(missing(text, true, &members).collect::<Vec<_>>(), ["1: A::f", "2: A::g"]);
}
