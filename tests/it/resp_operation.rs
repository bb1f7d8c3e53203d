//! What an operator sees of Redis clients: their connections, INFO, the metrics of their commands, the slow log.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use spindle::resp3::reply_length;

use crate::admin::awaited;
use crate::harness::{Guarded, Server, free_port, real_peer, spindle_reads};
use crate::resp_client::RespClient;
use crate::resp_difference::link::Address;
use crate::resp_difference::oracle::redis;

/// The flags of a server of Redis clients with so many workers.
fn flags(workers: &str) -> [&str; 8] {
    ["--kv", "off", "--publish", "off", "--resp", "127.0.0.1:0", "--resp-workers", workers]
}

/// Sends a command.
pub(crate) fn send(stream: &mut impl Write, words: &[&[u8]]) {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    stream.write_all(&bytes).unwrap();
}

/// Reads a reply, as it is on the wire.
pub(crate) fn reply(stream: &mut impl Read) -> Vec<u8> {
    let (mut bytes, mut room) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        if reply_length(&bytes).is_some_and(|length| length == bytes.len()) {
            return bytes;
        }
        let count = stream.read(&mut room).unwrap();
        assert!(count > 0, "the server closed after {}", bytes.escape_ascii());
        bytes.extend_from_slice(&room[..count]);
    }
}

/// The reply to a command, without the length before a text.
fn ask(stream: &mut TcpStream, command: &str) -> String {
    send(stream, &command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let reply = String::from_utf8(reply(stream)).unwrap();
    let text = if reply.starts_with('$') { reply.split_once("\r\n").unwrap().1 } else { &reply };
    text.trim_end().to_owned()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.resp()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Waits for the end of a connection.
fn is_closed(mut stream: TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

/// A number that INFO has.
fn number(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} is missing in {info}")).parse().unwrap()
}

#[test]
fn connections_of_all_workers_are_listed_and_killed() {
    let server = Server::start_exactly(&flags("2"));
    let mut operator = connect(&server);
    let mut others: Vec<_> = (0..6).map(|_| connect(&server)).collect();
    let mut ids = Vec::new();
    for (number, other) in others.iter_mut().enumerate() {
        assert_eq!(ask(other, &format!("SELECT {number}")), "+OK");
        assert_eq!(ask(other, &format!("CLIENT SETNAME worker-{number}")), "+OK");
        assert_eq!(ask(other, "GET a"), "", "no value");
        ids.push(ask(other, "CLIENT ID")[1..].to_owned());
    }
    let list = ask(&mut operator, "CLIENT LIST");
    assert_eq!(list.lines().count(), 7, "{list}");
    for ((number, other), id) in others.iter().enumerate().zip(&ids) {
        let line = list.lines().find(|line| line.starts_with(&format!("id={id} "))).unwrap();
        let address = other.local_addr().unwrap();
        let server = server.resp();
        assert!(line.contains(&format!(" addr={address} laddr={server} fd=")), "{line}");
        assert!(line.contains(&format!(" name=worker-{number} age=")), "{line}");
        assert!(
            line.contains(&format!(" db={number} sub=0 psub=0 ssub=0 multi=-1 watch=0 cmd=client|id user")),
            "{line}"
        );
    }
    assert_eq!(ask(&mut operator, &format!("CLIENT LIST ID {} 999999", ids[3])).lines().count(), 1);
    for (other, id) in others.drain(..3).zip(&ids) {
        assert_eq!(ask(&mut operator, &format!("CLIENT KILL ID {id}")), ":1");
        assert_eq!(ask(&mut operator, &format!("CLIENT KILL ID {id}")), ":0", "it is gone");
        assert!(is_closed(other));
    }
    let address = others[0].local_addr().unwrap();
    assert_eq!(ask(&mut operator, &format!("CLIENT KILL {address}")), "+OK");
    assert_eq!(ask(&mut operator, &format!("CLIENT KILL {address}")), "-ERR No such client");
    assert_eq!(ask(&mut others[1], "PING"), "+PONG", "it was not meant");
    assert_eq!(ask(&mut operator, "CLIENT KILL USER default"), ":2");
    others.into_iter().for_each(|other| assert!(is_closed(other)));
    awaited("their ends", || (number(&ask(&mut operator, "INFO clients"), "connected_clients") == 1).then_some(()));
    assert_eq!(ask(&mut operator, "CLIENT KILL TYPE normal SKIPME no"), ":1", "and the reply comes before the end");
    assert!(is_closed(operator));
    server.stop();
}

/// The words of a line of CLIENT LIST that depend on no clock, no size of a buffer and no number of a connection. What is
/// watched is shown by Redis since 7.4.
fn state(line: &str) -> String {
    let shown = ["flags=", "db=", "sub=", "psub=", "ssub=", "multi=", "cmd=", "user=", "redir=", "resp="];
    line.split(' ').filter(|word| shown.iter().any(|name| word.starts_with(name))).collect::<Vec<_>>().join(" ")
}

/// What connections to a server show of themselves, and how many of each type are shown and killed.
fn seen(address: &str) -> Vec<String> {
    let client = |commands: &[&str]| {
        let mut client = RespClient::connect(address);
        let id = client.say("CLIENT ID")[1..].to_owned();
        commands.iter().for_each(|command| drop(client.say(command)));
        (client, id)
    };
    let clients = [
        client(&["SUBSCRIBE x", "SUBSCRIBE y", "PSUBSCRIBE z*"]),
        client(&["MULTI", "SET a 1", "GET a"]),
        client(&["PSUBSCRIBE z*", "PUNSUBSCRIBE z*"]),
        client(&["MULTI", "SET a 1", "DISCARD"]),
        client(&["MULTI", "NONSENSE"]),
        client(&["MULTI", "GET a", "EXEC"]),
        client(&["WATCH a b"]),
        client(&["HELLO 3", "SUBSCRIBE x", "MULTI", "PING"]),
        client(&["HELLO 3", "SUBSCRIBE x", "RESET"]),
        client(&["MULTI", "CLIENT INFO"]),
    ];
    let mut operator = RespClient::connect(address);
    let line = |(_, id): &(RespClient, String)| state(&operator.say(&format!("CLIENT LIST ID {id}")));
    let mut seen: Vec<String> = clients.iter().map(line).collect();
    seen.push(state(&operator.say("CLIENT INFO")));
    for kind in ["pubsub", "normal", "PubSub", "replica", "nonsense"] {
        let list = operator.say(&format!("CLIENT LIST TYPE {kind}"));
        seen.extend(clients.iter().map(|(_, id)| format!("{kind}: {}", list.contains(&format!("id={id} ")))));
    }
    let known = ["pubsub_", "pubsubshard_", "tracking_clients:", "blocked_clients:", "clients_in_timeout_table:"];
    for section in ["clients", "stats"] {
        let info = operator.say(&format!("INFO {section}"));
        let lines = info.lines().filter(|line| known.iter().any(|name| line.starts_with(name)));
        // Redis shows the number of subscribers since 7.4.
        seen.extend(lines.filter(|line| !line.starts_with("pubsub_clients")).map(str::to_owned));
    }
    let collecting = format!("CLIENT KILL ID {}", clients[1].1);
    for command in ["CLIENT KILL TYPE replica", "CLIENT KILL TYPE pubsub", &collecting] {
        seen.push(operator.say(command));
    }
    let [subscribed, collecting, ..] = clients;
    seen.extend([subscribed.0.rest(), collecting.0.rest()]);
    seen
}

/// Subscribers and clients in a transaction are shown and killed as by Redis.
#[test]
fn subscriptions_and_transactions_are_listed_as_in_redis() {
    compare_with_redis(seen);
}

/// The replies to some commands, at the end of which the client wants replies.
fn replies(address: &str) -> Vec<String> {
    let commands = [
        "CLIENT REPLY SKIP\r\nRESET\r\nPING",
        "CLIENT REPLY OFF\r\nRESET\r\nPING",
        "CLIENT REPLY OFF\r\nHELLO 2\r\nPING\r\nCLIENT REPLY ON",
        "CLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nPING\r\nPING",
        "CLIENT REPLY OFF\r\nNONSENSE\r\nGET\r\nCLIENT REPLY ON",
        "CLIENT REPLY OFF\r\nSUBSCRIBE a\r\nPING\r\nUNSUBSCRIBE\r\nCLIENT REPLY ON",
        "CLIENT REPLY SKIP\r\nSUBSCRIBE a\r\nPING\r\nUNSUBSCRIBE\r\nUNSUBSCRIBE",
        "CLIENT REPLY OFF\r\nMULTI\r\nSET a 1\r\nEXEC\r\nCLIENT REPLY ON\r\nGET a",
        "MULTI\r\nSET a 2\r\nCLIENT REPLY SKIP\r\nSET a 3\r\nEXEC\r\nGET a",
        "CLIENT REPLY\r\nCLIENT REPLY nonsense\r\nMULTI\r\nCLIENT REPLY OFF\r\nEXEC\r\nCLIENT REPLY ON",
        "CLIENT NO-EVICT on\r\nCLIENT NO-EVICT off\r\nCLIENT NO-EVICT nonsense\r\nCLIENT NO-EVICT",
        "CLIENT TRACKINGINFO\r\nCLIENT TRACKINGINFO x\r\nCLIENT TRACKING off\r\nCLIENT GETREDIR",
        "HELLO 3\r\nCLIENT TRACKINGINFO",
        "SLOWLOG GET nonsense\r\nSLOWLOG GET -2\r\nSLOWLOG LEN x\r\nLATENCY LATEST\r\nLATENCY RESET a",
    ];
    let replies = |commands: &str| {
        let mut client = RespClient::connect(address);
        client.send(format!("{commands}\r\nQUIT\r\n").as_bytes());
        let replies = client.rest();
        // HELLO names the server and its version.
        let behind_hello = replies.split_once("modules\r\n*0\r\n").map_or(&*replies, |(_, behind)| behind);
        format!("{commands}: {behind_hello}")
    };
    commands.into_iter().map(replies).collect()
}

#[test]
fn a_client_gets_the_replies_that_it_wants_as_from_redis() {
    compare_with_redis(replies);
}

/// Whether a server and Redis, each by its address, show the same.
fn compare_with_redis(seen: impl Fn(&str) -> Vec<String>) {
    if real_peer("redis-server").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("unix:{}", folder.path().join("socket").display());
    let server =
        Server::start_exactly(&["--kv", "off", "--publish", "off", "--resp-workers", "2", "--resp", &endpoint]);
    let redis = redis();
    let Address::Unix(socket) = &redis.address else { unreachable!("it listens at a socket") };
    assert_eq!(seen(server.resp()), seen(&format!("ipc://{}", socket.display())));
    server.stop();
}

#[test]
fn connections_of_others_are_for_those_with_admin_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    let users = users.to_str().unwrap();
    for (name, right) in [("ada", "--admin"), ("bob", "--read=0")] {
        let add = ["user", "add", name, right, "--password-stdin", "--users", users];
        assert!(spindle_reads(&add, b"heron").status.success());
    }
    let server = Server::start_exactly(&[&flags("1")[..], &["--users", users]].concat());
    let [mut ada, mut bob] = ["ada", "bob"].map(|name| {
        let mut stream = connect(&server);
        assert_eq!(ask(&mut stream, "CLIENT LIST"), "-NOAUTH Authentication required.");
        assert_eq!(ask(&mut stream, &format!("AUTH {name} heron")), "+OK");
        stream
    });
    for verb in ["list", "kill"] {
        let refused = format!("-NOPERM User bob has no permissions to run the 'client|{verb}' command");
        assert_eq!(ask(&mut bob, &format!("CLIENT {verb} ID 1")), refused);
    }
    let refused = "-NOPERM User bob has no permissions to run the 'config|set' command";
    assert_eq!(ask(&mut bob, "CONFIG SET maxmemory-policy allkeys-lru"), refused);
    assert!(ask(&mut bob, "INFO memory").contains("\r\nmaxmemory_policy:noeviction"));
    assert_eq!(ask(&mut bob, "CONFIG SET notify-keyspace-events KEA"), "+OK", "clients set it when they connect");
    assert!(ask(&mut bob, "CLIENT INFO").contains(" user=bob "));
    assert_eq!(ask(&mut ada, "SET a 1"), "+OK");
    assert_eq!(ask(&mut ada, "SELECT 1"), "+OK");
    assert_eq!(ask(&mut ada, "SET a 1 EX 100"), "+OK");
    assert!(ask(&mut ada, "INFO keyspace").contains("db1:keys=1,expires=1,avg_ttl="));
    let readable = ask(&mut bob, "INFO keyspace");
    assert!(readable.contains("db0:keys=1,expires=0,avg_ttl=0") && !readable.contains("db1"), "{readable}");
    assert!(ask(&mut ada, "CLIENT LIST").contains(" user=bob "));
    assert_eq!(ask(&mut ada, "CLIENT KILL USER carol"), "-ERR No such user 'carol'");
    assert_eq!(ask(&mut ada, "CLIENT KILL USER bob"), ":1");
    assert!(is_closed(bob));
    server.stop();
}

#[test]
fn info_has_the_sections_that_are_named() {
    let server = Server::start_exactly(&flags("1"));
    let mut stream = connect(&server);
    let mut sections = |names: &str| {
        let text = ask(&mut stream, format!("INFO {names}").trim_end());
        text.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let usual = "Server Clients Memory Persistence Stats Replication Errorstats Cluster Keyspace";
    let all =
        "Server Clients Memory Persistence Stats Replication Commandstats Errorstats Latencystats Cluster Keyspace";
    for (names, shown) in [
        ("", usual),
        ("default", usual),
        ("DEFAULT commandstats", &all.replace(" Latencystats", "")),
        ("all", all),
        ("everything", all),
        ("keyspace Server", "Server Keyspace"),
        ("server nothing", "Server"),
        ("nothing", ""),
    ] {
        assert_eq!(sections(names), shown, "{names}");
    }
    server.stop();
}

#[test]
fn info_counts_commands_errors_and_reads() {
    let server = Server::start_exactly(&flags("1"));
    let mut stream = connect(&server);
    for command in ["SET a 1", "SET b x", "SET c 1 PX 60000", "GET a", "GET a", "GET none", "INCR b", "GET", "nonsense"]
    {
        ask(&mut stream, command);
    }
    let info = ask(&mut stream, "INFO everything");
    let [commands, hits, misses, errors] =
        ["total_commands_processed", "keyspace_hits", "keyspace_misses", "total_error_replies"]
            .map(|name| number(&info, name));
    assert_eq!([commands, hits, misses, errors], [7, 2, 1, 3], "{info}");
    let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    assert!(line("cmdstat_get:").starts_with("calls=3,usec="), "{info}");
    assert!(line("cmdstat_get:").ends_with(",rejected_calls=1,failed_calls=0"), "{info}");
    assert!(line("cmdstat_incr:").ends_with(",rejected_calls=0,failed_calls=1"), "{info}");
    assert_eq!(line("errorstat_ERR:"), "count=3");
    let left: u64 = line("db0:keys=3,expires=1,avg_ttl=").parse().unwrap();
    assert!((1..=60_000).contains(&left));
    assert_eq!(ask(&mut stream, "CONFIG RESETSTAT"), "+OK");
    let info = ask(&mut stream, "INFO everything");
    assert!(!info.contains("cmdstat_get") && !info.contains("errorstat"), "{info}");
    assert_eq!(number(&info, "total_error_replies"), 0);
    server.stop();
}

/// A queued command was counted as carried out, and those of EXEC were not.
#[test]
fn a_command_of_a_transaction_is_counted_when_it_is_carried_out() {
    let server = Server::start_exactly(&flags("1"));
    let mut stream = connect(&server);
    for commands in [
        &["MULTI", "SET a x", "GET", "EXEC"][..],
        &["MULTI", "SET a x", "DISCARD"],
        &["MULTI", "SET a x", "PUBLISH c m", "INCR a", "EXEC"],
        &["PUBLISH c m", "MULTI", "EVAL nonsense 0", "EXEC"],
    ] {
        commands.iter().for_each(|command| drop(ask(&mut stream, command)));
    }
    let info = ask(&mut stream, "INFO everything");
    let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("not called");
    let calls = |name| line(&format!("cmdstat_{name}:")).split(',').next().unwrap_or_default().to_owned();
    let counts = ["multi", "exec", "discard", "set", "get", "publish", "incr", "eval"].map(calls);
    let due = [4, 3, 1, 1, 0, 2, 1, 1].map(|count| format!("calls={count}"));
    assert_eq!(counts, due, "{info}");
    assert!(line("cmdstat_get:").ends_with(",rejected_calls=1,failed_calls=0"), "{info}");
    assert!(line("cmdstat_incr:").ends_with(",rejected_calls=0,failed_calls=1"), "{info}");
    assert_eq!((line("errorstat_ERR:"), line("errorstat_EXECABORT:")), ("count=3", "count=1"));
    server.stop();
}

/// A confirmation was taken for a reply, and did not come to a client that wants none.
#[test]
fn a_client_that_wants_no_replies_gets_pushes() {
    let server = Server::start_exactly(&flags("1"));
    let mut client = RespClient::connect(server.resp());
    assert!(client.say("HELLO 3").starts_with('%'));
    client.send(
        b"CLIENT REPLY OFF\r\nPING\r\nSUBSCRIBE a\r\nPUBLISH a 1\r\nUNSUBSCRIBE b\r\nPING\r\nCLIENT REPLY ON\r\n",
    );
    client.send(b"CLIENT REPLY SKIP\r\nSUBSCRIBE c\r\nCLIENT REPLY SKIP\r\nPUBLISH c 2\r\nPING\r\n");
    let mut replies: Vec<String> = (0..7).map(|_| client.reply().escape_ascii().to_string()).collect();
    let frame = |kind: &str, channel: &str, rest: &str| {
        let head = format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n", kind.len(), channel.len());
        format!("{head}{rest}\r\n").escape_default().to_string()
    };
    let mut due = [
        frame("subscribe", "a", ":1"),
        frame("message", "a", "$1\r\n1"),
        frame("unsubscribe", "b", ":1"),
        "+OK\\r\\n".to_owned(),
        frame("subscribe", "c", ":2"),
        frame("message", "c", "$1\r\n2"),
        "+PONG\\r\\n".to_owned(),
    ];
    // A message comes behind or before a reply to another command.
    replies.sort_unstable();
    due.sort_unstable();
    assert_eq!(replies, due);
    server.stop();
}

#[test]
fn all_reports_show_the_commands_of_all_workers() {
    let server = Server::start(&["--resp", "127.0.0.1:0", "--resp-workers", "2", "--slow", "0us"]);
    let mut streams: Vec<_> = (0..4).map(|_| connect(&server)).collect();
    for stream in &mut streams {
        (0..100).for_each(|_| assert_eq!(ask(stream, "SET a 1"), "+OK"));
        assert!(ask(stream, "INCR").starts_with("-ERR"));
    }
    let stats = server.stats();
    let service = stats["services"].as_array().unwrap().iter().find(|service| service["protocol"] == "resp").unwrap();
    assert_eq!((&service["connections"], &service["connections_ever"]), (&Value::from(4), &Value::from(4)));
    let verbs: Vec<_> = service["verbs"].as_array().unwrap().iter().collect();
    let of = |verb: &Value| (verb["verb"].clone(), verb["requests"].clone(), verb["refused"].clone());
    let expected = [("set", 400, 0), ("incr", 4, 4)]
        .map(|(name, requests, refused)| (name.into(), requests.into(), refused.into()));
    assert_eq!(verbs.into_iter().map(of).collect::<Vec<_>>(), expected);
    assert!(service["received_bytes"].as_u64() > Some(400 * 27));
    assert!(stats["connections"]["connections"].as_u64() < Some(4), "Redis clients are no connections of kv: {stats}");
    let slow = ask(&mut streams[0], "SLOWLOG GET 1");
    assert!(slow.contains("\r\n$4\r\nincr\r\n$1\r\n0\r\n") || slow.contains("\r\n$3\r\nset\r\n$1\r\n0\r\n"), "{slow}");
    assert!(ask(&mut streams[0], "SLOWLOG LEN")[1..].parse::<u64>().unwrap() > 300);
    server.stop();
}

/// `prometheus-redis-exporter` of Debian.
#[test]
fn an_exporter_for_redis_reads_true_figures() {
    let Some(program) = real_peer("prometheus-redis-exporter") else { return };
    let server = Server::start_exactly(&flags("2"));
    let mut stream = connect(&server);
    for command in ["SET a 1", "SET b 1 EX 1000", "SET c 1 EX 3000", "GET a", "GET none", "SELECT 3", "SET a 1"] {
        ask(&mut stream, command);
    }
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let child = Command::new(program)
        .args(["-redis.addr", &format!("redis://{}", server.resp()), "-web.listen-address", &address])
        .args(["-export-client-list", "-include-config-metrics", "-is-cluster=false"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _exporter = Guarded(child);
    let text = awaited("a scrape", || {
        let mut stream = TcpStream::connect(&address).ok()?;
        write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.contains("redis_up 1").then_some(text)
    });
    let of = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing in {text}")).parse().unwrap()
    };
    assert_eq!(of("redis_exporter_last_scrape_error{err=\"\"}"), 0.0);
    assert_eq!(of("redis_db_keys{db=\"db0\"}"), 3.0);
    assert_eq!(of("redis_db_keys{db=\"db3\"}"), 1.0);
    assert_eq!(of("redis_db_keys_expiring{db=\"db0\"}"), 2.0);
    assert!((1_900.0..=2_000.0).contains(&of("redis_db_avg_ttl_seconds{db=\"db0\"}")));
    assert_eq!((of("redis_keyspace_hits_total"), of("redis_keyspace_misses_total")), (1.0, 1.0));
    assert_eq!(of("redis_commands_total{cmd=\"set\"}"), 4.0);
    assert_eq!(of("redis_connected_clients"), 2.0);
    assert!(of("redis_memory_used_bytes") > 0.0 && of("redis_config_maxclients") > 0.0);
    assert!(text.contains("redis_connected_clients_details{cmd=\"set\",created_at="), "{text}");
    server.stop();
}
