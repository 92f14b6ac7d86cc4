//! Calendars and maintenance windows, as `cueline_model::decode` accepts them. `docs/jobs.md` explains the fields.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "CalendarDefinition": {
    "description": "The definition of a calendar. It excludes at least one of `dates`, `weekdays`, `times` and `periods`.",
    "type": "object",
    "additionalProperties": false,
    "required": ["name"],
    "anyOf": [
      {"required": ["dates"], "properties": {"dates": {"type": "array", "minItems": 1}}},
      {"required": ["weekdays"], "properties": {"weekdays": {"type": "array", "minItems": 1}}},
      {"required": ["times"], "properties": {"times": {"type": "array", "minItems": 1}}},
      {"required": ["periods"], "properties": {"periods": {"type": "array", "minItems": 1}}}
    ],
    "properties": {
      "name": {"$ref": "#/components/schemas/Name"},
      "namespace": {"description": "The namespace of the calendar; that of the request by default, and no other one.", "anyOf": [{"$ref": "#/components/schemas/Namespace"}, {"type": "null"}]},
      "description": {"description": "Free text.", "anyOf": [{"$ref": "#/components/schemas/Text"}, {"type": "null"}]},
      "timezone": {"description": "The IANA time zone of dates, weekdays and times; UTC by default.", "type": ["string", "null"], "maxLength": 255, "pattern": "^[^\\x00]*$"},
      "dates": {"description": "Whole days: one, several, or one of each year.", "type": ["array", "null"], "maxItems": 10000, "items": {"$ref": "#/components/schemas/DateRule"}},
      "weekdays": {"description": "Whole days of each week, not all seven.", "type": ["array", "null"], "maxItems": 7, "items": {"$ref": "#/components/schemas/Weekday"}},
      "times": {"description": "Times of each day. One whose end is not after its beginning ends on the next day.", "type": ["array", "null"], "maxItems": 100, "items": {"$ref": "#/components/schemas/DailyTime"}},
      "periods": {"description": "Single stretches of time.", "type": ["array", "null"], "maxItems": 10000, "items": {"$ref": "#/components/schemas/CalendarPeriod"}}
    },
    "examples": [{"name": "holidays-de", "timezone": "Europe/Berlin", "dates": ["12-25", "2027-03-26", "2027-12-24/2028-01-01"]}]
  },
  "DateRule": {
    "description": "A day `2027-03-26`, the first and the last of several days `2027-12-24/2028-01-01`, or a day of each year `12-25`.",
    "type": "string",
    "pattern": "^(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))(?:/[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9])))?|(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9])))$",
    "examples": ["2027-03-26", "2027-12-24/2028-01-01", "12-25"]
  },
  "TimeOfDay": {"type": "string", "pattern": "^(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]|24:00)$", "examples": ["22:00"]},
  "Weekday": {"enum": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]},
  "DailyTime": {
    "type": "object", "additionalProperties": false, "required": ["from", "to"],
    "properties": {
      "from": {"$ref": "#/components/schemas/TimeOfDay"},
      "to": {"description": "Another time of day than `from`.", "$ref": "#/components/schemas/TimeOfDay"},
      "weekdays": {"description": "The days on which it begins; all by default.", "type": ["array", "null"], "maxItems": 7, "items": {"$ref": "#/components/schemas/Weekday"}}
    },
    "examples": [{"from": "22:00", "to": "06:00", "weekdays": ["fri"]}]
  },
  "GivenCalendar": {
    "description": "The definition of a calendar. What it does not exclude is left out.",
    "type": "object",
    "required": ["name", "timezone"],
    "properties": {
      "name": {"description": "The name in the namespace.", "$ref": "#/components/schemas/GivenName"},
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "description": {"$ref": "#/components/schemas/Text"},
      "timezone": {"type": "string"},
      "dates": {"type": "array", "items": {"$ref": "#/components/schemas/DateRule"}},
      "weekdays": {"type": "array", "items": {"$ref": "#/components/schemas/Weekday"}},
      "times": {"type": "array", "items": {"$ref": "#/components/schemas/DailyTime"}},
      "periods": {"type": "array", "items": {"$ref": "#/components/schemas/CalendarPeriod"}}
    }
  },
  "CalendarPeriod": {
    "type": "object", "additionalProperties": false, "required": ["start", "end"],
    "properties": {
      "start": {"$ref": "#/components/schemas/DefinitionInstant"},
      "end": {"description": "Later than `start`.", "$ref": "#/components/schemas/DefinitionInstant"}
    }
  },
  "CalendarsRequest": {
    "type": "object",
    "additionalProperties": false,
    "required": ["calendars"],
    "properties": {
      "calendars": {"description": "The definitions.", "type": "array", "maxItems": 1000, "items": {"$ref": "#/components/schemas/CalendarDefinition"}},
      "dry_run": {"description": "Only compare; `false` by default.", "type": ["boolean", "null"]}
    },
    "examples": [{"calendars": [{"name": "weekends", "weekdays": ["sat", "sun"]}]}]
  },
  "NewWindow": {
    "description": "Either `start` and `end`, or `cron` and `duration`. Of the jobs of the namespace, or of all namespaces, it is about those that have the group and all the labels.",
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "all_namespaces": {"description": "Whether it is about all namespaces; `false` by default, and not with `group`.", "type": ["boolean", "null"]},
      "group": {"description": "Only jobs of this group.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "labels": {"description": "Only jobs with these labels.", "anyOf": [{"$ref": "#/components/schemas/Labels"}, {"type": "null"}]},
      "start": {"anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}]},
      "end": {"description": "Later than `start`.", "anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}]},
      "cron": {"description": "When it opens, again and again.", "type": ["string", "null"], "minLength": 1, "maxLength": 1024},
      "timezone": {"description": "The IANA time zone of `cron`; UTC by default.", "type": ["string", "null"], "maxLength": 255, "pattern": "^[^\\x00]*$"},
      "dialect": {"enum": ["unix", "quartz", null]},
      "dst": {"enum": ["skip", "once", "both", null]},
      "duration": {"description": "How long it stays open after each time of `cron`, at least 1s.", "anyOf": [{"$ref": "#/components/schemas/WindowDuration"}, {"type": "null"}]},
      "reason": {"description": "Why, for people.", "anyOf": [{"$ref": "#/components/schemas/WindowText"}, {"type": "null"}]},
      "owner": {"description": "Whom to ask; the caller by default.", "anyOf": [{"$ref": "#/components/schemas/WindowText"}, {"type": "null"}]}
    },
    "oneOf": [
      {
        "title": "once", "required": ["start", "end"],
        "properties": {
          "start": {"type": ["string", "integer"]}, "end": {"type": ["string", "integer"]},
          "cron": {"type": "null"}, "timezone": {"type": "null"}, "dialect": {"type": "null"}, "dst": {"type": "null"}, "duration": {"type": "null"}
        }
      },
      {
        "title": "recurring", "required": ["cron", "duration"],
        "properties": {"cron": {"type": "string"}, "duration": {"type": "string"}, "start": {"type": "null"}, "end": {"type": "null"}}
      }
    ],
    "anyOf": [
      {"properties": {"all_namespaces": {"enum": [false, null]}}},
      {"properties": {"group": {"type": "null"}}}
    ],
    "examples": [
      {"group": "billing", "start": "2027-01-01T00:00:00Z", "end": "2027-01-01T02:00:00Z", "reason": "database upgrade"},
      {"cron": "0 22 * * SAT", "timezone": "Europe/Berlin", "duration": "4h", "reason": "patches"}
    ]
  },
  "WindowDuration": {
    "description": "A duration from 1s to 3650d.",
    "$ref": "#/components/schemas/Duration",
    "pattern": "[1-9][0-9]*[dhs]|[1-9][0-9]*m(?:[^s]|$)|[1-9][0-9]{3,}ms",
    "examples": ["4h"]
  },
  "WindowText": {
    "description": "A text of at most 1024 bytes without a NUL character.",
    "type": "string",
    "maxLength": 1024,
    "anyOf": [{"pattern": "^[\\x01-\\x7f]*$"}, {"pattern": "^[^\\x00]{0,256}$"}]
  },
  "NewPause": {
    "description": "At least one of `all`, `all_namespaces`, `group` and `labels` says what is paused. The jobs of the namespace, or of all namespaces, are paused that have the group and all the labels.",
    "type": "object",
    "additionalProperties": false,
    "required": ["reason"],
    "properties": {
      "all": {"description": "All jobs of the namespace; `false` by default.", "type": ["boolean", "null"]},
      "all_namespaces": {"description": "The jobs of all namespaces; `false` by default, and not with `group`.", "type": ["boolean", "null"]},
      "group": {"description": "Only jobs of this group.", "anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "labels": {"description": "Only jobs with these labels.", "anyOf": [{"$ref": "#/components/schemas/Labels"}, {"type": "null"}]},
      "reason": {"description": "Why, for people.", "type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\x00]*\\S[^\\x00]*$"},
      "until": {"description": "When it ends by itself, after now.", "minimum": -377705023201000, "maximum": 253402207200999, "anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}]},
      "for": {"description": "How long it lasts, at least 1s, instead of `until`.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]}
    },
    "examples": [
      {"group": "billing", "for": "2h", "reason": "the ledger is being repaired"},
      {"all": true, "reason": "incident 4711"}
    ]
  },
  "NewBackfill": {
    "type": "object",
    "additionalProperties": false,
    "required": ["from", "to"],
    "properties": {
      "from": {"description": "The first instant of the window.", "$ref": "#/components/schemas/DefinitionInstant", "minimum": -377705023201000, "maximum": 253402207200999},
      "to": {"description": "The first instant after it, not in the future.", "$ref": "#/components/schemas/DefinitionInstant", "minimum": -377705023201000, "maximum": 253402207200999},
      "parallel": {"description": "How many fire times may be at work at once; 1 by default.", "type": ["integer", "null"], "minimum": 1, "maximum": 100},
      "include_excluded": {"description": "Also fire times that calendars and maintenance windows exclude; `false` by default.", "type": ["boolean", "null"]},
      "dry_run": {"description": "Only count; `false` by default.", "type": ["boolean", "null"]},
      "expected_fires": {"description": "The number of fire times that was counted before.", "type": ["integer", "null"], "minimum": 0, "maximum": 9223372036854775807}
    },
    "examples": [{"from": "2027-01-01T00:00:00Z", "to": "2027-02-01T00:00:00Z", "parallel": 4, "dry_run": true}]
  },
  "BackfillState": {"description": "What a backfill does.", "enum": ["running", "paused", "finished", "cancelled"]},
  "WindowDefinition": {
    "description": "A maintenance window: its scope, its time, `reason` and `owner`.",
    "type": "object",
    "properties": {
      "namespace": {"description": "Left out for all namespaces.", "$ref": "#/components/schemas/GivenNamespace"},
      "group": {"description": "Qualified.", "$ref": "#/components/schemas/GivenName"},
      "labels": {"type": "object", "additionalProperties": {"type": "string"}},
      "start": {"$ref": "#/components/schemas/DefinitionInstant"},
      "end": {"$ref": "#/components/schemas/DefinitionInstant"},
      "starts": {"description": "The cron schedule of a recurring window.", "type": "object"},
      "duration": {"type": "string"},
      "reason": {"type": "string"},
      "owner": {"type": "string"}
    }
  }
}"##;
