//! Creates or replaces one job.

use axum::extract::{Extension, State};
use axum::http::{StatusCode, Uri};
use cueline_model::JobName;
use cueline_store::{AppliedJob, Change};
use serde_json::{Map, Value};

use crate::SharedState;
use crate::access::Caller;
use crate::apply;
use crate::body::Body;
use crate::jobs::{JobPath, job_name};
use crate::namespace::InNamespace;
use crate::openapi;
use crate::preconditions::{IfMatchOrNone, Tagged, tagged};
use crate::problem::{FieldProblem, Problem};
use crate::query;

/// Creates or replaces a job, as an apply of this one definition does.
#[utoipa::path(
    put,
    path = "/api/v1/jobs/{name}",
    operation_id = "job_replace",
    tag = "jobs",
    summary = "Creates or replaces a job.",
    description = "It does what an apply of this one definition does.",
    params(
        ("name" = openapi::Name, Path, description = "The name of the job."),
        ("If-Match" = Option<openapi::EntityTags>, Header, description = "The `ETag` of the version that is replaced, or `*` for any."),
        ("If-None-Match" = Option<openapi::AnyEntityTag>, Header, description = "`*`: the job must not exist."),
    ),
    request_body = openapi::JobReplacement,
    responses(
        (status = 200, description = "The job is replaced, or had this definition.", body = openapi::AppliedJob, headers(("ETag" = String, description = "The version of the job."))),
        (status = 201, description = "The job is created.", body = openapi::AppliedJob, headers(("ETag" = String, description = "The version of the job."))),
        (status = 409, description = "The present state forbids the change.", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "The job has another version, or does not exist, or exists.", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "The definition does not fit. `errors` names each field.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn replace(
    State(state): State<SharedState>,
    Extension(caller): Extension<Caller>,
    namespace: InNamespace,
    path: JobPath,
    uri: Uri,
    IfMatchOrNone(condition): IfMatchOrNone,
    body: Body,
) -> Result<(StatusCode, Tagged<AppliedJob>), Problem> {
    query::none(&uri)?;
    let name = job_name(&namespace, path)?;
    let definition = named(body.into_object(), &name, &namespace)?;
    let jobs = Value::Array(vec![Value::Object(definition)]);
    let specs = apply::definitions(&state, namespace, jobs).await?;
    let written = apply::write_one(&state, &caller, &specs, &condition);
    let (revision, applied) = written.await?;
    let status = if applied.change == Change::Created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, tagged(revision, applied)))
}

/// The definition with the name of the path. A name in the definition has to be the same.
fn named(
    mut definition: Map<String, Value>,
    name: &JobName,
    namespace: &InNamespace,
) -> Result<Map<String, Value>, Problem> {
    let is_same = match definition.get("name") {
        None | Some(Value::Null) => true,
        Some(Value::String(given)) => namespace.job(given).is_ok_and(|given| given == *name),
        Some(_) => false,
    };
    if !is_same {
        let message = format!(
            "another name than {:?} in the path; leave it out, or give that one",
            name.local()
        );
        return Err(Problem::unfit_fields(vec![FieldProblem::new(
            "name", message,
        )]));
    }
    definition.insert("name".to_owned(), name.local().into());
    Ok(definition)
}

#[cfg(test)]
mod tests {
    use cueline_model::Namespace;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_name_is_that_of_the_path() {
        let namespace = InNamespace("team".parse::<Namespace>().expect("a namespace"));
        let name = namespace.job("report").expect("a name");
        let read = |definition: Value| match definition {
            Value::Object(definition) => named(definition, &name, &namespace),
            other => panic!("{other}"),
        };
        for good in [
            json!({}),
            json!({ "name": null }),
            json!({ "name": "report" }),
            json!({ "name": "team/report" }),
        ] {
            assert_eq!(read(good).expect("is the same")["name"], "report");
        }
        for bad in [
            json!({ "name": "other" }),
            json!({ "name": "default/report" }),
            json!({ "name": 7 }),
        ] {
            let problem = read(bad).expect_err("is another one");
            assert_eq!(
                (problem.status, problem.errors[0].field.as_str()),
                (422, "name")
            );
        }
    }
}
