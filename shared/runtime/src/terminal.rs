//! Text from outside, made harmless for terminals.
//!
//! Names, messages and logs come from jobs and from the network. A control character in them could move the cursor,
//! change the title or rewrite what the user reads.

use std::borrow::Cow;
use std::fmt::Write as _;

/// What the text is printed as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Lines of text. Line ends and tabs stay.
    Text,
    /// Like [`Text`](Self::Text). Sequences that set one of Cueline's own colours stay too.
    Coloured,
    /// A part of a line. Line ends and tabs are escaped as well.
    Inline,
    /// JSON. It remains the same JSON value.
    Json,
}

/// The arguments of the sequences that Cueline and its logs print: reset, bold, dim, italic, and some colours. None of
/// them hides text.
const COLOURS: [&str; 10] = ["0", "1", "2", "3", "31", "32", "33", "34", "35", "90"];

/// Escapes control characters and the characters that change the direction of text: `\x1b`, `\u{202e}`.
pub fn harmless(text: &str, style: Style) -> Cow<'_, str> {
    if !text.chars().any(|c| is_harmful(c, style)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let kept = colour(rest).filter(|_| style == Style::Coloured);
        let taken = kept.map_or(c.len_utf8(), str::len);
        if kept.is_none() && is_harmful(c, style) {
            push_escaped(&mut safe, c, style);
        } else {
            safe.push_str(&rest[..taken]);
        }
        rest = &rest[taken..];
    }
    Cow::Owned(safe)
}

fn is_harmful(c: char, style: Style) -> bool {
    match c {
        '\n' | '\t' => style == Style::Inline,
        // C0, DEL and C1.
        c if c.is_control() => true,
        // Marks, embeddings, overrides and isolates of the bidirectional algorithm (Unicode Annex 9).
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        _ => false,
    }
}

/// The sequence at the beginning of the text, if it sets a known colour.
fn colour(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("\x1b[")?;
    let is_next = |argument: &str| {
        let after = rest.strip_prefix(argument);
        after.is_some_and(|after| after.starts_with('m'))
    };
    let argument = COLOURS.into_iter().find(|argument| is_next(argument))?;
    Some(&text[.."\x1b[".len() + argument.len() + "m".len()])
}

fn push_escaped(safe: &mut String, c: char, style: Style) {
    let code = u32::from(c);
    // Writing to a text cannot fail.
    let _ = match (style, c) {
        (Style::Json, _) => write!(safe, "\\u{code:04x}"),
        (_, '\n') => write!(safe, "\\n"),
        (_, '\t') => write!(safe, "\\t"),
        (_, '\0'..='\u{9f}') => write!(safe, "\\x{code:02x}"),
        _ => write!(safe, "\\u{{{code:x}}}"),
    };
}

#[cfg(test)]
mod tests {
    use super::{Style, harmless};

    #[test]
    fn ordinary_text_is_not_copied() {
        for text in ["", "plain", "日本語 é\n\tfurther"] {
            for style in [Style::Text, Style::Coloured, Style::Json] {
                let shown = harmless(text, style);
                assert!(matches!(shown, std::borrow::Cow::Borrowed(same) if same == text));
            }
        }
    }

    #[test]
    fn control_characters_and_changes_of_direction_are_escaped() {
        for (text, shown) in [
            ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
            ("\x1b[2J\x1b[31mred", "\\x1b[2J\\x1b[31mred"),
            ("over\rwritten\x08", "over\\x0dwritten\\x08"),
            ("\u{7f}\u{9b}31m\0", "\\x7f\\x9b31m\\x00"),
            (
                "a\u{202e}b\u{2066}c\u{200f}",
                "a\\u{202e}b\\u{2066}c\\u{200f}",
            ),
        ] {
            assert_eq!(harmless(text, Style::Text), shown);
        }
        assert_eq!(harmless("a\nb\tc", Style::Inline), "a\\nb\\tc");
    }

    #[test]
    fn only_known_colours_stay() {
        let own = "\x1b[31mred\x1b[0m \x1b[90mgrey\x1b[0m";
        assert_eq!(harmless(own, Style::Coloured), own);
        for (text, shown) in [
            ("\x1b[8mhidden", "\\x1b[8mhidden"),
            ("\x1b[31;8mhidden", "\\x1b[31;8mhidden"),
            ("\x1b[2Jm", "\\x1b[2Jm"),
            ("\x1b[31m\x1b", "\x1b[31m\\x1b"),
            ("\x1b[", "\\x1b["),
        ] {
            assert_eq!(harmless(text, Style::Coloured), shown);
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        // A serialiser escapes C0 only.
        let json = "{\n  \"a\": \"\u{9b}2J\u{7f}\u{202e}\"\n}";
        let shown = harmless(json, Style::Json);
        assert_eq!(shown, "{\n  \"a\": \"\\u009b2J\\u007f\\u202e\"\n}");
    }
}
