//! Lists of the API: the arguments that all of them share, and reading them page by page.

use clap::Args;
use cueline_interface::{Failure, Out, Paint};
use cueline_model::{GroupName, RunState, Timestamp};
use serde_json::Value;

use crate::client::Api;
use crate::namespaces::AllNamespaces;

/// The most entries in one request.
const MAX_IN_PAGE: usize = 1_000;

/// The most requests for one list. A page may be short, so the entries do not bound them.
const MAX_PAGES: u32 = 10_000;

/// Parameters of a request.
pub(crate) type Query = Vec<(&'static str, String)>;

/// The order of a list, and its part.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PageArgs {
    /// The order: a field of the list; with - before it the other way round, as in --sort=-name
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true)]
    pub(crate) sort: Option<String>,
    /// At most N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) limit: Option<u32>,
    /// Only what follows a page: the text that its command has printed
    #[arg(long, value_name = "NEXT", allow_hyphen_values = true)]
    pub(crate) after: Option<String>,
    /// All pages
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
}

/// Of groups.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GroupArgs {
    /// Only of this group; may be given several times
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<GroupName>,
}

impl GroupArgs {
    /// The parameters.
    pub(crate) fn query(&self) -> Query {
        values("group", &self.groups)
    }
}

/// Of jobs with labels.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LabelArgs {
    /// Only of jobs with this label; if given several times, all must hold
    #[arg(long = "label", value_name = "KEY[=VALUE]")]
    pub(crate) labels: Vec<String>,
}

impl LabelArgs {
    /// The parameters.
    pub(crate) fn query(&self) -> Query {
        values("label", &self.labels)
    }
}

/// Of a time.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct WindowArgs {
    /// Not before this time
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) since: Option<Timestamp>,
    /// Before this time
    #[arg(long, value_name = "INSTANT", value_parser = cueline_api::instant)]
    pub(crate) until: Option<Timestamp>,
}

impl WindowArgs {
    /// The parameters.
    pub(crate) fn query(self) -> Query {
        [("since", self.since), ("until", self.until)]
            .into_iter()
            .filter_map(|(name, at)| Some((name, at?.as_millis().to_string())))
            .collect()
    }
}

/// A parameter with several values.
pub(crate) fn values<T: ToString>(name: &'static str, values: &[T]) -> Query {
    let values = values.iter();
    values.map(|value| (name, value.to_string())).collect()
}

/// Reads the state of a run.
pub(crate) fn run_state(text: &str) -> Result<RunState, String> {
    RunState::ALL
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or_else(|| {
            let all: Vec<_> = RunState::ALL.iter().map(|state| state.as_str()).collect();
            format!("the states are {}", all.join(", "))
        })
}

/// A list of the API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List<'a> {
    /// The segments of its path.
    pub(crate) path: &'a [&'a str],
    /// The field with the entries.
    pub(crate) key: &'static str,
    /// How many entries are read by default; `None` for all.
    pub(crate) most: Option<u32>,
}

impl List<'_> {
    /// Reads the part of the list that `page` asks for, as one page.
    ///
    /// # Errors
    ///
    /// The server's, and a failure if the list has too many pages.
    pub(crate) async fn read(
        self,
        api: &Api,
        filters: &[(&str, String)],
        namespaces: AllNamespaces,
        page: &PageArgs,
    ) -> Result<Value, Failure> {
        let most = page.limit.or(self.most).filter(|_| !page.all);
        let most = most.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        });
        let mut entries = Vec::new();
        let mut after = page.after.clone();
        for _ in 0..MAX_PAGES {
            let limit = (most - entries.len()).min(MAX_IN_PAGE);
            let mut query = filters.to_vec();
            query.push(("limit", limit.to_string()));
            query.extend(page.sort.iter().map(|sort| ("sort", sort.clone())));
            query.extend(after.map(|after| ("after", after)));
            let mut found = api.list(self.path, &query, namespaces).await?;
            if let Some(Value::Array(part)) = found.get_mut(self.key).map(Value::take) {
                entries.extend(part);
            }
            after = found.get("next").and_then(Value::as_str).map(str::to_owned);
            if after.is_none() || entries.len() >= most {
                found[self.key] = Value::Array(entries);
                return Ok(found);
            }
        }
        Err(Failure::failed(format!(
            "failed to read all {}: there are more than {MAX_PAGES} pages",
            self.key
        )))
    }

    /// Reads the whole list.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub(crate) async fn read_all(
        self,
        api: &Api,
        namespaces: AllNamespaces,
    ) -> Result<Value, Failure> {
        let all = PageArgs {
            all: true,
            ..PageArgs::default()
        };
        self.read(api, &[], namespaces, &all).await
    }
}

/// Says how to list what follows, if there may be more.
pub(crate) fn print_next(out: Out, next: Option<&str>) -> Result<(), Failure> {
    match next {
        Some(next) => out.line(&out.paint(&format!("more: --after {next}"), Paint::Dim)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_given_filters_are_sent() {
        let window = WindowArgs {
            since: Some(Timestamp::from_millis(7)),
            until: None,
        };
        assert_eq!(window.query(), [("since", "7".to_owned())]);
        assert_eq!(GroupArgs::default().query(), []);
        let labels = LabelArgs {
            labels: vec!["a=b".to_owned(), "c".to_owned()],
        };
        let expected = [("label", "a=b".to_owned()), ("label", "c".to_owned())];
        assert_eq!(labels.query(), expected);
    }
}
