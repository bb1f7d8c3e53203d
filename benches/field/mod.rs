//! Tables with the three threads behind them, filled for a bench.

use std::thread::JoinHandle;

use spindle::clock::{Clock, Now};
use spindle::tables::{Backstage, Census, Refusal, Session, Settings, Tables};

pub(crate) const KEY_BYTES: usize = 16;
pub(crate) const VALUE_BYTES: usize = 64;

pub(crate) struct Field {
    clock: Clock,
    tables: Tables,
    threads: Vec<JoinHandle<()>>,
}

impl Field {
    pub(crate) fn filled(count: usize) -> Self {
        let clock = Clock::start();
        let (tables, backstage) = Tables::new(Settings {
            expected_keys: 0,
            memory_max: 16 << 30,
            tables_max: 1 << 16,
            changes_per_writer: 1 << 16,
            version_base: 1,
        });
        let field = Self { clock, tables, threads: behind(backstage, clock) };
        let mut session = field.session();
        session.batch(field.now()).create_table(b"bench", b"bench").unwrap();
        let mut stored = 0;
        while stored < count {
            let keys: Vec<_> = (stored..count).take(32).map(key).collect();
            stored += field.update(&mut session, keys.iter(), 0);
        }
        drop(session);
        while field.census().changes_waiting > 0 {
            std::thread::yield_now();
        }
        field
    }

    pub(crate) fn session(&self) -> Session {
        self.tables.session()
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(crate) fn census(&self) -> Census {
        self.tables.census()
    }

    /// Updates the keys in one batch, the first ones of them fetched together; how many were done before the publisher
    /// had to catch up.
    pub(crate) fn update<'k>(
        &self,
        session: &mut Session,
        keys: impl Iterator<Item = &'k [u8; KEY_BYTES]> + Clone,
        ahead: usize,
    ) -> usize {
        let mut done = 0;
        let mut busy = false;
        let mut batch = session.batch(self.now());
        batch.foresee(keys.clone().take(ahead).map(|key| (&b"bench"[..], &key[..])));
        for key in keys {
            match batch.update(b"bench", key, &[7; VALUE_BYTES], None) {
                Ok(()) => done += 1,
                Err(Refusal::Busy) => {
                    busy = true;
                    break;
                }
                Err(refusal) => panic!("{refusal:?}"),
            }
        }
        drop(batch);
        if busy {
            session.wait();
        }
        done
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        self.tables.close();
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn behind(backstage: Backstage, clock: Clock) -> Vec<JoinHandle<()>> {
    let Backstage { mut changes, expiry, reaper, compactor } = backstage;
    vec![
        std::thread::spawn(move || {
            loop {
                let drained = changes.drain(1 << 16, &mut |_, _, _| {});
                if drained.closed {
                    return;
                }
                if drained.taken == 0 && changes.prepare_sleep(true) {
                    std::thread::park_timeout(std::time::Duration::from_millis(1));
                }
            }
        }),
        std::thread::spawn(move || expiry.run(|| clock.now())),
        std::thread::spawn(move || reaper.run(|| clock.now())),
        std::thread::spawn(move || compactor.run(64 << 20, || clock.now(), || u64::try_from(resident_bytes()).ok())),
    ]
}

fn key(number: usize) -> [u8; KEY_BYTES] {
    format!("{number:016}").into_bytes().try_into().unwrap()
}

/// The keys of a field of `count`, in an order of their own for each seed; at most a million.
pub(crate) fn keys(count: usize, seed: u64) -> Vec<[u8; KEY_BYTES]> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..1 << 20).map(|_| key(usize::try_from(random(&mut state)).unwrap() % count)).collect()
}

/// A step of xorshift64 (Marsaglia, "Xorshift RNGs", 2003).
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Memory of this process that is in use, in bytes.
pub(crate) fn resident_bytes() -> i64 {
    resident_bytes_of("self")
}

/// Memory of a process that is in use, in bytes.
pub(crate) fn resident_bytes_of(process: &str) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 1024
}
