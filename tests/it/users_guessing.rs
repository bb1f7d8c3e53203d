//! Guessers of passwords, and the users whom they would keep out, over real sockets.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::attack::zmtp;
use crate::jobs::rest;
use crate::users_tcp::{ADA, EVE, Served, WRONG};

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// `mallory:guess`, whom nobody knows, in base 64.
const MALLORY: &str = "Basic bWFsbG9yeTpndWVzcw==";
/// Lines of the log in one second of the wall clock: those of two seconds of the server's clock meet in it.
const LINES_MAX: usize = 20;

/// A connection from this address of the host.
pub(crate) fn connect_from(source: Ipv4Addr, address: &str) -> io::Result<TcpStream> {
    let ours = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&ours, &SocketAddrV4::new(source, 0))?;
    connect(&ours, &address.parse::<SocketAddr>().unwrap())?;
    Ok(TcpStream::from(ours))
}

/// Sends a request of this user, and does not read the reply.
fn asked(source: Ipv4Addr, address: &str, authorization: &str) -> TcpStream {
    let mut stream = connect_from(source, address).unwrap();
    ask(&mut stream, authorization);
    stream
}

fn ask(stream: &mut TcpStream, authorization: &str) {
    let head = format!("GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
}

/// The head of the next reply. Its body is left out.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |text| text.parse().unwrap());
    stream.read_exact(&mut vec![0; length]).unwrap();
    head
}

fn status(stream: &mut TcpStream) -> u16 {
    head(stream).get(9..12).unwrap().parse().unwrap()
}

/// The connection of a client that says who it is by PLAIN.
fn plain(endpoint: &str, name: &str, password: &str) -> TcpStream {
    let mut stream = TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap();
    stream.write_all(&zmtp::plain(name, password)).unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    stream
}

/// The command that answers a HELLO.
fn answer_to_hello(mut stream: TcpStream) -> Vec<u8> {
    let mut header = [0; 2];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; usize::from(header[1])];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Sends guesses until this connection is answered: each takes the place of the one that waits the longest.
fn crowded_out(served: &Served, asked: TcpStream) -> TcpStream {
    asked.set_nonblocking(true).unwrap();
    let mut crowd = VecDeque::new();
    while asked.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        crowd.push_back(self::asked(HERE, served.server.events(), MALLORY));
        crowd.truncate(200);
    }
    asked.set_nonblocking(false).unwrap();
    asked
}

/// 64 of them were parked, and 20,000 further ones were compared in 0.22 s: one of them was the right one.
#[test]
fn guesses_are_slow_over_a_kept_connection_also_at_a_user_who_has_logged_in() {
    let served = Served::start();
    let events = served.server.events();
    assert_eq!(status(&mut asked(HERE, events, ADA)), 200);
    let begun = Instant::now();
    let guess = |number: u32| format!("Basic {}", base64(&format!("ada:guess{number}")));
    let mut parked: Vec<TcpStream> = (0..64).map(|number| asked(HERE, events, &guess(number))).collect();
    // One of them is refused, so they have come.
    assert!([401, 503].contains(&status(parked.first_mut().unwrap())));
    let mut kept = connect_from(HERE, events).unwrap();
    let mut until = |authorization: &str, expected: u16| loop {
        ask(&mut kept, authorization);
        match status(&mut kept) {
            503 => {}
            status => break assert_eq!(status, expected, "{authorization}"),
        }
    };
    until(ADA, 200);
    let first_pause = begun.elapsed();
    assert!(first_pause >= Duration::from_millis(250), "the right one was known at once: {first_pause:?}");
    (64..66).for_each(|number| until(&guess(number), 401));
    // Each of the parked ones has counted, so that there is the longest pause between the two.
    let all = begun.elapsed();
    assert!(all >= Duration::from_secs(8), "{all:?}");
    served.stop();
}

/// 80 of them refused the right passwords of all others of that address.
#[test]
fn a_neighbour_with_many_outstanding_guesses_keeps_nobody_out() {
    let served = Served::start();
    assert_eq!(status(&mut asked(HERE, served.server.events(), ADA)), 200);
    let parked: Vec<TcpStream> =
        (0..80).map(|number| plain(served.server.kv(), "mallory", &number.to_string())).collect();
    // It was right from here before.
    assert_eq!(status(&mut asked(HERE, served.server.events(), ADA)), 200);
    // They come for the first time.
    thread::scope(|scope| {
        scope.spawn(|| while status(&mut asked(HERE, served.server.events(), EVE)) != 200 {});
        scope.spawn(
            || while !answer_to_hello(plain(served.server.kv(), "root", "heron")).starts_with(b"\x07WELCOME") {},
        );
    });
    drop(parked);
    served.stop();
}

/// They took the checker from all who came for the first time, and wrote 669 lines a second.
#[test]
fn guesses_from_many_addresses_keep_nobody_out_and_write_few_lines() {
    let served = Served::start();
    let events = served.server.events();
    let guess = |number: u8, name: &str| {
        let text = base64(&format!("{name}{number}:guess"));
        asked(Ipv4Addr::new(127, 0, 1, number), events, &format!("Basic {text}"))
    };
    let parked: Vec<TcpStream> = (1..200).flat_map(|number| [guess(number, "user"), guess(number, "ada")]).collect();
    let at_ada: Vec<TcpStream> =
        (1..100).map(|number| asked(Ipv4Addr::new(127, 0, 2, number), events, WRONG)).collect();
    while status(&mut asked(HERE, events, EVE)) != 200 {}
    while status(&mut asked(HERE, events, ADA)) != 200 {}
    assert_eq!(status(&mut asked(HERE, events, ADA)), 200, "at once");
    drop((parked, at_ada));
    let log = fs::read_to_string(served.log()).unwrap();
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for line in log.lines().filter(|line| line.contains(": refused \"")) {
        *lines.entry(line.get(..19).unwrap()).or_default() += 1;
    }
    assert!(lines.values().all(|lines| *lines <= LINES_MAX), "{lines:?}");
    served.stop();
}

/// A client took it for a wrong password, and asked its user for another one.
#[test]
fn busy_is_another_answer_than_wrong_on_every_protocol() {
    let served = Served::start();
    let server = &served.server;
    let crowded = |asked: TcpStream| crowded_out(&served, asked);
    while answer_to_hello(crowded(plain(server.kv(), "mallory", "guess"))) != b"\x05ERROR\x03300" {}
    loop {
        let head = head(&mut crowded(asked(HERE, server.events(), MALLORY)));
        if head.starts_with("HTTP/1.1 503 ") {
            assert!(head.contains("retry-after: 8\r\n"), "{head}");
            break;
        }
    }
    let job = || {
        let mut stream = TcpStream::connect(server.jobs()).unwrap();
        stream.write_all(b"AUTH mallory guess\nGET mail\n").unwrap();
        rest(crowded(stream))
    };
    while job() != "BUSY" {}
    served.stop();
}

/// Base 64 (RFC 4648), of ASCII.
pub(crate) fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..4_usize {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            encoded.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    encoded
}
