//! The values that are generated: words, one of a list at random.
//!
//! What is not here: chance; it comes in as a number.

use std::sync::LazyLock;

/// The list, one word a line, in alphabetical order.
const TEXT: &str = include_str!("words.txt");

static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| TEXT.lines().collect());

/// The word that this number stands for; random numbers give random words.
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
        // They stand between quotes in statements, as they are.
        assert!(WORDS.iter().all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase())));
    }

    #[test]
    fn every_number_stands_for_a_word() {
        assert_eq!(word(0), "abbey");
        assert_eq!(word(WORDS.len() as u64), word(0));
        assert!(!word(u64::MAX).is_empty());
    }
}
