//! A bounded attack on every frontend of a real server, while a client of every protocol continues to ask.
//!
//! ```text
//! round   start ─► controls ask and count ════════════════════════════════════╗ they end when the server has ended
//!                  attackers attack, each way with threads of its own ══► SIGTERM under attack ─► status 0
//!         start again on the same data ─► tasks, jobs and events that were acknowledged are there ─► SIGTERM
//! ```
//! A round is one server with everything on. As an ordinary test there is a short round for each target, with all
//! attacks at once, and one with users for the guesses of passwords. `perf/attack` gives each attack a round of its own.
//! `SPINDLE_ATTACK_SECONDS` sets the length of all
//! rounds together, `SPINDLE_ATTACK_SEED` the seed of the random choices. Each round prints a line, with its seed.
//!
//! Attackers reach only the server that their round has started. All of them are bounded in time, messages, bytes and
//! connections.

use std::time::Duration;

use spindle::server::raise_descriptor_limit;

use crate::harness::{number_of, python_with_pyzmq};
use crate::seeded_rng::SeededRng;

mod connections;
mod control;
mod durable;
mod leaving;
mod logins;
pub(crate) mod mutation;
mod peers;
mod report;
mod round;
pub(crate) mod samples;
mod siege;
pub(crate) mod zmtp;

use round::Round;

/// Length of all rounds of one target together, as an ordinary test.
const SHORT: Duration = Duration::from_millis(1_500);
/// Length of all rounds of all targets. Unset: short ones.
const SECONDS: &str = "SPINDLE_ATTACK_SECONDS";
/// The seed of all rounds' seeds.
const SEED: &str = "SPINDLE_ATTACK_SEED";

/// The target: one endpoint of the server, and for the tables either frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Face {
    Queue,
    Native,
    Publish,
    Lockstep,
    /// The tables for Redis clients.
    Resp,
    Tasks,
    Events,
    Jobs,
    Admin,
}

/// The kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Mutated greetings and READYs.
    Greetings,
    /// Mutated frames and commands, after a good handshake.
    Frames,
    /// Mutated requests, in good frames: each is answered once, in its turn.
    Requests,
    /// Connections that come and go at every point of a conversation.
    Connects,
    /// Clients that ask for much and never read.
    Stalled,
    /// Clients that send a byte at a time.
    Trickle,
    /// Conversations that stop in the middle and stay there.
    HalfOpen,
    /// Connections without a request, more than there are places.
    Idle,
    /// Subscriptions to ever more topics.
    Subscriptions,
    /// Full pipes, PINGs, and resets.
    Pings,
    /// Clients with heartbeats under `kill -9`. It needs pyzmq.
    Heartbeats,
    /// Clients that ask for much, and are gone.
    Gone,
    /// Guesses of passwords at every door, from one address. The server has users.
    Guesses,
    /// The same, each from another address.
    LockOut,
}

impl Face {
    const ALL: [Self; 9] = [
        Self::Queue,
        Self::Native,
        Self::Publish,
        Self::Lockstep,
        Self::Resp,
        Self::Tasks,
        Self::Events,
        Self::Jobs,
        Self::Admin,
    ];

    /// The attacks on this target, in groups that can be made at once.
    fn ways(self) -> Vec<Vec<Way>> {
        use Way::{
            Connects, Frames, Gone, Greetings, Guesses, HalfOpen, Heartbeats, Idle, LockOut, Pings, Requests, Stalled,
            Subscriptions, Trickle,
        };
        let of_all = [Connects, Stalled, Trickle, HalfOpen];
        let own: &[Way] = match self {
            Self::Queue | Self::Native | Self::Lockstep | Self::Tasks => &[Greetings, Frames, Requests, Pings, Gone],
            Self::Publish => &[Greetings, Frames, Subscriptions, Pings],
            Self::Events | Self::Admin => &[Requests, Idle, Gone],
            Self::Resp => &[Requests, Gone],
            Self::Jobs => &[Requests, Idle],
        };
        let is_table = matches!(self, Self::Queue | Self::Native);
        let heartbeats = (is_table && python_with_pyzmq().is_some()).then_some(Heartbeats);
        let mut ways = vec![own.iter().copied().chain(of_all).chain(heartbeats).collect()];
        ways.extend(is_table.then(|| vec![Guesses, LockOut]));
        ways
    }
}

impl Way {
    /// Whether the server has users.
    fn needs_users(self) -> bool {
        matches!(self, Self::Guesses | Self::LockOut)
    }
}

/// Attacks one target, in one short round or in a long one for each kind of attack, and expects the server to hold.
fn attack(face: Face) {
    raise_descriptor_limit();
    let mut seeds = SeededRng(number_of(SEED).unwrap_or(std::process::id().into()));
    let ways = face.ways();
    let rounds: Vec<Round> = match number_of(SECONDS) {
        None => ways.into_iter().map(|ways| Round { face, ways, lasting: SHORT, seed: seeds.next() }).collect(),
        Some(seconds) => {
            let count: usize = Face::ALL.iter().flat_map(|face| face.ways()).map(|ways| ways.len()).sum();
            let lasting = Duration::from_secs(seconds) / u32::try_from(count).unwrap();
            let one = |way| Round { face, ways: vec![way], lasting, seed: seeds.next() };
            ways.into_iter().flatten().map(one).collect()
        }
    };
    println!("{}", report::HEAD);
    let mut faults = Vec::new();
    for round in rounds {
        let outcome = round.fight();
        println!("{outcome}");
        faults.extend(outcome.faults());
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn tables_behind_the_queue_hold() {
    attack(Face::Queue);
}

#[test]
fn tables_without_the_queue_hold() {
    attack(Face::Native);
}

#[test]
fn notifications_hold() {
    attack(Face::Publish);
}

#[test]
fn tables_in_lock_step_hold() {
    attack(Face::Lockstep);
}

#[test]
fn tables_for_redis_clients_hold() {
    attack(Face::Resp);
}

#[test]
fn tasks_hold() {
    attack(Face::Tasks);
}

#[test]
fn events_hold() {
    attack(Face::Events);
}

#[test]
fn jobs_hold() {
    attack(Face::Jobs);
}

#[test]
fn what_an_operator_sees_holds() {
    attack(Face::Admin);
}
