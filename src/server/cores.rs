//! How many workers there are, and which core each is tied to.

use super::Error;
use crate::threads;

/// Which cores workers are tied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// To those that this process may use, in turn.
    Auto,
    /// To none: the system places them.
    Off,
    /// To these, in turn.
    Cores(Vec<usize>),
}

/// Workers unless `--workers` says otherwise.
#[must_use]
pub fn workers_default() -> usize {
    default_for(threads::parallelism())
}

/// The queue and libzmq's I/O thread each take about a core when the workers are busy: what is left is theirs.
fn default_for(cores: usize) -> usize {
    cores.saturating_sub(2).max(1)
}

/// For each worker the core that it is tied to. 0 workers are [`workers_default`].
pub(super) fn plan(pin: &Pin, workers: usize, usable: &[usize]) -> Result<Vec<Option<usize>>, Error> {
    let workers = if workers == 0 { workers_default() } else { workers };
    let in_turn = |cores: &[usize]| cores.iter().copied().cycle().map(Some).take(workers).collect();
    match pin {
        Pin::Auto if usable.len() > 1 => Ok(in_turn(usable)),
        Pin::Auto | Pin::Off => Ok(vec![None; workers]),
        Pin::Cores(cores) => match cores.iter().find(|core| !usable.contains(core)) {
            Some(core) => Err(Error::NoSuchCore { core: *core, usable: usable.to_vec() }),
            None if cores.is_empty() => Ok(vec![None; workers]),
            None => Ok(in_turn(cores)),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

    use super::*;

    #[test]
    fn workers_go_to_cores_in_turn() {
        let plan = |pin: Pin, workers| plan(&pin, workers, &[0, 2]).unwrap();
        assert_eq!(plan(Pin::Auto, 3), [Some(0), Some(2), Some(0)]);
        assert_eq!(plan(Pin::Off, 2), [None, None]);
        assert_eq!(plan(Pin::Cores(vec![2]), 2), [Some(2), Some(2)]);
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let error = plan(&Pin::Cores(vec![0, 7]), 1, &[0, 1]).unwrap_err();
        assert!(error.to_string().contains("core 7"), "{error}");
    }

    #[test]
    fn there_is_always_a_worker() {
        assert_eq!(default_for(1), 1);
        assert_eq!(default_for(2), 1);
        assert_eq!(default_for(16), 14);
    }
}
