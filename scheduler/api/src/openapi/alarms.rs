//! Alarm rules, channels and silences, as `cueline_model::decode` accepts them. `docs/alarms.md` explains the fields.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "AlarmSort": {"description": "The newest first.", "type": "string", "enum": ["-id"], "default": "-id"},
  "AlarmCondition": {"description": "Which condition of the rule an alarm fulfils.", "type": "string", "enum": ["failed", "failed_in_a_row", "timed_out", "lost", "unroutable", "recovered", "missed", "late", "backlog", "no_executor", "test"]},
  "AlarmFate": {"description": "What became of an alarm.", "type": "string", "enum": ["waiting", "sent", "silenced", "dropped"]},
  "AlarmDeliveryState": {"description": "The state of a delivery.", "type": "string", "enum": ["pending", "delivered", "failed"]},
  "AlarmNames": {"description": "Names in the namespace.", "type": ["array", "null"], "maxItems": 200, "items": {"$ref": "#/components/schemas/Name"}},
  "AlarmPeriod": {
    "description": "A duration from 1s to 3650d.",
    "$ref": "#/components/schemas/Duration",
    "pattern": "[1-9][0-9]*[dhs]|[1-9][0-9]*m(?:[^s]|$)|[1-9][0-9]{3,}ms",
    "examples": ["5m"]
  },
  "AlarmRuleCondition": {
    "description": "What raises an alarm.",
    "oneOf": [
      {"enum": ["failed", "timed_out", "lost", "unroutable", "recovered", "missed"]},
      {"type": "object", "additionalProperties": false, "required": ["failed_in_a_row"], "properties": {"failed_in_a_row": {"type": "integer", "minimum": 1, "maximum": 1000}}},
      {"type": "object", "additionalProperties": false, "required": ["late"], "properties": {"late": {"$ref": "#/components/schemas/AlarmPeriod"}}},
      {"type": "object", "additionalProperties": false, "required": ["backlog"], "properties": {"backlog": {"type": "integer", "minimum": 0, "maximum": 10000}}},
      {"type": "object", "additionalProperties": false, "required": ["no_executor"], "properties": {"no_executor": {"$ref": "#/components/schemas/AlarmPeriod"}}}
    ],
    "examples": ["failed", {"failed_in_a_row": 3}]
  },
  "AlarmRuleReplacement": {
    "description": "The rule in the path. `name` may be left out; otherwise it is the same. Of the jobs of the namespace, it is about those that meet all of `jobs`, `groups` and `labels`.",
    "type": "object",
    "additionalProperties": false,
    "required": ["on", "channels"],
    "properties": {
      "name": {"anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "namespace": {"description": "The namespace of the request, and no other one.", "anyOf": [{"$ref": "#/components/schemas/Namespace"}, {"type": "null"}]},
      "description": {"description": "Free text.", "anyOf": [{"$ref": "#/components/schemas/Text"}, {"type": "null"}]},
      "jobs": {"$ref": "#/components/schemas/AlarmNames"},
      "groups": {"$ref": "#/components/schemas/AlarmNames"},
      "labels": {"description": "Only jobs with these labels.", "anyOf": [{"$ref": "#/components/schemas/Labels"}, {"type": "null"}]},
      "on": {"description": "What raises an alarm, each once.", "type": "array", "minItems": 1, "maxItems": 20, "uniqueItems": true, "items": {"$ref": "#/components/schemas/AlarmRuleCondition"}},
      "channels": {"description": "The channels, each once.", "type": "array", "minItems": 1, "maxItems": 10, "uniqueItems": true, "items": {"$ref": "#/components/schemas/Name"}},
      "group_interval": {"description": "Alarms within this time after the first one are in one message: at most 1d; 30s by default.", "anyOf": [{"$ref": "#/components/schemas/Duration"}, {"type": "null"}]},
      "enabled": {"description": "Whether it raises alarms; `true` by default.", "type": ["boolean", "null"]}
    },
    "examples": [{"jobs": ["nightly-backup"], "on": [{"failed_in_a_row": 3}, "recovered"], "channels": ["ops"]}]
  },
  "GivenAlarmRule": {
    "description": "The definition of a rule.",
    "type": "object",
    "required": ["name", "on", "channels", "group_interval", "enabled"],
    "properties": {
      "name": {"$ref": "#/components/schemas/GivenName"},
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "description": {"$ref": "#/components/schemas/Text"},
      "jobs": {"type": "array", "items": {"$ref": "#/components/schemas/GivenName"}},
      "groups": {"type": "array", "items": {"$ref": "#/components/schemas/GivenName"}},
      "labels": {"type": "object", "additionalProperties": {"type": "string"}},
      "on": {"type": "array", "items": {"$ref": "#/components/schemas/AlarmRuleCondition"}},
      "channels": {"type": "array", "items": {"$ref": "#/components/schemas/GivenName"}},
      "group_interval": {"$ref": "#/components/schemas/Duration"},
      "enabled": {"type": "boolean"}
    }
  },
  "AlarmSecret": {
    "description": "The name of a secret of the schedulers.",
    "type": "object", "additionalProperties": false, "required": ["secret"],
    "properties": {"secret": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]*$"}},
    "examples": [{"secret": "ops-hook"}]
  },
  "AlarmUrl": {
    "description": "An absolute http or https URL, or a secret with one.",
    "anyOf": [
      {"type": "string", "maxLength": 8192, "pattern": "^[hH][tT][tT][pP][sS]?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:[/?#][!-~]*)?$"},
      {"$ref": "#/components/schemas/AlarmSecret"}
    ]
  },
  "AlarmHook": {"type": "object", "additionalProperties": false, "required": ["url"], "properties": {"url": {"$ref": "#/components/schemas/AlarmUrl"}}},
  "AlarmSignedHook": {
    "type": "object", "additionalProperties": false, "required": ["url"],
    "properties": {"url": {"$ref": "#/components/schemas/AlarmUrl"}, "secret": {"description": "The key of the signature.", "anyOf": [{"$ref": "#/components/schemas/AlarmSecret"}, {"type": "null"}]}}
  },
  "AlarmAddress": {"description": "An e-mail address.", "type": "string", "maxLength": 320, "pattern": "^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9][A-Za-z0-9.-]*$", "examples": ["ops@example.com"]},
  "AlarmMail": {
    "type": "object", "additionalProperties": false, "required": ["server", "from", "to"],
    "properties": {
      "server": {"description": "The host of the SMTP server.", "type": "string", "minLength": 1, "maxLength": 320, "pattern": "^[A-Za-z0-9._-]+$"},
      "port": {"description": "587 by default, 465 with `tls`, 25 with `none`.", "type": ["integer", "null"], "minimum": 1, "maximum": 65535},
      "tls": {"description": "How the connection is encrypted; `starttls` by default.", "enum": ["starttls", "tls", "none", null]},
      "user": {"description": "With `password`, and not with `tls = \"none\"`.", "type": ["string", "null"], "minLength": 1, "maxLength": 320, "pattern": "^[^\\x00]*[^\\x00\\s][^\\x00]*$"},
      "password": {"anyOf": [{"$ref": "#/components/schemas/AlarmSecret"}, {"type": "null"}]},
      "from": {"$ref": "#/components/schemas/AlarmAddress"},
      "to": {"type": "array", "minItems": 1, "maxItems": 50, "uniqueItems": true, "items": {"$ref": "#/components/schemas/AlarmAddress"}}
    },
    "anyOf": [
      {"required": ["user", "password"], "properties": {"user": {"type": "string"}, "password": {"type": "object"}, "tls": {"enum": ["starttls", "tls", null]}}},
      {"properties": {"user": {"type": "null"}, "password": {"type": "null"}}}
    ],
    "examples": [{"server": "smtp.example.com", "user": "cueline", "password": {"secret": "smtp"}, "from": "cueline@example.com", "to": ["ops@example.com"]}]
  },
  "AlarmTemplate": {
    "description": "A text with placeholders such as `{job}`; `{{` and `}}` are the characters themselves.",
    "type": ["string", "null"], "minLength": 1, "maxLength": 8192,
    "pattern": "^(?:[^{}\\x00]|\\{\\{|\\}\\}|\\{(?:rule|namespace|channel|count|jobs|events|condition|at|job|group|run|state|failures|since|message)\\})*$",
    "allOf": [{"pattern": "\\S"}],
    "anyOf": [{"pattern": "^[\\x01-\\x7f]*$"}, {"maxLength": 2048}],
    "examples": ["{job} {condition}"]
  },
  "AlarmChannelReplacement": {
    "description": "The channel in the path. `name` may be left out; otherwise it is the same. Exactly one kind is given.",
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "name": {"anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "namespace": {"description": "The namespace of the request, and no other one.", "anyOf": [{"$ref": "#/components/schemas/Namespace"}, {"type": "null"}]},
      "email": {"anyOf": [{"$ref": "#/components/schemas/AlarmMail"}, {"type": "null"}]},
      "webhook": {"anyOf": [{"$ref": "#/components/schemas/AlarmSignedHook"}, {"type": "null"}]},
      "slack": {"anyOf": [{"$ref": "#/components/schemas/AlarmHook"}, {"type": "null"}]},
      "dingtalk": {"anyOf": [{"$ref": "#/components/schemas/AlarmSignedHook"}, {"type": "null"}]},
      "wecom": {"anyOf": [{"$ref": "#/components/schemas/AlarmHook"}, {"type": "null"}]},
      "feishu": {"anyOf": [{"$ref": "#/components/schemas/AlarmSignedHook"}, {"type": "null"}]},
      "language": {"description": "The language of the messages; `en` by default.", "enum": ["en", "zh", null]},
      "title": {"$ref": "#/components/schemas/AlarmTemplate"},
      "body": {"$ref": "#/components/schemas/AlarmTemplate"}
    },
    "oneOf": [
      {"required": ["email"], "properties": {"email": {"type": "object"}, "webhook": {"type": "null"}, "slack": {"type": "null"}, "dingtalk": {"type": "null"}, "wecom": {"type": "null"}, "feishu": {"type": "null"}}},
      {"required": ["webhook"], "properties": {"webhook": {"type": "object"}, "email": {"type": "null"}, "slack": {"type": "null"}, "dingtalk": {"type": "null"}, "wecom": {"type": "null"}, "feishu": {"type": "null"}}},
      {"required": ["slack"], "properties": {"slack": {"type": "object"}, "email": {"type": "null"}, "webhook": {"type": "null"}, "dingtalk": {"type": "null"}, "wecom": {"type": "null"}, "feishu": {"type": "null"}}},
      {"required": ["dingtalk"], "properties": {"dingtalk": {"type": "object"}, "email": {"type": "null"}, "webhook": {"type": "null"}, "slack": {"type": "null"}, "wecom": {"type": "null"}, "feishu": {"type": "null"}}},
      {"required": ["wecom"], "properties": {"wecom": {"type": "object"}, "email": {"type": "null"}, "webhook": {"type": "null"}, "slack": {"type": "null"}, "dingtalk": {"type": "null"}, "feishu": {"type": "null"}}},
      {"required": ["feishu"], "properties": {"feishu": {"type": "object"}, "email": {"type": "null"}, "webhook": {"type": "null"}, "slack": {"type": "null"}, "dingtalk": {"type": "null"}, "wecom": {"type": "null"}}}
    ],
    "examples": [{"webhook": {"url": "https://example.com/alarms", "secret": {"secret": "ops-hook"}}, "language": "en"}]
  },
  "GivenAlarmChannel": {
    "description": "The definition of a channel: its name, its kind with its settings, and its language.",
    "type": "object",
    "required": ["name", "language"],
    "properties": {
      "name": {"$ref": "#/components/schemas/GivenName"},
      "namespace": {"description": "Left out for `default`.", "$ref": "#/components/schemas/GivenNamespace"},
      "email": {"type": "object"},
      "webhook": {"type": "object"},
      "slack": {"type": "object"},
      "dingtalk": {"type": "object"},
      "wecom": {"type": "object"},
      "feishu": {"type": "object"},
      "language": {"enum": ["en", "zh"]},
      "title": {"type": "string"},
      "body": {"type": "string"}
    }
  },
  "NewAlarmSilence": {
    "description": "Of the alarms of the namespace, it is about those that meet all of `rules`, `jobs`, `groups` and `labels`.",
    "type": "object",
    "additionalProperties": false,
    "required": ["reason"],
    "properties": {
      "rules": {"$ref": "#/components/schemas/AlarmNames"},
      "jobs": {"$ref": "#/components/schemas/AlarmNames"},
      "groups": {"$ref": "#/components/schemas/AlarmNames"},
      "labels": {"description": "Only alarms about jobs with these labels.", "anyOf": [{"$ref": "#/components/schemas/Labels"}, {"type": "null"}]},
      "from": {"description": "When it begins; now by default.", "anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}]},
      "until": {"description": "When it ends: after now, and at most 366 days after its beginning.", "anyOf": [{"$ref": "#/components/schemas/DefinitionInstant"}, {"type": "null"}]},
      "for": {"description": "How long it lasts, from 1s to 366d, instead of `until`.", "anyOf": [{"$ref": "#/components/schemas/AlarmPeriod"}, {"type": "null"}]},
      "reason": {"description": "Why, for people.", "type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[^\\x00]*\\S[^\\x00]*$"}
    },
    "oneOf": [
      {"required": ["until"], "properties": {"until": {"type": ["string", "integer"]}, "for": {"type": "null"}}},
      {"required": ["for"], "properties": {"for": {"type": "string"}, "until": {"type": "null"}}}
    ],
    "examples": [{"jobs": ["nightly-backup"], "for": "2h", "reason": "the disk is being replaced"}]
  }
}"##;
