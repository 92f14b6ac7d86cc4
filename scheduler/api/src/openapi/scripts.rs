//! Scripts, as `cueline_model::decode` accepts them. `docs/jobs.md` explains the fields.

/// JSON Schemas by name.
pub(super) const SCHEMAS: &str = r##"{
  "Language": {"description": "The program that runs a script.", "enum": ["sh", "bash", "python3", "node", "php", "pwsh"]},
  "Remark": {"description": "Why it is saved.", "type": ["string", "null"], "maxLength": 1024, "pattern": "^[^\\x00]*$"},
  "ScriptDefinition": {
    "description": "A script: its name, its language and its text.",
    "type": "object",
    "additionalProperties": false,
    "required": ["name", "language", "text"],
    "properties": {
      "name": {"$ref": "#/components/schemas/Name"},
      "namespace": {"description": "The namespace of the script; that of the request by default, and no other one.", "anyOf": [{"$ref": "#/components/schemas/Namespace"}, {"type": "null"}]},
      "language": {"$ref": "#/components/schemas/Language"},
      "text": {"$ref": "#/components/schemas/Script"},
      "remark": {"$ref": "#/components/schemas/Remark"}
    },
    "examples": [{"name": "backup", "language": "bash", "text": "pg_dump app > app.sql", "remark": "first version"}]
  },
  "ScriptReplacement": {
    "description": "The script in the path. `name` may be left out; otherwise it is the same.",
    "type": "object",
    "additionalProperties": false,
    "required": ["language", "text"],
    "properties": {
      "name": {"anyOf": [{"$ref": "#/components/schemas/Name"}, {"type": "null"}]},
      "namespace": {"description": "The namespace of the request, and no other one.", "anyOf": [{"$ref": "#/components/schemas/Namespace"}, {"type": "null"}]},
      "language": {"$ref": "#/components/schemas/Language"},
      "text": {"$ref": "#/components/schemas/Script"},
      "remark": {"$ref": "#/components/schemas/Remark"}
    },
    "examples": [{"language": "bash", "text": "pg_dump app > app.sql", "remark": "first version"}]
  },
  "ScriptsRequest": {
    "type": "object",
    "additionalProperties": false,
    "required": ["scripts"],
    "properties": {
      "scripts": {"description": "The scripts.", "type": "array", "maxItems": 1000, "items": {"$ref": "#/components/schemas/ScriptDefinition"}},
      "dry_run": {"description": "Only compare; `false` by default.", "type": ["boolean", "null"]}
    },
    "examples": [{"scripts": [{"name": "backup", "language": "bash", "text": "pg_dump app > app.sql"}]}]
  },
  "ScriptRestore": {
    "type": "object",
    "additionalProperties": false,
    "required": ["version"],
    "properties": {
      "version": {"description": "The version whose language and text are saved again.", "$ref": "#/components/schemas/VersionNumber"},
      "remark": {"$ref": "#/components/schemas/Remark"}
    },
    "examples": [{"version": 1}]
  },
  "ScriptOfJob": {
    "description": "A script of the namespace: its name, or a table with the details.",
    "anyOf": [
      {"$ref": "#/components/schemas/Name"},
      {
        "type": "object", "additionalProperties": false, "required": ["name"],
        "properties": {
          "name": {"$ref": "#/components/schemas/Name"},
          "version": {"$ref": "#/components/schemas/PinnedVersion"},
          "env": {"anyOf": [{"$ref": "#/components/schemas/Variables"}, {"type": "null"}]},
          "clear_env": {"description": "Start with cron's environment instead of the worker's; `false` by default.", "type": ["boolean", "null"]},
          "cwd": {"description": "The working directory.", "anyOf": [{"$ref": "#/components/schemas/Path"}, {"type": "null"}]},
          "stdin": {"description": "Text on standard input.", "anyOf": [{"$ref": "#/components/schemas/TextOrSecret"}, {"type": "null"}]},
          "run_as": {"description": "The user to run as.", "type": ["string", "null"], "minLength": 1, "maxLength": 128, "pattern": "^[^\\x00]*[^\\x00\\s][^\\x00]*$"}
        }
      }
    ],
    "examples": ["backup"]
  },
  "PinnedVersion": {"description": "The version of the script that runs; the newest by default.", "type": ["integer", "null"], "format": "int64", "minimum": 1, "maximum": 4294967295}
}"##;
