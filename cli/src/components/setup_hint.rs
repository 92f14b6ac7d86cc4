//! Says at the start of a scheduler how to create the first user.

use cueline_api::ApiState;
use cueline_interface::url::{base_url, is_readable_on_the_way};

/// How to create the first user of the API at `url`. `None` if there is a user, or if that is not known.
pub(crate) async fn setup_hint(state: &ApiState, url: &str) -> Option<String> {
    match state.setup_secret().await {
        Ok(secret) => secret.map(|secret| hint(url, secret.expose())),
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
fn hint(url: &str, secret: &str) -> String {
    let url = on_this_machine(url);
    let is_readable = base_url(&url).is_ok_and(|url| is_readable_on_the_way(&url));
    let flag = if is_readable { " --insecure-http" } else { "" };
    format!(
        "setup    there is no user yet; within an hour, the first one can be created, who may do everything:\n         \
         run    cueline setup --url {url}{flag}\n         \
         type   {secret}   when it asks for the set-up secret\n"
    )
}

/// The address for commands on this machine. A server that listens on all addresses also listens on the loopback one.
fn on_this_machine(url: &str) -> String {
    url.replacen("://0.0.0.0:", "://127.0.0.1:", 1)
        .replacen("://[::]:", "://[::1]:", 1)
}

#[cfg(test)]
mod tests {
    use super::hint;

    #[test]
    fn the_command_works_on_this_machine_and_has_no_secret() {
        for (url, command) in [
            ("http://127.0.0.1:7800", "--url http://127.0.0.1:7800"),
            ("http://0.0.0.0:7800", "--url http://127.0.0.1:7800"),
            ("https://[::]:7800", "--url https://[::1]:7800"),
            (
                "http://10.0.0.1:80",
                "--url http://10.0.0.1:80 --insecure-http",
            ),
            ("https://10.0.0.1:80", "--url https://10.0.0.1:80"),
        ] {
            let text = hint(url, "the-secret");
            let line = format!("  run    cueline setup {command}\n");
            assert!(text.contains(&line), "{text}");
            assert_eq!(text.matches("the-secret").count(), 1, "{text}");
        }
    }
}
