//! Commands come out as they went in, however the bytes are divided, and replies have the form of their version.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use proptest::prelude::*;

use super::{CommandBounds, CommandCutter, Fault, ReplyWriter, RespVersion, integer};
use crate::messages::{Messages, Unconsumed};

const BOUNDS: CommandBounds = CommandBounds { argument_bytes: 1 << 20, bytes: 2 << 20, is_proven: true };
const UNPROVEN: CommandBounds = CommandBounds { is_proven: false, ..BOUNDS };

/// The commands of these pieces, and the fault behind them.
fn cut(pieces: &[&[u8]], bounds: &CommandBounds) -> (Vec<Vec<Vec<u8>>>, Option<Fault>) {
    let (mut cutter, mut kept, mut cut) = (CommandCutter::default(), Vec::new(), Vec::new());
    let mut commands = Messages::default();
    for piece in pieces {
        kept.extend_from_slice(piece);
        loop {
            let left = cutter.cut(&mut kept, bounds, 3, &mut commands);
            let owned = commands.iter(&kept).map(|command| command.frames().map(<[u8]>::to_vec).collect::<Vec<_>>());
            cut.extend(owned);
            match left {
                Ok(Unconsumed { begun, rest }) => {
                    assert!(begun.is_empty());
                    kept.drain(..rest);
                }
                Err(fault) => return (cut, Some(fault)),
            }
            if commands.len() < 3 {
                break;
            }
        }
    }
    (cut, None)
}

/// The commands of these bytes as text, and what ends them.
fn texts(bytes: &[u8]) -> (Vec<String>, Option<Fault>) {
    let (commands, fault) = cut(&[bytes], &BOUNDS);
    let text = |command: &Vec<Vec<u8>>| {
        command.iter().map(|argument| String::from_utf8_lossy(argument).into_owned()).collect::<Vec<_>>().join("|")
    };
    (commands.iter().map(text).collect(), fault)
}

fn encode(command: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        bytes.extend(format!("${}\r\n", argument.len()).bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn fault(bytes: &[u8], bounds: &CommandBounds) -> Option<String> {
    cut(&[bytes], bounds).1.map(|fault| fault.to_string())
}

#[test]
fn arrays_and_lines_are_commands_and_what_is_empty_is_none() {
    let bytes = b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n*0\r\n*-1\r\n\r\nPING\r\n  set  k  v \n*1\r\n$4\r\nQUIT\r\n";
    let (commands, fault) = texts(bytes);
    assert_eq!((commands, fault), (vec!["GET|".into(), "PING".into(), "set|k|v".into(), "QUIT".into()], None));
}

#[test]
fn words_of_a_line_are_quoted_as_in_a_shell() {
    let words = |line: &[u8]| texts(&[line, b"\r\n"].concat());
    assert_eq!(words(br#"a "b c" 'd e' f"g""#).0, ["a|b c|d e|fg"]);
    assert_eq!(words(br#"a "\x41\n\t\q\"" 'it\'s \n'"#).0, ["a|A\n\tq\"|it's \\n"]);
    assert_eq!(words(br#""" ''"#).0, ["|"]);
    assert_eq!(words(b"\x0b\x0ca\x0bb\x0cc \"d\"\x0be").0, ["a\x0bb\x0cc|d|e"], "as in Redis");
    for line in [&br#"a "b"#[..], b"a 'b", br#"a "b"c"#, b"a 'b'c", br#"a "b\"#] {
        assert_eq!(words(line), (vec![], Some(Fault::Quotes)), "{}", String::from_utf8_lossy(line));
    }
}

#[test]
fn faults_have_the_words_of_redis() {
    let long = vec![b'1'; 70_000];
    let cases: [(&[u8], &str); 12] = [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*1\r\n+GET\r\n", "expected '$', got '+'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*1\r\n$1048577\r\n", "invalid bulk length"),
        (b"set \"a\r\n", "unbalanced quotes in request"),
        (&[b"*", &long[..]].concat(), "too big mbulk count string"),
        (&[b"*1\r\n$", &long[..]].concat(), "too big bulk count string"),
        (&long, "too big inline request"),
    ];
    for (bytes, text) in cases {
        assert_eq!(fault(bytes, &BOUNDS), Some(format!("ERR Protocol error: {text}")));
    }
    assert_eq!(fault(b"*10\r\n$16384\r\n", &UNPROVEN), None);
    let text = |what: &str| Some(format!("ERR Protocol error: unauthenticated {what} length"));
    assert_eq!(fault(b"*11\r\n", &UNPROVEN), text("multibulk"));
    assert_eq!(fault(b"*1\r\n$16385\r\n", &UNPROVEN), text("bulk"));
}

/// Regression: a byte that is no character of ASCII became two.
#[test]
fn the_byte_in_place_of_an_argument_is_shown_as_it_came() {
    for byte in 1..=255 {
        let fault = cut(&[&[b"*1\r\n", &[byte][..], b"\r\n"].concat()], &BOUNDS).1.map(|fault| fault.text());
        let due = [b"ERR Protocol error: expected '$', got '", &[byte][..], b"'"].concat();
        assert_eq!(fault, (byte != b'$').then_some(due).or(Some(Fault::ArgumentLength.text())));
    }
}

#[test]
fn commands_before_a_fault_are_good() {
    assert_eq!(texts(b"PING\r\n*1\r\n$x"), (vec!["PING".into()], None), "the line is not whole");
    assert_eq!(texts(b"PING\r\n*1\r\n$x\r\n"), (vec!["PING".into()], Some(Fault::ArgumentLength)));
}

/// A client that announces a million arguments, or a large one, has memory when they come.
#[test]
fn what_is_announced_takes_no_memory() {
    let (mut cutter, mut commands) = (CommandCutter::default(), Messages::default());
    let mut bytes = *b"*1000000\r\n$1\r\na\r\n$1000000\r\n";
    let left = cutter.cut(&mut bytes, &BOUNDS, 8, &mut commands);
    assert_eq!((left, commands.len()), (Ok(Unconsumed { begun: 0..0, rest: 0 }), 0));
    assert_eq!(cutter.kept_bytes(), 0, "as little as any cutter");
    let too_long = [b"*3\r\n".to_vec(), encode(&[vec![7; 1 << 20], vec![7; 1 << 20]])[4..].to_vec()].concat();
    assert_eq!(fault(&too_long, &BOUNDS), Some(Fault::LongCommand.to_string()));
}

#[test]
fn numbers_have_one_form() {
    for text in ["0", "7", "-7", "9223372036854775807", "-9223372036854775808"] {
        assert_eq!(integer(text.as_bytes()), Some(text.parse().unwrap()));
    }
    for text in ["", "-", "-0", "+1", "01", " 1", "1 ", "9223372036854775808", "-9223372036854775809", "1.0"] {
        assert_eq!(integer(text.as_bytes()), None, "{text:?}");
    }
}

#[test]
fn replies_have_the_form_of_their_version() {
    let all = |version| {
        let mut out = Vec::new();
        let mut writer = ReplyWriter::new(&mut out, version);
        writer.simple("OK");
        writer.error("ERR a\r\nb");
        writer.integer(i64::MIN);
        writer.bulk(b"v\0");
        writer.null();
        writer.null_array();
        writer.array(2);
        writer.map(1);
        writer.set(0);
        writer.push(3);
        writer.boolean(true);
        writer.double("1.5");
        writer.text("hi");
        String::from_utf8(out).unwrap()
    };
    let head = "+OK\r\n-ERR a  b\r\n:-9223372036854775808\r\n$2\r\nv\0\r\n";
    assert_eq!(
        all(RespVersion::Two),
        format!("{head}$-1\r\n*-1\r\n*2\r\n*2\r\n*0\r\n*3\r\n:1\r\n$3\r\n1.5\r\n$2\r\nhi\r\n")
    );
    assert_eq!(
        all(RespVersion::Three),
        format!("{head}_\r\n_\r\n*2\r\n%1\r\n~0\r\n>3\r\n#t\r\n,1.5\r\n=6\r\ntxt:hi\r\n")
    );
}

proptest! {
    #[test]
    fn commands_come_out_as_they_went_in_however_the_bytes_are_divided(
        commands in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..6), 0..9),
        piece in 1..40_usize,
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        prop_assert_eq!(cut(&pieces, &BOUNDS), (commands, None));
    }

    /// Bytes that look like the protocol, and any others.
    #[test]
    fn what_comes_of_any_bytes_does_not_depend_on_their_division(
        parts in prop::collection::vec(prop_oneof![
            Just(b"*2\r\n".to_vec()), Just(b"$1\r\n".to_vec()), Just(b"$3\r\nGET\r\n".to_vec()), Just(b"\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()), Just(b"get \"a b\" 'c'\n".to_vec()), Just(b"*1\r\n".to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ], 0..20),
        piece in 1..9_usize,
    ) {
        let bytes = parts.concat();
        let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
        prop_assert_eq!(cut(&pieces, &UNPROVEN), cut(&[&bytes], &UNPROVEN));
    }
}
