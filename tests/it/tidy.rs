//! The source text keeps the house rules, so that they need no reviewer.
//!
//! Each rule is a function from one file's text to its faults. `tidy_trial` shows that it finds them. The rules about
//! floors, places, threads and the clock look at the code that is built into the server. Those about the text look at
//! all files.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use crate::circles::circles;
use crate::dependency_places::PLACES;
use crate::source::{code_of, line_of, paths, test_modules, without_tests, words};

/// A room, the floor that it is on, and its step on that floor. Imports go down, by floor and then by step.
struct Room {
    name: &'static str,
    floor: u8,
    step: u8,
}

const fn room(name: &'static str, floor: u8, step: u8) -> Room {
    Room { name, floor, step }
}

/// The floors of the house, from the ground up.
const ROOMS: &[Room] = &[
    room("limits", 0, 0),
    room("lock", 0, 0),
    room("allocator", 0, 0),
    room("byte_reader", 0, 0),
    room("seeded_rng", 0, 0),
    room("messages", 0, 0),
    room("clock", 0, 1),
    room("stats", 0, 1),
    room("log", 0, 2),
    room("wheel", 0, 3),
    room("chunked_map", 0, 3),
    room("feed", 1, 0),
    room("threads", 1, 0),
    room("descriptors", 1, 0),
    room("zmtp", 1, 0),
    room("resp3", 1, 0),
    room("store", 2, 0),
    room("security", 2, 0),
    room("tables", 3, 0),
    room("tasks", 3, 0),
    room("net::sockets", 4, 0),
    room("net::budget", 4, 1),
    room("net::mail", 4, 3),
    room("net::tcp", 4, 1),
    room("net::zeromq", 4, 2),
    room("net::http", 4, 3),
    room("net::service", 4, 3),
    room("services::tables", 5, 0),
    room("services::tasks", 5, 0),
    room("services::jobs", 5, 0),
    room("services::events", 5, 0),
    room("services::lockstep", 5, 1),
    room("services::resp", 5, 1),
    room("services::native", 5, 2),
    room("services::operator", 5, 2),
    room("clients", 6, 0),
    room("worker", 6, 1),
    room("load", 6, 1),
    room("server", 7, 0),
    room("cli", 7, 1),
    room("main", 7, 2),
];

/// Files that may have `unsafe`: the slot protocol, the allocator, the signals of threads and when they are blocked,
/// raw options of sockets.
const UNSAFE: &[&str] = &[
    "src/tables/slot.rs",
    "src/tables/slot/",
    "src/allocator.rs",
    "src/main.rs",
    "src/threads",
    "src/net/sockets",
    "src/net/zeromq/inproc.rs",
];
/// Files that may sleep where no thread could wake them: none.
const SLEEP: &[&str] = &[];
/// Files that may spawn threads.
const SPAWN: &[&str] = &["src/threads.rs"];
/// Files that may read the clock.
const CLOCK: &[&str] = &["src/clock.rs"];

/// Lines of the longest file.
const FILE_LINES_MAX: usize = 500;
/// Lines of the longest function.
const FUNCTION_LINES_MAX: usize = 70;

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

fn fault(path: &str, line: usize, what: impl Into<String>) -> Fault {
    Fault { path: path.to_owned(), line, what: what.into() }
}

/// The module of a source file, such as `services::tables::wire`.
fn module_of(path: &str) -> String {
    let inside = path.strip_prefix("src/").unwrap_or(path);
    let name = inside.strip_suffix(".rs").unwrap_or(inside);
    name.strip_suffix("/mod").unwrap_or(name).replace('/', "::")
}

fn room_of(module: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| {
        let rest = module.strip_prefix(room.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

/// Imports go down.
fn floors(path: &str, code: &str) -> Vec<Fault> {
    let module = module_of(path);
    // The crate page and the page of a floor declare their rooms and use none of them.
    if matches!(module.as_str(), "lib" | "net" | "services") {
        return Vec::new();
    }
    let Some(own) = room_of(&module) else {
        return vec![fault(path, 1, "a room without a floor: give it one in tests/it/tidy.rs")];
    };
    let mut faults = Vec::new();
    for named in paths(code) {
        let Some(target) = target_of(&module, &named.segments) else {
            continue;
        };
        match room_of(&target) {
            Some(other) if other.name == own.name || (other.floor, other.step) < (own.floor, own.step) => {}
            Some(other) => faults.push(fault(
                path,
                named.line,
                format!("{} on floor {} names {target} on floor {}", own.name, own.floor, other.floor),
            )),
            None => faults.push(fault(path, named.line, format!("{target} is on no floor"))),
        }
    }
    faults
}

/// The module or item, seen from the crate's root, that a path from inside `module` names. `None` if it is no such
/// path, or stays below the module.
fn target_of(module: &str, segments: &[String]) -> Option<String> {
    match segments.first()?.as_str() {
        "crate" | "spindle" if segments.len() > 1 => Some(segments[1..].join("::")),
        "super" => {
            let ups = segments.iter().take_while(|segment| *segment == "super").count();
            let target = segments[ups..].join("::");
            // Seen from a module inside the file, one `super` fewer leaves it: then the first name is no room.
            let leaves = ups >= module.split("::").count();
            (leaves && room_of(&target).is_some()).then_some(target)
        }
        _ => None,
    }
}

/// Each dependency is named only in its place.
fn places(path: &str, code: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for named in paths(code) {
        let Some(first) = named.segments.first() else {
            continue;
        };
        let names_a_crate = named.imported || named.segments.len() > 1;
        let place = PLACES.iter().find(|(name, _)| names_a_crate && name == first);
        if let Some((name, allowed)) = place
            && !in_any(path, allowed)
        {
            faults.push(fault(path, named.line, format!("{name} is named only in {allowed:?}")));
        }
    }
    faults
}

fn in_any(path: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| path.starts_with(beginning))
}

/// Each dependency of the manifest has a place, and some code names it.
fn dependencies(manifest: &str, sources: &[Source]) -> Vec<Fault> {
    let named: BTreeSet<String> = sources
        .iter()
        .flat_map(|(_, text)| paths(&code_of(text)))
        .filter_map(|path| path.segments.into_iter().next())
        .collect();
    let mut faults = Vec::new();
    for (line, name) in dependencies_of(manifest) {
        if PLACES.iter().all(|(known, _)| *known != name) {
            let what = format!("{name} has no place: give it one in tests/it/dependency_places.rs");
            faults.push(fault("Cargo.toml", line, what));
        }
        if !named.contains(&name) {
            faults.push(fault("Cargo.toml", line, format!("nobody names {name}")));
        }
    }
    faults
}

/// The dependencies of the code that is built into the server, as code names them, each with its line.
fn dependencies_of(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]") && !line.contains("dev-") && !line.contains("build-");
        } else if let Some((name, _)) = line.split_once('=').filter(|_| inside) {
            found.push((index + 1, name.trim().replace('-', "_")));
        }
    }
    found
}

/// Spawning threads, reading clocks, sleeping and `unsafe` are only where they may be.
fn confined(path: &str, code: &str) -> Vec<Fault> {
    let server = without_tests(code);
    let mut faults = Vec::new();
    let mut forbid = |text: &str, pattern: &str, allowed: &[&str], what: &str| {
        if !in_any(path, allowed) {
            faults.extend(
                text.match_indices(pattern)
                    .map(|(at, _)| fault(path, line_of(text, at), format!("{what} only in {allowed:?}"))),
            );
        }
    };
    forbid(&server, "thread::spawn", SPAWN, "threads are made");
    forbid(&server, "thread::Builder", SPAWN, "threads are made");
    forbid(&server, "Instant::now", CLOCK, "the clock is read");
    forbid(&server, "SystemTime::now", CLOCK, "the clock is read");
    forbid(&server, ".elapsed()", CLOCK, "the clock is read");
    forbid(&server, "thread::sleep", SLEEP, "a thread sleeps");
    let unsafe_words = words(code).filter(|&(_, word)| word == "unsafe" && !in_any(path, UNSAFE));
    faults.extend(unsafe_words.map(|(at, _)| fault(path, line_of(code, at), format!("unsafe only in {UNSAFE:?}"))));
    faults
}

/// The rules for the text of every file: its length, its head, the length of its functions, no open ends.
fn text(path: &str, text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        faults.push(fault(path, lines, format!("{lines} lines, above {FILE_LINES_MAX}: two chapters in one?")));
    }
    if !text.starts_with("//!") {
        faults.push(fault(path, 1, "a file begins with //! and what it is"));
    }
    // Put together here, so that this file is no fault of its own.
    let open = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("#[ign", "ore"),
    ];
    for word in open {
        faults.extend(
            text.match_indices(word).map(|(at, _)| fault(path, line_of(text, at), format!("left open: {word}"))),
        );
    }
    let code = code_of(text);
    if path.starts_with("tests/") {
        faults.extend(
            code.match_indices("thread::sleep")
                .map(|(at, _)| fault(path, line_of(&code, at), "a test waits for a condition")),
        );
    }
    faults.extend(long_functions(path, &code));
    faults
}

/// Functions that do not fit a screen, by the layout of rustfmt.
fn long_functions(path: &str, code: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (index, line) in code.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match open {
            None if begins_function(line) => open = Some((index, indent)),
            Some((start, depth)) if indent == depth && line.trim_end().ends_with(['}', ';']) => {
                open = None;
                if index - start > FUNCTION_LINES_MAX {
                    let what = format!("a function of {} lines, above {FUNCTION_LINES_MAX}", index - start + 1);
                    faults.push(fault(path, start + 1, what));
                }
            }
            _ => {}
        }
    }
    faults
}

/// Whether a function begins on this line and does not end on it.
fn begins_function(line: &str) -> bool {
    words(line).any(|(_, word)| word == "fn") && !line.trim_end().ends_with(['}', ';'])
}

/// A file of the crate: its path from the crate's root, and its text.
type Source = (String, String);

fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("the entry is there").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).expect("it is below the root");
                let text = std::fs::read_to_string(&path).expect("source is text");
                found.push((name.to_string_lossy().into_owned(), text));
            }
        }
    }
    found.sort();
    found
}

/// The files among `sources` that are only built for tests, because their parent, or a module around it, says so.
fn files_of_tests(sources: &[Source]) -> BTreeSet<String> {
    let declared = |(path, text): &Source| {
        let folder = match path.rsplit_once('/') {
            Some((folder, "mod.rs" | "lib.rs" | "main.rs")) => folder.to_owned(),
            _ => path.trim_end_matches(".rs").to_owned(),
        };
        let names = test_modules(&code_of(text)).into_iter();
        names.map(|name| format!("{folder}/{name}")).collect::<Vec<_>>()
    };
    let modules: Vec<String> = sources.iter().flat_map(declared).collect();
    let is_within = |path: &str, module: &String| {
        path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    let paths = sources.iter().map(|(path, _)| path);
    paths.filter(|path| modules.iter().any(|module| is_within(path, module))).cloned().collect()
}

fn assert_none(faults: &[Fault]) {
    let lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    assert!(faults.is_empty(), "\n{}", lines.join("\n"));
}

#[test]
fn the_server_keeps_floors_places_and_confinements() {
    let sources = sources("src");
    assert!(sources.len() > 10, "the source is looked for in the wrong place");
    let only_for_tests = files_of_tests(&sources);
    let mut faults = Vec::new();
    for (path, text) in &sources {
        let code = code_of(text);
        faults.extend(floors(path, &code));
        faults.extend(places(path, &code));
        if !only_for_tests.contains(path) {
            faults.extend(confined(path, &code));
        }
    }
    assert_none(&faults);
}

#[test]
fn siblings_import_each_other_in_no_circle() {
    let all = sources("src");
    let only_for_tests = files_of_tests(&all);
    let built = all.iter().filter(|(path, _)| !only_for_tests.contains(path));
    let module = |path| module_of(path).split("::").map(str::to_owned).collect();
    let modules: Vec<_> = built.map(|(path, text)| (module(path), without_tests(&code_of(text)))).collect();
    let found = circles(&modules);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_file_reads_as_a_chapter() {
    let all = ["src", "tests", "benches"].into_iter().flat_map(sources);
    let faults: Vec<Fault> = all.flat_map(|(path, content)| text(&path, &content)).collect();
    assert_none(&faults);
}

#[test]
fn every_dependency_has_a_place_and_a_use() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).expect("the manifest is there");
    assert_none(&dependencies(&manifest, &sources("src")));
}

/// Each rule finds the faults that it is for.
#[path = "tidy_trial.rs"]
mod trial;

/// Structs are small, and no parameter is a tuple.
#[path = "tidy_types.rs"]
mod types;
