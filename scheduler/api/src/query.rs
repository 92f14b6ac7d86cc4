//! Reads query parameters. Unknown ones are refused, and repeated ones unless they are filters. One answer names every
//! problem.

use std::ops::RangeInclusive;

use axum::extract::Query;
use axum::http::Uri;
use cueline_model::Timestamp;

use crate::instant::instant;
use crate::problem::{FieldProblem, FieldProblems, Problem};

/// The bounds of `limit` in all requests.
pub(crate) const LIMITS: RangeInclusive<i64> = 1..=1_000;

/// The most values of a parameter that may be repeated.
pub(crate) const MAX_VALUES: usize = 20;

/// The parameters of one request.
pub(crate) struct Params {
    pairs: Vec<(String, String)>,
    errors: FieldProblems,
}

impl Params {
    /// The parameters of `uri`. Parameters that are not in `known` are refused.
    pub(crate) fn of(uri: &Uri, known: &[&str]) -> Self {
        let mut errors = FieldProblems::default();
        let pairs = match Query::<Vec<(String, String)>>::try_from_uri(uri) {
            Ok(Query(pairs)) => pairs,
            Err(error) => {
                errors.push(FieldProblem::new("", error.to_string()));
                Vec::new()
            }
        };
        for (name, _) in &pairs {
            if !known.contains(&name.as_str()) {
                errors.push(FieldProblem::new(name, unknown_parameter(known)));
            }
        }
        Self { pairs, errors }
    }

    fn one(&mut self, name: &str) -> Option<String> {
        let mut values = self.pairs.iter().filter(|(n, _)| n == name).map(|(_, v)| v);
        let value = values.next().cloned();
        if values.next().is_some() {
            self.errors.push(FieldProblem::new(
                name,
                "given more than once; give it once",
            ));
        }
        value
    }

    /// A whole number within bounds.
    pub(crate) fn number(&mut self, name: &str, default: i64, range: RangeInclusive<i64>) -> i64 {
        let Some(text) = self.one(name) else {
            return default;
        };
        match text.parse::<i64>() {
            Ok(n) if range.contains(&n) => n,
            _ => {
                let (least, most) = range.into_inner();
                let message = format!("{text:?} is not a whole number from {least} to {most}");
                self.errors.push(FieldProblem::new(name, message));
                default
            }
        }
    }

    /// `limit`, 1–1,000.
    pub(crate) fn limit(&mut self, default: i64) -> usize {
        usize::try_from(self.number("limit", default, LIMITS)).unwrap_or(1)
    }

    /// An instant.
    pub(crate) fn instant(&mut self, name: &str) -> Option<Timestamp> {
        self.parsed(name, |text| instant(text).map_err(|e| e.to_string()))
    }

    /// A value, read by `parse`.
    pub(crate) fn parsed<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.one(name)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.errors.push(FieldProblem::new(name, message));
                None
            }
        }
    }

    /// A value, read by `parse`. What matches `is_well_formed` and cannot be read does not fit.
    pub(crate) fn issued<T>(
        &mut self,
        name: &str,
        is_well_formed: impl FnOnce(&str) -> bool,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.one(name)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(message) => {
                let problem = FieldProblem::new(name, message);
                if is_well_formed(&text) {
                    self.errors.push_unfit(problem);
                } else {
                    self.errors.push(problem);
                }
                None
            }
        }
    }

    /// `true` or `false`; `false` by default.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let parse = |text: &str| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("{text:?} is given; give true or false")),
        };
        self.parsed(name, parse).unwrap_or(false)
    }

    /// Records a problem with a parameter.
    pub(crate) fn refuse(&mut self, name: &str, message: impl Into<String>) {
        self.errors.push(FieldProblem::new(name, message));
    }

    /// Records that a parameter does not fit another one.
    pub(crate) fn refuse_unfit(&mut self, name: &str, message: impl Into<String>) {
        self.errors.push_unfit(FieldProblem::new(name, message));
    }

    /// A parameter that may be repeated, at most 20 times.
    pub(crate) fn many<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        self.many_fitting(name, |_| false, parse)
    }

    /// As [`many`](Self::many). A value that `is_well_formed` and cannot be read does not fit.
    pub(crate) fn many_fitting<T>(
        &mut self,
        name: &str,
        is_well_formed: impl Fn(&str) -> bool,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut found = Vec::new();
        for (index, (_, text)) in self.pairs.iter().filter(|(n, _)| n == name).enumerate() {
            if index == MAX_VALUES {
                let message = format!("given more than {MAX_VALUES} times; give fewer values");
                self.errors.push(FieldProblem::new(name, message));
                break;
            }
            match parse(text) {
                Ok(value) => found.push(value),
                Err(message) if is_well_formed(text) => {
                    self.errors.push_unfit(FieldProblem::new(name, message));
                }
                Err(message) => self.errors.push(FieldProblem::new(name, message)),
            }
        }
        found
    }

    /// Refuses the request if a problem was recorded.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        self.errors.finish()
    }
}

fn unknown_parameter(known: &[&str]) -> String {
    if known.is_empty() {
        "unknown parameter; this path takes none".to_owned()
    } else {
        format!("unknown parameter; this path takes {}", known.join(", "))
    }
}

/// Refuses any parameter.
pub(crate) fn none(uri: &Uri) -> Result<(), Problem> {
    Params::of(uri, &[]).finish()
}
