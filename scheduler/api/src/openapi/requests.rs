//! Bodies of requests. The server refuses fields that are not named here, and counts `null` as absent.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "ApplyRequest": {
    "type": "object",
    "additionalProperties": false,
    "required": ["jobs"],
    "properties": {
      "jobs": {"description": "The definitions.", "type": "array", "maxItems": 100000, "items": {"$ref": "#/components/schemas/JobDefinition"}},
      "dry_run": {"description": "Whether to report the changes and change nothing; `false` by default.", "type": ["boolean", "null"]},
      "if_versions": {
        "description": "The version that a job must have, by its name; `null` for a job that must not exist. Other jobs may have any version.",
        "type": ["object", "null"],
        "propertyNames": {"$ref": "#/components/schemas/ListedName"},
        "additionalProperties": {"type": ["integer", "null"], "format": "int64", "minimum": 1, "maximum": 9223372036854775807}
      }
    },
    "examples": [{"jobs": [{"name": "tick", "schedule": {"every": "1h"}, "handler": {"command": ["date", "-Is"]}}], "dry_run": true}]
  },
  "PreviewRequest": {
    "description": "Either `schedule`, or `job`.",
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "job": {"description": "A whole definition.", "anyOf": [{"$ref": "#/components/schemas/JobDefinition"}, {"type": "null"}]},
      "schedule": {"description": "A schedule alone, or a list of several.", "anyOf": [{"$ref": "#/components/schemas/Schedule"}, {"$ref": "#/components/schemas/Schedules"}, {"type": "null"}]},
      "n": {"description": "The number of fire times; 5 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 1000},
      "from": {"description": "The start; now by default.", "anyOf": [{"$ref": "#/components/schemas/InstantText"}, {"type": "null"}]}
    },
    "oneOf": [
      {"required": ["job"], "properties": {"job": {"type": "object"}, "schedule": {"type": "null"}}},
      {"required": ["schedule"], "properties": {"schedule": {"type": ["object", "array"]}, "job": {"type": "null"}}}
    ],
    "examples": [{"schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, "n": 2}]
  },
  "TriggerRequest": {
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "params": {"description": "Replaces the job's parameter.", "$ref": "#/components/schemas/Parameter"},
      "idempotency_key": {
        "description": "A second trigger of the job with the same key creates no second run. At most 256 bytes.",
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 256,
        "anyOf": [{"pattern": "^[\\x01-\\x7f]*$"}, {"pattern": "^[^\\x00]{1,64}$"}, {"type": "null"}]
      },
      "run_at": {"description": "The due time; now by default.", "anyOf": [{"$ref": "#/components/schemas/InstantText"}, {"type": "null"}]}
    },
    "examples": [{"idempotency_key": "order-17", "params": "World"}]
  },
  "RestoreRequest": {
    "type": "object",
    "additionalProperties": false,
    "required": ["version"],
    "properties": {
      "version": {"description": "The version whose definition is applied again.", "$ref": "#/components/schemas/VersionNumber"}
    },
    "examples": [{"version": 1}]
  },
  "NewQuotas": {
    "description": "The limits of a namespace. One that is left out is no limit.",
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "max_jobs": {"description": "The most jobs.", "type": ["integer", "null"], "format": "int64", "minimum": 0, "maximum": 1000000000},
      "max_waiting_runs": {"description": "The most runs that have not started.", "type": ["integer", "null"], "format": "int64", "minimum": 0, "maximum": 1000000000},
      "max_triggers_per_minute": {"description": "The most requests in a minute that trigger a job, at each scheduler.", "type": ["integer", "null"], "format": "int64", "minimum": 0, "maximum": 1000000000},
      "if_version": {"description": "Only if the quotas have this version; 0 if there are none.", "type": ["integer", "null"], "format": "int64", "minimum": 0}
    },
    "examples": [{"max_jobs": 100, "max_waiting_runs": 5000}]
  },
  "DeadLetterSelection": {
    "description": "Either `ids`, or `all`, which selects at most a thousand.",
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "all_namespaces": {"description": "Whether letters of all namespaces and of none are selected; `false` by default. Only on paths without a namespace.", "type": ["boolean", "null"]},
      "ids": {"type": ["array", "null"], "maxItems": 1000, "items": {"$ref": "#/components/schemas/LetterNumber"}},
      "all": {"type": ["boolean", "null"]}
    },
    "oneOf": [
      {"required": ["ids"], "properties": {"ids": {"type": "array"}, "all": {"enum": [false, null]}}},
      {"required": ["all"], "properties": {"all": {"const": true}, "ids": {"type": "null"}}}
    ],
    "examples": [{"ids": [1, 2]}]
  },
  "LoginRequest": {
    "type": "object",
    "additionalProperties": false,
    "required": ["name", "password"],
    "properties": {
      "name": {"$ref": "#/components/schemas/LoginName"},
      "password": {"$ref": "#/components/schemas/GivenPassword"}
    },
    "examples": [{"name": "ann", "password": "correct horse battery"}]
  },
  "SetupRequest": {
    "type": "object",
    "additionalProperties": false,
    "required": ["secret", "name", "password"],
    "properties": {
      "secret": {"description": "The secret that the server has printed at its start.", "minLength": 1, "$ref": "#/components/schemas/AccountText"},
      "name": {"$ref": "#/components/schemas/LoginName"},
      "password": {"$ref": "#/components/schemas/Password"}
    },
    "examples": [{"secret": "SECRET", "name": "root", "password": "correct horse battery"}]
  },
  "NewUser": {
    "type": "object",
    "additionalProperties": false,
    "required": ["name"],
    "properties": {
      "name": {"$ref": "#/components/schemas/LoginName"},
      "display_name": {"description": "The name that people see.", "anyOf": [{"$ref": "#/components/schemas/AccountText"}, {"type": "null"}]},
      "password": {"description": "Without one, the user cannot log in and only owns tokens.", "anyOf": [{"$ref": "#/components/schemas/Password"}, {"type": "null"}]},
      "grants": {"description": "What the user may do; nothing by default.", "type": ["array", "null"], "maxItems": 100, "items": {"$ref": "#/components/schemas/NewGrant"}}
    },
    "examples": [{"name": "ann", "password": "correct horse battery", "grants": [{"namespace": "team-a", "role": "operator"}]}]
  },
  "UserChange": {
    "description": "Fields that are left out stay as they are. At least one of `display_name`, `grants` and `enabled` is given.",
    "type": "object",
    "additionalProperties": false,
    "minProperties": 1,
    "anyOf": [
      {"required": ["display_name"], "properties": {"display_name": {"type": "string"}}},
      {"required": ["grants"], "properties": {"grants": {"type": "array"}}},
      {"required": ["enabled"], "properties": {"enabled": {"type": "boolean"}}}
    ],
    "properties": {
      "display_name": {"anyOf": [{"$ref": "#/components/schemas/AccountText"}, {"type": "null"}]},
      "grants": {"description": "Replaces all grants.", "type": ["array", "null"], "maxItems": 100, "items": {"$ref": "#/components/schemas/NewGrant"}},
      "enabled": {"description": "Whether the user may log in, and the user's tokens count.", "type": ["boolean", "null"]},
      "if_version": {"description": "Only if the user has this version.", "type": ["integer", "null"], "format": "int64", "minimum": 1, "maximum": 9223372036854775807}
    },
    "examples": [{"enabled": false}]
  },
  "NewPassword": {
    "type": "object",
    "additionalProperties": false,
    "required": ["password"],
    "properties": {
      "password": {"$ref": "#/components/schemas/Password"},
      "old_password": {"description": "Needed for the own password; not looked at for that of another user.", "anyOf": [{"$ref": "#/components/schemas/GivenPassword"}, {"type": "null"}]},
      "keep_tokens": {"description": "Whether the user's API tokens stay valid; `false` by default.", "type": ["boolean", "null"]}
    },
    "examples": [{"password": "another long password", "old_password": "correct horse battery"}]
  },
  "NewApiToken": {
    "type": "object",
    "additionalProperties": false,
    "required": ["name", "grants"],
    "properties": {
      "name": {"description": "What it is for.", "minLength": 1, "$ref": "#/components/schemas/AccountText"},
      "grants": {"description": "What it may do. With an owner, only what the owner may do too.", "type": "array", "maxItems": 100, "items": {"$ref": "#/components/schemas/NewGrant"}},
      "program": {"description": "Whether it has no owner, and outlives its creator; `false` by default.", "type": ["boolean", "null"]},
      "valid": {"description": "How long it is valid, 1s to 3650d, or `never`; 90d by default.", "anyOf": [{"$ref": "#/components/schemas/Lifetime"}, {"type": "null"}]}
    },
    "examples": [{"name": "deployment", "grants": [{"namespace": "team-a", "role": "author"}], "valid": "30d"}]
  },
  "RunSelection": {
    "type": "object",
    "additionalProperties": false,
    "required": ["runs"],
    "properties": {
      "runs": {"description": "The ids of the runs.", "type": "array", "maxItems": 500, "items": {"$ref": "#/components/schemas/RunNumber"}},
      "all_namespaces": {"description": "Whether they may be of any namespace; `false` by default.", "type": ["boolean", "null"]}
    },
    "examples": [{"runs": [41, 42]}]
  },
  "NewEnrolmentToken": {
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "group": {"description": "Only workers of this group; of all groups of the namespace by default.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "all_namespaces": {"description": "Whether it enrols workers of all namespaces; `false` by default. Not with `group`, and not in another namespace than `default`.", "type": ["boolean", "null"]},
      "executor": {"description": "Only this executor of the group. It needs `group`.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "uses": {"description": "The number of workers that it enrols; 1 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 10000},
      "valid": {"description": "How long it is valid, 1s to 3650d, or `never`; 1h by default.", "anyOf": [{"$ref": "#/components/schemas/Lifetime"}, {"type": "null"}]}
    },
    "allOf": [
      {
        "if": {"required": ["executor"], "properties": {"executor": {"type": "string"}}},
        "then": {"required": ["group"], "properties": {"group": {"type": "string"}}}
      },
      {
        "if": {"required": ["all_namespaces"], "properties": {"all_namespaces": {"const": true}}},
        "then": {"properties": {"group": {"type": "null"}}}
      }
    ],
    "examples": [{"group": "billing", "uses": 10, "valid": "24h"}]
  }
}"##;
