//! One line for each round.

use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// The heading of the lines.
pub(super) const HEAD: &str = "
| attack                                        |      sent |  asked | wrong | longest gap | peak MiB | the end                 |                 seed |
|-----------------------------------------------|----------:|-------:|------:|------------:|---------:|-------------------------|---------------------:|";

/// The most MiB that a server under attack may keep resident: the bytes that its clients may have outstanding, and room
/// for notifications, twice.
const RESIDENT_MIB_MAX: u64 = 1_024;

/// The result of a round.
pub(super) struct Outcome {
    pub(super) attack: String,
    /// Messages or connections of the attackers.
    pub(super) sent: u64,
    /// Requests of the control clients.
    pub(super) asked: u64,
    pub(super) wrong: u64,
    pub(super) longest_gap: Duration,
    pub(super) peak_mib: u64,
    /// `None`: it did not end after the signal, and was killed.
    pub(super) status: Option<ExitStatus>,
    pub(super) ending: Duration,
    pub(super) seed: u64,
    /// The first wrong answers, in words.
    pub(super) reported: Vec<String>,
}

impl Outcome {
    /// The faults of the round.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = self.reported.clone();
        if self.sent == 0 || self.asked == 0 {
            faults.push("there was no attack, or no control".to_owned());
        }
        match self.status {
            None => faults.push("the server did not end after the signal".to_owned()),
            Some(status) if !status.success() => faults.push(format!("the server ended with {status}")),
            Some(_) => {}
        }
        if self.peak_mib > RESIDENT_MIB_MAX {
            faults.push(format!("the server took {} MiB", self.peak_mib));
        }
        faults.into_iter().map(|fault| format!("{}, seed {}: {fault}", self.attack, self.seed)).collect()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.map_or("killed".to_owned(), |status| status.to_string());
        let end = format!("{status} in {:.1} s", self.ending.as_secs_f64());
        let gap = format!("{:.0} ms", self.longest_gap.as_secs_f64() * 1e3);
        let Self { attack, sent, asked, wrong, peak_mib, seed, .. } = self;
        write!(
            f,
            "| {attack:45} | {sent:9} | {asked:6} | {wrong:5} | {gap:>11} | {peak_mib:8} | {end:23} | {seed:20} |"
        )
    }
}
