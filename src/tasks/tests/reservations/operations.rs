//! What the model of job queues and the committer are asked.

use std::num::NonZeroU32;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection::vec, option, sample::select};

use super::QUEUES;
use crate::tasks::{AddTerms, BrowsedState, URGENT_CLASS, USUAL_CLASS};

/// Times are in these units, and so long that no two of the odd times that are added meet.
pub(super) const UNIT: u64 = 1 << 32;

/// Whose reservation a request names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named {
    /// That of whoever holds the job.
    Holder,
    /// That of this connection.
    Connection(u64),
}

/// How a request names the queue of a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    InItsQueue,
    InAnotherQueue,
    /// By its id, in queues whose names begin with one of these.
    Beginning(&'static [&'static [u8]]),
}

/// A request about a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum AboutJob {
    Reserve(u64),
    Release(Named, u32, u64),
    Bury(Named, u32),
    Close(Named),
    Delete(Named),
    /// `None`: whoever holds it.
    Touch(Option<Named>, u64),
    Undo(Named),
    GiveBack(Option<u64>),
    Kick,
    Show,
    Has,
    Finish,
}

/// A request. Times are in units.
#[derive(Clone, Debug)]
pub(super) enum JobRequest {
    Push(usize, u8, AddTerms),
    /// Queues, connection, length of the lease, time to wait.
    ReserveNext(Vec<usize>, u64, u64, u64),
    Get(usize, u64, bool),
    /// The job that was added this many before the last one.
    About(usize, Found, AboutJob),
    Peek(usize, BrowsedState),
    KickMany(usize, u64),
}

#[derive(Clone, Debug)]
pub(super) enum JobOperation {
    Commit(Vec<JobRequest>),
    /// These requests are lost with their batch, and the server starts again.
    Lose(Vec<JobRequest>),
    Wait(u64),
    /// The server starts again after so many units.
    Crash(u64),
}

fn queue() -> impl Strategy<Value = usize> {
    0..QUEUES.len()
}

fn class() -> impl Strategy<Value = u32> {
    select(vec![USUAL_CLASS, USUAL_CLASS, USUAL_CLASS, 0, URGENT_CLASS - 1, URGENT_CLASS, USUAL_CLASS + 1, u32::MAX])
}

fn terms() -> impl Strategy<Value = AddTerms> {
    let (delay, lifetime) = (select(vec![0_u64, 0, 0, 1, 2]), option::weighted(0.2, 0_u64..5));
    let tries = option::of((0_u32..4).prop_map(NonZeroU32::new));
    let names: [&[u8]; 6] = [b"", b"", b"", b"", b"x", b"y"];
    let unique = select(names.map(Box::from).to_vec());
    (class(), delay, lifetime, tries, option::of(1_u64..3), unique).prop_map(
        |(class, delay, lifetime, tries, lease, unique)| AddTerms {
            class,
            delay,
            lifetime,
            tries,
            lease,
            unique,
            ..AddTerms::default()
        },
    )
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![4 => Just(Named::Holder), 1 => (0_u64..3).prop_map(Named::Connection)]
}

fn found() -> impl Strategy<Value = Found> {
    const ALL: &[&[u8]] = &[b"jobs/"];
    const SOME: &[&[u8]] = &[b"tasks/", b"jobs/b", b"jobs/ab"];
    let beginnings = vec![ALL, ALL, ALL, SOME, &[b"jobs/a"], &[b"jobs/ab"], &[b"jobs/abc"], &[]];
    prop_oneof![
        3 => Just(Found::InItsQueue),
        1 => Just(Found::InAnotherQueue),
        4 => select(beginnings).prop_map(Found::Beginning),
    ]
}

fn about() -> impl Strategy<Value = AboutJob> {
    let length = || select(vec![1_u64, 2, 3]);
    prop_oneof![
        4 => (0_u64..3).prop_map(AboutJob::Reserve),
        4 => (named(), class(), select(vec![0_u64, 0, 1, 2]))
            .prop_map(|(holder, class, delay)| AboutJob::Release(holder, class, delay)),
        3 => (named(), class()).prop_map(|(holder, class)| AboutJob::Bury(holder, class)),
        2 => named().prop_map(AboutJob::Close),
        2 => named().prop_map(AboutJob::Delete),
        2 => (option::weighted(0.8, named()), prop_oneof![4 => length(), 1 => Just(0)])
            .prop_map(|(holder, length)| AboutJob::Touch(holder, length)),
        1 => named().prop_map(AboutJob::Undo),
        1 => option::of(0_u64..3).prop_map(AboutJob::GiveBack),
        3 => Just(AboutJob::Kick),
        3 => Just(AboutJob::Show),
        1 => Just(AboutJob::Has),
        1 => Just(AboutJob::Finish),
    ]
}

fn request() -> impl Strategy<Value = JobRequest> {
    let length = || select(vec![1_u64, 1, 2, 3, u64::MAX]);
    let queues = vec![vec![0], vec![1, 0], vec![2, 0], vec![0, 1, 2], vec![2, 1, 0]];
    let states = vec![BrowsedState::Ready, BrowsedState::Delayed, BrowsedState::Dead, BrowsedState::Lent];
    prop_oneof![
        6 => (queue(), any::<u8>(), terms()).prop_map(|(queue, value, terms)| JobRequest::Push(queue, value, terms)),
        5 => (select(queues), 0_u64..3, length(), select(vec![0_u64, 0, 1, 3, u64::MAX]))
            .prop_map(|(queues, holder, length, wait)| JobRequest::ReserveNext(queues, holder, length, wait)),
        2 => (queue(), length(), any::<bool>()).prop_map(|(queue, length, wait)| JobRequest::Get(queue, length, wait)),
        16 => (0_usize..6, found(), about()).prop_map(|(ago, found, about)| JobRequest::About(ago, found, about)),
        1 => (queue(), select(states)).prop_map(|(queue, state)| JobRequest::Peek(queue, state)),
        1 => (queue(), select(vec![0_u64, 1, 2, u64::MAX])).prop_map(|(queue, most)| JobRequest::KickMany(queue, most)),
    ]
}

pub(super) fn operation() -> impl Strategy<Value = JobOperation> {
    prop_oneof![
        10 => vec(request(), 1..7).prop_map(JobOperation::Commit),
        1 => vec(request(), 1..7).prop_map(JobOperation::Lose),
        3 => (0_u64..3).prop_map(JobOperation::Wait),
        1 => (0_u64..2).prop_map(JobOperation::Crash),
    ]
}
