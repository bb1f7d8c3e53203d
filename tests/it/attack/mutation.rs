//! Bytes that are nearly right.

use crate::seeded_rng::SeededRng;

/// Bytes with a special meaning to parsers.
const EDGES: &[u8] = &[0, 1, 2, 4, 0x1f, b' ', b'\n', b'\r', b':', b'0', b'9', 0x7f, 0x80, 0xfe, 0xff];
/// Numbers at the edges of lengths.
const LENGTHS: &[u64] =
    &[0, 1, 0xff, 0x100, 0xffff, (16 << 20) + 1, 0x7fff_ffff, 0xffff_ffff, 1 << 32, u64::MAX >> 1, u64::MAX];
/// The most bytes that a mutation adds at once.
const ADDED_MAX: usize = 300;

/// Changes the bytes in one to four places. `other` may be spliced in.
pub(crate) fn mutate(rng: &mut SeededRng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.index(4) {
        mutate_once(rng, bytes, other);
    }
}

fn mutate_once(rng: &mut SeededRng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.index(bytes.len() + 1);
    let some = (1 + rng.index(16)).min(bytes.len() - at);
    match rng.index(9) {
        0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.index(8)),
        1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = rng.pick(EDGES)),
        2 => drop(bytes.drain(at..at + some)),
        3 => {
            let copy = bytes[at..at + some].repeat(1 + rng.index(4));
            bytes.splice(at..at, copy);
        }
        4 => {
            let added = vec![rng.pick(EDGES); rng.index(ADDED_MAX)];
            bytes.splice(at..at, added);
        }
        5 => bytes.truncate(at),
        6 => {
            let number = rng.pick(LENGTHS).to_be_bytes();
            let width = rng.pick(&[1, 2, 4, 8]).min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[8 - width..]);
        }
        7 if !other.is_empty() => {
            let from = rng.index(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let random: Vec<u8> = (0..rng.index(32)).map(|_| rng.next().to_le_bytes()[0]).collect();
            bytes.splice(at..at, random);
        }
    }
}

#[test]
fn a_seed_gives_the_same_mutations_again_and_few_that_change_nothing() {
    let sample = b"ADD queue 5 hello";
    let mutants = |seed| -> Vec<Vec<u8>> {
        let mut rng = SeededRng(seed);
        (0..1_000)
            .map(|_| {
                let mut bytes = sample.to_vec();
                mutate(&mut rng, &mut bytes, b"GET queue\n");
                bytes
            })
            .collect()
    };
    assert_eq!(mutants(1), mutants(1));
    let changed = mutants(1).iter().filter(|bytes| *bytes != sample).count();
    assert!(changed > 800, "{changed}");
}
