//! Encodes and decodes replies. The meaning of a reply depends on the verb of the request, and the word for a done job
//! on the [`AckWording`]. An id is never one of the words.

use thiserror::Error;

use super::options::whole;
use super::request::{JobId, Verb};

const NONE: &[u8] = b"NONE";
const YES: &[u8] = b"YES";
const OK: &[u8] = b"OK";
const NO: &[u8] = b"NO";
const ERROR: &[u8] = b"ERROR";
const BUSY: &[u8] = b"BUSY";

/// The word that acknowledges a done job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckWording {
    /// `OK`
    OkNo,
    /// `YES`, which some clients expect. They also expect `OK` to SAVE, which is no command with the other wording.
    YesNo,
}

/// A reply of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'b> {
    /// The job was added.
    Added(JobId),
    /// The leased job.
    Job {
        /// The id, which acknowledges the job.
        id: JobId,
        /// The data of the job.
        data: &'b [u8],
        /// The leases since it was added or kicked, this one included, if the request asks for them.
        tries: Option<u32>,
    },
    /// There is no job to hand out.
    Nothing,
    /// Whether the job was handed out. If so, it is done and gone now.
    Done(bool),
    /// Whether the job is in the queue.
    In(bool),
    /// To SAVE. Nothing is answered before it is on disk, so there is nothing left to save.
    Saved,
    /// The request was malformed or refused, and the queues are unchanged.
    Error,
    /// The password was not checked, and may be right. The queues are unchanged.
    Busy,
}

/// Why bytes are no reply of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The reply does not belong to this verb.
    #[error("an answer to something else")]
    Words,
    /// The connection was closed before the whole reply had come.
    #[error("an answer that is cut off")]
    Cut,
}

impl<'b> Reply<'b> {
    /// The same without the tries of a job.
    #[must_use]
    pub fn without_tries(self) -> Self {
        if let Self::Job { id, data, .. } = self { Self::Job { id, data, tries: None } } else { self }
    }

    /// Appends the encoded reply.
    pub fn encode(&self, words: AckWording, out: &mut Vec<u8>) {
        self.encode_head(words, out);
        if let Self::Job { data, .. } = self {
            out.extend_from_slice(data);
        }
    }

    /// Appends the encoded reply without the data of a job, which is its end.
    pub fn encode_head(&self, words: AckWording, out: &mut Vec<u8>) {
        match self {
            Self::Added(id) => out.extend(id.to_string().as_bytes()),
            Self::Job { id, data, tries } => {
                let tries = tries.map_or(String::new(), |tries| format!("{tries} "));
                out.extend(format!("{id} {} {tries}", data.len()).as_bytes());
            }
            Self::Nothing => out.extend(NONE),
            Self::Done(true) if words == AckWording::OkNo => out.extend(OK),
            Self::Done(true) | Self::In(true) => out.extend(YES),
            Self::Done(false) | Self::In(false) => out.extend(NO),
            Self::Error => out.extend(ERROR),
            Self::Busy => out.extend(BUSY),
            Self::Saved if words == AckWording::YesNo => out.extend(OK),
            Self::Saved => out.extend(ERROR),
        }
    }

    /// Decodes the whole reply to a request. It accepts both words for a done job.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are no such reply.
    pub fn decode(verb: Verb, bytes: &'b [u8]) -> Result<Self, Malformed> {
        Self::decode_with(verb, false, bytes)
    }

    /// Decodes the whole reply to a WAIT that asks for the tries of its job.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are no such reply.
    pub fn decode_with_tries(bytes: &'b [u8]) -> Result<Self, Malformed> {
        Self::decode_with(Verb::Wait, true, bytes)
    }

    fn decode_with(verb: Verb, with_tries: bool, bytes: &'b [u8]) -> Result<Self, Malformed> {
        let reply = match (verb, bytes) {
            (_, b"ERROR") => Some(Self::Error),
            (_, b"BUSY") => Some(Self::Busy),
            (_, b"") => return Err(Malformed::Cut),
            (Verb::Add | Verb::AddX, id) => JobId::read(id).map(Self::Added),
            (Verb::Get | Verb::Wait, b"NONE") => Some(Self::Nothing),
            (Verb::Get | Verb::Wait, job) => return Self::decode_job(job, with_tries),
            (Verb::Ack | Verb::Nack | Verb::Touch, b"OK" | b"YES") => Some(Self::Done(true)),
            (Verb::Ack | Verb::Nack | Verb::Touch, b"NO") => Some(Self::Done(false)),
            (Verb::In, b"YES") => Some(Self::In(true)),
            (Verb::In, b"NO") => Some(Self::In(false)),
            _ => None,
        };
        reply.ok_or(Malformed::Words)
    }

    fn decode_job(bytes: &'b [u8], with_tries: bool) -> Result<Self, Malformed> {
        let mut fields = bytes.splitn(if with_tries { 4 } else { 3 }, |byte| *byte == b' ');
        let id = fields.next().and_then(JobId::read).ok_or(Malformed::Words)?;
        let length = fields.next().ok_or(Malformed::Cut)?;
        let length: usize =
            std::str::from_utf8(length).ok().and_then(|text| text.parse().ok()).ok_or(Malformed::Words)?;
        let tries = if with_tries { Some(fields.next().ok_or(Malformed::Cut)?) } else { None };
        let tries = tries.map(|tries| whole(tries).ok_or(Malformed::Words)).transpose()?;
        let data = fields.next().ok_or(Malformed::Cut)?;
        match data.len() {
            whole if whole == length => Ok(Self::Job { id, data, tries }),
            short if short < length => Err(Malformed::Cut),
            _ => Err(Malformed::Words),
        }
    }
}
