//! The requests to submit next, in portions that the committer receives one by one.
//!
//! ```text
//! push ─► [256] [256] [ 17]
//!           └─► take_portion
//! ```
//! No request is copied behind its portion, and a portion keeps no memory beyond its own. This module submits nothing.

use std::collections::VecDeque;

use crate::limits::SUBMIT_MAX;
use crate::tasks::Submission;

/// Requests in their order. None of the portions is empty.
#[derive(Default)]
pub(super) struct Burst {
    portions: VecDeque<Vec<Submission>>,
    len: usize,
    /// The bytes of the requests, as far as they were noted.
    bytes: usize,
}

impl Burst {
    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The noted bytes of the requests since the burst was empty.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The last request came as so many bytes.
    pub(super) fn note_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    pub(super) fn push(&mut self, submission: Submission) {
        self.len += 1;
        match self.portions.back_mut().filter(|portion| portion.len() < SUBMIT_MAX) {
            Some(portion) => portion.push(submission),
            None => self.portions.push_back(vec![submission]),
        }
    }

    /// Takes the first requests: at most [`SUBMIT_MAX`]. Empty: there are none.
    pub(super) fn take_portion(&mut self) -> Vec<Submission> {
        let portion = self.portions.pop_front().unwrap_or_default();
        self.len -= portion.len();
        if self.is_empty() {
            self.bytes = 0;
        }
        portion
    }

    /// Takes the requests out for which `is_wanted` returns true.
    pub(super) fn extract(&mut self, is_wanted: impl Fn(&Submission) -> bool) -> Vec<Submission> {
        let of_portion =
            |portion: &mut Vec<Submission>| portion.extract_if(.., |one| is_wanted(one)).collect::<Vec<_>>();
        let extracted: Vec<_> = self.portions.iter_mut().flat_map(of_portion).collect();
        self.portions.retain(|portion| !portion.is_empty());
        self.len -= extracted.len();
        extracted
    }
}
