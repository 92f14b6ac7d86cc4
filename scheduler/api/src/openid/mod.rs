//! Login by OpenID Connect: what a provider says about a person, and which grants follow from it.
//!
//! The protocol and its cryptography are those of the crate `openidconnect`. Nothing here reads or writes the store: the
//! routes in `accounts` find or create the user. Nothing is fetched at the start of the process, so a provider that does not
//! answer stops only logins by it.

mod claims;
mod http;
mod mapping;
mod pending;
mod provider;
mod settings;
mod verify;

use cueline_model::DurationMs;
use openidconnect::url::Url;

pub(crate) use claims::Identity;
pub(crate) use pending::{Pending, StateError, VALID_S};
pub(crate) use provider::{LoginFailure, Provider};

pub use mapping::{GrantMapping, GrantRule, MAX_GRANT_RULES, MappingError};
pub use settings::{OpenIdError, OpenIdSettings};

/// The path of the route that ends a login. The redirect URL of the settings ends in it.
pub const CALLBACK_PATH: &str = "/api/v1/login/oidc/callback";

/// For how long the API tokens of a user of a provider count after the user's last login, by default: 30 days.
pub const TOKENS_VALID: DurationMs = DurationMs::secs(30 * 24 * 3_600);

/// Login by one provider.
#[derive(Debug)]
pub struct OpenId {
    settings: OpenIdSettings,
    provider: Provider,
}

impl OpenId {
    /// Checks the settings. It sends nothing.
    ///
    /// # Errors
    ///
    /// When a setting is not valid, or when the system's certificates cannot be read.
    pub fn new(settings: OpenIdSettings) -> Result<Self, OpenIdError> {
        let checked = settings.checked()?;
        let provider = Provider::new(&settings, checked)?;
        Ok(Self { settings, provider })
    }

    pub(crate) fn settings(&self) -> &OpenIdSettings {
        &self.settings
    }

    pub(crate) fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Whether browsers reach this server with TLS, also where a proxy ends it.
    pub(crate) fn has_tls(&self) -> bool {
        Url::parse(&self.settings.redirect_url).is_ok_and(|url| url.scheme() == "https")
    }
}
