//! Decides which server a command asks, which token it shows there, and which namespace the command is about. Pure.

use cueline_interface::url::is_readable_on_the_way;
use cueline_model::Namespace;
use reqwest::Url;

/// What is known about servers before a command starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidates<'a> {
    /// The address that the user gave by a flag or a variable.
    pub(crate) url: Option<&'a Url>,
    /// How the user gave a token.
    pub(crate) token: Option<GivenToken>,
    /// The namespace that the user gave by a flag or a variable.
    pub(crate) namespace: Option<&'a Namespace>,
    /// The context that the user named or chose earlier.
    pub(crate) context: Option<ContextCandidate<'a>>,
    /// The address of the standalone server that this user announced.
    pub(crate) local: Option<&'a Url>,
    /// The address by default.
    pub(crate) default: &'a Url,
}

/// How the user gave a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GivenToken {
    /// By a flag, for this command.
    Flag,
    /// By a variable, for all commands, whichever servers they ask.
    Variable,
}

/// A context that a command may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextCandidate<'a> {
    pub(crate) url: &'a Url,
    /// Whether a token is stored for this address.
    pub(crate) has_token: bool,
    pub(crate) namespace: Option<&'a Namespace>,
    pub(crate) insecure_http: bool,
    /// Whether this command names it. Otherwise it was chosen by `cueline context use`.
    pub(crate) is_named: bool,
}

/// Where the token of a command is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenFrom {
    /// A flag or a variable.
    User,
    /// The file of the context.
    Context,
    /// The token file of the announced standalone server.
    LocalServer,
    /// There is none.
    Nowhere,
}

/// The server, the token and the namespace of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) url: Url,
    pub(crate) token: TokenFrom,
    pub(crate) namespace: Namespace,
    /// Whether the context is the one of this server. Its certificates and namespace count only then.
    pub(crate) uses_context: bool,
    /// Whether the requests go over the socket of the announced server.
    pub(crate) uses_socket: bool,
}

/// Why no server is chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("context: it is for {context}, but url is {url}; give only one of them")]
    Contradiction { context: Box<Url>, url: Box<Url> },
    #[error(
        "context: the token is not sent to {url}, because others could read it on the way; use https, log in with --insecure-http, or give the address with --url"
    )]
    Readable { url: Box<Url> },
}

/// Chooses: the user's flags and variables, else the context, else the announced server, else the default.
///
/// The token of a context is for the address of that context alone. A token in a variable may be for another server. So it
/// goes to the address of a context only if the user gave that address too, or if the context has no token of its own.
/// The token of the announced server is sent over its socket alone, because its announcement may be stale. The namespace is
/// the user's, else that of the context, else `default`.
pub(crate) fn choose(given: &Candidates<'_>) -> Result<Choice, Refusal> {
    let context_url = given.context.map(|context| context.url);
    let url = given.url.or(context_url).or(given.local);
    let url = url.unwrap_or(given.default);
    let context = given.context.filter(|context| context.url == url);
    if let (None, Some(named)) = (&context, given.context.filter(|one| one.is_named)) {
        return Err(Refusal::Contradiction {
            context: Box::new(named.url.clone()),
            url: Box::new(url.clone()),
        });
    }
    let is_local = given.local == Some(url);
    let is_for_server = given.token == Some(GivenToken::Flag) || given.url.is_some();
    let token = match context {
        _ if given.token.is_some() && is_for_server => TokenFrom::User,
        Some(context) if context.has_token => TokenFrom::Context,
        _ if given.token.is_some() => TokenFrom::User,
        _ if is_local => TokenFrom::LocalServer,
        _ => TokenFrom::Nowhere,
    };
    let may_be_read = context.is_some_and(|one| !one.insecure_http) && is_readable_on_the_way(url);
    // With the address, the token is the user's decision.
    let is_sent_by_context = match token {
        TokenFrom::Context => true,
        TokenFrom::User => given.url.is_none(),
        TokenFrom::LocalServer | TokenFrom::Nowhere => false,
    };
    if is_sent_by_context && may_be_read {
        return Err(Refusal::Readable {
            url: Box::new(url.clone()),
        });
    }
    // An address and a token that the user gave belong together. Otherwise the announced server is meant.
    let is_given = given.url.is_some() || context.is_some();
    let uses_socket = match token {
        TokenFrom::User => is_local && !is_given,
        TokenFrom::LocalServer => true,
        TokenFrom::Context | TokenFrom::Nowhere => false,
    };
    let of_context = context.and_then(|context| context.namespace);
    let namespace = given.namespace.or(of_context).cloned();
    Ok(Choice {
        url: url.clone(),
        token,
        namespace: namespace.unwrap_or_default(),
        uses_context: context.is_some(),
        uses_socket,
    })
}

#[cfg(test)]
mod tests {
    use super::{Candidates, Choice, ContextCandidate, GivenToken, Refusal, TokenFrom, choose};
    use cueline_interface::url::base_url;
    use cueline_model::Namespace;
    use reqwest::Url;

    const DEFAULT: &str = "http://127.0.0.1:7800";
    const LOCAL: &str = "http://127.0.0.1:7801";
    const CONTEXT: &str = "https://a.example";

    struct Case {
        url: Option<&'static str>,
        token: Option<GivenToken>,
        /// The address, and whether there is a token for it.
        context: Option<(&'static str, bool)>,
        local: Option<&'static str>,
    }

    fn parsed(text: &str) -> Url {
        base_url(text).expect("an address")
    }

    fn chosen(case: &Case, is_named: bool, insecure_http: bool) -> Result<Choice, Refusal> {
        let (url, local) = (case.url.map(parsed), case.local.map(parsed));
        let context = case
            .context
            .map(|(url, has_token)| (parsed(url), has_token));
        choose(&Candidates {
            url: url.as_ref(),
            token: case.token,
            namespace: None,
            context: context.as_ref().map(|(url, has_token)| ContextCandidate {
                url,
                has_token: *has_token,
                namespace: None,
                insecure_http,
                is_named,
            }),
            local: local.as_ref(),
            default: &parsed(DEFAULT),
        })
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn flags_precede_the_context_which_precedes_the_local_server() {
        use TokenFrom::{Context, LocalServer, Nowhere, User};
        let (own, bare) = (Some((CONTEXT, true)), Some((CONTEXT, false)));
        let other = Some("https://b.example");
        for (url, has_token, context, local, expected) in [
            (None, false, None, None, (DEFAULT, Nowhere, false, false)),
            (None, true, None, None, (DEFAULT, User, false, false)),
            (
                None,
                false,
                None,
                Some(LOCAL),
                (LOCAL, LocalServer, false, true),
            ),
            (None, true, None, Some(LOCAL), (LOCAL, User, false, true)),
            (
                None,
                false,
                own,
                Some(LOCAL),
                (CONTEXT, Context, true, false),
            ),
            (None, true, own, Some(LOCAL), (CONTEXT, User, true, false)),
            (
                None,
                false,
                bare,
                Some(LOCAL),
                (CONTEXT, Nowhere, true, false),
            ),
            (
                other,
                false,
                own,
                Some(LOCAL),
                ("https://b.example", Nowhere, false, false),
            ),
            (
                other,
                true,
                own,
                None,
                ("https://b.example", User, false, false),
            ),
            (
                Some(CONTEXT),
                false,
                own,
                None,
                (CONTEXT, Context, true, false),
            ),
            (
                Some(LOCAL),
                false,
                own,
                Some(LOCAL),
                (LOCAL, LocalServer, false, true),
            ),
            (
                Some(LOCAL),
                true,
                own,
                Some(LOCAL),
                (LOCAL, User, false, false),
            ),
            (
                Some(LOCAL),
                false,
                None,
                None,
                (LOCAL, Nowhere, false, false),
            ),
            (
                None,
                false,
                Some((LOCAL, false)),
                Some(LOCAL),
                (LOCAL, LocalServer, true, true),
            ),
            (
                None,
                false,
                Some((LOCAL, true)),
                Some(LOCAL),
                (LOCAL, Context, true, false),
            ),
            (
                None,
                true,
                Some((LOCAL, false)),
                Some(LOCAL),
                (LOCAL, User, true, false),
            ),
        ] {
            let case = Case {
                url,
                token: has_token.then_some(GivenToken::Flag),
                context,
                local,
            };
            let choice = chosen(&case, false, false).expect("a server");
            let (url, token, uses_context, uses_socket) = expected;
            let expected = Choice {
                url: parsed(url),
                token,
                namespace: Namespace::default(),
                uses_context,
                uses_socket,
            };
            assert_eq!(
                choice, expected,
                "{url:?} {has_token} {context:?} {local:?}"
            );
        }
    }

    #[test]
    fn the_user_s_namespace_precedes_that_of_the_context_which_precedes_default() {
        let name = |text: &str| text.parse::<Namespace>().expect("a name");
        let of = |url: Option<&str>, given: Option<&str>, of_context: Option<&str>| {
            let (url, given, of_context) = (url.map(parsed), given.map(name), of_context.map(name));
            let chosen = choose(&Candidates {
                url: url.as_ref(),
                token: None,
                namespace: given.as_ref(),
                context: Some(ContextCandidate {
                    url: &parsed(CONTEXT),
                    has_token: true,
                    namespace: of_context.as_ref(),
                    insecure_http: false,
                    is_named: false,
                }),
                local: None,
                default: &parsed(DEFAULT),
            });
            chosen.expect("a server").namespace.to_string()
        };
        assert_eq!(of(None, Some("a"), Some("b")), "a");
        assert_eq!(of(None, None, Some("b")), "b");
        assert_eq!(of(Some(CONTEXT), None, Some("b")), "b");
        assert_eq!(of(None, None, None), "default");
        assert_eq!(of(None, Some("default"), Some("b")), "default");
        // Another server may have no such namespace, or another meaning for it.
        assert_eq!(of(Some(LOCAL), None, Some("b")), "default");
        assert_eq!(of(Some(LOCAL), Some("a"), Some("b")), "a");
    }

    #[test]
    fn a_named_context_contradicts_another_address() {
        let case = Case {
            url: Some("https://b.example"),
            token: None,
            context: Some((CONTEXT, true)),
            local: None,
        };
        let refused = chosen(&case, true, false)
            .expect_err("is refused")
            .to_string();
        assert!(refused.contains("https://a.example/"), "{refused}");
        assert!(refused.contains("https://b.example/"), "{refused}");
        let same = Case {
            url: Some(CONTEXT),
            ..case
        };
        assert!(chosen(&same, true, false).is_ok());
    }

    #[test]
    fn a_token_is_not_sent_where_others_can_read_it() {
        const READABLE: &str = "http://a.example";
        let mut case = Case {
            url: None,
            token: None,
            context: Some((READABLE, true)),
            local: None,
        };
        let refused = |case: &Case| {
            let refused = chosen(case, false, false);
            assert!(
                matches!(refused, Err(Refusal::Readable { .. })),
                "{refused:?}"
            );
            assert!(chosen(case, false, true).is_ok());
        };
        refused(&case);
        for token in [GivenToken::Flag, GivenToken::Variable] {
            for has_token in [true, false] {
                case.token = Some(token);
                case.context = Some((READABLE, has_token));
                case.url = None;
                refused(&case);
                // With the address, it is the user's decision.
                case.url = Some(READABLE);
                assert!(chosen(&case, false, false).is_ok());
            }
        }
        // Without a token there is nothing to read.
        (case.token, case.context, case.url) = (None, Some((READABLE, false)), None);
        assert!(chosen(&case, false, false).is_ok());
    }

    #[test]
    fn a_token_of_a_variable_does_not_replace_that_of_a_context() {
        use TokenFrom::{Context, User};
        let other = Some("https://b.example");
        for (url, has_token, local, expected) in [
            (None, Some(true), None, Context),
            (None, Some(true), Some(LOCAL), Context),
            (None, Some(false), None, User),
            (Some(CONTEXT), Some(true), None, User),
            (other, Some(true), None, User),
            (None, None, None, User),
            (None, None, Some(LOCAL), User),
        ] {
            let case = Case {
                url,
                token: Some(GivenToken::Variable),
                context: has_token.map(|has_token| (CONTEXT, has_token)),
                local,
            };
            let token = chosen(&case, false, false).expect("a server").token;
            assert_eq!(token, expected, "{url:?} {has_token:?} {local:?}");
        }
    }
}
