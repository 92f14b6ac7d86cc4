//! The definition of a job, in all spellings that `cueline_model::decode` accepts. `docs/jobs.md` explains the fields.
//!
//! A key with the value `null` counts as absent in every object, so each optional field also accepts `null`.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "JobDefinition": {
    "description": "The definition of a job, with the fields of job files. `name` and `handler` are required, and `schedule` or `after`.",
    "type": "object",
    "additionalProperties": false,
    "required": ["name", "handler"],
    "anyOf": [
      {"required": ["schedule"], "properties": {"schedule": {"type": ["object", "array"]}}},
      {"required": ["schedules"], "properties": {"schedules": {"type": "array"}}},
      {"required": ["after"], "properties": {"after": {"type": ["string", "object"]}}}
    ],
    "properties": {
      "name": {"$ref": "#/components/schemas/Name"},
      "namespace": {"description": "The namespace of the job, its group and its parents; that of the request by default, and no other one.", "anyOf": [{"$ref": "#/components/schemas/Namespace"}, {"type": "null"}]},
      "group": {"description": "The executor group that runs it; `default` by default.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "description": {"description": "Free text.", "anyOf": [{"$ref": "#/components/schemas/Text"}, {"type": "null"}]},
      "schedule": {"description": "The rule for fire times, or a list of rules.", "anyOf": [{"$ref": "#/components/schemas/Schedule"}, {"$ref": "#/components/schemas/Schedules"}, {"type": "null"}]},
      "schedules": {"description": "Another spelling of a list in `schedule`; not beside it.", "anyOf": [{"$ref": "#/components/schemas/Schedules"}, {"type": "null"}]},
      "calendars": {"description": "The names of calendars that exclude fire times, in the namespace of the job.", "type": ["array", "null"], "maxItems": 16, "uniqueItems": true, "items": {"$ref": "#/components/schemas/Name"}},
      "start_at": {"description": "No fire time before this.", "anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}]},
      "end_at": {"description": "No fire time at or after this; later than `start_at`.", "anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}], "examples": ["2028-01-01T00:00:00Z"]},
      "jitter": {"description": "The longest random delay after the fire time; `0s` by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]},
      "misfire": {"anyOf": [{"$ref": "#/components/schemas/Misfire"}, {"type": "null"}]},
      "route": {"anyOf": [{"$ref": "#/components/schemas/Route"}, {"type": "null"}]},
      "selector": {"anyOf": [{"$ref": "#/components/schemas/Selector"}, {"type": "null"}]},
      "block": {"anyOf": [{"$ref": "#/components/schemas/Block"}, {"type": "null"}]},
      "scope": {"description": "The range of a lane.", "enum": ["group", "executor", null]},
      "backlog": {"description": "The most triggers that wait in one lane; 1000 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 0, "maximum": 100000},
      "rate_limit": {"anyOf": [{"$ref": "#/components/schemas/RateLimit"}, {"type": "null"}]},
      "concurrency": {"anyOf": [{"$ref": "#/components/schemas/Concurrency"}, {"type": "null"}]},
      "timeout": {"description": "The time limit of an attempt, at least 1ms; no limit by default.", "anyOf": [{"$ref": "#/components/schemas/TimeLimit"}, {"type": "null"}]},
      "kill_grace": {"description": "The time between SIGTERM and SIGKILL; `5s` by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]},
      "retry": {"anyOf": [{"$ref": "#/components/schemas/Retry"}, {"type": "null"}]},
      "on_lost": {"description": "The treatment of a lost attempt; `fail` by default.", "enum": ["fail", "rerun", null]},
      "fence": {"description": "Whether a worker that is cut off from the broker stops the attempt; `stop` by default.", "enum": ["stop", "keep", null]},
      "dispatch_deadline": {"description": "The time that a due run waits for a live executor; `1h` by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]},
      "priority": {"description": "The higher number starts first; 5 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 0, "maximum": 9},
      "retention": {"description": "What is kept of its runs; as the group and the server say by default.", "anyOf": [{"$ref": "#/components/schemas/KeptTime"}, {"$ref": "#/components/schemas/RetentionRule"}, {"type": "null"}]},
      "handler": {"$ref": "#/components/schemas/Handler"},
      "params": {"$ref": "#/components/schemas/Parameter"},
      "after": {"anyOf": [{"$ref": "#/components/schemas/After"}, {"type": "null"}]},
      "labels": {"description": "Free texts by name.", "maxProperties": 64, "anyOf": [{"$ref": "#/components/schemas/Labels"}, {"type": "null"}]},
      "enabled": {"description": "Whether the schedule fires. Without it, a new job fires and an existing one keeps its setting.", "type": ["boolean", "null"]}
    },
    "examples": [{"name": "tick", "schedule": {"every": "1h"}, "handler": {"command": ["date", "-Is"]}}]
  },
  "RateLimit": {
    "description": "At most `count` attempts are dispatched in any second, minute or hour. Further ones wait.",
    "type": "object", "additionalProperties": false, "required": ["count", "per"],
    "properties": {
      "count": {"description": "The most dispatches in an interval.", "type": "integer", "format": "int32", "minimum": 1, "maximum": 1000000},
      "per": {"description": "The interval.", "enum": ["second", "minute", "hour"]},
      "key": {"description": "The jobs of the namespace with this key share the limit. Without it, the job has it alone.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]}
    },
    "examples": [{"count": 10, "per": "second"}, {"count": 100, "per": "hour", "key": "mail"}]
  },
  "RateRule": {
    "description": "At most `count` attempts are dispatched in any second, minute or hour.",
    "type": "object", "additionalProperties": false, "required": ["count", "per"],
    "properties": {
      "count": {"description": "The most dispatches in an interval.", "type": "integer", "format": "int32", "minimum": 1, "maximum": 1000000},
      "per": {"description": "The interval.", "enum": ["second", "minute", "hour"]}
    },
    "examples": [{"count": 100, "per": "minute"}]
  },
  "Concurrency": {
    "description": "At most `limit` attempts of the jobs with this key are at work at the same time, over all executors. Further ones wait.",
    "type": "object", "additionalProperties": false, "required": ["key", "limit"],
    "properties": {
      "key": {"description": "The jobs of the namespace with this key share the limit.", "$ref": "#/components/schemas/Name"},
      "limit": {"description": "The most attempts at work.", "type": "integer", "format": "int32", "minimum": 1, "maximum": 1000}
    },
    "examples": [{"key": "db-main", "limit": 3}]
  },
  "KeptTime": {
    "description": "A duration from 1m to 3650d.",
    "$ref": "#/components/schemas/Duration",
    "pattern": "[1-9][0-9]*[dh]|[1-9][0-9]*m(?:[^s]|$)|(?:[6-9][0-9]|[1-9][0-9]{2,})s|[6-9][0-9]{4,}ms|[1-9][0-9]{5,}ms",
    "examples": ["30d", "12h"]
  },
  "RetentionRule": {
    "description": "What is kept of the runs of a job. What is left out, the group of the job or the server decides. `logs` and `outputs` are no longer than `age`.",
    "type": "object", "additionalProperties": false,
    "properties": {
      "age": {"description": "The time from the end of a run to its deletion.", "anyOf": [{"$ref": "#/components/schemas/KeptTime"}, {"type": "null"}]},
      "runs": {"description": "How many of the newest runs of the job are kept.", "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 1000000},
      "logs": {"description": "The time from the end of a run to the deletion of its log.", "anyOf": [{"$ref": "#/components/schemas/KeptTime"}, {"type": "null"}]},
      "outputs": {"description": "The time from the end of a run to the deletion of its output.", "anyOf": [{"$ref": "#/components/schemas/KeptTime"}, {"type": "null"}]}
    },
    "examples": [{"age": "30d", "runs": 1000, "logs": "3d"}]
  },
  "DefinitionInstant": {
    "description": "An instant: RFC 3339 text, or milliseconds since 1970-01-01T00:00:00Z.",
    "anyOf": [
      {"$ref": "#/components/schemas/DateTime"},
      {"$ref": "#/components/schemas/Whole"}
    ],
    "examples": ["2027-01-01T00:00:00Z"]
  },
  "Schedules": {
    "description": "The job fires at the times of each of them. Several are of the kinds `cron`, `every` and `at`.",
    "type": "array", "minItems": 1, "maxItems": 20,
    "items": {"$ref": "#/components/schemas/Schedule"},
    "examples": [[{"cron": "0 6 * * MON-FRI"}, {"cron": "0 10 * * SAT"}]]
  },
  "Schedule": {
    "description": "Exactly one of `cron`, `every`, `after`, `at`, `startup` and `manual`. `timezone`, `dialect` and `dst` belong to `cron`, `anchor` to `every`.",
    "type": "object",
    "oneOf": [
      {
        "title": "cron", "required": ["cron"], "additionalProperties": false,
        "properties": {
          "cron": {"description": "A cron expression: five fields (Unix), six or seven (Quartz), or a nickname such as @daily.", "type": "string", "minLength": 1, "maxLength": 1024},
          "timezone": {"description": "An IANA time zone; UTC by default.", "type": ["string", "null"], "maxLength": 255, "pattern": "^[^\\x00]*$"},
          "dialect": {"enum": ["unix", "quartz", null]},
          "dst": {"description": "The rule for changes of the clocks.", "enum": ["skip", "once", "both", null]},
          "anchor": {"type": "null"}, "every": {"type": "null"}, "after": {"type": "null"}, "at": {"type": "null"}, "startup": {"type": "null"}, "manual": {"type": "null"}
        }
      },
      {
        "title": "every", "required": ["every"], "additionalProperties": false,
        "properties": {
          "every": {"description": "The period, at least 100ms.", "$ref": "#/components/schemas/Period"},
          "anchor": {"description": "The start of the grid; 1970-01-01T00:00:00Z by default.", "anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}]},
          "timezone": {"type": "null"}, "dialect": {"type": "null"}, "dst": {"type": "null"}, "cron": {"type": "null"}, "after": {"type": "null"}, "at": {"type": "null"}, "startup": {"type": "null"}, "manual": {"type": "null"}
        }
      },
      {
        "title": "after", "required": ["after"], "additionalProperties": false,
        "properties": {
          "after": {"description": "The delay from the end of the last run, at least 100ms.", "$ref": "#/components/schemas/Period"},
          "timezone": {"type": "null"}, "dialect": {"type": "null"}, "dst": {"type": "null"}, "anchor": {"type": "null"}, "cron": {"type": "null"}, "every": {"type": "null"}, "at": {"type": "null"}, "startup": {"type": "null"}, "manual": {"type": "null"}
        }
      },
      {
        "title": "at", "required": ["at"], "additionalProperties": false,
        "properties": {
          "at": {"description": "The one fire time.", "$ref": "#/components/schemas/DefinitionInstant"},
          "timezone": {"type": "null"}, "dialect": {"type": "null"}, "dst": {"type": "null"}, "anchor": {"type": "null"}, "cron": {"type": "null"}, "every": {"type": "null"}, "after": {"type": "null"}, "startup": {"type": "null"}, "manual": {"type": "null"}
        }
      },
      {
        "title": "startup", "required": ["startup"], "additionalProperties": false,
        "properties": {
          "startup": {"const": true},
          "timezone": {"type": "null"}, "dialect": {"type": "null"}, "dst": {"type": "null"}, "anchor": {"type": "null"}, "cron": {"type": "null"}, "every": {"type": "null"}, "after": {"type": "null"}, "at": {"type": "null"}, "manual": {"type": "null"}
        }
      },
      {
        "title": "manual", "required": ["manual"], "additionalProperties": false,
        "properties": {
          "manual": {"const": true},
          "timezone": {"type": "null"}, "dialect": {"type": "null"}, "dst": {"type": "null"}, "anchor": {"type": "null"}, "cron": {"type": "null"}, "every": {"type": "null"}, "after": {"type": "null"}, "at": {"type": "null"}, "startup": {"type": "null"}
        }
      }
    ],
    "examples": [{"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, {"every": "10s"}, {"manual": true}]
  },
  "MisfirePolicy": {"enum": ["skip", "fire_once", "catch_up"]},
  "Misfire": {
    "description": "The treatment of late fire times; `fire_once` by default.",
    "anyOf": [
      {"$ref": "#/components/schemas/MisfirePolicy"},
      {
        "type": "object", "additionalProperties": false,
        "properties": {
          "policy": {"enum": ["skip", "fire_once", "catch_up", null]},
          "grace": {"description": "A fire time that is found later is missed; `5s` by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]},
          "catch_up_limit": {"description": "100 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 1, "maximum": 10000}
        }
      }
    ],
    "examples": ["skip", {"policy": "catch_up", "catch_up_limit": 10}]
  },
  "Route": {
    "description": "The choice of the executor; `round` by default.",
    "anyOf": [
      {"enum": ["first", "last", "round", "random", "consistent_hash", "lfu", "lru", "failover", "busyover", "least_loaded", "weighted", "any", "broadcast"]},
      {
        "type": "object", "additionalProperties": false, "required": ["executor"],
        "properties": {"executor": {"description": "The only executor that may run the job.", "$ref": "#/components/schemas/GivenName"}, "sharded": {"type": "null"}}
      },
      {
        "type": "object", "additionalProperties": false, "required": ["sharded"],
        "properties": {
          "executor": {"type": "null"},
          "sharded": {
            "description": "The number of shards, or an item for each.",
            "anyOf": [
              {"type": "integer", "format": "int32", "minimum": 1, "maximum": 1000},
              {"type": "array", "minItems": 1, "maxItems": 1000, "items": {"type": "string", "maxLength": 1024, "pattern": "^[^\\x00]*$"}}
            ]
          }
        }
      }
    ],
    "examples": ["round", {"executor": "worker-2"}, {"sharded": 4}, {"sharded": ["0=Beijing", "1=Shanghai"]}]
  },
  "Selector": {
    "description": "The labels of the executors that may run the job; all executors by default. A text has up to 16 requirements `KEY=VALUE`, `KEY!=VALUE`, `KEY`, `!KEY`, separated by commas.",
    "anyOf": [
      {"type": "string", "maxLength": 4096},
      {"type": "object", "maxProperties": 16, "additionalProperties": {"type": ["string", "integer", "number", "boolean"]}}
    ],
    "examples": ["zone=a,!spot", {"zone": "a"}]
  },
  "Block": {
    "description": "The treatment of a trigger that meets a busy lane; `serial` by default.",
    "anyOf": [
      {"enum": ["serial", "discard", "cover"]},
      {
        "type": "object", "additionalProperties": false, "required": ["parallel"],
        "properties": {"parallel": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 10000}}
      }
    ],
    "examples": ["cover", {"parallel": 4}]
  },
  "Retry": {
    "description": "Further attempts after a failure: their number, or a table with the details.",
    "anyOf": [
      {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1000},
      {
        "type": "object", "additionalProperties": false,
        "properties": {
          "max": {"description": "Attempts after the first; 0 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 0, "maximum": 1000},
          "backoff": {"description": "`fixed` by default.", "enum": ["fixed", "exponential", null]},
          "first": {"description": "The first wait; `10s` by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]},
          "cap": {"description": "The longest wait; `1h` by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]},
          "jitter_percent": {"description": "The random part of the wait; 10 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 0, "maximum": 100},
          "on": {"description": "The states that are retried; all four by default.", "type": ["array", "null"], "uniqueItems": true, "maxItems": 4, "items": {"enum": ["failed", "timed_out", "lost", "unroutable"]}}
        }
      }
    ],
    "examples": [3, {"max": 5, "backoff": "exponential"}]
  },
  "After": {
    "description": "The parents of the job: the name of one, or a table with the details.",
    "anyOf": [
      {"$ref": "#/components/schemas/Name"},
      {
        "type": "object", "additionalProperties": false, "required": ["all"],
        "properties": {
          "all": {"description": "The job starts once all of them have ended as required.", "allOf": [{"$ref": "#/components/schemas/Parents"}]},
          "any": {"type": "null"},
          "on": {"$ref": "#/components/schemas/AfterOn"},
          "pass_output": {"$ref": "#/components/schemas/PassOutput"}
        }
      },
      {
        "type": "object", "additionalProperties": false, "required": ["any"],
        "properties": {
          "any": {"description": "The job starts once the first of them has ended as required.", "allOf": [{"$ref": "#/components/schemas/Parents"}]},
          "all": {"type": "null"},
          "on": {"$ref": "#/components/schemas/AfterOn"},
          "pass_output": {"$ref": "#/components/schemas/PassOutput"}
        }
      }
    ],
    "examples": ["extract-orders", {"all": ["extract-orders", "extract-prices"], "pass_output": true}, {"any": ["load-a", "load-b"], "on": "failure"}]
  },
  "Parents": {
    "description": "The names of 1 to 32 jobs, each once.",
    "type": "array", "minItems": 1, "maxItems": 32, "uniqueItems": true,
    "items": {"$ref": "#/components/schemas/Name"},
    "examples": [["extract-orders", "extract-prices"]]
  },
  "AfterOn": {
    "description": "The required end of a parent; `success` by default. A parent that is cancelled, discarded, covered or skipped is neither a success nor a failure.",
    "enum": ["success", "failure", "always", null],
    "examples": ["success"]
  },
  "PassOutput": {
    "description": "Pass the output of the parents on as the parameter; `false` by default. Of several parents in `all`, it is a JSON object with a field for each.",
    "type": ["boolean", "null"],
    "examples": [true]
  },
  "EntryName": {
    "description": "The name of a variable, a header or a label.",
    "type": "string",
    "minLength": 1,
    "pattern": "^[^\\x00=\\n\\r]+$"
  },
  "Labels": {
    "type": "object",
    "propertyNames": {"$ref": "#/components/schemas/EntryName"},
    "additionalProperties": {"$ref": "#/components/schemas/WholeOrText"},
    "examples": [{"team": "billing"}]
  },
  "Secret": {
    "description": "A reference to a secret of the worker.",
    "type": "object",
    "additionalProperties": false,
    "required": ["secret"],
    "properties": {"secret": {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"}},
    "examples": [{"secret": "db-password"}]
  },
  "TextOrSecret": {
    "anyOf": [{"$ref": "#/components/schemas/Text"}, {"$ref": "#/components/schemas/Secret"}]
  },
  "Variables": {
    "description": "Environment variables. Values are not expanded.",
    "type": "object",
    "propertyNames": {"$ref": "#/components/schemas/EntryName"},
    "additionalProperties": {"anyOf": [{"$ref": "#/components/schemas/WholeOrText"}, {"$ref": "#/components/schemas/Secret"}]},
    "examples": [{"PGPASSWORD": {"secret": "db-password"}}]
  },
  "Handler": {
    "description": "The code to run: exactly one of `shell`, `command`, `http`, `native` and `script`. `version` goes with the name of a script.",
    "type": "object",
    "oneOf": [
      {
        "title": "shell", "required": ["shell"], "additionalProperties": false,
        "properties": {"shell": {"$ref": "#/components/schemas/Shell"}, "command": {"type": "null"}, "http": {"type": "null"}, "native": {"type": "null"}, "script": {"type": "null"}, "version": {"type": "null"}}
      },
      {
        "title": "command", "required": ["command"], "additionalProperties": false,
        "properties": {"command": {"$ref": "#/components/schemas/Command"}, "shell": {"type": "null"}, "http": {"type": "null"}, "native": {"type": "null"}, "script": {"type": "null"}, "version": {"type": "null"}}
      },
      {
        "title": "http", "required": ["http"], "additionalProperties": false,
        "properties": {"http": {"$ref": "#/components/schemas/Http"}, "shell": {"type": "null"}, "command": {"type": "null"}, "native": {"type": "null"}, "script": {"type": "null"}, "version": {"type": "null"}}
      },
      {
        "title": "native", "required": ["native"], "additionalProperties": false,
        "properties": {"native": {"description": "The name of a handler that a worker has registered.", "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[^\\s\\x00-\\x1f\\x7f-\\x9f]+$"}, "shell": {"type": "null"}, "command": {"type": "null"}, "http": {"type": "null"}, "script": {"type": "null"}, "version": {"type": "null"}}
      },
      {
        "title": "script", "required": ["script"], "additionalProperties": false,
        "properties": {"script": {"$ref": "#/components/schemas/Name"}, "version": {"$ref": "#/components/schemas/PinnedVersion"}, "shell": {"type": "null"}, "command": {"type": "null"}, "http": {"type": "null"}, "native": {"type": "null"}}
      },
      {
        "title": "script with details", "required": ["script"], "additionalProperties": false,
        "properties": {"script": {"$ref": "#/components/schemas/ScriptOfJob", "type": "object"}, "version": {"type": "null"}, "shell": {"type": "null"}, "command": {"type": "null"}, "http": {"type": "null"}, "native": {"type": "null"}}
      }
    ],
    "examples": [{"command": ["date", "-Is"]}, {"shell": "df -h"}, {"http": "http://127.0.0.1:7800/readyz"}]
  },
  "Script": {
    "description": "A script of at most 256 KiB; not blank, without a NUL character.",
    "type": "string",
    "minLength": 1,
    "maxLength": 262144,
    "pattern": "^[^\\x00]*[^\\x00\\s][^\\x00]*$"
  },
  "Shell": {
    "description": "A script: its text, or a table with the details.",
    "anyOf": [
      {"$ref": "#/components/schemas/Script"},
      {
        "type": "object", "additionalProperties": false, "required": ["script"],
        "properties": {
          "script": {"$ref": "#/components/schemas/Script"},
          "interpreter": {"description": "`bash` by default.", "enum": ["sh", "bash", "python3", "node", "php", "pwsh", null]},
          "shell": {"description": "A program that replaces `interpreter` and runs `PROGRAM -c SCRIPT`.", "anyOf": [{"$ref": "#/components/schemas/Path"}, {"type": "null"}]},
          "env": {"anyOf": [{"$ref": "#/components/schemas/Variables"}, {"type": "null"}]},
          "clear_env": {"description": "Start with cron's environment instead of the worker's; `false` by default.", "type": ["boolean", "null"]},
          "cwd": {"description": "The working directory.", "anyOf": [{"$ref": "#/components/schemas/Path"}, {"type": "null"}]},
          "stdin": {"description": "Text on standard input.", "anyOf": [{"$ref": "#/components/schemas/TextOrSecret"}, {"type": "null"}]},
          "run_as": {"description": "The user to run as.", "type": ["string", "null"], "minLength": 1, "maxLength": 128, "pattern": "^[^\\x00]*[^\\x00\\s][^\\x00]*$"}
        }
      }
    ],
    "examples": ["df -h"]
  },
  "Arguments": {
    "description": "The program and its arguments.",
    "type": "array",
    "minItems": 1,
    "maxItems": 4096,
    "prefixItems": [{"$ref": "#/components/schemas/Path"}],
    "items": {"$ref": "#/components/schemas/Text"},
    "examples": [["pg_dump", "app"]]
  },
  "Command": {
    "description": "A program that runs without a shell: a list, or a table with the details.",
    "anyOf": [
      {"$ref": "#/components/schemas/Arguments"},
      {
        "type": "object", "additionalProperties": false, "required": ["argv"],
        "properties": {
          "argv": {"$ref": "#/components/schemas/Arguments"},
          "env": {"anyOf": [{"$ref": "#/components/schemas/Variables"}, {"type": "null"}]},
          "clear_env": {"description": "Start with cron's environment instead of the worker's; `false` by default.", "type": ["boolean", "null"]},
          "cwd": {"description": "The working directory.", "anyOf": [{"$ref": "#/components/schemas/Path"}, {"type": "null"}]},
          "stdin": {"description": "Text on standard input.", "anyOf": [{"$ref": "#/components/schemas/TextOrSecret"}, {"type": "null"}]},
          "run_as": {"description": "The user to run as.", "type": ["string", "null"], "minLength": 1, "maxLength": 128, "pattern": "^[^\\x00]*[^\\x00\\s][^\\x00]*$"}
        }
      }
    ],
    "examples": [["date", "-Is"]]
  },
  "Url": {
    "description": "An absolute http or https URL with a host.",
    "type": "string",
    "maxLength": 8192,
    "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://([^\\s\\x00-\\x1f\\x7f-\\x9f/?#@]*@)*[^\\s\\x00-\\x1f\\x7f-\\x9f/?#@:][^\\s\\x00-\\x1f\\x7f-\\x9f]*$",
    "examples": ["https://example.com/hook"]
  },
  "HttpHeaders": {
    "description": "Request headers.",
    "type": "object",
    "propertyNames": {"pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"},
    "additionalProperties": {
      "anyOf": [
        {"type": "string", "maxLength": 65536, "pattern": "^[^\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f]*$"},
        {"$ref": "#/components/schemas/Whole"},
        {"type": "boolean"},
        {"$ref": "#/components/schemas/Secret"}
      ]
    },
    "examples": [{"Authorization": {"secret": "report-token"}}]
  },
  "Http": {
    "description": "An HTTP request: its URL, or a table with the details.",
    "anyOf": [
      {"$ref": "#/components/schemas/Url"},
      {
        "type": "object", "additionalProperties": false, "required": ["url"],
        "properties": {
          "url": {"$ref": "#/components/schemas/Url"},
          "method": {"description": "`GET` by default.", "type": ["string", "null"], "minLength": 1, "maxLength": 32, "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"},
          "headers": {"anyOf": [{"$ref": "#/components/schemas/HttpHeaders"}, {"type": "null"}]},
          "body": {"description": "The request body.", "anyOf": [{"$ref": "#/components/schemas/TextOrSecret"}, {"type": "null"}]},
          "expect": {
            "description": "The statuses of a success; 200 to 299 by default.",
            "anyOf": [
              {"type": "integer", "format": "int32", "minimum": 100, "maximum": 599},
              {"type": "array", "maxItems": 500, "items": {"type": "integer", "format": "int32", "minimum": 100, "maximum": 599}},
              {"type": "null"}
            ]
          },
          "redirects": {"description": "The most redirects to follow; 0 by default.", "type": ["integer", "null"], "format": "int32", "minimum": 0, "maximum": 10}
        }
      }
    ],
    "examples": ["http://127.0.0.1:7800/readyz"]
  }
}"##;
