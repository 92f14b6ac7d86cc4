//! Bodies of requests. The server refuses fields that are not named here, and counts `null` as absent.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "ApplyRequest": {
    "type": "object",
    "additionalProperties": false,
    "required": ["jobs"],
    "properties": {
      "jobs": {"description": "The definitions.", "type": "array", "maxItems": 100000, "items": {"$ref": "#/components/schemas/JobDefinition"}},
      "dry_run": {"description": "Whether to report the changes and change nothing; `false` by default.", "type": ["boolean", "null"]}
    },
    "examples": [{"jobs": [{"name": "tick", "schedule": {"every": "1h"}, "handler": {"command": ["date", "-Is"]}}], "dry_run": true}]
  },
  "PreviewRequest": {
    "description": "Either `schedule`, or `job`.",
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "job": {"description": "A whole definition.", "anyOf": [{"$ref": "#/components/schemas/JobDefinition"}, {"type": "null"}]},
      "schedule": {"description": "A schedule alone.", "anyOf": [{"$ref": "#/components/schemas/Schedule"}, {"type": "null"}]},
      "n": {"description": "The number of fire times; 5 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 1000},
      "from": {"description": "The start; now by default.", "anyOf": [{"$ref": "#/components/schemas/InstantText"}, {"type": "null"}]}
    },
    "oneOf": [
      {"required": ["job"], "properties": {"job": {"type": "object"}, "schedule": {"type": "null"}}},
      {"required": ["schedule"], "properties": {"schedule": {"type": "object"}, "job": {"type": "null"}}}
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
  "DeadLetterSelection": {
    "description": "Either `ids`, or `all`, which selects at most a thousand.",
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "ids": {"type": ["array", "null"], "maxItems": 1000, "items": {"$ref": "#/components/schemas/LetterNumber"}},
      "all": {"type": ["boolean", "null"]}
    },
    "oneOf": [
      {"required": ["ids"], "properties": {"ids": {"type": "array"}, "all": {"enum": [false, null]}}},
      {"required": ["all"], "properties": {"all": {"const": true}, "ids": {"type": "null"}}}
    ],
    "examples": [{"ids": [1, 2]}]
  },
  "NewEnrolmentToken": {
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "group": {"description": "Only workers of this group; of all groups of the namespace by default.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "all_namespaces": {"description": "Whether it enrols workers of all namespaces; `false` by default. Not with `group`, and not in another namespace than `default`.", "type": ["boolean", "null"]},
      "executor": {"description": "Only this executor of the group. It needs `group`.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "uses": {"description": "The number of workers that it enrols; 1 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 10000},
      "valid": {"description": "How long it is valid, 1s to 3650d, or `never`; 1h by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"enum": ["never", null]}]}
    },
    "if": {"required": ["executor"], "properties": {"executor": {"type": "string"}}},
    "then": {"required": ["group"], "properties": {"group": {"type": "string"}}},
    "examples": [{"group": "billing", "uses": 10, "valid": "24h"}]
  }
}"##;
