//! The server that a command asks: reads contexts, tokens and the announcement, and lets [`choose`] decide.

use std::path::{Path, PathBuf};

use cueline_interface::discovery::{self, Discovered};
use cueline_interface::suggest::did_you_mean;
use cueline_interface::url::base_url;
use cueline_interface::{Failure, say};
use cueline_model::Namespace;
use reqwest::Url;

use super::book::Context;
use super::choice::{Candidates, ContextCandidate, GivenToken, Refusal, TokenFrom, choose};
use super::files::ContextFiles;
use super::name::ContextName;
use super::server_args::ServerArgs;

/// The server's address by default.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7800";

/// Advice for a user whose server does not answer.
pub(crate) const NAME_ANOTHER: &str = "start one with `cueline standalone`, or name another one with --url or CUELINE_URL; \
     `cueline doctor` looks closer";

/// A server, and how a command proves who it is.
#[derive(Clone)]
pub(crate) struct ChosenServer {
    /// The address that the user knows.
    pub(crate) url: Url,
    pub(crate) token: Option<String>,
    /// Where the token was taken from, for messages.
    pub(crate) token_from: String,
    /// The socket of this user's server, if the requests go there and not to `url`.
    pub(crate) socket: Option<PathBuf>,
    /// The context that it was taken from.
    pub(crate) context: Option<ContextName>,
    /// The namespace that the command is about.
    pub(crate) namespace: Namespace,
    /// Whether secrets may be sent over http to another machine.
    pub(crate) insecure_http: bool,
    /// The arguments, completed by the certificates of the context.
    pub(crate) args: ServerArgs,
}

/// A context with its token.
struct Stored {
    name: ContextName,
    context: Context,
    url: Url,
    token: Option<String>,
    is_named: bool,
}

impl Stored {
    fn candidate(&self) -> ContextCandidate<'_> {
        ContextCandidate {
            url: &self.url,
            has_token: self.token.is_some(),
            namespace: self.context.namespace.as_ref(),
            insecure_http: self.context.insecure_http,
            is_named: self.is_named,
        }
    }
}

impl ChosenServer {
    /// Chooses the server: the named one, else that of the context, else the standalone server of this user, else the one
    /// at the default address.
    pub(crate) fn of(args: &ServerArgs) -> Result<Self, Failure> {
        let given = args.url.as_deref().map(base_url).transpose()?;
        let namespace = args.named_namespace()?;
        let stored = stored(args)?;
        let found = discovery::read().unwrap_or_else(|error| {
            say(&format!(
                "warning: failed to read where the local server is: {error}"
            ));
            None
        });
        let local = found.as_ref().and_then(|found| base_url(&found.url).ok());
        let choice = choose(&Candidates {
            url: given.as_ref(),
            token: given_token(args),
            namespace: namespace.as_ref(),
            context: stored.as_ref().map(Stored::candidate),
            local: local.as_ref(),
            default: &base_url(DEFAULT_URL)?,
        })
        .map_err(|refusal| refused(&refusal))?;
        let local = found.filter(|_| choice.uses_socket);
        if let Some(problem) = local.as_ref().and_then(Discovered::socket_problem) {
            return Err(Failure::with_hint(
                format!("failed to reach the local server: {problem}"),
                format!("is it running? {NAME_ANOTHER}"),
            ));
        }
        let stored = stored.filter(|_| choice.uses_context);
        let (token, token_from) = match choice.token {
            TokenFrom::User => (
                args.token.as_deref().map(|token| token.trim().to_owned()),
                "--token or CUELINE_TOKEN".to_owned(),
            ),
            TokenFrom::Context => token_of(stored.as_ref()),
            TokenFrom::LocalServer => match &local {
                Some(local) => (
                    Some(read_token(&local.token_file)?),
                    local.token_file.display().to_string(),
                ),
                None => (None, String::new()),
            },
            TokenFrom::Nowhere => (None, String::new()),
        };
        Ok(Self {
            url: choice.url,
            token,
            token_from,
            namespace: choice.namespace,
            socket: local.map(|local| local.socket),
            args: match &stored {
                Some(stored) => args.completed_by(&stored.context),
                None => args.clone(),
            },
            insecure_http: stored.as_ref().is_some_and(|one| one.context.insecure_http),
            context: stored.map(|stored| stored.name),
        })
    }

    /// The server at an address, with a token or without one, for requests that belong to no namespace.
    pub(crate) fn at(url: Url, token: Option<String>, args: ServerArgs) -> Self {
        Self {
            url,
            token,
            token_from: "the login".to_owned(),
            socket: None,
            context: None,
            namespace: Namespace::default(),
            insecure_http: false,
            args,
        }
    }
}

/// The namespace of a command that asks no server.
pub(crate) fn namespace(args: &ServerArgs) -> Result<Namespace, Failure> {
    let given = args.url.as_deref().map(base_url).transpose()?;
    let namespace = args.named_namespace()?;
    let stored = stored(args)?;
    let choice = choose(&Candidates {
        url: given.as_ref(),
        // No request shows one.
        token: None,
        namespace: namespace.as_ref(),
        context: stored.as_ref().map(|stored| ContextCandidate {
            has_token: false,
            ..stored.candidate()
        }),
        // It has no namespace of its own.
        local: None,
        default: &base_url(DEFAULT_URL)?,
    });
    Ok(choice.map_err(|refusal| refused(&refusal))?.namespace)
}

fn given_token(args: &ServerArgs) -> Option<GivenToken> {
    args.token.as_ref().map(|_| {
        if args.token_is_from_variable {
            GivenToken::Variable
        } else {
            GivenToken::Flag
        }
    })
}

fn refused(refusal: &Refusal) -> Failure {
    Failure::bad_input(refusal.to_string())
}

/// The context that the user names, else the one that was chosen earlier.
fn stored(args: &ServerArgs) -> Result<Option<Stored>, Failure> {
    let named = args.named_context()?;
    let Some(files) = ContextFiles::of_user() else {
        return match named {
            None => Ok(None),
            Some(_) => Err(without_home()),
        };
    };
    let contexts = match files.read() {
        Ok(contexts) => contexts,
        // With an address, the contexts are not needed. Without one, this command might ask the wrong server.
        Err(Failure::BadInput { messages, .. }) if named.is_none() && args.url.is_some() => {
            say(&format!("warning: {}", messages.join("; ")));
            return Ok(None);
        }
        Err(failure) => return Err(failure),
    };
    let is_named = named.is_some();
    let Some(name) = named.or(contexts.current) else {
        return Ok(None);
    };
    let Some(context) = contexts.all.get(&name).cloned() else {
        return Err(unknown(&name, contexts.all.keys()));
    };
    let url = base_url(&context.url)?;
    let token = files.token(&name, &url)?;
    Ok(Some(Stored {
        name,
        context,
        url,
        token,
        is_named,
    }))
}

/// The user names a context that does not exist.
pub(crate) fn unknown<'n>(
    name: &ContextName,
    known: impl Iterator<Item = &'n ContextName>,
) -> Failure {
    let known = known.map(ContextName::as_str);
    let advice = did_you_mean(name.as_str(), known, "`cueline context list` lists them");
    Failure::bad_input(format!(
        "context: there is no context {:?}{advice}",
        name.as_str()
    ))
}

/// Contexts need a place.
pub(crate) fn without_home() -> Failure {
    Failure::bad_input("context: there is no place for contexts; set HOME or XDG_CONFIG_HOME")
}

fn token_of(stored: Option<&Stored>) -> (Option<String>, String) {
    let Some(stored) = stored else {
        return (None, String::new());
    };
    let from = format!(
        "context {}; `cueline login {} --name {}` replaces it",
        stored.name, stored.url, stored.name
    );
    (stored.token.clone(), from)
}

fn read_token(path: &Path) -> Result<String, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(Failure::with_hint(
            format!("failed to read the token from {}: {error}", path.display()),
            "run this as the user who started the server, or set CUELINE_TOKEN",
        )),
    }
}
