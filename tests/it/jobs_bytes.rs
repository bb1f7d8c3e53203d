//! The bytes of the jobs, on raw sockets: every end of a request, every cut, any data, and malformed requests.

use std::io::Write;
use std::net::Shutdown;

use spindle::clients::rust::jobs::{Error, JobsClient};

use crate::harness::Server;
use crate::jobs::{add, ask, connect, folder, get, is_id, let_the_server_read, rest};

/// Sends these bytes, half-closes, and waits for the answer.
fn ask_and_close(server: &Server, bytes: impl AsRef<[u8]>) -> String {
    let mut stream = connect(server);
    stream.write_all(bytes.as_ref()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    rest(stream)
}

#[test]
fn every_end_of_a_request_is_one_and_none_is_needed() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &["--jobs-ack", "yes-no"]);
    for end in ["", "\n", "\r\n"] {
        for ask in [ask, ask_and_close] {
            let id = ask(&server, format!("ADD q 3 a\nb{end}"));
            assert!(is_id(&id), "{id}");
            assert_eq!(ask(&server, format!("IN q {id}{end}")), "YES");
            assert_eq!(ask(&server, format!("GET q{end}")), format!("{id} 3 a\nb"));
            assert_eq!(ask(&server, format!("ACK q {id}{end}")), "YES", "--jobs-ack yes-no");
            assert_eq!(ask(&server, format!("ACK q {id}{end}")), "NO");
            assert_eq!(ask(&server, format!("SAVE{end}")), "OK");
        }
    }
    server.stop();
}

#[test]
fn data_is_any_bytes_of_any_length_up_to_a_million() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let client = JobsClient::new(server.jobs());
    let any: Vec<u8> = (0..1_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let samples: [&[u8]; 8] =
        [b"", b"\n", b"GET q\nACK q 1\r\nADD q 1 x", b"\0\xff\xfe \r\n", b"NONE", &any[..2_040], &any[..65_536], &any];
    for data in samples {
        let id = client.add(b"q", data).unwrap();
        let job = client.get(b"q").unwrap().unwrap();
        assert!(job.id == id && job.data == data, "{} bytes", data.len());
        assert!(client.ack(b"q", id).unwrap());
    }
    let id = add(&server, "q", "");
    assert_eq!(get(&server, "q"), format!("{id} 0 "), "with the space");
    assert!(matches!(client.add(b"q", &[&any[..], b"x"].concat()), Err(Error::Unwritable(_))));
    assert_eq!(ask(&server, [b"ADD q 1000001 ", &any[..], b"x"].concat()), "ERROR");
    assert_eq!(get(&server, "q"), "NONE");
    server.stop();
}

#[test]
fn what_is_no_request_is_an_error_and_changes_nothing() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let id = add(&server, "q", "x");
    let long = "q".repeat(256);
    let bad = [
        "\n",
        "HELLO\n",
        "SAVE",
        "SAVE\n",
        "get q\n",
        "GETq\n",
        "GET\n",
        "GET \n",
        "GET  q\n",
        "GET q \n",
        "GET q q\n",
        "GET\tq\n",
        "GET q\nGET q\n",
        "ACK q\n",
        "ACK q \n",
        "IN q\n",
        "ADD q\n",
        "ADD q 1\n",
        "ADD q x x\n",
        "ADD q -1 x",
        "ADD q 1.0 x",
        "ADD q 1000001 x",
        "ADD q 0\n",
        "ADD q 1 xx",
        "ADD q 1 x\n\n",
        "ADD  1 x",
        "ADD q\n 1 x",
        "HELP",
        "POST / HTTP/1.1\r\n\r\n",
    ];
    for request in bad.map(str::to_owned).into_iter().chain([
        format!("ACK q {id} 1\n"),
        format!("IN q\t{id}\n"),
        format!("GET {long}\n"),
        format!("ADD {long} 1 x"),
        format!("ACK q {}\n", "1".repeat(2_000)),
    ]) {
        assert_eq!(ask(&server, &request), "ERROR", "{request:?}");
        assert_eq!(ask_and_close(&server, &request), "ERROR", "{request:?}");
    }
    for short in ["", "A", "ADD", "ADD q", "ADD q 5", "ADD q 5 ", "ADD q 5 abcd", "GET", "ACK", "ACK q", "IN q "] {
        assert_eq!(ask_and_close(&server, short), "ERROR", "{short:?}");
    }
    let most = "q".repeat(255);
    assert_eq!(get(&server, &most), "NONE");
    add(&server, &most, "y");
    for strange in ["1", &id[1..], &format!("{id}0"), "NONE", &"9".repeat(20)] {
        assert_eq!(ask(&server, format!("ACK q {strange}\n")), "NO");
        assert_eq!(ask(&server, format!("IN q {strange}\n")), "NO");
    }
    assert_eq!(get(&server, "q"), format!("{id} 1 x"), "there is one job, as before");
    assert_eq!(get(&server, "q"), "NONE");
    server.stop();
}

#[test]
fn an_add_that_stays_short_is_an_error_once_its_client_has_been_silent() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let silent = ["", "AD", "ADD q 5 abcd"].map(|short| {
        let mut stream = connect(&server);
        stream.write_all(short.as_bytes()).unwrap();
        stream
    });
    for stream in silent {
        assert_eq!(rest(stream), "ERROR");
    }
    assert_eq!(get(&server, "q"), "NONE");
    server.stop();
}

#[test]
fn an_add_may_be_cut_at_every_byte() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    for end in ["", "\n", "\r\n"] {
        let request = format!("ADD q 7 a\nb c\r\n{end}");
        for cut in 1..request.len() {
            let mut stream = connect(&server);
            stream.write_all(&request.as_bytes()[..cut]).unwrap();
            let_the_server_read(&server);
            // The end may come after the answer.
            stream.write_all(&request.as_bytes()[cut..]).unwrap();
            assert!(is_id(&rest(stream)), "cut at {cut}");
            assert!(get(&server, "q").ends_with(" 7 a\nb c\r\n"), "cut at {cut}");
        }
    }
    let mut stream = connect(&server);
    for byte in b"ADD q 3 abc" {
        stream.write_all(&[*byte]).unwrap();
        let_the_server_read(&server);
    }
    assert!(is_id(&rest(stream)));
    server.stop();
}

#[test]
fn a_line_may_be_cut_at_every_byte_and_is_answered_as_whole_or_as_cut() {
    let folder = folder();
    let server = Server::start_jobs(folder.path(), &[]);
    let id = add(&server, "q", "x");
    let request = format!("IN q {id}\n");
    let mut whole = 0;
    for cut in 1..request.len() {
        let mut stream = connect(&server);
        stream.write_all(&request.as_bytes()[..cut]).unwrap();
        // The rest comes too late if this thread was held up for a millisecond.
        stream.write_all(&request.as_bytes()[cut..]).unwrap();
        match &*rest(stream) {
            "YES" => whole += 1,
            answer => assert!(matches!(answer, "NO" | "ERROR"), "cut at {cut}: {answer}"),
        }
    }
    assert!(whole > 0);
    for cut in ["I", "IN", "IN ", "IN q", "IN q ", "ACK q "] {
        let answer = ask_and_close(&server, cut);
        assert_eq!(answer, "ERROR", "{cut}");
    }
    assert_eq!(ask(&server, &request[..request.len() - 2]), "NO", "an id that is cut short is none");
    server.stop();
}
