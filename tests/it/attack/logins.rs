//! Guessers of passwords, and users who log in meanwhile.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::connections::{PATIENCE, answer_to};
use super::siege::{ControlError, Siege, expect};
use super::zmtp::{Client, message, plain};
use crate::harness::{Server, spindle_reads};
use crate::seeded_rng::SeededRng;
use crate::users_guessing::{base64, connect_from};

/// The user who logs in all the time, and at whose name others guess.
const USER: &str = "ada";
/// The password of all users.
const PASSWORD: &str = "heron";
/// A user who may do everything, and has logged in before the attack.
const ROOT: &str = "root";
/// The table, and the queue of jobs, of this user.
const OWN: &[u8] = b"ada";
/// Guesses that one attacker has outstanding.
const OUTSTANDING: usize = 100;

/// Writes a file of users.
pub(super) fn add_users(file: &Path) {
    let file = file.to_str().unwrap();
    for flags in [&[USER, "--write", "ada", "--jobs-write", "ada", "--events", "write"][..], &[ROOT, "--admin"]] {
        let output = spindle_reads(
            &[&["user", "add", "--password-stdin", "--users", file], flags].concat(),
            PASSWORD.as_bytes(),
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The places where a user can log in.
#[derive(Clone)]
pub(super) struct Doors {
    kv: String,
    jobs: String,
    events: String,
}

impl Doors {
    pub(super) fn of(server: &Server) -> Self {
        let kv = server.kv().strip_prefix("tcp://").unwrap().to_owned();
        Self { kv, jobs: server.jobs().to_owned(), events: server.events().to_owned() }
    }
}

// ------------------------------------------------------------------------------------------------------------ guessers

/// Guesses at every door: parked ones, of which each makes place for the next when it is answered. All come from one
/// address, or each from another one. None admits a client.
pub(super) fn guess(doors: &Doors, from_many: bool, siege: &Siege, mut rng: SeededRng) {
    let mut parked: Vec<(TcpStream, usize)> = Vec::new();
    while !siege.is_over() {
        if parked.len() == OUTSTANDING {
            let (stream, door) = parked.swap_remove(rng.index(OUTSTANDING));
            settle(stream, door, siege);
        }
        let Ok(guess) = guess_once(doors, from_many, &mut rng) else { continue };
        siege.count(1);
        parked.push(guess);
        siege.rest(Duration::from_millis(rng.pick(&[0, 0, 1])));
    }
}

fn guess_once(doors: &Doors, from_many: bool, rng: &mut SeededRng) -> io::Result<(TcpStream, usize)> {
    let here = Ipv4Addr::new(127, 0, 2, 1);
    let source = if from_many { Ipv4Addr::new(127, 0, 1, u8::try_from(1 + rng.index(254)).unwrap()) } else { here };
    let name = rng.pick(&[USER, USER, "mallory", "nobody"]);
    let password = format!("guess{}", rng.next());
    let door = rng.index(3);
    let (address, bytes) = match door {
        0 => (&doors.kv, plain(name, &password)),
        1 => (&doors.jobs, format!("AUTH {name} {password}\nGET ada\n").into_bytes()),
        _ => (&doors.events, http(name, &password)),
    };
    let mut stream = connect_from(source, address)?;
    // A connection closed at this end would keep its port for a minute.
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    stream.write_all(&bytes)?;
    Ok((stream, door))
}

fn http(name: &str, password: &str) -> Vec<u8> {
    let authorization = base64(&format!("{name}:{password}"));
    format!("GET /events HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {authorization}\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

/// Looks at what has come for a guess until now.
fn settle(mut stream: TcpStream, door: usize, siege: &Siege) {
    let mut bytes = vec![0; 4 << 10];
    let come = stream.set_nonblocking(true).and_then(|()| stream.read(&mut bytes)).unwrap_or(0);
    let bytes = &bytes[..come];
    let is_admitted = match door {
        0 => bytes.windows(7).any(|word| word == b"WELCOME"),
        1 => !(bytes.is_empty() || bytes.starts_with(b"ERROR") || bytes.starts_with(b"BUSY")),
        _ => bytes.starts_with(b"HTTP/1.1 2"),
    };
    if is_admitted {
        siege.fault("guesses", format!("one was answered {:?}", String::from_utf8_lossy(bytes)));
    }
}

// --------------------------------------------------------------------------------------------------------------- users

/// A user who logs in anew for each of its requests, and does not take *busy* for an answer.
pub(super) struct User {
    doors: Doors,
    number: u64,
}

impl User {
    /// Logs in once at each door, before there is an attack.
    pub(super) fn begin(doors: Doors) -> Self {
        let mut client = Client::log_in(&doors.kv, b"DEALER", ROOT, PASSWORD).unwrap();
        client.send(&message(&[&[0], OWN])).unwrap();
        assert_eq!(client.receive().unwrap(), [[1]]);
        let mut user = Self { doors, number: 0 };
        user.step(&Siege::lasting(Duration::ZERO)).unwrap();
        user
    }

    pub(super) fn step(&mut self, siege: &Siege) -> Result<(), ControlError> {
        self.number += 1;
        let value = format!("value {}", self.number).into_bytes();
        let found = siege.ask(|| until_admitted(|| self.table(&value)))?;
        expect(found == [&[1][..], &value], || format!("the table has {found:?} instead of {value:?}"))?;
        let found = siege.ask(|| self.job(&value))?;
        expect(found == value, || format!("the job has {found:?} instead of {value:?}"))?;
        let status = siege.ask(|| until_admitted(|| self.event()))?;
        expect(status == "200", || format!("a list of events is answered {status}"))
    }

    fn table(&self, value: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut client = Client::log_in(&self.doors.kv, b"DEALER", USER, PASSWORD)?;
        client.send(&[message(&[&[2], OWN, b"key", value]), message(&[&[4], OWN, b"key"])].concat())?;
        let set = client.receive()?;
        if set == [[1]] { client.receive() } else { Ok(set) }
    }

    /// Adds a job, takes the first one, and says that it is done.
    fn job(&self, value: &[u8]) -> io::Result<Vec<u8>> {
        let head = format!("ADD ada {} ", value.len());
        self.answer_of_jobs(&[head.as_bytes(), value].concat())?;
        let job = self.answer_of_jobs(b"GET ada\n")?;
        let mut fields = job.splitn(3, ' ');
        let id = fields.next().unwrap_or_default();
        let done = self.answer_of_jobs(format!("ACK ada {id}\n").as_bytes())?;
        Ok(if done == "OK" { fields.nth(1).unwrap_or_default() } else { &done }.as_bytes().to_vec())
    }

    fn answer_of_jobs(&self, command: &[u8]) -> io::Result<String> {
        until_admitted(|| {
            let login = format!("AUTH {USER} {PASSWORD}\n");
            let answer = answer_to(&self.doors.jobs, &[login.as_bytes(), command].concat())?;
            match answer.as_str() {
                "BUSY" => Err(ErrorKind::ResourceBusy.into()),
                // A server that ends.
                "" => Err(ErrorKind::UnexpectedEof.into()),
                _ => Ok(answer),
            }
        })
    }

    fn event(&self) -> io::Result<String> {
        match answer_to(&self.doors.events, &http(USER, PASSWORD))?.get(9..12) {
            Some("503") => Err(ErrorKind::ResourceBusy.into()),
            Some(status) => Ok(status.to_owned()),
            // A server that ends.
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Tries again where the server is busy.
fn until_admitted<T>(mut login: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match login() {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && begun.elapsed() < PATIENCE => {
                std::thread::yield_now();
            }
            outcome => return outcome,
        }
    }
}
