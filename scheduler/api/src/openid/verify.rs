//! Verifies ID tokens. Pure: the keys are those of the client, and the time is an argument.

use chrono::{DateTime, Utc};
use cueline_model::Timestamp;
use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreErrorResponseType, CoreGenderClaim, CoreJsonWebKey,
    CoreJweContentEncryptionAlgorithm, CoreJwsSigningAlgorithm as Algorithm, CoreRevocableToken,
    CoreRevocationErrorResponse, CoreTokenIntrospectionResponse, CoreTokenType,
};
use openidconnect::{
    AccessTokenHash, ClaimsVerificationError, Client, EmptyExtraTokenFields, EndpointMaybeSet,
    EndpointNotSet, EndpointSet, IdTokenClaims, IdTokenFields, IdTokenVerifier, Nonce,
    OAuth2TokenResponse as _, SignatureVerificationError, StandardErrorResponse,
    StandardTokenResponse, TokenResponse as _,
};

use super::claims::OtherClaims;

/// The signatures that count. A code of a shared secret does not, and no signature at all does not either.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RsaSsaPkcs1V15Sha256,
    Algorithm::RsaSsaPkcs1V15Sha384,
    Algorithm::RsaSsaPkcs1V15Sha512,
    Algorithm::RsaSsaPssSha256,
    Algorithm::RsaSsaPssSha384,
    Algorithm::RsaSsaPssSha512,
    Algorithm::EcdsaP256Sha256,
    Algorithm::EcdsaP384Sha384,
    Algorithm::EdDsa,
];

type Fields = IdTokenFields<
    OtherClaims,
    EmptyExtraTokenFields,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    Algorithm,
>;
pub(super) type TokenAnswer = StandardTokenResponse<Fields, CoreTokenType>;
pub(super) type TokenError = StandardErrorResponse<CoreErrorResponseType>;
pub(super) type Verified = IdTokenClaims<OtherClaims, CoreGenderClaim>;
pub(super) type OpenIdClient = Client<
    OtherClaims,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    TokenError,
    TokenAnswer,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// The verified claims of the ID token.
pub(super) fn verify(
    client: &OpenIdClient,
    answer: &TokenAnswer,
    nonce: &Nonce,
    now: Timestamp,
) -> Result<Verified, ClaimsVerificationError> {
    let other = |text: &str| ClaimsVerificationError::Other(text.to_owned());
    let token = answer
        .id_token()
        .ok_or_else(|| other("the provider sent no ID token; it has to know the scope openid"))?;
    let now: DateTime<Utc> = DateTime::from_timestamp_millis(now.as_millis())
        .ok_or_else(|| other("the clock of the database is out of range"))?;
    let verifier: IdTokenVerifier<'_, CoreJsonWebKey> = client
        .id_token_verifier()
        .set_allowed_algs(ALGORITHMS)
        .set_time_fn(move || now);
    let claims = token.claims(&verifier, nonce)?;
    let is_for_other = claims
        .authorized_party()
        .is_some_and(|party| party != client.client_id());
    if is_for_other {
        return Err(other("the ID token was issued to another client"));
    }
    if let Some(expected) = claims.access_token_hash() {
        let unusable = |_| other("the hash of the access token cannot be computed");
        let signature = ClaimsVerificationError::SignatureVerification;
        let (algorithm, key) = (
            token.signing_alg().map_err(signature)?,
            token.signing_key(&verifier).map_err(signature)?,
        );
        let hash = AccessTokenHash::from_token(answer.access_token(), algorithm, key);
        if hash.map_err(unusable)? != *expected {
            return Err(other("the access token does not belong to the ID token"));
        }
    }
    Ok(claims.clone())
}

/// Whether no known key has made the signature.
pub(super) fn is_unknown_key(error: &ClaimsVerificationError) -> bool {
    matches!(
        error,
        ClaimsVerificationError::SignatureVerification(SignatureVerificationError::NoMatchingKey)
    )
}
