//! Suggestions for misspelled words.

/// The word nearest to `text`, if one is near enough.
pub fn nearest<'w>(text: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let text: String = text.chars().take(80).collect::<String>().to_lowercase();
    words
        .into_iter()
        .map(|word| (word, strsim::osa_distance(&text, &word.to_lowercase())))
        // At most a third of the letters may be wrong. With more, it is probably another word.
        .filter(|(word, distance)| *distance <= word.len().div_ceil(3))
        .min_by_key(|(_, distance)| *distance)
        .map(|(word, _)| word)
}

/// `; did you mean "…"?`, or `otherwise` if no word is near.
pub fn did_you_mean<'w>(
    text: &str,
    words: impl IntoIterator<Item = &'w str>,
    otherwise: &str,
) -> String {
    match nearest(text, words) {
        Some(word) => format!("; did you mean {word:?}?"),
        None => format!("; {otherwise}"),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_understood_and_other_words_are_not() {
        let words = ["listen", "broker", "drain_timeout"];
        assert_eq!(nearest("lisetn", words), Some("listen"));
        assert_eq!(nearest("Broker", words), Some("broker"));
        assert_eq!(nearest("drain-timeout", words), Some("drain_timeout"));
        assert_eq!(nearest("colour", words), None);
        assert_eq!(nearest("", words), None);
    }
}
