//! The settings in the record of a queue.
//!
//! This module knows no other field of the record.

use std::num::NonZeroU32;

use crate::byte_reader::ByteReader;
use crate::tasks::Policy;
use crate::tasks::settings::QueueSettings;
use crate::tasks::terms::{Backoff, QueueTerms, Rate};

/// The bits of the settings that follow in the record of a queue.
mod setting {
    pub(super) const TRIES: u8 = 1;
    pub(super) const BACKOFF: u8 = 1 << 1;
    pub(super) const RATE: u8 = 1 << 2;
    pub(super) const PAUSE: u8 = 1 << 3;
    pub(super) const SYNC: u8 = 1 << 4;
    pub(super) const GROUP_LIMIT: u8 = 1 << 5;
    pub(super) const ALL: u8 = (1 << 6) - 1;
}

/// Appends the settings that are not as usual, and returns their bits.
pub(super) fn encode_settings(settings: &QueueSettings, bytes: &mut Vec<u8>) -> u8 {
    let QueueSettings { terms: QueueTerms { tries, backoff, group_limit }, gate, sync } = *settings;
    let mut parts = 0;
    if let Some(tries) = tries {
        parts |= setting::TRIES;
        bytes.extend(tries.map_or(0, NonZeroU32::get).to_be_bytes());
    }
    if let Some(Backoff { first, most }) = backoff {
        parts |= setting::BACKOFF;
        bytes.extend([first, most].map(u32::to_be_bytes).concat());
    }
    if let Some(Rate { count, per, burst }) = gate.rate {
        parts |= setting::RATE;
        bytes.extend([count, per, burst].map(u32::to_be_bytes).concat());
        bytes.extend(gate.full_at.to_be_bytes());
    }
    if gate.paused_until > 0 {
        parts |= setting::PAUSE;
        bytes.extend(gate.paused_until.to_be_bytes());
    }
    if let Some(sync) = sync {
        parts |= setting::SYNC;
        bytes.extend(sync.millis().to_be_bytes());
    }
    if let Some(limit) = group_limit {
        parts |= setting::GROUP_LIMIT;
        bytes.extend(limit.get().to_be_bytes());
    }
    parts
}

pub(super) fn decode_settings(fields: &mut ByteReader<'_>) -> Option<QueueSettings> {
    let mut settings = QueueSettings::default();
    let [parts] = fields.array()?;
    if parts == 0 || parts & !setting::ALL != 0 {
        return None;
    }
    if parts & setting::TRIES != 0 {
        settings.terms.tries = Some(NonZeroU32::new(fields.u32_be()?));
    }
    if parts & setting::BACKOFF != 0 {
        settings.terms.backoff = Some(Backoff { first: fields.u32_be()?, most: fields.u32_be()? });
    }
    if parts & setting::RATE != 0 {
        settings.gate.rate = Some(Rate::of(fields.u32_be()?, fields.u32_be()?, fields.u32_be()?)?);
        settings.gate.full_at = u128::from_be_bytes(fields.array()?);
    }
    if parts & setting::PAUSE != 0 {
        settings.gate.paused_until = fields.u64_be()?;
    }
    if parts & setting::SYNC != 0 {
        settings.sync = Some(Policy::of_millis(fields.u64_be()?));
    }
    if parts & setting::GROUP_LIMIT != 0 {
        settings.terms.group_limit = Some(NonZeroU32::new(fields.u32_be()?)?);
    }
    Some(settings)
}
