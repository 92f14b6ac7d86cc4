//! What the settings of login by OpenID Connect need of each other.

use super::settings::Settings;

const ISSUER: &str = "oidc_issuer";
const CLIENT_ID: &str = "oidc_client_id";
const REDIRECT_URL: &str = "oidc_redirect_url";
const GRANTS: &str = "oidc_grants";
const CREATE_USERS: &str = "oidc_create_users";
/// What means nothing without an issuer.
const OTHERS: [&str; 8] = [
    CLIENT_ID,
    "oidc_client_secret_file",
    REDIRECT_URL,
    "oidc_scopes",
    "oidc_groups_claim",
    GRANTS,
    CREATE_USERS,
    "oidc_tokens_valid",
];

/// Reports settings that need others.
pub(super) fn check_openid(settings: &mut Settings) {
    if !settings.is_given(ISSUER) {
        let given = OTHERS.into_iter().find(|key| settings.is_given(key));
        if let Some(key) = given {
            settings.require(ISSUER, &format!("{key} needs it"));
        }
        return;
    }
    for (key, expected) in [
        (CLIENT_ID, "the id that the provider has given to Cueline"),
        (
            REDIRECT_URL,
            "the public URL of this server, followed by /api/v1/login/oidc/callback",
        ),
    ] {
        if !settings.is_given(key) {
            settings.require(key, expected);
        }
    }
    if settings.text(CREATE_USERS) == Some("true") && !settings.is_given(GRANTS) {
        settings.warnings.push(format!(
            "{CREATE_USERS}: without {GRANTS}, each person whom the provider knows becomes a user, without grants"
        ));
    }
}
