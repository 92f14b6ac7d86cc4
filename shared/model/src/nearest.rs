//! Which word was meant.

/// The word most like `text`, if any is like it.
pub(crate) fn nearest<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let text: String = text.chars().take(80).collect::<String>().to_lowercase();
    words
        .map(|word| {
            let lower = word.to_lowercase();
            let likeness = strsim::jaro_winkler(&text, &lower);
            (word, strsim::osa_distance(&text, &lower), likeness)
        })
        // The distance catches letters changed about in short words, of which the likeness makes little.
        .filter(|(_, distance, likeness)| *distance <= 1 || *likeness >= 0.75)
        .min_by_key(|(_, distance, _)| *distance)
        .map(|(word, ..)| word)
}
