//! An OpenID Connect provider that says what a test tells it to.

use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use openidconnect::core::{CoreEdDsaPrivateSigningKey, CoreJsonWebKeySet, CoreJwsSigningAlgorithm};
use openidconnect::{JsonWebKeyId, PrivateSigningKey as _};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

pub(crate) const CLIENT_ID: &str = "cueline";
pub(crate) const CLIENT_SECRET: &str = "a secret of the client";
pub(crate) const CODE: &str = "the-code";

/// What the provider says.
pub(crate) struct Says {
    /// The time of the database, in seconds.
    pub(crate) now_s: i64,
    /// What the last login asked for.
    pub(crate) nonce: String,
    pub(crate) challenge: String,
    /// Claims of the ID token instead of the usual ones; `null` for none.
    pub(crate) claims: Map<String, Value>,
    /// The head of the ID token instead of the usual one.
    pub(crate) head: Option<Value>,
    /// The keys that sign, and that are published.
    pub(crate) signs: u8,
    pub(crate) publishes: u8,
    /// What discovery answers instead of the usual document.
    pub(crate) discovery: Option<String>,
    pub(crate) discoveries: u32,
}

#[derive(Clone)]
pub(crate) struct Provider {
    pub(crate) issuer: String,
    says: Arc<Mutex<Says>>,
}

/// A key that follows from a number, which is its id as well.
fn key(number: u8) -> CoreEdDsaPrivateSigningKey {
    // PKCS #8 of an Ed25519 key: RFC 8410, section 7.
    let mut der = vec![
        0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
    ];
    der.extend([number; 32]);
    let text = STANDARD.encode(der);
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    let id = JsonWebKeyId::new(number.to_string());
    CoreEdDsaPrivateSigningKey::from_ed25519_pem(&pem, Some(id)).expect("a key")
}

impl Provider {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        let provider = Self {
            issuer: format!("http://{address}"),
            says: Arc::new(Mutex::new(Says {
                now_s: 0,
                nonce: String::new(),
                challenge: String::new(),
                claims: Map::new(),
                head: None,
                signs: 1,
                publishes: 1,
                discovery: None,
                discoveries: 0,
            })),
        };
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        provider
    }

    pub(crate) fn says(&self) -> MutexGuard<'_, Says> {
        self.says.lock().expect("no panic")
    }

    /// Replaces claims of the next ID tokens.
    pub(crate) fn claims(&self, claims: &Value) {
        let object = claims.as_object().expect("an object");
        self.says().claims.clone_from(object);
    }
}

async fn discovery(
    State(provider): State<Provider>,
) -> ([(&'static str, &'static str); 1], String) {
    let mut says = provider.says();
    says.discoveries += 1;
    let issuer = &provider.issuer;
    let usual = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        // A provider that lists more than Cueline takes.
        "id_token_signing_alg_values_supported": ["EdDSA", "HS256", "none"],
    });
    let text = says.discovery.clone().unwrap_or_else(|| usual.to_string());
    ([("content-type", "application/json")], text)
}

async fn keys(State(provider): State<Provider>) -> Json<Value> {
    let published = key(provider.says().publishes).as_verification_key();
    let set = CoreJsonWebKeySet::new(vec![published]);
    Json(serde_json::to_value(set).expect("JSON"))
}

async fn token(
    State(provider): State<Provider>,
    Form(fields): Form<Vec<(String, String)>>,
) -> (StatusCode, Json<Value>) {
    let says = provider.says();
    let given = |wanted: &str| {
        let field = fields.iter().find(|(name, _)| name == wanted);
        field.map_or("", |(_, value)| value.as_str())
    };
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(given("code_verifier")));
    if given("code") != CODE || challenge != says.challenge {
        let error = json!({ "error": "invalid_grant" });
        return (StatusCode::BAD_REQUEST, Json(error));
    }
    let answer = json!({
        "access_token": "an-access-token",
        "token_type": "Bearer",
        "id_token": id_token(&provider.issuer, &says),
    });
    (StatusCode::OK, Json(answer))
}

fn id_token(issuer: &str, says: &Says) -> String {
    let usual = json!({
        "iss": issuer,
        "aud": CLIENT_ID,
        "sub": "subject-1",
        "iat": says.now_s,
        "exp": says.now_s + 300,
        "nonce": says.nonce,
        "preferred_username": "alice",
        "name": "Alice Doe",
        "groups": ["operators"],
    });
    let mut claims = usual.as_object().expect("an object").clone();
    claims.extend(says.claims.clone());
    claims.retain(|_, value| !value.is_null());
    let kid = says.signs.to_string();
    let head = json!({ "alg": "EdDSA", "typ": "JWT", "kid": kid });
    let head = says.head.clone().unwrap_or(head);
    let part = |value: String| URL_SAFE_NO_PAD.encode(value);
    let signed = format!(
        "{}.{}",
        part(head.to_string()),
        part(Value::Object(claims).to_string())
    );
    let signature = match head["alg"].as_str() {
        Some("none") => Vec::new(),
        Some("HS256") => hmac(signed.as_bytes()),
        _ => {
            let algorithm = CoreJwsSigningAlgorithm::EdDsa;
            let signature = key(says.signs).sign(&algorithm, signed.as_bytes());
            signature.expect("a signature")
        }
    };
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// A code that the client's secret is enough for.
fn hmac(text: &[u8]) -> Vec<u8> {
    use hmac::{Hmac, KeyInit as _, Mac as _};
    let code = Hmac::<Sha256>::new_from_slice(CLIENT_SECRET.as_bytes());
    let code = code.expect("any length").chain_update(text).finalize();
    let code: [u8; 32] = code.into_bytes().into();
    code.to_vec()
}
