//! Clients of the jobs that are slow, silent, still sending, or gone, by the thousand.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use spindle::protocols::jobs::client::Client;
use spindle::server::raise_descriptor_limit;

use crate::harness::Server;
use crate::jobs::{ask, connect, folder, rest};

/// Makes the connection end with a reset.
fn reset(stream: TcpStream) {
    set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn a_thousand_slow_clients_hold_up_nobody() {
    raise_descriptor_limit();
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let begin = |number: usize| {
        let mut stream = connect(&server);
        let begun: [&[u8]; 4] = [b"", b"AD", b"ADD slow 5 abcd", b"ADD slow 1000000 abcd"];
        stream.write_all(begun[number % begun.len()]).unwrap();
        stream
    };
    let mut slow: Vec<TcpStream> = (0..1_000).map(begin).collect();
    let client = Client::new(server.jobs());
    for number in 0..200_u32 {
        let id = client.add(b"q", &number.to_be_bytes()).unwrap();
        let job = client.get(b"q").unwrap().unwrap();
        assert_eq!((job.id, &*job.data), (id, &number.to_be_bytes()[..]));
        assert!(client.ack(b"q", id).unwrap());
    }
    let mut added = 0;
    for stream in slow.drain(..).skip(2).step_by(4) {
        // Some may have been silent for too long by now.
        let late = (&stream).write_all(b"e").is_err();
        let answer = rest(stream);
        assert!(late || answer == "ERROR" || answer.len() == 20, "{answer}");
        added += usize::from(answer.len() == 20);
    }
    let found = std::iter::from_fn(|| client.get(b"slow").unwrap()).filter(|job| job.data == b"abcde").count();
    assert_eq!(found, added);
    server.stop();
}

#[test]
fn a_client_that_is_still_sending_reads_its_answer() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let much = vec![b'x'; 8 << 20];
    for begun in ["HELLO ", "ADD q 1000001 ", "ADD q 99999999 ", "GET q x ", "GET q\n", "GET  "] {
        let answer = ask(&server, [begun.as_bytes(), &much].concat());
        assert!(matches!(&*answer, "ERROR" | "NONE"), "{begun:?}: {answer}");
    }
    // Bytes after an answered ADD do not matter.
    let mut stream = connect(&server);
    stream.write_all(b"ADD q 3 abc").unwrap();
    let mut id = [0; 20];
    stream.read_exact(&mut id).unwrap();
    stream.write_all(&much).unwrap();
    assert_eq!(rest(stream), "");
    server.stop();
}

#[test]
fn a_client_that_trickles_is_refused_when_its_time_is_up() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let mut stream = connect(&server);
    stream.write_all(b"ADD q 1000 ").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut answer, mut sent) = (Vec::new(), 0);
    loop {
        match stream.read_to_end(&mut answer) {
            Ok(_) => break,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
        sent += 1;
        stream.write_all(b"x").unwrap();
    }
    assert!(answer == b"ERROR" && sent < 1_000, "{sent} bytes");
    assert_eq!(ask(&server, "GET q\n"), "NONE");
    server.stop();
}

#[test]
fn connections_that_are_reset_harm_nobody_and_lose_no_job() {
    const ROUNDS: usize = 100;
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &["--lease", "1"]);
    let client = Client::new(server.jobs());
    let mut ids: Vec<_> = (0..ROUNDS).map(|_| client.add(b"q", b"data").unwrap()).collect();
    for number in 0..ROUNDS {
        let mut stream = connect(&server);
        let begun: [&[u8]; 5] = [b"", b"GET q\n", b"GET q", b"ADD other 5 abcd", b"GET q\nrubbish"];
        stream.write_all(begun[number % begun.len()]).unwrap();
        reset(stream);
    }
    // A job that was handed out to a client that is gone goes back, at once or when the lease ends.
    while !ids.is_empty() {
        let Some(job) = client.get(b"q").unwrap() else { continue };
        assert_eq!(job.data, b"data");
        if client.ack(b"q", job.id).unwrap() {
            ids.retain(|id| *id != job.id);
        }
    }
    assert_eq!((client.get(b"q").unwrap(), client.get(b"other").unwrap()), (None, None));
    server.stop();
}

#[test]
fn large_answers_that_nobody_reads_hold_up_nobody() {
    const JOBS: usize = 40;
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let client = Client::new(server.jobs());
    let data = vec![b'x'; 1_000_000];
    for _ in 0..JOBS {
        client.add(b"large", &data).unwrap();
    }
    let deaf: Vec<TcpStream> = (0..JOBS / 2)
        .map(|_| {
            let mut stream = connect(&server);
            stream.write_all(b"GET large\n").unwrap();
            stream
        })
        .collect();
    let read = std::iter::from_fn(|| client.get(b"large").unwrap()).map(|job| assert_eq!(job.data, data)).count();
    assert!(read >= JOBS / 2, "{read}");
    let id = client.add(b"q", b"x").unwrap();
    assert_eq!(client.get(b"q").unwrap().map(|job| job.id), Some(id));
    drop(deaf);
    server.stop();
}
