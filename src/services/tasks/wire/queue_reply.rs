//! Encodes and decodes the replies to requests about queues by name: their tag is that of the request.

use super::fault::Fault;
use super::fields::{encode_bytes, encode_name};
use super::options::{NO_TIME, decode_settings, encode_settings};
use super::reply::{Malformed, Reply};
use super::request::{Verb, tag};
use crate::byte_reader::ByteReader;
use crate::tasks::{BrowsePlace, Policy, QueueChange, QueueTerms, Rate};

/// The bytes of a task that is lent, beside its key and value.
const LENT_BYTES: usize = size_of::<u16>() + size_of::<u64>() + 3 * size_of::<u32>();

/// What became of one of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ItemResult {
    /// 1: it is done.
    Done = 1,
    /// 0: nothing has changed: the key exists, or there is no such lease.
    Refused = 0,
    /// 2: there is no room for it, and nothing has changed.
    NoRoom = 2,
}

/// One of many tasks that are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentTask<'b> {
    /// Which of the queues of the request it is of, from 0.
    pub queue: u16,
    /// The lend key of the lease.
    pub lend_key: u64,
    /// The leases since it was added, kicked or repaid, this one included.
    pub tries: u32,
    /// The key of the task.
    pub key: &'b [u8],
    /// Its value.
    pub value: &'b [u8],
}

/// A task that is shown. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenTask<'b> {
    /// Its key.
    pub key: &'b [u8],
    /// Its priority class.
    pub class: u32,
    /// The leases since it was added, kicked or repaid.
    pub tries: u32,
    /// The name of its group. Empty: it has none.
    pub group: &'b [u8],
    /// The time since it entered its state.
    pub age_ms: u64,
    /// The time until it leaves its state by itself.
    pub left_ms: Option<u64>,
    /// Why it has failed, if that has brought it into its state.
    pub reason: &'b [u8],
    /// The length of its value.
    pub bytes: u64,
    /// The first bytes of its value.
    pub first: &'b [u8],
}

/// The figures of a queue, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueFigures(pub [u64; Self::NAMES.len()]);

impl QueueFigures {
    /// Their names.
    pub const NAMES: [&'static str; 15] = [
        "ready",
        "delayed",
        "leased",
        "dead",
        "dropped",
        "unread",
        "groups",
        "waiting",
        "added",
        "lent",
        "done",
        "ran_out",
        "failed",
        "expired",
        "throttled",
    ];
}

/// A queue in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenQueue<'b> {
    /// Its name.
    pub name: &'b [u8],
    /// The number of its tasks in each state, and what has happened to them since the server started.
    pub figures: QueueFigures,
    /// The milliseconds for which its oldest ready task has been ready.
    pub oldest_ms: Option<u64>,
    /// The milliseconds until its pause ends, or `u64::MAX`.
    pub paused_ms: Option<u64>,
    /// What is set.
    pub settings: SeenSettings,
}

/// The settings of a queue in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenSettings {
    /// What holds for tasks without terms of their own.
    pub terms: QueueTerms,
    /// The most tasks that it lends in a time.
    pub rate: Option<Rate>,
    /// When its changes are on disk, if that is set.
    pub sync: Option<Policy>,
}

/// A reply to a request about queues by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueReply<'b> {
    /// What became of each item of a request of this kind, in its order.
    Items(Verb, Vec<ItemResult>),
    /// The tasks that are lent, at least one.
    Lent(Vec<LentTask<'b>>),
    /// A page of tasks, and where the next one begins.
    Browsed(Vec<SeenTask<'b>>, Option<BrowsePlace>),
    /// So many tasks were kicked or purged.
    Counted(Verb, u64),
    /// The settings are changed.
    Configured,
    /// A page of queues, and where the next one begins.
    Queues(Vec<SeenQueue<'b>>, Option<u32>),
}

/// Any reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyReply<'b> {
    /// To a request that every server knows, or an error.
    Plain(Reply<'b>),
    /// To a request about queues by name.
    OfQueues(QueueReply<'b>),
}

impl<'b> AnyReply<'b> {
    /// The reply that reports this fault.
    #[must_use]
    pub fn error(fault: Fault) -> Self {
        Self::Plain(Reply::Error(fault))
    }

    /// Appends the encoded reply.
    ///
    /// # Panics
    /// If a key or value has 4 GiB or more, or a name more than 255 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Plain(reply) => reply.encode(out),
            Self::OfQueues(reply) => reply.encode(out),
        }
    }

    /// The number of bytes that [`AnyReply::encode`] appends.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::Plain(reply) => reply.encoded_len(),
            Self::OfQueues(reply) => reply.encoded_len(),
        }
    }

    /// Decodes a reply.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are no reply.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, Malformed> {
        match bytes.split_first() {
            Some((&tag, body)) if tag > tag::IN_QUEUE => {
                let mut fields = ByteReader::new(body);
                let reply = QueueReply::decode(tag, &mut fields)?;
                fields.is_empty().then_some(Self::OfQueues(reply)).ok_or(Malformed::Length)
            }
            _ => Reply::decode(bytes).map(Self::Plain),
        }
    }
}

impl<'b> QueueReply<'b> {
    fn verb(&self) -> Verb {
        match self {
            Self::Items(verb, _) | Self::Counted(verb, _) => *verb,
            Self::Lent(_) => Verb::LendMany,
            Self::Browsed(..) => Verb::Browse,
            Self::Configured => Verb::Configure,
            Self::Queues(..) => Verb::Queues,
        }
    }

    fn encoded_len(&self) -> usize {
        let Self::Lent(tasks) = self else {
            // The others are small.
            let mut bytes = Vec::new();
            self.encode(&mut bytes);
            return bytes.len();
        };
        let of_task = |task: &LentTask<'_>| LENT_BYTES + task.key.len() + task.value.len();
        1 + size_of::<u32>() + tasks.iter().map(of_task).sum::<usize>()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.verb().tag());
        match self {
            Self::Items(_, items) => {
                encode_count(items.len(), out);
                out.extend(items.iter().map(|item| *item as u8));
            }
            Self::Lent(tasks) => {
                encode_count(tasks.len(), out);
                for LentTask { queue, lend_key, tries, key, value } in tasks {
                    out.extend(queue.to_be_bytes());
                    out.extend(lend_key.to_be_bytes());
                    out.extend(tries.to_be_bytes());
                    encode_bytes(key, out);
                    encode_bytes(value, out);
                }
            }
            Self::Browsed(tasks, next) => {
                out.push(u8::from(next.is_some()));
                out.extend(next.unwrap_or_default().0.map(u64::to_be_bytes).as_flattened());
                encode_count(tasks.len(), out);
                tasks.iter().for_each(|task| encode_task(task, out));
            }
            Self::Counted(_, count) => out.extend(count.to_be_bytes()),
            Self::Configured => {}
            Self::Queues(queues, next) => {
                out.push(u8::from(next.is_some()));
                out.extend(next.unwrap_or_default().to_be_bytes());
                encode_count(queues.len(), out);
                queues.iter().for_each(|queue| encode_queue(queue, out));
            }
        }
    }

    fn decode(tag: u8, fields: &mut ByteReader<'b>) -> Result<Self, Malformed> {
        Ok(match tag {
            tag::ADD_MANY => Self::Items(Verb::AddMany, items(fields)?),
            tag::SETTLE_MANY => Self::Items(Verb::SettleMany, items(fields)?),
            tag::EXTEND_MANY => Self::Items(Verb::ExtendMany, items(fields)?),
            tag::LEND_MANY => Self::Lent(list(fields, lent)?),
            tag::BROWSE => {
                let is_more = fields.byte().ok_or(Malformed::Length)? != 0;
                let [first, second, third, fourth] = [(); 4].map(|()| fields.u64_be().ok_or(Malformed::Length));
                let next = BrowsePlace([first?, second?, third?, fourth?]);
                Self::Browsed(list(fields, task)?, Some(next).filter(|_| is_more))
            }
            tag::KICK => Self::Counted(Verb::Kick, fields.u64_be().ok_or(Malformed::Length)?),
            tag::PURGE => Self::Counted(Verb::Purge, fields.u64_be().ok_or(Malformed::Length)?),
            tag::CONFIGURE => Self::Configured,
            tag::QUEUES => {
                let is_more = fields.byte().ok_or(Malformed::Length)? != 0;
                let next = fields.u32_be().ok_or(Malformed::Length)?;
                Self::Queues(list(fields, queue)?, Some(next).filter(|_| is_more))
            }
            _ => return Err(Malformed::Tag),
        })
    }
}

fn encode_count(count: usize, out: &mut Vec<u8>) {
    out.extend(u32::try_from(count).expect("a reply has fewer than 2^32 entries").to_be_bytes());
}

fn encode_task(task: &SeenTask<'_>, out: &mut Vec<u8>) {
    let &SeenTask { key, class, tries, group, age_ms, left_ms, reason, bytes, first } = task;
    encode_bytes(key, out);
    out.extend([class, tries].map(u32::to_be_bytes).as_flattened());
    encode_name(group, out);
    out.extend([age_ms, left_ms.unwrap_or(NO_TIME)].map(u64::to_be_bytes).as_flattened());
    encode_bytes(reason, out);
    out.extend(bytes.to_be_bytes());
    encode_bytes(first, out);
}

fn encode_queue(queue: &SeenQueue<'_>, out: &mut Vec<u8>) {
    let &SeenQueue { name, figures, oldest_ms, paused_ms, settings: SeenSettings { terms, rate, sync } } = queue;
    encode_name(name, out);
    out.extend(figures.0.map(u64::to_be_bytes).as_flattened());
    out.extend([oldest_ms.unwrap_or(NO_TIME), paused_ms.unwrap_or(0)].map(u64::to_be_bytes).as_flattened());
    encode_settings(terms, rate, sync, out);
}

fn list<'b, T>(
    fields: &mut ByteReader<'b>,
    mut one: impl FnMut(&mut ByteReader<'b>) -> Option<T>,
) -> Result<Vec<T>, Malformed> {
    let count = fields.u32_be().ok_or(Malformed::Length)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(one(fields).ok_or(Malformed::Length)?);
    }
    Ok(entries)
}

fn items(fields: &mut ByteReader<'_>) -> Result<Vec<ItemResult>, Malformed> {
    list(fields, |fields| match fields.byte()? {
        0 => Some(ItemResult::Refused),
        1 => Some(ItemResult::Done),
        2 => Some(ItemResult::NoRoom),
        _ => None,
    })
}

fn lent<'b>(fields: &mut ByteReader<'b>) -> Option<LentTask<'b>> {
    Some(LentTask {
        queue: fields.u16_be()?,
        lend_key: fields.u64_be()?,
        tries: fields.u32_be()?,
        key: fields.run_u32_be()?,
        value: fields.run_u32_be()?,
    })
}

fn task<'b>(fields: &mut ByteReader<'b>) -> Option<SeenTask<'b>> {
    Some(SeenTask {
        key: fields.run_u32_be()?,
        class: fields.u32_be()?,
        tries: fields.u32_be()?,
        group: fields.run_u8()?,
        age_ms: fields.u64_be()?,
        left_ms: Some(fields.u64_be()?).filter(|left| *left != NO_TIME),
        reason: fields.run_u32_be()?,
        bytes: fields.u64_be()?,
        first: fields.run_u32_be()?,
    })
}

fn queue<'b>(fields: &mut ByteReader<'b>) -> Option<SeenQueue<'b>> {
    let name = fields.run_u8()?;
    let mut figures = QueueFigures::default();
    for figure in &mut figures.0 {
        *figure = fields.u64_be()?;
    }
    let oldest_ms = Some(fields.u64_be()?).filter(|oldest| *oldest != NO_TIME);
    let paused_ms = Some(fields.u64_be()?).filter(|paused| *paused > 0);
    let (change, rest) = decode_settings(fields.rest())?;
    *fields = ByteReader::new(rest);
    let QueueChange { tries, backoff, group_limit, rate, sync, pause: _ } = change;
    let terms = QueueTerms { tries: tries.flatten(), backoff: backoff.flatten(), group_limit: group_limit.flatten() };
    let settings = SeenSettings { terms, rate: rate.flatten(), sync: sync.flatten() };
    Some(SeenQueue { name, figures, oldest_ms, paused_ms, settings })
}
