//! Compares an output with what a page shows.

use std::fmt::Write as _;

use super::normal::normal;
use super::page::{Action, Step};

/// Any text within a line, and any lines if it is alone.
const ANYTHING: char = '…';
/// A command that prints it must fail.
const ERROR: &str = "error: ";

/// How a step has not done what the page shows: its line, the command, what is expected and what was got. `None` if it has.
pub fn difference(step: &Step, status: i32, output: &str) -> Option<String> {
    let expected: Vec<String> = step.expected.iter().map(|line| normal(line)).collect();
    let got: Vec<String> = output.trim_end().lines().map(normal).collect();
    let must_fail = step.expected.iter().any(|line| line.starts_with(ERROR));
    let is_right_status = (status != 0) == must_fail;
    if is_right_status && is_same(&expected, &got) {
        return None;
    }
    let what = match &step.action {
        Action::Run(command) => format!("$ {}", command.replace('\n', "\n> ")),
        Action::Write { file, .. } => format!("the file {file}"),
    };
    let mut text = format!("line {}: {what}\n  expected:\n", step.line);
    for line in &step.expected {
        let _ = writeln!(text, "    {line}");
    }
    let _ = writeln!(text, "  got, with status {status}:");
    for line in output.trim_end().lines() {
        let _ = writeln!(text, "    {line}");
    }
    if is_right_status && let Some(line) = first_other(&expected, &got) {
        let _ = writeln!(text, "  first line that differs, compared as:\n    {line}");
    }
    Some(text)
}

/// The first line that is not the expected one, up to a line that stands for any lines.
fn first_other(expected: &[String], got: &[String]) -> Option<String> {
    let exact = expected.iter().take_while(|line| !is_anything(line));
    let mut pairs = exact.zip(got);
    let (expected, got) = pairs.find(|(expected, got)| !fits(expected, got))?;
    Some(format!("{expected}\n    {got}"))
}

fn is_anything(line: &str) -> bool {
    line.strip_prefix(ANYTHING) == Some("")
}

fn is_same(expected: &[String], got: &[String]) -> bool {
    match expected.split_first() {
        None => got.is_empty(),
        Some((first, rest)) if is_anything(first) => {
            (0..=got.len()).any(|skipped| is_same(rest, &got[skipped..]))
        }
        Some((first, rest)) => got
            .split_first()
            .is_some_and(|(line, others)| fits(first, line) && is_same(rest, others)),
    }
}

/// Whether the line is the expected one.
fn fits(expected: &str, line: &str) -> bool {
    let Some((first, rest)) = expected.split_once(ANYTHING) else {
        return expected == line;
    };
    let Some(mut line) = line.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split(ANYTHING).collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = line.split_once(part) else {
            return false;
        };
        line = after;
    }
    line.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{Action, Step, difference};

    fn step(expected: &[&str]) -> Step {
        Step {
            line: 7,
            action: Action::Run("cueline job list".to_owned()),
            expected: expected.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    fn is_same(expected: &[&str], output: &str) -> bool {
        difference(&step(expected), 0, output).is_none()
    }

    #[test]
    fn an_output_is_compared_line_by_line() {
        assert!(is_same(&[], ""));
        assert!(is_same(&["a", "b"], "a\nb\n"));
        for other in ["", "a\n", "b\na\n", "a\nb\nc\n", "a\nB\n", "a\n\nb\n"] {
            assert!(!is_same(&["a", "b"], other), "{other:?}");
        }
        assert!(!is_same(&[], "warning: x\n"));
        assert!(is_same(&["a  in 3 s"], "a     in 12 min\n"));
        assert!(!is_same(&["a  in 3 s"], "a  –\n"));
    }

    #[test]
    fn an_ellipsis_stands_for_lines_or_for_text() {
        assert!(is_same(&["a", "…", "c"], "a\nc\n"));
        assert!(is_same(&["a", "…", "c"], "a\nb\nb\nc\n"));
        assert!(!is_same(&["a", "…", "c"], "a\nb\n"));
        assert!(is_same(&["by … on …, now"], "by the login on x, y, now\n"));
        assert!(!is_same(&["by … on …, now"], "by the login, now\n"));
        assert!(!is_same(&["a…a"], "a\n"));
    }

    #[test]
    fn a_command_fails_exactly_if_an_error_is_shown() {
        let wrong = step(&["error: you may not"]);
        assert!(difference(&wrong, 1, "error: you may not\n").is_none());
        assert!(difference(&wrong, 0, "error: you may not\n").is_some());
        assert!(difference(&step(&["ok"]), 1, "ok\n").is_some());
    }

    #[test]
    fn a_difference_names_the_line_the_command_and_both_outputs() {
        let text = difference(&step(&["a", "b 3 s"]), 0, "a\nc 4 s\n").expect("a difference");
        for part in [
            "line 7: $ cueline job list",
            "    b 3 s",
            "    c 4 s",
            "with status 0",
            "    b <duration>\n    c <duration>",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}
