//! Matches keys and channels with the patterns of `KEYS`, `SCAN … MATCH` and `PSUBSCRIBE`, as Redis does.
//!
//! ```text
//! *        any bytes, none included        [abc]    a byte of a class        \x   the byte x
//! ?        any byte                        [a-z]    a byte of a range
//! x        the byte x                      [^abc]   a byte outside a class
//! ```
//! Redis has quirks, and this module has them too:
//! - An empty text matches no pattern but the empty pattern. `KEYS *` and `SCAN … MATCH *` do not ask the matcher, so
//!   [`is_every_key`] is theirs alone: `PSUBSCRIBE *` does not match the channel without a name.
//! - A class ends with the first `]`, even directly behind `[` or `[^`. `[]` matches no byte, `[^]` matches each byte.
//! - A class without `]` ends with the pattern. `[` matches no byte, `[^` matches each byte.
//! - A range may be reversed, and its last byte may be `]` or `\`: `[a-]` is the range from `]` to `a`, without an end.
//! - In a range, bytes are signed, as Redis has them on x86: 0x80 to 0xff come before 0x00.
//! - Only `^` negates a class. `!` is a byte.
//! - In a class, too, `\` escapes the next byte. As the last byte of a pattern, `\` is a byte.
//! - A pattern with more than [`STARS_MAX`] stars before its last byte matches nothing: Redis recurses no deeper since
//!   CVE-2024-31228.
//!
//! There is no recursion. Of all stars only the last is remembered, because an earlier star cannot match better: so a
//! match takes pattern × text steps at most. This module folds no case and knows no UTF-8.

/// Stars with something behind them that a pattern may have, as in Redis. Neighbours count as one star.
const STARS_MAX: usize = 1_000;

/// Whether the pattern matches the whole text.
pub(super) fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let result = GlobProgress::default().advance(pattern, text, &mut { usize::MAX });
    result.unwrap_or_else(|| unreachable!("there are steps for any two texts in memory"))
}

/// How far the match of a pattern and a text has come, if it is done in portions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GlobProgress {
    /// Bytes of the pattern and of the text that are matched.
    matched: [usize; 2],
    /// The same, for when the match begins again after a mismatch.
    retry: Option<[usize; 2]>,
    stars: usize,
}

impl GlobProgress {
    /// Continues with the match of these two, while there are steps, and counts these down: one for each byte that is
    /// looked at. Returns whether the pattern matches the whole text. `None`: there are no steps left.
    pub(super) fn advance(&mut self, pattern: &[u8], text: &[u8], steps: &mut usize) -> Option<bool> {
        if text.is_empty() {
            return Some(pattern.is_empty());
        }
        let behind = |[in_pattern, in_text]: [usize; 2]| {
            (pattern.get(in_pattern..).unwrap_or_default(), text.get(in_text..).unwrap_or_default())
        };
        let place = |left: &[u8], rest: &[u8]| [pattern.len() - left.len(), text.len() - rest.len()];
        let (mut left, mut rest) = behind(self.matched);
        let mut retry = self.retry.map(|retry| {
            let (pattern, text) = behind(retry);
            Retry { pattern, text }
        });
        while let Some((&byte, behind_byte)) = rest.split_first() {
            if *steps == 0 {
                self.matched = place(left, rest);
                self.retry = retry.map(|Retry { pattern, text }| place(pattern, text));
                return None;
            }
            let mut seen = 1;
            if left.starts_with(b"*") {
                let behind_stars = without_stars(left);
                seen = left.len() - behind_stars.len();
                left = behind_stars;
                if left.is_empty() {
                    return Some(true);
                }
                self.stars += 1;
                if self.stars > STARS_MAX {
                    return Some(false);
                }
                retry = Some(Retry { pattern: left, text: behind_byte });
            } else {
                let (is_match, behind_unit) = match_unit(left, byte).unwrap_or((false, left));
                seen = seen.max(left.len() - behind_unit.len());
                if is_match {
                    (left, rest) = (behind_unit, behind_byte);
                } else {
                    let Some(retry) = &mut retry else { return Some(false) };
                    (left, rest) = (retry.pattern, retry.text);
                    retry.text = retry.text.get(1..).unwrap_or_default();
                }
            }
            *steps = steps.saturating_sub(seen);
        }
        Some(without_stars(left).is_empty())
    }
}

/// Whether `KEYS` and `SCAN` select each key with this pattern, the key of no bytes included.
pub(super) fn is_every_key(pattern: &[u8]) -> bool {
    pattern == b"*"
}

/// The bytes with which each text begins that the pattern matches: those before its first `*`, `?`, `[` or `\`.
pub(super) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let special = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    pattern.get(..special.unwrap_or(pattern.len())).unwrap_or_default()
}

/// Whether the pattern may match a text that begins so and goes on: as far as its units before the first star say.
pub(super) fn may_begin(mut pattern: &[u8], beginning: &[u8]) -> bool {
    for byte in beginning {
        if pattern.starts_with(b"*") {
            return true;
        }
        let Some((true, behind)) = match_unit(pattern, *byte) else { return false };
        pattern = behind;
    }
    !pattern.is_empty()
}

/// Where a match begins again after a mismatch: the last star takes one more byte.
struct Retry<'m> {
    /// What stands behind the star.
    pattern: &'m [u8],
    /// The text for the next attempt.
    text: &'m [u8],
}

/// The pattern behind the stars with which it begins.
fn without_stars(pattern: &[u8]) -> &[u8] {
    let stars = pattern.iter().take_while(|&&byte| byte == b'*').count();
    pattern.get(stars..).unwrap_or_default()
}

/// Whether the first unit of the pattern matches the byte, and the pattern behind it. `None`: the pattern is empty. A star is
/// not a unit.
fn match_unit(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    Some(match pattern {
        [b'?', behind @ ..] => (true, behind),
        [b'[', b'^', class @ ..] => {
            let (has, behind) = match_class(class, byte);
            (!has, behind)
        }
        [b'[', class @ ..] => match_class(class, byte),
        [b'\\', literal, behind @ ..] | [literal, behind @ ..] => (*literal == byte, behind),
        [] => return None,
    })
}

/// Whether the class has the byte, and the pattern behind the class.
fn match_class(mut class: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut has = false;
    loop {
        let (is_member, behind) = match class {
            [] => return (has, class),
            [b'\\', literal, behind @ ..] => (*literal == byte, behind),
            [b']', behind @ ..] => return (has, behind),
            [first, b'-', last, behind @ ..] => (is_between(byte, *first, *last), behind),
            [literal, behind @ ..] => (*literal == byte, behind),
        };
        has |= is_member;
        class = behind;
    }
}

/// Whether the byte is in a range, all three taken as signed bytes.
fn is_between(byte: u8, first: u8, last: u8) -> bool {
    let [byte, first, last] = [byte, first, last].map(u8::cast_signed);
    (first.min(last)..=first.max(last)).contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded_rng::SeededRng;

    fn assert_matches(pattern: &str, texts: &[&str], others: &[&str]) {
        for text in texts {
            assert!(is_match(pattern.as_bytes(), text.as_bytes()), "{pattern} matches {text:?}");
        }
        for text in others {
            assert!(!is_match(pattern.as_bytes(), text.as_bytes()), "{pattern} does not match {text:?}");
        }
    }

    #[test]
    fn the_units_of_the_manual_match() {
        assert_matches("h?llo", &["hello", "hallo", "hxllo"], &["hllo", "heello", ""]);
        assert_matches("h*llo", &["hllo", "heeeello"], &["hell", "hllox"]);
        assert_matches("h[ae]llo", &["hello", "hallo"], &["hillo"]);
        assert_matches("h[^e]llo", &["hallo", "hbllo"], &["hello"]);
        assert_matches("h[a-b]llo", &["hallo", "hbllo"], &["hello"]);
        assert_matches("h\\?llo", &["h?llo"], &["hello", "h\\?llo"]);
        assert_matches("a*b*c", &["abc", "aXbbXcc", "abcbc"], &["acb", "abcb"]);
        assert_matches("a**", &["a", "ab"], &["b", ""]);
    }

    #[test]
    fn an_empty_text_matches_the_empty_pattern_alone() {
        assert_matches("", &[""], &["a"]);
        for pattern in ["*", "**", "?", "[^", "\\"] {
            assert_matches(pattern, &[], &[""]);
        }
        assert!(is_every_key(b"*") && !is_every_key(b"**"));
    }

    #[test]
    fn a_class_ends_with_its_first_bracket_or_with_the_pattern() {
        assert_matches("[]", &[], &["]", "[", "a"]);
        assert_matches("[^]", &["]", "[", "a"], &["aa"]);
        assert_matches("[^]a", &["aa", "]a"], &["a"]);
        assert_matches("[", &[], &["[", "a"]);
        assert_matches("[^", &["[", "a"], &["aa"]);
        assert_matches("[ab", &["a", "b"], &["[", "ab"]);
        assert_matches("[!a]", &["!", "a"], &["b"]);
        assert_matches("*[^", &["a", "abc"], &[""]);
    }

    #[test]
    fn a_range_may_be_reversed_and_may_end_with_a_bracket() {
        assert_matches("[c-a]", &["a", "b", "c"], &["d"]);
        assert_matches("[a-]", &["a", "]", "^"], &["-", "b"]);
        assert_matches("[a-", &["a", "-"], &["b"]);
        assert_matches("[-a]", &["a", "-"], &["b"]);
        assert_matches("[Z-\\", &["Z", "[", "\\"], &["]"]);
    }

    #[test]
    fn a_range_takes_bytes_as_signed() {
        let has = |byte: u8| is_match(b"[\x80-\x10]", &[byte]);
        let members: Vec<u8> = (0..=u8::MAX).filter(|&byte| has(byte)).collect();
        assert_eq!(members, (0..=0x10).chain(0x80..=0xff).collect::<Vec<u8>>());
    }

    #[test]
    fn a_backslash_escapes_and_is_a_byte_at_the_end() {
        assert_matches("\\", &["\\"], &["a"]);
        assert_matches("a\\", &["a\\"], &["a"]);
        assert_matches("[\\]]", &["]"], &["\\", "\\]"]);
        assert_matches("[\\", &["\\"], &["["]);
        assert_matches("[\\-a]", &["-", "a"], &["\\", "b"]);
        assert_matches("\\*", &["*"], &["a"]);
    }

    #[test]
    fn a_pattern_with_too_many_stars_matches_nothing() {
        let text = "a".repeat(STARS_MAX + 1);
        assert_matches(&"*a".repeat(STARS_MAX), &[&text], &[]);
        assert_matches(&("*a".repeat(STARS_MAX) + "**"), &[&text], &[]);
        assert_matches(&"*a".repeat(STARS_MAX + 1), &[], &[&text]);
    }

    #[test]
    fn a_pattern_that_backtracks_much_is_still_quick() {
        let text = "a".repeat(4_000);
        assert_matches(&("*a".repeat(900) + "b"), &[], &[&text]);
        assert_matches(&("*".to_owned() + &"a".repeat(2_000) + "b"), &[], &[&text]);
    }

    /// One pattern could keep a thread busy for as long as its match took.
    #[test]
    fn a_match_in_portions_has_the_same_result_and_no_portion_is_long() {
        let mut rng = SeededRng(9);
        let mut unfinished = 0;
        for _ in 0..100_000 {
            let pattern: Vec<u8> = (0..rng.below(9)).map(|_| rng.pick(b"aab**?[]^-\\")).collect();
            let text: Vec<u8> = (0..rng.below(9)).map(|_| rng.pick(b"aab]-\\")).collect();
            let mut progress = GlobProgress::default();
            let result = loop {
                match progress.advance(&pattern, &text, &mut (1 + unfinished % 3)) {
                    Some(result) => break result,
                    None => unfinished += 1,
                }
            };
            assert_eq!(result, is_match(&pattern, &text), "{pattern:?} {text:?}");
        }
        assert!(unfinished > 10_000, "{unfinished}");
        let (pattern, text) = (["*", &"a".repeat(4_000), "b"].concat(), "a".repeat(8_000));
        let (mut progress, mut portions) = (GlobProgress::default(), 1);
        while progress.advance(pattern.as_bytes(), text.as_bytes(), &mut 10_000).is_none() {
            portions += 1;
        }
        assert!(portions > 1_000, "{portions}");
    }

    #[test]
    fn a_match_begins_with_the_literal_prefix() {
        for (pattern, prefix) in
            [("", ""), ("abc", "abc"), ("ab*c", "ab"), ("a]b?", "a]b"), ("a[b]", "a"), ("a\\b", "a")]
        {
            assert_eq!(literal_prefix(pattern.as_bytes()), prefix.as_bytes());
        }
        let mut rng = SeededRng(3);
        for _ in 0..200_000 {
            let pattern: Vec<u8> = (0..rng.below(6)).map(|_| rng.pick(b"ab*?[]^-\\")).collect();
            let text: Vec<u8> = (0..rng.below(5)).map(|_| rng.pick(b"ab]-\\")).collect();
            let does_match = is_match(&pattern, &text);
            assert!(!does_match || text.starts_with(literal_prefix(&pattern)));
        }
    }
}
