//! Values in the parameters of lists.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "PageCursor": {
    "description": "The `next` of the previous page of the same list in the same order. Its content is not part of the API.",
    "type": "string",
    "minLength": 1,
    "maxLength": 2048,
    "pattern": "^[A-Za-z0-9_-]+$"
  },
  "FilterText": {
    "description": "A text of 1 to 512 characters without a NUL character.",
    "type": "string",
    "minLength": 1,
    "maxLength": 512,
    "pattern": "^[^\\x00]+$"
  },
  "LabelFilter": {
    "description": "A label: `KEY=VALUE`, or `KEY` for any value. At most 512 characters without a NUL character.",
    "type": "string",
    "minLength": 1,
    "maxLength": 512,
    "pattern": "^[^=\\x00][^\\x00]*$",
    "examples": ["team=payments", "team"]
  },
  "NameFilter": {
    "description": "A name, or the beginning of names and `*`. In a list of all namespaces, names of jobs are qualified.",
    "type": "string",
    "minLength": 1,
    "maxLength": 512,
    "anyOf": [
      {"$ref": "#/components/schemas/ListedName"},
      {"pattern": "^[^*\\x00]{0,511}[*]$"}
    ],
    "examples": ["nightly-backup", "nightly-*"]
  },
  "UserNameFilter": {
    "description": "A name, or the beginning of names and `*`.",
    "type": "string",
    "minLength": 1,
    "maxLength": 512,
    "pattern": "^[^*\\x00]{0,511}[^\\x00]$",
    "examples": ["ann", "deploy-*"]
  },
  "JobState": {
    "description": "Whether the schedule of a job is running.",
    "type": "string",
    "enum": ["active", "paused"]
  },
  "ExecutorStateFilter": {
    "description": "Whether an executor can take triggers.",
    "type": "string",
    "enum": ["alive", "draining", "refused", "silent", "stopped"]
  },
  "UserState": {
    "description": "Whether a user may log in.",
    "type": "string",
    "enum": ["enabled", "disabled"]
  },
  "ApiTokenState": {
    "description": "Whether an API token has expired or was revoked. One of a disabled user is `valid` here, and is refused.",
    "type": "string",
    "enum": ["valid", "expired", "revoked"]
  },
  "EnrolmentTokenState": {
    "description": "Whether an enrolment token can enrol a worker now.",
    "type": "string",
    "enum": ["valid", "expired", "used_up"]
  },
  "KeyStateFilter": {
    "description": "Whether messages that a key has sealed are accepted.",
    "type": "string",
    "enum": ["allowed", "revoked"]
  },
  "JobSort": {
    "description": "The order of a list of jobs; descending with '-'.",
    "type": "string",
    "enum": ["name", "-name", "next_fire", "-next_fire"],
    "default": "name"
  },
  "IdSort": {
    "description": "The order of a list: newest first with '-'.",
    "type": "string",
    "enum": ["-id", "id"],
    "default": "-id"
  },
  "VersionSort": {
    "description": "The order of a list of versions: newest first with '-'.",
    "type": "string",
    "enum": ["-version", "version"],
    "default": "-version"
  },
  "ExecutorSort": {
    "description": "The order of a list of executors; descending with '-'. The name is that of the group and of the executor.",
    "type": "string",
    "enum": ["name", "-name", "last_heartbeat_at", "-last_heartbeat_at"],
    "default": "name"
  },
  "QueueSort": {
    "description": "The order of a list of queues; descending with '-'.",
    "type": "string",
    "enum": ["name", "-name", "ready", "-ready"],
    "default": "name"
  },
  "UserSort": {
    "description": "The order of a list of users; descending with '-'. Upper and lower case are the same.",
    "type": "string",
    "enum": ["name", "-name", "created_at", "-created_at"],
    "default": "name"
  },
  "ApiTokenSort": {
    "description": "The order of a list of API tokens.",
    "type": "string",
    "enum": ["id"],
    "default": "id"
  },
  "KeySort": {
    "description": "The order of a list of keys: that of their last changes.",
    "type": "string",
    "enum": ["changed_at"],
    "default": "changed_at"
  },
  "EnrolmentTokenSort": {
    "description": "The order of a list of enrolment tokens; newest first with '-'.",
    "type": "string",
    "enum": ["created_at", "-created_at"],
    "default": "created_at"
  },
  "NamespaceSort": {
    "description": "The order of a list of namespaces.",
    "type": "string",
    "enum": ["name"],
    "default": "name"
  }
}"##;
