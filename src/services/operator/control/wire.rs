//! The bytes of a request and of its reply. All integers are big-endian.
//!
//! ```text
//! request   1 length:u32 path                                       write a backup to this folder
//! reply     1 moment:u64                                            it is written, as the store was at that moment, in
//!             segments:u64 linked:u64 copied:u64 bytes:u64          milliseconds since 1970
//!             lost:u64 (length:u32 name:UTF-8)…                     without these parts, of which it names the first
//!           0 sentence                                              there is none: the reason, UTF-8 until the end
//! ```
//! A connection has one request and one reply. Then the server closes it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::byte_reader::ByteReader;
use crate::limits::CONTROL_PATH_BYTES_MAX;
use crate::store::BackupReport;

/// The request for a backup.
const BACKUP: u8 = 1;
/// The replies.
const REFUSED: u8 = 0;
const DONE: u8 = 1;

/// A request of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Write a backup to this folder.
    Backup(PathBuf),
}

/// The beginning of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// It is whole.
    Whole(Request),
    /// More bytes follow.
    Short,
    /// It is no request of this protocol.
    Malformed,
}

impl Request {
    /// The bytes of the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self::Backup(path) = self;
        let path = path.as_os_str().as_bytes();
        let length = u32::try_from(path.len()).unwrap_or(u32::MAX);
        [&[BACKUP][..], &length.to_be_bytes(), path].concat()
    }

    /// Reads a request from the bytes that have come.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Decoded {
        let mut reader = ByteReader::new(bytes);
        match reader.byte() {
            None => return Decoded::Short,
            Some(BACKUP) => {}
            Some(_) => return Decoded::Malformed,
        }
        let Some(length) = reader.u32_be() else { return Decoded::Short };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > CONTROL_PATH_BYTES_MAX {
            return Decoded::Malformed;
        }
        match reader.take(length) {
            Some(path) if reader.is_empty() => Decoded::Whole(Self::Backup(PathBuf::from(OsStr::from_bytes(path)))),
            Some(_) => Decoded::Malformed,
            None => Decoded::Short,
        }
    }
}

/// The reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The backup is written.
    Done {
        /// The wall clock when the store was as the backup is, in milliseconds since 1970.
        moment: u64,
        /// What was written.
        report: BackupReport,
    },
    /// There is none, for this reason.
    Refused(String),
}

impl Reply {
    /// The bytes of the reply.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Refused(why) => [&[REFUSED], why.as_bytes()].concat(),
            Self::Done { moment, report: BackupReport { segments, linked, copied, bytes, lost, damages } } => {
                let numbers =
                    [moment, segments, linked, copied, bytes, lost].map(|number| number.to_be_bytes()).concat();
                let named = damages.iter().flat_map(|name| {
                    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
                    [&length.to_be_bytes()[..], name.as_bytes()].concat()
                });
                std::iter::once(DONE).chain(numbers).chain(named).collect()
            }
        }
    }

    /// Reads a whole reply. `None`: it is none of this protocol.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(bytes);
        match reader.byte()? {
            REFUSED => Some(Self::Refused(String::from_utf8(reader.rest().to_vec()).ok()?)),
            DONE => {
                let mut number = || reader.u64_be();
                let moment = number()?;
                let (segments, linked, copied, bytes, lost) = (number()?, number()?, number()?, number()?, number()?);
                let mut damages = Vec::new();
                while !reader.is_empty() {
                    damages.push(String::from_utf8(reader.run_u32_be()?.to_vec()).ok()?);
                }
                let report = BackupReport { segments, linked, copied, bytes, lost, damages };
                Some(Self::Done { moment, report })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_with_its_last_byte_and_malformed_beyond() {
        let request = Request::Backup(PathBuf::from(OsStr::from_bytes(b"/mnt/\xff")));
        let mut bytes = request.encode();
        for cut in 0..bytes.len() {
            assert_eq!(Request::decode(bytes.get(..cut).unwrap_or_default()), Decoded::Short, "{cut}");
        }
        assert_eq!(Request::decode(&bytes), Decoded::Whole(request));
        bytes.push(0);
        assert_eq!(Request::decode(&bytes), Decoded::Malformed);
        for bad in [&[0][..], &[2], &[1, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(Request::decode(bad), Decoded::Malformed);
        }
    }

    #[test]
    fn replies_are_read_as_they_were_written() {
        let whole = BackupReport { segments: 1, linked: 2, copied: 3, bytes: u64::MAX, ..BackupReport::default() };
        let report = BackupReport { lost: 3, damages: ["one", "", "another…"].map(str::to_owned).to_vec(), ..whole };
        let whole = BackupReport { lost: 0, damages: Vec::new(), ..report };
        let done = |report| Reply::Done { moment: 1 << 40, report };
        for reply in [done(report.clone()), done(whole), Reply::Refused("no space…".to_owned())] {
            let bytes = reply.encode();
            assert_eq!(Reply::decode(&bytes), Some(reply));
            assert_eq!(Reply::decode(&[]), None);
        }
        let mut bytes = done(report).encode();
        bytes.push(0);
        assert_eq!(Reply::decode(&bytes), None);
        assert_eq!(Reply::decode(&[0, 0xff]), None);
    }
}
