//! Each command of the tables by the method of our client, and by the words of the command line.

use spindle::clients::rust::tables::{Client, Error};
use spindle::clock::Ttl;
use spindle::feed::FeedPosition;
use spindle::services::tables::wire::{Command, ScanFields};
use spindle::tables::Durability;

use crate::harness::{Server, spindle};

/// Calls a method, and shows what it returns.
type Method = fn(&mut Client) -> Result<String, Error>;

/// A command, its method, what that returns; and the words for it, what they print, and what they print as JSON. Without
/// words the command line has none that sends just this.
type Row<'r> = (Command, Method, &'r str, &'r [&'r str], &'r str, &'r str);

/// The methods use the table `t`, the words the table `u`.
const ROWS: [Row<'_>; Command::COUNT] = [
    (Command::Ping, |c| shown(c.ping()), "()", &[], "", ""),
    (Command::CreateTable, |c| shown(c.create_table(b"t")), "()", &["create-table", "u"], "OK\n", ""),
    (Command::Update, |c| shown(c.update(b"t", b"k", b"v", None)), "()", &["set", "u", "k", "v"], "OK\n", ""),
    (Command::Get, |c| shown(c.get(b"t", b"k")), "[118]", &[], "", ""),
    (
        Command::GetEntry,
        |c| shown(c.get_entry(b"t", b"k").map(|entry| (entry.value, entry.version, entry.remaining_millis))),
        "([118], VERSION, None)",
        &["get", "u", "k"],
        "v",
        r#"{"remaining_millis":null,"value":"v","version":VERSION}"#,
    ),
    (
        Command::CompareAndSwap,
        |c| shown(c.compare_and_swap(b"t", b"c", 0, b"1", None)),
        "VERSION",
        &["cas", "u", "c", "0", "1"],
        "VERSION\n",
        "",
    ),
    (
        Command::CompareAndDelete,
        |c| {
            let version = c.get_entry(b"t", b"c")?.version;
            shown(c.compare_and_delete(b"t", b"c", version))
        },
        "[49]",
        &[],
        "",
        "",
    ),
    (
        Command::Touch,
        |c| shown(c.touch(b"t", b"k", Ttl::from_secs(60))),
        "()",
        &["touch", "u", "k", "--ttl", "60"],
        "OK\n",
        "",
    ),
    (Command::GetAndTouch, |c| shown(c.get_and_touch(b"t", b"k", Ttl::NONE)), "[118]", &[], "", ""),
    (Command::GetMany, |c| shown(c.get_many(b"t", &[b"j", b"k"])), "[None, Some([118])]", &[], "", ""),
    (
        Command::Scan,
        |c| shown(c.scan(b"t", b"", 9, ScanFields::Key, b"k").map(|page| page.rows.len())),
        "1",
        &["scan", "u", "--prefix", "k"],
        "k\n",
        "",
    ),
    (
        Command::Increment,
        |c| shown(c.increment(b"t", b"n", -4, None)),
        "(-4, VERSION)",
        &["incr", "u", "n", "5"],
        "5\n",
        r#"{"value":10,"version":VERSION}"#,
    ),
    (Command::UpdateMany, |c| shown(c.update_many(b"t", None, &[[b"j", b"v"]])), "()", &[], "", ""),
    (Command::DeleteMany, |c| shown(c.delete_many(b"t", &[b"j", b"j"])), "[true, false]", &[], "", ""),
    (Command::Delete, |c| shown(c.delete(b"t", b"k")), "[118]", &["delete", "u", "k"], "v\n", ""),
    (
        Command::ListTables,
        |c| shown(c.list_tables().map(|tables| (tables[0].name.clone(), tables[0].elements))),
        "([116], 1)",
        &[],
        "",
        "",
    ),
    (Command::Stats, |c| shown(c.stats().map(|json| json.starts_with('{'))), "true", &[], "", ""),
    (Command::FeedState, |c| shown(c.feed_state(b"t").map(|state| state.elements)), "1", &[], "", ""),
    (
        Command::Changes,
        |c| {
            let state = c.feed_state(b"t")?;
            let position = FeedPosition { sequence: state.oldest, ..state.next };
            shown(c.changes(b"t", position).map(|messages| messages.is_empty()))
        },
        "false",
        &[],
        "",
        "",
    ),
    (
        Command::Restore,
        |c| {
            c.create_table(b"copy")?;
            shown(c.restore(b"copy", b"k", b"v", 7, Ttl::NONE))
        },
        "AsItWas",
        &[],
        "",
        "",
    ),
    (
        Command::AlterTable,
        |c| shown(c.alter_table(b"t", Durability::None)),
        "()",
        &["alter-table", "u", "--durability", "none"],
        "OK\n",
        "",
    ),
    (Command::DeleteTable, |c| shown(c.delete_table(b"t")), "()", &["delete-table", "u"], "OK\n", ""),
];

fn shown<T: std::fmt::Debug>(result: Result<T, Error>) -> Result<String, Error> {
    result.map(|value| format!("{value:?}"))
}

/// The text with `VERSION` for each number that is as long as the versions of a server are.
fn without_versions(text: &str) -> String {
    let mut parts = Vec::new();
    for run in text.split_inclusive(|letter: char| !letter.is_ascii_digit()) {
        let digits = run.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        parts.push(if digits.len() > 9 { run.replace(digits, "VERSION") } else { run.to_owned() });
    }
    parts.concat()
}

#[test]
fn each_command_is_sent_by_its_method_and_returns_what_the_server_says() {
    let server = Server::start(&["--feed", "tcp://127.0.0.1:*"]);
    let mut client = Client::connect(server.kv()).unwrap();
    let sent = |command: Command| server.stats()["commands"][command.name()]["requests"].as_u64().unwrap();
    for (command, method, expected, ..) in ROWS {
        let before = sent(command);
        let returned = method(&mut client);
        assert_eq!(returned.map(|text| without_versions(&text)).as_deref(), Ok(expected), "{command:?}");
        let by_looking = u64::from(command == Command::Stats);
        assert_eq!(sent(command), before + 1 + by_looking, "{command:?}");
    }
    let mut rows = ROWS.map(|(command, ..)| command.code());
    rows.sort_unstable();
    assert_eq!(rows, Command::ALL.map(Command::code), "each has a row");
    server.stop();
}

#[test]
fn each_command_has_its_words_and_they_print_its_answer() {
    let server = Server::start(&[]);
    let printed = |words: &[&str]| {
        let output = spindle(&[words, &["--connect", server.kv()]].concat());
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        without_versions(&String::from_utf8(output.stdout).unwrap())
    };
    for (command, _, _, words, text, json) in ROWS {
        if !words.is_empty() {
            assert_eq!(printed(words), text, "{command:?}");
        }
        if !json.is_empty() {
            assert_eq!(printed(&[words, &["--json"]].concat()).trim_end(), json, "{command:?}");
        }
    }
    server.stop();
}
