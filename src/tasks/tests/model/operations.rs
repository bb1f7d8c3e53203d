//! What the model and the committer are asked.

use std::num::NonZeroU32;

use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{collection::vec, option, sample::select};

use super::{ModelQueue, ModelState, ModelTask};
use crate::store::Value;
use crate::tasks::{
    AddTerms, Backoff, QueueChange, QueueEnd, REASON_BYTES_MAX, Rate, Request, Settlement, USUAL_CLASS,
};

/// A request that names a lease by how long ago it was granted.
#[derive(Clone, Debug)]
pub(super) enum ModelRequest {
    Just(Request),
    Settle(usize, Settlement, u8),
    Extend(usize, u64),
    Undo(usize),
    GiveBack(usize, Option<u64>, Box<[u8]>),
    Bury(usize, Box<[u8]>),
    LeaseNext(usize, u64, bool),
}

#[derive(Clone, Debug)]
pub(super) enum ModelOperation {
    Commit(Vec<ModelRequest>),
    Wait(u64),
    Crash,
}

fn key() -> impl Strategy<Value = Box<[u8]>> {
    (0_u8..6).prop_map(|key| Box::from([b'k', key]))
}

/// The last one is too long.
fn reason() -> impl Strategy<Value = Box<[u8]>> {
    select(vec![Box::default(), Box::from(*b"broken"), Box::from([b'x'; REASON_BYTES_MAX + 1])])
}

fn value() -> impl Strategy<Value = Value> {
    any::<u8>().prop_map(|byte| Value::from(&[byte][..]))
}

fn terms() -> impl Strategy<Value = Option<AddTerms>> {
    let class = select(vec![USUAL_CLASS, USUAL_CLASS, USUAL_CLASS, 0, USUAL_CLASS - 1, USUAL_CLASS + 1, u32::MAX]);
    let (delay, lifetime) = (select(vec![0_u64, 0, 1, 20, 100]), option::of(select(vec![0_u64, 1, 30, 200, 6_000])));
    let tries = option::of((0_u32..4).prop_map(NonZeroU32::new));
    let backoff = option::of(select(vec![(0, 0), (1, 1), (20, 20), (10, 1_000)]));
    let names: [&[u8]; 6] = [b"", b"", b"", b"x", b"y", b"z"];
    let group = select(names.map(Box::from).to_vec());
    let lease = option::weighted(0.2, select(vec![0_u64, 1, 20, 300]));
    let all = (class, delay, lifetime, tries, backoff, group, lease);
    let terms = all.prop_map(|(class, delay, lifetime, tries, backoff, group, lease)| {
        let backoff = backoff.map(|(first, most)| Backoff { first, most });
        AddTerms { class, delay, lifetime, tries, backoff, group, lease, ..AddTerms::default() }
    });
    option::of(terms)
}

/// Mostly one setting, so that they meet.
fn change() -> impl Strategy<Value = QueueChange> {
    let rates = vec![None, None, Rate::of(1, 10, 1), Rate::of(3, 100, 2), Rate::of(7, 3, 1)];
    let none = QueueChange::default;
    prop_oneof![
        option::of((0_u32..4).prop_map(NonZeroU32::new))
            .prop_map(move |tries| QueueChange { tries: Some(tries), ..none() }),
        option::of(Just(Backoff { first: 10, most: 500 }))
            .prop_map(move |backoff| QueueChange { backoff: Some(backoff), ..none() }),
        (0_u32..3).prop_map(move |limit| QueueChange { group_limit: Some(NonZeroU32::new(limit)), ..none() }),
        select(rates).prop_map(move |rate| QueueChange { rate: Some(rate), ..none() }),
        select(vec![0, 0, 1, 30, u64::MAX]).prop_map(move |pause| QueueChange { pause: Some(pause), ..none() }),
    ]
}

fn input() -> impl Strategy<Value = ModelRequest> {
    let timeout = || select(vec![0_u64, 1, 5, 20, 20, 100, u64::MAX]);
    let how = select(vec![
        Settlement::Penalty,
        Settlement::Reward,
        Settlement::Reward,
        Settlement::Front,
        Settlement::Drop,
        Settlement::Done,
    ]);
    let end = select(vec![QueueEnd::Head, QueueEnd::Tail, QueueEnd::Tail]);
    prop_oneof![
        4 => (key(), value(), end, terms()).prop_map(|(key, value, end, terms)| {
            ModelRequest::Just(Request::Add { key, value, end, terms: terms.map(Box::new) })
        }),
        1 => (key(), value()).prop_map(|(key, value)| ModelRequest::Just(Request::Update { key, value })),
        4 => (timeout(), any::<bool>())
            .prop_map(|(timeout, wait)| ModelRequest::Just(Request::Lease { timeout, wait })),
        3 => (0_usize..4, how, any::<u8>()).prop_map(|(lease, how, value)| ModelRequest::Settle(lease, how, value)),
        2 => (0_usize..4, timeout()).prop_map(|(lease, timeout)| ModelRequest::Extend(lease, timeout)),
        1 => (0_usize..4).prop_map(ModelRequest::Undo),
        2 => (0_usize..4, option::of(select(vec![0_u64, 1, 20, 200])), reason())
            .prop_map(|(lease, delay, reason)| ModelRequest::GiveBack(lease, delay, reason)),
        1 => (0_usize..4, reason()).prop_map(|(lease, reason)| ModelRequest::Bury(lease, reason)),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Kick { key })),
        1 => change().prop_map(|change| {
            ModelRequest::Just(Request::Configure { change: Box::new(change) })
        }),
        1 => (0_usize..4, timeout(), any::<bool>())
            .prop_map(|(lease, timeout, wait)| ModelRequest::LeaseNext(lease, timeout, wait)),
        1 => Just(ModelRequest::Just(Request::Count)),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Look { key })),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Has { key })),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Finish { key })),
        1 => Just(ModelRequest::Just(Request::Sync)),
        1 => key().prop_map(|key| ModelRequest::Just(Request::Remove { key })),
    ]
}

pub(super) fn operation() -> impl Strategy<Value = ModelOperation> {
    prop_oneof![
        8 => vec(input(), 1..6).prop_map(ModelOperation::Commit),
        3 => (0_u64..40).prop_map(ModelOperation::Wait),
        1 => (0_u64..5_000).prop_map(ModelOperation::Wait),
        1 => Just(ModelOperation::Crash),
    ]
}

/// The request with its lease filled in. `leases` are the granted tokens and keys.
pub(super) fn with_lease(input: &ModelRequest, leases: &[(u64, Vec<u8>)]) -> Request {
    let lease = |ago: usize| {
        let at = leases.len().checked_sub(ago + 1);
        at.map_or((7_777_777, Vec::new()), |at| leases[at].clone())
    };
    match input {
        ModelRequest::Just(request) => request.clone(),
        ModelRequest::Settle(ago, how, value) => {
            let (token, key) = lease(*ago);
            Request::Settle { token, key: key.into(), value: Some(Value::from(&[*value][..])), how: *how }
        }
        ModelRequest::Extend(ago, timeout) => {
            let (token, key) = lease(*ago);
            Request::Extend { token: (timeout % 3 > 0).then_some(token), key: key.into(), timeout: *timeout }
        }
        ModelRequest::Undo(ago) => {
            let (token, key) = lease(*ago);
            Request::Undo { token, key: key.into() }
        }
        ModelRequest::GiveBack(ago, delay, reason) => {
            let (token, key) = lease(*ago);
            Request::GiveBack {
                token: delay.is_none().then_some(token),
                key: key.into(),
                delay: *delay,
                reason: reason.clone(),
            }
        }
        ModelRequest::Bury(ago, reason) => {
            let (token, key) = lease(*ago);
            Request::Bury { token, key: key.into(), reason: reason.clone() }
        }
        ModelRequest::LeaseNext(ago, timeout, wait) => {
            let (token, key) = lease(*ago);
            Request::LeaseNext { token, key: key.into(), timeout: *timeout, wait: *wait }
        }
    }
}

impl ModelQueue {
    /// This token, or that of whoever holds the task. 0: nobody does.
    pub(super) fn token(&self, key: &[u8], token: Option<u64>) -> u64 {
        let held = |task: &ModelTask| match task.state {
            ModelState::Leased { token, .. } => token,
            _ => 0,
        };
        token.unwrap_or_else(|| self.tasks.get(key).map_or(0, held))
    }
}
