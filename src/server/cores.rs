//! The number of workers, the core that each is pinned to, and that of the queue in front of them.

use super::{Error, WorkersConfig};
use crate::services::tables::serve::{FrontendKind, WorkerCores};
use crate::threads;

/// The cores that workers are pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The cores that this process may use, in turn.
    Auto,
    /// None: the system places the workers.
    Off,
    /// These cores, in turn.
    Cores(Vec<usize>),
}

/// The number of workers without `--workers`.
#[must_use]
pub fn workers_default() -> usize {
    default_for(threads::parallelism())
}

/// The queue's thread takes about one core when the workers are busy. The workers get the rest.
fn default_for(cores: usize) -> usize {
    cores.saturating_sub(1).max(1)
}

/// The core of each worker. 0 workers means [`workers_default`].
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

/// The cores of all workers.
pub(super) fn plan_all(config: &WorkersConfig, usable: &[usize]) -> Result<WorkerCores, Error> {
    let WorkersConfig { frontend, count, pin, resp } = config;
    let tables = plan(pin, *count, usable)?;
    Ok(match frontend {
        FrontendKind::Native => WorkerCores { queue: Vec::new(), native: tables },
        FrontendKind::Queue if resp.endpoints.is_empty() => WorkerCores { queue: tables, native: Vec::new() },
        FrontendKind::Queue => {
            let native = plan(pin, if resp.workers == 0 { *count } else { resp.workers }, usable)?;
            WorkerCores { queue: tables, native }
        }
    })
}

/// The core of the queue's thread. None: the system places it. On a host of two cores it has the core of a single
/// worker: there a batch finds its bytes in the cache, no thread of the other core has to be woken, and a third more
/// requests are answered (`perf/tables.md`).
pub(super) fn of_queue(workers: &[Option<usize>], usable: &[usize]) -> Option<usize> {
    match (workers, usable) {
        ([worker], [_, _]) => *worker,
        _ => None,
    }
}

/// The cores without a pinned worker, for a thread that would otherwise take turns with a worker. None of them may be
/// left.
pub(super) fn beside(workers: &[Option<usize>], usable: &[usize]) -> Vec<usize> {
    usable.iter().copied().filter(|core| !workers.contains(&Some(*core))).collect()
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
    fn what_workers_leave_is_beside_them() {
        assert_eq!(beside(&[Some(2), Some(0)], &[0, 1, 2, 5]), [1, 5]);
        assert_eq!(beside(&[None], &[0, 1]), [0, 1]);
        assert!(beside(&[Some(0), Some(1), Some(0)], &[0, 1]).is_empty());
    }

    #[test]
    fn on_two_cores_the_queue_has_the_core_of_a_single_worker() {
        assert_eq!(of_queue(&[Some(2)], &[0, 2]), Some(2));
        assert_eq!(of_queue(&[Some(0), Some(2)], &[0, 2]), None);
        assert_eq!(of_queue(&[Some(0)], &[0, 1, 2]), None);
        assert_eq!(of_queue(&[None], &[0, 1]), None);
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
        assert_eq!(default_for(16), 15);
    }
}
