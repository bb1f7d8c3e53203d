//! Flags whose value is one of some words.

/// Parses one of these words to what it means. `otherwise`: the error for any other text.
pub(crate) fn one_of<T: Copy>(
    words: &'static [(&'static str, T)],
    otherwise: &'static str,
) -> impl Fn(&str) -> Result<T, &'static str> + Clone {
    move |typed| words.iter().find(|(word, _)| *word == typed).map(|(_, meaning)| *meaning).ok_or(otherwise)
}
