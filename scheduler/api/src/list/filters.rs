//! Reads the filters of lists.

use cueline_model::{GroupName, JobName, Namespace, Timestamp};
use cueline_store::{LabelFilter, NameFilter};

use crate::namespace::InNamespace;
use crate::query::Params;

/// The longest text of a filter, in characters.
const MAX_TEXT_CHARS: usize = 512;

/// The parameters of a list, with the namespace in which names are read.
pub(crate) struct Filters<'a> {
    params: &'a mut Params,
    namespace: &'a InNamespace,
    /// The namespace whose entries the list has; `None` for all.
    listed: Option<Namespace>,
}

impl<'a> Filters<'a> {
    /// The filters of a list of what belongs to a namespace.
    pub(crate) fn new(
        params: &'a mut Params,
        namespace: &'a InNamespace,
        listed: Option<&Namespace>,
    ) -> Self {
        Self {
            params,
            namespace,
            listed: listed.cloned(),
        }
    }

    /// `group`: names of groups, qualified in a list of all namespaces.
    pub(crate) fn groups(&mut self) -> Vec<GroupName> {
        let (namespace, listed) = (self.namespace, self.listed.as_ref());
        // A name of another namespace is well formed.
        let is_name = |text: &str| text.parse::<GroupName>().is_ok();
        self.params
            .many_fitting("group", is_name, |text| match listed {
                Some(_) => namespace.group(text),
                None => text.parse().map_err(|error| described(&error)),
            })
    }

    /// `job`: names of jobs, qualified in a list of all namespaces.
    pub(crate) fn jobs(&mut self) -> Vec<JobName> {
        let (namespace, listed) = (self.namespace, self.listed.as_ref());
        let is_name = |text: &str| text.parse::<JobName>().is_ok();
        self.params
            .many_fitting("job", is_name, |text| match listed {
                Some(_) => namespace.job(text),
                None => text.parse().map_err(|error| described(&error)),
            })
    }

    /// `name`: names of jobs, or their beginnings with `*`. In a list of one namespace they are local.
    pub(crate) fn names(&mut self) -> Vec<NameFilter> {
        let (namespace, listed) = (self.namespace, self.listed.as_ref());
        let is_name = |text: &str| match text.strip_suffix('*') {
            Some(start) => beginning(start).is_ok(),
            None => text.parse::<JobName>().is_ok(),
        };
        self.params.many_fitting("name", is_name, |text| {
            match (text.strip_suffix('*'), listed) {
                (None, Some(_)) => Ok(NameFilter::Exact(namespace.job(text)?.to_string())),
                (None, None) => {
                    let name: JobName = text.parse().map_err(|error| described(&error))?;
                    Ok(NameFilter::Exact(name.to_string()))
                }
                (Some(start), Some(_)) if start.contains('/') => {
                    Err("'/' is not allowed in a local name".to_owned())
                }
                (Some(start), Some(own)) if !own.is_default() => {
                    let start = format!("{own}/{}", beginning(start)?);
                    Ok(NameFilter::Prefix(start))
                }
                (Some(start), _) => Ok(NameFilter::Prefix(beginning(start)?.to_owned())),
            }
        })
    }
}

fn described(error: &cueline_model::NameError) -> String {
    error.to_string()
}

/// The beginning of a name.
fn beginning(text: &str) -> Result<&str, String> {
    plain(text)?;
    if text.contains('*') {
        return Err("'*' stands for the rest of a name, so it is at the end only".to_owned());
    }
    Ok(text)
}

fn plain(text: &str) -> Result<(), String> {
    if text.chars().count() > MAX_TEXT_CHARS {
        return Err(format!(
            "is too long; give at most {MAX_TEXT_CHARS} characters"
        ));
    }
    if text.contains('\0') {
        return Err("has a NUL character, which no text has".to_owned());
    }
    Ok(())
}

impl Params {
    /// `name`: names of what belongs to no namespace, or their beginnings with `*`.
    pub(crate) fn names(&mut self) -> Vec<NameFilter> {
        self.many("name", |text| match text.strip_suffix('*') {
            Some(start) => Ok(NameFilter::Prefix(beginning(start)?.to_owned())),
            None => Ok(NameFilter::Exact(some_text(beginning(text)?)?)),
        })
    }

    /// `label`: `KEY=VALUE`, or `KEY` for any value.
    pub(crate) fn labels(&mut self) -> Vec<LabelFilter> {
        self.many("label", |text| {
            plain(text)?;
            let (key, value) = match text.split_once('=') {
                Some((key, value)) => (key, Some(value.to_owned())),
                None => (text, None),
            };
            if key.is_empty() {
                return Err("has no key; write it as KEY=VALUE, or as KEY".to_owned());
            }
            Ok(LabelFilter {
                key: key.to_owned(),
                value,
            })
        })
    }

    /// Texts that are not empty.
    pub(crate) fn texts(&mut self, name: &str) -> Vec<String> {
        self.many(name, some_text)
    }

    /// Some of these words.
    pub(crate) fn words<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Vec<T> {
        self.many(name, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|(_, value)| *value).ok_or_else(|| {
                let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                format!("{text:?} is given; give {}", all.join(" or "))
            })
        })
    }

    /// `since`, which is included, and `until`, which is not. Nothing is between two equal ones.
    pub(crate) fn window(&mut self) -> (Option<Timestamp>, Option<Timestamp>) {
        let (since, until) = (self.instant("since"), self.instant("until"));
        if let (Some(since), Some(until)) = (since, until)
            && since > until
        {
            self.refuse_unfit(
                "since",
                format!("{since} is after {until}, where the time ends"),
            );
        }
        (since, until)
    }
}

fn some_text(text: &str) -> Result<String, String> {
    plain(text)?;
    if text.is_empty() {
        return Err("is empty; give a text, or leave it out".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        let uri = format!("/x?{query}").parse().expect("a URI");
        Params::of(&uri, &["name", "label", "group", "state", "since", "until"])
    }

    fn names(namespace: &str, all: bool, query: &str) -> Result<Vec<NameFilter>, String> {
        let namespace = InNamespace(namespace.parse().expect("a name"));
        let mut params = params(query);
        let listed = (!all).then(|| namespace.0.clone());
        let names = Filters::new(&mut params, &namespace, listed.as_ref()).names();
        match params.finish() {
            Ok(()) => Ok(names),
            Err(problem) => Err(format!("{problem:?}")),
        }
    }

    #[test]
    fn a_name_is_local_unless_all_namespaces_are_listed() {
        let prefix = |text: &str| Ok(vec![NameFilter::Prefix(text.to_owned())]);
        let exact = |text: &str| Ok(vec![NameFilter::Exact(text.to_owned())]);
        assert_eq!(names("default", false, "name=a*"), prefix("a"));
        assert_eq!(names("team-a", false, "name=a*"), prefix("team-a/a"));
        assert_eq!(names("team-a", false, "name=*"), prefix("team-a/"));
        assert_eq!(names("team-a", false, "name=a"), exact("team-a/a"));
        assert_eq!(names("default", true, "name=team-a/*"), prefix("team-a/"));
        assert_eq!(names("default", true, "name=team-a/x"), exact("team-a/x"));
        assert!(names("team-a", false, "name=team-b/*").is_err());
        assert!(names("default", false, "name=a*b*").is_err());
        assert!(names("default", false, "name=").is_err());
    }

    #[test]
    fn a_label_has_a_key() {
        let label = |key: &str, value: Option<&str>| LabelFilter {
            key: key.to_owned(),
            value: value.map(str::to_owned),
        };
        let mut given = params("label=team=a=b&label=x&label=y=");
        let expected = [
            label("team", Some("a=b")),
            label("x", None),
            label("y", Some("")),
        ];
        assert_eq!(given.labels(), expected);
        let mut given = params("label==a");
        given.labels();
        assert!(given.finish().is_err());
    }

    #[test]
    fn a_time_does_not_end_before_it_begins() {
        let mut given = params("since=6&until=5");
        given.window();
        assert!(given.finish().is_err());
        let at = |ms| Some(Timestamp::from_millis(ms));
        let mut given = params("since=5&until=5");
        assert_eq!(given.window(), (at(5), at(5)));
        assert!(given.finish().is_ok());
    }

    #[test]
    fn a_word_is_one_of_those_that_are_known() {
        let mut given = params("state=b&state=a");
        assert_eq!(given.words("state", &[("a", 1), ("b", 2)]), [2, 1]);
        let mut given = params("state=c");
        given.words("state", &[("a", 1), ("b", 2)]);
        let problem = given.finish().expect_err("is refused");
        assert!(format!("{problem:?}").contains("give a or b"));
    }
}
