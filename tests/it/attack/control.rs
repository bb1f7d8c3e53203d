//! The control clients of health, and of the tables, their notifications and their Redis clients: each knows the answer before it asks.
//!
//! A duplicate answer or change shows as the wrong one in the next step.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use spindle::clients::rust::tables::Subscriber;
use spindle::services::tables::wire::NotificationKind;

use super::connections::{PATIENCE, answer_to};
use super::siege::{ControlError, Siege, expect};
use super::zmtp::{Client, Frames, message};
use crate::harness::Server;
use crate::resp_client::RespClient;
use crate::seeded_rng::SeededRng;

/// The table that only this client uses.
const TABLE: &[u8] = b"control";
/// The table of the Redis client.
const REDIS_TABLE: &[u8] = b"redis";
/// Requests in flight together.
const WINDOW: usize = 16;

/// Time between two questions about the server's health.
const HEALTH_PAUSE: Duration = Duration::from_millis(20);

/// A change that subscribers must receive.
type Announced = (NotificationKind, Vec<u8>);

/// What an orchestrator asks, on a connection for each question.
pub(super) fn health(admin: &str, siege: &Siege) -> Result<(), ControlError> {
    for path in ["health", "ready"] {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = siege.ask(|| answer_to(admin, request.as_bytes()))?;
        // A server that ends is not ready any more.
        expect(answer.starts_with("HTTP/1.1 200 ") || siege.is_ending(), || format!("/{path} is answered {answer:?}"))?;
    }
    siege.rest(HEALTH_PAUSE);
    Ok(())
}

/// A Redis client that counts, in a table that FLUSHALL leaves alone.
pub(super) struct Redis {
    client: RespClient,
    number: u64,
}

impl Redis {
    pub(super) fn begin(server: &Server) -> Self {
        let mut kv = Client::meet(server.kv().trim_start_matches("tcp://"), b"DEALER").unwrap();
        kv.send(&message(&[&[0], REDIS_TABLE])).unwrap();
        assert_eq!(kv.receive().unwrap(), [[1]]);
        let mut client = RespClient::connect(server.resp());
        assert_eq!(client.call(&[b"SELECT", REDIS_TABLE]), b"+OK\r\n");
        Self { client, number: 0 }
    }

    /// Counts on, and compares each reply.
    pub(super) fn step(&mut self, siege: &Siege) -> Result<(), ControlError> {
        for _ in 0..WINDOW {
            self.number += 1;
            let (reply, due) = (siege.ask(|| self.client.ask(&[b"INCR", b"n"]))?, format!(":{}\r\n", self.number));
            expect(reply == due.as_bytes(), || format!("answered {reply:?} instead of {due:?}"))?;
        }
        Ok(())
    }
}

/// One connection that asks, and one that listens.
pub(super) struct Tables {
    client: Client,
    subscriber: Subscriber,
    /// The content of the table if one request is done after the other.
    elements: HashMap<Vec<u8>, Vec<u8>>,
    number: u64,
    rng: SeededRng,
}

impl Tables {
    /// Connects, and waits until the subscription has arrived.
    pub(super) fn begin(kv: &str, publish: &str, rng: SeededRng) -> Self {
        let client = Client::meet(kv, b"DEALER").unwrap();
        let subscriber = Subscriber::connect(publish, &[TABLE]).unwrap();
        let mut tables = Self { client, subscriber, elements: HashMap::new(), number: 0, rng };
        let create = tables.call(&[&[0], TABLE]).unwrap();
        assert_eq!(create, [[1]]);
        while tables.receive(Duration::from_millis(20)).unwrap().is_none() {
            assert_eq!(tables.call(&[&[2], TABLE, b"are you there", b""]).unwrap(), [[1]]);
        }
        assert_eq!(tables.call(&[&[2], TABLE, b"begin", b""]).unwrap(), [[1]]);
        while tables.receive(PATIENCE).unwrap().expect("the beginning is announced").1 != b"begin" {}
        tables
    }

    fn call(&mut self, frames: &[&[u8]]) -> io::Result<Frames> {
        self.client.send(&message(frames))?;
        self.client.receive()
    }

    fn receive(&mut self, patience: Duration) -> Result<Option<Announced>, String> {
        let received = self.subscriber.receive(patience).map_err(|error| error.to_string())?;
        Ok(received.map(|change| (change.kind, change.key.to_vec())))
    }

    /// Asks some questions together, and compares each answer and each notification.
    pub(super) fn step(&mut self, siege: &Siege) -> Result<(), ControlError> {
        let (mut bytes, mut due, mut announced) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..WINDOW {
            let cookie = self.number.to_be_bytes();
            self.number += 1;
            let (body, reply) = self.question(&mut announced);
            let body: Vec<&[u8]> = body.iter().map(Vec::as_slice).collect();
            bytes.extend(message(&[&[&cookie[..], b""], &body[..]].concat()));
            due.push([vec![cookie.to_vec(), Vec::new()], reply].concat());
        }
        let client = &mut self.client;
        let replies = siege.ask_many(WINDOW, || -> io::Result<Vec<Frames>> {
            client.send(&bytes)?;
            due.iter().map(|_| client.receive()).collect()
        })?;
        for (reply, due) in replies.iter().zip(&due) {
            expect(reply == due, || format!("answered {reply:?} instead of {due:?}"))?;
        }
        for due in announced {
            let received = siege.ask_many(0, || self.receive(PATIENCE))?;
            let Some(received) = received else { return Err(ControlError::Missing(format!("the news of {due:?}"))) };
            expect(received == due, || format!("received {received:?} instead of {due:?}"))?;
        }
        Ok(())
    }

    /// A question and its answer. Adds the notifications that subscribers will receive to `announced`, in the order
    /// of one writer.
    fn question(&mut self, announced: &mut Vec<Announced>) -> (Frames, Frames) {
        let key = vec![b'a' + u8::try_from(self.rng.index(8)).unwrap()];
        let value = [&self.number.to_be_bytes()[..], &vec![b'v'; self.rng.index(100)]].concat();
        let head = |code: u8| vec![vec![code], TABLE.to_vec(), key.clone()];
        let not_found = || vec![vec![0], b"KEY NOT FOUND".to_vec()];
        match self.rng.index(6) {
            0 | 1 => {
                let request = [head(2), vec![value.clone()]].concat();
                self.elements.insert(key.clone(), value);
                announced.push((NotificationKind::Updated, key));
                (request, vec![vec![1]])
            }
            2 => {
                let removed = self.elements.remove(&key);
                if removed.is_some() {
                    announced.push((NotificationKind::Deleted, key.clone()));
                }
                (head(3), removed.map_or_else(not_found, |value| vec![vec![1], value]))
            }
            3 => (vec![vec![5]], vec![vec![1]]),
            4 => {
                let value = self.elements.get(&key).cloned();
                let present = vec![u8::from(value.is_some())];
                (vec![vec![10], TABLE.to_vec(), key], vec![vec![1], present, value.unwrap_or_default()])
            }
            _ => (head(4), self.elements.get(&key).cloned().map_or_else(not_found, |value| vec![vec![1], value])),
        }
    }
}
