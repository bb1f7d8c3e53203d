//! The part of STATS on durable tables and their log. This module counts nothing.

use super::metric::{counter, gauge, line};
use super::store_line::StoreLine;
use crate::tables::{EffectMetrics, LogStage};

line! {
    /// Durable tables.
    pub(crate) struct DurableLine {
        state: &'static str,
        has_failed: bool =
            gauge("spindle_durable_failed", "1 if the log of durable tables takes nothing more, else 0."),
        loaded_percent: u64,
        epochs: u64 = counter("spindle_durable_epochs", "Epochs of durable tables that have ended."),
        waits: u64 = counter("spindle_durable_waits", "How often a write to a durable table waited for the log."),
        pub(crate) store: StoreLine,
    }
}

impl DurableLine {
    /// `None`: there is no log.
    pub(super) fn of(metrics: &EffectMetrics) -> Option<Self> {
        let EffectMetrics { stage, loaded_percent, is_full, waits, epochs, log, .. } = *metrics;
        let state = match stage {
            LogStage::Off | LogStage::Wanted | LogStage::Unopened => return None,
            LogStage::Loading => "loading",
            LogStage::On if is_full => "full",
            LogStage::On => "open",
            LogStage::Failing | LogStage::Failed => "failed",
        };
        let has_failed = matches!(stage, LogStage::Failing | LogStage::Failed);
        Some(Self { state, has_failed, loaded_percent, epochs, waits, store: StoreLine::of(log) })
    }
}
