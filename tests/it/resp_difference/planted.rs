//! A proxy before a redis-server that plants a difference: the fuzz must find it.
//!
//! It changes whole frames of replies, or bytes of requests. It speaks no protocol of its own.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use super::link::Address;
use super::oracle::{Running, redis};
use super::reply::{Scan, is_message, scan};

/// A difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An error has other words.
    ErrorText,
    /// Null is of another type.
    NullType,
    /// A number is greater by one.
    Number,
    /// A remaining time is too short by 300 milliseconds.
    RemainingTime,
    /// The connection is closed after an error.
    Close,
    /// A message of a subscription is lost.
    LostMessage,
    /// The server ends when it receives a GETDEL.
    Crash,
    /// EXEC is not aborted.
    NoAbort,
    /// A command does something else: `SET … XX` as if it were NX.
    State,
}

/// All faults.
pub(crate) const FAULTS: [Fault; 9] = [
    Fault::ErrorText,
    Fault::NullType,
    Fault::Number,
    Fault::RemainingTime,
    Fault::Close,
    Fault::LostMessage,
    Fault::Crash,
    Fault::NoAbort,
    Fault::State,
];

/// Starts a redis-server behind a proxy with this fault. Its threads end with their connections.
pub(crate) fn start(fault: Fault) -> Running {
    let redis = redis();
    let Address::Unix(behind) = redis.address.clone() else { unreachable!("the oracle has a Unix socket") };
    let socket = behind.with_file_name("proxy");
    let listener = UnixListener::bind(&socket).expect("the folder is ours");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, UnixStream::connect(&behind)) else { return };
            connect(client, server, fault);
        }
    });
    let stop = Stop(socket.clone());
    Running::new(Address::Unix(socket), Box::new(InOrder { _first: redis, _second: stop }))
}

/// The server ends first: then the accepting thread, which is woken by a last connection, cannot connect to it.
struct InOrder {
    _first: Running,
    _second: Stop,
}

struct Stop(PathBuf);

impl Drop for Stop {
    fn drop(&mut self) {
        let _woken = UnixStream::connect(&self.0);
    }
}

/// Serves one connection with a thread for each direction.
fn connect(client: UnixStream, server: UnixStream, fault: Fault) {
    let (Ok(requests), Ok(behind)) = (client.try_clone(), server.try_clone()) else { return };
    std::thread::spawn(move || copy_requests(requests, behind, fault));
    std::thread::spawn(move || copy_replies(server, client, fault));
}

fn copy_requests(mut from: UnixStream, mut to: UnixStream, fault: Fault) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..count];
        if fault == Fault::State {
            let found: Vec<usize> =
                bytes.windows(8).enumerate().filter(|(_, part)| part == b"$2\r\nXX\r\n").map(|(at, _)| at).collect();
            for at in found {
                bytes[at + 4] = b'N';
            }
        }
        if fault == Fault::Crash && bytes.windows(6).any(|part| part == b"GETDEL") {
            let _ended_already = to.write_all(b"\r\nSHUTDOWN NOSAVE\r\n");
            break;
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _closed_already = to.shutdown(Shutdown::Write);
}

fn copy_replies(mut from: UnixStream, mut to: UnixStream, fault: Fault) {
    let mut input = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        input.extend_from_slice(&buffer[..count]);
        let mut output = Vec::new();
        let mut begin = 0;
        let mut is_last = false;
        while let Scan::Whole(end) = scan(&input, begin)
            && !is_last
        {
            let frame = &input[begin..end];
            is_last = fault == Fault::Close && frame.starts_with(b"-ERR syntax error");
            output.extend(changed(frame, fault));
            begin = end;
        }
        input.drain(..begin);
        if to.write_all(&output).is_err() || is_last {
            break;
        }
    }
    let _closed_already = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}

/// The frame with its fault.
fn changed(frame: &[u8], fault: Fault) -> Vec<u8> {
    let number =
        frame.strip_prefix(b":").and_then(|rest| std::str::from_utf8(rest).ok()?.trim_end().parse::<i64>().ok());
    match (fault, number) {
        (Fault::ErrorText, _) if frame.starts_with(b"-ERR value is not an int") => {
            b"-ERR value is no integer\r\n".to_vec()
        }
        (Fault::NullType, _) if frame == b"$-1\r\n" => b"*-1\r\n".to_vec(),
        (Fault::NoAbort, _) if frame == b"*-1\r\n" => b"*0\r\n".to_vec(),
        (Fault::Number, Some(45)) => b":46\r\n".to_vec(),
        (Fault::RemainingTime, Some(left @ 90_000..=100_000)) => format!(":{}\r\n", left - 300).into_bytes(),
        (Fault::LostMessage, _) if is_message(frame) => Vec::new(),
        _ => frame.to_vec(),
    }
}
