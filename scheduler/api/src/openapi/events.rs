//! Events of streams.
//!
//! `OpenAPI` 3.1 has no keyword for the items of a stream. As is usual, the schema of a `text/event-stream` is that of each
//! event: an object with the fields that the server sends. The text in `data` is JSON, and `contentSchema` describes it.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "ChangeMessage": {
    "description": "An event of the stream of changes. `data` is a JSON text, whose schema depends on `event`.",
    "type": "object",
    "required": ["event", "data"],
    "properties": {
      "event": {"enum": ["ready", "run", "job", "executor", "lagged", "overflow", "resync"]},
      "id": {"description": "For `Last-Event-ID`. An event without one has the id of the event before.", "type": "string"},
      "data": {"type": "string", "contentMediaType": "application/json"}
    },
    "oneOf": [
      {"title": "ready", "properties": {"event": {"const": "ready"}, "data": {"contentSchema": {"$ref": "#/components/schemas/Ready"}}}},
      {"title": "run", "properties": {"event": {"const": "run"}, "data": {"contentSchema": {"$ref": "#/components/schemas/RunEvent"}}}},
      {"title": "job", "properties": {"event": {"const": "job"}, "data": {"contentSchema": {"$ref": "#/components/schemas/JobEvent"}}}},
      {"title": "executor", "properties": {"event": {"const": "executor"}, "data": {"contentSchema": {"$ref": "#/components/schemas/ExecutorEvent"}}}},
      {"title": "lagged", "properties": {"event": {"const": "lagged"}, "data": {"contentSchema": {"$ref": "#/components/schemas/Lagged"}}}},
      {"title": "overflow", "properties": {"event": {"const": "overflow"}, "data": {"contentSchema": {"$ref": "#/components/schemas/Overflow"}}}},
      {"title": "resync", "properties": {"event": {"const": "resync"}, "data": {"const": "{}"}}}
    ],
    "examples": [{"event": "ready", "id": "9f2c11d04a6be387-41", "data": "{\"resumed\":false}"}]
  },
  "LogMessage": {
    "description": "An event of the stream of a log. `data` is a JSON text, whose schema depends on `event`.",
    "type": "object",
    "required": ["event", "data"],
    "properties": {
      "event": {"enum": ["line", "end"]},
      "id": {"description": "The cursor of the line, for `Last-Event-ID`.", "type": "string"},
      "data": {"type": "string", "contentMediaType": "application/json"}
    },
    "oneOf": [
      {"title": "line", "properties": {"event": {"const": "line"}, "data": {"contentSchema": {"$ref": "#/components/schemas/LogLine"}}}},
      {"title": "end", "properties": {"event": {"const": "end"}, "data": {"contentSchema": {"$ref": "#/components/schemas/EndOfLog"}}}}
    ],
    "examples": [{"event": "end", "id": "4294967296", "data": "{\"state\":\"succeeded\"}"}]
  },
  "Ready": {
    "description": "From here on changes are sent.",
    "type": "object",
    "required": ["resumed"],
    "properties": {
      "resumed": {"description": "Whether the stream continues after the event that the request named. If not, changes may lie in between.", "type": "boolean"}
    },
    "examples": [{"resumed": false}]
  },
  "RunEvent": {
    "description": "A change of a run.",
    "type": "object",
    "required": ["change", "id", "job_id", "job", "group", "kind", "state", "attempt", "fire_at"],
    "properties": {
      "change": {"description": "`changed` stands for another state or attempt, and `deleted` for a run that was not published. Nothing follows `ended` and `deleted`.", "enum": ["created", "changed", "ended", "deleted"]},
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "id": {"$ref": "#/components/schemas/RunNumber"},
      "job_id": {"type": "integer", "format": "int64"},
      "job": {"$ref": "#/components/schemas/GivenName"},
      "group": {"$ref": "#/components/schemas/GivenName"},
      "kind": {"$ref": "#/components/schemas/RunKind"},
      "state": {"$ref": "#/components/schemas/RunState"},
      "attempt": {"description": "The present or last attempt, from 1.", "type": "integer", "format": "int32", "minimum": 0},
      "fire_at": {"$ref": "#/components/schemas/Instant"},
      "executor": {"description": "The executor of that attempt, if it has one.", "$ref": "#/components/schemas/GivenName"},
      "ended_at": {"description": "Left out for a run that has not ended.", "$ref": "#/components/schemas/Instant"}
    },
    "examples": [{"change": "ended", "id": 12, "job_id": 3, "job": "backup", "group": "default", "kind": "manual", "state": "succeeded", "attempt": 1, "fire_at": 1795236960000, "executor": "worker-1", "ended_at": 1795236960412}]
  },
  "JobEvent": {
    "description": "A change of a job.",
    "type": "object",
    "required": ["change", "id", "name", "group", "version", "enabled"],
    "properties": {
      "change": {"description": "`moved` tells readers of the former group that the job has left it.", "enum": ["created", "updated", "paused", "resumed", "moved", "deleted"]},
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "id": {"type": "integer", "format": "int64"},
      "name": {"$ref": "#/components/schemas/GivenName"},
      "group": {"$ref": "#/components/schemas/GivenName"},
      "version": {"type": "integer", "format": "int64", "minimum": 1},
      "enabled": {"type": "boolean"}
    },
    "examples": [{"change": "paused", "id": 3, "name": "backup", "group": "default", "version": 2, "enabled": false}]
  },
  "ExecutorEvent": {
    "description": "A change of an executor.",
    "type": "object",
    "required": ["change", "group", "name", "state", "incarnation", "capacity", "last_heartbeat_at"],
    "properties": {
      "change": {"enum": ["appeared", "changed", "forgotten"]},
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "group": {"$ref": "#/components/schemas/GivenName"},
      "name": {"$ref": "#/components/schemas/GivenName"},
      "state": {"description": "`silent` after 15 s without a heartbeat.", "enum": ["alive", "draining", "refused", "silent", "stopped"]},
      "incarnation": {"description": "Identifies one start of the process.", "type": "string"},
      "capacity": {"description": "The most handlers that it runs at once.", "type": "integer", "format": "int32", "minimum": 0},
      "last_heartbeat_at": {"$ref": "#/components/schemas/Instant"}
    },
    "examples": [{"change": "appeared", "group": "default", "name": "worker-1", "state": "alive", "incarnation": "1a1fc753a87-1901", "capacity": 64, "last_heartbeat_at": 1795236958617}]
  },
  "Lagged": {
    "description": "The client was too slow, and events are lost.",
    "type": "object",
    "required": ["missed"],
    "properties": {
      "missed": {"description": "The number of lost events, those included that the stream leaves out.", "type": "integer", "format": "int64", "minimum": 0}
    },
    "examples": [{"missed": 7}]
  },
  "Overflow": {
    "description": "There are more live runs, or more jobs, than are watched.",
    "type": "object",
    "required": ["watched"],
    "properties": {
      "watched": {"description": "The number of runs or jobs that are watched.", "type": "integer", "format": "int64", "minimum": 0}
    },
    "examples": [{"watched": 20000}]
  },
  "EndOfLog": {
    "description": "The run has ended, and no line follows.",
    "type": "object",
    "required": ["state"],
    "properties": {"state": {"$ref": "#/components/schemas/RunState"}},
    "examples": [{"state": "succeeded"}]
  }
}"##;
