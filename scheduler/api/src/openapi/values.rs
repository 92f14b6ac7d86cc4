//! Values in paths, parameters and fields.
//!
//! Texts are bounded in bytes, and JSON Schema counts characters. So a schema of requests allows ASCII up to the bound, and
//! any text up to a quarter of it. Schemas that responses have too allow as many characters as bytes, because each stored
//! text has to fit.
//!
//! Not every validator knows character classes such as `\p{L}`. So the pattern of names lists the ranges of at least 16
//! letters or digits that follow each other. The server also accepts letters outside of them.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "Name": {
    "description": "A name: 1 to 128 bytes; letters and digits of any language, '-', '_', '.' and ':'. The first is a letter, a digit or '_'.",
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "anyOf": [
      {"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$"},
      {"pattern": "^[A-Za-z0-9_\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u02c1\\u038e-\\u03a1\\u03a3-\\u03f5\\u03f7-\\u0481\\u048a-\\u052f\\u0531-\\u0556\\u0560-\\u0588\\u05d0-\\u05ea\\u0620-\\u064a\\u0671-\\u06d3\\u0712-\\u072f\\u074d-\\u07a5\\u07c0-\\u07ea\\u0800-\\u0815\\u0840-\\u0858\\u0870-\\u0887\\u08a0-\\u08c9\\u0904-\\u0939\\u0971-\\u0980\\u0993-\\u09a8\\u0a13-\\u0a28\\u0a93-\\u0aa8\\u0b13-\\u0b28\\u0c12-\\u0c28\\u0c2a-\\u0c39\\u0c92-\\u0ca8\\u0d12-\\u0d3a\\u0d66-\\u0d78\\u0d85-\\u0d96\\u0d9a-\\u0db1\\u0e01-\\u0e30\\u0e8c-\\u0ea3\\u0f20-\\u0f33\\u0f49-\\u0f6c\\u1000-\\u102a\\u10a0-\\u10c5\\u10d0-\\u10fa\\u10fc-\\u115e\\u1161-\\u1248\\u1260-\\u1288\\u1290-\\u12b0\\u12d8-\\u1310\\u1318-\\u135a\\u1369-\\u137c\\u1380-\\u138f\\u13a0-\\u13f5\\u1401-\\u166c\\u166f-\\u167f\\u1681-\\u169a\\u16a0-\\u16ea\\u1700-\\u1711\\u171f-\\u1731\\u1740-\\u1751\\u1780-\\u17b3\\u1820-\\u1878\\u1887-\\u18a8\\u18b0-\\u18f5\\u1900-\\u191e\\u1946-\\u196d\\u1980-\\u19ab\\u19b0-\\u19c9\\u1a00-\\u1a16\\u1a20-\\u1a54\\u1b05-\\u1b33\\u1b83-\\u1ba0\\u1bae-\\u1be5\\u1c00-\\u1c23\\u1c4d-\\u1c7d\\u1c90-\\u1cba\\u1d00-\\u1dbf\\u1e00-\\u1f15\\u1f20-\\u1f45\\u1f5f-\\u1f7d\\u1f80-\\u1fb4\\u2150-\\u2189\\u2460-\\u249b\\u24ea-\\u24ff\\u2776-\\u2793\\u2c00-\\u2ce4\\u2d00-\\u2d25\\u2d30-\\u2d67\\u2d80-\\u2d96\\u3041-\\u3096\\u30a1-\\u30fa\\u3105-\\u312f\\u3131-\\u3163\\u3165-\\u318e\\u31a0-\\u31bf\\u31f0-\\u31ff\\u3400-\\u4dbf\\u4e00-\\ua48c\\ua4d0-\\ua4fd\\ua500-\\ua60c\\ua610-\\ua62b\\ua640-\\ua66e\\ua67f-\\ua69d\\ua6a0-\\ua6ef\\ua722-\\ua788\\ua78b-\\ua7ca\\ua7f2-\\ua801\\ua80c-\\ua822\\ua840-\\ua873\\ua882-\\ua8b3\\ua900-\\ua925\\ua930-\\ua946\\ua960-\\ua97c\\ua984-\\ua9b2\\ua9e6-\\ua9fe\\uaa00-\\uaa28\\uaa60-\\uaa76\\uaa7e-\\uaaaf\\uab30-\\uab5a\\uab70-\\uabe2\\uac00-\\ud7a3\\ud7b0-\\ud7c6\\ud7cb-\\ud7fb\\uf900-\\ufa6d\\ufa70-\\ufad9\\ufb46-\\ufbb1\\ufbd3-\\ufd3d\\ufd50-\\ufd8f\\ufd92-\\ufdc7\\ufe76-\\ufefc\\uff21-\\uff3a\\uff41-\\uff5a\\uff66-\\uff9f\\uffa1-\\uffbe][A-Za-z0-9_.:\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u02c1\\u038e-\\u03a1\\u03a3-\\u03f5\\u03f7-\\u0481\\u048a-\\u052f\\u0531-\\u0556\\u0560-\\u0588\\u05d0-\\u05ea\\u0620-\\u064a\\u0671-\\u06d3\\u0712-\\u072f\\u074d-\\u07a5\\u07c0-\\u07ea\\u0800-\\u0815\\u0840-\\u0858\\u0870-\\u0887\\u08a0-\\u08c9\\u0904-\\u0939\\u0971-\\u0980\\u0993-\\u09a8\\u0a13-\\u0a28\\u0a93-\\u0aa8\\u0b13-\\u0b28\\u0c12-\\u0c28\\u0c2a-\\u0c39\\u0c92-\\u0ca8\\u0d12-\\u0d3a\\u0d66-\\u0d78\\u0d85-\\u0d96\\u0d9a-\\u0db1\\u0e01-\\u0e30\\u0e8c-\\u0ea3\\u0f20-\\u0f33\\u0f49-\\u0f6c\\u1000-\\u102a\\u10a0-\\u10c5\\u10d0-\\u10fa\\u10fc-\\u115e\\u1161-\\u1248\\u1260-\\u1288\\u1290-\\u12b0\\u12d8-\\u1310\\u1318-\\u135a\\u1369-\\u137c\\u1380-\\u138f\\u13a0-\\u13f5\\u1401-\\u166c\\u166f-\\u167f\\u1681-\\u169a\\u16a0-\\u16ea\\u1700-\\u1711\\u171f-\\u1731\\u1740-\\u1751\\u1780-\\u17b3\\u1820-\\u1878\\u1887-\\u18a8\\u18b0-\\u18f5\\u1900-\\u191e\\u1946-\\u196d\\u1980-\\u19ab\\u19b0-\\u19c9\\u1a00-\\u1a16\\u1a20-\\u1a54\\u1b05-\\u1b33\\u1b83-\\u1ba0\\u1bae-\\u1be5\\u1c00-\\u1c23\\u1c4d-\\u1c7d\\u1c90-\\u1cba\\u1d00-\\u1dbf\\u1e00-\\u1f15\\u1f20-\\u1f45\\u1f5f-\\u1f7d\\u1f80-\\u1fb4\\u2150-\\u2189\\u2460-\\u249b\\u24ea-\\u24ff\\u2776-\\u2793\\u2c00-\\u2ce4\\u2d00-\\u2d25\\u2d30-\\u2d67\\u2d80-\\u2d96\\u3041-\\u3096\\u30a1-\\u30fa\\u3105-\\u312f\\u3131-\\u3163\\u3165-\\u318e\\u31a0-\\u31bf\\u31f0-\\u31ff\\u3400-\\u4dbf\\u4e00-\\ua48c\\ua4d0-\\ua4fd\\ua500-\\ua60c\\ua610-\\ua62b\\ua640-\\ua66e\\ua67f-\\ua69d\\ua6a0-\\ua6ef\\ua722-\\ua788\\ua78b-\\ua7ca\\ua7f2-\\ua801\\ua80c-\\ua822\\ua840-\\ua873\\ua882-\\ua8b3\\ua900-\\ua925\\ua930-\\ua946\\ua960-\\ua97c\\ua984-\\ua9b2\\ua9e6-\\ua9fe\\uaa00-\\uaa28\\uaa60-\\uaa76\\uaa7e-\\uaaaf\\uab30-\\uab5a\\uab70-\\uabe2\\uac00-\\ud7a3\\ud7b0-\\ud7c6\\ud7cb-\\ud7fb\\uf900-\\ufa6d\\ufa70-\\ufad9\\ufb46-\\ufbb1\\ufbd3-\\ufd3d\\ufd50-\\ufd8f\\ufd92-\\ufdc7\\ufe76-\\ufefc\\uff21-\\uff3a\\uff41-\\uff5a\\uff66-\\uff9f\\uffa1-\\uffbe-]{0,31}$"}
    ],
    "examples": ["nightly-backup"]
  },
  "ListedName": {
    "description": "A name. In a list of all namespaces it is qualified: `NAMESPACE/LOCAL`, or `LOCAL` alone in the namespace `default`. The server also accepts qualified names with letters outside of ASCII, and longer local names while both parts have at most 128 bytes.",
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "anyOf": [
      {"$ref": "#/components/schemas/Name"},
      {"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}/[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}$"}
    ],
    "examples": ["nightly-backup", "team-a/nightly-backup"]
  },
  "Namespace": {
    "description": "A namespace: a name of at most 63 bytes.",
    "$ref": "#/components/schemas/Name",
    "anyOf": [{"pattern": "^[\\x00-\\x7f]{1,63}$"}, {"maxLength": 15}],
    "examples": ["team-a"]
  },
  "GivenNamespace": {
    "description": "A namespace.",
    "type": "string",
    "minLength": 1,
    "maxLength": 63,
    "examples": ["team-a"]
  },
  "EntityTags": {
    "description": "`*`, or at most 100 entity tags (RFC 9110) with commas between them.",
    "type": "string",
    "anyOf": [{"const": "*"}, {"pattern": "^(?:W/)?\"[!#-~]*\"(?:, ?(?:W/)?\"[!#-~]*\"){0,99}$"}],
    "examples": ["\"17-3\"", "*"]
  },
  "AnyEntityTag": {
    "description": "`*`: any entity tag.",
    "type": "string",
    "const": "*"
  },
  "IdempotencyKeyHeader": {
    "description": "A key of 1 to 255 characters of printable ASCII: as it is if it has no quotation mark, or as a string of a structured field (RFC 8941).",
    "type": "string",
    "minLength": 1,
    "anyOf": [
      {"pattern": "^[!#-~](?:[ !#-~]{0,253}[!#-~])?$"},
      {"pattern": "^\"(?:[ !#-\\[\\]-~]|\\\\[\"\\\\]){1,255}\"$"}
    ],
    "examples": ["8e03978e-40d5-43dd-bc93-6894a57f9324"]
  },
  "EventKinds": {
    "description": "Kinds of events, separated by commas.",
    "type": "string",
    "pattern": "^(?:run|job|executor)(?:,(?:run|job|executor))*$",
    "examples": ["run", "job,run"]
  },
  "AllNamespaces": {
    "description": "Whether a request is about all namespaces. Only on paths without a namespace.",
    "type": "boolean",
    "default": false,
    "examples": [true]
  },
  "VersionNumber": {
    "description": "The number of a version of a job.",
    "type": "integer",
    "format": "int64",
    "minimum": 0,
    "maximum": 9223372036854775807,
    "examples": [1]
  },
  "AuditResult": {
    "description": "How an action ended: `refused` if the actor had no right to it, or could not prove who they are.",
    "type": "string",
    "enum": ["done", "refused"]
  },
  "GivenName": {
    "description": "A name of a job, a group or an executor; that of a job or a group is qualified outside of definitions.",
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "examples": ["nightly-backup"]
  },
  "Instant": {
    "description": "Milliseconds since 1970-01-01T00:00:00Z.",
    "type": "integer",
    "format": "int64",
    "examples": [1795237883581]
  },
  "DateTime": {
    "description": "RFC 3339 text until 9999-12-28, with at most nine digits of a second.",
    "type": "string",
    "format": "date-time",
    "maxLength": 35,
    "pattern": "^(?:(?:[0-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])|9999-(?:(?:0[1-9]|1[01])-(?:0[1-9]|[12][0-9]|3[01])|12-(?:0[1-9]|1[0-9]|2[0-8])))[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$",
    "examples": ["2027-01-31T12:00:00Z", "2027-01-31T13:00:00.5+01:00"]
  },
  "InstantText": {
    "description": "An instant: RFC 3339 text, or milliseconds since 1970-01-01T00:00:00Z. Write '+' as %2B in a URL.",
    "anyOf": [
      {"$ref": "#/components/schemas/DateTime"},
      {"type": "integer", "format": "int64", "minimum": -377705023201000, "maximum": 253402207200999}
    ],
    "examples": ["2027-01-31T12:00:00Z", 1801396800000]
  },
  "PageLimit": {
    "description": "The most entries of one response.",
    "type": "integer",
    "format": "int32",
    "minimum": 1,
    "maximum": 1000,
    "examples": [100]
  },
  "NumberOfTimes": {
    "description": "The number of fire times.",
    "type": "integer",
    "format": "int32",
    "minimum": 1,
    "maximum": 1000,
    "default": 5,
    "examples": [3]
  },
  "Cursor": {
    "description": "The `next` of the previous response; 0 is the beginning.",
    "type": "integer",
    "format": "int64",
    "minimum": 0,
    "default": 0,
    "examples": [0]
  },
  "LastEvent": {
    "description": "The id of an event. It is opaque. An id that the server does not know, or not any more, is answered with `resync`.",
    "type": "string",
    "pattern": "^[\\x20-\\x7e]*$",
    "examples": ["9f2c11d04a6be387-42"]
  },
  "LastLine": {
    "description": "The `cursor` of a line, which is the id of its event.",
    "type": "integer",
    "format": "int64",
    "minimum": 0,
    "maximum": 9223372036854775807,
    "examples": [4294967296]
  },
  "RunNumber": {
    "description": "The id of a run.",
    "type": "integer",
    "format": "int64",
    "minimum": 1,
    "maximum": 9223372036854775807,
    "examples": [7]
  },
  "LetterNumber": {
    "description": "The number of a dead letter.",
    "type": "integer",
    "format": "int64",
    "minimum": -9223372036854775808,
    "maximum": 9223372036854775807,
    "examples": [1]
  },
  "WaitMs": {
    "description": "The longest wait for new lines, in milliseconds.",
    "type": "integer",
    "format": "int32",
    "minimum": 0,
    "maximum": 30000,
    "default": 0,
    "examples": [10000]
  },
  "KeyId": {
    "description": "The id of a worker's key: 16 hexadecimal digits.",
    "type": "string",
    "pattern": "^[0-9a-f]{16}$",
    "examples": ["0123456789abcdef"]
  },
  "TokenId": {
    "description": "The id of a token: 16 hexadecimal digits.",
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "examples": ["0123456789abcdef"]
  },
  "LoginName": {
    "description": "A login name: 1 to 128 bytes; letters and digits of any language, '-', '_', '.', '@' and '+'. Upper and lower case are the same name. The server also accepts letters that the pattern does not have.",
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$",
    "examples": ["ann"]
  },
  "Role": {
    "description": "A set of rights. Each role includes the ones before it.",
    "type": "string",
    "enum": ["viewer", "operator", "author", "admin"]
  },
  "Grant": {
    "description": "A role in all namespaces, in one namespace, or in one group.",
    "type": "object",
    "required": ["role"],
    "properties": {
      "namespace": {"description": "Left out for all namespaces.", "$ref": "#/components/schemas/GivenNamespace"},
      "group": {"description": "Left out for all groups of the namespace; qualified.", "$ref": "#/components/schemas/GivenName"},
      "role": {"$ref": "#/components/schemas/Role"},
      "scripts": {"description": "Whether jobs with scripts and commands, and HTTP jobs with secrets, may be edited; left out if not.", "type": "boolean"}
    },
    "examples": [{"group": "team-a/billing", "role": "author", "scripts": true}]
  },
  "NewGrant": {
    "description": "A role in all namespaces, in one namespace, or in one group. A group is qualified, so it needs no namespace beside it.",
    "type": "object",
    "additionalProperties": false,
    "required": ["role"],
    "properties": {
      "namespace": {"description": "Only in this namespace.", "anyOf": [{"$ref": "#/components/schemas/Namespace"}, {"type": "null"}]},
      "group": {"description": "Only in this group: `NAMESPACE/LOCAL`, or `LOCAL` alone in the namespace `default`.", "anyOf": [{"$ref": "#/components/schemas/ListedName"}, {"type": "null"}]},
      "role": {"$ref": "#/components/schemas/Role"},
      "scripts": {"description": "Whether jobs with scripts and commands, and HTTP jobs with secrets, may be edited; `false` by default.", "type": "boolean"}
    },
    "anyOf": [
      {"properties": {"namespace": {"type": "null"}}},
      {"properties": {"group": {"type": "null"}}}
    ],
    "examples": [{"group": "team-a/billing", "role": "author", "scripts": true}]
  },
  "Password": {
    "description": "A password of 12 to 256 characters, without a NUL character.",
    "type": "string",
    "format": "password",
    "minLength": 12,
    "maxLength": 256,
    "pattern": "^[^\\x00]*$"
  },
  "GivenPassword": {
    "description": "The present password.",
    "type": "string",
    "format": "password",
    "minLength": 1,
    "maxLength": 256,
    "pattern": "^[^\\x00]*$"
  },
  "AccountText": {
    "description": "A text of at most 256 bytes without control characters.",
    "type": "string",
    "maxLength": 256,
    "anyOf": [{"pattern": "^[\\x20-\\x7e]*$"}, {"pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]{1,64}$"}]
  },
  "RunState": {
    "description": "The state of a run.",
    "type": "string",
    "enum": ["scheduled", "dispatching", "queued", "running", "succeeded", "failed", "timed_out", "lost", "unroutable", "cancelled", "discarded", "covered", "skipped"]
  },
  "RunCounts": {
    "description": "The number of runs by state. States without runs are left out.",
    "type": "object",
    "propertyNames": {"$ref": "#/components/schemas/RunState"},
    "additionalProperties": {"type": "integer", "format": "int64", "minimum": 0},
    "examples": [{"succeeded": 3}]
  },
  "Duration": {
    "description": "A duration of at most 3650d: numbers with the units d, h, m, s and ms. The server also accepts longer sums that stay below that.",
    "type": "string",
    "maxLength": 200,
    "pattern": "^ *(?:(?:(?:[0-9]{1,3}|[12][0-9]{3}|3[0-5][0-9]{2}|36[0-4][0-9]|3650)d|(?:[0-9]{1,4}|[1-7][0-9]{4})h|(?:[0-9]{1,6}|[1-4][0-9]{6})m|(?:[0-9]{1,8}|[12][0-9]{8})s|(?:[0-9]{1,11}|[12][0-9]{11})ms) *|(?:(?:[0-9]{1,3}|[12][0-9]{3})d *|(?:[0-9]{1,2}d|[0-9]{1,3}h|[0-9]{1,5}m|[0-9]{1,7}s|[0-9]{1,10}ms) *)(?:(?:[0-9]{1,2}d|[0-9]{1,3}h|[0-9]{1,5}m|[0-9]{1,7}s|[0-9]{1,10}ms) *){1,4}|(?:[0-9]{1,3}|[12][0-9]{3}|3[0-5][0-9]{2}|36[0-4][0-9])d *(?:(?:[01]?[0-9]|2[0-3])h *)?(?:[0-5]?[0-9]m *)?(?:[0-5]?[0-9]s *)?(?:[0-9]{1,3}ms *)?)$",
    "examples": ["250ms", "10s", "1h30m"]
  },
  "Period": {
    "description": "A duration from 100ms to 3650d.",
    "$ref": "#/components/schemas/Duration",
    "pattern": "[1-9][0-9]*[dhs]|[1-9][0-9]*m(?:[^s]|$)|[1-9][0-9]{2,}ms",
    "examples": ["100ms", "10s", "1h30m"]
  },
  "TimeLimit": {
    "description": "A duration from 1ms to 3650d.",
    "$ref": "#/components/schemas/Duration",
    "pattern": "[1-9]",
    "examples": ["250ms", "1h 30m"]
  },
  "Lifetime": {
    "description": "For how long a token is valid: a duration from 1s to 3650d, or `never`.",
    "anyOf": [
      {"$ref": "#/components/schemas/Duration", "pattern": "[1-9][0-9]*[dhs]|[1-9][0-9]*m(?:[^s]|$)|[1-9][0-9]{3,}ms"},
      {"const": "never"}
    ],
    "examples": ["30d", "never"]
  },
  "ProviderParameters": {
    "description": "Parameters that the identity provider adds, such as `session_state`. They are ignored.",
    "type": "object",
    "propertyNames": {"not": {"enum": ["state", "code", "error", "iss"]}},
    "additionalProperties": {"type": "string"},
    "examples": [{"session_state": "0a1b"}]
  },
  "ProviderValue": {
    "description": "A value of the identity provider: at most 4,096 bytes.",
    "type": "string",
    "maxLength": 4096,
    "anyOf": [{"pattern": "^[\\x00-\\x7f]*$"}, {"maxLength": 1024}]
  },
  "Text": {
    "description": "A text of at most 64 KiB without a NUL character.",
    "type": "string",
    "maxLength": 65536,
    "pattern": "^[^\\x00]*$"
  },
  "Path": {
    "description": "A path of at most 4 KiB; not blank, without a NUL character.",
    "type": "string",
    "minLength": 1,
    "maxLength": 4096,
    "pattern": "^[^\\x00]*[^\\x00\\s][^\\x00]*$"
  },
  "Parameter": {
    "description": "The parameter of the handler: a text is passed unchanged, any other value as JSON text. At most 64 KiB without a NUL character.",
    "type": ["string", "number", "boolean", "array", "object", "null"],
    "maxLength": 65536,
    "pattern": "^[^\\x00]*$",
    "anyOf": [{"pattern": "^[\\x01-\\x7f]*$"}, {"maxLength": 16384}],
    "examples": ["2027-03", {"month": 3}]
  },
  "Whole": {
    "description": "A whole number. `3`, `3.0` and `3e0` are the same one.",
    "type": "integer",
    "format": "int64",
    "minimum": -9223372036854775808,
    "maximum": 9223372036854775807
  },
  "WholeOrText": {
    "description": "A text of at most 64 KiB. A whole number or a truth value counts as its text.",
    "anyOf": [
      {"$ref": "#/components/schemas/Text"},
      {"$ref": "#/components/schemas/Whole"},
      {"type": "boolean"}
    ]
  }
}"##;
