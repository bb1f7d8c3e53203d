//! Tables written to a file and loaded again from the command line.

use std::collections::BTreeMap;
use std::process::Output;

use spindle::clients::rust::tables::Client;
use spindle::clock::Ttl;
use spindle::services::tables::wire::{ScanFields, ScanRows};

use crate::harness::{Server, spindle, spindle_reads};

const DAY: u32 = 86_400;
const DAY_MILLIS: u64 = 86_400_000;

/// The line of a command that failed with status 1.
#[track_caller]
pub(crate) fn complaint(output: &Output) -> String {
    complaint_with(1, output)
}

/// The line of a command that failed with this status.
#[track_caller]
pub(crate) fn complaint_with(status: i32, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    said
}

pub(crate) fn dump(server: &Server, table: &str) -> Vec<u8> {
    let output = spindle(&["dump", table, "--connect", server.kv()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub(crate) fn load(server: &Server, arguments: &[&str], dump: &[u8]) -> Output {
    spindle_reads(&[&["load-dump", "--connect", server.kv()], arguments].concat(), dump)
}

/// Keys with their value and version, and whether they have a deadline.
pub(crate) fn elements(client: &mut Client, table: &[u8]) -> BTreeMap<Vec<u8>, (Vec<u8>, u64, Option<u64>)> {
    let (mut elements, mut cursor) = (BTreeMap::new(), Vec::new());
    loop {
        let page = client.scan(table, &cursor, 10_000, ScanFields::Entry, b"").unwrap();
        let ScanRows::Entry(rows) = &page.rows else { panic!("{:?}", page.rows) };
        for row in rows {
            elements.insert(row.key.to_vec(), (row.value.to_vec(), row.version, row.remaining_millis));
        }
        cursor = page.next;
        if cursor.is_empty() {
            return elements;
        }
    }
}

#[test]
fn a_table_is_dumped_and_loaded_with_its_deadlines() {
    let [one, other] = [(); 2].map(|()| Server::start(&["--max-value", "3000000"]));
    let [mut from, mut to] = [&one, &other].map(|server| Client::connect(server.kv()).unwrap());
    from.create_table(b"t\0").unwrap();
    for number in 0..5_000_u32 {
        let ttl = if number % 3 == 0 { Ttl::from_millis(u64::from(DAY) * 1_000 + u64::from(number)) } else { None };
        from.update(b"t", &number.to_be_bytes(), &number.to_le_bytes().repeat(9), ttl).unwrap();
    }
    from.update(b"t", b"", b"", None).unwrap();
    from.update(b"t", b"large", &vec![7; 3_000_000], None).unwrap();
    let bytes = dump(&one, "t");

    let loaded = load(&other, &[], &bytes);
    assert_eq!(
        String::from_utf8_lossy(&loaded.stdout),
        "5002 elements loaded into t with their versions, 0 had expired\n"
    );
    let (expected, found) = (elements(&mut from, b"t"), elements(&mut to, b"t"));
    assert_eq!(expected.len(), 5_002);
    assert!(expected.keys().eq(found.keys()));
    for (key, (value, _, remaining)) in &expected {
        let (copy, _, later) = &found[key];
        assert!(value == copy, "{} has another value", key.escape_ascii());
        match (remaining, later) {
            (None, None) => {}
            // Within a day more than a day is left, so no minute of this test matters.
            (Some(millis), Some(later)) => {
                assert!(millis.abs_diff(*later) < DAY_MILLIS / 24 && *millis > DAY_MILLIS / 2)
            }
            _ => panic!("{}: {remaining:?} became {later:?}", key.escape_ascii()),
        }
    }
    let names: Vec<_> = to.list_tables().unwrap().into_iter().map(|table| table.name).collect();
    assert_eq!(names, [Box::from(&b"t\0"[..])], "the name is spelt as it was");

    let said = complaint_with(6, &load(&other, &[], &bytes));
    assert!(said.contains("table exists") && said.contains("--merge"), "{said}");
    to.update(b"t", b"large", b"small", Some(Ttl::from_secs(DAY))).unwrap();
    to.update(b"t", b"more", b"stays", None).unwrap();
    assert!(load(&other, &["--merge"], &bytes).status.success());
    let merged = elements(&mut to, b"t");
    assert_eq!((merged[&b"large"[..]].0.len(), merged[&b"large"[..]].2), (3_000_000, None), "its deadline is gone too");
    assert_eq!((&*merged[&b"more"[..]].0, merged.len()), (&b"stays"[..], 5_003));

    let json = load(&other, &["copy", "--json"], &bytes).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(
        json,
        serde_json::json!({ "table": "copy", "elements": 5_002, "versions": "kept", "anew": 0, "expired": 0 })
    );
    one.stop();
    other.stop();
}

#[test]
fn elements_that_expire_between_dump_and_load_are_gone() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.kv()).unwrap();
    client.create_table(b"t").unwrap();
    for (key, ttl) in [(b"brief", Some(Ttl::from_secs(3))), (b"stays", None)] {
        client.update(b"t", key, b"v", ttl).unwrap();
    }
    let bytes = dump(&server, "t");
    for round in 0.. {
        let said = load(&server, &[&format!("copy {round}")], &bytes).stdout;
        let said = String::from_utf8(said).unwrap();
        if said.ends_with("1 had expired\n") {
            assert!(said.starts_with("1 element loaded"), "{said}");
            break;
        }
        assert_eq!(said, format!("2 elements loaded into copy {round} with their versions, 0 had expired\n"));
    }
    server.stop();
}

#[test]
fn what_is_no_whole_dump_is_refused_with_what_was_loaded() {
    let server = Server::start(&[]);
    let mut client = Client::connect(server.kv()).unwrap();
    let absent = spindle(&["dump", "t", "--connect", server.kv()]);
    let said = String::from_utf8_lossy(&absent.stderr);
    assert!(absent.status.code() == Some(3) && said.trim_end().lines().count() == 1, "{said}");
    assert!(said.contains("table not found"), "{said}");
    client.create_table(b"t").unwrap();
    for number in 0..3_000_u32 {
        client.update(b"t", &number.to_be_bytes(), b"v", None).unwrap();
    }
    let bytes = dump(&server, "t");
    for (table, wrong, about) in [
        ("a", &b""[..], "no dump"),
        ("b", b"key value\n", "no dump"),
        ("c", &bytes[..bytes.len() - 1], "ends too early"),
        ("d", &bytes[..bytes.len() / 2], "ends too early"),
        ("e", &[&bytes[..], b"garbage"].concat(), "bytes follow the end"),
        ("f", &[&bytes[..], &bytes].concat(), "bytes follow the end"),
    ] {
        let said = complaint(&load(&server, &[table], wrong));
        assert!(said.contains(about), "{said}");
        assert_eq!(elements_of(&mut client, table), None, "a part of a dump leaves no table");
        assert_eq!(said.contains("the table is deleted again"), table > "b", "{said}");
        if table > "b" {
            client.create_table(table.as_bytes()).unwrap();
            let said = complaint(&load(&server, &[table, "--merge"], wrong));
            let there = elements_of(&mut client, table).unwrap();
            assert!(said.contains(&format!("({there} elements were loaded before)")), "{said}, but {there}");
        }
    }
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    let said = complaint(&load(&server, &["g"], &damaged));
    assert!(said.contains("damaged"), "{said}");
    server.stop();
}

#[test]
fn a_value_that_the_server_refuses_ends_the_load_with_advice() {
    let [large, small] = [&["--max-value", "2000"][..], &[]].map(Server::start);
    let mut client = Client::connect(large.kv()).unwrap();
    client.create_table(b"t").unwrap();
    client.update(b"t", b"k", &[0; 2_000], None).unwrap();
    let said = complaint(&load(&small, &[], &dump(&large, "t")));
    assert!(said.contains("value too long") && said.contains("(0 elements were loaded before"), "{said}");
    large.stop();
    small.stop();
}

pub(crate) fn elements_of(client: &mut Client, table: &str) -> Option<u64> {
    let tables = client.list_tables().unwrap();
    tables.iter().find(|line| *line.name == *table.as_bytes()).map(|line| line.elements)
}
