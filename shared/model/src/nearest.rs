//! Finds the word that a user probably meant.

/// The word most similar to `text`, if any is similar.
pub(crate) fn nearest<'w>(text: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let text: String = text.chars().take(80).collect::<String>().to_lowercase();
    words
        .map(|word| {
            let lower = word.to_lowercase();
            let likeness = strsim::jaro_winkler(&text, &lower);
            (word, strsim::osa_distance(&text, &lower), likeness)
        })
        // The distance finds swapped letters in short words, for which the similarity is low.
        .filter(|(_, distance, likeness)| *distance <= 1 || *likeness >= 0.75)
        .min_by_key(|(_, distance, _)| *distance)
        .map(|(word, ..)| word)
}
