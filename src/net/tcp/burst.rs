//! The requests to submit next, in portions that the committer receives one by one.
//!
//! ```text
//! push ─► [256] [256] [ 17]
//!           └─► take_portion
//! ```
//! No request is copied behind its portion, and a portion keeps no memory beyond its own. This module submits nothing.

use std::collections::VecDeque;

use crate::limits::{SUBMIT_BYTES_MAX, SUBMIT_MAX};
use crate::tasks::Submission;

/// Requests in their order. None of the portions is empty.
#[derive(Default)]
pub(crate) struct Burst {
    portions: VecDeque<Portion>,
    len: usize,
    bytes: usize,
}

/// Requests that are submitted together.
struct Portion {
    requests: Vec<Submission>,
    bytes: usize,
}

impl Portion {
    fn has_room(&self) -> bool {
        self.requests.len() < SUBMIT_MAX && self.bytes < SUBMIT_BYTES_MAX
    }
}

impl Burst {
    /// The number of requests.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes for which the requests count.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a request that counts for so many bytes.
    pub(crate) fn push(&mut self, submission: Submission, bytes: usize) {
        self.len += 1;
        self.bytes += bytes;
        match self.portions.back_mut().filter(|portion| portion.has_room()) {
            Some(portion) => {
                portion.requests.push(submission);
                portion.bytes += bytes;
            }
            None => self.portions.push_back(Portion { requests: vec![submission], bytes }),
        }
    }

    /// Takes the first requests: at most [`SUBMIT_MAX`], and [`SUBMIT_BYTES_MAX`] but for the last of them. Empty: there
    /// are none.
    pub(crate) fn take_portion(&mut self) -> Vec<Submission> {
        let Some(Portion { requests, bytes }) = self.portions.pop_front() else { return Vec::new() };
        self.len -= requests.len();
        self.bytes -= bytes;
        requests
    }

    /// Takes the requests out for which `is_wanted` returns true. Their bytes go with their portions.
    pub(crate) fn extract(&mut self, is_wanted: impl Fn(&Submission) -> bool) -> Vec<Submission> {
        let of_portion =
            |portion: &mut Portion| portion.requests.extract_if(.., |request| is_wanted(request)).collect::<Vec<_>>();
        let extracted: Vec<_> = self.portions.iter_mut().flat_map(of_portion).collect();
        self.len -= extracted.len();
        self.portions.retain(|portion| !portion.requests.is_empty());
        self.bytes = self.portions.iter().map(|portion| portion.bytes).sum();
        extracted
    }
}
