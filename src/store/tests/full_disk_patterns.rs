//! Patterns of states on a full device that had used up its reserve. Another program takes each byte that is given back.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::path::Path;
use std::sync::Arc;

use super::simulated_disk::SimulatedFolder;
use crate::store::*;

const SEGMENT_BYTES: u64 = 8 << 10;

fn key(number: u64) -> TaskKey {
    let mut key = [0; 12];
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

/// A device that is full, and the store on it.
struct FullDevice {
    folder: SimulatedFolder,
    store: Option<KeyedStore>,
    tasks: u64,
    chores: ChoreMode,
    /// The size of segments that its next start asks for.
    wanted: u64,
}

impl FullDevice {
    /// So many tasks with values of these bytes, added so many together.
    fn new(tasks: u64, together: u64, bytes: usize, chores: ChoreMode) -> Self {
        let folder = SimulatedFolder::new(11);
        folder.limit(1 << 30);
        let mut device = Self { folder, store: None, tasks: 0, chores, wanted: SEGMENT_BYTES };
        device.open();
        while device.tasks < tasks {
            device.add(together, bytes);
        }
        device.folder.fill(3 * SEGMENT_BYTES);
        while device.store().adds_room().is_ok_and(|room| room >= together * bytes as u64) {
            device.add(together, bytes);
        }
        device.squeeze();
        device
    }

    fn open(&mut self) {
        let folder: Arc<dyn Folder> = Arc::new(self.folder.clone());
        let config = LogConfig { kind: LogKind::States, segment_bytes: self.wanted, files: 100, max_disk: None };
        let options = OpenOptions { config, repair: false, copied: false, chores: self.chores };
        let opened = open(&folder, options).unwrap();
        self.store = Some(KeyedStore::of(opened, Path::new("/simulated"), false).unwrap());
    }

    fn store(&mut self) -> &mut KeyedStore {
        self.store.as_mut().unwrap()
    }

    /// Another program takes all that is free.
    fn squeeze(&self) {
        self.folder.limit(self.folder.bytes());
    }

    fn add(&mut self, count: u64, bytes: usize) {
        let mut batch = WriteBatch::new();
        for number in self.tasks..self.tasks + count {
            batch.put(Space::Tasks, &key(number), &[1; 40]);
            batch.put(Space::Values, &key(number), &vec![2; bytes]);
        }
        self.tasks += count;
        self.commit(batch);
        (0..50).for_each(|_| self.store().log.chores.work_off());
    }

    fn commit(&mut self, batch: WriteBatch) {
        let done = self.store().commit(batch, true);
        done.unwrap_or_else(|error| panic!("{error}: {:?}", self.store().metrics()));
    }

    fn states(&mut self, numbers: impl IntoIterator<Item = u64>) {
        let mut batch = WriteBatch::new();
        numbers.into_iter().for_each(|number| batch.put(Space::Tasks, &key(number % self.tasks), &[7; 56]));
        self.commit(batch);
        self.squeeze();
    }

    fn finish(&mut self, number: u64) {
        let mut batch = WriteBatch::new();
        batch.delete(Space::Tasks, &key(number));
        batch.delete(Space::Values, &key(number));
        self.commit(batch);
        self.squeeze();
    }

    fn restart(&mut self, is_power_failure: bool) {
        self.store = None;
        if is_power_failure {
            self.folder.power_failure();
        }
        self.squeeze();
        self.open();
        self.squeeze();
    }
}

/// Each start took a segment. The segments of the lives before had little in them, and were never given back.
#[test]
fn on_a_full_device_a_server_starts_any_number_of_times() {
    for between in [0, 1, 5] {
        for is_power_failure in [false, true] {
            let mut device = FullDevice::new(300, 10, 500, ChoreMode::Writer);
            for round in 0..60 {
                device.restart(is_power_failure);
                (0..between).for_each(|step| device.states([round * 5 + step]));
            }
        }
    }
}

/// A segment in which nothing counted any more was given back while new spares were on their way, and they found no
/// space.
#[test]
fn on_a_full_device_a_server_that_is_killed_before_its_spares_are_there_starts_again() {
    for seed in 0..3 {
        let mut device = FullDevice::new(300, 10, 500, ChoreMode::Queue);
        let mut rng = crate::seeded_rng::SeededRng(seed);
        let segments = |device: &FullDevice| {
            device.folder.list().unwrap().iter().filter(|name| name.ends_with(".log") || name.ends_with(".new")).count()
        };
        let before = segments(&device);
        for round in 0..60 {
            device.restart(rng.one_in(3));
            for _ in 0..rng.below(100) {
                device.store().log.chores.work_off();
                device.squeeze();
            }
            if rng.one_in(10) {
                device.states([round]);
            }
        }
        assert!(segments(&device) + 1 >= before, "{before}, then {}", segments(&device));
    }
}

/// Links kept the segments that were to be cleaned, and so did a copy that took long.
#[test]
fn on_a_full_device_a_backup_keeps_no_segment_that_the_log_needs() {
    let (mut written, mut gave_way) = (0, 0);
    for pace in [0, 2, 60] {
        let mut device = FullDevice::new(300, 10, 500, ChoreMode::Writer);
        let mut step = 0;
        let mut churn = |device: &mut FullDevice, count| {
            (0..count).for_each(|_| {
                step += 1;
                device.states([step * 7]);
            });
        };
        for target in [device.folder.beside(3), SimulatedFolder::new(5)] {
            churn(&mut device, 800);
            let backup = device.store().log.backup().unwrap();
            let to: Arc<dyn Folder> = Arc::new(target);
            let done = backup.copy_to(&to, &mut || {
                churn(&mut device, pace);
                BackupTurn::Continue
            });
            drop(backup);
            match done {
                Ok(report) => {
                    assert_eq!((report.linked, check(&to).unwrap().damages), (0, vec![]));
                    written += 1;
                }
                Err(Error::BackupGaveWay { .. }) => gave_way += 1,
                Err(error) => assert!(matches!(error, Error::Full(_)), "{error}"),
            }
        }
        churn(&mut device, 800);
        device.restart(true);
    }
    assert!(written > 0 && gave_way > 0, "{written} written, {gave_way} gave way");
}

/// Spares of another size were given back, and others took their space.
#[test]
fn on_a_full_device_segments_keep_their_size() {
    let mut device = FullDevice::new(300, 10, 500, ChoreMode::Writer);
    for wanted in [SEGMENT_BYTES / 2, 2 * SEGMENT_BYTES, 100 * SEGMENT_BYTES] {
        device.wanted = wanted;
        for _ in 0..3 {
            device.restart(true);
            assert_eq!(device.store().log.config.segment_bytes, SEGMENT_BYTES);
            (0..200).for_each(|step| device.states([step * 7]));
        }
    }
    device.store = None;
    device.folder.limit(u64::MAX);
    device.open();
    assert_eq!(device.store().log.config.segment_bytes, 100 * SEGMENT_BYTES, "there is room");
}

/// Every other segment is of tasks that nobody touches, so there are more gaps between segments than a head names.
#[test]
fn on_a_full_device_cold_states_between_hot_ones_become_adjacent() {
    let mut device = FullDevice::new(2_500, 50, 0, ChoreMode::Writer);
    for cold in (100..2_500).step_by(75) {
        device.states(cold..cold + 75);
        (0..4).for_each(|_| device.states(0..70));
    }
    assert!(device.store().log.heads.gaps.len() > 5, "{:?}", device.store().log.heads.gaps);
}

/// A batch that needs the next segment carried no copies, and one that is larger than a segment found no room.
#[test]
fn on_a_full_device_batches_may_be_larger_than_half_a_segment_or_than_one() {
    for count in [45, 60, 85, 120, 400] {
        let mut device = FullDevice::new(1_000, 50, 0, ChoreMode::Writer);
        (0..100).for_each(|step| device.states(step * count..(step + 1) * count));
        device.restart(true);
        assert_eq!(device.store().metrics().space.set_aside, 0);
    }
}

/// What a file without all of its blocks gives back others take.
#[test]
fn on_a_full_device_large_values_are_not_copied_for_others() {
    for (together, bytes) in [(2, 6_000), (3, 3_500), (4, 5_000), (2, 2_500), (2, 3_900)] {
        let mut device = FullDevice::new(60, together, bytes, ChoreMode::Writer);
        for number in (0..device.tasks).filter(|number| number % together != 0) {
            device.finish(number);
            (0..3).for_each(|step| device.states([(number + step * 7) / together * together]));
        }
        (0..300).for_each(|step| device.states([step * together]));
        device.restart(false);
    }
}

/// The work beside the writer is late, and holds no segment meanwhile.
#[test]
fn on_a_full_device_work_that_is_late_holds_no_segment() {
    for seed in 0..4 {
        let mut device = FullDevice::new(400, 10, 300, ChoreMode::Queue);
        let mut rng = crate::seeded_rng::SeededRng(seed);
        for _ in 0..1_000 {
            device.states([rng.below(400)]);
            if rng.one_in(5) {
                device.store().log.chores.work_off();
                device.squeeze();
            }
        }
    }
}

/// Values that leave a quarter of each segment empty were copied from one segment to the next for ever.
#[test]
fn on_a_full_device_an_idle_log_comes_to_rest() {
    for bytes in [1_900, 2_400, 3_000, 5_000] {
        let mut device = FullDevice::new(100, 1, bytes, ChoreMode::Writer);
        for step in 0..300 {
            device.states([step * 7]);
            if step % 50 == 49 {
                let rounds = (0..500).take_while(|_| device.store().work_idle().unwrap() == IdleWork::More).count();
                assert!(rounds < 500, "{bytes}: {:?}", device.store().metrics());
            }
        }
    }
}

/// A folder of many names needs a block for a new one now and then, which is not there: that ended the log.
#[test]
fn on_a_full_device_a_name_that_needs_a_block_is_paid_for_by_a_summary() {
    let mut device = FullDevice::new(300, 10, 500, ChoreMode::Writer);
    let before = device.folder.bytes_of(".sum");
    for round in 0..10 {
        device.folder.need_blocks(1);
        (0..40).for_each(|step| device.states([round * 40 + step]));
        device.restart(false);
    }
    assert!(device.folder.bytes_of(".sum") < before);
}
