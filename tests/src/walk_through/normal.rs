//! Lines without what differs from one execution to the next.

/// The units of durations, as `cueline` prints them.
const UNITS: [&str; 5] = ["ms", "s", "min", "h", "d"];
/// `0` stands for a digit.
const TIMES: [&str; 4] = [
    "0000-00-00T00:00:00.000Z",
    "0000-00-00T00:00:00Z",
    "0000-00-00 00:00:00 +00:00",
    "0000-00-00 00:00:00 -00:00",
];
const DAYS: [&str; 7] = ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "];
/// What follows is a key or a token in base64.
const PREFIXES: [&str; 2] = ["cueline-public-key:", "cueline-enrol:"];
/// What follows is the number of a run.
const COUNTED: [(&str, &str); 1] = [("run ", "run <n>")];
/// What follows says where the next page of a list begins, in base64url.
const NEXT: &str = "--after ";
/// Ids have this many hexadecimal digits, and admin tokens more.
const MIN_ID: usize = 16;
/// Secrets have 43 characters in base64.
const MIN_SECRET: usize = 40;

/// The line with a placeholder for each part that may differ, and with two spaces between the cells of a table.
pub(super) fn normal(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.trim_end();
    let mut begins_word = true;
    while let Some(first) = rest.chars().next() {
        let found = if begins_word { variable(rest) } else { None };
        if let Some((length, placeholder)) = found {
            text.push_str(placeholder);
            rest = &rest[length..];
            begins_word = false;
        } else {
            text.push(first);
            rest = &rest[first.len_utf8()..];
            // A point is within a number or an address.
            begins_word = !first.is_ascii_alphanumeric() && first != '.';
        }
    }
    cells(&text)
}

/// The length of the part that may differ at the start of the text, and its placeholder.
fn variable(text: &str) -> Option<(usize, &'static str)> {
    let with = |placeholder| move |length| (length, placeholder);
    time(text)
        .map(with("<time>"))
        .or_else(|| key(text).map(with("<key>")))
        .or_else(|| secret(text))
        .or_else(|| version(text).map(with("<version>")))
        .or_else(|| span(text))
        .or_else(|| counted(text))
        .or_else(|| next_page(text))
}

fn time(text: &str) -> Option<usize> {
    let day = DAYS.into_iter().find(|day| text.starts_with(day));
    let skipped = day.map_or(0, str::len);
    let found = TIMES
        .into_iter()
        .find(|pattern| matches(pattern, &text[skipped..]))?;
    Some(skipped + found.len())
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut given = text.bytes();
    pattern.bytes().all(|wanted| {
        given.next().is_some_and(|byte| match wanted {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        })
    })
}

/// How many bytes at the start of the text are of a kind, which has only ASCII.
fn count(text: &str, is_of_kind: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| is_of_kind(*byte)).count()
}

fn key(text: &str) -> Option<usize> {
    let prefix = PREFIXES
        .into_iter()
        .find(|prefix| text.starts_with(prefix))?;
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=:".contains(&byte);
    Some(prefix.len() + count(&text[prefix.len()..], is_base64))
}

/// An id or a token, which look alike.
fn secret(text: &str) -> Option<(usize, &'static str)> {
    let length = count(text, |byte| {
        byte.is_ascii_alphanumeric() || b"_-".contains(&byte)
    });
    let is_id = text[..length]
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match length {
        MIN_ID.. if is_id => Some((length, "<id>")),
        MIN_SECRET.. => Some((length, "<secret>")),
        _ => None,
    }
}

/// Three numbers. An address has four.
fn version(text: &str) -> Option<usize> {
    let length = count(text, |byte| byte.is_ascii_digit() || byte == b'.');
    let numbers: Vec<&str> = text[..length].split('.').collect();
    let is_version = numbers.len() == 3 && numbers.iter().all(|number| !number.is_empty());
    is_version.then_some(length)
}

/// A duration, or a time that is relative to now.
fn span(text: &str) -> Option<(usize, &'static str)> {
    if let Some(length) = text.strip_prefix("in ").and_then(duration) {
        return Some(("in ".len() + length, "<when>"));
    }
    let length = duration(text)?;
    Some(match text[length..].strip_prefix(" ago") {
        Some(_) => (length + " ago".len(), "<when>"),
        None => (length, "<duration>"),
    })
}

/// `21 ms`, `1.3 s`, `2 min 5 s`.
fn duration(text: &str) -> Option<usize> {
    let first = quantity(text)?;
    let second = text[first..].strip_prefix(' ').and_then(quantity);
    Some(second.map_or(first, |second| first + 1 + second))
}

fn quantity(text: &str) -> Option<usize> {
    let digits = count(text, |byte| byte.is_ascii_digit() || byte == b'.');
    if digits == 0 {
        return None;
    }
    let rest = text[digits..].strip_prefix(' ')?;
    let length = count(rest, |byte| byte.is_ascii_alphanumeric());
    UNITS
        .contains(&&rest[..length])
        .then_some(digits + 1 + length)
}

fn counted(text: &str) -> Option<(usize, &'static str)> {
    COUNTED.into_iter().find_map(|(before, placeholder)| {
        let digits = count(text.strip_prefix(before)?, |byte| byte.is_ascii_digit());
        (digits > 0).then_some((before.len() + digits, placeholder))
    })
}

fn next_page(text: &str) -> Option<(usize, &'static str)> {
    let length = count(text.strip_prefix(NEXT)?, |byte| {
        byte.is_ascii_alphanumeric() || b"_-".contains(&byte)
    });
    (length > 0).then_some((NEXT.len() + length, "--after <next>"))
}

/// Two spaces stand between cells, however wide they are. A number in the first cell or before a time is that of a run or of
/// an entry. A time in the present second is the cell `now`.
fn cells(line: &str) -> String {
    let found = line.split("  ").map(str::trim);
    let mut found: Vec<&str> = found.filter(|cell| !cell.is_empty()).collect();
    for cell in &mut found {
        if *cell == "now" {
            *cell = "<when>";
        }
    }
    for at in 0..found.len().saturating_sub(1) {
        let is_number = found[at].bytes().all(|byte| byte.is_ascii_digit());
        if is_number && (at == 0 || found[at + 1] == "<when>") {
            found[at] = "<n>";
        }
    }
    let indent = if line.starts_with("  ") { "  " } else { "" };
    format!("{indent}{}", found.join("  "))
}

#[cfg(test)]
mod tests {
    use super::normal;

    #[test]
    fn what_differs_becomes_a_placeholder() {
        for (line, expected) in [
            ("ended     2026-11-23T02:30:00.123Z", "ended  <time>"),
            ("Mon 2026-11-23 02:30:00 +01:00", "<time>"),
            (
                "signs    cueline-public-key:85gfqPWx/BOr+q0=",
                "signs  <key>",
            ),
            ("key fe812c12f3ab4ce6 of ops/a", "key <id> of ops/a"),
            (
                "type   vPVlf2pYm3UXrDk0m0Jp0m8lmfFDSyJ8wqkXq7uXn2o   when",
                "type  <secret>  when",
            ),
            ("cueline 0.1.0 scheduler", "cueline <version> scheduler"),
            (
                "run 84  queued → worker-1  started +0 ms  succeeded in 2 ms",
                "run <n>  queued → worker-1  started +<duration>  succeeded <when>",
            ),
            ("up for 1 min 24 s", "up for <duration>"),
            (
                "more: --after WzEsInJ1bnMiLCItaWQiLDhd",
                "more: --after <next>",
            ),
        ] {
            assert_eq!(normal(line), expected);
        }
    }

    #[test]
    fn what_is_always_the_same_stays() {
        for line in [
            "api  http://127.0.0.1:7801",
            "2 created, 0 changed, 0 unchanged",
            "error: you may not edit jobs in group sales/reports",
            "commands use context prod now",
            "404",
            "a note in 3 parts",
            "--grant operator@sales/reports, abc123",
            "0123456789abcde",
        ] {
            assert_eq!(normal(line), line);
        }
    }

    #[test]
    fn rows_of_tables_do_not_depend_on_widths_numbers_and_times() {
        let one = normal("76   flaky     succeeded  2 s ago   worker-1  2 ms");
        let other = normal("1204  flaky  succeeded  now  worker-1   1.2 s  ");
        assert_eq!(one, other);
        assert_eq!(one, "<n>  flaky  succeeded  <when>  worker-1  <duration>");
        assert_eq!(
            normal("ops  53  12 s ago  a  53"),
            "ops  <n>  <when>  a  53"
        );
        assert_eq!(normal("   bela      x"), "  bela  x");
        assert_ne!(normal("1  failed  now"), normal("1  succeeded  now"));
        assert_ne!(normal("a  –"), normal("a  2 s ago"));
    }
}
