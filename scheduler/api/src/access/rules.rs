//! What each request needs. This table is the only one, and a request without a row is refused.

use cueline_model::Right;

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Nothing.
    Public,
    /// To read in all namespaces, or nothing if the server's metrics are public.
    Scrape,
    /// A valid token or session. The handler decides about each object.
    AnyCaller,
    /// The right in one scope.
    In(Place, Right),
    /// The right in any scope. The handler leaves out or refuses the objects for which it is missing.
    Somewhere(Right),
}

/// Where the right is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In all namespaces.
    Cluster,
    /// In the group `{group}` of the path.
    GroupInPath,
    /// In the group of the job `{name}`.
    JobInPath,
    /// In the group of the job of the run `{id}`.
    RunInPath,
}

type Row = (&'static str, &'static str, Rule);

/// Method, route and rule. `GET` includes `HEAD`.
#[rustfmt::skip]
const RULES: &[Row] = {
    use Place::{Cluster, GroupInPath, JobInPath, RunInPath};
    use Right::{EditJobs, ManageAccounts, ManageWorkers, Operate, Read};
    use Rule::{AnyCaller, In, Public, Scrape, Somewhere};
    &[
        ("GET", "/livez", Public),
        ("GET", "/readyz", Public),
        ("GET", "/metrics", Scrape),
        ("GET", "/api/v1", AnyCaller),
        ("POST", "/api/v1/login", Public),
        ("GET", "/api/v1/login/oidc", Public),
        ("GET", "/api/v1/login/oidc/callback", Public),
        ("POST", "/api/v1/setup", Public),
        ("POST", "/api/v1/logout", AnyCaller),
        ("GET", "/api/v1/session", AnyCaller),
        ("GET", "/api/v1/users", Somewhere(ManageAccounts)),
        ("POST", "/api/v1/users", Somewhere(ManageAccounts)),
        ("GET", "/api/v1/users/{name}", Somewhere(ManageAccounts)),
        ("PATCH", "/api/v1/users/{name}", Somewhere(ManageAccounts)),
        ("DELETE", "/api/v1/users/{name}", Somewhere(ManageAccounts)),
        ("POST", "/api/v1/users/{name}/password", AnyCaller),
        ("GET", "/api/v1/tokens", AnyCaller),
        ("POST", "/api/v1/tokens", AnyCaller),
        ("DELETE", "/api/v1/tokens/{id}", AnyCaller),
        ("GET", "/api/v1/jobs", Somewhere(Read)),
        ("POST", "/api/v1/jobs/apply", Somewhere(EditJobs)),
        ("GET", "/api/v1/jobs/{name}", In(JobInPath, Read)),
        ("DELETE", "/api/v1/jobs/{name}", In(JobInPath, EditJobs)),
        ("POST", "/api/v1/jobs/{name}/pause", In(JobInPath, Operate)),
        ("POST", "/api/v1/jobs/{name}/resume", In(JobInPath, Operate)),
        ("POST", "/api/v1/jobs/{name}/trigger", In(JobInPath, Operate)),
        ("GET", "/api/v1/jobs/{name}/next", In(JobInPath, Read)),
        ("GET", "/api/v1/jobs/{name}/ledger", In(JobInPath, Read)),
        ("POST", "/api/v1/preview", Somewhere(Read)),
        ("GET", "/api/v1/runs", Somewhere(Read)),
        ("GET", "/api/v1/runs/{id}", In(RunInPath, Read)),
        ("GET", "/api/v1/runs/{id}/logs", In(RunInPath, Read)),
        ("POST", "/api/v1/runs/{id}/cancel", In(RunInPath, Operate)),
        ("GET", "/api/v1/queues", Somewhere(Read)),
        ("GET", "/api/v1/queues/{group}/{executor}", In(GroupInPath, Read)),
        ("POST", "/api/v1/queues/{group}/{executor}/drain", In(GroupInPath, Operate)),
        ("POST", "/api/v1/queues/{group}/{executor}/purge", In(GroupInPath, Operate)),
        ("POST", "/api/v1/queues/{group}/{executor}/replay", In(GroupInPath, Operate)),
        ("GET", "/api/v1/dead", In(Cluster, Read)),
        ("GET", "/api/v1/dead/{id}", In(Cluster, Read)),
        ("POST", "/api/v1/dead/replay", In(Cluster, Operate)),
        ("POST", "/api/v1/dead/delete", In(Cluster, Operate)),
        ("GET", "/api/v1/enrolment-tokens", Somewhere(ManageWorkers)),
        ("POST", "/api/v1/enrolment-tokens", Somewhere(ManageWorkers)),
        ("DELETE", "/api/v1/enrolment-tokens/{id}", Somewhere(ManageWorkers)),
        ("GET", "/api/v1/worker-keys", Somewhere(ManageWorkers)),
        ("POST", "/api/v1/worker-keys/{group}/{executor}/{key}/revoke", In(GroupInPath, ManageWorkers)),
        ("POST", "/api/v1/worker-keys/{group}/{executor}/{key}/allow", In(GroupInPath, ManageWorkers)),
        ("GET", "/api/v1/executors", Somewhere(Read)),
        ("GET", "/api/v1/stats", In(Cluster, Read)),
    ]
};

/// What the table says about a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Its row.
    Rule(Rule),
    /// The route has rows for other methods only: the value of the header `Allow`, and whether all of them are public.
    OtherMethods { allow: String, are_public: bool },
    /// The route has no row.
    Nothing,
}

/// What a request to the route needs. The route is the template that the router has matched.
pub(super) fn find(method: &str, route: &str) -> Found {
    let method = if method == "HEAD" { "GET" } else { method };
    let rows = || RULES.iter().filter(move |row| row.1 == route);
    if let Some((_, _, rule)) = rows().find(|row| row.0 == method) {
        return Found::Rule(*rule);
    }
    let allow: Vec<&str> = rows()
        .map(|row| if row.0 == "GET" { "GET,HEAD" } else { row.0 })
        .collect();
    if allow.is_empty() {
        return Found::Nothing;
    }
    Found::OtherMethods {
        allow: allow.join(","),
        are_public: rows().all(|row| row.2 == Rule::Public),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ROUTER: &str = include_str!("../lib.rs");

    /// Method and path of each `.route("PATH", get(…).post(…))` in the source of the router.
    fn routes() -> BTreeSet<(String, String)> {
        let mut routes = BTreeSet::new();
        let rest = ROUTER.split(".route(").skip(1);
        for call in rest {
            let path = call.split('"').nth(1).expect("a path");
            let end = call.find("\n        .").unwrap_or(call.len());
            let end = call.find(';').map_or(end, |semicolon| semicolon.min(end));
            for method in ["get", "post", "patch", "delete", "put"] {
                let handlers = &call[..end];
                let is_there = [" ", ".", "\n"]
                    .iter()
                    .any(|before| handlers.contains(&format!("{before}{method}(")));
                if is_there {
                    routes.insert((method.to_uppercase(), full(path)));
                }
            }
        }
        routes
    }

    fn full(path: &str) -> String {
        match path {
            "/livez" | "/readyz" | "/metrics" => path.to_owned(),
            whole if whole.starts_with("/api/") => whole.to_owned(),
            "/" => "/api/v1".to_owned(),
            other => format!("/api/v1{other}"),
        }
    }

    #[test]
    fn each_route_has_a_row_and_each_row_a_route() {
        let rows = RULES
            .iter()
            .map(|(m, r, _)| ((*m).to_owned(), (*r).to_owned()));
        let rows: BTreeSet<(String, String)> = rows.collect();
        assert_eq!(rows.len(), RULES.len(), "a row is there twice");
        let routes = routes();
        let without_row: Vec<_> = routes.difference(&rows).collect();
        let without_route: Vec<_> = rows.difference(&routes).collect();
        assert_eq!(
            (without_row, without_route),
            (Vec::new(), Vec::new()),
            "routes without a row, and rows without a route"
        );
    }

    #[test]
    fn nothing_is_public_but_probes_login_and_setup() {
        let public = RULES.iter().filter(|row| row.2 == Rule::Public);
        let public: Vec<&str> = public.map(|row| row.1).collect();
        assert_eq!(
            public,
            [
                "/livez",
                "/readyz",
                "/api/v1/login",
                "/api/v1/login/oidc",
                "/api/v1/login/oidc/callback",
                "/api/v1/setup"
            ]
        );
    }

    #[test]
    fn what_is_not_in_the_table_is_not_found_in_it() {
        assert_eq!(find("HEAD", "/livez"), Found::Rule(Rule::Public));
        assert_eq!(find("GET", "/api/v1/nonsense"), Found::Nothing);
        let other = |allow: &str, are_public| Found::OtherMethods {
            allow: allow.to_owned(),
            are_public,
        };
        assert_eq!(find("POST", "/livez"), other("GET,HEAD", true));
        assert_eq!(
            find("PUT", "/api/v1/jobs/{name}"),
            other("GET,HEAD,DELETE", false)
        );
    }
}
