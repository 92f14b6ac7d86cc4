//! `cueline login`, `logout` and `whoami`: stores an API token for a server, and forgets it again.
//!
//! The password is used once: for a session, in which the server creates the token. The session ends before the command
//! does. Only the token is stored.

use std::path::PathBuf;

use clap::Args;
use cueline_api::view::{CreatedApiToken, LoginAnswer, SessionView};
use cueline_interface::url::{base_url, is_readable_on_the_way};
use cueline_interface::{Failure, Out, Paint, say};
use cueline_model::Namespace;
use reqwest::header::SET_COOKIE;
use reqwest::{Method, Url};
use serde_json::json;

use crate::accounts::args::validity;
use crate::accounts::{caller, grant};
use crate::client::{Api, Session, read};
use crate::context::book::{Context, Contexts, MAX_CONTEXTS};
use crate::context::chosen::{ChosenServer, without_home};
use crate::context::files::ContextFiles;
use crate::context::name::ContextName;
use crate::context::server_args::ServerArgs;
use crate::prompt;

/// The cookie of a session.
const COOKIE: &str = "cueline_session=";

/// `cueline login`
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// The server's address
    #[arg(value_name = "URL")]
    pub(crate) address: String,
    /// The name of the context; made from the address by default
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) name: Option<ContextName>,
    /// The login name; asked for by default
    #[arg(long, value_name = "USER", conflicts_with = "token_file")]
    pub(crate) user: Option<String>,
    /// File with the password, - for standard input; asked for by default
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    pub(crate) password_file: Option<PathBuf>,
    /// File with an API token to store, in place of a login by password; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// How long the new token is valid, such as 12h or 30d, or never; 90d by default
    #[arg(long, value_name = "DURATION", value_parser = validity, conflicts_with = "token_file")]
    pub(crate) valid: Option<String>,
    /// The namespace of the context
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) default_namespace: Option<Namespace>,
    /// Send the password and the token over http to another machine, although others could read them on the way
    #[arg(long)]
    pub(crate) insecure_http: bool,
}

/// `cueline logout`
#[derive(Debug, Args)]
pub(crate) struct LogoutArgs {
    /// Only forget the token; it stays valid for others who have it
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Stores a token for a server, and lets commands use that server.
pub(crate) async fn login(out: Out, server: &ServerArgs, args: &LoginArgs) -> Result<(), Failure> {
    let files = ContextFiles::of_user().ok_or_else(without_home)?;
    let url = base_url(&args.address)?;
    if is_readable_on_the_way(&url) && !args.insecure_http {
        return Err(Failure::bad_input(format!(
            "url: others could read the password and the token on the way to {url}; use https, or give --insecure-http"
        )));
    }
    let name = context_name(args, &url)?;
    let context = context(server, args, &url)?;
    check_room(&files.read()?, &name, &url)?;
    let (token, caller) = match &args.token_file {
        Some(file) => {
            let token = prompt::from_file("--token-file", file)?;
            let token = token.trim().to_owned();
            let caller = sender(&at(&url, Some(&token), server)?).await?;
            (token, caller)
        }
        None => {
            by_password(
                &at(&url, None, server)?,
                args,
                &files,
                (&name, &url),
                &context,
            )
            .await?
        }
    };
    if args.token_file.is_some() {
        store(&files, &name, &url, &context, &token)?;
    }
    if out.is_json() {
        return out
            .json(&json!({ "context": name.as_str(), "url": url.as_str(), "caller": caller }));
    }
    out.line(&format!(
        "logged in to {url} as {caller}; commands use context {name} now"
    ))
}

fn at(url: &Url, token: Option<&str>, server: &ServerArgs) -> Result<Api, Failure> {
    let token = token.map(str::to_owned);
    Api::to(ChosenServer::at(url.clone(), token, server.clone()))
}

fn context_name(args: &LoginArgs, url: &Url) -> Result<ContextName, Failure> {
    let made = || ContextName::of_host(url.host_str().unwrap_or_default(), url.port());
    args.name.clone().or_else(made).ok_or_else(|| {
        Failure::bad_input(format!(
            "name: {url} gives no name for a context; give --name CONTEXT"
        ))
    })
}

fn context(server: &ServerArgs, args: &LoginArgs, url: &Url) -> Result<Context, Failure> {
    let [ca_file, client_cert, client_key] = server.certificate_files()?;
    Ok(Context {
        url: url.to_string(),
        ca_file,
        client_cert,
        client_key,
        namespace: args.default_namespace.clone(),
        insecure_http: args.insecure_http,
    })
}

/// Whether the context can be stored. A context never changes its server, so that no command reaches another one than
/// its user remembers.
fn check_room(contexts: &Contexts, name: &ContextName, url: &Url) -> Result<(), Failure> {
    match contexts.all.get(name) {
        Some(context) if base_url(&context.url).ok().as_ref() != Some(url) => {
            Err(Failure::bad_input(format!(
                "name: context {:?} is for {}; give --name with another name, or delete it with `cueline context delete {name}`",
                name.as_str(),
                context.url
            )))
        }
        None if contexts.all.len() >= MAX_CONTEXTS => Err(Failure::bad_input(format!(
            "name: there are {MAX_CONTEXTS} contexts already; delete one with `cueline context delete NAME`"
        ))),
        _ => Ok(()),
    }
}

fn store(
    files: &ContextFiles,
    name: &ContextName,
    url: &Url,
    context: &Context,
    token: &str,
) -> Result<(), Failure> {
    files.change(|contexts| {
        // Another login may have come first.
        check_room(contexts, name, url)?;
        files.store_token(name, url, token)?;
        contexts.all.insert(name.clone(), context.clone());
        contexts.current = Some(name.clone());
        Ok(())
    })
}

/// Logs in, and stores a new token. Returns it with its owner in words. Whatever fails, the session is ended.
async fn by_password(
    api: &Api,
    args: &LoginArgs,
    files: &ContextFiles,
    (name, url): (&ContextName, &Url),
    context: &Context,
) -> Result<(String, String), Failure> {
    let user = match &args.user {
        Some(user) => user.clone(),
        None => prompt::line("User: ", "--user")?,
    };
    let file = args.password_file.as_deref();
    let password = prompt::secret("Password: ", "--password-file", file)?;
    let (api, login) = begin(api, &user, &password).await?;
    let result = create_and_store(&api, &login, args, |token| {
        store(files, name, url, context, token)
    })
    .await;
    if let Err(failure) = api.post(&["logout"], &json!({})).await {
        say(&format!(
            "warning: failed to end the session, which ends by itself later: {}",
            failure.message()
        ));
    }
    result.map(|token| (token, format!("user {}", login.user.name)))
}

/// Begins a session.
async fn begin(api: &Api, user: &str, password: &str) -> Result<(Api, LoginAnswer), Failure> {
    let body = json!({ "name": user, "password": password });
    let sent = api.send(Method::POST, &["login"], &[], Some(&body)).await;
    // The advice about tokens is of no use here.
    let response = sent.map_err(|failure| match failure {
        Failure::Unauthorised { message, .. } => Failure::failed(message),
        other => other,
    })?;
    let cookie = cookie(response.headers().get_all(SET_COOKIE).iter()).ok_or_else(|| {
        Failure::with_hint(
            format!("{} answered the login without a session", api.url()),
            "are the command and the server of the same version?",
        )
    })?;
    let login: LoginAnswer = read(api.read_json(response).await?)?;
    let session = Session {
        cookie,
        csrf: login.csrf.clone(),
    };
    Ok((api.in_session(session), login))
}

/// The session's cookie among the headers of an answer, as `NAME=VALUE`.
fn cookie<'h>(headers: impl Iterator<Item = &'h reqwest::header::HeaderValue>) -> Option<String> {
    let mut texts = headers.filter_map(|header| header.to_str().ok());
    texts.find_map(|text| {
        let pair = text.split(';').next()?.trim();
        let value = pair.strip_prefix(COOKIE)?;
        (!value.is_empty()).then(|| pair.to_owned())
    })
}

async fn create_and_store(
    api: &Api,
    login: &LoginAnswer,
    args: &LoginArgs,
    store: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let mut body = json!({ "name": token_name(), "grants": login.user.grants });
    if let Some(valid) = &args.valid {
        body["valid"] = json!(valid);
    }
    let created: CreatedApiToken = read(api.create(&["tokens"], &body).await?)?;
    if let Err(failure) = store(&created.token) {
        // A token whose secret is lost can only be misused.
        let _ = api.delete(&["tokens", &created.id]).await;
        return Err(failure);
    }
    Ok(created.token)
}

/// Where the token is stored, for those who look at the list of tokens.
fn token_name() -> String {
    let host = nix::unistd::gethostname().ok();
    let host = host.and_then(|host| host.into_string().ok());
    format!(
        "cueline login on {}",
        host.as_deref().unwrap_or("an unnamed machine")
    )
}

/// Who sends requests with the token of this server, in words.
async fn sender(api: &Api) -> Result<String, Failure> {
    let session: SessionView = read(api.get(&["session"], &[]).await?)?;
    Ok(caller::describe(&session))
}

/// Revokes the token of the context, and forgets it. The context stays.
pub(crate) async fn logout(
    out: Out,
    server: &ServerArgs,
    args: &LogoutArgs,
) -> Result<(), Failure> {
    let files = ContextFiles::of_user().ok_or_else(without_home)?;
    let named = server.named_context()?;
    let name = named.or(files.read()?.current).ok_or_else(|| {
        Failure::bad_input("context: commands use none now; name one with --context NAME")
    })?;
    // The token of the context is meant, whatever address and token the environment has.
    let chosen = ChosenServer::of(&server.only_context(&name));
    let revoked = match chosen {
        _ if args.keep => false,
        Ok(chosen) if chosen.token.is_some() && chosen.socket.is_none() => {
            revoke(&Api::to(chosen)?.in_no_namespace()).await?
        }
        Ok(_) => false,
        Err(failure) => return Err(failure),
    };
    let had_token = files.change(|_| files.forget_token(&name))?;
    if out.is_json() {
        return out.json(&json!({
            "context": name.as_str(), "revoked": revoked, "forgotten": had_token,
        }));
    }
    out.line(&match (had_token, revoked) {
        (false, _) => format!("context {name} has no token"),
        (true, true) => format!("the token of context {name} is revoked and forgotten"),
        (true, false) => format!("the token of context {name} is forgotten; it is not revoked"),
    })
}

/// Revokes the token that the requests have. The admin token cannot be revoked. A token that the server does not accept
/// any more needs no revocation.
async fn revoke(api: &Api) -> Result<bool, Failure> {
    let session: SessionView = match api.get(&["session"], &[]).await {
        Ok(answer) => read(answer)?,
        Err(failure) if failure.is_unauthorised() => return Ok(false),
        Err(failure) => {
            let advice = "to forget the token without the server, use `cueline logout --keep`";
            return Err(Failure::with_hint(failure.message(), advice));
        }
    };
    let Some(id) = session.token else {
        return Ok(false);
    };
    api.delete(&["tokens", &id]).await?;
    Ok(true)
}

/// Says who sends requests to which server.
pub(crate) async fn whoami(out: Out, server: &ServerArgs) -> Result<(), Failure> {
    let chosen = ChosenServer::of(server)?;
    let context = chosen.context.clone();
    let api = Api::to(chosen)?.in_no_namespace();
    let answer = api.get(&["session"], &[]).await?;
    if out.is_json() {
        return out.json(&answer);
    }
    let session: SessionView = read(answer)?;
    // A token may do only what its owner may too. That the owner may do the same is nothing to mention.
    let of_owner = session.owner_grants.as_ref();
    let of_owner = of_owner.filter(|grants| **grants != session.grants);
    let lines = [
        ("caller", Some(caller::describe(&session))),
        ("grants", Some(grant::list(&session.grants))),
        ("owner's", of_owner.map(|grants| grant::list(grants))),
        ("server", Some(api.url().to_owned())),
        ("context", context.map(|name| name.to_string())),
    ];
    for (label, text) in lines {
        if let Some(text) = text {
            let label = out.paint(&format!("{label:<7}"), Paint::Dim);
            out.line(&format!("{label} {text}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::cookie;

    #[test]
    fn the_session_is_found_among_the_cookies_of_an_answer() {
        let found = |texts: &[&'static str]| {
            let headers: Vec<_> = texts
                .iter()
                .map(|text| HeaderValue::from_static(text))
                .collect();
            cookie(headers.iter())
        };
        let session = found(&["a=b; Path=/", "cueline_session=x; Path=/; HttpOnly"]);
        assert_eq!(session.as_deref(), Some("cueline_session=x"));
        assert_eq!(found(&["cueline_session=; Max-Age=0"]), None);
        assert_eq!(found(&["xcueline_session=x"]), None);
        assert_eq!(found(&[]), None);
    }
}
