//! Schemas of the OpenAPI document that no type of this crate can give: values in texts, request bodies that are read
//! field by field, and types of other crates.
//!
//! Each has a name here, for annotations (`body = openapi::JobView`), and its JSON Schema in one of the files below.
//! The module `reference` puts both together. This module must not know the routes.

mod alarms;
mod answers;
mod definition;
mod events;
mod fire_rules;
mod lists;
mod requests;
mod scripts;
mod values;

use serde_json::{Map, Value};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Declares names of schemas. An annotation that uses one becomes a reference to the schema of that name.
macro_rules! described {
    ($($name:ident)*) => {$(
        #[allow(dead_code, reason = "annotations use it as a type only")]
        pub(crate) struct $name;

        impl PartialSchema for $name {
            /// A placeholder; [`schemas`] has the schema.
            fn schema() -> RefOr<Schema> {
                RefOr::T(Schema::default())
            }
        }

        impl ToSchema for $name {}
    )*};
}

// Values.
described! {
    Name GivenName Instant InstantText PageLimit NumberOfTimes Cursor RunNumber LetterNumber WaitMs RunState RunCounts
    KeyId TokenId ListedName GivenNamespace AllNamespaces VersionNumber Text AuditResult
    LoginName Grant ProviderValue ProviderParameters LastEvent LastLine EventKinds
    EntityTags AnyEntityTag IdempotencyKeyHeader Duration
}
// Parameters of lists.
described! {
    PageCursor FilterText LabelFilter NameFilter UserNameFilter JobState RunKind ExecutorStateFilter UserState ApiTokenState
    EnrolmentTokenState KeyStateFilter JobSort IdSort VersionSort ExecutorSort QueueSort UserSort ApiTokenSort KeySort
    EnrolmentTokenSort NamespaceSort
}
// Bodies of requests.
described! {
    ApplyRequest PreviewRequest TriggerRequest RestoreRequest DeadLetterSelection NewEnrolmentToken LoginRequest SetupRequest
    NewUser UserChange NewPassword NewApiToken JobReplacement NewQuotas CalendarsRequest CalendarReplacement NewWindow
    ScriptsRequest ScriptReplacement ScriptRestore
    RetentionRule RateRule RunSelection
    NewPause NewBackfill AlarmRuleReplacement AlarmChannelReplacement NewAlarmSilence
}
// Answers with types of other crates.
described! {
    Index AppliedJob JobView Run RunDetail LogLine LedgerEntry Triggered ExecutorView SinceStart QueueDepth EmptiedQueue
    ReplayedDeadLetter OpenApiDocument GivenDefinition GivenAfter WindowDefinition Language Change AuditValue ChangeMessage LogMessage GivenCalendar BackfillState
    AlarmSort AlarmCondition AlarmFate AlarmDeliveryState GivenAlarmRule GivenAlarmChannel
}

/// The schemas by name: those of the declared names, and those that they refer to.
pub(crate) fn schemas() -> Map<String, Value> {
    let parts = [
        values::SCHEMAS,
        lists::SCHEMAS,
        definition::SCHEMAS,
        fire_rules::SCHEMAS,
        alarms::SCHEMAS,
        scripts::SCHEMAS,
        events::SCHEMAS,
        requests::SCHEMAS,
        answers::SCHEMAS,
    ];
    // The texts are constants, and a test parses each. A text that is no JSON would only leave its schemas out.
    let mut schemas: Map<String, Value> = parts
        .into_iter()
        .filter_map(|text| serde_json::from_str::<Map<String, Value>>(text).ok())
        .flatten()
        .collect();
    if let Some(definition) = schemas.get("JobDefinition").cloned() {
        schemas.insert("JobReplacement".to_owned(), replacement(definition));
    }
    if let Some(mut definition) = schemas.get("CalendarDefinition").cloned() {
        definition["description"] = Value::from(
            "The definition of the calendar in the path. `name` may be left out; otherwise it is the same.",
        );
        definition["required"] = Value::from(Vec::<String>::new());
        schemas.insert("CalendarReplacement".to_owned(), definition);
    }
    schemas
}

/// The definition of a job whose name is in the path.
fn replacement(mut definition: Value) -> Value {
    definition["description"] = Value::from(
        "The definition of the job in the path. `name` may be left out; otherwise it is the same.",
    );
    definition["required"] = Value::from(vec!["handler"]);
    definition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_a_json_object_and_no_schema_is_described_twice() {
        let mut names = Vec::new();
        for text in [
            values::SCHEMAS,
            lists::SCHEMAS,
            definition::SCHEMAS,
            fire_rules::SCHEMAS,
            alarms::SCHEMAS,
            scripts::SCHEMAS,
            events::SCHEMAS,
            requests::SCHEMAS,
            answers::SCHEMAS,
        ] {
            let part: Map<String, Value> = serde_json::from_str(text).expect("a JSON object");
            names.extend(part.keys().cloned());
        }
        let total = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), total);
        // Two are made from other ones.
        assert_eq!(schemas().len(), total + 2);
    }
}
