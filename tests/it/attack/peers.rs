//! Attackers that send nearly right bytes: handshakes, frames, requests, and subscriptions without an end.

use std::io::{self, ErrorKind};

use spindle::services::tasks::wire::{LendMode, Request};

use super::Face;
use super::connections::Line;
use super::mutation::mutate;
use super::samples::{Target, identity, kv_frames, lockstep_arguments, task_bytes};
use super::siege::Siege;
use super::zmtp::{Client, command, greeting, message, ready};
use crate::resp_difference::reply::{Scan, scan};
use crate::seeded_rng::SeededRng;

/// Connections of one thread, at most.
const CONNECTIONS_MAX: usize = 200_000;
/// Messages of a connection before the next one is made.
const MESSAGES: usize = 200;
/// Requests in flight together.
const PIPELINE: usize = 32;
/// Subscriptions of one thread, at most.
const SUBSCRIPTIONS_MAX: u64 = 400_000;
/// Connections that subscribe together.
const SUBSCRIBERS: usize = 4;
/// Bytes of a topic.
const TOPIC_BYTES: usize = 200;
/// Subscriptions that are sent together.
const BURST: u64 = 256;
/// Blocks of changes that the tables are kept busy with, at most.
const BLOCKS_MAX: usize = 20_000;

/// Greetings and READYs with some bytes wrong, and a request after them.
pub(super) fn greetings(target: &Target, siege: &Siege, mut rng: SeededRng) {
    for _ in 0..CONNECTIONS_MAX {
        if siege.is_over() {
            return;
        }
        let Some(line) = Line::open(target.address) else { continue };
        siege.count(1);
        let socket_type = rng.pick(&[&b"DEALER"[..], b"REQ", b"SUB", b"ROUTER", b"PUSH", b""]);
        let own = identity(&mut rng);
        let mut bytes = [greeting(), ready(socket_type, Some(&own))].concat();
        let other = target.frames(&mut rng);
        if rng.index(4) > 0 {
            mutate(&mut rng, &mut bytes, &other);
        }
        bytes.extend(target.request(&mut rng));
        line.write_in_pieces(&bytes, &mut rng);
        if rng.one_in(8) {
            line.wait_to_read();
        }
        line.leave(rng.index(8) != 0);
    }
}

/// Good handshakes, then frames and commands with some bytes wrong.
pub(super) fn frames(target: &Target, siege: &Siege, mut rng: SeededRng) {
    for _ in 0..CONNECTIONS_MAX {
        if siege.is_over() {
            return;
        }
        if rng.one_in(8) {
            probe_ping(target, siege);
        }
        let Some(line) = Line::open(target.address) else { continue };
        line.write(&target.hello(&mut rng));
        for _ in 0..MESSAGES {
            let mut bytes = target.frames(&mut rng);
            let other = target.frames(&mut rng);
            if rng.one_in(2) {
                mutate(&mut rng, &mut bytes, &other);
            }
            siege.count(1);
            if !line.write_in_pieces(&bytes, &mut rng) || line.read().is_none() {
                break;
            }
        }
        line.leave(rng.index(8) != 0);
    }
}

/// A PING without its time to live ends the connection or is skipped. Its answer never has bytes that its sender has
/// not sent.
fn probe_ping(target: &Target, siege: &Siege) {
    let socket_type = if target.face == Face::Publish { &b"SUB"[..] } else { b"DEALER" };
    let probe = || -> io::Result<Vec<u8>> {
        let mut client = Client::meet(&target.address.to_string(), socket_type)?;
        client.send(&command(b"PING", b"\0"))?;
        client.send(&command(b"PING", b"\0\x0aprobe"))?;
        client.receive_pong()
    };
    siege.count(1);
    match probe() {
        Ok(context) if context != b"probe" => siege.fault("PING", format!("a PONG says {context:?}")),
        Ok(_) | Err(_) => {}
    }
}

/// Requests with some bytes or frames wrong, in distinct envelopes: each is answered once, in its turn.
pub(super) fn requests(target: &Target, siege: &Siege, mut rng: SeededRng) {
    match target.face {
        Face::Events | Face::Jobs | Face::Admin | Face::Resp => plain_requests(target, siege, &mut rng),
        _ => {
            while !siege.is_over() {
                match answered_in_turn(target, siege, &mut rng) {
                    Err(error) if !siege.is_ending() => return siege.fault("mutated requests", error),
                    Ok(()) | Err(_) => {}
                }
            }
        }
    }
}

fn answered_in_turn(target: &Target, siege: &Siege, rng: &mut SeededRng) -> io::Result<()> {
    let mut client = Client::meet(&target.address.to_string(), b"DEALER")?;
    let mut number = 0_u64;
    for _ in 0..MESSAGES {
        let first = number;
        let mut bytes = Vec::new();
        for _ in 0..=rng.index(PIPELINE) {
            let body = mutated_request(target.face, rng);
            let cookie = number.to_be_bytes();
            let frames: Vec<&[u8]> = [&cookie[..], b""].into_iter().chain(body.iter().map(Vec::as_slice)).collect();
            bytes.extend(message(&frames));
            number += 1;
        }
        client.send(&bytes)?;
        for number in first..number {
            let reply = client.receive()?;
            let due = reply.len() >= 3 && reply[0] == number.to_be_bytes() && reply[1].is_empty();
            if !due || !is_reply(target.face, &reply[2..]) {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("instead of reply {number}: {reply:?}")));
            }
        }
        siege.count(usize::try_from(number - first).unwrap());
    }
    Ok(())
}

/// Whether the number and the first bytes of these frames are those of a reply.
fn is_reply(face: Face, frames: &[Vec<u8>]) -> bool {
    match face {
        // An answer of the tasks has its fields in one frame. In lock-step a value stands by itself.
        Face::Tasks | Face::Lockstep => frames.len() == 1,
        // Each reply of the tables begins with its status.
        _ => matches!(frames[0][..], [0 | 1]),
    }
}

/// The body of a request. For the tasks it is none that waits for a task, since its answer waits too.
fn mutated_request(face: Face, rng: &mut SeededRng) -> Vec<Vec<u8>> {
    if face == Face::Tasks {
        let (mut bytes, other) = (task_bytes(rng), task_bytes(rng));
        mutate(rng, &mut bytes, &other);
        if matches!(Request::decode(&bytes), Ok(Request::Lend { mode: LendMode::Block, .. })) {
            bytes.clear();
        }
        return vec![bytes];
    }
    if face == Face::Lockstep {
        return mutated_argument(rng);
    }
    let (mut frames, other) = (kv_frames(rng), kv_frames(rng));
    let at = rng.index(frames.len());
    match rng.index(6) {
        0 => drop(frames.remove(at)),
        1 => frames.insert(at, rng.pick(&other.iter().map(Vec::as_slice).collect::<Vec<_>>()).to_vec()),
        2 => frames.extend(vec![Vec::new(); rng.pick(&[1, 3, 2_200])]),
        3 => frames.rotate_left(at),
        _ => mutate(rng, &mut frames[at], &other.concat()),
    }
    frames
}

/// An argument of some command, wherever the conversation stands: the positions of most are wrong.
fn mutated_argument(rng: &mut SeededRng) -> Vec<Vec<u8>> {
    let arguments = lockstep_arguments(rng);
    let at = rng.index(arguments.len());
    let mut argument = arguments[at].clone();
    match rng.index(8) {
        0 => mutate(rng, &mut argument, &arguments.concat()),
        1 => return arguments,
        2 => return vec![argument; rng.pick(&[2, 3, 2_200])],
        _ => {}
    }
    vec![argument]
}

/// Requests over HTTP, of the jobs or of Redis clients, with some bytes wrong. An answer that comes is one of the protocol.
fn plain_requests(target: &Target, siege: &Siege, rng: &mut SeededRng) {
    for _ in 0..CONNECTIONS_MAX {
        if siege.is_over() {
            return;
        }
        let Some(line) = Line::open(target.address) else { continue };
        let (mut answer, mut open) = (Vec::new(), true);
        for _ in 0..=rng.index(4) {
            let (mut bytes, other) = (target.request(rng), target.request(rng));
            mutate(rng, &mut bytes, &other);
            siege.count(1);
            open = open && line.write_in_pieces(&bytes, rng);
            while open && line.wait_to_read() {
                match line.read() {
                    Some(more) => answer.extend(more),
                    None => open = false,
                }
            }
        }
        if !is_answer(target.face, &answer) {
            siege.fault("mutated requests", format!("an answer is {:?}", String::from_utf8_lossy(&answer)));
        }
        line.leave(rng.index(8) != 0);
    }
}

/// Whether these bytes, which may be cut off, begin as an answer does.
fn is_answer(face: Face, bytes: &[u8]) -> bool {
    let begins = |word: &[u8]| bytes.starts_with(&word[..word.len().min(bytes.len())]);
    match face {
        Face::Resp => are_replies(bytes),
        Face::Events | Face::Admin => begins(b"HTTP/1.1 ") || begins(b"HTTP/1.0 "),
        _ => {
            bytes.iter().take(20).all(u8::is_ascii_digit)
                || [b"OK", b"NO"].contains(&bytes.first_chunk().unwrap_or(b"OK"))
                || begins(b"YES")
                || begins(b"ERROR")
        }
    }
}

/// Whether these bytes, which may be cut off, are replies to a Redis client.
fn are_replies(bytes: &[u8]) -> bool {
    let mut at = 0;
    loop {
        match scan(bytes, at) {
            Scan::Whole(end) => at = end,
            Scan::Partial => return true,
            Scan::Malformed => return false,
        }
    }
}

/// Subscriptions to ever new topics, in both forms, from connections that never read.
pub(super) fn subscriptions(target: &Target, siege: &Siege, mut rng: SeededRng) {
    let mut lines: Vec<Option<(Line, Vec<u8>)>> = (0..SUBSCRIBERS).map(|_| None).collect();
    let mut number = rng.next();
    let last = number.saturating_add(SUBSCRIPTIONS_MAX);
    while !siege.is_over() {
        if number >= last {
            siege.rest(super::connections::PATIENCE);
            continue;
        }
        for place in &mut lines {
            let Some((line, unsent)) = place else {
                *place = Line::open(target.address).map(|line| (line, target.hello(&mut rng)));
                continue;
            };
            if unsent.is_empty() {
                siege.count(usize::try_from(BURST).unwrap());
                *unsent = (number..number + BURST).flat_map(endless).collect();
                number += BURST;
            }
            match line.write(unsent) {
                Some(sent) => drop(unsent.drain(..sent)),
                None => *place = None,
            }
        }
    }
}

fn endless(number: u64) -> Vec<u8> {
    let mut topic = vec![b't'; TOPIC_BYTES];
    topic[..8].copy_from_slice(&number.to_be_bytes());
    if number.is_multiple_of(2) { command(b"SUBSCRIBE", &topic) } else { message(&[&[&[1], &topic[..]].concat()]) }
}

/// A client that changes elements as fast as it is answered, so that there are notifications.
pub(super) fn keep_busy(kv: &str, siege: &Siege) {
    let change = || -> io::Result<()> {
        let mut client = Client::meet(kv, b"DEALER")?;
        client.send(&message(&[&[0], b"noise"]))?;
        client.receive()?;
        let keys: Vec<[u8; 1]> = (0..200).map(|key| [key]).collect();
        let pairs = keys.iter().flat_map(|key| [&key[..], b"value"]);
        let block = message(&[&[11][..], b"noise", b""].into_iter().chain(pairs).collect::<Vec<_>>());
        for _ in 0..BLOCKS_MAX {
            client.send(&block)?;
            client.receive()?;
        }
        Ok(())
    };
    match change() {
        Err(error) if !siege.is_ending() => siege.fault("changes", error),
        Ok(()) | Err(_) => {}
    }
}
