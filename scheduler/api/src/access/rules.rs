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

impl Rule {
    /// Whether the request is about what belongs to a namespace. Accounts and what only the whole server has do not.
    pub(super) fn is_in_namespace(self) -> bool {
        match self {
            Self::Public | Self::Scrape | Self::AnyCaller => false,
            Self::In(place, _) => place != Place::Cluster,
            Self::Somewhere(right) => right != Right::ManageAccounts,
        }
    }
}

/// Where the right is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In all namespaces.
    Cluster,
    /// In the whole namespace of the request.
    Namespace,
    /// In the group `{group}` of the path.
    GroupInPath,
    /// In the group of the job `{name}`.
    JobInPath,
    /// In the group of the job `{name}`, or of the newest version of a deleted one.
    JobHistoryInPath,
    /// In the group of the job of the run `{id}`.
    RunInPath,
}

type Row = (&'static str, &'static str, &'static str, Rule);

/// Method, route, action and rule. `GET` includes `HEAD`. The audit log has a refusal under this action. It is the action of
/// the change too, where the request makes one kind of change.
#[rustfmt::skip]
const RULES: &[Row] = {
    use Place::{Cluster, GroupInPath, JobHistoryInPath, JobInPath, Namespace, RunInPath};
    use Right::{EditJobs, EditScripts, ManageAccounts, ManageChannels, ManageWorkers, Operate, Read, ReadAudit};
    use Rule::{AnyCaller, In, Public, Scrape, Somewhere};
    &[
        ("GET", "/livez", "server.live", Public),
        ("GET", "/readyz", "server.ready", Public),
        ("GET", "/metrics", "server.metrics", Scrape),
        ("GET", "/api/openapi.json", "server.openapi", Public),
        ("GET", "/api/docs", "server.docs", Public),
        ("GET", "/api/v1", "server.index", AnyCaller),
        ("POST", "/api/v1/login", "session.login", Public),
        ("GET", "/api/v1/login/oidc", "session.login", Public),
        ("GET", "/api/v1/login/oidc/callback", "session.login", Public),
        ("POST", "/api/v1/setup", "user.create", Public),
        ("POST", "/api/v1/logout", "session.logout", AnyCaller),
        ("GET", "/api/v1/session", "session.show", AnyCaller),
        ("GET", "/api/v1/users", "user.list", Somewhere(ManageAccounts)),
        ("POST", "/api/v1/users", "user.create", Somewhere(ManageAccounts)),
        ("GET", "/api/v1/users/{name}", "user.show", Somewhere(ManageAccounts)),
        ("PATCH", "/api/v1/users/{name}", "user.change", Somewhere(ManageAccounts)),
        ("DELETE", "/api/v1/users/{name}", "user.delete", Somewhere(ManageAccounts)),
        ("POST", "/api/v1/users/{name}/password", "user.change", AnyCaller),
        ("GET", "/api/v1/tokens", "token.list", AnyCaller),
        ("POST", "/api/v1/tokens", "token.create", AnyCaller),
        ("DELETE", "/api/v1/tokens/{id}", "token.revoke", AnyCaller),
        ("GET", "/api/v1/jobs", "job.list", Somewhere(Read)),
        ("POST", "/api/v1/jobs/apply", "job.apply", Somewhere(EditJobs)),
        ("GET", "/api/v1/jobs/{name}", "job.show", In(JobInPath, Read)),
        ("PUT", "/api/v1/jobs/{name}", "job.apply", Somewhere(EditJobs)),
        ("DELETE", "/api/v1/jobs/{name}", "job.delete", In(JobInPath, EditJobs)),
        ("POST", "/api/v1/jobs/{name}/pause", "job.pause", In(JobInPath, Operate)),
        ("POST", "/api/v1/jobs/{name}/resume", "job.resume", In(JobInPath, Operate)),
        ("POST", "/api/v1/jobs/{name}/trigger", "job.trigger", In(JobInPath, Operate)),
        ("GET", "/api/v1/jobs/{name}/next", "job.show", In(JobInPath, Read)),
        ("GET", "/api/v1/jobs/{name}/ledger", "job.show", In(JobInPath, Read)),
        ("GET", "/api/v1/jobs/{name}/explain", "job.show", In(JobInPath, Read)),
        ("GET", "/api/v1/jobs/{name}/retention", "job.show", In(JobInPath, Read)),
        ("GET", "/api/v1/jobs/{name}/versions", "job.show", In(JobHistoryInPath, Read)),
        ("GET", "/api/v1/jobs/{name}/versions/{version}", "job.show", In(JobHistoryInPath, Read)),
        ("POST", "/api/v1/jobs/{name}/restore", "job.restore", In(JobHistoryInPath, EditJobs)),
        ("GET", "/api/v1/jobs/{name}/backfills", "backfill.list", In(JobInPath, Read)),
        ("POST", "/api/v1/jobs/{name}/backfills", "backfill.start", In(JobInPath, Operate)),
        ("GET", "/api/v1/jobs/{name}/backfills/{id}", "backfill.show", In(JobInPath, Read)),
        ("POST", "/api/v1/jobs/{name}/backfills/{id}/pause", "backfill.pause", In(JobInPath, Operate)),
        ("POST", "/api/v1/jobs/{name}/backfills/{id}/resume", "backfill.resume", In(JobInPath, Operate)),
        ("POST", "/api/v1/jobs/{name}/backfills/{id}/cancel", "backfill.cancel", In(JobInPath, Operate)),
        ("GET", "/api/v1/backfills", "backfill.list", In(Namespace, Read)),
        ("POST", "/api/v1/preview", "job.preview", Somewhere(Read)),
        ("GET", "/api/v1/calendars", "calendar.list", In(Namespace, Read)),
        ("POST", "/api/v1/calendars/apply", "calendar.apply", In(Namespace, EditJobs)),
        ("GET", "/api/v1/calendars/{name}", "calendar.show", In(Namespace, Read)),
        ("PUT", "/api/v1/calendars/{name}", "calendar.apply", In(Namespace, EditJobs)),
        ("DELETE", "/api/v1/calendars/{name}", "calendar.delete", In(Namespace, EditJobs)),
        ("GET", "/api/v1/scripts", "script.list", In(Namespace, Read)),
        ("POST", "/api/v1/scripts/apply", "script.apply", In(Namespace, EditScripts)),
        ("GET", "/api/v1/scripts/{name}", "script.show", In(Namespace, Read)),
        ("PUT", "/api/v1/scripts/{name}", "script.apply", In(Namespace, EditScripts)),
        ("DELETE", "/api/v1/scripts/{name}", "script.delete", In(Namespace, EditScripts)),
        ("GET", "/api/v1/scripts/{name}/versions", "script.show", In(Namespace, Read)),
        ("GET", "/api/v1/scripts/{name}/versions/{version}", "script.show", In(Namespace, Read)),
        ("POST", "/api/v1/scripts/{name}/restore", "script.restore", In(Namespace, EditScripts)),
        ("GET", "/api/v1/windows", "window.list", In(Namespace, Read)),
        ("POST", "/api/v1/windows", "window.add", In(Namespace, Operate)),
        ("DELETE", "/api/v1/windows/{id}", "window.delete", In(Namespace, Operate)),
        ("GET", "/api/v1/pauses", "pause.list", In(Namespace, Read)),
        ("POST", "/api/v1/pauses", "pause.start", In(Namespace, Operate)),
        ("DELETE", "/api/v1/pauses/{id}", "pause.end", In(Namespace, Operate)),
        ("GET", "/api/v1/alarms", "alarm.list", In(Namespace, Read)),
        ("GET", "/api/v1/alarms/rules", "alarm_rule.list", In(Namespace, Read)),
        ("GET", "/api/v1/alarms/rules/{name}", "alarm_rule.show", In(Namespace, Read)),
        ("PUT", "/api/v1/alarms/rules/{name}", "alarm_rule.apply", In(Namespace, EditJobs)),
        ("DELETE", "/api/v1/alarms/rules/{name}", "alarm_rule.delete", In(Namespace, EditJobs)),
        ("GET", "/api/v1/alarms/channels", "alarm_channel.list", In(Namespace, Read)),
        ("GET", "/api/v1/alarms/channels/{name}", "alarm_channel.show", In(Namespace, Read)),
        ("PUT", "/api/v1/alarms/channels/{name}", "alarm_channel.apply", In(Namespace, ManageChannels)),
        ("DELETE", "/api/v1/alarms/channels/{name}", "alarm_channel.delete", In(Namespace, ManageChannels)),
        ("POST", "/api/v1/alarms/channels/{name}/test", "alarm_channel.test", In(Namespace, Operate)),
        ("GET", "/api/v1/alarms/silences", "alarm_silence.list", In(Namespace, Read)),
        ("POST", "/api/v1/alarms/silences", "alarm_silence.create", In(Namespace, Operate)),
        ("DELETE", "/api/v1/alarms/silences/{id}", "alarm_silence.delete", In(Namespace, Operate)),
        ("GET", "/api/v1/alarms/deliveries", "alarm_delivery.list", In(Namespace, Read)),
        ("GET", "/api/v1/alarms/deliveries/{id}", "alarm_delivery.show", In(Namespace, Read)),
        ("GET", "/api/v1/forecast", "job.forecast", Somewhere(Read)),
        ("GET", "/api/v1/runs", "run.list", Somewhere(Read)),
        ("POST", "/api/v1/runs/prune", "run.prune", Somewhere(EditJobs)),
        ("GET", "/api/v1/runs/{id}", "run.show", In(RunInPath, Read)),
        ("GET", "/api/v1/runs/{id}/explain", "run.show", In(RunInPath, Read)),
        ("GET", "/api/v1/runs/{id}/logs", "run.show", In(RunInPath, Read)),
        ("GET", "/api/v1/runs/{id}/logs/events", "run.show", In(RunInPath, Read)),
        ("POST", "/api/v1/runs/{id}/cancel", "run.cancel", In(RunInPath, Operate)),
        ("GET", "/api/v1/flows", "flow.list", Somewhere(Read)),
        ("GET", "/api/v1/flows/{id}", "flow.show", In(RunInPath, Read)),
        ("POST", "/api/v1/flows/{id}/cancel", "flow.cancel", In(RunInPath, Operate)),
        ("POST", "/api/v1/flows/{id}/retry", "flow.retry", In(RunInPath, Operate)),
        ("GET", "/api/v1/limits", "limit.list", Somewhere(Read)),
        ("PUT", "/api/v1/limits/{group}", "limit.set", Somewhere(EditJobs)),
        ("DELETE", "/api/v1/limits/{group}", "limit.delete", Somewhere(EditJobs)),
        ("GET", "/api/v1/retention", "retention.list", Somewhere(Read)),
        ("PUT", "/api/v1/retention/{group}", "retention.set", Somewhere(EditJobs)),
        ("DELETE", "/api/v1/retention/{group}", "retention.delete", Somewhere(EditJobs)),
        ("GET", "/api/v1/queues", "queue.list", Somewhere(Read)),
        ("GET", "/api/v1/queues/{group}/{executor}", "queue.show", In(GroupInPath, Read)),
        ("POST", "/api/v1/queues/{group}/{executor}/drain", "queue.drain", In(GroupInPath, Operate)),
        ("POST", "/api/v1/queues/{group}/{executor}/purge", "queue.purge", In(GroupInPath, Operate)),
        ("POST", "/api/v1/queues/{group}/{executor}/replay", "queue.replay", In(GroupInPath, Operate)),
        ("GET", "/api/v1/dead", "dead_letter.list", In(Namespace, Read)),
        ("GET", "/api/v1/dead/{id}", "dead_letter.show", In(Namespace, Read)),
        ("POST", "/api/v1/dead/replay", "dead_letter.replay", In(Namespace, Operate)),
        ("POST", "/api/v1/dead/delete", "dead_letter.delete", In(Namespace, Operate)),
        ("GET", "/api/v1/enrolment-tokens", "enrolment_token.list", Somewhere(ManageWorkers)),
        ("POST", "/api/v1/enrolment-tokens", "enrolment_token.create", Somewhere(ManageWorkers)),
        ("DELETE", "/api/v1/enrolment-tokens/{id}", "enrolment_token.delete", Somewhere(ManageWorkers)),
        ("GET", "/api/v1/worker-keys", "worker_key.list", Somewhere(ManageWorkers)),
        ("POST", "/api/v1/worker-keys/{group}/{executor}/{key}/revoke", "worker_key.revoke", In(GroupInPath, ManageWorkers)),
        ("POST", "/api/v1/worker-keys/{group}/{executor}/{key}/allow", "worker_key.allow", In(GroupInPath, ManageWorkers)),
        ("GET", "/api/v1/namespaces", "namespace.list", Somewhere(Read)),
        ("GET", "/api/v1/quota", "quota.show", In(Namespace, Read)),
        ("PUT", "/api/v1/quota", "quota.set", In(Cluster, ManageAccounts)),
        ("DELETE", "/api/v1/quota", "quota.delete", In(Cluster, ManageAccounts)),
        ("GET", "/api/v1/audit", "audit.list", Somewhere(ReadAudit)),
        ("GET", "/api/v1/events", "event.list", Somewhere(Read)),
        ("GET", "/api/v1/executors", "executor.list", Somewhere(Read)),
        ("GET", "/api/v1/stats", "server.stats", In(Cluster, Read)),
    ]
};

/// What the table says about a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Its row.
    Row { action: &'static str, rule: Rule },
    /// The route has rows for other methods only: the value of the header `Allow`, and whether all of them are public.
    OtherMethods { allow: String, are_public: bool },
    /// The route has no row.
    Nothing,
}

/// What a request to the route needs. The route is the template that the router has matched.
pub(super) fn find(method: &str, route: &str) -> Found {
    let method = if method == "HEAD" { "GET" } else { method };
    let rows = || RULES.iter().filter(move |row| row.1 == route);
    if let Some(&(_, _, action, rule)) = rows().find(|row| row.0 == method) {
        return Found::Row { action, rule };
    }
    let allow: Vec<&str> = rows()
        .map(|row| if row.0 == "GET" { "GET,HEAD" } else { row.0 })
        .collect();
    if allow.is_empty() {
        return Found::Nothing;
    }
    Found::OtherMethods {
        allow: allow.join(","),
        are_public: rows().all(|row| row.3 == Rule::Public),
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
            .map(|(m, r, ..)| ((*m).to_owned(), (*r).to_owned()));
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
    fn nothing_is_public_but_probes_the_document_login_and_setup() {
        let public = RULES.iter().filter(|row| row.3 == Rule::Public);
        let public: Vec<&str> = public.map(|row| row.1).collect();
        assert_eq!(
            public,
            [
                "/livez",
                "/readyz",
                "/api/openapi.json",
                "/api/docs",
                "/api/v1/login",
                "/api/v1/login/oidc",
                "/api/v1/login/oidc/callback",
                "/api/v1/setup"
            ]
        );
    }

    #[test]
    fn an_action_is_an_object_and_a_verb() {
        for (method, route, action, _) in RULES {
            let parts: Vec<&str> = action.split('.').collect();
            let is_word = |part: &&str| {
                !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            };
            assert!(
                parts.len() == 2 && parts.iter().all(is_word),
                "{method} {route}: {action:?}"
            );
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_not_found_in_it() {
        let (action, rule) = ("server.live", Rule::Public);
        assert_eq!(find("HEAD", "/livez"), Found::Row { action, rule });
        assert_eq!(find("GET", "/api/v1/nonsense"), Found::Nothing);
        let other = |allow: &str, are_public| Found::OtherMethods {
            allow: allow.to_owned(),
            are_public,
        };
        assert_eq!(find("POST", "/livez"), other("GET,HEAD", true));
        assert_eq!(
            find("PATCH", "/api/v1/jobs/{name}"),
            other("GET,HEAD,PUT,DELETE", false)
        );
    }
}
