//! Conversations beside a small model, which keeps every frame whole and looks at them only at the end.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails should say where")]

use std::collections::BTreeMap;

use bolero::check;
use proptest::prelude::*;

use super::*;
use crate::clock::Ttl;
use crate::net::zeromq::tests::message;
use crate::security::{Denied, Permissions, Users};
use crate::services::lockstep::wire::{envelope_frames, message_bounds};
use crate::zmtp::{MessageCutter, Messages};

const VALUE_MAX: usize = 8;
const BOUNDS: Bounds = Bounds { value_max: VALUE_MAX, room: usize::MAX };

/// The elements of each table, each with its last TTL.
type Elements = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, (Vec<u8>, Option<Ttl>)>>;

/// Carries out a request on plain maps.
fn carry_out(tables: &mut Elements, request: &Request<'_>) -> Outcome {
    let there = |found: Option<_>| found.ok_or(Reason::TableNotFound);
    match *request {
        Request::CreateTable { table, .. } if tables.contains_key(table.name()) => Err(Reason::TableExists),
        Request::CreateTable { table, .. } => {
            tables.insert(table.name().to_vec(), BTreeMap::new());
            Ok(None)
        }
        Request::DeleteTable { table } => there(tables.remove(table.name()).map(|_| None)),
        Request::Update { table, key, value, ttl } => {
            let table = tables.get_mut(table.name()).ok_or(Reason::TableNotFound)?;
            let before = table.get(key).and_then(|(_, ttl)| *ttl);
            table.insert(key.to_vec(), (value.to_vec(), ttl.or(before)));
            Ok(None)
        }
        Request::Delete { table, key } => {
            let table = tables.get_mut(table.name()).ok_or(Reason::TableNotFound)?;
            table.remove(key).map(|(value, _)| Some(value.into())).ok_or(Reason::KeyNotFound)
        }
        Request::Get { table, key } => {
            let table = tables.get(table.name()).ok_or(Reason::TableNotFound)?;
            table.get(key).map(|(value, _)| Some(value.clone().into())).ok_or(Reason::KeyNotFound)
        }
        _ => panic!("no command of this dialect: {request:?}"),
    }
}

/// An argument that owns its bytes.
#[derive(Clone, Debug)]
enum OwnedArgument {
    Frame(Vec<u8>),
    TooLong,
    Misshapen,
}

impl OwnedArgument {
    fn of(argument: Argument<'_>) -> Self {
        match argument {
            Argument::Frame(frame) => Self::Frame(frame.to_vec()),
            Argument::TooLong => Self::TooLong,
            Argument::Misshapen => Self::Misshapen,
        }
    }

    fn borrow(&self) -> Argument<'_> {
        match self {
            Self::Frame(frame) => Argument::Frame(frame),
            Self::TooLong => Argument::TooLong,
            Self::Misshapen => Argument::Misshapen,
        }
    }
}

/// The client's view of the server: the frames since the command, and the answer to a `6`.
#[derive(Default)]
struct ConversationModel {
    frames: Vec<OwnedArgument>,
    second: Option<Vec<u8>>,
    tables: Elements,
}

impl ConversationModel {
    /// The reply to the next frame.
    fn reply(&mut self, argument: &OwnedArgument) -> Vec<u8> {
        self.frames.push(argument.clone());
        let lengths = [2, 2, 5, 3, 3];
        let text = |place: usize| match &self.frames[place] {
            OwnedArgument::Frame(frame) if frame.ends_with(b"\0") => Ok(&frame[..frame.len() - 1]),
            OwnedArgument::Frame(frame) => Ok(&frame[..]),
            OwnedArgument::TooLong => Err(None),
            OwnedArgument::Misshapen => Err(Some("BAD REQUEST")),
        };
        let outcome = match text(0) {
            Ok([code @ b'0'..=b'4']) => {
                let code = usize::from(code - b'0');
                if self.frames.len() == 1 {
                    self.second = None;
                }
                if self.frames.len() < lengths[code] {
                    return b"ok".to_vec();
                }
                let places = [&["table", "key", "value", "ttl"][..lengths[code] - 1], &[]].concat();
                let fault = places.iter().enumerate().find_map(|(place, kind)| fault(kind, text(place + 1)));
                let texts: Vec<&[u8]> = (1..lengths[code]).map(|place| text(place).unwrap_or_default()).collect();
                match fault {
                    Some(reason) => Err(reason.to_owned()),
                    None => plain(&mut self.tables, code, &texts).map_err(str::to_owned),
                }
            }
            Ok(b"7") => Ok(None),
            Ok(b"6") => match self.second.take() {
                Some(second) => {
                    self.frames.clear();
                    return second;
                }
                None => Err("BAD REQUEST".to_owned()),
            },
            Ok(_) | Err(None) => Err("UNKNOWN COMMAND".to_owned()),
            Err(Some(reason)) => Err(reason.to_owned()),
        };
        self.frames.clear();
        let reply = if outcome.is_ok() { &b"ok"[..] } else { b"error" };
        self.second = outcome.unwrap_or_else(|reason| Some(reason.into_bytes()));
        reply.to_vec()
    }
}

/// What is wrong with an argument. An argument that was not kept has `Err(None)`.
fn fault(kind: &str, text: Result<&[u8], Option<&'static str>>) -> Option<&'static str> {
    let of_kind = match kind {
        "table" => "BAD TABLE NAME",
        "key" => "KEY TOO LONG",
        "value" => "VALUE TOO LONG",
        _ => "BAD TTL",
    };
    let text = match text {
        Ok(text) => text,
        Err(reason) => return Some(reason.unwrap_or(of_kind)),
    };
    let is_good = match kind {
        "table" => (1..=254).contains(&text.len()) && !text.contains(&0),
        "key" => text.len() <= 64,
        "value" => text.len() <= VALUE_MAX,
        _ => text == b"a" || text == b"\x01" || seconds(text).is_some(),
    };
    (!is_good).then_some(of_kind)
}

fn seconds(text: &[u8]) -> Option<u32> {
    let digits = str::from_utf8(text).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    if digits.len() > 64 { None } else { digits.parse().ok() }
}

/// Carries out a command with good arguments. Returns what a `6` gets.
fn plain(tables: &mut Elements, code: usize, texts: &[&[u8]]) -> Result<Option<Vec<u8>>, &'static str> {
    let name = texts[0].to_vec();
    match (code, tables.get_mut(&name)) {
        (0, Some(_)) => Err("TABLE EXISTS"),
        (0, None) => {
            tables.insert(name, BTreeMap::new());
            Ok(None)
        }
        (_, None) => Err("TABLE NOT FOUND"),
        (1, Some(_)) => {
            tables.remove(&name);
            Ok(None)
        }
        (2, Some(table)) => {
            let element = table.entry(texts[1].to_vec()).or_default();
            element.0 = texts[2].to_vec();
            element.1 = seconds(texts[3]).filter(|seconds| *seconds > 0).map(Ttl::from_secs).or(element.1);
            Ok(None)
        }
        (3, Some(table)) => table.remove(texts[1]).map(|(value, _)| Some(value)).ok_or("KEY NOT FOUND"),
        (_, Some(table)) => table.get(texts[1]).map(|(value, _)| Some(value.clone())).ok_or("KEY NOT FOUND"),
    }
}

/// A conversation beside its model.
#[derive(Default)]
struct Pair {
    conversation: Conversation,
    tables: Elements,
    model: ConversationModel,
}

impl Pair {
    /// Gives one argument to both, and compares. If `is_busy`, the tables have no room the first time.
    fn take(&mut self, argument: &OwnedArgument, is_busy: bool) {
        let Self { conversation, tables, model } = self;
        let before = (conversation.completes(), conversation.held_bytes());
        let first = is_busy.then(|| conversation.take(argument.borrow(), BOUNDS, |_| Err(NotDone::Busy)));
        let answer = match first {
            Some(Ok(answer)) => answer,
            Some(Err(_)) | None => {
                assert_eq!((conversation.completes(), conversation.held_bytes()), before, "nothing has changed");
                let execute = |request: &Request<'_>| {
                    assert!(before.0 == Some(request.command()), "only the last argument executes");
                    Ok(carry_out(tables, request))
                };
                conversation.take(argument.borrow(), BOUNDS, execute).unwrap()
            }
        };
        assert_eq!(answer.bytes(), model.reply(argument), "{argument:?}");
        assert_eq!(*tables, model.tables);
        // The arguments of an UPDATE, each within its limit, and the NUL of the table.
        assert!(conversation.held_bytes() <= 255 + 64 + VALUE_MAX);
    }
}

/// Gives frames to a conversation beside its model. Returns the replies as text.
fn replies(pair: &mut Pair, frames: &[&[u8]]) -> Vec<String> {
    let Pair { conversation, tables, .. } = pair;
    let reply = |frame: &&[u8]| {
        let execute = |request: &Request<'_>| Ok(carry_out(tables, request));
        let answer = conversation.take(Argument::Frame(frame), BOUNDS, execute).unwrap();
        String::from_utf8(answer.bytes().to_vec()).unwrap()
    };
    frames.iter().map(reply).collect()
}

#[test]
fn the_position_of_an_argument_decides_also_of_a_six_or_a_seven() {
    let mut pair = Pair::default();
    assert_eq!(replies(&mut pair, &[b"0", b"7\0", b"0", b"6", b"0", b"7"]), ["ok", "ok", "ok", "ok", "ok", "error"]);
    assert_eq!(replies(&mut pair, &[b"6"]), ["TABLE EXISTS"]);
    assert_eq!(replies(&mut pair, &[b"2", b"6", b"7", b"6", b"7"]), ["ok"; 5]);
    assert_eq!(replies(&mut pair, &[b"4", b"6", b"7", b"6"]), ["ok", "ok", "ok", "6"]);
    assert_eq!(pair.tables[&b"6"[..]][&b"7"[..]], (b"6".to_vec(), Some(Ttl::from_secs(7))));
}

#[test]
fn a_second_part_is_there_once_and_any_other_frame_drops_it() {
    let mut pair = Pair::default();
    assert_eq!(replies(&mut pair, &[b"6", b"6", b"6"]), ["error", "BAD REQUEST", "error"]);
    assert_eq!(replies(&mut pair, &[b"7", b"6", b"6"]), ["ok", "error", "BAD REQUEST"]);
    assert_eq!(replies(&mut pair, &[b"what", b"6"]), ["error", "UNKNOWN COMMAND"]);
    assert_eq!(replies(&mut pair, &[b"0", b"t", b"2", b"t", b"k", b"", b"a"]), ["ok"; 7]);
    assert_eq!(replies(&mut pair, &[b"4", b"t", b"k", b"6", b"6"]), ["ok", "ok", "ok", "", "error"], "an empty value");
    assert_eq!(replies(&mut pair, &[b"3", b"t", b"k", b"0", b"u", b"6"]), ["ok", "ok", "ok", "ok", "ok", "error"]);
}

#[test]
fn a_wrong_argument_is_refused_at_the_last_one_and_executes_nothing() {
    let mut pair = Pair::default();
    let long = [b'k'; 65];
    assert_eq!(replies(&mut pair, &[b"0", b"t"]), ["ok"; 2]);
    let update: [&[u8]; 6] = [b"2", b"t", &long, b"v", b"a", b"6"];
    assert_eq!(replies(&mut pair, &update), ["ok", "ok", "ok", "ok", "error", "KEY TOO LONG"]);
    let first: [&[u8]; 6] = [b"2", b"", &long, b"far too long", b"x", b"6"];
    assert_eq!(
        replies(&mut pair, &first),
        ["ok", "ok", "ok", "ok", "error", "BAD TABLE NAME"],
        "the first is reported"
    );
    assert!(pair.tables[&b"t"[..]].is_empty());
}

/// A client that sends long arguments cannot make the server keep them.
#[test]
fn what_does_not_fit_is_not_kept_and_still_answered() {
    let (mut conversation, bounds) = (Conversation::default(), Bounds { value_max: 100, room: 50 });
    let mut take = |frame: &[u8], held: usize| {
        let taken = conversation.take(Argument::Frame(frame), bounds, |_| panic!("it must not be executed"));
        assert!(conversation.held_bytes() <= held, "{} bytes held", conversation.held_bytes());
        String::from_utf8(taken.unwrap().bytes().to_vec()).unwrap()
    };
    assert_eq!([take(b"2", 0), take(b"t\0", 2), take(&[b'k'; 40], 42)], ["ok"; 3]);
    assert_eq!([take(&[b'v'; 9], 0), take(b"a", 0), take(b"6", 0)], ["ok", "error", "OUT OF MEMORY"]);
    assert_eq!([take(b"2", 0), take(&[b't'; 255], 0), take(b"k", 0), take(&[b'v'; 9], 0)], ["ok"; 4]);
    assert_eq!([take(b"a", 0), take(b"6", 0)], ["error", "BAD TABLE NAME"]);
}

fn frame() -> impl Strategy<Value = OwnedArgument> {
    let ended = |frames: Vec<&'static [u8]>| {
        let nuls = prop::sample::select(vec![&b""[..], b"\0", b"\0", b"\0\0"]);
        (prop::sample::select(frames), nuls).prop_map(|(frame, nuls)| OwnedArgument::Frame([frame, nuls].concat()))
    };
    prop_oneof![
        8 => ended(vec![b"0", b"1", b"2", b"2", b"3", b"4", b"4"]),
        4 => ended(vec![b"6", b"7"]),
        12 => ended(vec![b"t", b"u", b"t", b"", b"12", b"a", b"value"]),
        2 => ended(vec![&[b'x'; 8], &[b'x'; 9], &[b'x'; 64], &[b'x'; 65], &[b'x'; 254], &[b'x'; 255]]),
        2 => ended(vec![b"0000000007", b"4294967295", b"4294967296", b"-1", b"t\0u"]),
        1 => Just(OwnedArgument::TooLong),
        1 => Just(OwnedArgument::Misshapen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_frames_is_answered_as_the_model_answers_it(
        frames in prop::collection::vec((frame(), any::<bool>()), 0..80),
    ) {
        let mut pair = Pair::default();
        for (frame, is_busy) in &frames {
            pair.take(frame, *is_busy);
        }
    }
}

/// Any bytes of a connection: each message has an answer, as the model says, and a part of its frames as an envelope.
#[test]
fn any_bytes_are_answered_as_the_model_answers_them() {
    check!().with_type().for_each(|(bytes, is_raw): &(Vec<u8>, bool)| {
        let framed: Vec<u8> = bytes.chunks(4).flat_map(|frame| message(&[b"", frame])).collect();
        let bytes = if *is_raw { bytes } else { &framed };
        let (mut messages, mut pair) = (Messages::default(), Pair::default());
        let bounds = message_bounds(VALUE_MAX);
        let _ = MessageCutter::default().cut(bytes, &bounds, usize::MAX, &mut messages, &mut Vec::new());
        for message in messages.iter(bytes) {
            assert!(envelope_frames(&message) <= message.frames().len());
            pair.take(&OwnedArgument::of(Argument::of(&message)), false);
        }
    });
}

#[test]
fn a_command_that_its_user_may_not_give_is_counted_and_not_carried_out() {
    let (users, user) = Users::invented(Permissions::default());
    let mut conversation = Conversation::default();
    conversation.admit(user);
    for (part, expected) in [(b"0", Answer::Ok), (b"t", Answer::Error)] {
        let answer = conversation.take(Argument::Frame(part), BOUNDS, |_| panic!("it was carried out"));
        assert!(answer.is_ok_and(|answer| answer == expected));
    }
    assert_eq!(conversation.reason(), Some(Reason::Denied));
    assert_eq!(users.refusals(Denied::Permission), 1);
}
