//! Small types: a struct of the server has few fields, and no parameter of a function is a tuple.
//!
//! It looks at the code that is built into the server. A struct of parameters that is built once for one call may be
//! large: the lists of exceptions name each.

use super::*;
use crate::source::braces;

/// The fields of the largest struct.
const FIELDS_MAX: usize = 12;

/// Larger structs, each with its file.
const LARGE_STRUCTS: &[(&str, &str)] = &[];

/// Functions with a tuple as a parameter, each with its file.
const TUPLE_PARAMETERS: &[(&str, &str)] = &[];

/// A function or type that breaks a rule: its line, its name, and how.
struct Finding<'c> {
    line: usize,
    name: &'c str,
    what: String,
}

/// The structs with too many fields.
fn large_structs(code: &str) -> Vec<Finding<'_>> {
    let mut found = Vec::new();
    for (at, name, after) in named_after(code, "struct") {
        let Some(body) = code[after..].find(['{', ';']).map(|header| &code[after + header..]) else { continue };
        let inside = body.get(1..braces(body) - 1).filter(|_| body.starts_with('{')).unwrap_or_default();
        let fields = split(inside, ',').into_iter().filter(|field| !field.trim().is_empty()).count();
        if fields > FIELDS_MAX {
            let what = format!("{name} has {fields} fields, above {FIELDS_MAX}: which of them belong together?");
            found.push(Finding { line: line_of(code, at), name, what });
        }
    }
    found
}

/// The functions with a parameter that is a tuple, by its pattern or by its type.
fn tuple_parameters(code: &str) -> Vec<Finding<'_>> {
    let mut found = Vec::new();
    for (at, name, after) in named_after(code, "fn") {
        let list = after + generics(&code[after..]);
        let parameters = split(enclosed(&code[list..]), ',');
        if parameters.iter().any(|parameter| split(parameter, ':').into_iter().any(is_tuple)) {
            let what = format!("{name} has a tuple as a parameter: give it a type or two names");
            found.push(Finding { line: line_of(code, at), name, what });
        }
    }
    found
}

/// The names after each `keyword`: the place of the keyword, the name, and the place behind the name.
fn named_after<'c>(code: &'c str, keyword: &str) -> Vec<(usize, &'c str, usize)> {
    let all: Vec<(usize, &str)> = words(code).collect();
    let pairs = all.windows(2).filter(|pair| pair[0].1 == keyword);
    let found = pairs.map(|pair| (pair[0].0, pair[1].1, pair[1].0 + pair[1].1.len()));
    // A type such as `fn(u8)` has no name.
    found.filter(|(at, _, after)| code[at + keyword.len()..*after].split_whitespace().count() == 1).collect()
}

/// The bytes of the generics that code begins with.
fn generics(code: &str) -> usize {
    code.strip_prefix('<').map_or(0, |inside| split(inside, '>')[0].len() + "<>".len())
}

/// The text within the first pair of parentheses.
fn enclosed(code: &str) -> &str {
    let inside = code.find('(').map_or("", |open| &code[open + 1..]);
    split(inside, ')').first().copied().unwrap_or_default()
}

/// Whether a pattern or a type is a tuple, or refers to one.
fn is_tuple(part: &str) -> bool {
    let bare = part.trim().trim_start_matches('&').trim_start_matches("mut ").trim_start();
    bare.starts_with('(') && split(enclosed(bare), ',').len() > 1
}

/// The parts of code between `separator`s that are in no brackets. `::` and the end of an arrow separate nothing.
fn split(code: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut from, mut depth) = (0, 0_i32);
    for (at, character) in code.char_indices() {
        let (before, after) = (&code[..at], &code[at + character.len_utf8()..]);
        let is_arrow = character == '>' && before.ends_with(['-', '=']);
        let is_path = character == ':' && (before.ends_with(':') || after.starts_with(':'));
        if is_arrow || is_path {
            continue;
        }
        if depth == 0 && character == separator {
            parts.push(&code[from..at]);
            from = at + character.len_utf8();
        }
        depth += i32::from("([{<".contains(character)) - i32::from(")]}>".contains(character));
    }
    parts.push(&code[from..]);
    parts
}

/// The findings that are no exceptions, and the exceptions of which nothing was found.
fn beyond<'c>(
    sources: &'c [Source],
    rule: impl Fn(&'c str) -> Vec<Finding<'c>>,
    exceptions: &[(&str, &str)],
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut needed = BTreeSet::new();
    for (path, code) in sources {
        for Finding { line, name, what } in rule(code) {
            match exceptions.iter().find(|exception| **exception == (path.as_str(), name)) {
                Some(exception) => drop(needed.insert(exception)),
                None => faults.push(fault(path, line, what)),
            }
        }
    }
    let idle = exceptions.iter().filter(|exception| !needed.contains(exception));
    faults.extend(idle.map(|(path, name)| fault(path, 1, format!("{name} is no exception any more: take it out"))));
    faults
}

#[test]
fn structs_are_small_and_parameters_are_no_tuples() {
    let all = sources("src");
    let only_for_tests = files_of_tests(&all);
    let built = all.into_iter().filter(|(path, _)| !only_for_tests.contains(path));
    let built: Vec<Source> = built.map(|(path, text)| (path, without_tests(&code_of(&text)))).collect();
    let mut faults = beyond(&built, large_structs, LARGE_STRUCTS);
    faults.extend(beyond(&built, tuple_parameters, TUPLE_PARAMETERS));
    assert_none(&faults);
}

#[test]
fn a_struct_with_many_fields_is_found() {
    let names = |code: &str| large_structs(code).into_iter().map(|found| found.name.to_owned()).collect::<Vec<_>>();
    let fields = |count: usize| "    #[x(a, b)]\n    pub(in crate::a) f: Map<K, fn(V, W) -> (u8, u8)>,\n".repeat(count);
    let of = |count: usize| {
        format!("struct Unit;\npub struct Large<'a, T: Fn(u8)>\nwhere\n    T: X,\n{{\n{}}}", fields(count))
    };
    assert_eq!(names(&of(FIELDS_MAX)), [""; 0]);
    assert_eq!(names(&of(FIELDS_MAX + 1)), ["Large"]);
    assert_eq!(names("struct Small(u8, u8);\nstruct A { a: u8, b: u8 }"), [""; 0]);
}

#[test]
fn a_parameter_that_is_a_tuple_is_found() {
    let found = [
        "fn f((a, b): (u8, u8)) {}",
        "fn f<F: Fn(u8) -> u8>(&self, range: (u32, u32)) -> u8 {}",
        "fn f(x: A<B, C>, mut pair: &mut (u8, Vec<u8>))",
        "fn f(\n    x: u8,\n    &(a, b): &(u8, u8),\n) {}",
    ];
    for code in found {
        assert_eq!(tuple_parameters(code).len(), 1, "{code}");
    }
    let fine = [
        "fn f(x: impl Fn(u8, u8) -> (u8, u8), unit: ()) -> (u8, u8) {}",
        "fn f<const N: usize>(x: [(u8, u8); N], y: Option<(a::B, u8)>, z: fn(u8, u8)) {}",
        "let f: fn(u8, (u8, u8)) = |(a, b): (u8, u8)| a;",
    ];
    for code in fine {
        assert_eq!(tuple_parameters(code).len(), 0, "{code}");
    }
}

#[test]
fn an_exception_holds_for_its_file_and_not_longer_than_it_is_needed() {
    let sources = [("src/a.rs".to_owned(), "fn f(x: (u8, u8)) {}".to_owned())];
    let faults = |exceptions: &[(&str, &str)]| beyond(&sources, tuple_parameters, exceptions).len();
    assert_eq!([faults(&[]), faults(&[("src/a.rs", "f")]), faults(&[("src/b.rs", "f")])], [1, 0, 2]);
}
