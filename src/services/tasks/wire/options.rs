//! Encodes and decodes the options of an Add, and the settings of a queue.
//!
//! ```text
//! options   count:u8, and as many pairs of a tag:u8 and a value
//! ```

use std::num::NonZeroU32;

use super::fault::{Fault, Field};
use super::fields::{Fields, encode_name, encode_tagged};
use crate::tasks::{AddTerms, Backoff, Policy, QueueChange, QueueTerms, Rate};

/// A time that is none: of a delay as the backoff says, of a pause until the queue is resumed.
pub(super) const NO_TIME: u64 = u64::MAX;

/// The tags of the options of an Add.
mod add_option {
    pub(super) const CLASS: u8 = 1;
    pub(super) const DELAY: u8 = 2;
    pub(super) const TRIES: u8 = 3;
    pub(super) const BACKOFF: u8 = 4;
    pub(super) const GROUP: u8 = 5;
    pub(super) const EXPIRES: u8 = 6;
}

/// The tags of the settings of a queue.
mod setting {
    pub(super) const TRIES: u8 = 1;
    pub(super) const BACKOFF: u8 = 2;
    pub(super) const GROUP_LIMIT: u8 = 3;
    pub(super) const RATE: u8 = 4;
    pub(super) const PAUSE: u8 = 5;
    pub(super) const SYNC: u8 = 6;
    /// Added to the others: as it is without the setting. No value follows.
    pub(super) const NONE: u8 = 0x80;
}

impl Fields<'_> {
    fn backoff(&mut self) -> Result<Backoff, Fault> {
        Ok(Backoff { first: self.int(Field::Option)?, most: self.int(Field::Option)? })
    }

    pub(super) fn terms(&mut self) -> Result<AddTerms, Fault> {
        let mut terms = AddTerms::default();
        for _ in 0..self.byte(Field::Option)? {
            match self.byte(Field::Option)? {
                add_option::CLASS => terms.class = self.int(Field::Option)?,
                add_option::DELAY => terms.delay = self.long(Field::Option)?,
                add_option::TRIES => terms.tries = Some(NonZeroU32::new(self.int(Field::Option)?)),
                add_option::BACKOFF => terms.backoff = Some(self.backoff()?),
                add_option::GROUP => terms.group = self.short_run(Field::Group)?.into(),
                add_option::EXPIRES => terms.lifetime = Some(self.long(Field::Option)?),
                offending => return Err(Fault::Offending { field: Field::BadOption, offending }),
            }
        }
        Ok(terms)
    }

    pub(super) fn change(&mut self) -> Result<QueueChange, Fault> {
        let mut change = QueueChange::default();
        for _ in 0..self.byte(Field::Option)? {
            let offending = self.byte(Field::Option)?;
            let is_set = offending & setting::NONE == 0;
            match offending & !setting::NONE {
                setting::TRIES if is_set => change.tries = Some(Some(NonZeroU32::new(self.int(Field::Option)?))),
                setting::TRIES => change.tries = Some(None),
                setting::BACKOFF if is_set => change.backoff = Some(Some(self.backoff()?)),
                setting::BACKOFF => change.backoff = Some(None),
                setting::GROUP_LIMIT if is_set => {
                    change.group_limit = Some(NonZeroU32::new(self.int(Field::Option)?));
                }
                setting::GROUP_LIMIT => change.group_limit = Some(None),
                setting::RATE if is_set => {
                    let [count, per, burst] = [(); 3].map(|()| self.int(Field::Option));
                    let rate = Rate::of(count?, per?, burst?);
                    change.rate = Some(Some(rate.ok_or(Fault::Offending { field: Field::BadOption, offending })?));
                }
                setting::RATE => change.rate = Some(None),
                setting::PAUSE if is_set => change.pause = Some(self.long(Field::Option)?),
                setting::PAUSE => change.pause = Some(0),
                setting::SYNC if is_set => change.sync = Some(Some(Policy::of_millis(self.long(Field::Option)?))),
                setting::SYNC => change.sync = Some(None),
                _ => return Err(Fault::Offending { field: Field::BadOption, offending }),
            }
        }
        Ok(change)
    }
}

fn encode_options(options: &[(u8, Vec<u8>)], out: &mut Vec<u8>) {
    out.push(u8::try_from(options.len()).unwrap_or(u8::MAX));
    options.iter().for_each(|(tag, value)| encode_tagged(*tag, value, out));
}

pub(super) fn encode_terms(
    AddTerms { class, delay, lifetime, tries, backoff, group, .. }: &AddTerms,
    out: &mut Vec<u8>,
) {
    let usual = AddTerms::default();
    let mut options = Vec::new();
    options.extend((*class != usual.class).then(|| (add_option::CLASS, class.to_be_bytes().to_vec())));
    options.extend((*delay > 0).then(|| (add_option::DELAY, delay.to_be_bytes().to_vec())));
    options.extend(tries.map(|tries| (add_option::TRIES, tries.map_or(0, NonZeroU32::get).to_be_bytes().to_vec())));
    options.extend(backoff.map(|backoff| (add_option::BACKOFF, encoded_backoff(backoff))));
    options.extend(lifetime.map(|lifetime| (add_option::EXPIRES, lifetime.to_be_bytes().to_vec())));
    if !group.is_empty() {
        let mut name = Vec::new();
        encode_name(group, &mut name);
        options.push((add_option::GROUP, name));
    }
    encode_options(&options, out);
}

fn encoded_backoff(Backoff { first, most }: Backoff) -> Vec<u8> {
    [first, most].map(u32::to_be_bytes).concat()
}

pub(super) fn encode_change(change: &QueueChange, out: &mut Vec<u8>) {
    let &QueueChange { tries, backoff, group_limit, rate, pause, sync } = change;
    let number = |number: Option<NonZeroU32>| number.map_or(0, NonZeroU32::get).to_be_bytes().to_vec();
    let mut options = Vec::new();
    let mut set = |tag: u8, value: Option<Option<Vec<u8>>>| {
        options.extend(value.map(|value| match value {
            Some(value) => (tag, value),
            None => (tag | setting::NONE, Vec::new()),
        }));
    };
    set(setting::TRIES, tries.map(|tries| tries.map(number)));
    set(setting::BACKOFF, backoff.map(|backoff| backoff.map(encoded_backoff)));
    set(setting::GROUP_LIMIT, group_limit.map(|limit| limit.map(|limit| number(Some(limit)))));
    let numbers = |Rate { count, per, burst }| [count, per, burst].map(u32::to_be_bytes).concat();
    set(setting::RATE, rate.map(|rate| rate.map(numbers)));
    set(setting::PAUSE, pause.map(|pause| Some(pause.to_be_bytes().to_vec())));
    set(setting::SYNC, sync.map(|sync| sync.map(|sync| sync.millis().to_be_bytes().to_vec())));
    encode_options(&options, out);
}

/// The settings of a queue in a list, and what is behind them.
pub(super) fn decode_settings(bytes: &[u8]) -> Option<(QueueChange, &[u8])> {
    let mut fields = Fields::new(bytes);
    let change = fields.change().ok()?;
    Some((change, fields.rest()))
}

/// The settings of a queue, as a change that sets them: for the list of queues.
pub(super) fn encode_settings(terms: QueueTerms, rate: Option<Rate>, sync: Option<Policy>, out: &mut Vec<u8>) {
    let QueueTerms { tries, backoff, group_limit } = terms;
    let change = QueueChange {
        tries: tries.map(Some),
        backoff: backoff.map(Some),
        group_limit: group_limit.map(Some),
        rate: rate.map(Some),
        pause: None,
        sync: sync.map(Some),
    };
    encode_change(&change, out);
}
