//! The settings of a login by OpenID Connect, and what is required of them.

use std::fmt;
use std::net::IpAddr;

use cueline_model::DurationMs;
use cueline_store::MAX_ISSUER_BYTES;
use openidconnect::url::Url;
use openidconnect::{IssuerUrl, RedirectUrl};

use super::CALLBACK_PATH;
use super::mapping::GrantMapping;

/// The longest value of a setting, in bytes.
const MAX_TEXT_BYTES: usize = 2_048;

/// How users log in by OpenID Connect.
#[derive(Clone)]
pub struct OpenIdSettings {
    /// The issuer, exactly as the provider writes it. `https`, or `http` on a loopback address.
    pub issuer: String,
    /// The id of this client at the provider.
    pub client_id: String,
    /// The client's secret. `None` for a public client, whose only proof is PKCE.
    pub client_secret: Option<String>,
    /// The URL of [`CALLBACK_PATH`] as browsers reach it.
    pub redirect_url: String,
    /// The requested scopes. `openid` is always requested.
    pub scopes: Vec<String>,
    /// The claim with the groups of a user. A name, or a path of names with dots between them.
    pub groups_claim: String,
    /// Which grants follow from the groups. `None` leaves grants to the administrators.
    pub grants: Option<GrantMapping>,
    /// Whether a first login creates a user.
    pub create_users: bool,
    /// For how long the API tokens of a user count after the user's last login; [`TOKENS_VALID`](super::TOKENS_VALID) by
    /// default.
    pub tokens_valid: DurationMs,
}

/// Without the secret.
impl fmt::Debug for OpenIdSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenIdSettings")
            .field("issuer", &self.issuer)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// Why settings cannot be used. The words name the given and the expected value.
#[derive(Debug, thiserror::Error)]
pub enum OpenIdError {
    /// The issuer is not valid.
    #[error("{0}")]
    Issuer(String),
    /// The redirect URL is not valid.
    #[error("{0}")]
    RedirectUrl(String),
    /// Another setting is empty or too long.
    #[error("{0}")]
    Other(String),
    /// There is no HTTP client.
    #[error("failed to prepare requests to the provider")]
    Client(#[source] reqwest::Error),
}

/// The URLs, parsed.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) issuer: IssuerUrl,
    pub(super) redirect_url: RedirectUrl,
    pub(super) is_loopback: bool,
}

impl OpenIdSettings {
    pub(super) fn checked(&self) -> Result<Checked, OpenIdError> {
        let issuer = issuer(&self.issuer)?;
        let redirect_url = redirect_url(&self.redirect_url)?;
        let texts = [&self.client_id, &self.groups_claim];
        let all = texts
            .into_iter()
            .chain(&self.client_secret)
            .chain(&self.scopes);
        for text in all {
            if text.is_empty() || text.len() > MAX_TEXT_BYTES {
                return Err(OpenIdError::Other(format!(
                    "a client id, a secret, a scope or a claim has {} bytes; 1 to {MAX_TEXT_BYTES} are expected",
                    text.len()
                )));
            }
        }
        let is_loopback = is_loopback(issuer.url());
        Ok(Checked {
            issuer,
            redirect_url,
            is_loopback,
        })
    }

    /// Checks the URL of an issuer.
    ///
    /// # Errors
    ///
    /// When it is not `https`, nor `http` on a loopback address, when it has a user, a query or a fragment, or when it is
    /// longer than the store takes.
    pub fn check_issuer(text: &str) -> Result<(), OpenIdError> {
        issuer(text).map(drop)
    }

    /// Checks the URL to which the provider sends browsers back.
    ///
    /// # Errors
    ///
    /// As [`check_issuer`](Self::check_issuer), or when its path is not [`CALLBACK_PATH`].
    pub fn check_redirect_url(text: &str) -> Result<(), OpenIdError> {
        redirect_url(text).map(drop)
    }
}

fn issuer(text: &str) -> Result<IssuerUrl, OpenIdError> {
    let problem = |why: &str| {
        OpenIdError::Issuer(format!(
            "{text:?} given: {why}; a URL such as https://id.example.com/realms/main is expected, as the provider writes it"
        ))
    };
    if text.len() > MAX_ISSUER_BYTES {
        return Err(OpenIdError::Issuer(format!(
            "a URL of {} bytes given; an issuer of at most {MAX_ISSUER_BYTES} is expected",
            text.len()
        )));
    }
    checked_url(text).map_err(problem)?;
    IssuerUrl::new(text.to_owned()).map_err(|error| problem(&error.to_string()))
}

fn redirect_url(text: &str) -> Result<RedirectUrl, OpenIdError> {
    let problem = |why: &str| {
        OpenIdError::RedirectUrl(format!(
            "{text:?} given: {why}; the public URL of the server is expected, followed by {CALLBACK_PATH}"
        ))
    };
    let url = checked_url(text).map_err(problem)?;
    if url.path() != CALLBACK_PATH {
        return Err(problem("it has another path"));
    }
    RedirectUrl::new(text.to_owned()).map_err(|error| problem(&error.to_string()))
}

fn checked_url(text: &str) -> Result<Url, &'static str> {
    if text.len() > MAX_TEXT_BYTES {
        return Err("it is too long");
    }
    let url = Url::parse(text).map_err(|_| "it is no URL")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it has a user or a password");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it has a query or a fragment");
    }
    match url.scheme() {
        "https" => Ok(url),
        // The network cannot read what does not leave the machine.
        "http" if is_loopback(&url) => Ok(url),
        "http" => Err("it has no TLS"),
        _ => Err("it is neither https nor http"),
    }
}

fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_has_tls_or_is_on_this_machine() {
        for good in [
            "https://id.example.com",
            "https://id.example.com/realms/main",
            "http://127.0.0.1:5000",
            "http://[::1]:5000/x",
            "http://localhost",
        ] {
            let checked = OpenIdSettings::check_issuer(good);
            assert!(checked.is_ok(), "{good}: {checked:?}");
        }
        for bad in [
            "",
            "id.example.com",
            "http://id.example.com",
            "ftp://id.example.com",
            "https://user:password@id.example.com",
            "https://id.example.com?x=y",
            "https://id.example.com#x",
        ] {
            let error = OpenIdSettings::check_issuer(bad).expect_err(bad);
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
        let longest = format!("https://{:x<504}", "id.example.com/");
        assert!(OpenIdSettings::check_issuer(&longest).is_ok());
        let error = OpenIdSettings::check_issuer(&format!("{longest}x")).expect_err("too long");
        assert!(error.to_string().contains("at most 512"), "{error}");
    }

    #[test]
    fn a_redirect_url_ends_in_the_path_of_the_callback() {
        let good = format!("https://cueline.example.com{CALLBACK_PATH}");
        assert!(OpenIdSettings::check_redirect_url(&good).is_ok());
        for bad in [
            "https://cueline.example.com".to_owned(),
            format!("http://cueline.example.com{CALLBACK_PATH}"),
            format!("{good}/"),
            format!("{good}?x=y"),
        ] {
            assert!(OpenIdSettings::check_redirect_url(&bad).is_err(), "{bad}");
        }
    }
}
