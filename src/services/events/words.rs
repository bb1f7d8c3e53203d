//! The generated values: words, chosen from a list by a random number.
//!
//! This module does not draw the random number: it is an argument.

use std::sync::LazyLock;

/// The list, one word on each line, in alphabetical order.
const TEXT: &str = include_str!("words.txt");

static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| TEXT.lines().collect());

/// The word for this number. Random numbers give random words.
#[must_use]
pub fn word(jitter: u64) -> &'static str {
    let at = jitter.checked_rem(WORDS.len() as u64).and_then(|at| usize::try_from(at).ok());
    at.and_then(|at| WORDS.get(at)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_a_thousand_words_each_once_and_of_plain_letters() {
        assert!(WORDS.len() >= 1_000, "{}", WORDS.len());
        assert!(WORDS.is_sorted_by(|a, b| a < b));
        // The statements of `mysql` contain the words between quotes, without escaping.
        assert!(WORDS.iter().all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase())));
    }

    #[test]
    fn every_number_has_a_word() {
        assert_eq!(word(0), "abbey");
        assert_eq!(word(WORDS.len() as u64), word(0));
        assert!(!word(u64::MAX).is_empty());
    }
}
