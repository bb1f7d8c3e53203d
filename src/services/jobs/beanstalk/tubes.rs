//! The tubes that connections refer to: what they use and watch, and what is counted of each.
//!
//! ```text
//! use, watch ─► TubeUse ─► counted in its tube ─► dropped: the last one takes the tube out
//! ```
//! A tube that is used and has no job exists here alone. One with jobs is a queue, and is here only while somebody
//! refers to it.
//!
//! This module knows no queues.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Tubes whose queues stay in memory without a job while somebody refers to them. Those of further ones begin to count
/// anew with their next job.
const KEPT_MAX: usize = 1 << 16;

/// How a connection refers to a tube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TubeRole {
    Used,
    Watched,
    Waited,
    /// The server itself: the tube is always there.
    Kept,
}

/// What is counted of a tube while somebody refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TubeFigures {
    pub(super) used: u64,
    pub(super) watched: u64,
    pub(super) waited: u64,
    pub(super) kept: u64,
}

/// The pauses of a tube, as commands have asked for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TubePauses {
    /// The commands.
    pub(super) count: u64,
    /// Of the last one.
    pub(super) seconds: u32,
}

impl TubeFigures {
    fn count(&mut self, role: TubeRole) -> &mut u64 {
        match role {
            TubeRole::Used => &mut self.used,
            TubeRole::Watched => &mut self.watched,
            TubeRole::Waited => &mut self.waited,
            TubeRole::Kept => &mut self.kept,
        }
    }
}

/// A tube that somebody refers to.
#[derive(Default)]
struct ReferredTube {
    figures: TubeFigures,
    /// Whether its queue was reported.
    is_reported: bool,
}

/// The tubes that are referred to. Clones are the same.
#[derive(Clone)]
pub(super) struct Tubes {
    all: Rc<RefCell<HashMap<Rc<[u8]>, ReferredTube>>>,
    pauses: Rc<RefCell<HashMap<Box<[u8]>, TubePauses>>>,
    on_change: Rc<OnChange>,
}

/// Called when somebody refers to a tube, or nobody any more.
type OnChange = dyn Fn(&[u8], bool);

impl Tubes {
    /// No tubes yet. `on_change` is called when the first one refers to a tube, and when the last one does no more. Beyond
    /// [`KEPT_MAX`] tubes it is called for neither.
    pub(super) fn new(on_change: impl Fn(&[u8], bool) + 'static) -> Self {
        Self { all: Rc::default(), pauses: Rc::default(), on_change: Rc::new(on_change) }
    }

    /// Refers to a tube, until the result is dropped.
    pub(super) fn refer(&self, name: &[u8], role: TubeRole) -> TubeUse {
        let mut all = self.all.borrow_mut();
        let is_reported = all.len() < KEPT_MAX;
        if is_reported && !all.contains_key(name) {
            (self.on_change)(name, true);
        }
        let name: Rc<[u8]> = all.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Rc::clone(name));
        let tube = all.entry(Rc::clone(&name)).or_insert_with(|| ReferredTube { is_reported, ..Default::default() });
        *tube.figures.count(role) += 1;
        TubeUse { tubes: self.clone(), name, role }
    }

    /// What is counted of a tube. `None`: nobody refers to it.
    pub(super) fn figures(&self, name: &[u8]) -> Option<TubeFigures> {
        self.all.borrow().get(name).map(|tube| tube.figures)
    }

    /// The pauses of a tube.
    pub(super) fn pauses(&self, name: &[u8]) -> TubePauses {
        self.pauses.borrow().get(name).copied().unwrap_or_default()
    }

    /// A tube has been paused for so many seconds.
    pub(super) fn note_pause(&self, name: &[u8], seconds: u32) {
        let mut pauses = self.pauses.borrow_mut();
        if pauses.len() >= KEPT_MAX && !pauses.contains_key(name) {
            // Any of them: most are gone.
            let one = pauses.keys().next().cloned();
            one.and_then(|one| pauses.remove(&one));
        }
        let of_tube = pauses.entry(name.into()).or_default();
        *of_tube = TubePauses { count: of_tube.count + 1, seconds };
    }

    /// There is no such tube.
    pub(super) fn forget_pauses(&self, name: &[u8]) {
        self.pauses.borrow_mut().remove(name);
    }
}

/// A connection refers to a tube.
pub(super) struct TubeUse {
    tubes: Tubes,
    name: Rc<[u8]>,
    role: TubeRole,
}

impl TubeUse {
    pub(super) fn name(&self) -> &Rc<[u8]> {
        &self.name
    }
}

impl Drop for TubeUse {
    fn drop(&mut self) {
        let mut all = self.tubes.all.borrow_mut();
        let Some(tube) = all.get_mut(&self.name) else { return };
        *tube.figures.count(self.role) -= 1;
        if tube.figures == TubeFigures::default() {
            let is_reported = tube.is_reported;
            all.remove(&self.name);
            if is_reported {
                (self.tubes.on_change)(&self.name, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tube_is_there_as_long_as_somebody_refers_to_it() {
        let changes = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&changes);
        let tubes = Tubes::new(move |name, is_there| noted.borrow_mut().push((name.to_vec(), is_there)));
        let used = tubes.refer(b"mail", TubeRole::Used);
        let watched = tubes.refer(b"mail", TubeRole::Watched);
        assert_eq!(tubes.figures(b"mail"), Some(TubeFigures { used: 1, watched: 1, ..TubeFigures::default() }));
        drop(used);
        assert_eq!(tubes.figures(b"mail"), Some(TubeFigures { watched: 1, ..TubeFigures::default() }));
        drop(watched);
        assert!(tubes.figures(b"mail").is_none() && tubes.all.borrow().is_empty());
        assert_eq!(*changes.borrow(), [(b"mail".to_vec(), true), (b"mail".to_vec(), false)]);
    }

    /// Many connections that ended reported each tube that was never kept.
    #[test]
    fn the_end_of_a_tube_is_reported_only_if_its_beginning_was() {
        let changes = Rc::new(RefCell::new([0, 0]));
        let noted = Rc::clone(&changes);
        let tubes = Tubes::new(move |_, is_there| {
            let [ended, begun] = &mut *noted.borrow_mut();
            *(if is_there { begun } else { ended }) += 1;
        });
        let uses: Vec<_> =
            (0..KEPT_MAX + 10).map(|number| tubes.refer(number.to_string().as_bytes(), TubeRole::Watched)).collect();
        drop(uses);
        assert_eq!(*changes.borrow(), [KEPT_MAX, KEPT_MAX]);
        assert!(tubes.all.borrow().is_empty());
    }
}
