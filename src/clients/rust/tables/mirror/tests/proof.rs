//! The proof of the algorithm: histories of failures. Every seed is another one.
//!
//! `SPINDLE_HISTORIES` and `SPINDLE_SEED` say how many histories, and which is the first.

use super::history::{History, Met};
use super::planted::Planted;

fn number_of_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs histories, and adds up what they have met.
fn histories(count: u64, planted: Option<Planted>, is_strict: bool) -> Met {
    let count = number_of_env("SPINDLE_HISTORIES").unwrap_or(count);
    let first = number_of_env("SPINDLE_SEED").unwrap_or(0);
    let mut all = Met { histories: count, ..Met::default() };
    for seed in first..first + count {
        let met = History::new(seed, planted, is_strict).run();
        let sums = [
            (&mut all.exact, met.exact),
            (&mut all.checked, met.checked),
            (&mut all.gaps, met.gaps),
            (&mut all.compacted, met.compacted),
            (&mut all.scans, met.scans),
            (&mut all.verified, met.verified),
            (&mut all.differences, met.differences),
            (&mut all.replaced, met.replaced),
            (&mut all.no_table, met.no_table),
            (&mut all.bookmark_mid_scan, met.bookmark_mid_scan),
            (&mut all.acted, met.acted),
            (&mut all.wrong, met.wrong),
        ];
        sums.into_iter().for_each(|(sum, met)| *sum += met);
    }
    println!("{count} histories, planted {planted:?}: {all:?}");
    all
}

#[test]
fn whatever_is_lost_doubled_or_delayed_an_exact_mirror_has_the_truth_and_it_becomes_exact() {
    let met = histories(2_000, None, true);
    assert_eq!((met.wrong, met.differences), (0, 0));
    if met.histories < 500 {
        return;
    }
    for (name, times) in [
        ("exact", met.exact),
        ("gaps", met.gaps),
        ("compacted", met.compacted),
        ("scans", met.scans),
        ("verified", met.verified),
        ("replaced", met.replaced),
        ("no table", met.no_table),
        ("exact by a bookmark", met.bookmark_mid_scan),
    ] {
        assert!(times > met.histories / 4, "the histories do not meet {name}: {met:?}");
    }
}

#[test]
fn the_next_bookmark_or_sequence_shows_a_fault_of_the_server() {
    for planted in [
        Planted::ChangeLost,
        Planted::ChangeUnnumbered,
        Planted::ChangeDoubled,
        Planted::ChangesSwapped,
        Planted::ExpiryNotInDigest,
        Planted::MarkOfAnother,
    ] {
        let met = histories(500, Some(planted), false);
        assert!(met.acted > 100, "{planted:?} has not acted");
        // A lost change leaves a gap in the sequences. All others make the digests differ.
        let found = if planted == Planted::ChangeLost { met.gaps } else { met.differences };
        assert!(found > 0, "{planted:?} is not found: {met:?}");
    }
}

#[test]
fn faults_that_the_highest_version_makes_harmless_change_nothing() {
    for planted in [Planted::ChangeRepeated, Planted::AnnouncedForgotten, Planted::MarkedAfter] {
        let met = histories(500, Some(planted), true);
        assert!(met.acted > 100, "{planted:?} has not acted");
        assert_eq!((met.wrong, met.differences), (0, 0), "{planted:?}");
    }
}
