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

/// The secret is shown once. It and the password are typed and no part of the command, which a shell keeps.
fn hint(url: &str, secret: &SetupSecret) -> String {
    format!(
        "setup    there is no user yet; within an hour, the first one can be created, who may do everything:\n         \
         run    curl --json @- {url}/api/v1/setup\n         \
         type   {{\"secret\": \"{}\", \"name\": \"NAME\", \"password\": \"PASSWORD\"}}   and Ctrl-D\n",
        secret.expose()
    )
}
