//! Says at the start of a scheduler how to create the first user.

use cueline_api::{ApiState, SetupSecret};

/// How to create the first user of the API at `url`. `None` if there is a user, or if that is not known.
pub(crate) async fn setup_hint(state: &ApiState, url: &str) -> Option<String> {
    match state.setup_secret().await {
        Ok(secret) => secret.map(|secret| hint(url, &secret)),
        Err(problem) => {
            tracing::warn!(
                error = problem.detail,
                "failed to make a set-up secret; the API works with its token, and a restart tries again"
            );
            None
        }
    }
}

/// The secret is shown once. The password is not part of the command, so that it is in no shell history.
fn hint(url: &str, secret: &SetupSecret) -> String {
    format!(
        "setup    there is no user yet; within an hour, this creates the first one, who may do everything:\n         \
         curl --json @- {url}/api/v1/setup\n         \
         {{\"secret\": \"{}\", \"name\": \"NAME\", \"password\": \"PASSWORD\"}}\n",
        secret.expose()
    )
}
