//! What Redis clients have the server keep is bounded in memory: queued commands, keys that a walk has collected, names.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use spindle::limits::HELD_BYTES_MAX;

use crate::harness::Server;
use crate::memory::status;
use crate::resp_client::{RespClient, command};

/// Bytes that clients may have the server keep, and a third: the allocator rounds up.
const KEPT_MAX: u64 = HELD_BYTES_MAX / 3 * 4;
/// Bytes of the process beside them.
const BESIDE: u64 = 256 << 20;
/// How long a client waits for the others.
const PATIENCE: Duration = Duration::from_secs(120);
const OK: &str = "+OK";
const OUT_OF_MEMORY: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.";

fn start() -> Server {
    Server::start_exactly(&["--kv", "off", "--publish", "off", "--resp", "127.0.0.1:0", "--resp-workers", "1"])
}

fn assert_is_bounded(server: &Server) {
    let peak = status(server.pid(), "VmHWM");
    assert!(peak < KEPT_MAX + BESIDE, "the server has had {peak} bytes");
}

#[test]
fn transactions_that_are_never_carried_out_are_bounded_together() {
    let server = start();
    let filling = command(&[b"SET", b"k", &vec![b'x'; 15 << 10]]);
    // Each queues less than a client may, and all together more than the server keeps.
    let clients = KEPT_MAX / (48 << 20) + 8;
    let mut refused = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..clients {
        let mut client = RespClient::connect(server.resp());
        assert_eq!(client.say("MULTI"), OK);
        let mut refusals = 0;
        for _ in 0..48 {
            client.send(&filling.repeat(64));
            let answers = (0..64).map(|_| client.reply());
            refusals += answers.filter(|answer| answer.trim_ascii_end() == OUT_OF_MEMORY).count();
        }
        if refusals > 0 {
            refused.push(client);
        } else {
            waiting.push(client);
        }
    }
    assert_is_bounded(&server);
    assert!(!waiting.is_empty() && !refused.is_empty(), "{} are refused", refused.len());
    for client in &mut refused {
        assert_eq!(client.say("EXEC"), "-EXECABORT Transaction discarded because of previous errors.");
    }
    let carried_out = waiting.pop().unwrap().say("EXEC");
    assert!(carried_out.starts_with("*3072"), "{}", &carried_out[..carried_out.len().min(80)]);
    assert_eq!(refused[0].say("GET other"), "$-1");
    drop(waiting);
    server.stop();
}

#[test]
fn keys_that_many_clients_collect_at_once_are_bounded_and_each_gets_them_all() {
    const KEYS: usize = 8_000;
    const CLIENTS: usize = 300;
    let server = start();
    let mut client = RespClient::connect(server.resp());
    for from in (0..KEYS).step_by(1_000) {
        let sets: Vec<u8> = (from..from + 1_000).flat_map(|key| command(&[b"SET", &key_name(key), b""])).collect();
        client.send(&sets);
        (0..1_000).for_each(|_| assert_eq!(client.reply(), b"+OK\r\n"));
    }
    let [head, first] = [format!("*{KEYS}\r\n"), format!("$1000\r\n{:01000}\r\n", 0)];
    let length = u64::try_from(head.len() + KEYS * first.len()).unwrap();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut stream = TcpStream::connect(server.resp()).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&command(&[b"KEYS", b"*"])).unwrap();
            let begin = format!("{head}{first}");
            scope.spawn(move || {
                let mut bytes = vec![0; begin.len()];
                stream.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes.escape_ascii().to_string(), begin.as_bytes().escape_ascii().to_string());
                let rest = length - bytes.len() as u64;
                assert_eq!(io::copy(&mut stream.take(rest), &mut io::sink()).unwrap(), rest);
            });
        }
    });
    assert_is_bounded(&server);
    server.stop();
}

fn key_name(number: usize) -> Vec<u8> {
    format!("{number:01000}").into_bytes()
}

#[test]
fn names_of_clients_are_short() {
    let server = start();
    let mut client = RespClient::connect(server.resp());
    let [most, more] = [1_024, 1_025].map(|length| "n".repeat(length));
    let refusal = "-ERR a client has names of at most 1024 bytes";
    for field in ["SETNAME", "SETINFO lib-name", "SETINFO lib-ver"] {
        assert_eq!(client.say(&format!("CLIENT {field} {most}")), OK);
        assert_eq!(client.say(&format!("CLIENT {field} {more}")), refusal);
    }
    assert_eq!(client.say(&format!("HELLO 3 SETNAME {more}")), refusal);
    assert!(client.say("CLIENT LIST").contains(&format!(" name={most} ")));
    server.stop();
}

#[test]
fn a_list_of_more_connections_than_a_page_has_each_of_them_once() {
    let server = start();
    let mut clients: Vec<RespClient> = (0..600).map(|_| RespClient::connect(server.resp())).collect();
    let mut ids: Vec<String> = clients.iter_mut().map(|client| client.say("CLIENT ID")[1..].to_owned()).collect();
    for filter in ["", " TYPE normal"] {
        let list = clients[0].say(&format!("CLIENT LIST{filter}"));
        let listed = list.lines().filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
        assert!(listed.eq(ids.iter()), "{list}");
    }
    let killed = clients.swap_remove(300);
    assert_eq!(clients[0].say(&format!("CLIENT KILL ID {}", ids.remove(300))), ":1");
    drop(killed);
    let list = clients[0].say("CLIENT LIST");
    assert_eq!(list.lines().filter(|line| line.starts_with("id=")).count(), 599);
    server.stop();
}
