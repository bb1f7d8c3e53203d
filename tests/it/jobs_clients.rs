//! Clients of the jobs that are slow, silent, still sending, or gone, by the thousand.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use spindle::clients::rust::jobs::JobsClient;
use spindle::server::raise_descriptor_limit;

use crate::descriptors::descriptors;
use crate::harness::Server;
use crate::jobs::{ask, connect, folder, is_id, rest};

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
    let client = JobsClient::new(server.jobs());
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

/// Time between two bytes of a client that trickles.
const TRICKLE: Duration = Duration::from_millis(500);
/// Bytes that each of them sends until another client must have its answer. All could trickle twice as long.
const TRICKLES: usize = 60;

/// The answer to a client, while others send a byte now and then. Returns how many of those have an answer too.
fn answered_among(tricklers: &mut [TcpStream], client: TcpStream) -> (String, usize) {
    client.set_read_timeout(Some(TRICKLE)).unwrap();
    let comes = |client: &TcpStream| client.peek(&mut [0]).is_ok();
    for _ in 0..TRICKLES {
        if comes(&client) {
            client.set_read_timeout(None).unwrap();
            return (rest(client), tricklers.iter().filter(|stream| has_answer(stream)).count());
        }
        for stream in tricklers.iter_mut() {
            // One that has lost its place may be closed.
            let _closed = stream.write_all(b"x");
        }
    }
    panic!("no answer while others have sent {TRICKLES} bytes each");
}

/// A job of 2,500 bytes waited a minute for room that 300 clients held, which sent a byte every three seconds.
#[test]
fn clients_that_trickle_large_jobs_hold_up_nobody() {
    const TRICKLERS: usize = 300;
    raise_descriptor_limit();
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let large = [b"ADD slow 1000000 ".to_vec(), vec![b'x'; 100_000]].concat();
    let begin = |_| {
        let mut stream = connect(&server);
        stream.write_all(&large).unwrap();
        stream
    };
    let mut tricklers: Vec<TcpStream> = (0..TRICKLERS).map(begin).collect();
    let mut client = connect(&server);
    client.write_all(&[b"ADD q 2500 ".to_vec(), vec![b'y'; 2_500]].concat()).unwrap();
    let (id, others) = answered_among(&mut tricklers, client);
    assert!(is_id(&id), "{id}");
    // Room for the job is a small part of the room that one of them holds.
    assert!(others < TRICKLERS / 2, "{others} have lost their places");
    let found = ask(&server, "GET q\n");
    assert!(found.starts_with(&format!("{id} 2500 ")), "{found}");
    server.stop();
}

/// A client waited a minute to be accepted, because others held all connections that the descriptors allow.
#[test]
fn clients_that_trickle_hold_no_connection_that_another_waits_for() {
    raise_descriptor_limit();
    let folder = folder();
    let data = folder.path().to_str().unwrap();
    let server = Server::start_with_files(512, &["--kv=off", "--publish=off", "--jobs=0", "--data", data]);
    let begin = |_| {
        let mut stream = connect(&server);
        stream.write_all(b"GET ").unwrap();
        stream
    };
    let mut tricklers: Vec<TcpStream> = (0..600).map(begin).collect();
    let mut client = connect(&server);
    client.write_all(b"GET q\n").unwrap();
    let (answer, _) = answered_among(&mut tricklers, client);
    assert_eq!(answer, "NONE");
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
    let client = JobsClient::new(server.jobs());
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
    let client = JobsClient::new(server.jobs());
    let data = vec![b'x'; 1_000_000];
    for _ in 0..JOBS {
        client.add(b"large", &data).unwrap();
    }
    let stalled: Vec<TcpStream> = (0..JOBS / 2)
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
    drop(stalled);
    server.stop();
}

/// The sockets that a server has open.
fn sockets(server: &Server) -> usize {
    descriptors(server).into_iter().filter(|(_, is_socket)| *is_socket).count()
}

/// A client that is silent has a twelfth of the time of one that trickles, also when it has its answer.
#[test]
fn a_client_that_is_silent_loses_its_connection_long_before_one_that_trickles() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let mut trickler = connect(&server);
    trickler.write_all(b"ADD q 1000 ").unwrap();
    trickler.set_read_timeout(Some(TRICKLE)).unwrap();
    let short = connect(&server);
    (&short).write_all(b"ADD q 5 abcd").unwrap();
    let mut stays = connect(&server);
    stays.write_all(b"GET q\n").unwrap();
    let mut answer = String::new();
    stays.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "NONE");
    // The server ends the connections of both that are silent.
    let (before, mut is_answered) = (sockets(&server), false);
    while !is_answered || sockets(&server) + 2 > before {
        // Its answer is awaited until its next byte is due.
        let is_over = trickler.write_all(b"x").is_err() || trickler.peek(&mut [0]).is_ok();
        assert!(!is_over, "the client that trickles is refused first: {is_answered}, {} of {before}", sockets(&server));
        if !is_answered && has_answer(&short) {
            assert_eq!(rest(short.try_clone().unwrap()), "ERROR");
            is_answered = true;
        }
    }
    drop(stays);
    server.stop();
}

/// Whether bytes have come.
fn has_answer(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let has_answer = stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
    stream.set_nonblocking(false).unwrap();
    has_answer
}
