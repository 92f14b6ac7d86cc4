//! Answers whose types belong to other crates, or are put together from them.
//!
//! A test reads the examples of `docs/api.md` with these schemas, and refuses fields that they do not have.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "Index": {
    "description": "The version of the server and the paths of the API.",
    "type": "object",
    "required": ["name", "version", "links"],
    "properties": {
      "name": {"const": "cueline"},
      "version": {"type": "string"},
      "links": {"type": "object", "additionalProperties": {"type": "string"}}
    }
  },
  "OpenApiDocument": {
    "description": "This document.",
    "type": "object",
    "required": ["openapi", "info", "paths", "components"],
    "properties": {
      "openapi": {"type": "string"},
      "info": {"type": "object"},
      "paths": {"type": "object"},
      "components": {"type": "object"}
    }
  },
  "AppliedJob": {
    "description": "How an apply changed one job.",
    "type": "object",
    "required": ["name", "id", "change"],
    "properties": {
      "name": {"$ref": "#/components/schemas/GivenName"},
      "id": {"description": "The id of the job; `null` for a job that a dry run would create.", "type": ["integer", "null"], "format": "int64"},
      "version": {"description": "The version of the job: after the change, or the present one in a dry run. `null` for a job that a dry run would create.", "type": ["integer", "null"], "format": "int64", "minimum": 1},
      "change": {"$ref": "#/components/schemas/Change"}
    }
  },
  "Change": {"description": "How a job changed.", "enum": ["created", "updated", "unchanged"]},
  "AuditValue": {"description": "An object before or after a change. A value that is too long has only its `bytes` and its `sha256`.", "type": ["object", "array", "string", "number", "boolean", "null"]},
  "GivenAfter": {
    "description": "The parents of the job, in `all` or in `any`, with their names in the namespace.",
    "type": "object",
    "required": ["on"],
    "properties": {
      "all": {"description": "The job starts once all of them have ended as required.", "type": "array", "minItems": 1, "maxItems": 32, "items": {"$ref": "#/components/schemas/GivenName"}},
      "any": {"description": "The job starts once the first of them has ended as required.", "type": "array", "minItems": 1, "maxItems": 32, "items": {"$ref": "#/components/schemas/GivenName"}},
      "on": {"enum": ["success", "failure", "always"]},
      "pass_output": {"description": "Whether the output of the parents is passed on as the parameter; left out if not.", "type": "boolean"}
    }
  },
  "GivenDefinition": {
    "description": "The definition of a job, with all its settings.",
    "type": "object",
    "required": ["name", "group", "schedule", "misfire", "route", "block", "scope", "backlog", "kill_grace", "retry", "on_lost", "dispatch_deadline", "priority", "handler"],
    "properties": {
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "name": {"description": "The name in the namespace.", "$ref": "#/components/schemas/GivenName"},
      "group": {"description": "The group in the namespace.", "$ref": "#/components/schemas/GivenName"},
      "description": {"$ref": "#/components/schemas/Text"},
      "schedule": {"anyOf": [{"$ref": "#/components/schemas/Schedule"}, {"$ref": "#/components/schemas/Schedules"}]},
      "calendars": {"description": "Left out if there are none.", "type": "array", "items": {"$ref": "#/components/schemas/GivenName"}},
      "start_at": {"$ref": "#/components/schemas/DefinitionInstant"},
      "end_at": {"$ref": "#/components/schemas/DefinitionInstant"},
      "jitter": {"$ref": "#/components/schemas/Duration"},
      "misfire": {"$ref": "#/components/schemas/Misfire"},
      "route": {"$ref": "#/components/schemas/Route"},
      "block": {"$ref": "#/components/schemas/Block"},
      "scope": {"enum": ["group", "executor"]},
      "backlog": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 100000},
      "rate_limit": {"description": "Left out if it has none of its own.", "$ref": "#/components/schemas/RateLimit"},
      "concurrency": {"description": "Left out if it has none.", "$ref": "#/components/schemas/Concurrency"},
      "timeout": {"$ref": "#/components/schemas/Duration"},
      "kill_grace": {"$ref": "#/components/schemas/Duration"},
      "retry": {"$ref": "#/components/schemas/Retry"},
      "on_lost": {"enum": ["fail", "rerun"]},
      "fence": {"description": "Left out for `stop`.", "enum": ["stop", "keep"]},
      "dispatch_deadline": {"$ref": "#/components/schemas/Duration"},
      "priority": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 9},
      "retention": {"description": "Left out if it has none of its own.", "$ref": "#/components/schemas/RetentionRule"},
      "handler": {"$ref": "#/components/schemas/Handler"},
      "params": {"$ref": "#/components/schemas/Text"},
      "after": {"$ref": "#/components/schemas/GivenAfter"},
      "labels": {"$ref": "#/components/schemas/Labels"},
      "enabled": {"description": "Whether the schedule fires.", "type": "boolean"}
    }
  },
  "JobView": {
    "description": "A job: its whole definition, with the values that a list shows.",
    "allOf": [{"$ref": "#/components/schemas/GivenDefinition"}],
    "type": "object",
    "required": ["id", "version", "next_fire", "last", "day"],
    "properties": {
      "id": {"description": "The id of a deleted job is never used again.", "type": "integer", "format": "int64"},
      "version": {"description": "Counts edits, pauses and resumes, from 1.", "type": "integer", "format": "int64", "minimum": 1},
      "next_fire": {"description": "The next fire time; `null` without one, or when the job is paused.", "anyOf": [{"$ref": "#/components/schemas/Instant"}, {"type": "null"}]},
      "last": {"description": "The newest run that has started or ended.", "anyOf": [{"$ref": "#/components/schemas/Run"}, {"type": "null"}]},
      "day": {"description": "The runs of the last 24 hours by state.", "$ref": "#/components/schemas/RunCounts"},
      "pause": {"description": "The pause that it is in the scope of; absent without one. It is not about a job that is paused alone.", "$ref": "#/components/schemas/PausedBy"}
    }
  },
  "PausedBy": {
    "description": "Who has paused a job together with others, and until when.",
    "type": "object",
    "required": ["id", "by", "reason", "since"],
    "properties": {
      "id": {"description": "The number of the pause.", "type": "integer", "format": "int64"},
      "by": {"description": "Who paused.", "type": "string"},
      "reason": {"description": "Why.", "type": "string"},
      "since": {"description": "Since when.", "$ref": "#/components/schemas/Instant"},
      "until": {"description": "When it ends by itself; absent if it lasts until somebody ends it.", "$ref": "#/components/schemas/Instant"}
    }
  },
  "Shard": {
    "description": "The part of the work that a run does.",
    "type": "object",
    "required": ["index", "total"],
    "properties": {
      "index": {"description": "From 0.", "type": "integer", "format": "int32", "minimum": 0},
      "total": {"type": "integer", "format": "int32", "minimum": 1},
      "item": {"description": "The item of the shard, if it has one.", "type": "string"}
    }
  },
  "RunKind": {"description": "What created a run.", "enum": ["schedule", "manual", "child", "startup", "backfill"]},
  "Run": {
    "description": "A run. Times, executor and exit status belong to its present or last attempt.",
    "type": "object",
    "required": ["id", "job_id", "job", "group", "kind", "state", "attempt", "retries", "fire_at", "due_at", "shard", "executor", "params", "created_at", "queued_at", "started_at", "ended_at", "exit_status", "message", "output", "progress", "cancel_requested", "parent"],
    "properties": {
      "id": {"$ref": "#/components/schemas/RunNumber"},
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "job_id": {"type": "integer", "format": "int64"},
      "job": {"$ref": "#/components/schemas/GivenName"},
      "group": {"$ref": "#/components/schemas/GivenName"},
      "kind": {"$ref": "#/components/schemas/RunKind"},
      "state": {"$ref": "#/components/schemas/RunState"},
      "attempt": {"description": "The present or last attempt, from 1.", "type": "integer", "format": "int32", "minimum": 0},
      "retries": {"type": "integer", "format": "int32", "minimum": 0},
      "fire_at": {"$ref": "#/components/schemas/Instant"},
      "due_at": {"$ref": "#/components/schemas/Instant"},
      "shard": {"$ref": "#/components/schemas/Shard"},
      "executor": {"type": ["string", "null"]},
      "params": {"description": "The parameter that replaces the job's own.", "type": ["string", "null"]},
      "created_at": {"$ref": "#/components/schemas/Instant"},
      "queued_at": {"description": "When the broker confirmed the trigger.", "anyOf": [{"$ref": "#/components/schemas/Instant"}, {"type": "null"}]},
      "started_at": {"anyOf": [{"$ref": "#/components/schemas/Instant"}, {"type": "null"}]},
      "ended_at": {"anyOf": [{"$ref": "#/components/schemas/Instant"}, {"type": "null"}]},
      "exit_status": {"description": "The exit status of the process, or the HTTP status.", "type": ["integer", "null"], "format": "int32"},
      "message": {"description": "The reason of the end, or of the previous attempt's end.", "type": ["string", "null"]},
      "output": {"description": "The output of a success.", "type": ["string", "null"]},
      "progress": {"description": "From 0 to 1, if the handler reports it.", "type": ["number", "null"], "format": "double"},
      "cancel_requested": {"type": "boolean"},
      "parent": {"description": "The run whose end created this one.", "type": ["integer", "null"], "format": "int64"}
    }
  },
  "TimelineEntry": {
    "description": "An unusual event of a run.",
    "type": "object",
    "required": ["at", "attempt", "event", "detail"],
    "properties": {
      "at": {"$ref": "#/components/schemas/Instant"},
      "attempt": {"type": "integer", "format": "int32", "minimum": 0},
      "event": {"description": "One word, such as `triggered`, `retry`, `rerun`, `returned`, `republished`, `cancel`, `refused`, `skipped`, `left_out`, `flow_stopped` or `retried`.", "type": "string"},
      "detail": {"type": "string"}
    }
  },
  "RunDetail": {
    "description": "A run with its timeline.",
    "allOf": [{"$ref": "#/components/schemas/Run"}],
    "type": "object",
    "required": ["timeline"],
    "properties": {
      "timeline": {"description": "Its unusual events, oldest first.", "type": "array", "items": {"$ref": "#/components/schemas/TimelineEntry"}}
    }
  },
  "LogLine": {
    "description": "A line of a run's log.",
    "type": "object",
    "required": ["cursor", "attempt", "seq", "at", "stream", "text"],
    "properties": {
      "cursor": {"description": "The position in the log; opaque.", "type": "integer", "format": "int64"},
      "attempt": {"type": "integer", "format": "int32", "minimum": 0},
      "seq": {"description": "The number of the line in the log of the attempt.", "type": "integer", "format": "int64", "minimum": 0},
      "at": {"$ref": "#/components/schemas/Instant"},
      "stream": {"description": "`log` is for Cueline's own lines.", "enum": ["out", "err", "log"]},
      "text": {"type": "string"}
    }
  },
  "LedgerEntry": {
    "description": "An expected fire time, and the run that accounts for it.",
    "type": "object",
    "required": ["fire_at", "run", "shard", "state"],
    "properties": {
      "fire_at": {"$ref": "#/components/schemas/Instant"},
      "run": {"type": ["integer", "null"], "format": "int64"},
      "shard": {"type": ["integer", "null"], "format": "int32", "minimum": 0},
      "state": {"anyOf": [{"$ref": "#/components/schemas/RunState"}, {"type": "null"}]},
      "pruned": {"description": "Whether there is no run any more because runs of this time were deleted; left out if not.", "type": "boolean"}
    }
  },
  "Triggered": {
    "description": "The runs of a trigger.",
    "type": "object",
    "required": ["runs", "duplicate"],
    "properties": {
      "runs": {"description": "One run for each shard.", "type": "array", "items": {"$ref": "#/components/schemas/RunNumber"}},
      "duplicate": {"description": "Whether an earlier request with the same idempotency key created them.", "type": "boolean"}
    }
  },
  "ExecutorView": {
    "description": "An executor, as described by its last heartbeat.",
    "type": "object",
    "required": ["group", "name", "incarnation", "session", "capabilities", "capacity", "held", "running", "draining", "gone", "last_heartbeat_at", "silent_ms"],
    "properties": {
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "group": {"$ref": "#/components/schemas/GivenName"},
      "name": {"$ref": "#/components/schemas/GivenName"},
      "incarnation": {"description": "Identifies one start of the process.", "type": "string"},
      "session": {"description": "Grows with each absence so long that its attempts may have been given to others.", "type": "integer", "format": "int64"},
      "capabilities": {"description": "The handlers that it can run.", "type": "array", "items": {"type": "string"}},
      "capacity": {"description": "The most handlers that it runs at once.", "type": "integer", "format": "int32", "minimum": 0},
      "labels": {"description": "The labels by which jobs may select it. Left out if there are none.", "type": "object", "additionalProperties": {"type": "string"}},
      "weight": {"description": "Its share of the runs of jobs with the route `weighted`. Left out for 1.", "type": "integer", "format": "int32", "minimum": 1, "maximum": 100},
      "held": {"description": "The attempts that it has accepted, waiting or running.", "type": "integer", "format": "int64", "minimum": 0},
      "running": {"type": "integer", "format": "int64", "minimum": 0},
      "draining": {"description": "Whether it has stopped accepting triggers.", "type": "boolean"},
      "gone": {"description": "Whether the process has stopped in order.", "type": "boolean"},
      "refusal": {"description": "Why it gets no triggers although it runs.", "type": "string"},
      "last_heartbeat_at": {"$ref": "#/components/schemas/Instant"},
      "silent_ms": {"description": "The time since its last heartbeat, in milliseconds.", "type": "integer", "format": "int64", "minimum": 0}
    }
  },
  "SinceStart": {
    "description": "Counters of the responding scheduler since its start.",
    "type": "object",
    "required": ["published", "reconciled", "failovers", "failed_over", "forged_reports", "forged_heartbeats", "forged_answers", "forged_letters", "foreign_reports"],
    "properties": {
      "published": {"description": "Triggers that the broker has confirmed.", "type": "integer", "format": "int64", "minimum": 0},
      "reconciled": {"description": "Attempts that were lost on the way and published again.", "type": "integer", "format": "int64", "minimum": 0},
      "failovers": {"description": "Silent executors whose work was reassigned.", "type": "integer", "format": "int64", "minimum": 0},
      "failed_over": {"description": "Attempts that were taken from them.", "type": "integer", "format": "int64", "minimum": 0},
      "forged_reports": {"description": "Messages with results that no enrolled worker has sealed.", "type": "integer", "format": "int64", "minimum": 0},
      "forged_heartbeats": {"description": "Heartbeats that no enrolled worker has sealed just now.", "type": "integer", "format": "int64", "minimum": 0},
      "forged_answers": {"description": "Answers to questions about attempts that another sender may have made.", "type": "integer", "format": "int64", "minimum": 0},
      "forged_letters": {"description": "Dead letters that no enrolled worker has sealed.", "type": "integer", "format": "int64", "minimum": 0},
      "foreign_reports": {"description": "Reports about attempts of another executor.", "type": "integer", "format": "int64", "minimum": 0}
    }
  },
  "QueueDepth": {
    "description": "The number of messages in a queue. Both counts are `null` if the broker has no answer for it.",
    "type": "object",
    "required": ["queue", "ready", "unsettled"],
    "properties": {
      "queue": {"type": "string"},
      "group": {"description": "The group of the executor that reads it; left out for other queues.", "type": "string"},
      "executor": {"description": "The executor that reads it; left out for other queues.", "type": "string"},
      "ready": {"description": "Messages that wait to be delivered.", "type": ["integer", "null"], "format": "int64", "minimum": 0},
      "unsettled": {"description": "Messages that were delivered and are not settled.", "type": ["integer", "null"], "format": "int64", "minimum": 0}
    }
  },
  "EmptiedQueue": {
    "description": "The result of emptying an executor's queue.",
    "type": "object",
    "required": ["count", "left"],
    "properties": {
      "count": {"description": "Attempts that were taken out of the queue.", "type": "integer", "format": "int64", "minimum": 0},
      "left": {"description": "Attempts whose triggers are back in the queue.", "type": "integer", "format": "int64", "minimum": 0}
    },
    "examples": [{"count": 3, "left": 0}]
  },
  "ReplayedDeadLetter": {
    "description": "The result for one dead letter.",
    "type": "object",
    "required": ["id"],
    "properties": {
      "id": {"type": "integer", "format": "int64"},
      "refused": {"description": "Why it is still a dead letter; left out when it is back in its queue.", "type": "string"}
    }
  }
}"##;
