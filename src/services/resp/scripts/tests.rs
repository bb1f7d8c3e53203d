//! The table of scripts against their texts.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

/// The text of a script, as the library sends it.
fn text(row: &ScriptRow) -> Vec<u8> {
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/services/resp/scripts/texts");
    std::fs::read(texts.join(format!("{}.lua", row.digest))).expect(row.digest)
}

#[test]
fn each_text_is_found_as_its_row_and_by_its_digest() {
    for row in SCRIPTS {
        let text = text(row);
        assert_eq!(
            find_text(&text).map(|found| found.digest),
            Some(row.digest),
            "{} {}",
            row.source.library,
            row.source.name
        );
        assert!(text.len() <= TEXT_BYTES_MAX);
        assert!(find(row.digest.to_uppercase().as_bytes()).is_some());
        let other = [&text[..], b" "].concat();
        assert!(find_text(&other).is_none(), "a space more makes another script");
    }
    assert!(find(b"").is_none() && find_text(b"return 1").is_none());
}

#[test]
fn each_text_has_a_row() {
    let texts = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/services/resp/scripts/texts");
    let files = std::fs::read_dir(texts).expect("the texts");
    let files: BTreeSet<_> =
        files.map(|file| file.expect("a text").file_name().into_string().expect("a name")).collect();
    let rows: BTreeSet<_> = SCRIPTS.iter().map(|row| format!("{}.lua", row.digest)).collect();
    assert_eq!(files, rows);
}

#[test]
fn lines_are_those_of_calls_and_of_arithmetic() {
    for row in SCRIPTS {
        let text = String::from_utf8(text(row)).expect("text");
        for line in row.lines {
            let line = text.lines().nth(usize::from(*line) - 1).expect(row.source.name);
            assert!(line.contains("redis.call") || line.contains(['+', '*', '>', '<']), "{}: {line}", row.source.name);
        }
    }
}

#[test]
fn the_page_lists_each_script() {
    let page = include_str!("../PROTOCOL.md");
    for row in SCRIPTS {
        let line =
            format!("| {} | {} | {} | `{}` |", row.source.library, row.source.versions, row.source.name, row.digest);
        assert!(page.contains(&line), "{line}");
    }
}
