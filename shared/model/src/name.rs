//! Names of namespaces, jobs, groups and executors.
//!
//! Names become parts of broker subjects, file names and URLs. This module decides which characters they may contain.
//!
//! The name of a job or a group is qualified: `NAMESPACE/LOCAL`, or `LOCAL` alone in the namespace `default`. One name
//! therefore has one text, and everything that treats names as a whole keeps namespaces apart.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize};

/// The longest name, in bytes, its namespace included.
pub const MAX_NAME_BYTES: usize = 128;

/// The longest namespace, in bytes. Half of a name is left for its local part.
pub const MAX_NAMESPACE_BYTES: usize = 63;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text is longer than [`MAX_NAME_BYTES`].
    #[error("a name has at most {MAX_NAME_BYTES} bytes, this one has {0}")]
    TooLong(usize),
    /// The namespace is longer than [`MAX_NAMESPACE_BYTES`].
    #[error("a namespace has at most {MAX_NAMESPACE_BYTES} bytes, this one has {0}")]
    NamespaceTooLong(usize),
    /// The text has a character that names do not allow.
    #[error(
        "{0:?} is not allowed in a name: use letters and digits of any language, '-', '_', '.' and ':'"
    )]
    Character(char),
    /// The first character is not a letter, a digit or an underscore.
    #[error("a name starts with a letter, a digit or '_', not with {0:?}")]
    Start(char),
    /// There is more than one slash.
    #[error("a name has at most one '/', between its namespace and its local name")]
    Slashes,
    /// The part before the slash is not a valid namespace.
    #[error("the part before '/' is a namespace: {0}")]
    Namespace(Box<NameError>),
    /// A local name has a slash.
    #[error("a local name has no '/'; its namespace is given apart from it")]
    NotLocal,
}

/// Letters that fonts show as nothing: the fillers of Hangul. A name with one could not be told from a name without it.
const INVISIBLE: [char; 4] = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];

fn is_allowed(c: char) -> bool {
    (c.is_alphanumeric() || "-_.:".contains(c)) && !INVISIBLE.contains(&c)
}

/// Whether it is an ASCII character that [`is_allowed`] allows.
const fn is_plain_ascii(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':')
}

fn check(text: &str) -> Result<(), NameError> {
    let first = text.chars().next().ok_or(NameError::Empty)?;
    if text.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong(text.len()));
    }
    // Nearly all names are plain ASCII, and each trigger and report has several.
    if !text.bytes().all(is_plain_ascii)
        && let Some(bad) = text.chars().find(|c| !is_allowed(*c))
    {
        return Err(NameError::Character(bad));
    }
    if !(first.is_alphanumeric() || first == '_') {
        return Err(NameError::Start(first));
    }
    Ok(())
}

/// Checks a name without a namespace.
fn plain(text: &str) -> Result<Arc<str>, NameError> {
    check(text)?;
    Ok(text.into())
}

/// Checks the name of a namespace.
fn namespace(text: &str) -> Result<Arc<str>, NameError> {
    check(text)?;
    if text.len() > MAX_NAMESPACE_BYTES {
        return Err(NameError::NamespaceTooLong(text.len()));
    }
    Ok(text.into())
}

/// Checks a qualified name, and leaves out the namespace `default`.
fn qualified(text: &str) -> Result<Arc<str>, NameError> {
    let Some((before, local)) = text.split_once('/') else {
        return plain(text);
    };
    if local.contains('/') {
        return Err(NameError::Slashes);
    }
    if before == Namespace::DEFAULT {
        return plain(local);
    }
    namespace(before).map_err(|error| NameError::Namespace(Box::new(error)))?;
    check(local)?;
    if text.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong(text.len()));
    }
    Ok(text.into())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $check:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                $check(text).map(Self)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

macro_rules! qualified_name {
    ($(#[$doc:meta])* $type:ident) => {
        name! { $(#[$doc])* $type, qualified }

        impl $type {
            /// The name `local` in `namespace`.
            ///
            /// # Errors
            ///
            /// [`NameError::NotLocal`] if `local` has a slash, [`NameError::TooLong`] if both together are too long, and
            /// any other [`NameError`] if `local` is not a name.
            pub fn in_namespace(namespace: &Namespace, local: &str) -> Result<Self, NameError> {
                if local.contains('/') {
                    return Err(NameError::NotLocal);
                }
                if namespace.is_default() {
                    return local.parse();
                }
                format!("{namespace}/{local}").parse()
            }

            /// The namespace that it belongs to.
            pub fn namespace(&self) -> Namespace {
                match self.0.split_once('/') {
                    Some((namespace, _)) => Namespace(namespace.into()),
                    None => Namespace::default(),
                }
            }

            /// The name within its namespace.
            pub fn local(&self) -> &str {
                self.0.split_once('/').map_or(&*self.0, |(_, local)| local)
            }

            /// Whether it belongs to `namespace`.
            pub fn is_in(&self, namespace: &Namespace) -> bool {
                match self.0.split_once('/') {
                    Some((own, _)) => own == namespace.as_str(),
                    None => namespace.is_default(),
                }
            }
        }

        impl written::Qualified for $type {
            fn parts(&self) -> (Namespace, &str) {
                (self.namespace(), self.local())
            }

            fn of_parts(namespace: &Namespace, local: &str) -> Result<Self, NameError> {
                Self::in_namespace(namespace, local)
            }
        }
    };
}

/// Writes the name of a definition as the fields `name` and `namespace`.
pub(crate) mod written {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{NameError, Namespace};

    /// A name that belongs to a namespace.
    pub(crate) trait Qualified: Sized {
        fn parts(&self) -> (Namespace, &str);
        fn of_parts(namespace: &Namespace, local: &str) -> Result<Self, NameError>;
    }

    #[derive(Serialize, Deserialize)]
    struct Written {
        name: String,
        #[serde(default, skip_serializing_if = "Namespace::is_default")]
        namespace: Namespace,
    }

    pub(crate) fn serialize<N: Qualified, S: Serializer>(
        name: &N,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let (namespace, local) = name.parts();
        let written = Written {
            name: local.to_owned(),
            namespace,
        };
        written.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, N: Qualified, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<N, D::Error> {
        let Written { name, namespace } = Written::deserialize(deserializer)?;
        N::of_parts(&namespace, &name).map_err(D::Error::custom)
    }
}

name! {
    /// A namespace: jobs, groups and tokens belong to one, and nothing crosses it.
    Namespace, namespace
}
qualified_name! {
    /// A job's name, unique among the jobs of one store: `LOCAL` in the namespace `default`, else `NAMESPACE/LOCAL`.
    JobName
}
qualified_name! {
    /// The name of an executor group, whose executors can run the same handlers: `LOCAL` in the namespace `default`, else
    /// `NAMESPACE/LOCAL`.
    GroupName
}
qualified_name! {
    /// The name of a calendar: `LOCAL` in the namespace `default`, else `NAMESPACE/LOCAL`.
    CalendarName
}
qualified_name! {
    /// The name of a script: `LOCAL` in the namespace `default`, else `NAMESPACE/LOCAL`.
    ScriptName
}
qualified_name! {
    /// The name of an alarm rule: `LOCAL` in the namespace `default`, else `NAMESPACE/LOCAL`.
    RuleName
}
qualified_name! {
    /// The name of an alarm channel: `LOCAL` in the namespace `default`, else `NAMESPACE/LOCAL`.
    ChannelName
}
name! {
    /// An executor's name, stable across restarts and unique within its group.
    ExecutorName, plain
}

impl Namespace {
    /// The name of the namespace that names without one belong to.
    pub const DEFAULT: &str = "default";

    /// Whether this is the namespace that names without one belong to.
    pub fn is_default(&self) -> bool {
        &*self.0 == Self::DEFAULT
    }
}

impl Default for Namespace {
    fn default() -> Self {
        // Nearly all names are in it, so each definition that is read asks for it several times.
        static SHARED: LazyLock<Arc<str>> = LazyLock::new(|| Namespace::DEFAULT.into());
        Self(Arc::clone(&SHARED))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn in_tests(text: &str) -> Namespace {
        text.parse().expect("a namespace")
    }

    fn refused(text: &str) -> String {
        let error = text.parse::<JobName>().expect_err("is refused");
        error.to_string()
    }

    #[test]
    fn a_name_without_a_prefix_is_in_the_default_namespace() {
        let name: JobName = "report".parse().expect("a name");
        assert_eq!(name.namespace(), Namespace::default());
        assert_eq!(name.local(), "report");
        let written: JobName = "default/report".parse().expect("a name");
        assert_eq!(written, name);
        assert_eq!(written.to_string(), "report");
        assert_eq!(
            JobName::in_namespace(&Namespace::default(), "report"),
            Ok(name)
        );
    }

    #[test]
    fn a_qualified_name_has_both_parts() {
        let name: GroupName = "team-a/workers".parse().expect("a name");
        assert_eq!(name.namespace(), in_tests("team-a"));
        assert_eq!(name.local(), "workers");
        assert_eq!(name.to_string(), "team-a/workers");
        assert!(name.is_in(&in_tests("team-a")));
        assert!(!name.is_in(&Namespace::default()));
        assert!(!name.is_in(&in_tests("team")));
    }

    #[test]
    fn a_wrong_name_is_refused_with_the_wrong_part() {
        assert!(refused("a/b/c").contains("at most one '/'"));
        assert!(
            refused("/b").contains("the part before '/' is a namespace: a name must not be empty")
        );
        assert!(refused("a b/c").contains("the part before '/'"));
        assert!(refused("a/").contains("must not be empty"));
        assert!(refused("a/-c").contains("starts with"));
        assert!(refused("default/").contains("must not be empty"));
        for text in ["a/b", "/", ""] {
            assert!(text.parse::<Namespace>().is_err(), "{text}");
            assert!(text.parse::<ExecutorName>().is_err(), "{text}");
        }
        let local = JobName::in_namespace(&Namespace::default(), "team-b/x");
        assert_eq!(local, Err(NameError::NotLocal));
    }

    #[test]
    fn a_qualified_name_is_bounded_as_a_whole() {
        let longest = "x".repeat(MAX_NAME_BYTES);
        assert!(longest.parse::<JobName>().is_ok());
        assert!(format!("default/{longest}").parse::<JobName>().is_ok());
        assert!(format!("a/{}", &longest[2..]).parse::<JobName>().is_ok());
        assert_eq!(
            format!("a/{}", &longest[1..]).parse::<JobName>(),
            Err(NameError::TooLong(MAX_NAME_BYTES + 1))
        );
        let namespace = "n".repeat(MAX_NAMESPACE_BYTES);
        assert!(format!("{namespace}/a").parse::<JobName>().is_ok());
        assert_eq!(
            format!("{namespace}n").parse::<Namespace>(),
            Err(NameError::NamespaceTooLong(MAX_NAMESPACE_BYTES + 1))
        );
    }

    #[test]
    fn characters_with_a_meaning_elsewhere_are_not_allowed() {
        // Paths, shells, patterns, subjects of brokers, SQL, markup, terminals, and changes of direction. A slash ends a
        // namespace.
        let bad = "\\ \t\r\n\0\x1b\x7f\u{9b}*?[]{}()^$|<>#+&;`'\"%~!@=,\u{202e}\u{2066}";
        for bad in bad.chars() {
            let text = format!("a{bad}b");
            assert_eq!(text.parse::<JobName>(), Err(NameError::Character(bad)));
        }
        for bad in [".", "..", "-rf", ":a"] {
            let start = bad.chars().next().expect("a character");
            assert_eq!(bad.parse::<JobName>(), Err(NameError::Start(start)));
        }
    }

    #[test]
    fn what_is_not_seen_is_not_allowed() {
        // Zero-width characters, marks that combine with the letter before, variation selectors, tags, fillers.
        let unseen = [
            "\u{200b}\u{200d}\u{feff}\u{ad}\u{301}\u{fe0f}\u{e0061}\u{2800}\u{a0}",
            "\u{115f}\u{1160}\u{3164}\u{ffa0}",
        ];
        for bad in unseen.concat().chars() {
            let text = format!("a{bad}b");
            assert_eq!(text.parse::<JobName>(), Err(NameError::Character(bad)));
        }
    }

    #[test]
    fn names_that_look_alike_are_different_names() {
        let names = [
            "scope",
            "\u{441}\u{441}ope",
            "s\u{441}ope",
            "\u{ff53}cope",
            "SCOPE",
        ];
        for (i, one) in names.iter().enumerate() {
            let one: JobName = one.parse().expect("a name");
            for other in &names[i + 1..] {
                let other: JobName = other.parse().expect("a name");
                assert_ne!(one, other);
            }
        }
    }

    prop_compose! {
        /// A namespace and a local name.
        fn pair()(
            namespace in prop_oneof!["[abä_][ab.:_-]{0,2}", Just("default".to_owned())],
            local in "[abä_][ab.:_-]{0,2}",
        ) -> (String, String) {
            (namespace, local)
        }
    }

    proptest! {
        #[test]
        fn a_name_is_read_back_from_its_text(pair in pair()) {
            let name = JobName::in_namespace(&in_tests(&pair.0), &pair.1).expect("a name");
            prop_assert_eq!(name.namespace(), in_tests(&pair.0));
            prop_assert_eq!(name.local(), &pair.1);
            prop_assert!(name.is_in(&in_tests(&pair.0)));
            let read: JobName = name.to_string().parse().expect("its text is a name");
            prop_assert_eq!(read, name);
        }

        #[test]
        fn different_pairs_never_have_the_same_text(one in pair(), other in pair()) {
            let text = |pair: &(String, String)| {
                let name = GroupName::in_namespace(&in_tests(&pair.0), &pair.1);
                name.expect("a name").to_string()
            };
            prop_assert_eq!(one == other, text(&one) == text(&other));
        }
    }
}
