//! Asks a provider: discovery, the exchange of a code, and what it says about a person.

use std::sync::Arc;
use std::time::Duration;

use cueline_model::Timestamp;
use cueline_store::MAX_SUBJECT_BYTES;
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClientAuthMethod, CoreGenderClaim, CoreProviderMetadata,
};
use openidconnect::url::Url;
use openidconnect::{
    AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret, CsrfToken, Nonce,
    OAuth2TokenResponse as _, PkceCodeChallenge, PkceCodeVerifier, RequestTokenError, Scope,
    SubjectIdentifier, UserInfoClaims,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::claims::{self, Identity, OtherClaims};
use super::http::{HttpError, ProviderHttp};
use super::pending::Pending;
use super::settings::{Checked, OpenIdError, OpenIdSettings};
use super::verify::{OpenIdClient, TokenAnswer, TokenError, Verified, is_unknown_key, verify};
use crate::problem::chain;

/// For how long discovery and keys are used.
const METADATA_VALID: Duration = Duration::from_hours(1);
/// After a failed discovery, further logins fail at once for this time.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Keys that an ID token asks for are fetched at most this often.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// The most bytes of a text of the provider in an error.
const MAX_DETAIL_BYTES: usize = 300;

/// Why there is no identity. The words have no secrets: neither code, nor tokens, nor the client's secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LoginFailure {
    /// The provider does not answer, or not in a way that this server understands.
    #[error("{0}")]
    Unavailable(String),
    /// The provider refuses the login, or what it says is not valid.
    #[error("{0}")]
    Refused(String),
}

/// One provider, with what is known of it.
#[derive(Debug)]
pub(crate) struct Provider {
    http: ProviderHttp,
    checked: Checked,
    client_id: ClientId,
    client_secret: Option<ClientSecret>,
    scopes: Vec<Scope>,
    groups_claim: String,
    /// Locked during a discovery, so that there is one at a time.
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    client: Option<Arc<OpenIdClient>>,
    fetched_at: Option<Instant>,
    refreshed_at: Option<Instant>,
    failed: Option<(Instant, LoginFailure)>,
}

impl Provider {
    pub(super) fn new(settings: &OpenIdSettings, checked: Checked) -> Result<Self, OpenIdError> {
        let http = ProviderHttp::new(checked.is_loopback).map_err(OpenIdError::Client)?;
        // The crate requests `openid` itself.
        let scopes = settings.scopes.iter().filter(|scope| *scope != "openid");
        Ok(Self {
            http,
            checked,
            client_id: ClientId::new(settings.client_id.clone()),
            client_secret: settings.client_secret.clone().map(ClientSecret::new),
            scopes: scopes.cloned().map(Scope::new).collect(),
            groups_claim: settings.groups_claim.clone(),
            known: Mutex::new(Known::default()),
        })
    }

    /// Where the browser begins the login.
    pub(crate) async fn login_url(
        &self,
        pending: &Pending,
        now: Timestamp,
    ) -> Result<Url, LoginFailure> {
        let client = self.client().await?;
        let (state, nonce) = (pending.state(now), pending.nonce());
        let verifier = PkceCodeVerifier::new(pending.verifier());
        let request = client.authorize_url(
            CoreAuthenticationFlow::AuthorizationCode,
            move || CsrfToken::new(state),
            move || Nonce::new(nonce),
        );
        let (url, _, _) = request
            .add_scopes(self.scopes.iter().cloned())
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
            .url();
        Ok(url)
    }

    /// Exchanges the code, and verifies whom the provider has logged in.
    pub(crate) async fn identity(
        &self,
        code: String,
        pending: &Pending,
        now: Timestamp,
    ) -> Result<Identity, LoginFailure> {
        let client = self.client().await?;
        let answer = self.exchange(&client, code, pending).await?;
        let nonce = Nonce::new(pending.nonce());
        let (claims, client) = match verify(&client, &answer, &nonce, now) {
            Err(error) if is_unknown_key(&error) => {
                // The provider has changed its keys since they were fetched.
                let client = self.refreshed(client).await?;
                let claims = verify(&client, &answer, &nonce, now);
                (claims.map_err(|error| not_valid(&error))?, client)
            }
            verified => (verified.map_err(|error| not_valid(&error))?, client),
        };
        let mut groups = claims::groups(&claims.additional_claims().all, &self.groups_claim);
        let mut info = None;
        if groups.is_none() && client.user_info_url().is_some() {
            // Providers may put claims of scopes only there: OpenID Connect Core 1.0, section 5.4.
            let subject = claims.subject().clone();
            let found = self.user_info(&client, &answer, subject).await?;
            groups = claims::groups(&found.additional_claims().all, &self.groups_claim);
            info = Some(found);
        }
        if groups.is_none() {
            tracing::warn!(claim = %self.groups_claim, "the identity provider sent no groups of a user; check oidc_groups_claim and the scopes");
        }
        identity(&claims, info.as_ref(), groups.unwrap_or_default())
    }

    async fn exchange(
        &self,
        client: &OpenIdClient,
        code: String,
        pending: &Pending,
    ) -> Result<TokenAnswer, LoginFailure> {
        let request = client
            .exchange_code(AuthorizationCode::new(code))
            .map_err(|error| unavailable(&error.to_string()))?
            .set_pkce_verifier(PkceCodeVerifier::new(pending.verifier()));
        request
            .request_async(&self.http)
            .await
            .map_err(exchange_failed)
    }

    async fn user_info(
        &self,
        client: &OpenIdClient,
        answer: &TokenAnswer,
        subject: SubjectIdentifier,
    ) -> Result<UserInfoClaims<OtherClaims, CoreGenderClaim>, LoginFailure> {
        let request = client
            .user_info(answer.access_token().clone(), Some(subject))
            .map_err(|error| unavailable(&error.to_string()))?;
        let answered = request.request_async(&self.http).await;
        // The causes are left out: those of an answer that cannot be read have parts of it.
        answered.map_err(|error| unavailable(&format!("the user info endpoint: {error}")))
    }

    /// What is known of the provider; asks it if that is missing or too old.
    async fn client(&self) -> Result<Arc<OpenIdClient>, LoginFailure> {
        let mut known = self.known.lock().await;
        let now = Instant::now();
        let is_fresh = known
            .fetched_at
            .is_some_and(|at| now.saturating_duration_since(at) < METADATA_VALID);
        if let Some(client) = known.client.clone().filter(|_| is_fresh) {
            return Ok(client);
        }
        self.discover(&mut known).await
    }

    /// The client with keys that are newer than those of `used`, within the bound of their number.
    async fn refreshed(&self, used: Arc<OpenIdClient>) -> Result<Arc<OpenIdClient>, LoginFailure> {
        let mut known = self.known.lock().await;
        if let Some(client) = &known.client
            && !Arc::ptr_eq(client, &used)
        {
            return Ok(client.clone());
        }
        let now = Instant::now();
        let is_too_early = known
            .refreshed_at
            .is_some_and(|at| now.saturating_duration_since(at) < REFRESH_EVERY);
        if is_too_early {
            return Ok(used);
        }
        known.refreshed_at = Some(now);
        self.discover(&mut known).await
    }

    async fn discover(&self, known: &mut Known) -> Result<Arc<OpenIdClient>, LoginFailure> {
        let now = Instant::now();
        if let Some((at, failure)) = &known.failed
            && now.saturating_duration_since(*at) < RETRY_AFTER
        {
            return Err(failure.clone());
        }
        let issuer = self.checked.issuer.clone();
        match CoreProviderMetadata::discover_async(issuer, &self.http).await {
            Ok(metadata) => {
                let client = Arc::new(self.client_of(metadata));
                known.client = Some(client.clone());
                known.fetched_at = Some(now);
                known.failed = None;
                Ok(client)
            }
            Err(error) => {
                let failure = unavailable(&chain(&error));
                known.failed = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    fn client_of(&self, metadata: CoreProviderMetadata) -> OpenIdClient {
        let methods = metadata.token_endpoint_auth_methods_supported();
        let has = |method| methods.is_some_and(|methods| methods.contains(&method));
        // The header is the default of the standard, and every provider without a list takes it.
        let in_body = has(CoreClientAuthMethod::ClientSecretPost)
            && !has(CoreClientAuthMethod::ClientSecretBasic);
        let (id, secret) = (self.client_id.clone(), self.client_secret.clone());
        let client = OpenIdClient::from_provider_metadata(metadata, id, secret);
        let client = client.set_redirect_uri(self.checked.redirect_url.clone());
        if in_body {
            client.set_auth_type(AuthType::RequestBody)
        } else {
            client
        }
    }
}

fn identity(
    claims: &Verified,
    info: Option<&UserInfoClaims<OtherClaims, CoreGenderClaim>>,
    groups: Vec<String>,
) -> Result<Identity, LoginFailure> {
    let subject = claims.subject().as_str();
    if subject.is_empty() || subject.len() > MAX_SUBJECT_BYTES {
        return Err(LoginFailure::Refused(format!(
            "the subject of the ID token has {} bytes; 1 to {MAX_SUBJECT_BYTES} are allowed",
            subject.len()
        )));
    }
    if subject.chars().any(char::is_control) {
        return Err(LoginFailure::Refused(
            "the subject of the ID token has a control character, which is not allowed".to_owned(),
        ));
    }
    let user_name = claims.preferred_username();
    let user_name = user_name.or_else(|| info.and_then(UserInfoClaims::preferred_username));
    let email = claims
        .email()
        .or_else(|| info.and_then(UserInfoClaims::email));
    let shown = claims
        .name()
        .or_else(|| info.and_then(UserInfoClaims::name));
    let shown = shown.and_then(|name| name.get(None));
    Ok(Identity {
        subject: subject.to_owned(),
        name: claims::login_name([
            user_name.map(|name| name.as_str()),
            email.map(|email| email.as_str()),
            Some(subject),
        ]),
        display_name: shown.map_or_else(String::new, |name| claims::display_name(name.as_str())),
        groups,
    })
}

fn exchange_failed(error: RequestTokenError<HttpError, TokenError>) -> LoginFailure {
    match error {
        RequestTokenError::ServerResponse(answer) => LoginFailure::Refused(bounded(&format!(
            "the provider refuses the code: {}",
            answer.error()
        ))),
        RequestTokenError::Request(error) => unavailable(&chain(&error)),
        // The causes are left out: they have parts of the answer, which has tokens.
        RequestTokenError::Parse(..) => unavailable("the token endpoint's answer cannot be read"),
        RequestTokenError::Other(text) => unavailable(&text),
    }
}

fn not_valid(error: &ClaimsVerificationError) -> LoginFailure {
    let reason = chain(error);
    LoginFailure::Refused(bounded(&format!("the ID token is not valid: {reason}")))
}

fn unavailable(reason: &str) -> LoginFailure {
    LoginFailure::Unavailable(bounded(reason))
}

/// Texts of a provider may be long, and may have lines that look like those of this server.
fn bounded(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_DETAIL_BYTES);
    text[..end].chars().filter(|c| !c.is_control()).collect()
}
