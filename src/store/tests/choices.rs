//! A source of chance that a seed decides.

/// A source of chance: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(in crate::store) struct Chance(pub(in crate::store) u64);

impl Chance {
    pub(in crate::store) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`.
    pub(in crate::store) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `n` times.
    pub(in crate::store) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
