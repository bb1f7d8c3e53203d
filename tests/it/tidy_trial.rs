//! Bad snippets, each found by its tidy rule, and good ones that no rule faults.

use super::*;

/// The faults as `line: what`.
fn shown(faults: Vec<Fault>) -> Vec<String> {
    faults.into_iter().map(|fault| format!("{}: {}", fault.line, fault.what)).collect()
}

#[test]
fn an_import_that_goes_up_is_found_with_both_floors() {
    let code = "use crate::clock::Now;\nuse crate::{limits, tables::{Batch, Tables}};";
    assert_eq!(
        shown(floors("src/wheel/mod.rs", code)),
        ["2: wheel on floor 0 names tables::Batch on floor 3", "2: wheel on floor 0 names tables::Tables on floor 3"]
    );
}

#[test]
fn a_path_in_the_midst_of_code_that_goes_up_is_found() {
    let code = "fn f() {\n    crate::server::run();\n}";
    let expected = ["2: tables on floor 3 names server::run on floor 7"];
    assert_eq!(shown(floors("src/tables/slot.rs", code)), expected);
}

#[test]
fn rooms_on_one_floor_do_not_import_each_other() {
    let jobs = floors("src/services/jobs/serve.rs", "use crate::services::tables::wire;");
    assert_eq!(jobs.len(), 1);
    assert_eq!(floors("src/tables/mod.rs", "use crate::tasks::Task;").len(), 1);
    assert_eq!(floors("src/stats.rs", "use crate::clock::Now;").len(), 1);
}

#[test]
fn a_super_that_leaves_its_room_is_an_import() {
    assert_eq!(floors("src/wheel/mod.rs", "use super::tables::Batch;").len(), 1);
    assert_eq!(floors("src/wheel/slots.rs", "use super::super::tables;").len(), 1);
    assert_eq!(floors("src/wheel/slots.rs", "use super::Timer;").len(), 0);
}

#[test]
fn imports_that_go_down_or_stay_are_fine() {
    let code = "use crate::tables::Batch; use crate::{net::sockets, services::tables::wire}; use crate::stats;";
    assert_eq!(shown(floors("src/services/tables/handle.rs", code)), [""; 0]);
    assert_eq!(shown(floors("src/main.rs", "use spindle::{cli, server};")), [""; 0]);
}

#[test]
fn a_room_without_a_floor_is_found() {
    assert_eq!(floors("src/extra.rs", "").len(), 1);
    assert_eq!(floors("src/server/mod.rs", "use crate::extra::X;").len(), 1);
}

#[test]
fn a_dependency_outside_its_place_is_found() {
    let code = "fn f() {\n    zmq::poll();\n}\nuse flurry::HashMap;";
    assert_eq!(places("src/tables/change.rs", code).len(), 2);
    assert_eq!(places("src/net/zeromq/inproc.rs", "use zmq;").len(), 0);
    assert_eq!(places("src/services/tables/serve.rs", "use zmq;").len(), 1);
    assert_eq!(places("src/server/mod.rs", "use zmq;").len(), 1);
    assert_eq!(places("src/server/mod.rs", "let zmq = 1; self.zmq.f();").len(), 0);
    assert_eq!(places("src/server/mod.rs", &code_of("// zmq::poll\n\"zmq::poll\"")).len(), 0);
}

#[test]
fn a_dependency_without_a_place_or_a_use_is_found() {
    let manifest = "[dependencies]\nzmq = \"0.10\"\nleft-pad = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n";
    let source = |text: &str| [("src/x.rs".to_owned(), text.to_owned())];
    assert_eq!(
        shown(dependencies(manifest, &source("use zmq; left_pad::pad();"))),
        ["3: left_pad has no place: give it one in tests/it/dependency_places.rs"]
    );
    assert_eq!(
        shown(dependencies(manifest, &source("left_pad::pad(); // zmq::poll"))),
        ["2: nobody names zmq", "3: left_pad has no place: give it one in tests/it/dependency_places.rs"]
    );
}

#[test]
fn threads_clocks_sleeps_and_unsafe_are_found_outside_their_places() {
    let snippets = [
        "std::thread::spawn(f)",
        "thread::Builder::new()",
        "Instant::now()",
        "SystemTime::now()",
        "start.elapsed()",
        "thread::sleep(d)",
        "unsafe { f() }",
    ];
    for snippet in snippets {
        assert_eq!(confined("src/tables/table.rs", snippet).len(), 1, "{snippet}");
        let in_tests = format!("#[cfg(test)]\nmod tests {{ {snippet} }}");
        let expected = usize::from(snippet.contains("unsafe"));
        assert_eq!(confined("src/tables/table.rs", &in_tests).len(), expected, "{in_tests}");
    }
    assert_eq!(confined("src/threads.rs", "thread::Builder::new()").len(), 0);
    assert_eq!(confined("src/clock.rs", "Instant::now()").len(), 0);
    assert_eq!(confined("src/allocator.rs", "unsafe { f() }").len(), 0);
    assert_eq!(confined("src/tables/table.rs", "#![allow(unsafe_code)]").len(), 0);
}

#[test]
fn what_is_left_open_too_long_or_without_a_head_is_found() {
    let open = concat!("//! A file.\n// TO", "DO: more\nfn f() { to", "do!() }\n");
    assert_eq!(shown(text("src/x.rs", open)).len(), 2);
    assert_eq!(text("src/x.rs", "fn f() {}\n").len(), 1);
    let sleeps = "//! A test.\nfn f() { std::thread::sleep(d) }\n";
    assert_eq!(text("tests/it/x.rs", sleeps).len(), 1);
    let long = format!("//! A file.\n{}", "\n".repeat(FILE_LINES_MAX));
    assert_eq!(text("src/x.rs", &long).len(), 1);
}

#[test]
fn a_function_that_does_not_fit_a_screen_is_found() {
    let function = |lines: usize| {
        let body = "        g();\n".repeat(lines);
        format!("//! A file.\nimpl X {{\n    pub fn f(\n        a: u8,\n    ) {{\n{body}    }}\n}}\n")
    };
    assert_eq!(text("src/x.rs", &function(60)).len(), 0);
    let found = text("src/x.rs", &function(70));
    assert_eq!((found.len(), found[0].line), (1, 3));
}

#[test]
fn a_file_that_its_parent_builds_only_for_tests_is_known_as_such() {
    let parent = "#[cfg(all(test, loom))]\nmod model;\nmod real;\n".to_owned();
    let mut sources = vec![("src/tables/slot.rs".to_owned(), parent.clone()), ("src/wheel/mod.rs".to_owned(), parent)];
    let others =
        ["src/tables/slot/model.rs", "src/tables/slot/model/part.rs", "src/wheel/model.rs", "src/wheel/real.rs"];
    sources.extend(others.map(|path| (path.to_owned(), String::new())));
    let found = files_of_tests(&sources);
    assert!(found.contains("src/tables/slot/model.rs") && found.contains("src/wheel/model.rs"));
    assert!(found.contains("src/tables/slot/model/part.rs"), "what is within a module of tests is one");
    assert!(!found.contains("src/wheel/real.rs") && !found.contains("src/tables/slot.rs"));
}
